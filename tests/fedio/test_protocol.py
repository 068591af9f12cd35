"""Wire records: there and back, and what is refused."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord

from fedio.protocol import Claims, ProtocolError, from_record, to_record

CLAIMS = Claims(partition=3, server_round=2, utility=1.5, resident_samples=4, resident_bytes=500)


def test_a_record_comes_back_as_it_went() -> None:
    assert from_record(Claims, to_record(CLAIMS)) == CLAIMS


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
