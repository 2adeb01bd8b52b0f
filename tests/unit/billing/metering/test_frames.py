"""The spool's parser against torn tails, flipped bits and garbage."""

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from billing.metering.frames import FILE_HEADER, MAGIC, Frame, Record, encode, parse
from billing.metering.records import Checkpoint, OpenRecord, Outcome, PriceVersion, UsageRecord
from core.tokens import TokenUsage

COUNTS = st.integers(0, 2**40)
USAGE = st.builds(TokenUsage, input=COUNTS, cached_input=COUNTS, output=COUNTS, reasoning=COUNTS)
PRICE = st.builds(PriceVersion, id=COUNTS, input=COUNTS, cached_input=COUNTS, output=COUNTS, reasoning=COUNTS)
WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
OPEN = st.builds(
    OpenRecord,
    request_id=st.uuids(),
    tenant_id=st.uuids(),
    project_id=st.uuids(),
    key_id=st.uuids(),
    model=WORDS,
    tier=WORDS,
    region=WORDS,
    price=PRICE,
    list_price=PRICE,
    admitted_at=st.just(datetime(2026, 11, 20, 22, 0, 0, 123456, tzinfo=UTC)),
    replica_id=WORDS,
    boot_id=WORDS,
    simulated=st.booleans(),
    stream=st.booleans(),
)
RECORDS = st.one_of(
    OPEN,
    st.builds(Checkpoint, request_id=st.uuids(), usage=USAGE),
    st.builds(
        UsageRecord, open=OPEN, outcome=st.sampled_from(Outcome), usage=USAGE, attempts=st.integers(1, 3)
    ),
)
MANY = st.lists(RECORDS, min_size=1, max_size=6)


def written(records: list[Record], padding: int = 100) -> bytes:
    return FILE_HEADER + b"".join(encode(one, 1_000 + i) for i, one in enumerate(records)) + b"\0" * padding


def read(data: bytes) -> list[Record]:
    return [frame.record for frame in parse(data)]


@given(MANY)
def test_what_was_written_is_read(records: list[Record]) -> None:
    frames: list[Frame] = list(parse(written(records)))
    assert [frame.record for frame in frames] == records
    assert [frame.at_ms for frame in frames] == [1_000 + i for i in range(len(records))]


@given(MANY, st.data())
def test_a_file_cut_anywhere_yields_its_whole_records(records: list[Record], data: st.DataObject) -> None:
    whole = written(records, padding=0)
    cut = data.draw(st.integers(0, len(whole)))
    ends, at = [], len(FILE_HEADER)
    for i, record in enumerate(records):
        at += len(encode(record, 1_000 + i))
        ends.append(at)
    expected = records[: sum(end <= cut for end in ends)]
    assert read(whole[:cut]) == expected
    # Torn inside the preallocated zeros: a record of which only zeros were missing is whole again.
    torn = whole[:cut] + bytes(200)
    expected = records[: sum(torn[:end] == whole[:end] for end in ends)]
    assert read(torn) == expected


@given(MANY, st.data())
def test_a_flipped_bit_costs_one_record_at_most(records: list[Record], data: st.DataObject) -> None:
    whole = bytearray(written(records))
    position = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[position // 8] ^= 1 << position % 8
    found = read(bytes(whole))
    assert len(found) >= len(records) - 1
    remaining = list(records)
    for one in found:
        assert one in remaining, "a damaged record must never be read as another one"
        remaining = remaining[remaining.index(one) + 1 :]


@given(st.binary(max_size=500), MANY)
def test_garbage_between_records_is_skipped(garbage: bytes, records: list[Record]) -> None:
    first, rest = records[:1], records[1:]
    data = FILE_HEADER + encode(first[0], 0) + garbage + b"".join(encode(one, 0) for one in rest)
    found = read(data)
    assert found[:1] == first
    assert found[len(found) - len(rest) :] == rest


@settings(max_examples=300)
@given(st.lists(st.one_of(st.binary(max_size=60), st.just(MAGIC)), max_size=8))
def test_nothing_raises(parts: list[bytes]) -> None:
    assert read(FILE_HEADER + b"".join(parts)) == []
