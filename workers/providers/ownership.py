"""Whether the hosts that a provider shows are those of this database.

Nothing but the database says which hosts are wanted. With another fleet or account it would not see its hosts and
create them all again; two databases with the same fleet and account would destroy each other's hosts. So the first pass
writes down whose hosts they are, and a pass that sees something else changes nothing until a person has confirmed it.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from workers.providers.intents import Intent, name_pattern
from workers.providers.interface import CallResult, ObservedHost


class Owner(msgspec.Struct, frozen=True):
    """Whose hosts they are."""

    fleet: str
    account: str
    """As the provider names it."""
    database: str
    """Identity of the database that has the intents. A restored dump has another one, a copy of the files the same."""


class Claim(msgspec.Struct, frozen=True):
    """What is written down of a provider's owner; empty parts are not known yet."""

    fleet: str = ""
    account: str = ""
    database: str = ""
    confirmed_at: datetime | None = None
    """When a person last confirmed it. Hosts of before that may be unknown."""


def contradiction(claim: Claim, seen: Owner) -> str:
    """In what a pass differs from what is written down; empty = it does not."""
    differences = [
        f"{what} is {now}, and was {before}"
        for what, before, now in (
            ("PENSTOCK_FLEET", claim.fleet, seen.fleet),
            ("the account", claim.account, seen.account),
            ("the database", claim.database, seen.database),
        )
        if before not in ("", now)
    ]
    return "; ".join(differences)


def unknown(
    claim: Claim, fleet: str, hosts: Sequence[ObservedHost], intents: Sequence[Intent]
) -> list[ObservedHost]:
    """Hosts with a name that only an intent of the fleet gets, and that no intent here has, the oldest first.

    Every intent is written before its host is created, and kept. So another database made these hosts, or a later
    state of this one. Those from before the last confirmation are left out.
    """
    known = {intent.name for intent in intents} | {intent.provider_id for intent in intents}
    named = name_pattern(fleet)
    found = [
        host
        for host in hosts
        if named.fullmatch(host.name)
        and not {host.name, host.provider_id} & known
        and (claim.confirmed_at is None or host.created_at > claim.confirmed_at)
    ]
    return sorted(found, key=lambda host: (host.created_at, host.provider_id))


def stop_line(provider: str, problem: str, owner: Owner) -> str:
    """The line that says why nothing is created or destroyed, and which command confirms the change."""
    return (
        f"{provider}: {problem}. Nothing is created or destroyed. If no other installation uses these hosts, run "
        f"`penstock hosts adopt {provider} --fleet {owner.fleet} --account {owner.account} --reason WHY`"
    )


def unknown_line(provider: str, hosts: Sequence[ObservedHost], owner: Owner) -> str:
    """The line about tagged hosts that another database, or a later state of this one, has made."""
    return stop_line(
        provider,
        f"this database did not create {hosts[0].name}: another installation has the fleet {owner.fleet}, or this "
        "database is an older copy",
        owner,
    )


def refused_line(provider: str, call: CallResult) -> str:
    """The line about a call without which a pass changes nothing, and that will be refused again."""
    status = f" ({call.status})" if call.status else ""
    return f"{provider}: {call.call} was refused{status}: {call.detail}. Nothing is created or destroyed"


def untagged_line(provider: str, hosts: Sequence[ObservedHost]) -> str:
    """The line about hosts that have a name of the fleet, but neither its tag nor an intent."""
    return (
        f"{provider}: {hosts[0].name} has a name of this fleet and neither its tag nor an intent; it is left alone. "
        "Destroy it, or give it another name"
    )
