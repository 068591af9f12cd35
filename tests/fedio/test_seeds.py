"""Generators by purpose: equal for equal keys, different for different ones."""

from __future__ import annotations

import numpy as np

from fedio.seeds import Purpose, rng


def test_streams_depend_on_every_part_of_the_key_and_on_nothing_else() -> None:
    np.random.default_rng(0).random()  # what else is drawn does not matter
    keys = [
        (0, Purpose.FLEET, 0, 0),
        (1, Purpose.FLEET, 0, 0),
        (0, Purpose.SAMPLING, 0, 0),
        (0, Purpose.SAMPLING, 1, 0),
        (0, Purpose.SAMPLING, 0, 1),
    ]
    draws = [rng(s, p, client=c, server_round=r).random(4).tolist() for s, p, c, r in keys]
    again = [rng(s, p, client=c, server_round=r).random(4).tolist() for s, p, c, r in keys]
    assert draws == again
    assert len({tuple(draw) for draw in draws}) == len(keys)
