"""What a run must not forget: every part that changes from round to round, saved and restored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord

from fedio.arrays import pack, unpack
from fedio.checkpoints import Checkpoint, named, part
from fedio.errors import InputError
from fedio.runs import RunFolder

logger = logging.getLogger(__name__)

_MODEL = "model"

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run: how its state is got as named arrays, and how it goes on from one."""

    state: Callable[[], Arrays]
    restore: Callable[[Arrays], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: rounds that are over, the global model, wall-clock seconds it took."""

    server_round: int
    model: ArrayRecord
    wall_s: float


class Memory:
    """Keeps a run's state after each round, and brings it back."""

    def __init__(self, folder: RunFolder, digest: str, parts: Mapping[str, Part]) -> None:
        """Nothing is kept yet.

        Args:
            folder: of the run.
            digest: of its experiment.
            parts: all that changes, by name.
        """
        self._folder, self._digest = folder, digest
        self._parts = parts

    def keep(self, progress: Progress) -> None:
        """Keep the state of all parts and the model.

        Raises:
            RunError: it cannot be written.
        """
        model = {name: unpack(array) for name, array in progress.model.items()}
        states = {name: one.state() for name, one in self._parts.items()}
        notes = {"round": progress.server_round, "wall_s": progress.wall_s, _MODEL: list(model)}
        notes["experiment"] = self._digest
        self._folder.keep(Checkpoint(named({_MODEL: model} | states), notes))

    def recall(self) -> Progress | None:
        """Bring all parts back to where they were, if something is kept.

        Raises:
            InputError: what is kept is damaged.
        """
        if not self._folder.is_begun:
            return None
        checkpoint = self._folder.go_back()
        try:
            progress = self._restored(checkpoint)
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"the checkpoint in {self._folder.path} is of another version of fedio ({error}); "
                "run again without --resume"
            ) from error
        logger.info("going on after round %d", progress.server_round)
        return progress

    def _restored(self, checkpoint: Checkpoint) -> Progress:
        notes, model = checkpoint.notes, part(checkpoint.arrays, _MODEL)
        if notes["experiment"] != self._digest:
            raise ValueError("it is of another experiment")
        for name, one in self._parts.items():
            one.restore(part(checkpoint.arrays, name))
        arrays = ArrayRecord({name: pack(model[name]) for name in notes[_MODEL]})
        return Progress(int(notes["round"]), arrays, float(notes["wall_s"]))
