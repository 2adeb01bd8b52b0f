"""What the gateway needs of the packages below it, as small protocols.

The real classes (tenants.rates.RateLimiter, billing.metering.holds.HoldManager, billing.metering.meter.Meter,
scheduler.client.SchedulerClient, workers.models.ModelDirectory, api.customer.hotpath's replies) satisfy them
structurally; unit tests pass fakes.
"""

from collections.abc import Awaitable, Collection, Iterable
from typing import Protocol, TypeVar
from uuid import UUID

from billing.metering.records import Checkpoint, HoldGranted, HoldRequest, OpenRecord, UsageRecord
from scheduler.wire import Placement, PlaceRequest, Released
from tenants.principal import Principal

Headers = list[tuple[bytes, bytes]]


class Grant(Protocol):
    """A rate reservation."""

    @property
    def headers(self) -> Headers:
        """The x-ratelimit-* headers of the answer."""


GrantT = TypeVar("GrantT", bound=Grant)


class Rates(Protocol[GrantT]):
    """Limits of key, project and tenant."""

    async def acquire(
        self, request_id: str, principal: Principal, input_estimate: int, output_estimate: int
    ) -> GrantT:
        """Reserve a request and its estimated tokens. Raises RateLimited."""

    def settle(self, grant: GrantT, input_tokens: int, output_tokens: int) -> None:
        """Correct the estimate and give back the place among concurrent requests."""

    def refund(self, grant: GrantT) -> None:
        """The request was refused after all: it counts for nothing."""


class Holds(Protocol):
    """Money reserved for open requests."""

    async def place(self, request: HoldRequest) -> HoldGranted:
        """Reserve. Raises PaymentRequired and its kinds, or Unavailable."""

    async def extend(self, request_id: UUID, output_tokens: int) -> bool:
        """Cover so many more output tokens; False when the money is used up.

        True while PostgreSQL is away: a running answer goes on, and its settlement charges what is available.
        """

    def void(self, request_id: UUID) -> None:
        """Give the reservation back: nothing was admitted."""


class Metering(Protocol):
    """Durable record of admitted requests."""

    @property
    def ready(self) -> bool:
        """False when nothing more can be recorded."""

    def open(self, record: OpenRecord) -> None:
        """Before dispatch: from here on there will be a usage row."""

    def checkpoint(self, record: Checkpoint) -> None:
        """Running counts."""

    def settle(self, record: UsageRecord) -> None:
        """The end of the request; never raises because PostgreSQL is away."""


class Scheduler(Protocol):
    """The scheduler, as requests see it."""

    async def place(self, request: PlaceRequest) -> Placement:
        """A replica. Raises Refused."""

    def prefill_done(self, placement: Placement) -> None:
        """The first token was seen."""

    def progress(self, placement: Placement, output_tokens: int) -> None:
        """Output tokens so far."""

    def release(self, released: Released) -> None:
        """The placement is over."""


class Model(Protocol):
    """What the gateway needs to know of a model."""

    @property
    def name(self) -> str:
        """The canonical name, which engines serve it under."""

    @property
    def context_len(self) -> int:
        """Tokens of prompt and answer together."""

    @property
    def max_output_tokens(self) -> int:
        """Where an answer ends that no max_tokens bounds."""

    @property
    def capabilities(self) -> Collection[str]:
        """Such as `chat`, `tools`, `json_schema`, `reasoning`."""


class Models(Protocol):
    """The catalogue of live models."""

    def resolve(self, name: str) -> Model:
        """By name or alias. Raises ModelNotFound."""


class Reply(Protocol):
    """The HTTP response to the client."""

    @property
    def started(self) -> bool:
        """Headers have gone out: errors can only be events from now on."""

    async def start(self, headers: Headers) -> None:
        """Begin a stream of events."""

    def write(self, events: bytes) -> Awaitable[None]:
        """Send whole events. The result must be awaited; it takes as long as the client needs to read."""

    async def end(self, events: bytes) -> None:
        """Send the last events and finish."""

    async def respond(self, body: bytes, headers: Headers) -> None:
        """Answer a request that is not streamed."""


class EngineStream(Protocol):
    """One open answer of an engine."""

    async def read(self) -> bytes:
        """What has arrived; empty at the end. Raises EngineFailed."""

    def close(self) -> None:
        """Finished: the connection may serve the next request. Before the end, the same as abort."""

    def abort(self) -> None:
        """Close the connection at once: the engine stops generating. Wakes a pending read."""


class Engines(Protocol):
    """The engine client behind one seam."""

    async def open(
        self, base_url: str, path: str, body: bytes, headers: Iterable[tuple[str, str]]
    ) -> EngineStream:
        """Send a request. Raises EngineFailed, or InvalidRequest when the engine finds fault with the request."""
