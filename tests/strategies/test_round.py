"""A round's arithmetic: durations, who counts and when it ends, by hand on five clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedio.arrays import pack
from fedio.costs import phases
from fedio.profiles import Speeds
from fedio.protocol import ACCURACY, ARRAYS, LOSS, METRICS, NUM_EXAMPLES, ONE
from strategies.replies import (
    RejectedReplyError,
    check_evaluation,
    check_reply,
    sort_replies,
)
from strategies.round import Terms, settle, work_of
from tests.strategies.replies import content, error, meter_of, reply

SENT = ArrayRecord({"w": pack(np.zeros((2, 3), np.float32))})


def five_devices() -> Speeds:
    """Devices that train a sample in 1, 2, 4, 8 and 16 s and are alike in all else."""

    def each(value: float) -> np.ndarray:
        return np.full(5, value)

    return Speeds(
        compute_s=np.array([1.0, 2.0, 4.0, 8.0, 16.0]),
        step_s=each(0.0),
        decode_sample_s=each(0.1),
        decode_bytes_per_s=each(1000.0),
        readers=each(1.0),
        depth=each(9.0),
        buffer_bytes=each(1e9),
        slowdown=each(1.0),
        download_bytes_per_s=each(48.0),
        upload_bytes_per_s=each(24.0),
        memory_bytes=each(1e9),
        origin_read_latency_s=each(0.5),
        origin_read_bytes_per_s=each(100.0),
        cache_read_latency_s=each(0.0),
        cache_read_bytes_per_s=each(1000.0),
        cache_write_latency_s=each(0.25),
        cache_write_bytes_per_s=each(200.0),
    )


def test_durations_of_five_clients_by_hand() -> None:
    # Each trains 10 samples; client i hits i of them (100 bytes each) and writes what it missed.
    reports = [
        check_reply(
            reply(
                client,
                meter={
                    "trained_samples": 10,
                    "requests": 10,
                    "hits": client,
                    "hit_bytes": 100 * client,
                    "misses": 10 - client,
                    "origin_bytes": 100 * (10 - client),
                    "written_samples": 10 - client,
                    "written_bytes": 100 * (10 - client),
                    "decoded_samples": 10,
                    "decoded_bytes": 1000,
                },
            ),
            client,
            1,
            SENT,
        )
        for client in range(5)
    ]
    took = phases(work_of([report.meter for report in reports], model_bytes=24.0), five_devices())
    # download 24/48 + upload 24/24 = 1.5; decode 10 * 0.1 + 1000/1000 = 2; compute 10 * speed;
    # a miss 0.5 + 100/100 and its write 0.25 + 100/200: 2.25; a hit 100/1000 = 0.1
    by_hand = [
        1.5 + 2 + 10 * 1 + 10 * 2.25 + 0 * 0.1,
        1.5 + 2 + 10 * 2 + 9 * 2.25 + 1 * 0.1,
        1.5 + 2 + 10 * 4 + 8 * 2.25 + 2 * 0.1,
        1.5 + 2 + 10 * 8 + 7 * 2.25 + 3 * 0.1,
        1.5 + 2 + 10 * 16 + 6 * 2.25 + 4 * 0.1,
    ]
    assert took.total_s == pytest.approx(by_hand)


def test_meters_of_fewer_steps_are_padded_with_nothing() -> None:
    short = meter_of(misses=5, trained_samples=5, written_samples=2, written_bytes=20)
    long = meter_of(
        steps=2,
        depth=3,
        readers=2,
        trained_samples=7,
        hits=3,
        substituted=2,
        misses=2,
        step_samples=[4, 3],
        step_reads=[2, 3],
        step_misses=[2, 0],
    )
    work = work_of([short, long], model_bytes=9.0)
    assert work.steps == 2
    assert work.samples.tolist() == [[5, 0], [4, 3]]
    assert work.hits.tolist() == [[0, 0], [2, 3]]
    assert work.misses.tolist() == [[5, 0], [2, 0]]
    assert work.writes.tolist() == [[2, 0], [0, 0]]
    assert work.written_bytes.tolist() == [[20, 0], [0, 0]]
    assert work.depth.tolist() == [1, 3]
    assert work.readers.tolist() == [1, 2]
    assert work.upload_bytes.tolist() == work.download_bytes.tolist() == [9.0, 9.0]
    alone = phases(work_of([short], 9.0), five_devices().take(np.array([0])))
    beside = phases(work, five_devices().take(np.array([0, 1])))
    assert alone.total_s[0] == beside.total_s[0]


def test_nobodys_work_is_no_work() -> None:
    nobody = phases(work_of([], 9.0), five_devices().take(np.array([], dtype=np.int64)))
    assert nobody.total_s.shape == nobody.origin_s.shape == (0,)


def test_depth_and_readers_are_those_of_the_meter() -> None:
    # Reading two samples takes 1 s and training them 2 s: 2 (1 + 2) in turns, else 1 + 2 * 2.
    steps = {"steps": 2, "trained_samples": 4, "misses": 4, "step_samples": [2, 2]}
    meters = [meter_of(**steps, step_misses=[2, 2], depth=depth) for depth in (1, 2)]
    took = phases(work_of(meters, 0.0), five_devices().take(np.array([0, 0])))
    assert took.total_s.tolist() == [6.0, 5.0]
    assert took.stall_s.tolist() == [2.0, 1.0]
    assert took.origin_s.tolist() == [2.0, 2.0]


CLIENTS = np.array([0, 1, 2, 3, 4])
ARRIVALS_S = np.array([108.0, 103.0, 150.0, 103.0, 101.0])


def test_the_round_lasts_until_the_kth_arrival() -> None:
    outcome = settle(CLIENTS, ARRIVALS_S, Terms(3), 100.0)
    assert outcome.counted.tolist() == [1, 3, 4]
    assert outcome.late.tolist() == [0, 2]
    assert outcome.end_s == 103.0


def test_a_tie_at_the_kth_place_goes_to_the_lower_client() -> None:
    outcome = settle(CLIENTS, ARRIVALS_S, Terms(2), 100.0)
    assert outcome.counted.tolist() == [1, 4]
    assert outcome.late.tolist() == [0, 2, 3]


def test_without_over_commitment_the_slowest_ends_the_round() -> None:
    outcome = settle(CLIENTS, ARRIVALS_S, Terms(5), 100.0)
    assert outcome.counted.tolist() == [0, 1, 2, 3, 4]
    assert outcome.end_s == 150.0


def test_the_deadline_cuts_off_and_is_waited_for() -> None:
    outcome = settle(CLIENTS, ARRIVALS_S, Terms(5, deadline_s=8.0), 100.0)
    assert outcome.counted.tolist() == [0, 1, 3, 4]
    assert outcome.late.tolist() == [2]
    assert outcome.end_s == 108.0
    reached = settle(CLIENTS, ARRIVALS_S, Terms(3, deadline_s=8.0), 100.0)
    assert reached.end_s == 103.0


def test_nobody_arrives() -> None:
    nobody = np.array([], dtype=np.int64)
    assert settle(nobody, np.array([]), Terms(3), 100.0).end_s == 100.0
    assert settle(nobody, np.array([]), Terms(3, deadline_s=8.0), 100.0).end_s == 108.0


def test_who_left_never_arrives_and_is_waited_for_no_longer_than_until_it_left() -> None:
    arrivals_s = np.array([np.inf, 103.0, 105.0, np.inf, 101.0])
    outcome = settle(CLIENTS, arrivals_s, Terms(5), 100.0, unusable_s=107.0)
    assert outcome.counted.tolist() == [1, 2, 4]
    assert outcome.left.tolist() == [0, 3]
    assert outcome.late.tolist() == []
    assert outcome.end_s == 107.0
    # With enough of the others nobody waits for it.
    assert settle(CLIENTS, arrivals_s, Terms(3), 100.0, unusable_s=107.0).end_s == 105.0
    assert [outcome.of(client) for client in range(2)] == ["left", "counted"]


def test_too_few_replies_do_not_count_at_all() -> None:
    outcome = settle(CLIENTS, ARRIVALS_S, Terms(4, minimum=4, deadline_s=5.0), 100.0)
    assert (outcome.counted.tolist(), outcome.unused.tolist()) == ([], [1, 3, 4])
    assert outcome.late.tolist() == [0, 2]
    assert outcome.end_s == 105.0
    enough = settle(CLIENTS, ARRIVALS_S, Terms(4, minimum=3, deadline_s=5.0), 100.0)
    assert (enough.counted.tolist(), enough.unused.tolist()) == ([1, 3, 4], [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight": 0}, "weight is 0"),
        ({"weight": -3}, "weight is -3"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"weight": float("inf")}, "weight is inf"),
        ({"weight": [1.0]}, "weight is"),
        ({"one": 2}, "'one' is 2"),
        ({"loss": float("nan")}, "loss is nan"),
        ({"arrays": {"w": np.full((2, 3), np.nan, np.float32)}}, "w holds values"),
        ({"arrays": {"w": np.full((2, 3), np.inf, np.float32)}}, "w holds values"),
        ({"arrays": {"w": np.ones((3, 2), np.float32)}}, r"w is float32 \(3, 2\), the model has"),
        ({"arrays": {"v": np.ones((2, 3), np.float32)}}, "not those of the model"),
        ({"arrays": {"w": np.ones((2, 3), np.complex128)}}, "w is complex128"),
        ({"arrays": {"w": np.full((2, 3), "a")}}, "w is <U1"),
        ({"arrays": {"w": np.ones((2, 3))}}, "w is float64"),
        ({"weight": 2**60}, "weight is 1152921504606846976, not a number of samples"),
        ({"weight": 10**400}, "not a number of samples"),
        ({"loss": 10**400}, "not a finite number"),
        ({"meter": {"misses": 2**63}}, r"meter\.misses"),
        ({"arrays": {}}, "not those of the model"),
        ({"meter": {"misses": -1}}, r"meter\.misses is -1"),
        ({"meter": {"effective_samples": float("inf")}}, "samples is inf"),
        ({"meter": {"misses": 3, "step_misses": [2]}}, "step_misses does not add up to 3"),
        ({"meter": {"depth": 0}}, r"meter\.depth is 0"),
        ({"claims": ConfigRecord()}, "claims"),
    ],
)
def test_a_bad_reply_is_rejected_with_the_reason(changes: dict[str, object], said: str) -> None:
    with pytest.raises(RejectedReplyError, match=said):
        check_reply(reply(2, **changes), 2, 1, SENT)


def test_arrays_in_another_order_are_rejected() -> None:
    arrays = {name: np.ones(2, np.float32) for name in "ba"}
    sent = ArrayRecord({name: pack(arrays[name]) for name in "ab"})
    with pytest.raises(RejectedReplyError, match="in that order"):
        check_reply(reply(2, arrays=arrays), 2, 1, sent)


@pytest.mark.parametrize(
    "damaged",
    [
        {"data": b""},
        {"data": SENT["w"].data[:-1]},
        {"data": SENT["w"].data + b"x"},
        {"data": b"junk" * 40},
        {"stype": "torch"},
        {"dtype": "junk"},
        {"shape": (6,)},
    ],
)
def test_arrays_whose_bytes_are_not_what_they_say_are_rejected(damaged: dict[str, Any]) -> None:
    whole = {name: getattr(SENT["w"], name) for name in ("dtype", "shape", "stype", "data")}
    bad = reply(2)
    bad.content[ARRAYS] = ArrayRecord({"w": Array(**(whole | damaged))})
    with pytest.raises(RejectedReplyError, match="w "):
        check_reply(bad, 2, 1, SENT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({NUM_EXAMPLES: -5}, "says -5 samples"),
        ({NUM_EXAMPLES: [1, 2]}, "says"),
        ({ACCURACY: 99.0}, "accuracy is 99.0"),
        ({ACCURACY: float("nan")}, "accuracy is nan"),
        ({LOSS: float("inf")}, "loss inf"),
        ({"more": 1.0}, "its metrics must be"),
    ],
)
def test_what_cannot_be_of_an_evaluation_is_rejected(changes: dict[str, Any], said: str) -> None:
    metrics = {NUM_EXAMPLES: 4, ONE: 1, ACCURACY: 0.5, LOSS: 1.0}
    good, bad = reply(2), reply(2)
    good.content = RecordDict({METRICS: MetricRecord(metrics)})
    assert check_evaluation(good) == (4, 0.5)
    bad.content = RecordDict({METRICS: MetricRecord(metrics | changes)})
    with pytest.raises(RejectedReplyError, match=said):
        check_evaluation(bad)
    bad.content = RecordDict()
    with pytest.raises(RejectedReplyError, match="must be"):
        check_evaluation(bad)


def test_a_reply_of_another_client_or_round_is_rejected() -> None:
    with pytest.raises(RejectedReplyError, match="from partition 2, asked was 3"):
        check_reply(reply(2), 3, 1, SENT)
    with pytest.raises(RejectedReplyError, match="for round 1, asked was 4"):
        check_reply(reply(2), 2, 4, SENT)


def test_missing_and_doubled_records_are_rejected() -> None:
    without = reply(2)
    without.content = RecordDict({k: v for k, v in content(2, 1).items() if k != ARRAYS})
    with pytest.raises(RejectedReplyError, match="one array record"):
        check_reply(without, 2, 1, SENT)
    doubled = reply(2)
    doubled.content = RecordDict({**content(2, 1), "more": content(2, 1)[ARRAYS]})
    with pytest.raises(RejectedReplyError, match="one array record"):
        check_reply(doubled, 2, 1, SENT)


def test_one_bad_reply_leaves_the_others_alone() -> None:
    replies = {4: reply(4), 2: reply(2, weight=0), 1: error("Traceback\nValueError: boom")}
    reports, problems = sort_replies(replies, [4, 3, 2, 1], 1, SENT)
    assert [report.client for report in reports] == [4]
    assert {client: problem.outcome for client, problem in problems.items()} == {
        1: "failed",
        2: "rejected",
        3: "late",
    }
    assert problems[3].reason == "no reply in time"
