"""The availability that an experiment names: from a trace, periodic or random; and forecasts."""

from __future__ import annotations

import numpy as np

from fedio.availability import TICKS_PER_S, Availability, on_ticks
from fedio.config import Availability as Setting
from fedio.config import Experiment
from fedio.device_traces import read_availability, rows_of
from fedio.seeds import Purpose, rng

# Of random availability: after so many stays, and as many absences, a client's own repeat.
CYCLE_STAYS = 32


def availability_of(experiment: Experiment) -> Availability | None:
    """Return when the clients of an experiment are there; None: always, all of them.

    Raises:
        InputError: the trace cannot be read, or something in it is wrong.
    """
    setting, clients = experiment.availability, experiment.data.clients
    generator = rng(experiment.seed, Purpose.AVAILABILITY)
    if setting.kind == "trace":
        trace = read_availability(setting.file)
        return trace.take(rows_of(len(trace.period_s), clients, generator))
    if setting.kind == "periodic":
        return _periodic(setting, clients, generator)
    return _random(setting, clients, generator) if setting.kind == "random" else None


def forecasts(availability: Availability, now_s: float, experiment: Experiment) -> np.ndarray:
    """Return the share of the window to come for which each client expects to be there.

    The window is the one from `forecast_s` to twice that from now, as REFL asks (EuroSys'23;
    artifact, `client_manager.isAvailable`). Who errs forecasts the opposite. Who errs is drawn anew
    every `forecast_s`, whatever was asked before.

    Returns:
        float64 [N].
    """
    setting, window_s = experiment.availability, experiment.availability.forecast_s
    share = availability.share(now_s + window_s, now_s + 2 * window_s)
    # Number 0 draws the availability itself.
    window = 1 + int(now_s // window_s)
    generator = rng(experiment.seed, Purpose.AVAILABILITY, server_round=window)
    right = generator.random(len(share)) < setting.forecast_accuracy
    return np.where(right, share, 1 - share)


def _periodic(setting: Setting, clients: int, generator: np.random.Generator) -> Availability:
    """Return one stay a period, at a time of the day, so to say, of each client's own."""
    period_s, stay_s = _up(setting.period_s), _up(setting.period_s * setting.share)
    phase_s = generator.integers(int(period_s * TICKS_PER_S), size=clients) / TICKS_PER_S
    every = np.full(clients, period_s)
    return Availability(-phase_s, stay_s - phase_s, np.arange(clients + 1), every)


def _random(setting: Setting, clients: int, generator: np.random.Generator) -> Availability:
    """Return stays and absences with exponential lengths, from somewhere amid a cycle of them."""
    starts_s, ends_s = (
        _up(generator.exponential(mean_s, (clients, CYCLE_STAYS)))
        for mean_s in (setting.absence_s, setting.stay_s)
    )
    ends_s += starts_s
    np.cumsum(ends_s, axis=1, out=ends_s)
    starts_s[:, 1:] += ends_s[:, :-1]
    period_s = ends_s[:, -1].copy()
    amid_s = on_ticks(generator.random(clients) * period_s)[:, None]
    starts_s -= amid_s
    ends_s -= amid_s
    first = np.arange(clients + 1) * CYCLE_STAYS
    return Availability(starts_s.ravel(), ends_s.ravel(), first, period_s)


def _up(time_s: np.ndarray | float) -> np.ndarray:
    """Return times as multiples of a tick, one at least."""
    return np.maximum(np.ceil(np.multiply(time_s, TICKS_PER_S)), 1.0) / TICKS_PER_S
