"""One-time tokens with which hosts join: what they hold, and by which hash they are known.

A token is `pj_SECRET`, or `pj_SECRET.FINGERPRINT` where schedulers speak TLS with a private authority. Secrets have
256 random bits, so a plain hash keeps them.
"""

import secrets
from hashlib import sha256
from re import compile as pattern
from typing import NamedTuple

from core.errors import InvalidRequest

HASH_BYTES = 32
_SECRET = pattern(r"[A-Za-z0-9_-]{43}")
_TOKEN = pattern(r"pj_([A-Za-z0-9_-]{43})(?:\.([0-9a-f]{64}))?")
_HOST = pattern(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,98}[a-zA-Z0-9])?")


_ENGINE_KEY = pattern(r"[A-Za-z0-9._~+/=-]{16,256}")
"""What an HTTP header takes, and cannot be guessed."""


class JoinToken(NamedTuple):
    """A token that was taken apart."""

    secret: str
    authority: str = ""
    """SHA-256 of the certificate of the authority that signs schedulers' certificates, in hex; empty = none."""

    def __str__(self) -> str:
        return f"pj_{self.secret}.{self.authority}" if self.authority else f"pj_{self.secret}"

    @property
    def hash(self) -> bytes:
        """What is stored of it."""
        return secret_hash(self.secret)


def new_secret() -> str:
    """A random secret: 256 bits as 43 characters."""
    return secrets.token_urlsafe(32)


def secret_hash(secret: str) -> bytes:
    """SHA-256 of a secret."""
    return sha256(secret.encode(errors="surrogatepass")).digest()


def parse_token(text: str, source: str) -> JoinToken:
    """The parts of a token. Raises InvalidRequest, which names `source` and not the token."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"{source} is no join token; `penstock hosts invite` prints one")
    return JoinToken(found[1], found[2] or "")


def is_secret(text: str) -> bool:
    """Whether a text has the form of `new_secret`."""
    return _SECRET.fullmatch(text) is not None


def is_host_name(name: str) -> bool:
    """Whether a host can have this name."""
    return _HOST.fullmatch(name) is not None


def is_engine_key(key: str) -> bool:
    """Whether engines of a host that has joined can have this key."""
    return _ENGINE_KEY.fullmatch(key) is not None


def check_host_name(name: str) -> None:
    """Raise InvalidRequest for a name that no host can have."""
    if not is_host_name(name):
        raise InvalidRequest(
            f"the host is called {name[:120]!r}; a name has 1 to 100 letters, digits, dots and dashes, "
            "and begins and ends with a letter or digit",
            param="host",
        )
