"""Sends the audit log to a syslog receiver: each row at least once, in the order of the rows' numbers.

A cursor in the database says up to which number all rows are sent. It moves after the receiver took a batch, so a crash
in between sends the batch again; the number in each message lets the receiver drop what it has.
"""

import json
import socket
from datetime import UTC
from typing import Any

from sqlalchemy import Row, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core import syslog
from core.db import Database
from core.settings import Settings
from tenants.denied_acts import ACTION as DENIED
from tenants.scoping import platform_wide
from tenants.tables import audit_cursors

BATCH = 500
"""Rows of one connection to the receiver, and of one move of the cursor."""
MAX_BATCHES = 50
"""Batches of a run; the next one begins seconds later."""
MAX_BYTES = 8_192
"""Bytes of a message, which receivers should take (RFC 5425); of a longer one the states are left out."""
_RECEIVER = "syslog"
_SEQUENCE_IDS = 2_147_483_647
"""The largest sequenceId of RFC 5424, after which it begins again at 1. The `seq` in the text goes on."""

_ROWS = """
    SELECT c.seq, encode(c.hash, 'hex') AS seal, a.id, a.at, a.actor_kind, a.actor_id, a.actor_label, a.action,
        a.tenant_id, a.object_kind, a.object_id, a.reason, a.before, a.after
    FROM audit_chain c JOIN audit_log a ON a.id = c.entry_id
    WHERE c.seq > :seq ORDER BY c.seq LIMIT :batch
"""


async def send_audit(database: Database, settings: Settings) -> int:
    """Send the sealed rows after the cursor, at most MAX_BATCHES batches; returns how many. Nothing is done without a
    receiver.

    Raises Unavailable when the receiver does not take them, InvalidRequest for an address that is none.
    """
    if not settings.audit_syslog_url:
        return 0
    receiver = syslog.parse_receiver(settings.audit_syslog_url)
    total = 0
    for _ in range(MAX_BATCHES):
        async with database.system() as connection:
            sent = await _send_batch(connection, receiver)
        total += sent
        if sent < BATCH:
            break
    return total


@platform_wide("the audit log is sent as a whole")
async def _send_batch(connection: AsyncConnection, receiver: syslog.Receiver) -> int:
    """Send up to BATCH rows and move the cursor; 0 while another process does."""
    await connection.execute(insert(audit_cursors).values(receiver=_RECEIVER, seq=0).on_conflict_do_nothing())
    seq = await connection.scalar(
        select(audit_cursors.c.seq)
        .where(audit_cursors.c.receiver == _RECEIVER)
        .with_for_update(skip_locked=True)
    )
    if seq is None:
        return 0
    rows = (await connection.execute(text(_ROWS), {"seq": seq, "batch": BATCH})).all()
    if rows:
        await syslog.send(receiver, [message_of(row, socket.gethostname()) for row in rows])
        await connection.execute(
            update(audit_cursors).where(audit_cursors.c.receiver == _RECEIVER).values(seq=rows[-1].seq)
        )
    return len(rows)


def message_of(row: "Row[Any]", host: str) -> bytes:
    """The message of a row: its text is a JSON object in ASCII."""
    facts = {
        "seq": row.seq,
        "at": row.at.astimezone(UTC).isoformat(),
        "id": str(row.id),
        "actor_kind": row.actor_kind,
        "actor_id": row.actor_id,
        "actor": row.actor_label,
        "action": row.action,
        "tenant_id": None if row.tenant_id is None else str(row.tenant_id),
        "object_kind": row.object_kind,
        "object_id": row.object_id,
        "reason": row.reason,
        "before": row.before,
        "after": row.after,
        "seal": row.seal,
    }
    message = _encode(row, host, facts)
    if len(message) <= MAX_BYTES:
        return message
    return _encode(row, host, {**facts, "before": None, "after": None, "states_left_out": True})


def _encode(row: "Row[Any]", host: str, facts: dict[str, Any]) -> bytes:
    return syslog.message(
        severity=syslog.WARNING if row.action == DENIED else syslog.NOTICE,
        at=row.at,
        host=host,
        kind=row.action,
        number=(row.seq - 1) % _SEQUENCE_IDS + 1,
        text=json.dumps(facts, separators=(",", ":")),
    )
