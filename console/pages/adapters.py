"""LoRA adapters of a customer, and the address to which its browser sends their files."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from admin.adapter_upload import Transfers
from console.components.base import page_head
from console.deps import Console
from console.panels.adapters import UPLOAD_PATH, AdaptersPanel
from console.viewer import Viewer
from core.errors import Conflict, PenstockError, PermissionDenied, RequestTooLarge, Unavailable
from tenants.roles import KEY_MANAGERS

_TRANSFERS = Transfers()
_STATUS = ((PermissionDenied, 403), (RequestTooLarge, 413), (Conflict, 409), (Unavailable, 503))


async def build(console: Console, viewer: Viewer, request: Request) -> None:
    """Draw the adapters of the viewer's organisation."""
    panel = AdaptersPanel(console, viewer, viewer.tenant_id, _TRANSFERS)
    with page_head(
        "Adapters",
        "LoRA adapters of your organisation, at their own prices or the model's.",
    ):
        if viewer.role in KEY_MANAGERS:
            panel.add_buttons()
    await panel.draw()


def add_upload(app: FastAPI, console: Console) -> None:
    """Register the address of uploads, below the page's path, whose roles it shares."""

    @app.post(UPLOAD_PATH)
    async def upload(request: Request) -> JSONResponse:
        """Store the adapter in the form. Errors are answered as `message`, for people."""
        viewer: Viewer = request.state.viewer
        try:
            made = await _TRANSFERS.upload(
                console.database,
                viewer.actor,
                console.settings,
                tenant_id=viewer.tenant_id,
                request=request,
            )
        except PenstockError as error:
            await viewer.refused(UPLOAD_PATH, error)
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
            return JSONResponse({"message": error.message}, status)
        return JSONResponse({"message": made.public_name}, 201)
