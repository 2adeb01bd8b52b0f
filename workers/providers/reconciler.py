"""One pass over a provider: look, decide, write down, call, write down.

Every change is stored before the call that depends on it, and every result before the next call. A process that dies
between any two leaves intents from which the next pass goes on.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from core.errors import InvalidRequest
from workers.providers.ceilings import Ceilings, hold_to
from workers.providers.decide import ORPHAN_AFTER, Observed, decide, missing
from workers.providers.intents import (
    Act,
    Add,
    Adopt,
    Create,
    Destroy,
    GiveUpImage,
    Intent,
    Note,
    Overtaken,
    Retire,
    adopted,
    after_create,
    after_destroy,
    before_create,
    host_name,
    noted,
)
from workers.providers.interface import (
    CallResult,
    DesiredHosts,
    EngineStart,
    HostGroup,
    HostProvider,
    HostRequest,
    Listing,
    ObservedHost,
    Outcome,
)
from workers.providers.ownership import (
    Claim,
    Owner,
    contradiction,
    refused_line,
    stop_line,
    unknown,
    unknown_line,
    untagged_line,
)

log = logging.getLogger(__name__)

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

    async def kinds(self, provider: str) -> Collection[str]:
        """The kinds of hosts that are desired or may exist."""

    async def load(self, provider: str, shown: Sequence[ObservedHost]) -> Sequence[Intent]:
        """All intents that have not ended, those that ended lately, and those of the hosts that are shown."""

    async def add(self, intent: Intent) -> None:
        """Write a new intent, unless one has its name or host already."""

    async def save(self, before: Intent, after: Intent, result: CallResult | None = None) -> Intent:
        """Write what has changed of an intent, with the event of the call that changed it; returns what is stored.

        Raises Overtaken, and writes nothing, when the intent is not as it was read.
        """

    async def reload(self, intent: Intent) -> Intent:
        """The intent as it is now."""

    async def start(self, kind: str, model: str) -> EngineStart:
        """How a new host of a kind begins to serve a model."""

    async def image(self, group: HostGroup) -> str:
        """The image of a group's next host; empty = the provider's settings say."""

    async def give_up_image(self, group: HostGroup, image: str) -> bool:
        """Put the image of before in place of a group's `image`; False when it has another one by now."""

    async def database_id(self) -> str:
        """Identity of the database, which a copy of its content in another place does not have."""

    async def claim(self, provider: str) -> Claim:
        """Whose the provider's hosts were."""

    async def set_claim(self, provider: str, owner: Owner) -> None:
        """Write down whose they are."""

    async def notice(self, provider: str, line: str) -> bool:
        """Keep a line for people; whether it was not there lately."""

    async def record_refused(self, provider: str, reasons: Sequence[str]) -> None:
        """Write the events of creates that were not called, unless they were written lately."""

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
    stopped: str = ""
    """Why it changed nothing until a person acts."""


KnownPrices = Callable[[], Awaitable[Mapping[str, int]]]
"""Returns picodollars per hour by kind of host."""


async def no_prices() -> Mapping[str, int]:
    """No prices but the provider's."""
    return {}


TokenFor = Callable[[str], Awaitable[str]]
"""Returns a new join token for the host of this name."""


async def no_token(name: str) -> str:
    """None: the host's agent shows itself otherwise."""
    return ""


