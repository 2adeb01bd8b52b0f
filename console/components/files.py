"""Fields that choose a file of the viewer's machine, which stays there until a page asks for it."""

import msgspec
from nicegui import ui
from nicegui.element import Element

from console.components.base import Text, box

READ_S = 10.0
"""Seconds in which a browser reads a small file."""


class FileField:
    """A native file field with its label; `name` is that of its part in an upload's form."""

    def __init__(self, label: str, *, name: str, accept: str, hint: str = "") -> None:
        self.name = name
        with box("div", "filefield"):
            title = Text("label", label)
            self._input: Element = box("input", type="file", accept=accept, name=name)
            title.props["for"] = self.html_id
            if hint:
                Text("span", hint, "muted")

    @property
    def html_id(self) -> str:
        """The id of the field on the page."""
        return self._input.html_id

    async def read_text(self, most: int) -> str:
        """The first `most` characters of the chosen file; empty when none is chosen."""
        found = await ui.run_javascript(
            f"return (await document.getElementById('{self.html_id}').files[0]?.slice(0, {4 * most}).text() ?? '')"
            f".slice(0, {most})",
            timeout=READ_S,
        )
        return str(found)


class Uploaded(msgspec.Struct, frozen=True):
    """How an upload ended."""

    status: int
    """Of HTTP; 0 = the connection broke or the form was closed."""
    message: str


class UploadProgress:
    """A progress bar, hidden until an upload runs."""

    def __init__(self, label: str) -> None:
        self._bar = box("progress", "upload", max="1", value="0", aria_label=label)
        self._bar.set_visibility(False)

    async def send(
        self, url: str, fields: dict[str, str], files: list[FileField], *, most_bytes: int, most_s: float
    ) -> Uploaded:
        """Send a form with fields and the chosen files from the browser to `url`, and wait for its answer.

        Nothing is sent when a file is missing or all are larger than `most_bytes`.
        """
        self._bar.set_visibility(True)
        asked = msgspec.json.encode(
            [url, fields, [field.html_id for field in files], self._bar.html_id, most_bytes]
        ).decode()
        try:
            told = await ui.run_javascript(f"return await penstockUpload(...{asked})", timeout=most_s)
        except TimeoutError:
            return Uploaded(0, "The upload took too long.")
        finally:
            self._bar.set_visibility(False)
        return msgspec.convert(told, Uploaded)
