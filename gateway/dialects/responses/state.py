"""The state of a stored response, read from its row: a response in the background changes until it ends."""

import zlib
from typing import Any

import msgspec

STATE = "response, coalesce(runs_until > now(), false) AS runs, runs_until IS NOT NULL AS open, in_progress, cancel"
"""The columns that `document_of` needs. `open`: the process that runs it has not written its end."""
LOST = "The server that generated this response has ended before it was complete; send the request again."
"""The message of a response whose process has died."""


def document_of(row: Any) -> bytes:
    """Return the response object of a row with the columns STATE.

    One that runs is queued or in progress, or cancelled as soon as its client has asked for it: its output follows when
    its process has ended it. One whose process has died has failed.
    """
    document = zlib.decompress(row.response)
    if not row.open:
        return document
    changed: dict[str, Any] = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    if row.cancel:
        changed["status"] = "cancelled"
    elif row.runs:
        changed["status"] = "in_progress" if row.in_progress else "queued"
    else:
        changed["status"] = "failed"
        changed["error"] = {"code": "server_error", "message": LOST}
    return msgspec.json.encode(changed)
