"""What people type: amounts and instants, made exact or refused with a sentence."""

from datetime import UTC, datetime

from core.money import usd_to_pico


def parse_usd(text: str, *, zero: bool = False) -> str:
    """An amount as typed, such as "$1,250.50", as an exact decimal string. Raises ValueError with a sentence."""
    plain = text.strip().removeprefix("$").replace(",", "").strip()
    try:
        pico = usd_to_pico(plain)
    except ValueError:
        raise ValueError("An amount of dollars, such as 25 or 12.50.") from None
    if pico < 0 or (pico == 0 and not zero):
        raise ValueError("An amount above zero.")
    return plain


def parse_instant(text: str) -> datetime | None:
    """A date or an instant as typed in UTC: `2026-12-01` or `2026-12-01 14:30`; empty = None.

    Raises ValueError with a sentence for people.
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
