"""Figures of reports as text."""


def seconds(microseconds: int) -> str:
    """Decimal seconds."""
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"


def percent(part: int, whole: int) -> str | None:
    """`part` of `whole` in percent with two decimals, half away from zero; None of nothing."""
    if whole <= 0:
        return None
    hundredths = (abs(part) * 20_000 + whole) // (2 * whole)
    return f"{'-' if part < 0 else ''}{hundredths // 100}.{hundredths % 100:02d}"
