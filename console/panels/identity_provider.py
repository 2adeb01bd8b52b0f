"""The form of an identity provider (OpenID Connect)."""

from collections.abc import Awaitable, Callable
from uuid import UUID

from nicegui import ui

from admin import identity_providers
from console.components.base import Text
from console.components.dialogs import confirm, form_dialog, secondary, text_input
from console.deps import Console
from console.layout import ROLE_NAMES
from console.oidc import CALLBACK
from console.viewer import Viewer, toast_ok
from core.public_addresses import parse_hosts
from tenants.roles import TENANT_ROLES

_NONE = ""


async def open_provider_form(
    console: Console, viewer: Viewer, tenant_id: UUID | None, done: Callable[[], Awaitable[None]]
) -> None:
    """Set, change or remove the provider of an organisation, or of the platform (None); then call `done`."""
    present = await identity_providers.get_provider(console.database, viewer.actor, tenant_id=tenant_id)

    async def save() -> bool:
        await identity_providers.set_provider(
            console.database,
            viewer.actor,
            pepper=console.key_pepper,
            allow_hosts=parse_hosts(console.settings.oidc_allow_hosts),
            tenant_id=tenant_id,
            issuer=issuer.value.strip(),
            client_id=client_id.value.strip(),
            client_secret=secret.value.strip() or None,
            mail_domains=[each for each in domains.value.replace(",", " ").split() if each],
            default_role=role.value or None,
        )
        toast_ok("The identity provider is set.")
        await done()
        return True

    async def remove() -> None:
        body = "People sign in with their passwords again. Sessions and tokens stay."
        title = "Remove the identity provider?"
        if await confirm(viewer, title, body, "Remove", danger=True, needs_reason=False) is None:
            return
        await identity_providers.remove_provider(console.database, viewer.actor, tenant_id=tenant_id)
        dialog.close()
        toast_ok("The identity provider is removed.")
        await done()

    sub = f"Its redirect address is this console's with {CALLBACK}."
    with form_dialog("Identity provider", "Save", viewer, save, sub=sub) as dialog:
        issuer = text_input(
            "Issuer", "" if present is None else present.issuer, hint="Such as https://login.example.com."
        )
        client_id = text_input("Client id", "" if present is None else present.client_id)
        secret = text_input(
            "Client secret",
            kind="password",
            hint=""
            if present is None
            else "Leave empty to keep the stored one. A new issuer or client id needs its own.",
        )
        domains = text_input(
            "Mail domains",
            "" if present is None else ", ".join(present.mail_domains),
            hint="Of the people who sign in by it."
            if viewer.is_platform
            else "The platform's admins add new ones.",
        )
        roles = {_NONE: "People without an account are refused"}
        if tenant_id is not None:
            roles |= {each: f"Newcomers become {ROLE_NAMES[each]}" for each in TENANT_ROLES}
        value = _NONE if present is None else present.default_role or _NONE
        role = ui.select(roles, value=value, label="Newcomers").props("outlined dense").classes("w-full")
        if present is None:
            Text("p", "None is set.", "muted")
        else:
            secondary("Remove", viewer.act(remove))
