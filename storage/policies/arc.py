"""ARC: what was used once lately against what was used more often."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from storage.policies.queues import QueuePolicy
from storage.policy import Why
from storage.victim_queue import NOBODY

_ONCE, _OFTEN = 1, 2  # the list whose ghost a sample was


class ARC(QueuePolicy):
    """Learns how much room to give to what was used once and to what was used more often.

    There is a list of each, ordered by last use (T1 and T2 in the paper). Who leaves one goes on as
    its ghost (B1 and B2). A request for a ghost says that its list was too short, and moves the
    target for the first one; that list loses a sample while it is above its target, and else the
    other one does. Who comes back from a ghost joins the second list (Megiddo, Modha, ARC: A
    Self-Tuning, Low Overhead Replacement Cache, FAST 2003, figure 4).

    Lists are measured in charged bytes. What a sample was used before it comes in counts only where
    it was a ghost. An overwritten one stays in its list, as if it were used now.

    Departures:
        The target moves in charges of the sample that was asked for. libCacheSim moves it in bytes
        whatever the charges, so that it hardly moves where samples have thousands of them.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples, "once", "often", "once_ghosts", "often_ghosts")
        self._once, self._often, self._once_ghosts, self._often_ghosts = self._queues.values()
        self._target_bytes = 0.0  # of those used once
        self._back: dict[int, int] = {}  # asked for as a ghost of this list, and not here yet

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Move who was there to the end of the second list, and look for the others' ghosts."""
        self._forget()
        often = self._often.order
        for sample in samples[hit].tolist():
            if sample in often:
                often.move_to_end(sample)
            elif self._once.drop(sample):
                self._often.append(sample)
        self._recall(samples[~hit].tolist())

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the first of the list that has to lose one, as if each of them left."""
        once_bytes = self._once.charged_bytes
        newcomer = NOBODY if incoming is None else incoming
        is_often = newcomer in self._often_ghosts.order or self._back.get(newcomer) == _OFTEN
        once, often = iter(self._once.order), iter(self._often.order)
        first, second = next(once, NOBODY), next(often, NOBODY)
        while not first == second == NOBODY:
            excess_bytes = once_bytes - self._target_bytes
            is_long = excess_bytes > 0 or (is_often and excess_bytes == 0)
            if first != NOBODY and (is_long or second == NOBODY):
                once_bytes -= self._costs[first]
                victim, first = first, next(once, NOBODY)
            else:
                victim, second = second, next(often, NOBODY)
            yield victim

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Let one leave for each."""
        return self._enter(incoming, is_full=True)

    def inserted(self, samples: np.ndarray) -> None:
        """Put each at the end of its list."""
        self._enter(samples.tolist(), is_full=False)

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Take samples out of their lists; who was evicted becomes a ghost."""
        for sample in samples.tolist():
            was_once = self._once.drop(sample)
            if not was_once:
                self._often.drop(sample)
            if why == "evicted":
                (self._once_ghosts if was_once else self._often_ghosts).append(sample)
            elif why == "overwritten" and not was_once:
                self._back[sample] = _OFTEN

    def columns(self) -> dict[str, np.ndarray]:
        """Lists, ghosts, the target, and who was asked for as a ghost of which list."""
        back = np.array(sorted(self._back.items()), np.int64).reshape(-1, 2)
        return super().columns() | {"target_bytes": np.array(self._target_bytes), "back": back}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        super().restore(columns)
        self._target_bytes = float(columns["target_bytes"])
        self._back = dict(columns["back"].tolist())

    def _forget(self) -> None:
        """Drop the oldest ghosts: of the first list beyond one capacity, of all beyond two."""
        once_bytes, capacity_bytes = self._once.charged_bytes, self.capacity_bytes
        self._once_ghosts.shrink_to(capacity_bytes - once_bytes)
        others_bytes = once_bytes + self._once_ghosts.charged_bytes + self._often.charged_bytes
        self._often_ghosts.shrink_to(2 * capacity_bytes - others_bytes)

    def _recall(self, missed: Sequence[int]) -> None:
        """Lengthen the list whose ghost was asked for, the more the fewer ghosts it has."""
        first, second, costs = self._once_ghosts, self._often_ghosts, self._costs
        target_bytes, most_bytes = self._target_bytes, float(self.capacity_bytes)
        for sample in missed:
            if sample in first.order:
                ghosts, others, sign, came_from = first, second, 1, _ONCE
            elif sample in second.order:
                ghosts, others, sign, came_from = second, first, -1, _OFTEN
            else:
                continue
            cost = costs[sample]
            ratio = max(1.0, others.charged_bytes / (ghosts.charged_bytes or 1))
            target_bytes = min(max(target_bytes + sign * cost * ratio, 0.0), most_bytes)
            del ghosts.order[sample]
            ghosts.charged_bytes -= cost
            self._back[sample] = came_from
        self._target_bytes = target_bytes

    def _enter(self, incoming: Sequence[int], is_full: bool) -> list[int]:
        """Put each at the end of its list, once a victim has left for it if the cache is full."""
        once, often, once_ghosts, often_ghosts = self._queues.values()
        back, costs, offered = self._back, self._costs, self._offered
        left = []
        for sample in incoming:
            came_from = back.pop(sample, 0)
            if not came_from and (sample in once_ghosts.order or sample in often_ghosts.order):
                # It is staged: nobody asked for it.
                came_from = _ONCE if once_ghosts.drop(sample) else _OFTEN
                often_ghosts.drop(sample)
            if is_full:
                excess_bytes = once.charged_bytes - self._target_bytes
                is_long = excess_bytes > 0 or (excess_bytes == 0 and came_from == _OFTEN)
                is_once = once.order and (is_long or not often.order)
                losing, ghosts = (once, once_ghosts) if is_once else (often, often_ghosts)
                victim, _ = losing.order.popitem(last=False)
                losing.charged_bytes -= costs[victim]
                ghosts.order[victim] = None
                ghosts.charged_bytes += costs[victim]
                left.append(victim)
            costs[sample] = offered[sample]
            (often if came_from else once).append(sample)
        return left
