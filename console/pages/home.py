"""Home page of a customer: four steps to the first response with ready-to-run code, and the API keys."""

import asyncio
from decimal import Decimal

from fastapi import Request
from nicegui import ui

from admin import accounts as admin_accounts
from admin import keys as admin_keys
from admin import maintenance as admin_maintenance
from admin import model_life as admin_life
from admin import tenants as admin_tenants
from console.components.base import Text, box, card, code, icon, notice, page_head
from console.deps import Console
from console.format import money
from console.panels.keys import keys_panel
from console.panels.model_life import show_endings
from console.queries import has_requests
from console.viewer import Viewer
from workers.wire import ReplicaState

_CURL = """\
curl {base}/chat/completions \\
  -H "Authorization: Bearer $PENSTOCK_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello"}}]}}'"""
_PYTHON = """\
import os

from openai import OpenAI  # pip install openai

client = OpenAI(base_url="{base}", api_key=os.environ["PENSTOCK_API_KEY"])
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Say hello"}}],
)
print(answer.choices[0].message.content)"""


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the checklist of the viewer's organisation."""
    tenant_id = viewer.tenant_id
    tenant, keys, account, called, endings, halt = await asyncio.gather(
        admin_tenants.get_tenant(console.database, viewer.actor, tenant_id=tenant_id),
        admin_keys.list_keys(console.database, viewer.actor, tenant_id=tenant_id),
        admin_accounts.get_account(console.database, viewer.actor, tenant_id=tenant_id),
        has_requests(console.database, tenant_id),
        admin_life.endings_of(console.database, viewer.actor, tenant_id=tenant_id),
        admin_maintenance.get_maintenance(console.database, viewer.actor),
    )
    has_key = any(key.status == "active" for key in keys)
    has_money = account.available_usd is None or Decimal(account.available_usd) > 0
    with page_head(
        tenant.name, "Four steps to your first answer." if not called else "Your keys and how to call."
    ):
        pass
    if halt is not None:
        notice("warn", "In maintenance: requests that begin are refused", halt.notice)
    show_endings(console, endings)
    with card("First call"), box("ol", "checklist"):
        _step(
            1,
            "Have an API key",
            has_key,
            "Make one below. It is shown once; store it where your program reads secrets.",
        )
        _step(2, "Have credit", has_money, _credit(account.available_usd))
        with _step(
            3, "Send a request", called, "Put the key into PENSTOCK_API_KEY, then paste one of these."
        ):
            _snippets(console)
        _step(
            4,
            "See what it cost",
            called,
            "Every answered request shows up, priced, under Usage within seconds.",
        )
    await keys_panel(console, viewer, tenant_id)


def _credit(available_usd: str | None) -> str:
    if available_usd is None:
        return "Usage is invoiced; there is nothing to pay first."
    return f"{money(available_usd).text} available to this organisation."


def _step(number: int, title: str, done: bool, body: str) -> ui.element:
    """One step of the list; returns the container below its text."""
    with box("li", "done" if done else ""):
        with box("span", "mark", role="img", aria_label="Done" if done else f"Step {number}"):
            if done:
                icon("check")
            else:
                Text("span", str(number))
        with box("div", "stack") as place:
            Text("h3", title)
            Text("p", body, "muted")
    return place


def _snippets(console: Console) -> None:
    ready = sorted(
        {one.model for one in console.scheduler.snapshot().replicas if one.state == ReplicaState.READY}
    )
    values = {"base": console.api_base_url, "model": ready[0] if ready else "MODEL"}
    with ui.tabs().props("no-caps align=left").classes("tabs") as tabs:
        ui.tab("curl", "curl")
        ui.tab("python", "Python")
    with ui.tab_panels(tabs, value="curl", animated=False):
        with ui.tab_panel("curl"):
            code(_CURL.format(**values), label="First request with curl")
        with ui.tab_panel("python"):
            code(_PYTHON.format(**values), label="First request with Python")
