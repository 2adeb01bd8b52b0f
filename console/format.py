"""Numbers and dates for people: short on the page, exact on hover. Amounts stay decimal strings throughout."""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from uuid import UUID

import msgspec

DASH = "–"


class Formatted(msgspec.Struct, frozen=True):
    """A value as the page shows it: `text` is short, `exact` is the whole truth for the tooltip."""

    text: str
    exact: str = ""
    sort: float = 0.0
    """Only orders table rows; never a source of an amount."""


def money(usd: str | None) -> Formatted:
    """Dollars from an exact decimal string: two decimals, more only below a cent, the exact amount on hover."""
    if usd is None:
        return Formatted(DASH, "", float("-inf"))
    amount = Decimal(usd)
    magnitude = abs(amount)
    if amount and magnitude < Decimal("0.01"):
        places = min(6, 1 - magnitude.adjusted())
        rounded = magnitude.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
        text = f"${rounded}" if rounded else "<$0.000001"
    else:
        text = f"${magnitude.quantize(Decimal('0.01'), rounding=ROUND_HALF_UP):,}"
    sign = "−" if amount < 0 else ""
    return Formatted(sign + text, f"{usd} USD", float(amount))


def per_mtok(usd: str | None) -> Formatted:
    """A price per million tokens: at least two decimals, at most four, or six below a cent."""
    if usd is None:
        return Formatted(DASH, "", float("-inf"))
    amount = Decimal(usd)
    step = Decimal("0.0001") if abs(amount) >= Decimal("0.01") else Decimal("0.000001")
    rounded = amount.quantize(step, rounding=ROUND_HALF_UP)
    whole, _, decimals = f"{rounded:f}".partition(".")
    return Formatted(
        f"${whole}.{decimals.rstrip('0').ljust(2, '0')}", f"{usd} USD per million tokens", float(amount)
    )


def count(value: int | None) -> Formatted:
    """A whole number: grouped below ten thousand, then 12.3k, 4.56M, 7.8B; exact on hover."""
    if value is None:
        return Formatted(DASH, "", float("-inf"))
    for size, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= max(size, 10_000):
            scaled = Decimal(value) / size
            places = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
            return Formatted(f"{scaled:.{places}f}{suffix}", f"{value:,}", float(value))
    return Formatted(f"{value:,}", f"{value:,}", float(value))


def percent(share: float | None, places: int = 0) -> Formatted:
    """A share of 1 as percent."""
    if share is None:
        return Formatted(DASH, "", float("-inf"))
    return Formatted(f"{share * 100:.{places}f}%", f"{share:.4f}", share)


def milliseconds(value: float | None) -> Formatted:
    """A duration given in milliseconds."""
    if value is None:
        return Formatted(DASH, "", float("-inf"))
    text = f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"
    return Formatted(text, f"{value:.3f} ms", value)


def seconds(value: float | None) -> Formatted:
    """A duration given in seconds, in its two largest units."""
    if value is None:
        return Formatted(DASH, "", float("-inf"))
    whole = round(value)
    if value < 10:
        return Formatted(f"{value:.1f} s", f"{value:.3f} s", value)
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if whole >= size:
            parts.append(f"{whole // size} {unit}")
            whole %= size
    return Formatted(" ".join(parts[:2]) or "0 s", f"{value:.1f} s", value)


def moment(at: datetime | None, now: datetime) -> Formatted:
    """An instant: how long ago (or until) when near, the date when far; the exact UTC time on hover."""
    if at is None:
        return Formatted(DASH, "", float("-inf"))
    at = at.astimezone(UTC)
    exact = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    gap = now - at
    ahead = gap < timedelta(0)
    gap = abs(gap)
    if gap < timedelta(seconds=45):
        text = "in a moment" if ahead else "just now"
    elif gap < timedelta(hours=1):
        text = _apart(max(1, round(gap.total_seconds() / 60)), "min", ahead)
    elif gap < timedelta(days=1):
        text = _apart(round(gap.total_seconds() / 3600), "h", ahead)
    elif gap < timedelta(days=7):
        text = _apart(gap.days, "d", ahead)
    else:
        text = at.strftime("%-d %b %Y")
    return Formatted(text, exact, at.timestamp())


def _apart(number: int, unit: str, ahead: bool) -> str:
    return f"in {number} {unit}" if ahead else f"{number} {unit} ago"


def short_id(value: UUID | str | None) -> Formatted:
    """The tail of an id (UUIDv7 heads are time and look alike); whole on hover."""
    if value is None:
        return Formatted(DASH)
    text = str(value)
    return Formatted(f"…{text[-8:]}" if len(text) > 12 else text, text)


def words(name: str) -> str:
    """A machine's name for people: `tenant.create` and `platform_admin` lose dots and underscores."""
    return name.replace("_", " ").replace(".", " · ")
