"""Parsing of Stripe's events: both formats, and rejection of anything else."""

from typing import Any

import pytest

from billing.payments.idempotency import WRITE_UNKNOWN, idempotent_write
from billing.payments.stripe_types import parse_event
from core.errors import InvalidRequest, Unavailable

GOOD: dict[str, Any] = {
    "id": "evt_1",
    "object": "event",
    "type": "invoice.paid",
    "created": 1_800_000_000,
    "data": {"object": {"id": "in_1", "object": "invoice"}},
}


def test_a_snapshot_and_a_thin_event() -> None:
    found = parse_event(GOOD)
    assert found is not None
    assert (found.object_kind, found.object_id) == ("invoice", "in_1")
    thin = parse_event(
        {
            "id": "evt_2",
            "object": "v2.core.event",
            "type": "v1.billing.meter.error_report_triggered",
            "related_object": {"id": "mtr_1", "type": "billing.meter"},
        }
    )
    assert thin is not None
    assert (thin.object_kind, thin.object_id) == ("billing.meter", "mtr_1")


@pytest.mark.parametrize(
    "changes",
    [
        {"id": None}, {"id": ""}, {"id": "x" * 300}, {"id": "a\x00b"}, {"type": 5}, {"created": "now"}, {"created": -1},
        {"created": 2**60}, {"created": True}, {"data": None}, {"data": []}, {"data": {"object": "in_1"}},
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused(changes: dict[str, Any]) -> None:
    assert parse_event(GOOD | changes) is None


async def test_after_a_500_everybody_looks_and_goes_on_to_the_next_key() -> None:
    keys: list[str] = []

    async def make(key: str) -> str:
        keys.append(key)
        if len(keys) < 3:
            raise Unavailable("500", code=WRITE_UNKNOWN)
        return "made"

    async def find() -> str | None:
        return None

    assert await idempotent_write(make, find, "k") == "made"
    assert keys == ["k", "k-1", "k-2"]


async def test_what_a_500_made_is_found_and_other_errors_pass() -> None:
    async def fail(key: str) -> str:
        raise Unavailable("500", code=WRITE_UNKNOWN)

    async def refuse(key: str) -> str:
        raise InvalidRequest("no")

    async def find() -> str | None:
        return "there"

    assert await idempotent_write(fail, find, "k") == "there"
    assert await idempotent_write(refuse, find, "k", find_first=True) == "there"
    with pytest.raises(InvalidRequest):
        await idempotent_write(refuse, find, "k")
