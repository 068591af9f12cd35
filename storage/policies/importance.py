"""Importance: what keeps a high loss rank stays (SHADE)."""

from __future__ import annotations

from storage.policies.loss_order import LossOrder


class Importance(LossOrder):
    """Keeps samples whose losses rank high in their batches, then those used more often.

    A sample has importance w = ln(rank + 10), 1.0 before it was ever trained, and f, the number of
    its uses. The victim is the least (w, f), ties by the lowest number; an incoming sample comes
    in when its (w, f) is greater. Samples that are not cached keep theirs (SHADE's ghost cache).

    Source: SHADE (Khan et al., FAST 2023) and FedCaSe's artifact. Departures: scores go
    to the samples that were trained (the public SHADE mixes the order drawn with the order in
    which hits are served first); f counts each use once, where the artifact adds 1 to every sample
    seen so far at each step; a sample without a score competes with the start value, where the
    artifact lets none in once the cache is full.
    """

    def score(self, rank: int, uses: int) -> float:  # noqa: ARG002 - uses decide inside a rank
        """Order by rank: ln(rank + 10) rises with it, and unscored is below every rank."""
        return float(rank)

    def outranks(self, incoming: int, victim: int) -> bool:
        """Compare (w, f)."""
        ranks, uses = self.ranks, self.uses
        return bool((ranks[incoming], uses[incoming]) > (ranks[victim], uses[victim]))
