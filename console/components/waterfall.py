"""A waterfall chart of the steps between two amounts. It rounds: exact amounts belong in a table beside it."""

from collections.abc import Sequence
from typing import Any

import msgspec
from nicegui import ui

from console.components.charts import PALETTE
from console.format import Formatted

_AXIS = "#8496a3"
_GRID = "rgba(132,150,163,0.18)"
_DOLLARS = "value => (value < 0 ? '−$' : '$') + Intl.NumberFormat('en', {notation: 'compact'}).format(Math.abs(value))"
_UP, _DOWN, _TOTAL = PALETTE[3], PALETTE[4], PALETTE[0]


class Step(msgspec.Struct, frozen=True):
    """A column: a total that starts at zero, or a change that starts where the previous column ended."""

    name: str
    amount: Formatted
    is_total: bool = False


def bars(steps: Sequence[Step]) -> list[tuple[float, float]]:
    """(start, end) of each column in dollars, as floats for drawing only."""
    reached = 0.0
    found = []
    for step in steps:
        begin = 0.0 if step.is_total else reached
        reached = begin + step.amount.sort
        found.append((begin, reached))
    return found


def _bar(value: float, colour: str, label: str | None, position: str) -> dict[str, Any]:
    """One bar of a series; `label` stands at its `position`, None = no label."""
    shown = {"show": True, "formatter": label, "color": _AXIS, "fontSize": 11, "position": position}
    return {
        "value": value,
        "itemStyle": {"color": colour, "borderRadius": 2},
        "label": {"show": False} if label is None else shown,
    }


def waterfall(steps: Sequence[Step], *, label: str) -> None:
    """Draw the columns with their amounts. A column that crosses zero consists of two bars."""
    base: list[float] = []
    above: list[dict[str, Any]] = []
    below: list[dict[str, Any]] = []
    for step, (begin, end) in zip(steps, bars(steps), strict=True):
        low, high = min(begin, end), max(begin, end)
        base.append(low if low > 0 else high if high < 0 else 0.0)
        up, down = max(high, 0.0) - max(low, 0.0), min(low, 0.0) - min(high, 0.0)
        is_above = up > 0 or down == 0
        colour = _TOTAL if step.is_total else _UP if end >= begin else _DOWN
        above.append(_bar(up, colour, step.amount.text if is_above else None, "top"))
        below.append(_bar(down, colour, None if is_above else step.amount.text, "bottom"))
    series = {
        "type": "bar",
        "stack": "all",
        "barMaxWidth": 46,
        "silent": True,
        "labelLayout": {"hideOverlap": True},
    }
    chart = ui.echart(
        {
            "animation": False,
            "textStyle": {"fontFamily": "system-ui, sans-serif"},
            "grid": {"left": 6, "right": 12, "top": 26, "bottom": 22, "containLabel": True},
            "xAxis": {
                "type": "category",
                "data": [step.name for step in steps],
                "axisLabel": {
                    "color": _AXIS,
                    "fontSize": 11,
                    "interval": 0,
                    "rotate": 30,
                },
                "axisLine": {"lineStyle": {"color": _GRID}},
                "axisTick": {"show": False},
            },
            "yAxis": {
                "type": "value",
                "axisLabel": {"color": _AXIS, "fontSize": 11, ":formatter": _DOLLARS},
                "splitLine": {"lineStyle": {"color": _GRID}},
                "splitNumber": 4,
            },
            "series": [
                {**series, "data": base, "itemStyle": {"color": "transparent"}},
                {**series, "data": above},
                {**series, "data": below},
            ],
            "aria": {"enabled": True, "label": {"description": label}},
        }
    ).classes("tall")
    chart.props["role"] = "img"
    chart.props["aria-label"] = label
