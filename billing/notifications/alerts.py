"""Budget and low-balance alerts: notices when spending reaches thresholds of a budget, or credit runs low.

An organisation's budget is `billing_accounts.budget`, those of projects, keys, end users and tags are in
`scope_budgets`. Holds enforce them (new requests get 402) unless one of an end user or tag is watched only, and they
alert at THRESHOLDS without a rule; that of every end user does so by digests (`end_user_alerts`). A rule on a project
or key has an amount of its own, which alerts and stops nothing. An organisation's spending is the account's counter,
that of an end user or tag its budget's; that of a project or key is the exact sum of its usage in the UTC month. Each
threshold fires once per month and scope; when several are crossed together, one notice names the highest.
"""

from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.accounts import parse_usd
from billing.notifications.notices import notify
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import pico_to_usd
from tenants.scoping import platform_wide

Scope = Literal["tenant", "project", "key"]
Kind = Literal["budget", "low_balance"]
THRESHOLDS = (50, 80, 100)
"""Default thresholds in percent of a budget."""
MAX_RULES = 1000
"""Rules of one organisation."""


class AlertView(msgspec.Struct, frozen=True):
    """A budget or low-balance alert with its present state; amounts are exact decimal dollars."""

    id: UUID | None
    """None = a budget that stops requests, with the default thresholds, which has no rule."""
    tenant_id: UUID
    kind: str
    scope: str
    scope_id: UUID
    amount_usd: str | None
    """The budget, or the balance below which a prepaid organisation is alerted."""
    thresholds: list[int]
    """Percent of the budget."""
    current_usd: str
    """The spending of this UTC month, or the balance."""
    fired: list[int]
    """Thresholds that fired this month."""
    label: str | None = None
    """Of an end user or tag: which one, as user=NAME or tag_NAME=VALUE."""


async def set_rule(
    connection: AsyncConnection,
    *,
    tenant_id: UUID,
    kind: Kind,
    scope: Scope,
    scope_id: UUID,
    amount_usd: str | None,
    thresholds: list[int] | None,
    created_by: str,
) -> None:
    """Create or replace a rule.

    `amount_usd` is a decimal above 0; it must be None for the organisation's own budget, which `set_budget` sets.
    `thresholds` are 1 to 10 percentages of 1 to 1000, None = THRESHOLDS. Raises InvalidRequest for invalid arguments,
    NotFound for an unknown organisation or scope, Conflict for a low-balance alert of a postpaid organisation or more
    than MAX_RULES rules.
    """
    amount = _amount(kind, scope, amount_usd)
    checked_thresholds = _thresholds(kind, thresholds)
    await _check_scope(connection, tenant_id, kind, scope, scope_id)
    count = text("SELECT count(*) FROM alert_rules WHERE tenant_id = :tenant")
    if int(await connection.scalar(count, {"tenant": tenant_id}) or 0) >= MAX_RULES:
        raise Conflict(f"the organisation has {MAX_RULES} alert rules; remove one first")
    await connection.execute(
        text(
            "INSERT INTO alert_rules (id, tenant_id, kind, scope, scope_id, amount, thresholds, created_by) "
            "VALUES (:id, :tenant, :kind, :scope, :scope_id, :amount, :thresholds, :by) "
            "ON CONFLICT (tenant_id, kind, scope_id) DO UPDATE SET amount = excluded.amount, "
            "thresholds = excluded.thresholds, created_by = excluded.created_by, fired_at = NULL"
        ),
        {
            "id": uuid7(),
            "tenant": tenant_id,
            "kind": kind,
            "scope": scope,
            "scope_id": scope_id,
            "amount": amount,
            "thresholds": checked_thresholds,
            "by": created_by,
        },
    )


async def remove_rule(connection: AsyncConnection, tenant_id: UUID, kind: Kind, scope_id: UUID) -> None:
    """Remove a rule. Raises NotFound when there is none."""
    removed = await connection.execute(
        text("DELETE FROM alert_rules WHERE tenant_id = :tenant AND kind = :kind AND scope_id = :scope_id"),
        {"tenant": tenant_id, "kind": kind, "scope_id": scope_id},
    )
    if removed.rowcount == 0:
        raise NotFound(f"there is no {kind} rule on {scope_id}")


