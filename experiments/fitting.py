"""An experiment made to fit a number of clients."""

from __future__ import annotations

from fedio.config import Experiment


def fit(experiment: Experiment, clients: int) -> tuple[Experiment, list[str]]:
    """Return the experiment with so many clients, and what else that changes, in words.

    A round trains no more clients than there are: cohort, minimum and over-commitment become
    smaller where they have to.
    """
    rounds = experiment.rounds
    cohort = min(rounds.cohort, clients)
    fitting = {
        "cohort": cohort,
        "minimum": min(rounds.minimum, cohort),
        "over_commitment": min(rounds.over_commitment, clients / cohort),
    }
    changes = [
        f"rounds.{key} {getattr(rounds, key):g} -> {value:g}"
        for key, value in fitting.items()
        if value != getattr(rounds, key)
    ]
    values = experiment.model_dump()
    values["data"]["clients"] = clients
    values["rounds"] |= fitting
    return Experiment.model_validate(values), changes
