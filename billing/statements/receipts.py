"""The receipt of one request: tokens, prices, cost, an explanation of the cost, and its ledger transfers."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.statements.signing import format_instant
from core.errors import NotFound
from core.ids import uuid7_unix_ms
from core.money import pico_per_token_to_per_mtok, pico_to_usd

TYPE = "penstock.receipt"
_REASONS = {
    "completed": "It ran to its end: every token at the price of its class, as pinned at admission.",
    "length": "It ended at the length that was asked for: every token at the price of its class.",
    "budget_stopped": "It was ended because the budget or credit was used up; what was delivered is charged.",
    "client_cancelled": "The client went away; what the engine had done until then is charged.",
    "interrupted": "Our process ended; the prompt is charged, and of a stream what was sent.",
    "engine_failed": "The engine failed, so it costs nothing; the tokens are recorded.",
    "zero_output": "Nothing was answered, so it costs nothing; the tokens are recorded.",
}

_USAGE = text(
    "SELECT u.*, u.outcome::text AS ended_as, p.name AS project, k.last4, "
    "v.input AS input_price, v.cached_input AS cached_input_price, v.output AS output_price, "
    "v.reasoning AS reasoning_price, (SELECT n.value FROM label_values n WHERE n.id = b.user_value) AS end_user, "
    "(SELECT jsonb_object_agg(n.name, n.value) FROM label_values n WHERE n.id = ANY (b.tag_values)) AS tags "
    "FROM usage u JOIN price_versions v ON v.id = u.price_version "
    "LEFT JOIN usage_labels b ON b.request_id = u.request_id "
    "LEFT JOIN projects p ON p.id = u.project_id LEFT JOIN api_keys k ON k.id = u.key_id "
    "WHERE u.request_id = :request AND u.tenant_id = :tenant "
    "AND u.project_id = coalesce(CAST(:project AS uuid), u.project_id)"
)
_BOOKED = text(
    "SELECT t.id, t.kind, t.amount, t.effective_at, d.code AS debit, c.code AS credit, coalesce("
    "(SELECT s.seq FROM ledger_seals s WHERE s.transfer_id = t.id), "
    "(SELECT min(s.seq) FROM ledger_seals s WHERE s.transfers @> t.id)) AS seal "
    "FROM ledger_transfers t JOIN ledger_accounts d ON d.id = t.debit_account "
    "JOIN ledger_accounts c ON c.id = t.credit_account "
    "WHERE t.source_id = :request AND t.tenant_id = :tenant ORDER BY t.id"
)


async def receipt_body(
    connection: AsyncConnection, tenant_id: UUID, request_id: UUID, *, project_id: UUID | None = None
) -> dict[str, Any]:
    """The receipt of a request of an organisation, or of one of its projects. Raises NotFound when it has no settled
    request of this id.

    For an id that is only minutes old, the message says that the request may not be settled yet.
    """
    bound = {"request": request_id, "tenant": tenant_id}
    row = await _usage(connection, tenant_id, request_id, project_id)
    free = row.ended_as in ("engine_failed", "zero_output")
    return {
        "type": TYPE,
        "version": 1,
        "currency": "USD",
        "request_id": str(request_id),
        "tenant_id": str(tenant_id),
        "project": {"id": str(row.project_id), "name": row.project or ""},
        "key_last4": row.last4 or "",
        "model": row.model,
        "tier": row.tier,
        "region": row.region,
        "gpu": row.gpu or None,
        "simulated": row.simulated,
        "admitted_at": format_instant(row.admitted_at),
        "ended_at": format_instant(row.ended_at),
        "settled_at": format_instant(row.settled_at),
        "queue_us": str(row.queue_us),
        "ttft_us": str(row.ttft_us),
        "duration_us": str(row.duration_us),
        "outcome": row.ended_as,
        "price_version": row.price_version,
        "list_price_version": row.list_price_version,
        "classes": [_line(row, name, tokens, free) for name, tokens in _tokens(row).items() if tokens],
        "cost_usd": pico_to_usd(int(row.cost)),
        "list_cost_usd": pico_to_usd(int(row.list_cost)),
        "why": _explanation(row),
        "ledger": [_booking(one) for one in await connection.execute(_BOOKED, bound)],
    }


async def generation_body(
    connection: AsyncConnection, tenant_id: UUID, request_id: UUID, *, project_id: UUID
) -> dict[str, Any]:
    """A settled request of a project, for programs: counts and microseconds as numbers, dollars exact as text.

    `prefill_us` is what the first token took beyond the queue. Raises NotFound as `receipt_body` does.
    """
    row = await _usage(connection, tenant_id, request_id, project_id)
    return {
        "object": "generation",
        "id": str(request_id),
        "model": row.model,
        "service_tier": row.tier,
        "region": row.region,
        "gpu": row.gpu or None,
        "stream": row.stream,
        "attempts": row.attempts,
        "outcome": row.ended_as,
        "end_user": row.end_user,
        "tags": row.tags or {},
        "tokens": _tokens(row),
        "unbilled_tokens": {"input": row.unbilled_input_tokens, "output": row.unbilled_output_tokens},
        "cost_usd": pico_to_usd(int(row.cost)),
        "list_cost_usd": pico_to_usd(int(row.list_cost)),
        "price_version": row.price_version,
        "list_price_version": row.list_price_version,
        "admitted_at": format_instant(row.admitted_at),
        "ended_at": format_instant(row.ended_at),
        "queue_us": row.queue_us,
        "prefill_us": max(row.ttft_us - row.queue_us, 0),
        "first_token_us": row.ttft_us,
        "total_us": row.duration_us,
    }


async def _usage(
    connection: AsyncConnection, tenant_id: UUID, request_id: UUID, project_id: UUID | None
) -> Row[Any]:
    """The request's usage with its prices. Raises NotFound."""
    bound = {"request": request_id, "tenant": tenant_id, "project": project_id}
    row = (await connection.execute(_USAGE, bound)).one_or_none()
    if row is None:
        hint = (
            " It began a moment ago and may still run: ask again shortly." if _is_recent(request_id) else ""
        )
        raise NotFound(f"There is no settled request with the id {request_id}.{hint}", param="id")
    return row


