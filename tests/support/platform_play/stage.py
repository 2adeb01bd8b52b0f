"""The stage of the play: a real database and a local Stripe on one time, the product's jobs, the model beside them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from pydantic import SecretStr
from sqlalchemy import text

from admin import keys as admin_keys
from admin import projects as admin_projects
from admin import tenants as admin_tenants
from admin.actor import Actor, system_actor
from billing.metering.records import Outcome, UsageRecord
from billing.payments.customers import ensure_customer, refresh_cards
from billing.payments.stripe_gateway import open_gateway
from core.db import Database
from core.ids import derived_uuid
from core.settings import Settings
from jobs.work import schedule
from tests.support.platform_play.engines import Engine, Tally
from tests.support.platform_play.model import Account
from tests.support.platform_play.prices import Book
from tests.support.platform_play.processes import ApiProcess
from tests.support.platform_play.timeline import ShiftedClock, Timeline, utc
from tests.support.platform_play.traffic import MAX_SECONDS, Person, Request, Traffic, after, month_of
from tests.support.platform_play.webhooks import endpoint
from tests.support.stripe_sim import FakeStripe, running
from tests.support.tenancy import PEPPER
from tests.support.virtual_time import VirtualClock
from tests.support.waiting import until

PLATFORM = system_actor("play")
ANN = Actor(kind="user", id=str(UUID(int=1)), label="ann@example.com", role="platform_admin")
BOB = Actor(kind="user", id=str(UUID(int=2)), label="bob@example.com", role="platform_admin")
MODELS = ("delta-moe", "lake-70b", "river-7b")
START = utc(2026, 12, 31, 12)
MONTHS = (date(2027, 1, 1), date(2027, 2, 1), date(2027, 3, 1))
WAVE = 40
"""Requests that run at once."""


class Stage:
    """Everything that the play's acts use."""

    def __init__(
        self, url: str, folder: Path, database: Database, stripe: FakeStripe, time: Timeline, seed: int
    ) -> None:
        self.url, self.folder, self.database, self.stripe, self.time = url, folder, database, stripe, time
        self.settings = Settings(
            DATABASE_URL=url,
            STRIPE_API_KEY=SecretStr(stripe.api_key),
            stripe_base_url=stripe.url,
            data_dir=folder,
            key_pepper=SecretStr(PEPPER.decode()),
            hold_ttl_s=60.0,
        )
        self.tally = Tally()
        self.book = Book()
        self.engines = {model: Engine(model, self.tally) for model in MODELS}
        self.traffic = Traffic(seed, self.book, self.engines)
        self.people: dict[str, Person] = {}
        self.topups: dict[str, tuple[int, int]] = {}
        """Automatic top-up by customer: threshold in picodollars, cents."""
        self.dead = self.processes = 0
        self.paying: set[str] = set()
        """Postpaid customers whose saved card is good."""
        self.answers: dict[date, list[int]] = {}
        """Microseconds to the first token of elm's answers, by month."""
        self.host = folder / "host-a"
        self.webhook = ""

    # -- people ----------------------------------------------------------------------------------------------------

    async def join(self, name: str, mode: Any) -> Person:
        """A customer with a project and a key."""
        tenant = await admin_tenants.create_tenant(self.database, ANN, name=name, billing_mode=mode)
        (project,) = await admin_projects.list_projects(self.database, ANN, tenant_id=tenant.id)
        key = await admin_keys.create_key(
            self.database, ANN, pepper=PEPPER, tenant_id=tenant.id, project_id=project.id, name="k"
        )
        person = Person(tenant.id, project.id, key.view.id, Account(name, mode))
        self.people[name] = person
        return person

    def account(self, name: str) -> Account:
        """A customer's account in the model."""
        return self.people[name].account

    async def save_card(self, name: str, card: str) -> None:
        """Save a card, in the place of the one before."""
        async with open_gateway(self.settings) as gateway:
            customer = await ensure_customer(self.database, gateway, self.people[name].tenant_id)
            payment_methods = self.stripe.client().v1.payment_methods
            for old in await gateway.cards(customer):
                await asyncio.to_thread(payment_methods.detach, old.id)
            await asyncio.to_thread(payment_methods.attach, card, {"customer": customer})
            await refresh_cards(self.database, gateway, customer)

    def hand_id(self, who: str, what: str) -> UUID:
        """The id that a person's form gave to an act."""
        return derived_uuid("play", who, what)

    # -- time and jobs ---------------------------------------------------------------------------------------------

    async def jobs(self, *, twice: bool = True) -> None:
        """Every job of the platform, each of them twice; then the books must be the model's."""
        now = self.time.now()
        for account in self.accounts():
            account.expire(now)
        for _ in range(2 if twice else 1):
            self._top_up_in_the_model()
        for job in schedule(self.settings):
            for _ in range(2 if twice else 1):
                await job.work(self.database, self.settings)
        await self.settle_with_stripe()
        await self.agree()

    async def settle_with_stripe(self) -> None:
        """Deliver what webhooks wait, and run the jobs of payments until nothing is left to apply."""
        await asyncio.to_thread(self.stripe.flush)
        names = ("penstock.stripe_missed", "penstock.stripe_events", "penstock.stripe_send")
        works = {job.name: job.work for job in schedule(self.settings)}
        for _ in range(20):
            done = 0
            for name in names:
                done += await works[name](self.database, self.settings)
            if not done:
                return
        raise AssertionError("Stripe and the books never come to rest")

    def _top_up_in_the_model(self) -> None:
        for name, (threshold, paid) in self.topups.items():
            account = self.account(name)
            if account.balance - account.held < threshold:
                account.bought(f"auto-{len(account.lots)}", paid)

    def accounts(self) -> list[Account]:
        """All accounts of the model."""
        return [person.account for person in self.people.values()]

    async def rows(self, sql: str, **values: Any) -> list[Any]:
        """What a query of the platform returns."""
        async with self.database.system() as connection:
            return list(await connection.execute(text(sql), values))

    async def one(self, sql: str, **values: Any) -> Any:
        """The only value of a query."""
        ((value,),) = await self.rows(sql, **values)
        return value

    async def agree(self) -> None:
        """Every account of every customer's ledger holds what the model says."""
        found: dict[UUID, dict[str, int]] = {}
        for row in await self.rows("SELECT tenant_id, code, debit - credit AS net FROM ledger_balances"):
            if row.net:
                found.setdefault(row.tenant_id, {})[row.code] = int(row.net)
        for name, person in self.people.items():
            wanted = {code: net for code, net in person.account.ledger.items() if net}
            assert found.get(person.tenant_id, {}) == wanted, f"the books of {name} at {self.time.now()}"
        lots = await self.rows("SELECT tenant_id, sum(remaining) AS left FROM credit_grants GROUP BY 1")
        for row in lots:
            (person,) = (one for one in self.people.values() if one.tenant_id == row.tenant_id)
            assert sum(lot.remaining for lot in person.account.lots) == person.account.balance
            assert row.left >= person.account.balance

    # -- traffic ---------------------------------------------------------------------------------------------------

    async def report_engines(self, *, still: bool = False) -> None:
        """A heartbeat of every engine."""
        for engine in self.engines.values():
            await engine.report(self.database, still=still)

    @asynccontextmanager
    async def process(self, host: Path | None = None) -> AsyncIterator[ApiProcess]:
        """A living API process that has adopted the dead ones' spools of its host."""
        self.processes += 1
        async with ApiProcess(self.url, host or self.host, f"api-{self.processes}") as living:
            await living.adopted()
            yield living

    def draw(self, count: int, names: Sequence[str] = ()) -> list[Request]:
        """Requests of customers who may ask and can pay."""
        asking = [
            person
            for name, person in self.people.items()
            if not person.suspended and name != "iris" and (not names or name in names)
        ]
        drawn = [self.traffic.draw(self.traffic.rng.choice(asking), self.time.now()) for _ in range(count)]
        return [one for one in drawn if one is not None]

    async def serve(self, waves: int = 2, names: Sequence[str] = ()) -> None:
        """Waves of requests from hold to ledger, while engines report."""
        await self.report_engines()
        async with self.process() as living:
            for _ in range(waves):
                await self.wave(living, self.draw(WAVE, names))
        await self.report_engines(still=True)

    async def wave(self, living: ApiProcess, requests: list[Request]) -> list[UsageRecord]:
        """Requests that run at the same time; some records are handed in twice."""
        granted = await living.place([one.asked for one in requests])
        opened = [self.traffic.opened(one, hold) for one, hold in zip(requests, granted, strict=True)]
        for record in opened:
            living.meter.open(record)
        await self.time.later(seconds=MAX_SECONDS + 5)
        records = []
        for request, record in zip(requests, opened, strict=True):
            end = self.traffic.ended(request, record)
            ended_at = after(record.admitted_at, end)
            self.traffic.bill(request, request.usage, ended_at, self.time.now(), free=end.outcome.free)
            self._note_answer(request, end, ended_at)
            living.meter.settle(end)
            if self.traffic.rng.random() < 0.1:
                living.meter.settle(end)
            records.append(end)
        await until(lambda: living.meter.backlog == 0, timeout_s=60)
        return records

    def _note_answer(self, request: Request, end: UsageRecord, ended_at: datetime) -> None:
        answered = (Outcome.COMPLETED, Outcome.LENGTH, Outcome.BUDGET_STOPPED)
        if request.person.account.name == "elm" and end.outcome in answered and end.ttft_us:
            self.answers.setdefault(month_of(ended_at), []).append(end.ttft_us)

    async def outcomes(self) -> dict[str, int]:
        """Usage rows by outcome."""
        rows = await self.rows("SELECT outcome, count(*) AS n FROM usage GROUP BY 1")
        assert {row.outcome for row in rows} <= {one.value for one in Outcome}
        return {row.outcome: row.n for row in rows}


async def make_partitions(url: str) -> None:
    """Holds and usage of the play's months have their partitions, as the job would have made them then."""
    owner = await asyncpg.connect(url)
    try:
        for parent in ("holds", "usage_rows"):
            for month in (
                utc(2026, 12, 1),
                utc(2027, 1, 1),
                utc(2027, 2, 1),
                utc(2027, 3, 1),
                utc(2027, 4, 1),
            ):
                await owner.execute("SELECT penstock_make_partition($1, $2)", parent, month)
    finally:
        await owner.close()


@asynccontextmanager
async def stage(url: str, folder: Path, seed: int) -> AsyncIterator[Stage]:
    """An empty platform at noon of the last day of 2026."""
    clock = ShiftedClock(START)
    virtual = VirtualClock(url)
    await make_partitions(url)
    await virtual.install()
    await virtual.set(START)
    database = Database(url)
    with running(clock) as stripe:
        made = Stage(url, folder, database, stripe, Timeline(virtual, clock, stripe), seed)
        try:
            async with endpoint(database, clock) as made.webhook:
                stripe.send_webhooks(made.webhook)
                yield made
        finally:
            await database.close()
