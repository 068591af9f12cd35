"""Important samples by importance, the others by turns and in each other's place (iCache)."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing

import numpy as np

from storage.policies.loss_share import LossShare
from storage.policies.turns import Turns
from storage.policy import Policy, Why
from storage.victim_queue import NOBODY, VictimQueue


class ICache(Policy):
    """Keeps important samples by importance; the others take turns and stand in for each other.

    A sample is as important as its last loss is high. What counts is settled when an epoch starts:
    of the samples that were trained a share is important, and all that were not trained yet. An
    important sample that is missed is read, and comes in for the least important one if that is
    less important. In place of an unimportant one the unimportant resident is served that has been
    here longest and was neither requested nor served in this epoch; where there is none, it is
    read and comes in for the one that has been here longest. A region that holds more than its
    share of the capacity gives a sample up first, so room that one does not need serves the other.

    Source: iCache (Chen et al., HPCA 2023) and its artifact (ISCS-ZJU/iCache): importance by loss,
    in force from the next epoch on (the shadow heap); 0.7 of an epoch's samples important, at first
    all; a stand-in serves once. Departures: an epoch is a participation, or n requests of a longer
    one. The artifact's settings give a tenth of the room to the unimportant, which a thread of its
    own fills; ours only misses fill, so they have more. There all unimportant requests get a
    stand-in, here those that missed.

    Args:
        samples: how many samples there are, cached or not.
        important_share: how many of the trained samples are important; ties are, too.
        important_space: their share of the capacity; fixed, where the paper adapts it.
        times: how often a sample may stand in from when it came in to when it leaves, once an
            epoch. Then only a miss brings in another, so the region never stays as it is.

    Raises:
        ValueError: a share outside 0..1, or `times` outside 1..255.
    """

    substitutes = True

    def __init__(
        self,
        samples: int,
        important_share: float = 0.7,
        important_space: float = 0.7,
        times: int = 1,
    ) -> None:
        super().__init__(samples)
        if not (0 <= important_share <= 1 and 0 <= important_space <= 1 and 1 <= times <= 255):
            raise ValueError("important_share and important_space are in 0..1, times in 1..255")
        self._space = important_space
        self._ranking = LossShare(samples, important_share)
        self._important, self._scores = self._ranking.important, self._ranking.scores
        self._costs = np.zeros(samples, np.int64)
        self._offered = np.zeros(samples, np.int64)  # what they were charged when offered last
        self._requests = 0  # in this epoch
        self._named: tuple[np.ndarray, list[int]] | None = None  # for whom, and who stands in
        self._leading = np.zeros(samples, dtype=np.bool_)  # the important residents
        self._leading_bytes = 0
        self._least = VictimQueue(self._scores, self._leading)
        self._others = Turns(samples, times)

    def plan(self, order: np.ndarray) -> None:  # noqa: ARG002
        """Start an epoch."""
        self._start_epoch()

    def stand_ins(self, samples: np.ndarray) -> np.ndarray:
        """Name unused unimportant residents in place of unimportant samples."""
        answer = np.full(len(samples), NOBODY)
        rows = np.flatnonzero(~self._important[samples])
        named = self._others.substitutes(len(rows))
        answer[rows[: len(named)]] = named
        self._named = samples, named
        return answer

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Note who was used; who was named a stand-in was, unless that read came to nothing."""
        if self._named is not None:
            (requested, named), self._named = self._named, None
            if np.array_equal(samples[~hit][: len(requested)], requested):
                self._others.stand_in(named)
        while len(samples) >= (rest := max(self.samples, 1) - self._requests):
            self._start_epoch()
            samples = samples[rest:]
        self._others.used[samples] = True
        self._requests += len(samples)

    def weigh(self, samples: np.ndarray, costs: np.ndarray) -> None:
        """Note charges; they count once the samples come in."""
        self._offered[samples] = costs

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the least important while these are too many, then the others, then the rest."""
        claim, over_bytes = math.inf, self._leading_bytes - self._space * self.capacity_bytes
        leads = incoming is not None and bool(self._important[incoming])
        if incoming is not None and leads:
            claim = self._scores.item(incoming)
            over_bytes += 0 if self._leading[incoming] else self._offered.item(incoming)
        with closing(self._least.victims()) as order:
            least = (victim for victim in order if victim != incoming)
            while over_bytes > 0 and (victim := next(least, NOBODY)) != NOBODY:
                if claim <= self._scores.item(victim):
                    return
                over_bytes -= self._costs.item(victim)
                yield victim
            yield from self._others
            for victim in least if leads or incoming is None else ():
                if claim <= self._scores.item(victim):
                    return
                yield victim

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through both regions once for all; a subclass says so itself."""
        if type(self) is not ICache:
            return super().exchange(incoming)
        left: list[int] = []
        flags, scores, others = self._ranking.flags, self._scores.item, self._others
        space_bytes, cost_bytes = self._space * self.capacity_bytes, self._offered.item(incoming[0])
        least = NOBODY  # the least important resident, while it is out of its queue
        for sample in incoming:
            leads, leading_bytes = flags[sample], self._leading_bytes
            over = leading_bytes > 0 and leading_bytes + leads * cost_bytes > space_bytes
            if over or not others:
                claim = scores(sample) if leads else math.inf if over else -math.inf
                least = self._least.pop() if least == NOBODY else least
                if claim <= scores(least):
                    left.append(NOBODY)
                    continue
                self._leading[least] = False
                self._leading_bytes -= cost_bytes
                left.append(least)
                least = NOBODY
            else:
                left.append(others.pop())
            self._enter(sample)
        if least != NOBODY:
            self._least.push(least)
        return left

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into their regions, in this order."""
        for sample in samples.tolist():
            self._enter(sample)

    def removed(self, samples: np.ndarray, why: Why) -> None:  # noqa: ARG002
        """Take samples out of their regions."""
        leading = samples[self._leading[samples]]
        self._leading[leading] = False
        self._leading_bytes -= int(self._costs[leading].sum())
        self._others.drop(samples)

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Keep the losses for the next epoch."""
        self.quarantined += self._ranking.learn(samples, losses)

    def columns(self) -> dict[str, np.ndarray]:
        """Losses, what counts in this epoch, and the residents: their regions follow."""
        return {
            "losses": self._ranking.losses,
            "scores": self._scores,
            "important": self._important,
            "used": self._others.used,
            "stood": self._others.stood,
            "costs": self._costs,
            "offered": self._offered,
            "residents": self._residents(),
            "requests": np.array(self._requests),
            "quarantined": np.array(self.quarantined),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self._ranking.losses[:], self._scores[:] = columns["losses"], columns["scores"]
        self._important[:] = columns["important"]
        self._others.used[:], self._others.stood[:] = columns["used"], columns["stood"]
        self._costs[:], self._offered[:] = columns["costs"], columns["offered"]
        self._requests, self.quarantined = int(columns["requests"]), int(columns["quarantined"])
        self._arrange(columns["residents"])

    def _start_epoch(self) -> None:
        """Let the losses count, and forget who was used."""
        self._requests = 0
        self._others.used[:] = False
        self._ranking.settle()
        self._arrange(self._residents())

    def _enter(self, sample: int) -> None:
        self._others.stood[sample] = 0
        self._costs[sample] = self._offered[sample]
        if self._ranking.flags[sample]:
            self._leading[sample] = True
            self._leading_bytes += self._costs.item(sample)
            self._least.push(sample)
        else:
            self._others.push(sample)

    def _residents(self) -> np.ndarray:
        """Who is cached, int64[k]: the unimportant in their order, then the important."""
        others = np.fromiter(self._others, np.int64, len(self._others))
        return np.concatenate((others, np.flatnonzero(self._leading)))

    def _arrange(self, residents: np.ndarray) -> None:
        """Put residents into their regions; who was important follows who was not."""
        important = self._important[residents]
        leading = residents[important]
        self._leading[:] = False
        self._leading[leading] = True
        self._leading_bytes = int(self._costs[leading].sum())
        self._least.clear()
        self._others.arrange(residents[~important])
