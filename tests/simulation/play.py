"""One schedule: a seed decides processes, traffic, faults and the order of everything; then the books are checked."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from uuid import UUID

import msgspec

from tests.simulation import faults
from tests.simulation.checks import check_books, check_requests
from tests.simulation.platform import Platform, simulated_modules
from tests.simulation.sql_model import Price
from tests.simulation.traffic import MODEL, TIER, Plan, Request, draw_plan
from tests.simulation.world import EPOCH_S, World

_BUSY = 0.2
"""Share of schedules with so many requests on a slow disk that the spool is compacted while they run."""
Change = Callable[[Platform], contextlib.AbstractContextManager[None]]
"""Changes the product or the model for one schedule, to show that the simulation notices."""


class Result(msgspec.Struct):
    """What one schedule came to."""

    seed: int
    problems: list[str]
    digest: int
    virtual_s: float
    requests: int
    points: int
    outcomes: dict[str, int]
    faults: list[str]


def play(
    seed: int,
    *,
    change: Change | None = None,
    always_busy: bool = False,
    away_s: float = 0.0,
    log: Callable[[str], None] | None = None,
) -> Result:
    """Play one schedule to its end and check it; `log` gets a line of each event.

    `always_busy` makes it one in which the spool is compacted, whatever the seed says. `away_s`: seconds for which
    PostgreSQL is away, besides the schedule's faults, while requests go on to arrive.
    """
    world = World(seed)
    world.log = log
    random = world.random
    busy = random.random() < _BUSY or always_busy
    platform = Platform(
        world,
        ttl_s=random.choice((6.0, 6.0, 60.0)),
        spool_bytes=(8 if busy else random.choice((6, 8, 12, 64))) * 1024,
        processes=1 if busy else random.choice((1, 2)),
    )
    platform.disk.sync_s = random.choice((0.1, 0.4) if busy else (0.004, 0.004, 0.02, 0.4))
    tenants = _tenants(platform)
    chaos_s = random.uniform(1.0, 5.0)
    with simulated_modules(platform), (change or _no_change)(platform):
        try:
            for _ in range(24 if busy else random.choice((1, 4, 8, 14))):
                tenant = tenants[0] if busy else random.choice(tenants)
                plan = draw_plan(world, tenant, random.uniform(0.0, chaos_s))
                world.push(plan.at, _arrival(platform, plan))
            _bill(platform, Random(seed), chaos_s)
            faults.draw(platform, chaos_s)
            if busy:
                faults.draw_late_death(platform, chaos_s)
            if away_s:
                _go_away(platform, tenants, random.uniform(0.0, chaos_s), away_s)
            world.run(chaos_s + away_s + 2.0)
            _recover(platform)
            check_books(platform)
            check_requests(platform)
        finally:
            # While the modules are still replaced: what unwinds calls them.
            world.end()
            for api in platform.apis:
                api.loop.unwind()
            asyncio.events._set_running_loop(None)
    return Result(
        seed=seed,
        problems=world.problems,
        digest=world.digest,
        virtual_s=world.now,
        requests=len(platform.requests),
        points=sum(world.points.values()),
        outcomes=dict(Counter(row.outcome for row in platform.server.model.usage.values())),
        faults=platform.struck,
    )


@contextlib.contextmanager
def _no_change(_: Platform) -> Iterator[None]:
    yield


def _tenants(platform: Platform) -> list[UUID]:
    """Two organisations: one with credit for anything, one with little or none, or with a credit limit.

    Every end user has a budget, a small one in the first organisation.
    """
    model, random = platform.server.model, platform.world.random
    model.prices[1] = Price(1, MODEL, TIER, None, 3, 1, 7, 11)
    rich, poor = (UUID(int=random.getrandbits(128)) for _ in range(2))
    model.open_account(rich, "prepaid")
    model.grant(UUID(int=random.getrandbits(128)), rich, 10**9)
    if random.random() < 0.3:
        model.open_account(poor, "postpaid")
        model.put(model.accounts, poor, msgspec.structs.replace(model.accounts[poor], credit_limit=6000))
    else:
        model.open_account(poor, "prepaid")
        model.grant(UUID(int=random.getrandbits(128)), poor, random.choice((500, 5000, 20_000)))
    model.set_label_budget(rich, "user", 30_000, stops=True)
    model.set_label_budget(poor, "user", 10**9, stops=True)
    model.undo.clear()
    return [rich, poor, poor]


def _go_away(platform: Platform, tenants: list[UUID], at: float, away_s: float) -> None:
    """Take PostgreSQL away for `away_s` seconds; 20 requests arrive meanwhile, and nothing may be admitted."""
    world = platform.world

    def begin() -> None:
        platform.struck.append("database away")
        platform.server.crash(away_s)

    world.push(at, begin)
    for _ in range(20):
        plan = draw_plan(world, world.random.choice(tenants), at + world.random.uniform(0.1, 0.98) * away_s)
        world.push(plan.at, _arrival(platform, plan))

    def check() -> None:
        for request in platform.requests:
            if (
                request.opened_at is not None
                and at + 0.05 < request.plan.at
                and request.opened_at < world.now
            ):
                world.problem(f"{request.id} was admitted while PostgreSQL was away")

    world.push(at + 0.99 * away_s, check)


def _bill(platform: Platform, random: Random, chaos_s: float) -> None:
    """Invoice what a postpaid organisation owes, and let it pay a part: twice, while requests run."""
    for account in platform.server.model.accounts.values():
        if account.mode == "postpaid":
            for _ in range(2):
                book = _invoice_and_payment(platform, account.tenant, random.random())
                platform.world.push(random.uniform(0.0, chaos_s), book)


def _invoice_and_payment(platform: Platform, tenant: UUID, paid: float) -> Callable[[], None]:
    """The act that invoices all that is owed, and books the payment of the share `paid` of what is invoiced."""
    model = platform.server.model

    def book() -> None:
        if tenant in model.locked or platform.world.now < platform.server.down_until:
            return
        steps = (("invoice", "invoiced", "receivable", 1.0), ("payment", "cash", "invoiced", paid))
        for number, (kind, debit, credit, share) in enumerate(steps):
            account = model.accounts[tenant]
            amount = int((account.owed if kind == "invoice" else account.invoiced) * share)
            if amount > 0:
                source = UUID(int=model.now() << 8 | number)
                call = partial(model.book, kind, tenant, debit, credit, amount, source)
                platform.server.transaction(call, durable=True)
                platform.world.note(kind, amount)

    return book


def _arrival(platform: Platform, plan: Plan) -> Callable[[], None]:
    def arrive() -> None:
        living = platform.living
        if living:
            world = platform.world
            milliseconds = int((EPOCH_S + world.now) * 1000)
            bits = world.random.getrandbits(74)
            number = milliseconds << 80 | 7 << 76 | (bits >> 62) << 64 | 2 << 62 | bits & ((1 << 62) - 1)
            request = Request(UUID(int=number), plan, world.random.choice(living))
            platform.requests.append(request)
            request.process.accept(request)

    return arrive


def _recover(platform: Platform) -> None:
    """End all faults and let the platform come to rest: everything settled, then every hold reaped."""
    world, server, disk = platform.world, platform.server, platform.disk
    world.traps.clear()
    disk.fail_next.clear()
    server.fail_next.clear()
    server.model.locked.clear()
    disk.full, server.slow_s = False, 0.0
    server.frozen_until = min(server.frozen_until, world.now + 1.0)
    platform.reaper_rests_until = 0.0
    deadline = world.now + 400.0
    while not _settled(platform):
        world.run(world.now + 1.0)
        if world.now > deadline:
            world.problem("the platform does not come to rest")
            return
    # A pause of the reaper, the time to live, and the reaper's own interval.
    resting_at = world.now + 2 * platform.ttl_s + 3 * platform.reap_every_s
    while world.now < resting_at and any(one.state == "open" for one in server.model.holds.values()):
        world.run(world.now + platform.reap_every_s)


def _settled(platform: Platform) -> bool:
    """Whether a process lives, every request has ended, and no spool of a dead process is left."""
    if not platform.living or any(one.running or one.meter.backlog for one in platform.living):
        return False
    own = {f"/spool/{one.name}.spool" for one in platform.living}
    return not any(name.endswith(".spool") and name not in own for name in platform.disk.names)
