"""Codes of second factors: TOTP (RFC 6238) of 6 digits and 30 seconds, and backup codes in place of it."""

import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
import pyotp
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import AuthenticationFailed
from tenants import second_factors
from tenants.key_format import hash_key
from tenants.sealed import seal, unseal

ISSUER = "Penstock"
"""What authenticator apps show beside the mail address."""
STEP_S = 30
DRIFT_STEPS = 1
"""Steps by which the clock of an authenticator may be behind or ahead."""
BACKUP_CODES = 10
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_BACKUP_LENGTH = 16
_PURPOSE = "second factor"
WRONG_CODE = "wrong_second_factor"
"""The error's code of `wrong_code`."""


class GivenCode(msgspec.Struct, frozen=True):
    """A code that was given, and what it takes to check it."""

    text: str
    pepper: bytes
    now: datetime

    def __repr__(self) -> str:
        """Without the code, so that no log can show it."""
        return "GivenCode()"


async def new_secret(connection: AsyncConnection, user_id: UUID, pepper: bytes) -> str:
    """Make and store a secret that no code has confirmed yet; returns it in base32."""
    secret = pyotp.random_base32()
    await second_factors.put_unconfirmed(
        connection, user_id, seal(pepper, _PURPOSE, str(user_id), secret.encode())
    )
    return secret


def uri_of(secret: str, email: str) -> str:
    """The address that authenticator apps read from a QR code."""
    return pyotp.TOTP(secret).provisioning_uri(name=email, issuer_name=ISSUER)


async def use_totp(connection: AsyncConnection, user_id: UUID, code: GivenCode) -> bool:
    """Whether the code is of now or a step beside it, and of a later step than the last one accepted.

    Locks the second factor, confirmed or not, and notes the step, so that the code works once.
    """
    found = await second_factors.find(connection, user_id, lock=True)
    if found is None:
        return False
    totp = pyotp.TOTP(unseal(code.pepper, _PURPOSE, str(user_id), found.sealed_secret).decode())
    digits = code.text.replace(" ", "").encode("ascii", "replace")
    present = int(code.now.timestamp()) // STEP_S
    for step in range(present - DRIFT_STEPS, present + DRIFT_STEPS + 1):
        right = hmac.compare_digest(digits, totp.at(step * STEP_S).encode())
        if right and step > found.last_step:
            await second_factors.use_step(connection, user_id, step)
            return True
    return False


async def use_backup(connection: AsyncConnection, user_id: UUID, code: GivenCode) -> bool:
    """Whether the code is a backup code that was not used; it is then."""
    return await second_factors.use_backup_code(
        connection, user_id, _backup_hash(code.text, user_id, code.pepper)
    )


async def new_backup_codes(connection: AsyncConnection, user_id: UUID, pepper: bytes) -> Sequence[str]:
    """Make backup codes in place of all earlier ones; only their hashes are stored."""
    codes = [
        "-".join("".join(secrets.choice(_ALPHABET) for _ in range(4)) for _ in range(_BACKUP_LENGTH // 4))
        for _ in range(BACKUP_CODES)
    ]
    await second_factors.replace_backup_codes(
        connection, user_id, [_backup_hash(each, user_id, pepper) for each in codes]
    )
    return codes


def wrong_code() -> AuthenticationFailed:
    """The answer to a code that is wrong, late, or was used."""
    return AuthenticationFailed(
        "The code is wrong, or was used already. Wait for the next one of your authenticator, or give a backup code.",
        code=WRONG_CODE,
        param="code",
    )


def code_needed() -> AuthenticationFailed:
    """The answer to a right password without the code that the person's second factor demands."""
    return AuthenticationFailed(
        "The password is right, but this account has a second factor: give a code of your authenticator, or a backup "
        "code.",
        code="second_factor_required",
        param="code",
    )


def _backup_hash(text: str, user_id: UUID, pepper: bytes) -> bytes:
    """The stored hash. 79 random bits need no slow hash; the id keeps equal codes of two people apart."""
    plain = text.strip().lower().replace("-", "").replace(" ", "")
    return hash_key(f"backup code|{user_id}|{plain}", pepper)
