"""The report's period and grouping as people write them: in a URL, on the command line, in the console."""

from datetime import UTC, datetime

from billing.usage.query import this_month
from core.errors import InvalidRequest


def parse_instant(value: str, param: str) -> datetime:
    """A date such as 2026-03-01 (midnight UTC) or an ISO 8601 instant. Raises InvalidRequest."""
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
    """[start, end) of a report; what is missing comes from this UTC month. Raises InvalidRequest."""
    month = this_month(now or datetime.now(UTC))
    return (
        month[0] if start is None else parse_instant(start, "from"),
        month[1] if end is None else parse_instant(end, "to"),
    )


def parse_group_by(value: str) -> tuple[str, ...]:
    """The dimensions of `tenant,model,day`; the report checks their names."""
    return tuple(name for part in value.split(",") if (name := part.strip()))
