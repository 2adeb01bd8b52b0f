"""The services of an API process, built once from the settings."""

import random
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID

from prometheus_client import REGISTRY, CollectorRegistry

from api.customer.background import BackgroundResponses
from api.customer.prices import PriceBook
from api.customer.response_stream import ResponseStreams
from api.pools import Pools
from billing.metering.holds import HoldManager
from billing.metering.meter import Meter
from billing.metering.tokens_today import tokens_today
from core.clock import Clock, SystemClock
from core.db import Database
from core.ids import incarnation
from core.redis import connect
from core.settings import Settings
from core.supervise import FAILING
from gateway.admission import Admission
from gateway.dialects.responses.events import ResponseEvents
from gateway.dialects.responses.running import RunningResponses
from gateway.dialects.responses.store import ResponseStore
from gateway.director import Director
from gateway.engine import HttpEngines
from gateway.estimate import Estimator
from gateway.open_requests import OpenRequests
from gateway.parsing.parser import BodyParser
from gateway.relay import Relay
from gateway.sandbox import Sandbox
from gateway.service_tier import TIERS
from gateway.settle import Settlement
from gateway.telemetry import Telemetry
from gateway.time_budget import EngineActivity
from gateway.token_counts import TokenCounts
from gateway.tokenization.hasher import BlockMetrics, TokenBlockHasher
from gateway.tokenization.model_tokenizer import PromptTokenizer
from gateway.whole import WholeAnswers
from scheduler.authority import trusted
from scheduler.availability import Availability
from scheduler.client import SchedulerClient
from scheduler.client_tls import ClientTls
from tenants.keys import KeyRing
from tenants.rates import RateGrant, RateLimiter
from workers.catalog import load_catalog
from workers.models import ModelDirectory
from workers.tokenizer_files import tokenizer_directory


