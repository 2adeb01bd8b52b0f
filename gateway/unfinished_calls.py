"""Takes the text of a tool call that the limit of the answer cut off out of an answer that came in one piece.

Engines parse the calls of a whole answer only if each has ended. They leave the text of one that has not as content, in
the model's own notation: its markup, or for a forced call the bare arguments. A stream withholds such text.
"""

import re

from gateway.schemas.common import PreparedRequest

_XML = re.escape("<tool_call>")
_DEEPSEEK = re.escape("<｜DSML｜")
_MINIMAX = re.escape("<minimax:tool_call>")
_LLAMA = re.escape("<|python_tag|>")
OPENINGS = {
    "hermes": _XML,
    "qwen3_coder": _XML,
    "deepseek_v32": _DEEPSEEK,
    "minimax_m2": _MINIMAX,
    # Llama writes a call as a bare object, too. Other objects of an answer are its text.
    "llama3_json": _LLAMA + r'|\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:',
}
"""Patterns of the text with which a call begins, by the engine's tool parser (vLLM 0.32, `vllm/tool_parsers`)."""
_ANY = "|".join(dict.fromkeys((_XML, _DEEPSEEK, _MINIMAX, _LLAMA)))
"""The markup of all of them, for an engine whose parser is not known."""
_FORCED = "\\A"
"""All of the content is the call."""


def opening_of(prepared: PreparedRequest, tool_parser: str) -> re.Pattern[str]:
    """Return the pattern of the text with which a call begins in the answer to a request with tools.

    `tool_parser`: the one of the model's engines; empty = not known. Must be called before `drop_body`.
    """
    if prepared.fields.get("tool_choice", "auto") != "auto":
        return re.compile(_FORCED)
    return re.compile(OPENINGS.get(tool_parser, _ANY))


def before_call(content: str, opening: re.Pattern[str]) -> str | None:
    """Return the text before the first `opening`; None when there is none."""
    found = opening.search(content)
    return content if found is None else content[: found.start()].rstrip() or None
