"""Which of a provider's published keys may check a signature."""

from typing import Any

import pytest
from joserfc.jwk import ECKey, OKPKey, RSAKey

from admin.oidc_keys import MAX_KEYS, signing_keys

RSA = RSAKey.generate_key(2048)
PUBLIC = RSA.as_dict(private=False) | {"kid": "a", "use": "sig", "alg": "RS256"}


def ids(keys: list[object], key_id: str | None = "a") -> list[str | None]:
    """The ids of the keys that are read."""
    return [key.kid for key in signing_keys({"keys": keys}, key_id)]


def test_public_keys_of_each_kind_are_read() -> None:
    kinds: list[Any] = [PUBLIC]
    kinds += [ECKey.generate_key(curve).as_dict(private=False) for curve in ("P-256", "P-384", "P-521")]
    kinds += [OKPKey.generate_key(curve).as_dict(private=False) for curve in ("Ed25519", "Ed448")]
    for key in kinds:
        assert ids([key | {"kid": "a"}]) == ["a"]
    assert ids([PUBLIC | {"n": "_" * 1365 + "w"}]) == ["a"], "8192 bits"


@pytest.mark.parametrize(
    "more",
    [
        {"d": "AQAB"},  # the primes would be searched for
        {"n": "A" * 2000},
        {"n": 5},
        {"e": "A" * 100},
        {"use": "enc"},
        {"use": ["sig"]},
        {"alg": "RSA-OAEP"},
        {"alg": ["RS256"]},
        {"kty": "oct", "k": "AAAA"},
        {"kty": ["RSA"]},
        {"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": ["P-256"], "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kid": "b"},
        {"kid": ["a"]},
    ],
)
def test_other_keys_are_left_out(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="0 keys"):
        ids([PUBLIC | more])
    assert ids([PUBLIC | more, "no key", PUBLIC]) == ["a"], "one of them refuses nobody"


def test_private_members_are_never_imported() -> None:
    (key,) = signing_keys({"keys": [PUBLIC | {"p": "AQ", "q": "AQ", "x5c": 7, "key_ops": "junk"}]}, None)
    assert not key.is_private
    assert set(key.as_dict()) == {"kty", "kid", "alg", "n", "e"}


def test_the_number_of_keys_is_bounded() -> None:
    assert len(ids([PUBLIC] * MAX_KEYS)) == MAX_KEYS
    for published in ({"keys": [PUBLIC] * (MAX_KEYS + 1)}, {"keys": None}, {"keys": {}}, {}):
        with pytest.raises(ValueError, match="keys may have signed it"):
            signing_keys(published, "a")
