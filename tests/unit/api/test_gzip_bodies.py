"""Bodies with gzip: inflated within the limit of a plain body, and no further."""

import gzip
import json
import tracemalloc

import pytest

from api.customer.body import inflate, is_compressed
from core.errors import InvalidRequest, PenstockError, RequestTooLarge, Unavailable
from gateway.parsing.budget import INLINE_BYTES

LIMIT = 4 * 1024 * 1024
WHOLE = gzip.compress(b"{}", mtime=0)
"""A whole stream. The time in its head is fixed, because the parameters of a test are its name."""


def nothing() -> None:
    raise AssertionError("no reservation is needed")


async def test_a_body_is_inflated() -> None:
    body = json.dumps({"model": "m"}).encode()
    assert await inflate(gzip.compress(body), LIMIT, nothing) == body


async def test_a_large_body_takes_a_reservation_before_it_is_inflated() -> None:
    body, reserved = b"x" * (INLINE_BYTES + 1), []
    assert await inflate(gzip.compress(body), LIMIT, lambda: reserved.append(1)) == body
    assert reserved == [1]
    busy = Unavailable("busy")

    def refuse() -> None:
        raise busy

    with pytest.raises(Unavailable):
        await inflate(gzip.compress(body), LIMIT, refuse)


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
async def test_the_limit_is_that_of_a_plain_body(size: int) -> None:
    data = gzip.compress(b"x" * size)
    if size <= LIMIT:
        assert len(await inflate(data, LIMIT, lambda: None)) == size
    else:
        with pytest.raises(RequestTooLarge):
            await inflate(data, LIMIT, lambda: None)


async def test_a_bomb_is_not_inflated() -> None:
    bomb = gzip.compress(b"0" * (256 * 1024 * 1024), compresslevel=1)
    assert len(bomb) < LIMIT
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLarge):
            await inflate(bomb, LIMIT, lambda: None)
        assert tracemalloc.get_traced_memory()[1] < 8 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"{}", WHOLE[:-3], WHOLE + b"more", WHOLE * 2])
async def test_what_is_not_one_gzip_stream_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await inflate(data, LIMIT, nothing)
    assert refused.value.code == "invalid_gzip"


def test_other_encodings_are_refused() -> None:
    assert is_compressed(b"gzip")
    assert not is_compressed(b"identity")
    with pytest.raises(PenstockError) as refused:
        is_compressed(b"br")
    assert refused.value.code == "unsupported_content_encoding"
