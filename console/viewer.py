"""The viewer of a page, and the wrappers of its handlers, which check the session and show errors."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from nicegui import ui

from admin.actor import Actor
from console.sessions import Session, SessionStore
from core.errors import PenstockError, WaitsForApproval

log = logging.getLogger(__name__)

PLATFORM_ROLES = frozenset({"platform_admin", "finance"})
TENANT_ROLES = frozenset({"tenant_owner", "tenant_developer", "tenant_viewer"})
ADMIN_ROLES = frozenset({"platform_admin"})
BILLING_ROLES = PLATFORM_ROLES
"""Roles that may grant credit and set budgets and prices."""


class SignedOut(Exception):
    """The session ended while the page was open."""


class Viewer:
    """The signed-in person behind one page."""

    def __init__(self, session: Session, token: str, sessions: SessionStore, address: str = "") -> None:
        self.session = session
        self._token = token
        self._sessions = sessions
        self._address = address

    async def refused(self, act: str, error: PenstockError) -> None:
        """Record that an act of the viewer was refused, if the error is a denial."""
        await self._sessions.record_denial(self.actor, act, error, self._address)

    @property
    def actor(self) -> Actor:
        """The actor that admin functions record."""
        return self.session.actor

    @property
    def role(self) -> str:
        """The role of the session."""
        return self.session.actor.role

    @property
    def is_platform(self) -> bool:
        """Whether the viewer belongs to the platform and not to one organisation."""
        return self.role in PLATFORM_ROLES

    @property
    def is_admin(self) -> bool:
        """Whether the viewer may act on tenants and pools."""
        return self.role in ADMIN_ROLES

    @property
    def may_bill(self) -> bool:
        """Whether the viewer may change money: credit, budgets, prices."""
        return self.role in BILLING_ROLES

    @property
    def scope(self) -> UUID | None:
        """The organisation that the viewer may read; None = all."""
        return None if self.is_platform else self.tenant_id

    @property
    def tenant_id(self) -> UUID:
        """The viewer's organisation. Raises SignedOut for platform roles, which have none."""
        if self.actor.tenant_id is None:
            raise SignedOut
        return self.actor.tenant_id

    async def check(self) -> None:
        """Check the session before an action and read the present role. Raises SignedOut."""
        session = await self._sessions.use(self._token)
        if session is None or session.actor.id != self.session.actor.id:
            raise SignedOut
        self.session = session

    def act(self, handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[None]]:
        """Wrap an event handler: check the session first, and show errors as messages on the page."""

        async def run(*args: Any) -> None:
            try:
                await self.check()
                await handler(*args)
            except SignedOut:
                ui.navigate.to("/sign-in")
            except WaitsForApproval as waiting:
                toast_info(f"{waiting.message[:1].upper()}{waiting.message[1:]}.")
            except PenstockError as error:
                await self.refused(getattr(handler, "__qualname__", type(handler).__name__), error)
                toast_error(error.message)
            except Exception:
                log.exception("a console action failed")
                toast_error("Something went wrong on our side; nothing was changed. Try again in a moment.")

        return run

    def live(self, interval_s: float, refresh: Callable[[], Awaitable[None]]) -> ui.timer:
        """Run `refresh` every `interval_s` seconds until the page closes or the session ends."""
        failing = False

        async def tick() -> None:
            nonlocal failing
            try:
                if not await self._sessions.is_alive(self._token):
                    raise SignedOut
                await refresh()
                failing = False
            except SignedOut:
                timer.cancel()
                ui.navigate.to("/sign-in")
            except Exception:
                if not failing:
                    log.exception("a live refresh failed")
                    toast_error("Live figures are paused: the data could not be read. Retrying.")
                failing = True

        timer = ui.timer(interval_s, tick, immediate=False)
        return timer


def toast_ok(message: str) -> None:
    """Show a confirmation for 4 s."""
    ui.notify(message, position="bottom-right", classes="toast-ok", timeout=4000, attrs={"role": "status"})


def toast_info(message: str) -> None:
    """Show what happened instead of the act, until dismissed, at most 10 s."""
    ui.notify(
        message,
        position="bottom-right",
        classes="toast-ok",
        timeout=10_000,
        multi_line=True,
        close_button="Dismiss",
        attrs={"role": "status"},
    )


def toast_error(message: str) -> None:
    """Show an error until dismissed, at most 10 s."""
    ui.notify(
        message,
        position="bottom-right",
        classes="toast-bad",
        timeout=10_000,
        multi_line=True,
        close_button="Dismiss",
        attrs={"role": "alert"},
    )