def _amount(kind: Kind, scope: Scope, amount_usd: str | None) -> int | None:
    if kind == "budget" and scope == "tenant":
        if amount_usd is not None:
            raise InvalidRequest(
                "the organisation's budget is set with `set_budget`; a rule only sets its thresholds",
                param="amount_usd",
            )
        return None
    if kind == "low_balance" and scope != "tenant":
        raise InvalidRequest("only an organisation has a balance", param="scope")
    if amount_usd is None:
        raise InvalidRequest("amount_usd is missing", param="amount_usd")
    amount = parse_usd(amount_usd, "amount_usd")
    if amount == 0:
        raise InvalidRequest("amount_usd must be above 0", param="amount_usd")
    return amount


def _thresholds(kind: Kind, given: list[int] | None) -> list[int]:
    if kind == "low_balance":
        if given:
            raise InvalidRequest("a low-balance alert has an amount and no thresholds", param="thresholds")
        return []
    thresholds = sorted(set(THRESHOLDS if given is None else given))
    if not 1 <= len(thresholds) <= 10 or not all(1 <= mark <= 1000 for mark in thresholds):
        raise InvalidRequest("thresholds are 1 to 10 percentages of 1 to 1000", param="thresholds")
    return thresholds


async def _check_scope(
    connection: AsyncConnection, tenant_id: UUID, kind: Kind, scope: Scope, scope_id: UUID
) -> None:
    """Raise NotFound, InvalidRequest or Conflict unless the scope and kind are valid for the organisation."""
    mode = text("SELECT mode FROM billing_accounts WHERE tenant_id = :tenant")
    found = await connection.scalar(mode, {"tenant": tenant_id})
    if found is None:
        raise NotFound(f"there is no organisation with the id {tenant_id}", param="tenant_id")
    if kind == "low_balance" and found != "prepaid":
        raise Conflict("a postpaid organisation has no balance that could run low")
    if scope == "tenant":
        if scope_id != tenant_id:
            raise InvalidRequest("the scope of an organisation is its own id", param="scope_id")
        return
    source = {"project": "projects", "key": "api_keys"}[scope]
    query = text(f"SELECT 1 FROM {source} WHERE id = :id AND tenant_id = :tenant")  # noqa: S608 - names from above
    if await connection.scalar(query, {"id": scope_id, "tenant": tenant_id}) is None:
        raise NotFound(f"the organisation has no {scope} with the id {scope_id}", param="scope_id")


