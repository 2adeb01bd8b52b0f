"""Figures of reports as text."""


def seconds(microseconds: int) -> str:
    """Decimal seconds of `microseconds` (>= 0), with six decimals."""
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"


def percent(part: int, whole: int) -> str | None:
    """`part` of `whole` in percent with two decimals, half away from zero; None when `whole` is 0 or less."""
    if whole <= 0:
        return None
    hundredths = (abs(part) * 20_000 + whole) // (2 * whole)
    return f"{'-' if part < 0 else ''}{hundredths // 100}.{hundredths % 100:02d}"
