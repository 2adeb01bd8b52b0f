"""Password hashes, computed off the event loop: argon2id, 19 MiB, 2 passes, 1 lane (OWASP Password Storage)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="argon2")
"""Two hashes at a time bound the cost of simultaneous sign-ins to 38 MiB and two cores."""

_DUMMY_HASH = _HASHER.hash("the password of nobody")
"""Checked for an unknown email address, so that it takes as long as a known one."""


async def hash_password(password: str) -> str:
    """The encoded argon2id hash of `password` with a new salt."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _HASHER.hash, password)


async def verify_password(password: str, password_hash: str | None) -> bool:
    """Whether the hash is of `password`; None (unknown email address) is False and takes the same time."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _verify, password, password_hash)


def needs_rehash(password_hash: str) -> bool:
    """Whether the hash was made with other parameters than the current ones."""
    return _HASHER.check_needs_rehash(password_hash)


def _verify(password: str, password_hash: str | None) -> bool:
    try:
        _HASHER.verify(_DUMMY_HASH if password_hash is None else password_hash, password)
    except (VerificationError, InvalidHashError, UnicodeEncodeError):
        return False
    return password_hash is not None
