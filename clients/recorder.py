"""The recorder: what a participation asked of its cache, in a file that becomes part of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clients.samplers import Sampler
from fedio.config import Experiment
from fedio.runs import TRACE_FOLDER
from fedio.traces import not_recorded, part_file
from storage import Policy
from storage.errors import TraceError
from storage.trace import Stream, Trace
from storage.trace_file import write_trace


@dataclass(frozen=True, slots=True)
class Participated:
    """What happened in one participation.

    Attributes:
        server_round: its round.
        order: int64 [m], what the sampler asked for.
        served: int64 [m], what was trained for each; itself where it was skipped.
        losses: float [m], of every access, in any shape; NaN where it was skipped.
        hits: demand hits.
        depth: how many batches were on their way at a time, the one in training included.
    """

    server_round: int
    order: np.ndarray
    served: np.ndarray
    losses: np.ndarray
    hits: int
    depth: int


class Recorder:
    """Writes a file for each participation of one client into its run's folder."""

    def __init__(
        self,
        experiment: Experiment,
        home: Path,
        client: int,
        size_bytes: np.ndarray,
        budget_bytes: int,
    ) -> None:
        """Get ready.

        Args:
            experiment: the experiment, of one arm.
            home: the run's folder.
            client: whose participations these are.
            size_bytes: int64 [n], what each of its samples weighs as it is cached.
            budget_bytes: of its cache.
        """
        self._experiment = experiment
        self._folder = home / TRACE_FOLDER
        self._client = client
        self._size_bytes = size_bytes
        self._budget_bytes = budget_bytes

    def write(self, done: Participated, sampler: Sampler, policy: Policy) -> None:
        """Write a participation down; one of a round that is trained again replaces the first.

        Raises:
            RunError: the file cannot be written, or its folder is not there, which the server makes
                in the folder of the run. It ends the run.
        """
        if not self._folder.is_dir():
            raise not_recorded(
                f"there is no folder {self._folder}; the devices have to run where the server "
                "writes the run"
            )
        stream = Stream(
            client=self._client,
            size_bytes=self._size_bytes,
            requests=done.order,
            batch_starts=np.arange(0, len(done.order), self._experiment.training.batch_size),
            starts=np.zeros(1, np.int64),
            rounds=np.array([done.server_round]),
            losses=done.losses.ravel().astype(np.float32),
            served=done.served,
            hits=np.array([done.hits]),
            depth=np.array([done.depth]),
            budget_bytes=self._budget_bytes,
        )
        trace = Trace(
            name=f"{self._experiment.name}, {self._experiment.arm}, seed {self._experiment.seed}",
            streams=(stream,),
            policy=self._experiment.chosen.policy.model_dump_json(),
            depends=self._depends(sampler, policy),
        )
        try:
            write_trace(part_file(self._folder, self._client, done.server_round), trace)
        except TraceError as error:
            raise not_recorded(error) from error

    def _depends(self, sampler: Sampler, policy: Policy) -> str:
        """Say why the requests, or what was trained, depended on what was cached; or what else."""
        arm = self._experiment.chosen
        reasons = []
        if sampler.uses_resident:
            reasons.append(f"sampler {arm.sampler.name} may order by what is cached")
        if policy.substitutes:
            reasons.append(f"policy {arm.policy.name} substitutes cached samples for others")
        if arm.staging:
            reasons.append("staging brought samples in between")
        return " and ".join(reasons)
