"""Hosts join with one-time tokens, and lose the right to report when it is revoked."""

from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import text

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import now_of, read, write
from core.db import Database
from core.errors import InvalidRequest, NotFound
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES
from workers import host_credentials
from workers.join_token import JoinToken, check_host_name, new_secret
from workers.providers.static import read_silent
from workers.wire import SIMULATED_HOST

LONGEST = timedelta(days=30)
"""Longest time for which a token can be used."""
SHORTEST_OVERLAP, LONGEST_OVERLAP = timedelta(minutes=1), timedelta(days=7)
"""Bounds of the time for which a replaced secret holds on: an agent that is down meanwhile uses it once more."""
MAX_ROWS = 1_000

_FACTS = text(
    "SELECT host_id, address, agent_version, first_seen FROM hosts WHERE host_id = ANY(CAST(:hosts AS text[]))"
)


class InvitationView(msgspec.Struct, frozen=True):
    """A host that was invited, without its secrets."""

    host: str
    state: str
    """`invited`, `token expired`, `own secret` or `revoked`."""
    invited_at: datetime
    expires_at: datetime | None
    """Until when its token can be used; None = it was used, or has ended."""
    joined_at: datetime | None
    revoked_at: datetime | None
    rotates: bool
    """Whether its agent was asked for another secret and has made none yet."""
    rotated_at: datetime | None
    """When its secret was replaced last."""
    previous_until: datetime | None
    """Until when the secret before that one holds, too; None = it has ended."""


class RegistrationView(msgspec.Struct, frozen=True):
    """What a host's agent has registered, beside what it says in every heartbeat."""

    address: str
    """Where its agent says that engines are reached."""
    agent_version: str
    joined_at: datetime
    """When it joined with its token, or else sent its first heartbeat."""
    joining: str
    """`own secret`, `invited`, `token expired`, `revoked`, or empty: it reports by the internal token."""


class JoiningView(msgspec.Struct, frozen=True):
    """What is known of hosts that join."""

    invitations: list[InvitationView]
    """The newest first."""
    registrations: dict[str, RegistrationView]
    """By host; those that are not known are left out."""
    silent: dict[str, datetime]
    """Last heartbeats of hosts that joined and have fallen silent, by host."""


class InvitedHost(msgspec.Struct, frozen=True):
    """A host that may join, with its token, which is shown once."""

    host: str
    token: str
    expires_at: datetime


class RevokedHost(msgspec.Struct, frozen=True):
    """A host whose secret does not hold any more."""

    host: str


class RotatingHost(msgspec.Struct, frozen=True):
    """A host whose agent was asked for another secret."""

    host: str
    overlap_s: float
    """Seconds for which the present secret holds beside the new one."""


async def list_invitations(
    database: Database, actor: Actor, *, revoked: bool = False
) -> list[InvitationView]:
    """Hosts that were invited, the newest invitation first; with `revoked` those whose right has ended, too.

    At most MAX_ROWS. Raises PermissionDenied.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        now = await now_of(connection)
        found = await host_credentials.read_credentials(connection)
    return _invitations(found.values(), now, revoked=revoked)


async def joining(database: Database, actor: Actor, hosts: Collection[str]) -> JoiningView:
    """What is known of joining: invitations that are not revoked, silent hosts, and the registrations of `hosts`.

    Raises PermissionDenied.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        now = await now_of(connection)
        facts = (await connection.execute(_FACTS, {"hosts": list(hosts)})).all()
        silent = await read_silent(connection)
        credentials = await host_credentials.read_credentials(connection)
    found = {}
    for fact in facts:
        credential = host_credentials.credential_of(credentials, fact.host_id)
        found[fact.host_id] = RegistrationView(
            address=fact.address,
            agent_version=fact.agent_version,
            joined_at=credential.joined_at if credential and credential.joined_at else fact.first_seen,
            joining=host_credentials.joining_state(credential, now) if credential else "",
        )
    return JoiningView(
        _invitations(credentials.values(), now, revoked=False),
        found,
        {one.host_id: one.last_seen for one in silent},
    )