def _is_recent(request_id: UUID) -> bool:
    """Whether the id is a UUIDv7 of the last ten minutes."""
    if request_id.version != 7:
        return False
    age = datetime.now(UTC).timestamp() * 1000 - uuid7_unix_ms(request_id)
    return 0 <= age <= timedelta(minutes=10).total_seconds() * 1000


def _tokens(row: Row[Any]) -> dict[str, int]:
    """Tokens by disjoint class: input without cached input, output without reasoning."""
    return {
        "input": row.input_tokens - row.cached_input_tokens,
        "cached_input": row.cached_input_tokens,
        "output": row.output_tokens - row.reasoning_tokens,
        "reasoning": row.reasoning_tokens,
    }


def _line(row: Row[Any], name: str, tokens: int, free: bool) -> dict[str, str]:
    price = int(row._mapping[f"{name}_price"])
    return {
        "class": name,
        "tokens": str(tokens),
        "price_per_mtok_usd": pico_per_token_to_per_mtok(price),
        "cost_usd": pico_to_usd(0 if free else tokens * price),
    }


def _booking(row: Row[Any]) -> dict[str, Any]:
    """A ledger transfer with the sequence number of its seal (null = not sealed yet)."""
    return {
        "transfer": str(row.id),
        "kind": row.kind,
        "debit": row.debit,
        "credit": row.credit,
        "amount_usd": pico_to_usd(int(row.amount)),
        "at": format_instant(row.effective_at),
        "seal": None if row.seal is None else str(row.seal),
    }


def _explanation(row: Row[Any]) -> str:
    """A sentence on the cost by outcome, and one for each discount that applied."""
    sentences = [_REASONS[row.ended_as]]
    saved = int(row.list_cost) - int(row.cost)
    if saved > 0:
        sentences.append(f"Your contract saves ${pico_to_usd(saved)} against the list.")
    if row.cached_input_tokens and row.cost:
        sentences.append(
            f"{row.cached_input_tokens} of {row.input_tokens} input tokens were cached, at the lower price."
        )
    if row.unbilled_input_tokens or row.unbilled_output_tokens:
        sentences.append("Tokens of failed earlier attempts are not charged.")
    return " ".join(sentences)
