"""Words, cards, numbers, notices: the static parts of a page."""

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
    """An HTML element to put others in; attribute names take dashes for underscores."""
    element = ui.element(tag)
    if classes:
        element.classes(classes)
    for name, value in attributes.items():
        element.props[name.rstrip("_").replace("_", "-")] = value
    return element


def icon(name: str) -> None:
    """A decorative icon from the outlined set."""
    ui.icon(f"o_{name}")


def formatted(value: Formatted, tag: str = "span", classes: str = "num") -> Text:
    """A formatted value with its exact form on hover."""
    return Text(tag, value.text, classes, value.exact)


@contextmanager
def page_head(title: str, sub: str = "", *, crumb: tuple[str, str] | None = None) -> Iterator[None]:
    """The page's headline; what is put inside becomes its row of actions."""
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
    """A bordered surface with a headline; yields the headline's row of actions."""
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
    """One number of a page with its name; `set` changes it in place."""

    def __init__(self, label: str, value: Formatted, hint: str = "") -> None:
        with box("section", "card stat"):
            Text("div", label, "label")
            self._value = Text("div", value.text, "value", value.exact)
            self._hint = Text("div", hint, "hint")

    def set(self, value: Formatted, hint: str | None = None) -> None:
        """Show another value."""
        self._value.set_text(value.text)
        self._value.props["title"] = value.exact
        if hint is not None:
            self._hint.set_text(hint)


def badge(label: str, tone: str = "idle", title: str = "") -> Text:
    """A small state mark: a word and a dot, so that colour is never alone."""
    return Text("span", label, f"badge {tone}", title)


_NOTICE_ICONS = {"bad": "error", "warn": "warning", "ok": "check_circle", "info": "info", "idle": "info"}


def notice(tone: str, headline: str, body: str = "", href: str = "", link: str = "") -> None:
    """A sentence the reader should not miss."""
    with box("div", f"notice {tone}", role="alert" if tone == "bad" else "status"):
        icon(_NOTICE_ICONS[tone])
        with box("div", "grow"):
            Text("b", headline)
            if body:
                Text("span", body)
        if href:
            Text("a", link or "Open").props["href"] = href


def empty(icon_name: str, headline: str, body: str) -> None:
    """What stands where there is no data yet, and what to do about it."""
    with box("div", "empty"):
        icon(icon_name)
        Text("b", headline)
        Text("p", body)


def description_list(items: Sequence[tuple[str, Formatted | str]]) -> None:
    """Names and values, two columns."""
    with box("dl", "facts"):
        for name, value in items:
            Text("dt", name)
            if isinstance(value, Formatted):
                Text("dd", value.text, "", value.exact)
            else:
                Text("dd", value)


def meter(share: float | None, label: str) -> Element:
    """A bar of how much of something is used; amber above 80 percent, red when full."""
    width = 0.0 if share is None else max(0.0, min(1.0, share))
    tone = "bad" if width >= 1 else "warn" if width >= 0.8 else ""
    with box("div", f"bar {tone}", role="img", aria_label=label) as bar:
        box("i").style(f"width: {width * 100:.1f}%")
    return bar


def link_button(label: str, href: str, icon_name: str = "", *, download: bool = False) -> None:
    """A link that looks like a button: navigation and downloads are links, acts are buttons."""
    with box("a", "linkbtn", href=href) as link:
        if download:
            link.props["download"] = ""
        if icon_name:
            icon(icon_name)
        Text("span", label)


def copy_button(text: str, label: str = "Copy") -> None:
    """Copies `text` in the browser."""
    button = ui.button(label, icon="o_content_copy", color=None).props("flat no-caps").classes("plain")
    button.props["data-copy"] = text


def code(text: str, *, label: str) -> None:
    """A block of code with a copy button."""
    with box("div", "stack"):
        Text("pre", text, "code").props.update({"tabindex": "0", "aria-label": label})
        with box("div", "actions"):
            copy_button(text)


def as_text(value: object) -> str:
    """A JSON value in one line for people."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
