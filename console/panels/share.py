"""An organisation's fair share of busy pools; platform admins may change it."""

from nicegui import ui

from admin import tenants as admin_tenants
from console.components.base import Text, box, card
from console.components.dialogs import form_dialog, secondary, text_input
from console.deps import Console
from console.viewer import Viewer
from tenants.views import TenantView


def parse_share(text: str) -> int:
    """A share in percent from user input, with or without its sign. Raises ValueError with a user message."""
    digits = text.strip().removesuffix("%").strip().replace(",", "")
    most = admin_tenants.SHARE_PERCENT_MAX
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 6) or not 1 <= int(digits) <= most:
        raise ValueError(f"A whole number from 1 to {most}.")
    return int(digits)


def share_panel(console: Console, viewer: Viewer, tenant: TenantView) -> None:
    """Draw the share, for platform admins with the button that changes it."""
    with card("Fair share", "What it gets of a busy pool beside others of its tier; 100 % is the usual."):
        Text("p", f"{tenant.share_percent:,} %")
        if viewer.is_admin:

            async def change() -> None:
                _open_form(console, viewer, tenant)

            with box("div", "actions"):
                secondary("Change share", viewer.act(change), icon="balance")


def _open_form(console: Console, viewer: Viewer, tenant: TenantView) -> None:
    async def save() -> bool:
        try:
            percent = parse_share(share.value or "")
            share.error = None
        except ValueError as error:
            share.error = str(error)
        reason.error = None if (reason.value or "").strip() else "Say why: it goes to the audit log."
        if share.error or reason.error:
            return False
        await admin_tenants.set_share(
            console.database, viewer.actor, tenant_id=tenant.id, percent=percent, reason=reason.value.strip()
        )
        ui.navigate.reload()
        return True

    sub = "Of two that wait for the same model, one at 200 is served twice as much as one at 100."
    with form_dialog(f"Fair share of {tenant.name}", "Save", viewer, save, sub=sub):
        share = text_input("Share, percent", str(tenant.share_percent))
        reason = text_input("Reason", hint="Kept in the audit log.").props("maxlength=500")
