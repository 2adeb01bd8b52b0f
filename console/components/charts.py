"""Line and bar charts over time (ECharts from local files). The colours suit the light and the dark theme."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nicegui import ui

PALETTE = ("#1d8ba3", "#c98a1b", "#6f7fd1", "#4da674", "#c8615a", "#8d99a5")
_AXIS = "#8496a3"
_COMPACT = "value => Intl.NumberFormat('en', {notation: 'compact'}).format(value)"
_GRID = "rgba(132,150,163,0.18)"


def _base() -> dict[str, Any]:
    text = {"color": _AXIS, "fontSize": 11}
    return {
        "color": list(PALETTE),
        "animation": False,
        "textStyle": {"fontFamily": "system-ui, sans-serif"},
        "grid": {"left": 6, "right": 12, "top": 34, "bottom": 4, "containLabel": True},
        "legend": {
            "top": 0,
            "left": 0,
            "icon": "roundRect",
            "itemWidth": 10,
            "itemHeight": 4,
            "textStyle": {"color": _AXIS, "fontSize": 12},
        },
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "time",
            "axisLabel": {**text, "hideOverlap": True},
            "axisLine": {"lineStyle": {"color": _GRID}},
            "axisTick": {"show": False},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "axisLabel": {**text, ":formatter": _COMPACT},
            "splitLine": {"lineStyle": {"color": _GRID}},
            "splitNumber": 3,
            "min": 0,
        },
        "useUTC": True,
    }


class Chart:
    """A time chart; `set` replaces its series in place."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        kind: str = "line",
        stacked: bool = False,
        daily: bool = False,
        label: str,
    ) -> None:
        options = _base()
        style: dict[str, Any] = {"type": kind, "data": []}
        if kind == "line":
            style |= {
                "symbol": "circle",
                "symbolSize": 3,
                "lineStyle": {"width": 2},
                "areaStyle": {"opacity": 0.08},
            }
        else:
            style |= {"barMaxWidth": 14, "itemStyle": {"borderRadius": [2, 2, 0, 0]}}
        if stacked:
            style["stack"] = "all"
        options["series"] = [{**style, "name": name} for name in names]
        if len(names) == 1:
            options["legend"]["show"] = False
            options["grid"]["top"] = 12
        if daily:
            options["xAxis"] |= {
                "minInterval": 86_400_000,
                "axisLabel": {**options["xAxis"]["axisLabel"], "formatter": "{d} {MMM}"},
            }
        options["aria"] = {"enabled": True, "label": {"description": label}}
        self._chart = ui.echart(options)
        self._chart.props["role"] = "img"
        self._chart.props["aria-label"] = label

    def set(self, times: Sequence[datetime], *series: Sequence[float | None]) -> None:
        """Show `series`: each has one value per entry of `times`; None leaves a gap."""
        for drawn, values in zip(self._chart.options["series"], series, strict=True):
            drawn["data"] = [
                [int(at.timestamp() * 1000), value] for at, value in zip(times, values, strict=True)
            ]
        self._chart.update()
