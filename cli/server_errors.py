"""One-line errors for PostgreSQL and Redis: invalid address, no connection, wrong password."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncpg
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from core.db import timed_out
from core.errors import InvalidRequest, Unavailable

_UNAVAILABLE_ERRORS = (
    OSError,
    RedisError,
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.TooManyConnectionsError,
)
_UNAVAILABLE_SQLSTATES = ("08", "28", "3D", "42501", "53300", "57P03")
"""SQLSTATEs and their prefixes of the same errors when SQLAlchemy wraps them:
https://www.postgresql.org/docs/current/errcodes-appendix.html."""


def database_url(text: str) -> str:
    """`text` when it is a PostgreSQL address. Raises InvalidRequest without the password."""
    return _url(text, "DATABASE_URL", ("postgresql", "postgres"), "postgresql://user:password@host:5432/name")


def redis_url(text: str) -> str:
    """`text` when it is a Redis address. Raises InvalidRequest without the password."""
    return _url(text, "REDIS_URL", ("redis", "rediss", "unix"), "redis://:password@host:6379/0")


def _url(text: str, variable: str, schemes: tuple[str, ...], example: str) -> str:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise InvalidRequest(f"{variable} cannot be understood ({error}); it looks like {example}") from None
    if parts.scheme not in schemes or not (parts.netloc or parts.path.startswith("/")):
        raise InvalidRequest(f"{variable} must look like {example}")
    return text


@contextmanager
def server_errors() -> Iterator[None]:
    """Translate drivers' connection and permission errors into Unavailable with a hint; other errors pass."""
    try:
        yield
    except DBAPIError as error:
        state = str(getattr(error.orig, "sqlstate", None) or "")
        if state == asyncpg.UndefinedTableError.sqlstate:
            raise Unavailable("the database has no Penstock schema yet; run `penstock migrate`") from None
        if timed_out(error):
            raise Unavailable(
                "the database took too long, or other work holds what this needs; nothing was changed, try again"
            ) from None
        if not (
            isinstance(error, InterfaceError | OperationalError) or state.startswith(_UNAVAILABLE_SQLSTATES)
        ):
            raise
        raise _unavailable(error.orig) from None
    except _UNAVAILABLE_ERRORS as error:
        raise _unavailable(error) from None


def _unavailable(error: BaseException | None) -> Unavailable:
    detail = next(iter(str(error).splitlines()), "") or type(error).__name__
    detail = detail.rpartition(">: ")[2]  # SQLAlchemy prepends the driver's class
    return Unavailable(
        f"a server does not answer as expected ({detail}); is `penstock up` running, are the URLs right?"
    )