async def invite(
    database: Database, actor: Actor, *, host: str, valid: timedelta, reason: str, authority: str = ""
) -> InvitedHost:
    """Make a token with which the host joins, once, within `valid`. An earlier token of the host ends.

    `authority` is the fingerprint by which the host knows the schedulers. Raises InvalidRequest, PermissionDenied.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    check_host_name(host)
    if host.startswith(SIMULATED_HOST):
        raise InvalidRequest(
            f"{host} begins with {SIMULATED_HOST!r}, as names of simulated hosts do; choose another",
            param="host",
        )
    if not timedelta() < valid <= LONGEST:
        raise InvalidRequest(
            f"a token must be valid for more than nothing and at most {LONGEST.days} days", param="for"
        )
    token = JoinToken(new_secret(), authority)
    async with write(database, actor) as connection:
        expires_at = await host_credentials.invite(connection, host, token.hash, valid)
        await record(
            connection,
            actor,
            "hosts.invite",
            tenant_id=None,
            object_kind="host",
            object_id=host,
            reason=why,
            before=None,
            after={"expires_at": expires_at},
        )
    return InvitedHost(host, str(token), expires_at)


async def revoke(database: Database, actor: Actor, *, host: str, reason: str) -> RevokedHost:
    """End a host's secret and token: within seconds its agent is turned away, and its replicas get no requests.

    Raises NotFound for a host without either, PermissionDenied.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    async with write(database, actor) as connection:
        if not await host_credentials.revoke(connection, host):
            raise NotFound(
                f"host {host[:100]!r} has neither a secret nor a join token; `penstock hosts list` shows hosts",
                param="host",
            )
        await record(
            connection,
            actor,
            "hosts.revoke",
            tenant_id=None,
            object_kind="host",
            object_id=host,
            reason=why,
            before=None,
            after=None,
        )
    return RevokedHost(host)


async def rotate(
    database: Database, actor: Actor, *, host: str, overlap: timedelta, reason: str
) -> RotatingHost:
    """Ask a host's agent for another secret, which it makes within seconds; the present one holds for `overlap` then.

    Raises NotFound for a host without a secret, InvalidRequest, PermissionDenied.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    if not SHORTEST_OVERLAP <= overlap <= LONGEST_OVERLAP:
        raise InvalidRequest(
            f"the overlap is {overlap}, must be at least a minute and at most {LONGEST_OVERLAP.days} days; "
            "`penstock hosts revoke` ends a secret at once",
            param="overlap",
        )
    async with write(database, actor) as connection:
        if not await host_credentials.ask_rotation(connection, host, overlap):
            raise NotFound(
                f"host {host[:100]!r} has no secret of its own; `penstock hosts invitations` shows those that have",
                param="host",
            )
        await record(
            connection,
            actor,
            "hosts.rotate",
            tenant_id=None,
            object_kind="host",
            object_id=host,
            reason=why,
            before=None,
            after={"overlap_s": overlap.total_seconds()},
        )
    return RotatingHost(host, overlap.total_seconds())


def _invitations(
    credentials: Collection[host_credentials.HostCredential], now: datetime, *, revoked: bool
) -> list[InvitationView]:
    views = [_invitation(one, now) for one in credentials]
    shown = [one for one in views if revoked or one.state != "revoked"]
    return sorted(shown, key=lambda one: one.invited_at, reverse=True)[:MAX_ROWS]


def _invitation(one: host_credentials.HostCredential, now: datetime) -> InvitationView:
    return InvitationView(
        host=one.host_id,
        state=host_credentials.joining_state(one, now),
        invited_at=one.invited_at,
        expires_at=None if one.token_used else one.join_expires_at,
        joined_at=one.joined_at,
        revoked_at=one.revoked_at,
        rotates=one.rotates,
        rotated_at=one.rotated_at,
        previous_until=one.previous_until if one.previous_until and one.previous_until > now else None,
    )