class Deps:
    """The services of an API process; `start` starts them in order of dependency, `close` closes them in reverse.

    `simulated_tokenizer` tokenizes prompts as simulated engines do; without it they are matched as text.
    """

    def __init__(
        self,
        settings: Settings,
        registry: CollectorRegistry = REGISTRY,
        simulated_tokenizer: PromptTokenizer | None = None,
    ) -> None:
        clock = SystemClock()
        name = incarnation("api")
        pepper = settings.key_pepper.get_secret_value().encode()
        self.settings = settings
        self.pools = Pools(settings.database_url)
        self.redis = connect(settings.redis_url)
        self.keys = KeyRing(self.pools.keys, self.pools.key_feed, self.redis, pepper, clock)
        self.rates = RateLimiter(
            self.redis, clock, lambda tenant_id, day: tokens_today(self.pools.models, tenant_id, day)
        )
        self.holds = HoldManager(settings.database_url, name, ttl_s=settings.hold_ttl_s, clock=clock)
        self.meter = Meter(
            settings.database_url, settings.data_dir / "spool", name, on_settled=self.holds.stop_renewing
        )
        self.models = ModelDirectory(
            self.pools.models, load_catalog(), max_age_s=settings.catalog_max_age_s, today=clock.now
        )
        self.prices = PriceBook(
            self.pools.models, settings.catalog_max_age_s, now=clock.monotonic, today=clock.now
        )
        self.scheduler = _scheduler_client(settings, clock, self.pools.models)
        usual_s = max(settings.queue_deadline_s, *map(settings.wake_deadline_of, TIERS))

        def longest_s(model: str) -> float:
            own_s = self.models.wake_deadline_s(model)
            return usual_s if own_s is None else max(settings.queue_deadline_s, own_s)

        self.availability = Availability(self.scheduler.snapshot, longest_s)
        self.prompts = self._hasher(settings, registry, simulated_tokenizer)
        self.engines = HttpEngines(settings.engine_key.get_secret_value())
        self.telemetry = Telemetry(registry)
        self.parser = BodyParser(self.models)
        self.responses = ResponseStore(self.pools.responses, settings.responses_kept_days)
        self.whole = WholeAnswers(self.scheduler, self.scheduler.snapshot, self.prompts)
        self.open_requests = OpenRequests(
            self.meter,
            self.scheduler,
            self.whole,
            time.monotonic,
            activity=EngineActivity(self.scheduler.snapshot),
            max_answer_bytes=settings.request_memory_mb * 2**19,
        )
        self.sandbox = Sandbox(self.models, self.rates)
        self.counts = TokenCounts(
            self.models, self.rates, self.prompts, self.sandbox, self.scheduler.snapshot
        )
        self.telemetry.track_open_requests(lambda: len(self.open_requests))
        self.director = self._director(settings)
        self.running = RunningResponses(
            self.pools.responses, settings.responses_kept_days, settings.background_per_project
        )
        self.events = ResponseEvents(self.redis)
        self.streams = ResponseStreams(self.responses, self.events)
        self.background = self._background(settings)
        self._leaving = False
        self.keys.on_revoked(self._revoked)
        self._services = (
            self.keys,
            self.models,
            self.prices,
            self.rates,
            self.holds,
            self.meter,
            self.engines,
            self.scheduler,
            self.prompts,
            self.parser,
            self.open_requests,
            self.background,
        )

    def _hasher(
        self,
        settings: Settings,
        registry: CollectorRegistry,
        simulated: PromptTokenizer | None,
    ) -> TokenBlockHasher:
        def find(model: str) -> Path:
            return tokenizer_directory(model, self.models.catalog, settings.data_dir, settings.tokenizer_dir)

        return TokenBlockHasher(
            self.scheduler.snapshot,
            find,
            metrics=BlockMetrics(registry),
            now=time.perf_counter,
            today=lambda: datetime.now(UTC),
            simulated=simulated,
        )

    def _background(self, settings: Settings) -> BackgroundResponses:
        return BackgroundResponses(
            self.director,
            self.open_requests,
            self.running,
            self.events,
            self.telemetry,
            available=settings.responses_kept_days > 0 and settings.background_per_project > 0,
            drain_s=settings.drain_s,
        )

    def _director(self, settings: Settings) -> Director[RateGrant]:
        now, estimator = time.monotonic, Estimator()
        admission = Admission(
            models=self.models,
            prices=self.prices,
            rates=self.rates,
            holds=self.holds,
            scheduler=self.scheduler,
            availability=self.availability,
            prompts=self.prompts,
            meter=self.meter,
            estimator=estimator,
            now=now,
            region=settings.region,
            queue_deadline_s=settings.queue_deadline_s,
            wake_deadline_s=settings.wake_deadline_of,
        )
        settlement = Settlement(
            rates=self.rates,
            holds=self.holds,
            scheduler=self.scheduler,
            meter=self.meter,
            estimator=estimator,
            telemetry=self.telemetry,
            now=now,
        )
        relay = Relay(self.engines, self.scheduler, self.holds, self.whole, now)
        return Director(admission, relay, self.sandbox, settlement, self.open_requests, self.telemetry, now)

    def _revoked(self, key_ids: frozenset[UUID]) -> None:
        self.open_requests.abort_keys(key_ids)
        self.streams.abort_keys(key_ids)

    async def start(self) -> None:
        """Start all services."""
        for part in self._services:
            await part.start()

    async def close(self) -> None:
        """Close all services: the meter sends what was settled, and the remaining holds are voided."""
        for part in reversed(self._services):
            await part.close()
        await self.responses.close()
        await self.redis.aclose()
        await self.pools.close()

    def leave(self) -> None:
        """Fail the readiness check from now on: the process will accept no more connections."""
        self._leaving = True

    def checks(self) -> dict[str, bool]:
        """Whether each service that admission needs is available, by name; `task NAME` is one that keeps failing."""
        return {
            "accepting": not self._leaving,
            "billing": self.holds.connected,
            "usage_spool": self.meter.ready,
            "scheduler": self.scheduler.can_place,
            "models": bool(self.models.list()) and self.models.fresh,
            **{f"task {name}": False for name in FAILING.names()},
        }


def _scheduler_client(settings: Settings, clock: Clock, database: Database) -> SchedulerClient:
    return SchedulerClient(
        settings.scheduler_addresses,
        settings.internal_token.get_secret_value(),
        name="api",
        clock=clock,
        rng=random.Random(),  # noqa: S311 - spreads load, keeps no secret
        takes_keys=True,
        tls=ClientTls(settings.scheduler_tls, partial(trusted, database, settings)),
    )
