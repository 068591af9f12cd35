"""Choosing cohorts round by round: what the selector sees, what it remembers, who does how much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedio.config import Experiment
from fedio.seeds import Purpose, rng
from strategies.fleet import Fleet
from strategies.local_work import together
from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import predicted_phases


class Chooser:
    """A selector with its memory, over the fleet table of a run."""

    def __init__(self, experiment: Experiment, selector: Selector, fleet: Fleet) -> None:
        """Remember nothing yet.

        Args:
            experiment: the experiment, of one arm.
            selector: who chooses.
            fleet: the table, which is only looked at but for counting who was selected.
        """
        self._experiment = experiment
        self._selector = selector
        self._fleet = fleet
        self._state = selector.initial_state(len(fleet))

    def state(self) -> State:
        """Return what the selector remembers."""
        return self._state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Have the selector remember this.

        Raises:
            ValueError: it is not what the selector remembers.
        """
        if state.keys() != self._state.keys():
            raise ValueError(f"the selector remembers {sorted(self._state)}, not {sorted(state)}")
        self._state = dict(state)

    def view(self, server_round: int, now_s: float, model_bytes: float) -> View:
        """Return what a selector sees of a round that starts now."""
        rounds, training = self._experiment.rounds, self._experiment.training
        return View(
            fleet=self._fleet.read_only(),
            round=server_round,
            now_s=now_s,
            feasible=self._fleet.feasible(now_s),
            wanted=rounds.cohort,
            # 10 * 1.1 is a little more than 11 in floating point; it means 11.
            count=math.ceil(rounds.cohort * rounds.over_commitment - 1e-9),
            local_steps=training.local_steps,
            batch_size=training.batch_size,
            model_bytes=model_bytes,
            staging=self._experiment.chosen.staging,
            sampler=self._experiment.chosen.sampler.name,
        )

    def choose(self, view: View, draw: int = 0) -> Cohort:
        """Return the cohort of a round, and count that its clients were selected.

        Args:
            view: what the selector sees.
            draw: tells choices in the same round from each other.

        Raises:
            NoFeasibleClient: clients are wanted and none is feasible.
        """
        random = rng(self._experiment.seed, Purpose.SELECTION, draw, view.round)
        cohort, self._state = self._selector.select(view, self._state, random)
        if self._experiment.chosen.local_work == "together":
            steps = together(view, cohort.clients)
            details = cohort.reasons.details | {"local_steps": steps.astype(np.float64)}
            reasons = replace(cohort.reasons, details=details)
            cohort = replace(cohort, local_steps=steps, reasons=reasons)
        self._fleet.selected(cohort.clients, view.round)
        return cohort


def cohort_predicted_s(view: View, cohort: Cohort) -> np.ndarray:
    """Return what the work of each of a cohort takes by what they claim, float64 [k]."""
    seconds = np.full(len(cohort.clients), np.nan)
    for steps in np.unique(cohort.local_steps).tolist():
        alike = cohort.local_steps == steps
        asked = replace(view, local_steps=steps)
        seconds[alike] = predicted_phases(asked, cohort.clients[alike]).total_s
    return seconds
