"""Tabs that the address selects: each tab is a link, and only the selected one is drawn."""

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from console.components.base import Text, box


def chosen_tab(params: QueryParams, tabs: Mapping[str, str]) -> str:
    """The tab of the address's `tab` parameter, else the first tab."""
    name = params.get("tab", "")
    return name if name in tabs else next(iter(tabs))


def link_tabs(path: str, tabs: Mapping[str, str], current: str, *, label: str, **keep: str) -> None:
    """One link per tab. `keep` holds query parameters that every link carries, such as the month."""
    with box("nav", "link-tabs", aria_label=label):
        for name, words in tabs.items():
            query = urlencode({"tab": name, **{key: value for key, value in keep.items() if value}})
            link = Text("a", words)
            link.props["href"] = f"{path}?{query}"
            if name == current:
                link.props["aria-current"] = "page"
