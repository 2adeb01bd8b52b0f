"""The tools of a chat completion and the choice among them, written as engines know them: as functions.

A custom tool becomes a function with one text as its argument; OpenAI's older `functions` become tools; of allowed
tools, the others are left out. `gateway/tool_calls.py` writes the calls of the answer in the form that was asked for.

Where a custom tool with a grammar must be called, nothing but its input is to be generated: the engine is asked for a
text that follows the grammar, without a call, and the text becomes the call's input. Engines take regular expressions
and Lark for this (vLLM's `structured_outputs`). Where such a tool may be called, a regular expression is the `pattern`
of the argument, which engines keep to where they keep to schemas, and a Lark grammar is refused.
"""

import re
from typing import Annotated, Literal

import msgspec

from core.errors import InvalidRequest, UnsupportedField
from gateway.limits import MAX_DESCRIPTION_CHARS, MAX_GRAMMAR_CHARS, MAX_PATTERN_CHARS, MAX_TOOLS
from gateway.schemas.messages import CUSTOM_INPUT, FunctionName
from gateway.schemas.structured import Schema, StructuredRequest, check_schema, check_text, has_constraint

Description = Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION_CHARS)]


class FunctionSpec(msgspec.Struct, omit_defaults=True):
    """A function that the model may call."""

    name: FunctionName
    description: Description | None = None
    parameters: Schema = msgspec.UNSET
    strict: bool | None = None


class FunctionTool(msgspec.Struct, tag_field="type", tag="function"):
    """A tool that is a function."""

    function: FunctionSpec


class FreeText(msgspec.Struct, tag_field="type", tag="text"):
    """A custom tool's input without a form."""


class Definition(msgspec.Struct):
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]

    @property
    def constraint(self) -> dict[str, str]:
        """The engine's `structured_outputs` for a text that follows the grammar."""
        return {_CONSTRAINTS[self.syntax]: self.definition}


_CONSTRAINTS = {"lark": "grammar", "regex": "regex"}


class GrammarFormat(msgspec.Struct, tag_field="type", tag="grammar"):
    """A custom tool's input that follows a grammar."""

    grammar: Definition


class CustomSpec(msgspec.Struct):
    """A tool whose input is text."""

    name: FunctionName
    description: Description | None = None
    format: FreeText | GrammarFormat | None = None


class CustomTool(msgspec.Struct, tag_field="type", tag="custom"):
    """A custom tool."""

    custom: CustomSpec


Tool = FunctionTool | CustomTool


class Named(msgspec.Struct):
    """The name of a tool."""

    name: FunctionName


class FunctionChoice(msgspec.Struct, tag_field="type", tag="function"):
    """A function that the model must call, or one of those that it may."""

    function: Named


class CustomChoice(msgspec.Struct, tag_field="type", tag="custom"):
    """A custom tool that the model must call, or one of those that it may."""

    custom: Named


class Allowed(msgspec.Struct):
    """The tools that the model may use."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice | CustomChoice], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """A tool_choice that allows some of the tools."""

    allowed_tools: Allowed


class ToolRequest(StructuredRequest, kw_only=True):
    """The fields of a chat completion that offer tools."""

    tools: Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | FunctionChoice | CustomChoice | AllowedChoice | None
    ) = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionSpec], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | Named | None = None


class Offer(msgspec.Struct):
    """The tools of a request as engines know them."""

    tools: list[FunctionTool]
    choice: Literal["none", "auto", "required"] | FunctionChoice | None
    parallel: bool | None
    custom: tuple[str, ...] = ()
    """Names of the functions that stand for custom tools."""
    legacy: bool = False
    """Whether the request has the older `functions`."""
    text_call: str = ""
    """The custom tool whose input the answer's text is; empty = none."""
    grammar: Definition | None = None
    """What that text follows."""


def _input_schema(pattern: str = "") -> msgspec.Raw:
    text = {"type": "string", "pattern": pattern} if pattern else {"type": "string"}
    schema = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
    return msgspec.Raw(msgspec.json.encode({**schema, "additionalProperties": False}))


_INPUT_SCHEMA = _input_schema()
_ANCHORED = re.compile(r"\^.*(?<!\\)\$", re.DOTALL)
"""A regular expression that matches whole texts already: some engines know no anchors inside others."""


def take_tools(request: ToolRequest) -> Offer:
    """Return the tools of a request. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    legacy = bool(request.functions)
    if legacy and request.tools:
        raise InvalidRequest("A request has 'tools' or the older 'functions'; send one.", param="functions")
    where = "functions" if legacy else "tools"
    offered: list[Tool] = (
        [FunctionTool(spec) for spec in request.functions or ()] if legacy else request.tools or []
    )
    tools: dict[str, FunctionTool] = {}
    custom: dict[str, tuple[Definition | None, str]] = {}
    """Grammars of custom tools and the places of their formats, by the tool's name."""
    for position, tool in enumerate(offered):
        place = f"{where}[{position}]" if legacy else f"{where}[{position}].{_kind(tool)}"
        if isinstance(tool, CustomTool):
            custom[tool.custom.name] = (_grammar_of(tool.custom, place), f"{place}.format")
            tool = _as_function(tool)
        spec = tool.function
        if spec.name in tools:
            raise InvalidRequest(f"Two tools are named '{spec.name}'.", param=f"{place}.name")
        spec.parameters = check_schema(spec.parameters, f"{place}.parameters")
        tools[spec.name] = tool
    choice, allowed = _choice(request, tools)
    _check_choice(request, choice, allowed)
    offer = Offer(allowed, choice, False if legacy else request.parallel_tool_calls, tuple(custom), legacy)
    _take_grammars(offer, custom)
    return offer


