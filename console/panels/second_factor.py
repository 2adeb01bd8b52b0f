"""The own second factor: enrol an authenticator app, renew backup codes, disable. Each asks for the password."""

from collections.abc import Sequence
from uuid import UUID

from nicegui import ui

from admin import second_factor
from admin.factor_codes import GivenCode
from admin.logins import RightPassword, right_password
from console.components.base import Text, box, card, copy_button
from console.components.dialogs import form_dialog, primary, secondary, show_secret, text_input
from console.deps import Console
from console.plain import qr_code
from console.viewer import Viewer, toast_ok


class SecondFactorCard:
    """Whether sign-ins ask for a code, with what changes it."""

    def __init__(self, console: Console, viewer: Viewer) -> None:
        self._console, self._viewer = console, viewer
        with card(
            "Second factor", "A code of an authenticator app, which sign-ins ask for besides the password."
        ):
            self._body = box("div", "stack")

    async def refresh(self) -> None:
        """Read and show the present state."""
        state = await second_factor.state_of(self._console.database, UUID(self._viewer.actor.id))
        self._body.clear()
        with self._body:
            if not state.enrolled:
                Text("p", "Your password alone signs you in.", "muted")
                with box("div", "actions"):
                    primary("Enrol an authenticator app", self._viewer.act(self._enrol), icon="qr_code_2")
                return
            left = state.backup_codes_left
            Text("p", f"On. {left} backup {'code is' if left == 1 else 'codes are'} left.", "muted")
            with box("div", "actions"):
                secondary("New backup codes", self._viewer.act(self._renew))
                primary("Disable", self._viewer.act(self._disable), danger=True)

    async def _right(self, password: str) -> RightPassword:
        address = self._address
        return await right_password(
            self._console.database, self._viewer.session.email, password, address=address
        )

    @property
    def _address(self) -> str:
        """Where the page is shown: by it wrong passwords are counted."""
        return self._console.addresses.of(ui.context.client.request.scope)

    def _given(self, code: str) -> GivenCode:
        return GivenCode(code, self._console.key_pepper, self._console.clock.now())

    async def _enrol(self) -> None:
        """Ask for the password, then show the secret."""

        async def save() -> bool:
            right = await self._right(password.value)
            made = await second_factor.begin_enrolment(
                self._console.database, right, pepper=self._console.key_pepper, address=self._address
            )
            self._show(right, made)
            return True

        with form_dialog("Enrol an authenticator app", "Continue", self._viewer, save):
            password = _password_input()

    def _show(self, right: RightPassword, made: second_factor.Enrolment) -> None:
        """Show the secret until a code of it is given."""

        async def save() -> bool:
            done = await second_factor.confirm_enrolment(
                self._console.database,
                right,
                self._given(code.value),
                address=self._address,
                keep=self._viewer.session.id,
            )
            await self._show_codes(done.backup_codes)
            return True

        sub = (
            "Scan this with your authenticator app, or type the secret in. Then give the code that it shows."
        )
        with (
            ui.context.client.content,  # the form before this one is deleted
            form_dialog("Scan the code", "Enrol", self._viewer, save, sub=sub),
        ):
            box("img", "qr", src=qr_code(made.uri), alt="QR code of the secret")
            with box("div", "secret"):
                Text("code", made.secret)
                copy_button(made.secret)
            code = _code_input("Six digits.")

    async def _renew(self) -> None:
        """Ask for password and code, then show new backup codes."""

        async def save() -> bool:
            right = await self._right(password.value)
            codes = await second_factor.renew_backup_codes(
                self._console.database, right, self._given(code.value), address=self._address
            )
            await self._show_codes(codes)
            return True

        with form_dialog("New backup codes", "Make codes", self._viewer, save, sub="Earlier ones end."):
            password, code = _password_input(), _code_input()

    async def _disable(self) -> None:
        """Ask for password and code, and disable."""

        async def save() -> bool:
            right = await self._right(password.value)
            await second_factor.disable(
                self._console.database, right, self._given(code.value), address=self._address
            )
            toast_ok("Your password alone signs you in.")
            await self.refresh()
            return True

        sub = "Your password alone signs you in afterwards."
        with form_dialog("Disable the second factor", "Disable", self._viewer, save, sub=sub):
            password, code = _password_input(), _code_input()

    async def _show_codes(self, codes: Sequence[str]) -> None:
        await self.refresh()
        body = "Each works once in place of a code of your app. They are shown this once: keep them safe."
        show_secret("Store these backup codes now", body, "\n".join(codes))


def _password_input() -> ui.input:
    return text_input("Password", kind="password").props(
        "autofocus autocomplete=current-password maxlength=1024"
    )


def _code_input(hint: str = "Of your app, or a backup code.") -> ui.input:
    return text_input("Code", hint=hint).props("autocomplete=one-time-code maxlength=64")
