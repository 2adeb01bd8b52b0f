"""Usage and costs of one organisation in the format of OpenAI's organization endpoints (OpenAPI 2.3.0).

Buckets are whole UTC minutes, hours or days, including the whole bucket of `start_time`. Tokens are billed tokens;
`num_model_requests` counts all requests. `user_id` is the end user that requests name (`safety_identifier` or `user`),
null where they name none. Beyond OpenAI's parameters, costs take `user_id` and `user_ids` too, and both endpoints group
by tags (`group_by=tag_team`), which are then members of the results. `line_item` is `MODEL, CLASS tokens`; adjustments
and shortfalls of committed spend are the line item `adjustments`, which a filter by project, key or user omits. Amounts
are exact JSON numbers.
"""

import base64
import binascii
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.reports.books import booked_amounts
from billing.usage.query import MAX_TAGS, ReportQuery, is_tag
from billing.usage.sums import HOURLY_SUMS, tag_column, with_labels
from core.errors import InvalidRequest
from core.money import pico_to_usd

BucketWidth = Literal["1m", "1h", "1d"]
_WIDTHS = {"1m": timedelta(minutes=1), "1h": timedelta(hours=1), "1d": timedelta(days=1)}
_LIMITS = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
"""Default and largest number of buckets per page, by width, as OpenAI's."""
_COST_LIMITS = (7, 180)
"""Default and largest number of buckets per page of costs, as OpenAI's."""
MAX_VALUES = 100
"""Values of one filter."""
_USAGE_GROUPS = {
    "project_id": "project_id::text",
    "user_id": "end_user",
    "api_key_id": "key_id::text",
    "model": "model",
    "batch": "tier = 'batch'",
    "service_tier": "tier",
}
_COST_GROUPS = ("project_id", "line_item", "api_key_id")
_COST_LABEL_GROUPS = (*_COST_GROUPS, "user_id")
_USAGE_ROWS = """
    usage_sums AS (
        SELECT u.ended_at AS hour, u.project_id, u.key_id, u.model, u.tier, u.tenant_id, 1 AS requests,
            CASE WHEN f.free THEN 0 ELSE u.input_tokens END AS input_tokens,
            CASE WHEN f.free THEN 0 ELSE u.cached_input_tokens END AS cached_input_tokens,
            CASE WHEN f.free THEN 0 ELSE u.output_tokens END AS output_tokens,
            (SELECT v.value FROM label_values v WHERE v.id = l.user_value) AS end_user,
            (SELECT jsonb_object_agg(v.name, v.value) FROM label_values v WHERE v.id = ANY (l.tag_values)) AS tags
        FROM usage u LEFT JOIN usage_labels l ON l.request_id = u.request_id,
            LATERAL (SELECT u.outcome IN ('engine_failed', 'zero_output') AS free) f
        WHERE u.tenant_id = :tenant AND u.ended_at >= :start AND u.ended_at < :end)
"""
_FILTER = """
    tenant_id = :tenant AND (CAST(:projects AS text[]) IS NULL OR project_id::text = ANY(:projects))
    AND (CAST(:keys AS text[]) IS NULL OR key_id::text = ANY(:keys))
    AND (CAST(:models AS text[]) IS NULL OR model = ANY(:models))
    AND (CAST(:batch AS boolean) IS NULL OR (tier = 'batch') = :batch)
"""
_OF_USERS = " AND end_user = ANY(:users)"


class UsageQuery(msgspec.Struct, frozen=True):
    """The query of either endpoint, [start, end) in UTC; fields are OpenAI's parameters."""

    start: datetime
    end: datetime
    width: BucketWidth = "1d"
    project_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    api_key_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    batch: bool | None = None
    group_by: tuple[str, ...] = ()
    limit: int | None = None
    page: str | None = None


