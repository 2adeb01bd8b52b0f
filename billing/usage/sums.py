"""Usage of a period, grouped by PostgreSQL: clean hours from the rollups, dirty hours from the rows.

One statement reads both in one snapshot, so the result always equals the rows.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.metering.records import Outcome
from billing.usage.query import GroupKey, ReportQuery, has_labels, is_tag

OUTCOMES = [outcome.value for outcome in Outcome]
SUMS = (
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "unbilled_input_tokens",
    "unbilled_output_tokens",
    "cost",
    "list_cost",
)
FACETS = ("tier", "region", "price_version", "simulated", "gpu")

_COLUMNS = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "hour": "date_trunc('hour', hour, 'UTC')",
    "day": "date_trunc('day', hour, 'UTC')",
    "month": "date_trunc('month', hour, 'UTC')",
}

KEY_COLUMNS = (
    "tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version, simulated, gpu"
)
SUM_COLUMNS = f"""{KEY_COLUMNS}, requests, outcomes, input_tokens, cached_input_tokens, output_tokens, reasoning_tokens,
        unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us"""
DIRTY_HOURS = """
    dirty AS MATERIALIZED (
        SELECT DISTINCT hour FROM dirty_hours WHERE hour >= :start AND hour < :end)"""
_SUMS_FROM_ROWS = """SELECT t.hour, f.* FROM dirty t,
            LATERAL penstock_fold_usage(t.hour, t.hour + interval '1 hour') f"""

HOURLY_SUMS = f"""
    {DIRTY_HOURS},
    usage_sums AS (
        SELECT h.hour, {SUM_COLUMNS} FROM usage_hours h WHERE h.hour >= :start AND h.hour < :end
            AND NOT EXISTS (SELECT 1 FROM dirty t WHERE t.hour = h.hour)
        UNION ALL
        {_SUMS_FROM_ROWS})
"""  # noqa: S608 - the names above
"""The body of a WITH clause: `usage_sums` has the columns of usage_hours for every hour of [:start, :end)."""

COMPLETE_DAYS = """
        SELECT s.day FROM usage_day_state s WHERE s.whole AND s.day >= :start AND s.day + interval '1 day' <= :end
            AND NOT EXISTS (SELECT 1 FROM dirty t WHERE t.hour >= s.day AND t.hour < s.day + interval '1 day')"""
REMAINING_SPANS = """
    remaining_spans AS MATERIALIZED (
        SELECT greatest(g, :start) AS low, least(g + interval '1 day', :end) AS high
        FROM generate_series(date_trunc('day', CAST(:start AS timestamptz), 'UTC'),
            CAST(:end AS timestamptz) - interval '1 microsecond', interval '1 day') g
        WHERE NOT EXISTS (SELECT 1 FROM days WHERE days.day = g))"""
REMAINING_HOURS = f"""
        SELECT h.hour, {SUM_COLUMNS} FROM remaining_spans o JOIN usage_hours h ON h.hour >= o.low AND h.hour < o.high
            WHERE NOT EXISTS (SELECT 1 FROM dirty t WHERE t.hour = h.hour)
        UNION ALL
        {_SUMS_FROM_ROWS}"""  # noqa: S608 - the names above

DAILY_SUMS = f"""
    {DIRTY_HOURS},
    days AS MATERIALIZED ({COMPLETE_DAYS}),
    {REMAINING_SPANS},
    usage_sums AS (
        SELECT d.day AS hour, {SUM_COLUMNS} FROM usage_days d WHERE d.day IN (SELECT day FROM days)
        UNION ALL
        {REMAINING_HOURS})
"""  # noqa: S608 - the names above
"""As HOURLY_SUMS, with complete past days as one row each, whose `hour` is the start of the day."""

_MINUS = ", ".join(
    [
        KEY_COLUMNS,
        "-requests",
        f"ARRAY[{', '.join(f'-outcomes[{i + 1}]' for i in range(len(OUTCOMES)))}]",
        "-input_tokens, -cached_input_tokens, -output_tokens, -reasoning_tokens",
        "-unbilled_input_tokens, -unbilled_output_tokens, -cost, -list_cost, -busy_us",
    ]
)


def with_labels(source: str) -> str:
    """As `source` (HOURLY_SUMS or DAILY_SUMS), with the columns `end_user` and `tags` (jsonb), which may be null.

    What requests with labels used is added with their labels and subtracted without, so the sums over all labels are
    those of `source`. Reads the rows of these requests only. Binds `:tenant` besides the period.
    """
    return f"""
    {source.replace("usage_sums AS (", "unlabelled_sums AS (")},
    labelled AS MATERIALIZED (SELECT * FROM penstock_fold_labels(CAST(:tenant AS uuid), :start, :end)),
    usage_sums AS (
        SELECT hour, {SUM_COLUMNS}, NULL::text AS end_user, NULL::jsonb AS tags FROM unlabelled_sums
        UNION ALL
        SELECT hour, {_MINUS}, NULL, NULL FROM labelled
        UNION ALL
        SELECT hour, {SUM_COLUMNS}, end_user, tags FROM labelled)
    """  # noqa: S608 - the names above


def tag_column(name: str) -> str:
    """The expression of a tag in `with_labels`. The name must be one that `billing.usage.query.is_tag` accepts."""
    return f"tags ->> '{name}'"


async def grouped_usage(
    connection: AsyncConnection,
    query: ReportQuery,
    source: str,
    parameters: Mapping[str, Any],
    extra_sums: Sequence[str] = (),
) -> AsyncIterator[Row[Any]]:
    """Sums of usage by the dimensions of `query`, tenant and FACETS, and by model when `extra_sums` are given.

    `source` is the body of a WITH clause such as HOURLY_SUMS, and `parameters` what it binds besides the period.
    """
    named = [
        (tag_column(name) if is_tag(name) else _COLUMNS.get(name, name), f'"by_{name}"')
        for name in query.group_by
    ]
    columns = ["tenant_id", *FACETS]
    if extra_sums or "model" in query.group_by:
        columns.append("model")
    selected = [*columns, *(f"{column} AS {label}" for column, label in named)]
    grouped = [*dict.fromkeys([*columns, *(column for column, _ in named)])]
    sums = [f"sum({name}) AS {name}" for name in (*SUMS, *extra_sums)]
    outcomes = [f"sum(outcomes[{i + 1}]) AS outcome_{i}" for i in range(len(OUTCOMES))]
    some = "HAVING sum(requests) <> 0" if has_labels(query.group_by) else ""
    # Only names from the tuples above and names of tags are put into the text; values are bound.
    statement = f"""
        WITH {source}
        SELECT {", ".join([*selected, *sums, *outcomes])} FROM usage_sums
        WHERE CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant
        GROUP BY {", ".join(grouped)} {some} ORDER BY {", ".join(grouped)}
    """  # noqa: S608
    values = {"start": query.start, "end": query.end, "tenant": query.tenant_id, **parameters}
    async for row in await connection.stream(text(statement), values):
        yield row


def group_key(query: ReportQuery, row: Row[Any]) -> GroupKey:
    """The values of a row's dimensions."""
    return tuple(getattr(row, f"by_{name}") for name in query.group_by)
