"""One pass over a provider: look, decide, write down, call, write down.

Every change is stored before the call that depends on it, and every result before the next call. A process that dies
between any two leaves intents from which the next pass goes on.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from workers.providers.decide import ORPHAN_AFTER, Observed, decide, missing
from workers.providers.intents import (
    Act,
    Add,
    Adopt,
    Create,
    Destroy,
    Intent,
    adopted,
    after_create,
    after_destroy,
    before_create,
    noted,
)
from workers.providers.interface import (
    CallResult,
    DesiredHosts,
    HostGroup,
    HostProvider,
    HostRequest,
    Listing,
    ObservedHost,
)

MAX_CALLS = 20
"""Creates and destroys in one pass."""
RECORDS_SLACK = timedelta(hours=1)
"""How far before the last whole list the provider's records of ends are read."""


class Pace(msgspec.Struct, frozen=True):
    """What a pass leaves for the next one of the same provider."""

    not_before: datetime | None = None
    """No call before."""
    whole_at: datetime | None = None
    """When the last complete list began in which no host was missing. Ends before that are known."""


class IntentStore(Protocol):
    """Where intents, desired hosts and events are kept. Every method commits before it returns."""

    async def now(self) -> datetime:
        """The instant, by the store's clock."""

    async def desired(self, provider: str) -> Sequence[DesiredHosts]:
        """How many hosts there should be."""

    async def load(self, provider: str, shown: Sequence[ObservedHost]) -> Sequence[Intent]:
        """All intents that have not ended, those that ended lately, and those of the hosts that are shown."""

    async def add(self, intent: Intent) -> None:
        """Write a new intent."""

    async def save(self, before: Intent, after: Intent, result: CallResult | None = None) -> None:
        """Write what has changed of an intent, with the event of the call that changed it."""

    async def record(self, provider: str, results: Sequence[CallResult]) -> None:
        """Write the events of calls that concern no single intent."""

    async def record_dry(self, provider: str, acts: Sequence[Act], intents: Sequence[Intent]) -> None:
        """Write what a dry run would have done, unless it did so lately."""

    async def pace(self, provider: str) -> Pace:
        """What the last pass left."""

    async def set_pace(self, provider: str, pace: Pace) -> None:
        """Keep it for the next one."""


class PassReport(msgspec.Struct, frozen=True):
    """What a pass did."""

    acts: tuple[Act, ...] = ()
    waited: bool = False
    """It did nothing, because the provider wants no calls yet."""
    complete: bool = False
    """It saw all hosts."""
    calls: int = 0
    """Creates and destroys that it called."""


class Reconciler:
    """Runs passes. `new_id` makes the ids of intents, `fleet` begins their names."""

    def __init__(
        self,
        provider: HostProvider,
        store: IntentStore,
        *,
        fleet: str,
        new_id: Callable[[], UUID],
        dry_run: bool = False,
    ) -> None:
        self._provider, self._store = provider, store
        self._fleet, self._new_id, self._dry_run = fleet, new_id, dry_run

    async def run(self) -> PassReport:
        """One pass. Only one may run at a time for a provider; the caller holds the lock."""
        name = self._provider.name
        now = await self._store.now()
        pace = await self._store.pace(name)
        if pace.not_before is not None and pace.not_before > now:
            return PassReport(waited=True)
        listing = await self._provider.list_hosts()
        await self._store.record(name, listing.calls)
        intents = await self._store.load(name, listing.hosts)
        pace = Pace(_latest(listing.calls), pace.whole_at)
        observed, pace = await self._observe(listing, intents, pace, now)
        await self._store.set_pace(name, pace)
        acts = decide(await self._store.desired(name), intents, observed, now)
        if self._dry_run:
            await self._store.record_dry(name, acts, intents)
            return PassReport(tuple(acts), complete=observed.complete)
        calls, pace = await self._carry_out(acts, intents, pace)
        if observed.complete and not missing(intents, observed):
            await self._store.set_pace(name, Pace(pace.not_before, now))
        return PassReport(tuple(acts), complete=observed.complete, calls=calls)

    async def _observe(
        self, listing: Listing, intents: Sequence[Intent], pace: Pace, now: datetime
    ) -> tuple[Observed, Pace]:
        """Add the provider's records of ends, where hosts are missing and calls are allowed."""
        observed = Observed(now, listing.hosts, listing.complete)
        gone = missing(intents, observed)
        if not gone or _waits(pace, now):
            return observed, pace
        since = pace.whole_at or min(one.created_at or now for one in gone)
        endings = await self._provider.endings(since - RECORDS_SLACK)
        await self._store.record(self._provider.name, endings.calls)
        later = Pace(_latest(endings.calls) or pace.not_before, pace.whole_at)
        return (
            msgspec.structs.replace(observed, endings=endings.ended, records=endings.complete),
            later,
        )

    async def _carry_out(
        self, acts: Sequence[Act], intents: Sequence[Intent], pace: Pace
    ) -> tuple[int, Pace]:
        """Carry acts out in order, until the provider wants a pause or MAX_CALLS are made."""
        known = {intent.intent_id: intent for intent in intents}
        calls = 0
        for act in acts:
            now = await self._store.now()
            match act:
                case Add(group=group):
                    await self._store.add(self._intent(group, now))
                case Adopt():
                    await self._store.add(
                        adopted(self._new_id(), act, self._provider.name, now, now + ORPHAN_AFTER)
                    )
                case Create(intent_id=intent_id) | Destroy(intent_id=intent_id):
                    if calls >= MAX_CALLS or _waits(pace, now):
                        break
                    calls += 1
                    call = self._create if isinstance(act, Create) else self._destroy
                    result = await call(known[intent_id], now)
                    if result.not_before is not None:
                        pace = msgspec.structs.replace(pace, not_before=result.not_before)
                        await self._store.set_pace(self._provider.name, pace)
                case _:
                    before = known[act.intent_id]
                    known[act.intent_id] = noted(before, act, now)
                    await self._store.save(before, known[act.intent_id])
        return calls, pace

    async def _create(self, intent: Intent, now: datetime) -> CallResult:
        called = before_create(intent, now)
        await self._store.save(intent, called)
        result = await self._provider.create(HostRequest(intent.name, intent.region, intent.kind))
        await self._store.save(called, after_create(called, result, await self._store.now()), result)
        return result

    async def _destroy(self, intent: Intent, now: datetime) -> CallResult:
        if intent.provider_id is None:
            raise AssertionError(f"intent {intent.name} has no host to destroy")
        result = await self._provider.destroy(intent.provider_id)
        await self._store.save(intent, after_destroy(intent, result, now), result)
        return result

    def _intent(self, group: HostGroup, now: datetime) -> Intent:
        intent_id = self._new_id()
        return Intent(
            intent_id=intent_id,
            provider=group.provider,
            region=group.region,
            kind=group.kind,
            model=group.model,
            name=f"{self._fleet}-{intent_id.hex[-12:]}",
            requested_at=now,
        )


def _latest(results: Sequence[CallResult]) -> datetime | None:
    return max((one.not_before for one in results if one.not_before is not None), default=None)


def _waits(pace: Pace, now: datetime) -> bool:
    return pace.not_before is not None and pace.not_before > now