_STATES = text("""
    WITH now AS (SELECT date_trunc('month', clock_timestamp(), 'UTC') AS month,
        date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date AS day),
    rules AS (
        SELECT r.id, r.tenant_id, r.kind, r.scope, r.scope_id, r.thresholds, r.fired_at,
            CASE WHEN r.kind = 'budget' AND r.scope = 'tenant' THEN b.budget ELSE r.amount END AS amount,
            r.scope = 'tenant' AS stops
        FROM alert_rules r JOIN billing_accounts b ON b.tenant_id = r.tenant_id
        WHERE CAST(:tenant AS uuid) IS NULL OR r.tenant_id = :tenant
        UNION ALL
        SELECT NULL, b.tenant_id, 'budget', 'tenant', b.tenant_id, CAST(:defaults AS smallint[]), NULL, b.budget, true
        FROM billing_accounts b WHERE b.budget > 0 AND (CAST(:tenant AS uuid) IS NULL OR b.tenant_id = :tenant)
            AND NOT EXISTS (SELECT 1 FROM alert_rules r WHERE r.tenant_id = b.tenant_id AND r.kind = 'budget'
                AND r.scope = 'tenant')
        UNION ALL
        SELECT NULL, s.tenant_id, 'budget', s.scope, s.scope_id, CAST(:defaults AS smallint[]), NULL, s.amount, s.stops
        FROM scope_budgets s WHERE s.amount > 0 AND (CAST(:tenant AS uuid) IS NULL OR s.tenant_id = :tenant)
            AND NOT EXISTS (SELECT 1 FROM alert_rules r WHERE r.kind = 'budget' AND r.tenant_id = s.tenant_id
                AND r.scope_id = s.scope_id)),
    watched AS (SELECT DISTINCT tenant_id FROM rules WHERE kind = 'budget' AND scope IN ('project', 'key')),
    dirty AS MATERIALIZED (
        SELECT DISTINCT hour FROM dirty_hours, now WHERE hour >= now.month AND EXISTS (SELECT 1 FROM watched)),
    counted AS (
        SELECT h.tenant_id, h.project_id, h.key_id, h.cost FROM usage_hours h, now
        WHERE h.hour >= now.month AND h.tenant_id IN (SELECT tenant_id FROM watched)
            AND NOT EXISTS (SELECT 1 FROM dirty t WHERE t.hour = h.hour)
        UNION ALL
        SELECT f.tenant_id, f.project_id, f.key_id, f.cost
        FROM dirty t, LATERAL penstock_fold_usage(t.hour, t.hour + interval '1 hour') f
        WHERE f.tenant_id IN (SELECT tenant_id FROM watched)),
    spent AS (
        SELECT tenant_id, project_id AS scope_id, sum(cost) AS cost FROM counted GROUP BY 1, 2
        UNION ALL SELECT tenant_id, key_id, sum(cost) FROM counted GROUP BY 1, 2)
    SELECT r.*, (SELECT day FROM now) AS month, b.mode,
        CASE WHEN r.kind = 'low_balance' THEN b.balance WHEN r.scope = 'tenant' THEN penstock_spent(b)
            WHEN r.scope IN ('end_user', 'tag') THEN penstock_scope_spent(c)
            ELSE coalesce(s.cost, 0) END AS current, c.label,
        ARRAY(SELECT e.threshold FROM alert_events e, now WHERE e.tenant_id = r.tenant_id AND e.scope_id = r.scope_id
            AND e.month = now.day AND r.kind = 'budget' ORDER BY 1) AS fired
    FROM rules r JOIN billing_accounts b ON b.tenant_id = r.tenant_id
    LEFT JOIN scope_budgets c ON c.tenant_id = r.tenant_id AND c.scope_id = r.scope_id
    LEFT JOIN spent s ON s.tenant_id = r.tenant_id AND s.scope_id = r.scope_id
    ORDER BY r.tenant_id, r.kind, r.scope, r.scope_id
""")


async def _rule_states(connection: AsyncConnection, tenant_id: UUID | None) -> list[Row[Any]]:
    return list(await connection.execute(_STATES, {"tenant": tenant_id, "defaults": list(THRESHOLDS)}))


async def list_rules(connection: AsyncConnection, tenant_id: UUID | None) -> list[AlertView]:
    """Alerts of one organisation, or of all that the session may see (None), with their present state."""
    return [
        AlertView(
            id=row.id,
            tenant_id=row.tenant_id,
            kind=row.kind,
            scope=row.scope,
            scope_id=row.scope_id,
            amount_usd=None if row.amount is None else pico_to_usd(int(row.amount)),
            thresholds=list(row.thresholds),
            current_usd=pico_to_usd(int(row.current)),
            fired=list(row.fired),
            label=row.label,
        )
        for row in await _rule_states(connection, tenant_id)
    ]


@platform_wide("the job evaluates the budgets of all organisations")
async def evaluate(database: Database) -> int:
    """Send the notices that are due; returns their number. Repeated and concurrent runs send nothing twice."""
    async with database.system() as connection:
        states = await _rule_states(connection, None)
    sent = 0
    for state in states:
        if not state.amount or not _may_fire(state):
            continue
        async with database.system() as connection:
            if state.kind == "budget":
                sent += await _fire_budget(connection, state)
            else:
                sent += await _fire_balance(connection, state)
    return sent


def _may_fire(state: Row[Any]) -> bool:
    """Whether an alert seems due and is worth a transaction that decides it."""
    if state.kind == "low_balance":
        return bool((state.current < state.amount) == (state.fired_at is None)) and state.mode == "prepaid"
    return bool(
        reached_thresholds(int(state.current), int(state.amount), state.thresholds) - set(state.fired)
    )


