"""Renders a model's chat template as vLLM does, to the text that the engine tokenizes.

The rules are those of vllm/renderers (content parts, tool calls) and of transformers' apply_chat_template
(environment, filters, variables). A difference only leads to a wrong prediction of what is cached.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]


class _Generation(Extension):
    """The tag `{% generation %}`, which marks answers for training; here it renders only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own protocol

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse to the statements inside the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. Safe for several threads."""

    def __init__(self, source: str, variables: Mapping[str, str], now: Callable[[], datetime]) -> None:
        """`variables`: the special tokens by name, such as bos_token. Raises jinja2.TemplateError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda shape: now().strftime(shape)
        self._variables = dict(variables)
        self._content_as_parts = _iterates_content(environment.parse(source))
        self._template = environment.from_string(source)

    def render(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        kwargs: Mapping[str, Any],
        *,
        generation_prompt: bool = True,
    ) -> str:
        """Return the prompt's text. `kwargs`: chat_template_kwargs of the request.

        `generation_prompt`: whether it ends in the beginning of the answer.

        Raises jinja2.TemplateError, ValueError or TypeError.
        """
        return self._template.render(
            messages=[self._message(message) for message in messages],
            tools=tools and [_tool(tool) for tool in tools],
            documents=None,
            **self._variables,
            **{"add_generation_prompt": generation_prompt, **kwargs},
        )

    def _message(self, message: Message) -> Message:
        """The message as templates expect it: content as parts or as text, arguments of tool calls parsed."""
        content = message.get("content")
        if content is None:
            content = []
        elif isinstance(content, str):
            content = [{"type": "text", "text": content}]
        else:
            content = [
                {"type": "text", "text": part.get("text", part.get("refusal", ""))} for part in content
            ]
        shaped: Message = {"role": message["role"]}
        as_parts = self._content_as_parts and message["role"] != "tool"
        shaped["content"] = content if as_parts else "\n".join(part["text"] for part in content)
        if calls := message.get("tool_calls"):
            shaped["tool_calls"] = [_call(call) for call in calls]
        reasoning = message.get("reasoning")
        if reasoning is not None:
            shaped["reasoning"] = shaped["reasoning_content"] = reasoning
        for key in ("name", "tool_call_id"):
            if message.get(key) is not None:
                shaped[key] = message[key]
        return shaped


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    function["arguments"] = json.loads(function.get("arguments") or "{}")
    return {**call, "function": function}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as vLLM writes it: what is not set is null, except for `strict` (vllm FunctionDefinition)."""
    found = tool["function"]
    function = {name: found.get(name) for name in ("name", "description", "parameters")}
    if found.get("strict") is not None:
        function["strict"] = found["strict"]
    return {"type": tool["type"], "function": function}


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether the template iterates over a message's content. Then it gets content parts, otherwise one text."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None) -> bool:
    match node:
        case nodes.Name(name=name):
            return bool(name == "content")
        case nodes.Getattr(attr=name):
            return bool(name == "content")
        case nodes.Getitem(arg=nodes.Const(value=name)):
            return bool(name == "content")
        case nodes.Getitem(node=inner) | nodes.Filter(node=inner) | nodes.Test(node=inner):
            return _is_content(inner)
    return False


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escaping of jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
