"""Protocols of the objects that the gateway uses.

The real classes (tenants.rates.RateLimiter, billing.metering.holds.HoldManager, billing.metering.meter.Meter,
scheduler.client.SchedulerClient, workers.models.ModelDirectory, api.customer.hotpath's replies) satisfy them
structurally; unit tests use fakes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar
from uuid import UUID

from billing.metering.records import Checkpoint, HoldGranted, HoldRequest, OpenRecord, UsageRecord
from scheduler.wire import Placement, PlaceRequest, Released
from tenants.principal import Principal

Headers = list[tuple[bytes, bytes]]


class Grant(Protocol):
    """A reservation of rates."""

    headers: Headers
    """The x-ratelimit-* headers for the answer."""


GrantT = TypeVar("GrantT", bound=Grant)


class Rates(Protocol[GrantT]):
    """Rate limits of key, project and tenant."""

    def check(self, principal: Principal) -> None:
        """Refuse a request before its body is read, from what this process knows. Raises RateLimited."""

    def known_headers(self, principal: Principal) -> Headers:
        """The x-ratelimit-* headers of an answer that refuses a request, from what this process knows."""

    def charge_invalid(self, principal: Principal) -> None:
        """Count a request that is refused before `acquire`."""

    async def acquire(
        self, request_id: str, principal: Principal, input_estimate: int, output_estimate: int
    ) -> GrantT:
        """Reserve one request and its estimated tokens. Raises RateLimited."""

    def settle(self, grant: GrantT, input_tokens: int, output_tokens: int) -> None:
        """Replace the estimates by the actual tokens and release the concurrency slot."""

    def refund(self, grant: GrantT) -> None:
        """Undo the reservation: the platform refused the request in a later step."""


class Holds(Protocol):
    """Money reserved for open requests."""

    async def place(self, request: HoldRequest) -> HoldGranted:
        """Reserve money. Raises PaymentRequired or one of its subclasses, or Unavailable."""

    async def extend(self, request_id: UUID, output_tokens: int) -> bool:
        """Cover `output_tokens` more output tokens; False when the money is used up.

        True while PostgreSQL is away: a running answer goes on, and its settlement charges what is available.
        """

    def void(self, request_id: UUID) -> None:
        """Release the hold of a request that was not admitted."""


class Metering(Protocol):
    """The durable record of admitted requests."""

    @property
    def ready(self) -> bool:
        """False when no more records can be written."""

    def open(self, record: OpenRecord) -> None:
        """Record an admitted request before it is dispatched; it gets a usage row from now on."""

    def checkpoint(self, record: Checkpoint) -> None:
        """Record the running counts of an open request."""

    def settle(self, record: UsageRecord) -> None:
        """Record the end of the request. Does not depend on PostgreSQL."""


class Scheduler(Protocol):
    """Placement of requests on replicas."""

    async def place(self, request: PlaceRequest) -> Placement:
        """Acquire a replica. Raises Refused."""

    def prefill_done(self, placement: Placement) -> None:
        """Report that the first token has arrived."""

    def progress(self, placement: Placement, output_tokens: int) -> None:
        """Report the output tokens so far."""

    def release(self, released: Released) -> None:
        """Release the placement and report its token counts."""


class Prices(Protocol):
    """Prices as this process knows them. What a request costs is decided by its hold."""

    def tiers(self, tenant_id: UUID, model: str, adapter: str = "") -> Collection[str]:
        """The tiers in which a model, or an adapter of it, has a price for an organisation now. Raises Unavailable."""


class Availability(Protocol):
    """Which models can be served."""

    def check(self, model: str) -> None:
        """Raise Refused when no replica will serve the model within the deadline of a request."""


class Model(Protocol):
    """The properties of a model that the gateway uses."""

    @property
    def name(self) -> str:
        """The canonical name, under which engines serve the model."""

    @property
    def context_len(self) -> int:
        """Context length: tokens of prompt and answer together."""

    @property
    def max_output_tokens(self) -> int:
        """Output tokens of an answer whose request has no max_tokens."""

    @property
    def capabilities(self) -> Collection[str]:
        """Such as chat, tools, json, reasoning, logprobs."""

    @property
    def embedding_dimensions(self) -> int:
        """Numbers of a vector; 0 = not known, or the model gives none."""

    @property
    def template_switches(self) -> Mapping[str, tuple[bool | int | str, ...]]:
        """Variables of the chat template that customers may set, and the values that each may have."""

    @property
    def tool_parser(self) -> str:
        """The engines' parser of tool calls, by vLLM's name; empty = none, or not known."""

    @property
    def wake_deadline_s(self) -> float | None:
        """Longest wait for a replica that wakes or is created; None = as the tier's setting says."""

    @property
    def adapter(self) -> str:
        """The LoRA adapter of the model that the request names, as engines know it; empty = none."""


