"""The ClientApp: identity by partition-id, and nothing but."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from clients.central import Central
from clients.client_app import app
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
    Claims,
    Meter,
    ProfileClaims,
    from_record,
)


def ask(message_type: str, content: RecordDict, file: Path, **node_config: int) -> RecordDict:
    assume_identity(1, 1)
    config = {name.replace("_", "-"): value for name, value in node_config.items()}
    run_config = {"experiment": str(file), "overrides": ""}
    context = Context(1, 5, config, RecordDict(), run_config)
    return app(Message(content, 5, message_type), context).content


@pytest.fixture
def file(small: Callable[..., Experiment], tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(small().to_toml())
    return path


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


def test_without_a_partition_id_the_flag_is_named(file: Path) -> None:
    with pytest.raises(InputError, match=r"--node-config .partition-id="):
        ask(PROFILE, RecordDict(), file)


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_does_not_exist_is_refused(file: Path, partition: int) -> None:
    with pytest.raises(InputError, match=r"clients 0\.\.3"):
        ask(PROFILE, RecordDict(), file, partition_id=partition)
