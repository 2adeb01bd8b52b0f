"""Numbers and dates as short text with the exact value as tooltip. Amounts stay decimal strings."""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from uuid import UUID

import msgspec

DASH = "–"


class Formatted(msgspec.Struct, frozen=True):
    """A value for display: `text` is short, `exact` is the unrounded value for the tooltip."""

    text: str
    exact: str = ""
    sort: float = 0.0
    """Sort key of table rows; never the source of an amount."""


def money(usd: str | None) -> Formatted:
    """An amount from a decimal string in US dollars: two decimals, more only below a cent."""
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
    """A price in US dollars per million tokens: two to four decimals, up to six below a cent."""
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
    """A whole number: grouped below ten thousand, then 12.3k, 4.56M, 7.8B."""
    if value is None:
        return Formatted(DASH, "", float("-inf"))
    for size, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= max(size, 10_000):
            scaled = Decimal(value) / size
            places = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
            return Formatted(f"{scaled:.{places}f}{suffix}", f"{value:,}", float(value))
    return Formatted(f"{value:,}", f"{value:,}", float(value))


def percent(share: float | None, places: int = 0) -> Formatted:
    """A share (1.0 = 100 %) as percent with `places` decimals."""
    if share is None:
        return Formatted(DASH, "", float("-inf"))
    return Formatted(f"{share * 100:.{places}f}%", f"{share:.4f}", share)


def milliseconds(value: float | None) -> Formatted:
    """A duration in milliseconds."""
    if value is None:
        return Formatted(DASH, "", float("-inf"))
    text = f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"
    return Formatted(text, f"{value:.3f} ms", value)


def seconds(value: float | None) -> Formatted:
    """A duration in seconds, shown in its two largest units."""
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


def moment(at: datetime | str | None, now: datetime) -> Formatted:
    """An instant (datetime or ISO 8601 text) relative to `now` when near, else its date; the tooltip is exact UTC."""
    if at is None:
        return Formatted(DASH, "", float("-inf"))
    at = (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)
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
    """The tail of an id, because UUIDv7 ids begin with a timestamp and look alike; the tooltip is the whole id."""
    if value is None:
        return Formatted(DASH)
    text = str(value)
    return Formatted(f"…{text[-8:]}" if len(text) > 12 else text, text)


def sentence(message: str) -> str:
    """An error's message as a sentence. The name vLLM keeps its small letter."""
    begun = message if message.startswith("vLLM") else message[:1].upper() + message[1:]
    return begun if begun.endswith((".", "?", "!")) else f"{begun}."


def words(name: str) -> str:
    """An identifier with spaces for dots and underscores: `tenant.create` becomes "tenant create"."""
    return name.replace("_", " ").replace(".", " · ")
