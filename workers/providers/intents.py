"""Intents: one for every host that was ever wanted or found, written down before the first call, and what changes one.

An intent is WRITTEN until a create is called, CALLED while no list has shown its host, EXISTS from the first sight on,
and ENDED when its host is gone or never came. ENDED is left only when the provider shows the host again.
"""

import re
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from workers.providers.interface import CallResult, HostGroup, ObservedHost, Outcome, models_of

DESTROY_AGAIN = {
    Outcome.OK: timedelta(seconds=60),
    Outcome.ABSENT: timedelta(seconds=30),
    Outcome.BUSY: timedelta(seconds=10),
    Outcome.UNKNOWN: timedelta(seconds=15),
    Outcome.REFUSED: timedelta(seconds=60),
    Outcome.THROTTLED: timedelta(),
}
"""When a destroy is called again, by the result of the last one, should the host still be shown."""


DRAIN_WITHIN = timedelta(minutes=15)
"""A host that is not wanted any more is destroyed after so long although no scheduler says that its engines stopped:
longer than running requests get."""


def name_pattern(fleet: str) -> re.Pattern[str]:
    """The names of a fleet's hosts, which `host_name` makes."""
    return re.compile(rf"{re.escape(fleet)}-[0-9a-f]{{12}}")


def host_name(fleet: str, intent_id: UUID) -> str:
    """The name of an intent's host."""
    return f"{fleet}-{intent_id.hex[-12:]}"


class IntentState(StrEnum):
    """What is known of an intent's host."""

    WRITTEN = "written"
    """No host was made: there was no call of create yet, or each was refused or is known to have made nothing."""
    CALLED = "called"
    """A create was called: it was accepted, or its result is not known. No list has shown the host."""
    EXISTS = "exists"
    """The provider shows it, or showed it and has not yet said that it ended."""
    ENDED = "ended"


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A host that was wanted, or that was found to be ours. All instants are the database's but `created_at`, and
    `ended_at` where the end is the provider's."""

    intent_id: UUID
    provider: str
    region: str
    kind: str
    model: str
    name: str
    """Name and tag of the host, and the host id of its agent. No two intents have the same."""
    requested_at: datetime
    version: int = 0
    """How often it was changed: a change of an older version is refused (`Overtaken`)."""
    wanted: bool = True
    why: str = ""
    """Why it is not wanted any more, or how it ended."""
    state: IntentState = IntentState.WRITTEN
    called_at: datetime | None = None
    """When the last call of create began."""
    calls: int = 0
    """Calls of create."""
    failures: int = 0
    """Creations that were refused, never appeared or did not start."""
    failed_at: datetime | None = None
    next_at: datetime | None = None
    """No call for this intent before."""
    provider_id: str | None = None
    status: str = ""
    status_since: datetime | None = None
    running_at: datetime | None = None
    """When it was first seen running."""
    created_at: datetime | None = None
    usd_pico_per_hour: int | None = None
    billed: bool = False
    """Whether its host is known to have existed. Only such a host costs anything."""
    destroy_at: datetime | None = None
    """When the provider first agreed to destroy it."""
    missing_since: datetime | None = None
    ended_at: datetime | None = None
    end_recorded: bool = False
    """Whether `ended_at` is from the provider's records."""
    drain_until: datetime | None = None
    """Of a host that is not wanted any more: not destroyed before. None = its engines have stopped, or it had none."""
    reclaim_at: datetime | None = None
    """When the provider takes the host back, by a notice."""
    joined_at: datetime | None = None
    """First heartbeat of its agent."""
    must_join: bool = True
    """Whether it is replaced when its agent does not join; hosts of before that rule are not."""
    image: str = ""
    """From which its host was asked to be made, else the one that its provider names; empty = not known."""
    fit_at: datetime | None = None
    """When its checks last let it serve."""
    first_fit_at: datetime | None = None
    """When they first did."""
    refused_since: datetime | None = None
    """Since when its checks have refused it; None = they have not, or do not any more."""
    ran: bool = False
    """Whether its agent has ever reported a replica."""
    silent_since: datetime | None = None
    """Since when its agent, which had joined, has sent no heartbeat to a scheduler that serves; None = it is heard, or
    no scheduler serves."""

    @property
    def group(self) -> HostGroup:
        """The group that it counts for."""
        return HostGroup(self.provider, self.region, self.kind, self.model)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that it serves, which are several where it is shared."""
        return models_of(self.model)


class Overtaken(Exception):
    """An intent or a group was changed since it was read: by another pass, or by a person."""


class Add(msgspec.Struct, frozen=True, tag=True):
    """Write an intent for one more host of a group."""

    group: HostGroup


class Adopt(msgspec.Struct, frozen=True, tag=True):
    """Write an intent for a host of the fleet that has none, so that it is destroyed and its cost is known."""

    host: ObservedHost
    why: str
    name: str
    """Name of the intent: the host's, or one made unique where an intent has that."""


class Saw(msgspec.Struct, frozen=True, tag=True):
    """The provider shows the intent's host. Seen again after its end, it is not wanted."""

    intent_id: UUID
    host: ObservedHost


class Missed(msgspec.Struct, frozen=True, tag=True):
    """The provider does not show a host that it showed, and has no record of its end."""

    intent_id: UUID


class Retire(msgspec.Struct, frozen=True, tag=True):
    """The host is not wanted any more."""

    intent_id: UUID
    why: str
    failed: bool = False
    """Whether this counts as a failed creation."""
    drained: bool = False
    """Whether its engines have stopped, or had the time to."""