class Reconciler:
    """Runs passes. `new_id` makes the ids of intents, `fleet` begins their names."""

    def __init__(
        self,
        provider: HostProvider,
        store: IntentStore,
        *,
        fleet: str,
        new_id: Callable[[], UUID],
        ceilings: Ceilings,
        known_prices: KnownPrices = no_prices,
        token_for: TokenFor = no_token,
        dry_run: bool = False,
    ) -> None:
        """`known_prices` is asked before creates, for kinds that the provider has no list price of; `token_for` before
        each create, for the token that the host gets."""
        self._provider, self._store = provider, store
        self._fleet, self._new_id, self._dry_run = fleet, new_id, dry_run
        self._ceilings, self._known_prices, self._token_for = ceilings, known_prices, token_for

    async def run(self) -> PassReport:
        """One pass. The caller holds a lock, so that two do not run at once; should they, no host is created twice."""
        name = self._provider.name
        now = await self._store.now()
        pace = await self._store.pace(name)
        if pace.not_before is not None and pace.not_before > now:
            return PassReport(waited=True)
        account = await self._provider.account()
        await self._store.record(name, [account.call])
        await self._say_refused([account.call])
        if not account.account_id:
            await self._store.set_pace(name, Pace(account.call.not_before, pace.whole_at))
            return PassReport()
        owner = Owner(self._fleet, account.account_id, await self._store.database_id())
        if problem := contradiction(await self._store.claim(name), owner):
            return PassReport(stopped=await self._say(stop_line(name, problem, owner)))
        listing = await self._provider.list_hosts(await self._store.kinds(name))
        await self._store.record(name, listing.calls)
        await self._say_refused(listing.calls)
        intents = await self._store.load(name, listing.hosts)
        pace = Pace(_latest([account.call, *listing.calls]), pace.whole_at)
        if problem := await self._strangers(owner, listing, intents):
            await self._store.set_pace(name, pace)
            return PassReport(stopped=problem)
        observed, pace = await self._observe(listing, intents, pace, now)
        await self._store.set_pace(name, pace)
        decided = decide(await self._store.desired(name), intents, observed, now)
        acts, pace = await self._hold_to_ceilings(decided, intents, pace, now)
        if self._dry_run:
            await self._store.record_dry(name, acts, intents)
            return PassReport(tuple(acts), complete=observed.complete)
        calls, pace = await self._carry_out(acts, intents, pace)
        if observed.complete and not missing(intents, observed):
            await self._store.set_pace(name, Pace(pace.not_before, now))
        return PassReport(tuple(acts), complete=observed.complete, calls=calls)

    async def _strangers(self, owner: Owner, listing: Listing, intents: Sequence[Intent]) -> str:
        """Why hosts that no intent has made stop the pass, empty where none do; then the owner is written down."""
        name = self._provider.name
        claim = await self._store.claim(name)
        strangers = unknown(claim, self._fleet, listing.hosts, intents)
        tagged = [host for host in strangers if host.tagged]
        if tagged:
            return await self._say(unknown_line(name, tagged, owner))
        if strangers:
            await self._say(untagged_line(name, strangers))
        claimed = Owner(claim.fleet, claim.account, claim.database)
        if listing.complete and claimed != owner and not self._dry_run:
            await self._store.set_claim(name, owner)
        return ""

    async def _say(self, line: str) -> str:
        """Keep a line for people, and log it unless it was there lately."""
        if await self._store.notice(self._provider.name, line):
            log.warning("%s", line)
        return line

    async def _say_refused(self, calls: Sequence[CallResult]) -> None:
        """Say why the provider cannot be seen whole, if the next pass will not see it either."""
        for call in calls:
            if call.outcome is Outcome.REFUSED:
                await self._say(refused_line(self._provider.name, call))

    async def _hold_to_ceilings(
        self, acts: Sequence[Act], intents: Sequence[Intent], pace: Pace, now: datetime
    ) -> tuple[Sequence[Act], Pace]:
        """Leave out creates that would exceed a ceiling or whose price cannot be read, and write down why."""
        made = {act.intent_id for act in acts if isinstance(act, Create)}
        if not made:
            return acts, pace
        if _waits(pace, now):  # prices cannot be asked for, so nothing is created
            return [act for act in acts if not isinstance(act, Create)], pace
        name = self._provider.name
        unpriced = {one.kind for one in intents if one.intent_id in made or one.usd_pico_per_hour is None}
        prices = await self._provider.prices(unpriced)
        if prices.complete:
            both = {**await self._known_prices(), **prices.usd_pico_per_hour}
            prices = msgspec.structs.replace(prices, usd_pico_per_hour=both)
        await self._store.record(name, prices.calls)
        if (not_before := _latest(prices.calls)) is not None:
            pace = Pace(not_before, pace.whole_at)
            await self._store.set_pace(name, pace)
        kept, reasons = hold_to(self._ceilings, acts, intents, prices, now)
        if prices.complete or prices.refused:  # after an error the next pass knows more
            await self._store.record_refused(name, sorted(set(reasons)))
        return kept, pace

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
            msgspec.structs.replace(
                observed, endings=endings.ended, records=endings.complete, refused=endings.refused
            ),
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
            if isinstance(act, Note | Create | Destroy) and act.intent_id not in known:
                continue  # another has changed it: the next pass reads it again
            match act:
                case Add(group=group):
                    await self._store.add(self._intent(group, now))
                case Adopt():
                    await self._store.add(
                        adopted(self._new_id(), act, self._provider.name, now, now + ORPHAN_AFTER)
                    )
                case GiveUpImage(group=group, image=image):
                    await self._give_up(group, image)
                case Create(intent_id=intent_id) | Destroy(intent_id=intent_id):
                    if calls >= MAX_CALLS or _waits(pace, now):
                        break
                    calls += 1
                    call = self._create if isinstance(act, Create) else self._destroy
                    result = await call(known[intent_id], now)
                    if result is not None and result.not_before is not None:
                        pace = msgspec.structs.replace(pace, not_before=result.not_before)
                        await self._store.set_pace(self._provider.name, pace)
                case _:
                    before = known.pop(act.intent_id)
                    told = None
                    if isinstance(act, Retire) and act.failed:
                        told = CallResult("replace", Outcome.OK, detail=act.why)
                    with suppress(Overtaken):
                        known[act.intent_id] = await self._store.save(before, noted(before, act, now), told)
        return calls, pace

    async def _give_up(self, group: HostGroup, image: str) -> None:
        """Let a group's hosts be made from the image of before, and write down why."""
        if await self._store.give_up_image(group, image):
            which = f"{group.kind} in {group.region} {group.model}".strip()
            why = f"the image {image} of {which} is given up: its first hosts failed"
            await self._store.record(
                self._provider.name, [CallResult("replace", Outcome.REFUSED, detail=why)]
            )

    async def _create(self, intent: Intent, now: datetime) -> CallResult | None:
        """Call create, unless the intent was changed since it was read.

        What makes a request impossible is the refusal of this intent alone; nothing was sent then.
        """
        try:
            token = await self._token_for(intent.name)
        except InvalidRequest as error:
            result = _not_sent(error)
            await self._keep(intent, lambda one: after_create(one, result, now), result)
            return result
        image, start = (
            await self._store.image(intent.group),
            await self._store.start(intent.kind, intent.model),
        )
        try:
            called = await self._store.save(intent, before_create(intent, now, image))
        except Overtaken:
            return None
        request = HostRequest(intent.name, intent.region, intent.kind, intent.model, start, token, image)
        try:
            result = await self._provider.create(request)
        except InvalidRequest as error:
            result = _not_sent(error)
        then = await self._store.now()
        await self._keep(called, lambda one: after_create(one, result, then), result)
        return result

    async def _destroy(self, intent: Intent, now: datetime) -> CallResult:
        if intent.provider_id is None:
            raise AssertionError(f"intent {intent.name} has no host to destroy")
        result = await self._provider.destroy(intent.provider_id)
        await self._keep(intent, lambda one: after_destroy(one, result, now), result)
        return result

    async def _keep(self, intent: Intent, change: Callable[[Intent], Intent], result: CallResult) -> None:
        """Store what a call changed, on what the intent has become meanwhile: a result is never lost."""
        while True:
            try:
                await self._store.save(intent, change(intent), result)
                return
            except Overtaken:
                intent = await self._store.reload(intent)

    def _intent(self, group: HostGroup, now: datetime) -> Intent:
        intent_id = self._new_id()
        return Intent(
            intent_id=intent_id,
            provider=group.provider,
            region=group.region,
            kind=group.kind,
            model=group.model,
            name=host_name(self._fleet, intent_id),
            requested_at=now,
        )


def _not_sent(error: InvalidRequest) -> CallResult:
    return CallResult("create", Outcome.REFUSED, detail=error.message)


def _latest(results: Sequence[CallResult]) -> datetime | None:
    return max((one.not_before for one in results if one.not_before is not None), default=None)


def _waits(pace: Pace, now: datetime) -> bool:
    return pace.not_before is not None and pace.not_before > now
