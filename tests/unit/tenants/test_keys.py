"""Cached keys, without a database."""

from typing import Any

from tenants.key_format import new_key
from tenants.keys import KeyRing
from tenants.resolve import Admission
from tests.support.clock import ManualClock
from tests.unit.tenants.test_key_cache import principal


def test_every_key_finds_its_own_principal_however_requests_interleave() -> None:
    nothing: Any = None
    keys = KeyRing(nothing, nothing, None, b"pepper", ManualClock())
    known = {new_key("live", b"pepper"): principal() for _ in range(3)}
    for raw, who in known.items():
        keys._cache.put(keys._cache_key(raw), Admission(who, None))
    for raw in [*known, *known, *reversed(known)]:
        assert keys.authenticate_cached(raw) is known[raw]
        assert keys.authenticate_cached(raw) is known[raw]
        copy = "".join(list(raw))
        assert keys.authenticate_cached(copy) is known[raw]
        assert keys.authenticate_cached(raw[:-1]) is None
    assert keys.authenticate_cached("") is None
    assert keys.authenticate_cached("\ud800") is None


def test_the_cached_hash_depends_on_the_pepper() -> None:
    nothing: Any = None
    raw = new_key("live", b"pepper")
    one, other = (KeyRing(nothing, nothing, None, pepper, ManualClock()) for pepper in (b"one", b"other"))
    assert one._cache_key(raw) != other._cache_key(raw)
    assert len(one._cache_key(raw)) == 32