async def completions_usage(
    connection: AsyncConnection, tenant_id: UUID, query: UsageQuery
) -> dict[str, Any]:
    """A page of `organization.usage.completions.result` buckets. Raises InvalidRequest for an invalid query."""
    if query.width not in _WIDTHS:
        raise InvalidRequest(
            f"bucket_width must be 1m, 1h or 1d, not {query.width[:20]!r}", param="bucket_width"
        )
    _check(query, _USAGE_GROUPS)
    buckets = _buckets(query, *_LIMITS[query.width])
    groups = [f'{_USAGE_GROUPS.get(name) or tag_column(name)} AS "by_{name}"' for name in query.group_by]
    unit = {"1m": "minute", "1h": "hour", "1d": "day"}[query.width]
    source = _USAGE_ROWS if query.width == "1m" else _hourly(query)
    statement = f"""
        WITH {source}
        SELECT {", ".join([f"date_trunc('{unit}', hour, 'UTC') AS at", *groups])},
            sum(requests) AS requests, sum(input_tokens) AS input_tokens,
            sum(cached_input_tokens) AS cached_input_tokens, sum(output_tokens) AS output_tokens
        FROM usage_sums WHERE {_filter(query)}
        GROUP BY {_column_numbers(1 + len(groups))} HAVING sum(requests) <> 0
        ORDER BY {_column_numbers(1 + len(groups))}
    """  # noqa: S608 - names from the tables above; values are bound
    results: dict[datetime, list[dict[str, Any]]] = defaultdict(list)
    for row in await connection.execute(text(statement), _bound(tenant_id, query, buckets)):
        results[row.at].append(_usage_result(row, query.group_by))
    return _page(query, buckets, results)


async def costs(connection: AsyncConnection, tenant_id: UUID, query: UsageQuery) -> dict[str, Any]:
    """A page of `organization.costs.result` buckets by day. Raises InvalidRequest for an invalid query."""
    if query.width != "1d":
        raise InvalidRequest(f"bucket_width must be 1d, not {query.width[:20]!r}", param="bucket_width")
    _check(query, dict.fromkeys(_COST_LABEL_GROUPS, ""))
    buckets = _buckets(query, *_COST_LIMITS)
    labels = [
        f'{"end_user" if name == "user_id" else tag_column(name)} AS "{name}"'
        for name in query.group_by
        if name not in _COST_GROUPS
    ]
    statement = f"""
        WITH {_hourly(query)}
        SELECT {", ".join([*labels, "date_trunc('day', u.hour, 'UTC') AS at"])},
            u.project_id::text AS project_id, u.key_id::text AS api_key_id,
            p.model || ', ' || c.class || ' tokens' AS line_item, sum(c.tokens) AS tokens, sum(c.cost) AS cost
        FROM (SELECT * FROM usage_sums WHERE {_filter(query)}) u JOIN price_versions p ON p.id = u.price_version,
            LATERAL (VALUES
                ('input', u.input_tokens - u.cached_input_tokens, (u.input_tokens - u.cached_input_tokens) * p.input),
                ('cached input', u.cached_input_tokens, u.cached_input_tokens * p.cached_input),
                ('output', u.output_tokens - u.reasoning_tokens, (u.output_tokens - u.reasoning_tokens) * p.output),
                ('reasoning', u.reasoning_tokens, u.reasoning_tokens * p.reasoning)) c (class, tokens, cost)
        WHERE c.tokens <> 0
        GROUP BY {_column_numbers(4 + len(labels))} HAVING sum(c.tokens) <> 0
        ORDER BY {_column_numbers(4 + len(labels))}
    """  # noqa: S608 - names from above; values are bound
    sums: dict[tuple[datetime, tuple[str | None, ...]], list[int]] = {}
    for row in await connection.execute(text(statement), _bound(tenant_id, query, buckets)):
        _add(
            sums, row.at, tuple(getattr(row, name) for name in query.group_by), int(row.cost), int(row.tokens)
        )
    if not (query.project_ids or query.api_key_ids or query.user_ids):
        report = ReportQuery(buckets[0], buckets[-1] + timedelta(days=1), tenant_id=tenant_id)
        for one in await booked_amounts(connection, report):
            key = tuple("adjustments" if name == "line_item" else None for name in query.group_by)
            _add(sums, one.hour.replace(hour=0), key, one.amount, None)
    results: dict[datetime, list[dict[str, Any]]] = defaultdict(list)
    for (at, key), (cost, tokens) in sums.items():
        results[at].append(_cost_result(dict(zip(query.group_by, key, strict=True)), cost, tokens))
    return _page(query, buckets, results)


def _hourly(query: UsageQuery) -> str:
    """The hourly sums, with labels when the query needs them."""
    return with_labels(HOURLY_SUMS) if query.user_ids or _needs_labels(query) else HOURLY_SUMS


def _needs_labels(query: UsageQuery) -> bool:
    return "user_id" in query.group_by or any(map(is_tag, query.group_by))


def _filter(query: UsageQuery) -> str:
    return _FILTER + _OF_USERS if query.user_ids else _FILTER


def _add(
    sums: dict[tuple[datetime, tuple[str | None, ...]], list[int]],
    at: datetime,
    key: tuple[str | None, ...],
    cost: int,
    tokens: int | None,
) -> None:
    found = sums.setdefault((at, key), [0, 0])
    found[0] += cost
    found[1] += tokens or 0


