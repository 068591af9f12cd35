"""A round's arithmetic, pure: what work takes to count, and which replies count until when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedio.clock import arrival_order
from fedio.costs import Work
from fedio.protocol import Meter


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended, and when: clients in partition order, int64 each.

    Attributes:
        counted: whose replies are aggregated.
        late: whose replies arrive after the K-th, or after the deadline.
        left: who went away before the work was done, and aborted it.
        unused: whose replies came in time, but were too few together.
        end_s: on the clock.
    """

    counted: np.ndarray
    late: np.ndarray
    left: np.ndarray
    unused: np.ndarray
    end_s: float

    @property
    def why_nothing(self) -> str:
        """Why no reply counted, if none did and none was wrong in itself."""
        if len(self.unused):
            return "too few replies came in time, or nothing finite comes of them"
        if len(self.late):
            return "every reply came after the deadline"
        return "every client went away before it was done" if len(self.left) else "nobody replied"

    def of(self, client: int) -> str:
        """Return what became of a client with a valid reply."""
        for name in ("counted", "late", "left"):
            if client in getattr(self, name):
                return name
        return "unused"


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a round is settled.

    Attributes:
        wanted: K, how many replies count.
        minimum: with fewer than that none does.
        deadline_s: seconds the round may last, if there is a limit.
    """

    wanted: int
    minimum: int = 1
    deadline_s: float | None = None


def work_of(meters: list[Meter], model_bytes: float) -> Work:
    """Return what meters counted, a row per meter."""
    steps = max((meter.steps for meter in meters), default=0)

    def table(name: str) -> np.ndarray:
        counts = np.zeros((len(meters), steps))
        for row, meter in zip(counts, meters, strict=True):
            row[: meter.steps] = getattr(meter, name)
        return counts

    return Work(
        steps=steps,
        samples=table("step_samples"),
        hits=table("step_reads"),
        hit_bytes=table("step_hit_bytes"),
        misses=table("step_misses"),
        origin_bytes=table("step_origin_bytes"),
        decodes=table("step_decoded"),
        decoded_bytes=table("step_decoded_bytes"),
        writes=table("step_written"),
        written_bytes=table("step_written_bytes"),
        download_bytes=np.full(len(meters), model_bytes),
        upload_bytes=np.full(len(meters), model_bytes),
        depth=np.array([meter.depth for meter in meters], dtype=np.float64),
        readers=np.array([meter.readers for meter in meters], dtype=np.float64),
    )


def settle(
    clients: np.ndarray,
    arrivals_s: np.ndarray,
    terms: Terms,
    start_s: float,
    unusable_s: float = 0.0,
) -> Outcome:
    """Decide which replies count: the first `wanted` to arrive, none after the deadline.

    The round ends when the last that counts has arrived. If too few arrive, it ends at the
    deadline, or without one when nothing is to be expected any more: at the last arrival, usable or
    not, or when the last of them has left; without any, at once.

    Args:
        clients: int64 [k], whose replies are valid.
        arrivals_s: float64 [k], when they arrive, on the clock; infinite: never, they have left.
        terms: how many count, and until when.
        start_s: when the round started.
        unusable_s: when the last of those is known that bring nothing: it arrives, or has left.
    """
    order = arrival_order(arrivals_s, clients)
    limit = np.inf if terms.deadline_s is None else start_s + terms.deadline_s
    never = np.isinf(arrivals_s)
    in_time = order[(arrivals_s[order] <= limit) & ~never[order]]
    first = in_time[: terms.wanted]
    end_s = float(arrivals_s[first].max(initial=start_s))
    if len(first) < terms.wanted:
        end_s = max(end_s, unusable_s) if terms.deadline_s is None else limit
    counts, is_in_time = len(first) >= terms.minimum, np.zeros(len(clients), dtype=np.bool_)
    is_in_time[first] = True
    return Outcome(
        counted=np.sort(clients[is_in_time & counts]),
        late=np.sort(clients[~is_in_time & ~never]),
        left=np.sort(clients[never]),
        unused=np.sort(clients[is_in_time & (not counts)]),
        end_s=end_s,
    )
