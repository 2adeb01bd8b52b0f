"""Finance: margin and its changes, GPU cost, the books, exports."""

from uuid import UUID

from fastapi import FastAPI, Request, Response

from admin import exports as admin_exports
from admin import periods as admin_periods
from billing.ledger.months import month_name, parse_month
from console.components.base import page_head
from console.components.tabs import chosen_tab, link_tabs
from console.deps import Console
from console.pages.periods import known_month, month_select
from console.panels.books import books_panel
from console.panels.exports import exports_panel
from console.panels.margin import margin_panel
from console.panels.provider import provider_panel
from console.plain import message_page
from console.viewer import Viewer
from core.errors import NotFound, PenstockError

TABS = {"margin": "Margin", "provider": "GPU cost", "books": "Books", "exports": "Exports"}


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the tab and the month that the address selects."""
    periods = await admin_periods.list_periods(console.database, viewer.actor)
    month = known_month(request.query_params.get("month", ""), periods) or parse_month(periods[0].month)
    tab = chosen_tab(request.query_params, TABS)
    with page_head("Finance", "Amounts in US dollars without tax, exact on hover. Times are UTC."):
        month_select(periods, month, "/finance", tab)
    link_tabs("/finance", TABS, tab, label="Finance", month=month_name(month))
    if tab == "margin":
        await margin_panel(console, viewer, month, request.query_params)
    elif tab == "provider":
        await provider_panel(console, viewer, month)
    elif tab == "books":
        await books_panel(console, viewer, month)
    else:
        await exports_panel(console, viewer, month)


def add_export_download(app: FastAPI, console: Console) -> None:
    """Register the download of export files; AccessMiddleware admits only platform roles below /finance."""

    @app.get("/finance/exports/{run_id}")
    async def export_file(request: Request, run_id: str) -> Response:
        """The file of one export run, verified against its checksum."""
        viewer: Viewer = request.state.viewer
        try:
            found = await admin_exports.fetch(
                console.database, viewer.actor, console.settings, run_id=UUID(run_id)
            )
        except (ValueError, NotFound) as error:
            return message_page(404, "Not found", str(error))
        except PenstockError as error:
            await viewer.refused(request.scope["route"].path, error)
            return message_page(409, "No file", error.message)
        return Response(
            found.content,
            media_type=found.media_type,
            headers={"content-disposition": f'attachment; filename="{found.name}"'},
        )
