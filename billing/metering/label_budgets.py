"""Monthly budgets of end users and tags, as a request names them. penstock_hold enforces them as those of keys."""

import re
from typing import Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Conflict, InvalidRequest, NotFound

LabelScope = Literal["end_user", "tag"]
EVERY_END_USER = "user"
"""The label of the budget that each end user without one of its own has."""
MAX_BUDGETS = 1000
"""Budgets of named end users and tags of one organisation."""
_END_USER = re.compile(r".{1,128}")
_TAG = re.compile(r"tag_[A-Za-z0-9_.-]{1,60}=.{1,128}")
"""Names and lengths as in requests (gateway/schemas/labels.py)."""


def label_of(scope: LabelScope, name: str) -> str:
    """The label of an end user, or of a tag that is given as tag_NAME=VALUE. Raises InvalidRequest."""
    form = _END_USER if scope == "end_user" else _TAG
    if form.fullmatch(name) is None or not name.isprintable():
        what = (
            "an end user has 1 to 128 characters that can be printed"
            if scope == "end_user"
            else "a tag is written tag_NAME=VALUE, for example tag_team=blue"
        )
        raise InvalidRequest(f"{what}; {name[:200]!r} is none", param="name")
    return f"user={name}" if scope == "end_user" else name


async def set_budget(
    connection: AsyncConnection, tenant_id: UUID, label: str, amount: int | None, *, stops: bool
) -> None:
    """Set the budget of a label in picodollars, or remove it with None. Running requests go on.

    `stops` False: the budget is watched and sends notices only. Raises NotFound without a billing account, Conflict for
    more than MAX_BUDGETS, InvalidRequest for one of every end user that does not stop.
    """
    if label == EVERY_END_USER and not stops:
        raise InvalidRequest(
            "the budget of every end user stops requests; one that is watched only names its end user",
            param="stops",
        )
    found = await connection.scalar(
        text("SELECT penstock_set_label_budget(:tenant, :label, :amount, :stops)"),
        {"tenant": tenant_id, "label": label, "amount": amount, "stops": stops},
    )
    if not found:
        raise NotFound(f"there is no billing account of the organisation {tenant_id}")
    count = await connection.scalar(
        text(
            "SELECT count(*) FROM scope_budgets WHERE tenant_id = :tenant AND label IS NOT NULL "
            "AND amount IS NOT NULL"
        ),
        {"tenant": tenant_id},
    )
    if amount is not None and int(count or 0) > MAX_BUDGETS:
        raise Conflict(
            f"an organisation has at most {MAX_BUDGETS} budgets of end users and tags; remove one first"
        )


async def scope_id_of(connection: AsyncConnection, tenant_id: UUID, label: str) -> UUID:
    """The id under which the budget of a label stands, whether it is set or not."""
    found = await connection.execute(
        text("SELECT penstock_label_scope(:tenant, :label)"), {"tenant": tenant_id, "label": label}
    )
    scope_id: UUID = found.scalar_one()
    return scope_id


async def forget_end_users(connection: AsyncConnection, batch: int) -> int:
    """Forget at most `batch` end users that are counted but have spent nothing in this month; returns how many."""
    forgotten = await connection.execute(text("SELECT penstock_forget_end_users(:batch)"), {"batch": batch})
    return int(forgotten.scalar_one())
