"""Wire records: there and back, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedio.protocol import Claims, Meter, ProtocolError, Staged, from_record, to_record

CLAIMS = Claims(partition=3, server_round=2, utility=1.5, resident_samples=4, resident_bytes=500)
METER = Meter(
    steps=2,
    depth=4,
    readers=1,
    trained_samples=7,
    unique_samples=6,
    effective_samples=5.5,
    skipped=1,
    requests=8,
    hits=3,
    staged=1,
    substituted=1,
    misses=4,
    corrupt=1,
    hit_bytes=400,
    origin_bytes=40,
    decoded_samples=5,
    decoded_bytes=50,
    written_samples=2,
    written_bytes=20,
    evicted_samples=1,
    refused=2,
    step_samples=[4, 3],
    step_reads=[0, 4],
    step_hit_bytes=[0, 400],
    step_misses=[4, 0],
    step_origin_bytes=[40, 0],
    step_decoded=[4, 1],
    step_decoded_bytes=[40, 10],
    step_written=[2, 0],
    step_written_bytes=[20, 0],
)
STAGED = Staged(3, 2, 10, 4, 5, 6, 60, 6, 60, 5, 50, 1)


@pytest.mark.parametrize("value", [CLAIMS, METER, STAGED], ids=lambda value: type(value).__name__)
def test_a_record_comes_back_as_it_went(value: Claims | Meter | Staged) -> None:
    sent = recorddict_to_proto(RecordDict({"value": to_record(value)}))
    assert from_record(type(value), recorddict_from_proto(sent)["value"]) == value


@pytest.mark.parametrize("bad", [1.5, "3", True, [3]])
def test_a_whole_number_is_whole(bad: object) -> None:
    record = to_record(CLAIMS)
    record["partition"] = bad  # type: ignore[assignment]
    with pytest.raises(ProtocolError, match=r"claims\.partition"):
        from_record(Claims, record)


def test_a_missing_field_or_record_is_named() -> None:
    record = to_record(CLAIMS)
    del record["utility"]
    with pytest.raises(ProtocolError, match=r"claims\.utility is None"):
        from_record(Claims, record)
    with pytest.raises(ProtocolError, match=r"claims\.partition is None"):
        from_record(Claims, None)
    with pytest.raises(ProtocolError):
        from_record(Claims, ConfigRecord())


@pytest.mark.parametrize("bad", [3, "4, 3", [4.0, 3.0], [True, False]])
def test_counts_of_steps_are_whole_numbers(bad: object) -> None:
    record = to_record(METER)
    record["step_samples"] = bad  # type: ignore[assignment]
    with pytest.raises(ProtocolError, match=r"meter\.step_samples"):
        from_record(Meter, record)


def test_the_totals_are_all_but_the_lists() -> None:
    totals = METER.totals
    assert totals["effective_samples"] == 5.5
    assert [name for name in Meter.__dataclass_fields__ if name not in totals] == [
        name for name in Meter.__dataclass_fields__ if name.startswith("step_")
    ]


def test_what_adds_up_is_true() -> None:
    METER.check()
    STAGED.check()


@pytest.mark.parametrize(
    "name", [name for name in Meter.__dataclass_fields__ if not name.startswith("step_")]
)
def test_a_total_that_is_negative_is_named(name: str) -> None:
    with pytest.raises(ProtocolError, match=rf"meter\.{name} is -1"):
        replace(METER, **{name: -1}).check()


@pytest.mark.parametrize(("name", "value"), [("depth", 0), ("readers", 0)])
def test_at_least_one_batch_is_read_by_one_reader(name: str, value: int) -> None:
    with pytest.raises(ProtocolError, match=rf"meter\.{name} is 0"):
        replace(METER, **{name: value}).check()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_effective_size_is_a_number(value: float) -> None:
    with pytest.raises(ProtocolError, match=r"meter\.effective_samples"):
        replace(METER, effective_samples=value).check()


@pytest.mark.parametrize(
    "name", [name for name in Meter.__dataclass_fields__ if name.startswith("step_")]
)
def test_steps_add_up_to_the_total(name: str) -> None:
    counts = getattr(METER, name)
    for wrong in ([*counts, 0], counts[:1], [sum(counts) + 1, -1], [counts[0], counts[1] + 1]):
        with pytest.raises(ProtocolError, match=rf"meter\.{name} does not add up"):
            replace(METER, **{name: wrong}).check()


@pytest.mark.parametrize("name", list(Staged.__dataclass_fields__))
def test_a_negative_count_of_staging_is_named(name: str) -> None:
    with pytest.raises(ProtocolError, match=rf"staged\.{name} is -1"):
        replace(STAGED, **{name: -1}).check()


def test_no_more_is_staged_than_is_needed() -> None:
    with pytest.raises(ProtocolError, match="more than the 10 needed"):
        replace(STAGED, staged_samples=7).check()
