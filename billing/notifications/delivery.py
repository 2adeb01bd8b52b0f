"""Sends notices: one delivery per endpoint that accepts the notice's kind, at least once, with exponential backoff.

A delivery is claimed in a committed transaction before it is sent: its next attempt is set to a later instant. Two jobs
therefore do not send it at the same time, and after a crash it is attempted again. Receivers recognise a repetition by
the notice id.
"""

import asyncio
import logging
import time
from typing import Any

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications import mail, webhooks
from core.db import Database
from core.public_addresses import parse_hosts
from core.settings import Settings
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)

BATCH = 16
"""Deliveries of one run, sent concurrently."""
MAX_ATTEMPTS = 8
"""Attempts after which a delivery has failed."""
_FIRST_DELAY_S = 30
_MAX_DELAY_S = 6 * 3600


class DeliveryConfig(msgspec.Struct, frozen=True):
    """The settings that sending needs."""

    pepper: bytes
    smtp: mail.SmtpServer | None
    allow_hosts: frozenset[str]

    @classmethod
    def from_settings(cls, settings: Settings) -> "DeliveryConfig":
        """The configuration by the settings. Raises InvalidRequest for an invalid SMTP URL."""
        return cls(
            pepper=settings.key_pepper.get_secret_value().encode(),
            smtp=mail.parse_smtp(settings.smtp_url.get_secret_value(), settings.smtp_from),
            allow_hosts=parse_hosts(settings.webhook_allow_hosts),
        )


def retry_delay_s(attempts: int) -> int:
    """Seconds until the next attempt after `attempts` failed ones: 30 s, 2 min, 8 min, ... at most 6 h."""
    return min(int(_FIRST_DELAY_S * 4 ** max(attempts - 1, 0)), _MAX_DELAY_S)


@platform_wide("the job plans the notices of all organisations")
async def plan_deliveries(connection: AsyncConnection) -> int:
    """Create a delivery for each endpoint of each new notice; returns the number of notices.

    Without an e-mail endpoint, the addresses of the organisation's owners are used, or for the platform those of its
    admins and finance members.
    """
    ids = list(await connection.scalars(_UNPLANNED))
    if ids:
        await connection.execute(_TO_ENDPOINTS, {"ids": ids})
        await connection.execute(_TO_MEMBERS, {"ids": ids})
        await connection.execute(
            text("UPDATE notices SET planned_at = clock_timestamp() WHERE id = ANY(:ids)"), {"ids": ids}
        )
    return len(ids)


_UNPLANNED = text(
    "SELECT id FROM notices WHERE planned_at IS NULL ORDER BY created_at, id LIMIT 500 FOR UPDATE SKIP LOCKED"
)
_TO_ENDPOINTS = text(
    "INSERT INTO notice_deliveries (id, notice_id, endpoint_id, tenant_id, channel, target) "
    "SELECT gen_random_uuid(), n.id, e.id, n.tenant_id, e.channel, e.target FROM notices n "
    "JOIN notice_endpoints e ON e.tenant_id IS NOT DISTINCT FROM n.tenant_id AND e.removed_at IS NULL "
    "AND (e.kinds IS NULL OR n.kind = ANY(e.kinds)) WHERE n.id = ANY(:ids) ON CONFLICT DO NOTHING"
)
_TO_MEMBERS = text(
    "INSERT INTO notice_deliveries (id, notice_id, tenant_id, channel, target) "
    "SELECT gen_random_uuid(), n.id, n.tenant_id, 'email', u.email FROM notices n "
    "JOIN memberships m ON m.tenant_id IS NOT DISTINCT FROM n.tenant_id "
    "AND m.role IN ('tenant_owner', 'platform_admin', 'finance') "
    "JOIN users u ON u.id = m.user_id AND u.status = 'active' "
    "WHERE n.id = ANY(:ids) AND NOT EXISTS (SELECT 1 FROM notice_endpoints e WHERE e.channel = 'email' "
    "AND e.tenant_id IS NOT DISTINCT FROM n.tenant_id AND e.removed_at IS NULL) ON CONFLICT DO NOTHING"
)


