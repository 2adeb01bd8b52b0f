"""Whose the hosts of a provider are: what passes have to say, and a person's confirmation of a change."""

from datetime import datetime

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.hosts import MAX_TEXT, require_provider
from admin.transactions import now_of, read, write
from core.db import Database
from core.errors import Conflict, InvalidRequest
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES
from workers.providers import store
from workers.providers.intents import End, IntentState, noted
from workers.providers.ownership import Claim


class OwnerView(msgspec.Struct, frozen=True):
    """Whose the hosts of a provider are."""

    provider: str
    fleet: str
    account: str
    database: str
    confirmed_at: datetime | None
    hosts_left: list[str]
    """Hosts that this confirmation may have left behind: they run on and cost money."""


async def list_notices(database: Database, actor: Actor) -> list[str]:
    """What passes have lately had to say to a person, a line for each provider. Raises PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return list((await store.read_notices(connection)).values())


async def adopt(
    database: Database,
    actor: Actor,
    *,
    provider: str,
    fleet: str,
    account: str,
    leave_hosts: bool = False,
    reason: str,
) -> OwnerView:
    """Confirm that a provider's hosts of `fleet` in `account` are those of this database, and of no other.

    Hosts of the fleet from before, which no intent has, are destroyed ten minutes later. With `leave_hosts`, hosts of
    another fleet, or that the account does not show, run on. Waits for the pass that runs. Raises InvalidRequest, and
    Conflict when no pass asks for a confirmation, or when hosts would be left without `leave_hosts`.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    require_provider(provider)
    for param, value in (("fleet", fleet), ("account", account)):
        if not 1 <= len(value) <= MAX_TEXT:
            raise InvalidRequest(f"{param} needs 1 to {MAX_TEXT} characters", param=param)
    async with write(database, actor) as connection:
        await store.lock(connection, provider)
        if provider not in await store.read_notices(connection):
            raise Conflict(
                f"no pass over {provider} asks for a confirmation; `penstock hosts list` warns when one does",
                param="provider",
            )
        claim = await store.read_claim(connection, provider)
        now = await now_of(connection)
        left: list[str] = []
        if claim.fleet not in ("", fleet) or claim.account not in ("", account):
            left = await _leave(connection, provider, claim, fleet, now, leave_hosts=leave_hosts)
        confirmed = Claim(fleet, account, await store.database_id(connection), now)
        values = msgspec.structs.asdict(confirmed) | {"notice": None, "noticed_at": None}
        await store.write_claim(connection, provider, values)
        before, after = _view(provider, claim, []), _view(provider, confirmed, left)
        await record(
            connection,
            actor,
            "hosts.adopt",
            tenant_id=None,
            object_kind="hosts",
            object_id=provider,
            reason=why,
            before=before,
            after=after,
        )
    return after


async def _leave(
    connection: AsyncConnection, provider: str, claim: Claim, fleet: str, now: datetime, *, leave_hosts: bool
) -> list[str]:
    """The names of hosts that may not be seen any more. The intents of another fleet end, and none of it is desired.

    Those of another account go on: if it shows their hosts after all, nothing is lost, else they end as hosts that are
    gone do. A host of another fleet is never shown, and a later destroy by its id would hit what is not ours.
    """
    intents = await store.read_open(connection, provider)
    left = sorted(one.name for one in intents if one.state is not IntentState.WRITTEN)
    if left and not leave_hosts:
        raise Conflict(
            f"{len(left)} hosts of fleet {claim.fleet} in account {claim.account or 'unknown'}, such as {left[0]}, "
            "have not ended. Destroy them first with the settings of before, or leave them running with --leave-hosts",
            param="leave_hosts",
        )
    if claim.fleet not in ("", fleet):
        await store.desire_none(connection, provider)
        for one in intents:
            await store.write_intent(
                connection, one, noted(one, End(one.intent_id, now, "left running"), now)
            )
    return left


def _view(provider: str, claim: Claim, left: list[str]) -> OwnerView:
    return OwnerView(provider, claim.fleet, claim.account, claim.database, claim.confirmed_at, left)