class Models(Protocol):
    """The catalog of models that are offered."""

    def check_serving(self) -> None:
        """Raise Unavailable while no request may begin."""

    def resolve_for(self, name: str, tenant_id: UUID, allowed: Collection[str] | None = None) -> Model:
        """Return the model with this name or alias, or that of an organisation's adapter with this name.

        Raises ModelNotFound, ModelRetired of models among `allowed` (None = all), and Unavailable when the list is too
        old.
        """

    def largest_context(self, names: Collection[str] | None) -> int:
        """Return the largest context length, in tokens, of the models with these names; None = of all models."""


class ClientDisconnected(Exception):
    """The client has closed the connection. Never a failure of the engine: what was generated is billed."""


class Reply(Protocol):
    """The HTTP response to the client. Its methods raise ClientDisconnected when the connection is broken."""

    @property
    def started(self) -> bool:
        """Whether headers were sent. From then on errors can only be sent as events."""

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the client has not taken yet."""

    async def start(self, headers: Headers, prompt_tokens: int = 0) -> None:
        """Send status 200 and the headers of an event stream. `prompt_tokens`: as far as known, 0 = not yet."""

    def write(self, events: bytes) -> Awaitable[None]:
        """Send whole events. The result must be awaited; it takes as long as the client needs to read."""

    @property
    def write_now(self) -> Callable[[bytes], bool]:
        """Sends whole events without waiting; False, and nothing is sent, when only `write` can send them."""

    async def end(self, events: bytes) -> None:
        """Send the last events, end the response, and wait until the client has taken them."""

    async def respond(self, body: bytes, headers: Headers) -> None:
        """Send the whole answer of a request that is not streamed, with status 200; wait until it is taken."""

    def settled(self, record: UsageRecord) -> None:
        """Take the record by which the request is billed; what is left to be sent of its end may tell it."""


class EngineStream(Protocol):
    """The answer of an engine while it arrives."""

    async def read_into(self, sink: Callable[[bytes], bool]) -> bool:
        """Pass what arrives to `sink` until it returns False: True; or until the answer has ended: False.

        `sink` gets the bytes of one read at a time and runs in the event loop's callback: the task does not wake for
        them. What arrives between two calls of this method is kept. Raises EngineFailed when the connection breaks, and
        any error that `sink` raises.
        """

    def close(self) -> None:
        """Return the connection to the pool for the next request."""

    def abort(self) -> None:
        """Close the connection at once, so that the engine stops generating. A pending `read_into` ends or raises."""


class Engines(Protocol):
    """The HTTP client of engines."""

    async def open(
        self,
        base_url: str,
        path: str,
        body: bytes,
        headers: Iterable[tuple[str, str]],
        *,
        headers_timeout_s: float = 30.0,
        key: str = "",
        authority: bytes = b"",
    ) -> EngineStream:
        """POST `body` and wait for the headers, at most `headers_timeout_s` seconds. `key` is the engine's own, if it
        has one, and `authority` has signed its certificate; empty = a public one has, or there is none.

        Raises EngineFailed, or RefusedByEngine when the engine refuses the request itself.
        """