class Release(msgspec.Struct, frozen=True, tag=True):
    """A create whose result was not known has made nothing."""

    intent_id: UUID


class End(msgspec.Struct, frozen=True, tag=True):
    """The host is gone, or never came."""

    intent_id: UUID
    at: datetime
    why: str
    recorded: bool = False
    """Whether the provider's records say so; then it did exist."""
    failed: bool = False


class GiveUpImage(msgspec.Struct, frozen=True, tag=True):
    """The group's hosts are made from the image of before again."""

    group: HostGroup
    image: str


class Create(msgspec.Struct, frozen=True, tag=True):
    """Call create."""

    intent_id: UUID


class Destroy(msgspec.Struct, frozen=True, tag=True):
    """Call destroy."""

    intent_id: UUID


Note = Saw | Missed | Retire | Release | End
"""Acts that change one intent without a call."""
Act = Add | Adopt | GiveUpImage | Note | Create | Destroy


def noted(intent: Intent, act: Note, now: datetime) -> Intent:
    """The intent after `act`."""
    change = msgspec.structs.replace
    match act:
        case Saw(host=host):
            return _seen(intent, host, now)
        case Missed():
            return change(intent, missing_since=now)
        case Retire(why=why, failed=failed, drained=drained):
            until = None if drained else _drain_until(intent, now)
            retired = change(intent, wanted=False, why=why, next_at=None, drain_until=until)
            return _failed(retired, now) if failed else retired
        case Release():
            return change(intent, state=IntentState.WRITTEN)
        case End(at=at, why=why, recorded=recorded, failed=failed):
            ended = change(
                intent,
                state=IntentState.ENDED,
                wanted=False,
                why=intent.why or why,
                ended_at=at,
                end_recorded=recorded,
                billed=intent.billed or recorded,
            )
            return _failed(ended, now) if failed else ended


def adopted(intent_id: UUID, act: Adopt, provider: str, now: datetime, next_at: datetime) -> Intent:
    """An intent for a host that has none; it may be destroyed from `next_at` on."""
    host = act.host
    bare = Intent(
        intent_id=intent_id,
        provider=provider,
        region=host.region,
        kind=host.kind,
        model="",
        name=act.name,
        requested_at=now,
        wanted=False,
        why=act.why,
        next_at=next_at,
    )
    return _seen(bare, host, now)


def before_create(intent: Intent, now: datetime, image: str = "") -> Intent:
    """The intent as it is written down before a call of create: from now on its host may exist."""
    calls = intent.calls + 1
    return msgspec.structs.replace(intent, state=IntentState.CALLED, called_at=now, calls=calls, image=image)


def after_create(intent: Intent, result: CallResult, now: datetime) -> Intent:
    """The intent after the call. Only a refusal proves that nothing was made.

    It may have been changed while the call ran: what was learnt meanwhile stays.
    """
    free = intent
    if intent.state is IntentState.CALLED:
        free = msgspec.structs.replace(intent, state=IntentState.WRITTEN)
    match result.outcome:
        case Outcome.OK if result.host is not None:
            return msgspec.structs.replace(
                intent,
                provider_id=result.host.provider_id,
                created_at=result.host.created_at,
                usd_pico_per_hour=result.host.usd_pico_per_hour,
            )
        case Outcome.OK | Outcome.UNKNOWN:
            return intent
        case Outcome.THROTTLED:
            return free
        case Outcome.REFUSED | Outcome.ABSENT | Outcome.BUSY:
            return _failed(free, now)


def after_destroy(intent: Intent, result: CallResult, now: datetime) -> Intent:
    """The intent after a call of destroy. Its host is gone when it is not shown any more, not before."""
    if intent.state is IntentState.ENDED:  # noted while the call ran
        return intent
    later = msgspec.structs.replace(intent, next_at=now + DESTROY_AGAIN[result.outcome])
    if result.outcome is Outcome.OK:
        return msgspec.structs.replace(
            later, state=IntentState.EXISTS, billed=True, destroy_at=intent.destroy_at or now
        )
    return later


def _seen(intent: Intent, host: ObservedHost, now: datetime) -> Intent:
    again = intent.state is IntentState.ENDED
    return msgspec.structs.replace(
        intent,
        state=IntentState.EXISTS,
        wanted=intent.wanted and not again,
        why="shown again after its end" if again else intent.why,
        provider_id=host.provider_id,
        status=host.status,
        status_since=intent.status_since if intent.status == host.status else now,
        running_at=intent.running_at or (now if host.status == "running" else None),
        created_at=host.created_at,
        usd_pico_per_hour=host.usd_pico_per_hour
        if intent.usd_pico_per_hour is None
        else intent.usd_pico_per_hour,
        billed=True,
        image=intent.image or host.image,
        drain_until=_drain_until(intent, now) if again else intent.drain_until,
        missing_since=None,
        ended_at=None,
        end_recorded=False,
    )


def _drain_until(intent: Intent, now: datetime) -> datetime | None:
    """When a host may be destroyed at the latest; None = at once, because no agent runs engines on it."""
    return None if intent.joined_at is None else now + DRAIN_WITHIN


def _failed(intent: Intent, now: datetime) -> Intent:
    return msgspec.structs.replace(intent, failures=intent.failures + 1, failed_at=now)
