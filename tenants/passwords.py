"""Password hashes: argon2id with 19 MiB, two passes, one lane (OWASP's first choice), off the event loop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="argon2")
"""At most two hashes at a time: 38 MiB and two cores, however many people sign in at once."""

_NOBODY = _HASHER.hash("the password of nobody")
"""What an unknown address is checked against, so that it takes as long as a known one."""


async def hash_password(password: str) -> str:
    """The encoded argon2id hash of `password` with a fresh salt."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _HASHER.hash, password)


async def verify_password(password: str, password_hash: str | None) -> bool:
    """Whether the hash is of `password`; None (nobody of that address) takes the same time and is False."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _verify, password, password_hash)


def needs_rehash(password_hash: str) -> bool:
    """Whether the hash was made with other parameters than today's."""
    return _HASHER.check_needs_rehash(password_hash)


def _verify(password: str, password_hash: str | None) -> bool:
    try:
        _HASHER.verify(_NOBODY if password_hash is None else password_hash, password)
    except (VerificationError, InvalidHashError, UnicodeEncodeError):
        return False
    return password_hash is not None
