"""The static parts of a page: text, cards, numbers, notices."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from console.format import Formatted


class Text(TextElement):
    """A plain HTML element that holds text."""

    def __init__(self, tag: str, content: str, classes: str = "", title: str = "") -> None:
        super().__init__(tag=tag, text=content)
        if classes:
            self.classes(classes)
        if title:
            self.props["title"] = title


def box(tag: str = "div", classes: str = "", **attributes: str) -> Element:
    """An HTML element that contains others. Underscores in attribute names become dashes."""
    element = ui.element(tag)
    if classes:
        element.classes(classes)
    for name, value in attributes.items():
        element.props[name.rstrip("_").replace("_", "-")] = value
    return element


def icon(name: str) -> None:
    """A decorative icon of the outlined set of Material Icons."""
    ui.icon(f"o_{name}")


def formatted(value: Formatted, tag: str = "span", classes: str = "num") -> Text:
    """A formatted value with its exact form as the tooltip."""
    return Text(tag, value.text, classes, value.exact)


@contextmanager
def page_head(title: str, sub: str = "", *, crumb: tuple[str, str] | None = None) -> Iterator[None]:
    """The page's headline. Elements created inside form its row of actions."""
    with box("header", "page-head"):
        with box("div", "titles"):
            if crumb:
                Text("a", f"← {crumb[0]}", "crumb").props["href"] = crumb[1]
            Text("h1", title)
            if sub:
                Text("p", sub, "sub")
        with box("div", "actions"):
            yield


@contextmanager
def card(title: str = "", sub: str = "", *, flush: bool = False) -> Iterator[Element]:
    """A bordered card with a headline; yields the headline's row of actions. `flush` removes the padding."""
    with box("section", "card"):
        actions = None
        if title:
            with box("div", "card-head"):
                with box("div", "titles"):
                    Text("h2", title)
                    if sub:
                        Text("p", sub)
                actions = box("div", "actions")
        with box("div", "card-body flush" if flush else "card-body") as body:
            yield actions or body


class Stat:
    """A number with its label; `set` changes it in place."""

    def __init__(self, label: str, value: Formatted, hint: str = "") -> None:
        with box("section", "card stat"):
            Text("div", label, "label")
            self._value = Text("div", value.text, "value", value.exact)
            self._hint = Text("div", hint, "hint")

    def set(self, value: Formatted, hint: str | None = None) -> None:
        """Show another value. `hint` None keeps the present hint."""
        self._value.set_text(value.text)
        self._value.props["title"] = value.exact
        if hint is not None:
            self._hint.set_text(hint)


def badge(label: str, tone: str = "idle", title: str = "") -> Text:
    """A state as a word with a coloured dot; colour never carries the meaning alone."""
    return Text("span", label, f"badge {tone}", title)


_NOTICE_ICONS = {"bad": "error", "warn": "warning", "ok": "check_circle", "info": "info", "idle": "info"}


def notice(tone: str, headline: str, body: str = "", href: str = "", link: str = "") -> None:
    """A highlighted message with an optional link. `tone` is bad, warn, ok, info or idle."""
    with box("div", f"notice {tone}", role="alert" if tone == "bad" else "status"):
        icon(_NOTICE_ICONS[tone])
        with box("div", "grow"):
            Text("b", headline)
            if body:
                Text("span", body)
        if href:
            Text("a", link or "Open").props["href"] = href


def empty(icon_name: str, headline: str, body: str) -> None:
    """The placeholder of an empty list: that there is no data, and how to get some."""
    with box("div", "empty"):
        icon(icon_name)
        Text("b", headline)
        Text("p", body)


def description_list(items: Sequence[tuple[str, Formatted | str]]) -> None:
    """Names and values in two columns."""
    with box("dl", "facts"):
        for name, value in items:
            Text("dt", name)
            if isinstance(value, Formatted):
                Text("dd", value.text, "", value.exact)
            else:
                Text("dd", value)


def meter(share: float | None, label: str) -> Element:
    """A usage bar for `share` (0 to 1; None = empty): amber above 80 percent, red when full."""
    width = 0.0 if share is None else max(0.0, min(1.0, share))
    tone = "bad" if width >= 1 else "warn" if width >= 0.8 else ""
    with box("div", f"bar {tone}", role="img", aria_label=label) as bar:
        box("i").style(f"width: {width * 100:.1f}%")
    return bar


def link_button(label: str, href: str, icon_name: str = "", *, download: bool = False) -> None:
    """A link styled as a button, for navigation and downloads; actions use real buttons."""
    with box("a", "linkbtn", href=href) as link:
        if download:
            link.props["download"] = ""
        if icon_name:
            icon(icon_name)
        Text("span", label)


def copy_button(text: str, label: str = "Copy") -> None:
    """A button that copies `text` to the clipboard."""
    button = ui.button(label, icon="o_content_copy", color=None).props("flat no-caps").classes("plain")
    button.props["data-copy"] = text


def code(text: str, *, label: str) -> None:
    """A block of code with a copy button."""
    with box("div", "stack"):
        Text("pre", text, "code").props.update({"tabindex": "0", "aria-label": label})
        with box("div", "actions"):
            copy_button(text)


def as_text(value: object) -> str:
    """A JSON value as one readable line."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