def _kind(tool: Tool) -> str:
    return "custom" if isinstance(tool, CustomTool) else "function"


def _grammar_of(spec: CustomSpec, place: str) -> Definition | None:
    """The grammar of a custom tool's input. Raises InvalidRequest for a text that engines do not compile."""
    if not isinstance(spec.format, GrammarFormat):
        return None
    found = spec.format.grammar
    if found.syntax == "regex" and len(found.definition) > MAX_PATTERN_CHARS:
        raise InvalidRequest(
            f"The regular expression of '{spec.name}' has more than {MAX_PATTERN_CHARS:,} characters; shorten it.",
            param=f"{place}.format",
        )
    check_text(_CONSTRAINTS[found.syntax], found.definition, f"{place}.format")
    return found


def _as_function(tool: CustomTool) -> FunctionTool:
    """The function that stands for a custom tool."""
    spec, schema = tool.custom, _INPUT_SCHEMA
    if isinstance(spec.format, GrammarFormat) and spec.format.grammar.syntax == "regex":
        expression = spec.format.grammar.definition
        schema = _input_schema(expression if _ANCHORED.fullmatch(expression) else f"^(?:{expression})$")
    return FunctionTool(FunctionSpec(spec.name, spec.description, schema, strict=True))


def _take_grammars(offer: Offer, custom: dict[str, tuple[Definition | None, str]]) -> None:
    """Ask for a text instead of a call where a custom tool with a grammar must be called.

    Raises UnsupportedField for a Lark grammar of a tool that may be called and need not.
    """
    forced = ""
    if isinstance(offer.choice, FunctionChoice):
        forced = offer.choice.function.name
    elif offer.choice == "required" and len(offer.tools) == 1:
        forced = offer.tools[0].function.name
    grammar, _ = custom.get(forced, (None, ""))
    if grammar is not None:
        offer.choice, offer.text_call, offer.grammar = "none", forced, grammar
    if forced or offer.choice == "none":
        return
    for name in (tool.function.name for tool in offer.tools):
        grammar, place = custom.get(name, (None, ""))
        if grammar is not None and grammar.syntax == "lark":
            raise UnsupportedField(
                f"The input of '{name}' must follow a Lark grammar, which is supported only where the call is forced; "
                "name the tool in 'tool_choice', or use a grammar of syntax 'regex' or a function with a schema.",
                param=place,
            )


def _choice(
    request: ToolRequest, tools: dict[str, FunctionTool]
) -> tuple[Literal["none", "auto", "required"] | FunctionChoice | None, list[FunctionTool]]:
    """The choice among the tools, and the tools that are allowed. Raises InvalidRequest for unknown names."""
    chosen = request.tool_choice
    if isinstance(request.function_call, Named):
        chosen = FunctionChoice(request.function_call)
    elif request.function_call is not None:
        chosen = request.function_call if tools or request.function_call != "auto" else None
    if isinstance(chosen, AllowedChoice):
        names = [_name(each) for each in chosen.allowed_tools.tools]
        _check_known(names, tools, "tool_choice.allowed_tools")
        return chosen.allowed_tools.mode, [tool for name, tool in tools.items() if name in names]
    if isinstance(chosen, CustomChoice):
        chosen = FunctionChoice(chosen.custom)
    if isinstance(chosen, FunctionChoice):
        param = "tool_choice" if request.function_call is None else "function_call"
        _check_known([chosen.function.name], tools, param)
    return chosen, list(tools.values())


def _name(choice: FunctionChoice | CustomChoice) -> str:
    return choice.custom.name if isinstance(choice, CustomChoice) else choice.function.name


def _check_known(names: list[str], tools: dict[str, FunctionTool], param: str) -> None:
    for name in names:
        if name not in tools:
            raise InvalidRequest(f"'{param}' names '{name}', which is not among the tools.", param=param)


def _check_choice(request: ToolRequest, choice: object, allowed: list[FunctionTool]) -> None:
    """Raise InvalidRequest for a forced call without tools or beside a constraint of the answer's text."""
    if choice == "required" and not allowed:
        raise InvalidRequest("'tool_choice' is 'required' but there are no tools.", param="tool_choice")
    forced = choice == "required" or isinstance(choice, FunctionChoice)
    if forced and has_constraint(request):
        raise InvalidRequest(
            "An answer that must call a tool cannot follow a constraint; leave out 'tool_choice' or the constraint.",
            param="tool_choice",
        )
