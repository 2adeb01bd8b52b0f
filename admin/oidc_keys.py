"""The provider's keys: of what it publishes, only public keys for signatures are read.

A customer names the provider, so its key set is hostile until proven otherwise. Members other than those of a public
key are left out before the import: a private RSA key without its primes would make the import search for them, which
takes hours for a large one. Sizes and numbers are bounded, since the import runs on the event loop.
"""

from typing import Any

from joserfc.jwk import KeySet

ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
]
"""Signatures of ID tokens: those with a public key only, so that a client secret or `none` signs nothing."""
MAX_KEYS = 10
"""Keys that may have the token's key id, or of the whole set when the token names none."""
_CURVES = {"EC": ("P-256", "P-384", "P-521"), "OKP": ("Ed25519", "Ed448")}
_LENGTHS = {"n": 1368, "e": 8, "x": 88, "y": 88}
"""Longest text of each number: an RSA modulus of 8192 bits, an exponent of 48 bits, coordinates of P-521."""


def signing_keys(published: dict[str, Any], key_id: object) -> KeySet:
    """The public keys that may have signed a token whose header names `key_id` (None = none).

    Raises ValueError when there is none, or more than MAX_KEYS.
    """
    listed = published.get("keys")
    found = [
        public
        for key in (listed if isinstance(listed, list) else ())
        if (public := _public(key)) is not None and key_id in (None, public.get("kid"))
    ]
    if not 0 < len(found) <= MAX_KEYS:
        raise ValueError(f"{len(found)} keys may have signed it, not 1 to {MAX_KEYS}")
    return KeySet.import_key_set({"keys": found})  # type: ignore[typeddict-item]


def _public(key: object) -> dict[str, str] | None:
    """The members of a public key for signatures; None for anything else."""
    if not isinstance(key, dict) or "d" in key:
        return None
    if key.get("use", "sig") != "sig" or key.get("alg", ALGORITHMS[0]) not in ALGORITHMS:
        return None
    kind = key.get("kty")
    numbers: tuple[str, ...]
    if kind == "RSA":
        numbers = ("n", "e")
    elif kind in ("EC", "OKP") and key.get("crv") in _CURVES[kind]:
        numbers = ("x", "y") if kind == "EC" else ("x",)
    else:
        return None
    if not all(isinstance(key.get(name), str) and len(key[name]) <= _LENGTHS[name] for name in numbers):
        return None
    return {
        name: key[name] for name in ("kty", "crv", "kid", "alg", *numbers) if isinstance(key.get(name), str)
    }