@platform_wide("the job sends the notices of all organisations")
async def deliver(database: Database, config: DeliveryConfig) -> int:
    """Plan new notices and attempt the due deliveries; returns how many were delivered or kept in the outbox."""
    async with database.system() as connection:
        await plan_deliveries(connection)
    async with database.system() as connection:
        due = list(await connection.execute(_CLAIM, {"limit": BATCH, "lease": retry_delay_s(1)}))
    results = await asyncio.gather(*(_send_safely(config, row) for row in due))
    async with database.system() as connection:
        for row, result in zip(due, results, strict=True):
            await _record(connection, row, result)
    return sum(result in (None, _OUTBOX) for result in results)


_OUTBOX = "outbox"
_CLAIM = text(
    "WITH due AS (SELECT id FROM notice_deliveries WHERE state = 'pending' AND next_try_at <= clock_timestamp() "
    "ORDER BY next_try_at, id LIMIT :limit FOR UPDATE SKIP LOCKED), "
    "taken AS (UPDATE notice_deliveries d SET attempts = d.attempts + 1, "
    "next_try_at = clock_timestamp() + :lease * interval '1 second' FROM due WHERE d.id = due.id RETURNING d.*) "
    "SELECT t.id, t.channel, t.target, t.attempts, t.endpoint_id, n.id AS notice_id, n.tenant_id, n.kind, n.subject, "
    "n.body, n.facts, n.created_at, e.secret_version, e.removed_at FROM taken t JOIN notices n ON n.id = t.notice_id "
    "LEFT JOIN notice_endpoints e ON e.id = t.endpoint_id"
)


async def _send_safely(config: DeliveryConfig, row: Row[Any]) -> str | None:
    """`_send` with every error as a text, so that one delivery's error does not lose the results of the others."""
    try:
        return await _send(config, row)
    except Exception as error:
        log.exception("delivery %s broke", row.id)
        return f"{type(error).__name__}: it cannot be sent"


async def _send(config: DeliveryConfig, row: Row[Any]) -> str | None:
    """Send one delivery: None = delivered, `outbox` = mail kept without an SMTP server, otherwise the error."""
    if row.channel == "email":
        if config.smtp is None:
            return _OUTBOX
        message = mail.compose(config.smtp, row.target, row.subject, row.body, row.id)
        return await mail.send(config.smtp, message)
    if row.removed_at is not None:
        return "the endpoint was removed"
    if not config.pepper:
        return "PENSTOCK_KEY_PEPPER is not set for this role, so nothing can be signed"
    body = webhook_body(row)
    secret = webhooks.endpoint_secret(config.pepper, row.endpoint_id, row.secret_version)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Penstock-Notices/1",
        "Penstock-Notice-Id": str(row.notice_id),
        "Penstock-Signature": webhooks.signature(secret, int(time.time()), body),
    }
    return await webhooks.post(row.target, body, headers, config.allow_hosts)


def webhook_body(row: Any) -> bytes:
    """The body of a webhook: the notice as JSON."""
    return msgspec.json.encode(
        {
            "id": row.notice_id,
            "kind": row.kind,
            "created_at": row.created_at,
            "tenant_id": row.tenant_id,
            "subject": row.subject,
            "body": row.body,
            "facts": row.facts,
        }
    )


@platform_wide("a delivery is named by its id")
async def _record(connection: AsyncConnection, row: Row[Any], result: str | None) -> None:
    """Store the result of an attempt."""
    final = row.attempts >= MAX_ATTEMPTS or row.removed_at is not None
    state = {None: "delivered", _OUTBOX: "outbox"}.get(result, "failed" if final else "pending")
    await connection.execute(
        text(
            "UPDATE notice_deliveries SET state = :state, last_error = :error, "
            "done_at = CASE WHEN :pending THEN NULL ELSE clock_timestamp() END, "
            "next_try_at = CASE WHEN :pending THEN clock_timestamp() + :pause * interval '1 second' END "
            "WHERE id = :id AND state = 'pending'"
        ),
        {
            "id": row.id,
            "state": state,
            "error": None if result in (None, _OUTBOX) else result,
            "pending": state == "pending",
            "pause": retry_delay_s(row.attempts),
        },
    )
