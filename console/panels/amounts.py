"""Parsers of amounts and instants that users type."""

from datetime import UTC, datetime

from core.money import usd_to_pico


def parse_usd(text: str, *, zero: bool = False) -> str:
    """US dollars such as "$1,250.50" as an exact decimal string above 0 (`zero`: 0 too).

    Raises ValueError with a user message.
    """
    plain = text.strip().removeprefix("$").replace(",", "").strip()
    try:
        pico = usd_to_pico(plain)
    except ValueError:
        raise ValueError("An amount of dollars, such as 25 or 12.50.") from None
    if pico < 0 or (pico == 0 and not zero):
        raise ValueError("An amount above zero.")
    return plain


def parse_instant(text: str) -> datetime | None:
    """A UTC date or instant, `2026-12-01` or `2026-12-01 14:30`; None when empty.

    Raises ValueError with a user message.
    """
    plain = text.strip().removesuffix("UTC").strip()
    if not plain:
        return None
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"):
        try:
            return datetime.strptime(plain, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ValueError("A UTC date such as 2026-12-01, or 2026-12-01 14:30.")
