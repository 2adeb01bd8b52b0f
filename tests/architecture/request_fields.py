"""The table of request fields on the page of the customer API, written from the code.

`python -m tests.architecture.request_fields` prints it; with --write it renews the table in docs/api.md.
"""

import sys
from pathlib import Path

from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.fields import IGNORED, REFUSED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
BEGIN, END = "<!-- fields: begin -->", "<!-- fields: end -->"


def table() -> str:
    """Return the three lists as Markdown."""
    chat, text = set(ChatRequest.__struct_fields__), set(CompletionRequest.__struct_fields__)
    lines = [
        "| fields | |",
        "|---|---|",
        f"| accepted by both routes | {_names(chat & text)} |",
        f"| accepted by chat | {_names(chat - text)} |",
        f"| accepted by text completions | {_names(text - chat)} |",
        f"| without effect | {'; '.join(f'`{name}`: {why}' for name, why in sorted(IGNORED.items()))} |",
        "",
        "| refused field | instead | harmless values |",
        "|---|---|---|",
    ]
    for name, refused in sorted(REFUSED.items()):
        values = ", ".join(f"`{value.decode()}`" for value in sorted(refused.harmless))
        lines.append(f"| `{name}` | {refused.reason} | {values} |")
    return "\n".join(lines)


def _names(fields: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(fields))


def page_with(text: str) -> str:
    """Return `text`, the page, with a new table between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page_with(PAGE.read_text()))
    else:
        print(table())
