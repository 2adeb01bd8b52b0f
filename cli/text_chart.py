"""Charts of text: a series as columns of block characters with a resolution of an eighth."""

import math
from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def columns(values: Sequence[float], *, height: int = 5, unit: str = "") -> list[str]:
    """The chart as `height` lines, one column per value, with the scale at the left; NaN is blank."""
    known = [value for value in values if not math.isnan(value)]
    top = max(known, default=0.0)
    label = f"{top:,.4g}{unit}"
    width = max(len(label), 2)
    lines = []
    for line in range(height - 1, -1, -1):
        cells = "".join(_cell(value, top, line, height) for value in values)
        head = label if line == height - 1 else f"0{unit}" if line == 0 else ""
        lines.append(f"{head:>{width}} ┤{cells}")
    return lines


def _cell(value: float, top: float, line: int, height: int) -> str:
    if math.isnan(value) or top <= 0.0:
        return " "
    eighths = round(value / top * height * 8) - line * 8
    if value > 0.0 and line == 0:
        eighths = max(eighths, 1)
    return _EIGHTHS[min(max(eighths, 0), 8)]
