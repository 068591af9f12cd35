"""The ClientApp: identity by partition-id, and nothing but."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from clients import client_app, hosts
from clients.central import Central
from clients.client_app import app
from clients.device import Host
from clients.hosts import forget
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.flower_internals import assume_identity
from fedio.protocol import (
    ARRAYS,
    CLAIMS,
    CONFIG,
    LOCAL_STEPS,
    METER,
    METRICS,
    NUM_EXAMPLES,
    PROFILE,
    SERVER_ROUND,
    STAGE,
    STAGED,
    WINDOW_S,
    WRITE_LIMIT_BYTES,
    Claims,
    Meter,
    ProfileClaims,
    Staged,
    from_record,
)
from storage import Origin
from tests.clients.faults import Faulty, cut_short


def reply(message_type: str, content: RecordDict, file: Path, **node_config: int) -> Message:
    assume_identity(1, 1)
    config = {name.replace("_", "-"): value for name, value in node_config.items()}
    run_config = {"experiment": str(file), "overrides": ""}
    context = Context(1, 5, config, RecordDict(), run_config)
    return app(Message(content, 5, message_type), context)


def ask(message_type: str, content: RecordDict, file: Path, **node_config: int) -> RecordDict:
    return reply(message_type, content, file, **node_config).content


@pytest.fixture
def file(small: Callable[..., Experiment], tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "config.toml"
    path.write_text(small().to_toml())
    yield path
    forget()


def test_it_answers_queries_trains_and_evaluates(
    small: Callable[..., Experiment], file: Path
) -> None:
    profile = ask(PROFILE, RecordDict(), file, partition_id=2, num_partitions=4)
    assert from_record(ProfileClaims, profile[CLAIMS]).partition == 2
    arrays = Central(small()).initial_arrays
    config = ConfigRecord({SERVER_ROUND: 1, LOCAL_STEPS: 2})
    trained = ask("train", RecordDict({ARRAYS: arrays, CONFIG: config}), file, partition_id=2)
    assert from_record(Meter, trained[METER]).trained_samples == 16
    assert from_record(Claims, trained[CLAIMS]).server_round == 1
    assert list(trained.array_records) == [ARRAYS]
    assert list(trained.metric_records) == [METRICS]
    evaluated = ask("evaluate", RecordDict({ARRAYS: arrays}), file, partition_id=2)
    assert evaluated.metric_records[METRICS][NUM_EXAMPLES] == 2


def to_train(experiment: Experiment, server_round: int, steps: int) -> RecordDict:
    config = ConfigRecord({SERVER_ROUND: server_round, LOCAL_STEPS: steps})
    return RecordDict({ARRAYS: Central(experiment).initial_arrays, CONFIG: config})


def test_the_proximal_term_of_the_message_reaches_the_training(
    small: Callable[..., Experiment], file: Path, tmp_path: Path
) -> None:
    def weights(**proximal: float) -> list[bytes]:
        message = to_train(small(), 1, 3)
        for name, mu in proximal.items():
            message.config_records[CONFIG][name.replace("_", "-")] = mu
        arrays = ask("train", message, file, partition_id=2).array_records[ARRAYS]
        return [array.data for array in arrays.values()]

    plain, none, pulled = weights(), weights(proximal_mu=0.0), weights(proximal_mu=2.0)
    host = Host(small(), tmp_path / "other")
    held_back = host.device(2).train(Central(small()).initial_arrays, 1, 3, proximal_mu=2.0)
    host.close()
    assert plain == none != pulled == [array.data for array in held_back.arrays.values()]


def to_stage(server_round: int, window_s: float, limit_bytes: int) -> RecordDict:
    config = ConfigRecord({SERVER_ROUND: server_round, LOCAL_STEPS: 2})
    config[WINDOW_S], config[WRITE_LIMIT_BYTES] = window_s, limit_bytes
    return RecordDict({CONFIG: config})


def test_it_stages_within_what_the_message_allows(
    small: Callable[..., Experiment], file: Path
) -> None:
    def staged(*allowed: float, server_round: int = 1) -> Staged:
        window_s, limit_bytes = allowed
        message = to_stage(server_round, window_s, int(limit_bytes))
        return from_record(Staged, ask(STAGE, message, file, partition_id=2)[STAGED])

    whole = staged(1e6, -1)
    whole.check()
    assert (whole.partition, whole.server_round, whole.needed_samples) == (2, 1, 16)
    assert whole.written_bytes > 10_000
    # Each time from the state before.
    assert staged(1e6, 10_000).written_bytes <= 10_000
    assert staged(0.0, -1).origin_samples == staged(1e6, 0).origin_samples == 0
    assert staged(1e6, -1) == whole
    trained = ask("train", to_train(small(), 1, 2), file, partition_id=2)
    assert from_record(Meter, trained[METER]).staged == whole.staged_samples


@pytest.mark.parametrize(("key", "value"), [(WINDOW_S, "long"), (WRITE_LIMIT_BYTES, 1.5)])
def test_a_message_to_stage_that_makes_no_sense_is_answered_with_an_error(
    file: Path, key: str, value: str | float
) -> None:
    message = to_stage(1, 1.0, -1)
    message.config_records[CONFIG][key] = value
    failed = reply(STAGE, message, file, partition_id=1)
    assert failed.has_error()
    assert key in failed.error.reason


def test_an_origin_that_is_gone_is_the_clients_failure_and_not_the_users(
    small: Callable[..., Experiment], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins: list[Faulty] = []

    def slow(_: int, origin: Origin, __: np.ndarray) -> Origin:
        origins.append(Faulty(origin))
        return origins[0]

    monkeypatch.setattr(hosts, "Host", partial(Host, slow=slow))
    assert not reply("train", to_train(small(), 1, 3), file, partition_id=2).has_error()
    origins[0].gone_after = 0
    failed = reply("train", to_train(small(), 2, 3), file, partition_id=2)
    assert failed.has_error()
    assert failed.error.code == client_app.FAILED
    assert "DataPathError: " in failed.error.reason
    assert failed.error.reason.rstrip().endswith("cannot be read: nobody is there")
    origins[0].gone_after = float("inf")
    assert not reply("train", to_train(small(), 3, 3), file, partition_id=2).has_error()


def test_files_that_are_no_images_are_the_clients_failure_and_not_the_users(
    small: Callable[..., Experiment], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(_: int, origin: Origin, __: np.ndarray) -> Origin:
        faulty = Faulty(origin)
        faulty.spoilt = {sample: (cut_short, float("inf")) for sample in range(len(origin))}
        return faulty

    monkeypatch.setattr(hosts, "Host", partial(Host, slow=slow))
    failed = reply("train", to_train(small(), 1, 3), file, partition_id=2)
    assert failed.has_error()
    assert "is no image" in failed.error.reason


def test_without_a_partition_id_the_flag_is_named(file: Path) -> None:
    with pytest.raises(InputError, match=r"--node-config .partition-id="):
        ask(PROFILE, RecordDict(), file)


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_does_not_exist_is_refused(file: Path, partition: int) -> None:
    with pytest.raises(InputError, match=r"clients 0\.\.3"):
        ask(PROFILE, RecordDict(), file, partition_id=partition)