def _check(query: UsageQuery, groups: dict[str, str]) -> None:
    for name in query.group_by:
        if name not in groups and not is_tag(name):
            raise InvalidRequest(
                f"group_by takes {', '.join(groups)} and tags (tag_...), not {name[:40]!r}", param="group_by"
            )
    if len(set(query.group_by)) != len(query.group_by):
        raise InvalidRequest("group_by names a field twice", param="group_by")
    if sum(map(is_tag, query.group_by)) > MAX_TAGS:
        raise InvalidRequest(f"group_by takes at most {MAX_TAGS} tags", param="group_by")
    for name in ("project_ids", "user_ids", "api_key_ids", "models"):
        if len(getattr(query, name)) > MAX_VALUES:
            raise InvalidRequest(f"{name} takes at most {MAX_VALUES} values", param=name)
    if query.end <= query.start:
        raise InvalidRequest("end_time must be after start_time", param="end_time")


def _buckets(query: UsageQuery, default: int, most: int) -> list[datetime]:
    """The starts of the page's buckets; `default` and `most` bound its length."""
    limit = default if query.limit is None else query.limit
    if not 1 <= limit <= most:
        raise InvalidRequest(f"limit must be 1 to {most} for this bucket_width, not {limit}", param="limit")
    width = _WIDTHS[query.width]
    first = query.start if query.page is None else _read_page(query.page)
    if not query.start - width <= first < query.end:
        raise InvalidRequest("page does not belong to this query", param="page")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    at = epoch + (first - epoch) // width * width
    starts: list[datetime] = []
    while at < query.end and len(starts) < limit:
        starts.append(at)
        at += width
    return starts


def _bound(tenant_id: UUID, query: UsageQuery, buckets: Sequence[datetime]) -> dict[str, Any]:
    return {
        "tenant": tenant_id,
        "start": buckets[0],
        "end": buckets[-1] + _WIDTHS[query.width],
        "projects": list(query.project_ids) or None,
        "keys": list(query.api_key_ids) or None,
        "models": list(query.models) or None,
        "batch": query.batch,
        **({"users": list(query.user_ids)} if query.user_ids else {}),
    }


def _usage_result(row: Row[Any], group_by: Sequence[str]) -> dict[str, Any]:
    total, cached, output = int(row.input_tokens), int(row.cached_input_tokens), int(row.output_tokens)
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": total,
        "input_cached_tokens": cached,
        "input_cache_write_tokens": 0,
        "input_uncached_tokens": total - cached,
        "output_tokens": output,
        "input_text_tokens": total - cached,
        "output_text_tokens": output,
        "input_cached_text_tokens": cached,
        "input_audio_tokens": 0,
        "input_cached_audio_tokens": 0,
        "output_audio_tokens": 0,
        "input_image_tokens": 0,
        "input_cached_image_tokens": 0,
        "output_image_tokens": 0,
        "num_model_requests": int(row.requests),
        **dict.fromkeys(_USAGE_GROUPS),
        **{name: getattr(row, f"by_{name}") for name in group_by},
    }


def _cost_result(group: dict[str, str | None], cost: int, tokens: int) -> dict[str, Any]:
    counted = group.get("line_item") not in (None, "adjustments")
    return {
        "object": "organization.costs.result",
        "amount": {"value": msgspec.Raw(pico_to_usd(cost).encode()), "currency": "usd"},
        **dict.fromkeys(_COST_GROUPS),
        **group,
        "quantity": tokens if counted else None,
        "quantity_unit": "tokens" if counted else None,
    }


def _page(
    query: UsageQuery, buckets: Sequence[datetime], results: dict[datetime, list[dict[str, Any]]]
) -> dict[str, Any]:
    width = _WIDTHS[query.width]
    after = buckets[-1] + width
    more = after < query.end
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": int(at.timestamp()),
                "end_time": int((at + width).timestamp()),
                "results": results.get(at, []),
            }
            for at in buckets
        ],
        "has_more": more,
        "next_page": _write_page(after) if more else None,
    }


def _write_page(at: datetime) -> str:
    return "page_" + base64.urlsafe_b64encode(b"%d" % int(at.timestamp())).decode().rstrip("=")


def _read_page(page: str) -> datetime:
    try:
        body = page.removeprefix("page_")
        seconds = int(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, binascii.Error, OverflowError, OSError):
        raise InvalidRequest("page is no cursor of an earlier answer", param="page") from None


def _column_numbers(count: int) -> str:
    return ", ".join(str(place) for place in range(1, count + 1))
