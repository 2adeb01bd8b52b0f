"""The frame around every page: navigation by role, the signed-in person, theme, sign-out."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from nicegui import ui

from console.components.base import Text, box, icon
from console.viewer import PLATFORM_ROLES, TENANT_ROLES, Viewer

ROLE_NAMES = {
    "platform_admin": "Platform admin",
    "finance": "Finance",
    "tenant_owner": "Owner",
    "tenant_developer": "Developer",
    "tenant_viewer": "Viewer",
}


class NavItem(msgspec.Struct, frozen=True):
    """One item of the navigation."""

    label: str
    path: str
    icon: str
    roles: frozenset[str]
    group: str = ""


NAVIGATION = (
    NavItem("Home", "/home", "rocket_launch", TENANT_ROLES),
    NavItem("Adapters", "/adapters", "extension", TENANT_ROLES),
    NavItem("Overview", "/overview", "space_dashboard", PLATFORM_ROLES),
    NavItem("Pools", "/pools", "dns", PLATFORM_ROLES),
    NavItem("Tenants", "/tenants", "apartment", PLATFORM_ROLES, "Customers"),
    NavItem("Models and prices", "/models", "sell", PLATFORM_ROLES, "Money"),
    NavItem("Requests", "/requests", "list_alt", PLATFORM_ROLES | TENANT_ROLES, "Money"),
    NavItem("Usage", "/usage", "bar_chart", PLATFORM_ROLES | TENANT_ROLES, "Money"),
    NavItem("Billing", "/billing", "account_balance_wallet", TENANT_ROLES, "Money"),
    NavItem("Billing", "/periods", "receipt_long", PLATFORM_ROLES, "Money"),
    NavItem("Finance", "/finance", "query_stats", PLATFORM_ROLES, "Money"),
    NavItem("Reconciliation", "/reconciliation", "balance", PLATFORM_ROLES, "Money"),
    NavItem("Alerts", "/alerts", "notifications", PLATFORM_ROLES | TENANT_ROLES, "Money"),
    NavItem("Audit log", "/audit", "history", PLATFORM_ROLES, "Record"),
    NavItem("Account", "/account", "manage_accounts", PLATFORM_ROLES | TENANT_ROLES, "You"),
)


def _brand() -> None:
    with box("a", "brand", href="/"):
        box("img", src="/static/mark.svg", alt="")
        Text("span", "Penstock")


def _sidebar(viewer: Viewer, current: str) -> None:
    with box("aside", "rail", id="rail"):
        _brand()
        with box("nav", aria_label="Main"):
            group = ""
            for item in NAVIGATION:
                if viewer.role not in item.roles:
                    continue
                if item.group != group:
                    group = item.group
                    Text("div", group, "rail-group")
                with box("a", "rail-link", href=item.path) as link:
                    if item.path == current:
                        link.props["aria-current"] = "page"
                    icon(item.icon)
                    Text("span", item.label)
        with box("div", "rail-foot"):
            with box("div", "rail-user"):
                Text("b", viewer.session.email, title=viewer.session.email)
                Text("span", ROLE_NAMES[viewer.role])
            with box("div", "rail-tools"):
                with box(
                    "button", "formbtn", type="button", data_theme="toggle", aria_label="Light or dark"
                ) as theme:
                    theme.style("flex: none; width: 40px")
                    icon("contrast")
                with box("form", method="post", action="/sign-out"), box("button", "formbtn", type="submit"):
                    icon("logout")
                    Text("span", "Sign out")


@contextmanager
def frame(viewer: Viewer, current: str) -> Iterator[None]:
    """Draw the frame; elements created inside form the page. `current` is the path of its navigation item."""
    ui.colors(
        primary="#0b6478", secondary="#566774", accent="#0b6478", negative="#b3261e", positive="#17693f"
    )
    with box("div", "shell"):
        Text("a", "Skip to content", "skip").props["href"] = "#content"
        with box("div", "topbar"):
            with box("button", "menu-btn", type="button", aria_label="Menu", aria_controls="rail") as menu:
                menu.props["aria-expanded"] = "false"
                icon("menu")
            _brand()
        box("div", "scrim")
        _sidebar(viewer, current)
        with box("div", "page", id="content", tabindex="-1"):  # Quasar puts all into `main`
            yield