def reached_thresholds(spent: int, budget: int, thresholds: list[int]) -> set[int]:
    """The `thresholds` (percent) of `budget` that `spent` has reached; both in picodollars, exact."""
    return {mark for mark in thresholds if spent * 100 >= budget * mark}


async def _fire_budget(connection: AsyncConnection, state: Row[Any]) -> int:
    crossed = sorted(reached_thresholds(int(state.current), int(state.amount), state.thresholds))
    fresh = list(
        await connection.scalars(
            text(
                "INSERT INTO alert_events (tenant_id, scope, scope_id, month, threshold, budget, spent) "
                "SELECT :tenant, :scope, :scope_id, :month, mark, :budget, :spent "
                "FROM unnest(CAST(:marks AS smallint[])) mark ON CONFLICT DO NOTHING RETURNING threshold"
            ),
            {
                "tenant": state.tenant_id,
                "scope": state.scope,
                "scope_id": state.scope_id,
                "month": state.month,
                "budget": state.amount,
                "spent": state.current,
                "marks": crossed,
            },
        )
    )
    if not fresh:
        return 0
    highest, spent, budget = max(fresh), pico_to_usd(int(state.current)), pico_to_usd(int(state.amount))
    name = await _scope_name(connection, state)
    consequence = (
        "New requests are refused with 402 until the budget is raised or the month ends (UTC)."
        if highest >= 100 and state.stops
        else "Requests go on."
    )
    await notify(
        connection,
        tenant_id=state.tenant_id,
        kind="budget.threshold",
        subject=f"{highest} % of the budget of {name} is spent",
        body=f"In {state.month:%B %Y} (UTC) {name} has spent ${spent} of its budget of ${budget}.\n{consequence}\n",
        facts={
            "scope": state.scope,
            "scope_id": str(state.scope_id),
            "month": f"{state.month:%Y-%m}",
            "threshold_pct": highest,
            "spent_usd": spent,
            "budget_usd": budget,
            **({} if state.label is None else {"label": state.label}),
        },
        key=f"budget|{state.scope_id}|{state.month}|{highest}",
    )
    return 1


async def _fire_balance(connection: AsyncConnection, state: Row[Any]) -> int:
    """Notify once when the balance falls below the amount, and rearm the alert when it is above again."""
    fired_at = await connection.scalar(
        text(
            "UPDATE alert_rules r SET fired_at = CASE WHEN b.balance < r.amount THEN clock_timestamp() END "
            "FROM billing_accounts b WHERE r.id = :id AND r.tenant_id = b.tenant_id "
            "AND (b.balance < r.amount) = (r.fired_at IS NULL) RETURNING r.fired_at"
        ),
        {"id": state.id},
    )
    if fired_at is None:
        return 0
    left, mark = pico_to_usd(int(state.current)), pico_to_usd(int(state.amount))
    name = await _scope_name(connection, state)
    await notify(
        connection,
        tenant_id=state.tenant_id,
        kind="balance.low",
        subject=f"The credit of {name} is below ${mark}",
        body=f"{name} has ${left} of prepaid credit left. Without credit new requests are refused with 402.\n",
        facts={"balance_usd": left, "mark_usd": mark},
        key=f"low_balance|{state.id}|{fired_at.isoformat()}",
    )
    return 1


async def _scope_name(connection: AsyncConnection, state: Row[Any]) -> str:
    """The display name of the scope."""
    if state.label is not None:
        return f"the end user {state.label[5:]}" if state.scope == "end_user" else f"the tag {state.label}"
    query = {
        "tenant": "SELECT name FROM tenants WHERE id = :id",
        "project": "SELECT 'project ' || name FROM projects WHERE id = :id AND tenant_id = :tenant",
        "key": "SELECT 'the key ' || name || ' (...' || last4 || ')' FROM api_keys "
        "WHERE id = :id AND tenant_id = :tenant",
    }[state.scope]
    name = await connection.scalar(text(query), {"id": state.scope_id, "tenant": state.tenant_id})
    return str(name or state.scope_id)
