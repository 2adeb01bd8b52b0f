"""Identifiers: unique, and ordered by their time."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from core.ids import incarnation, uuid7, uuid7_unix_ms


@given(st.integers(0, 2**48 - 1))
def test_a_uuid7_has_its_version_and_millisecond(unix_ms: int) -> None:
    value = uuid7(unix_ms)
    assert value.version == 7
    assert value.variant == uuid.RFC_4122
    assert uuid7_unix_ms(value) == unix_ms


@given(st.integers(0, 2**48 - 2))
def test_uuids_sort_by_time(unix_ms: int) -> None:
    assert uuid7(unix_ms) < uuid7(unix_ms + 1)


def test_uuids_are_unique() -> None:
    assert len({uuid7(5) for _ in range(1000)}) == 1000
    assert incarnation("api") != incarnation("api")
    assert incarnation("api").startswith("api-")
