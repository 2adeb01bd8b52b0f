"""Parsing of a report's period and grouping from URLs, the command line and the console."""

from datetime import UTC, datetime

from billing.usage.query import this_month
from core.errors import InvalidRequest


def parse_instant(value: str, param: str) -> datetime:
    """A date such as 2026-03-01 (midnight UTC) or an ISO 8601 instant, in UTC. Raises InvalidRequest naming `param`."""
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidRequest(
            f"{param} must be a date such as 2026-03-01 or an instant such as 2026-03-01T13:00Z, not {value[:40]!r}",
            param=param,
        ) from None
    try:
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest(f"{param} is out of range: {value[:40]!r}", param=param) from None


def parse_period(
    start: str | None, end: str | None, now: datetime | None = None
) -> tuple[datetime, datetime]:
    """[start, end) of a report; a missing end comes from the UTC month of `now`. Raises InvalidRequest."""
    month = this_month(now or datetime.now(UTC))
    return (
        month[0] if start is None else parse_instant(start, "from"),
        month[1] if end is None else parse_instant(end, "to"),
    )


def parse_group_by(value: str) -> tuple[str, ...]:
    """The names in a list such as `tenant,model,day`; `check_query` validates them."""
    return tuple(name for part in value.split(",") if (name := part.strip()))
