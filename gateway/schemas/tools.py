"""The tools of a chat completion and the choice among them, written as engines know them: as functions.

A custom tool becomes a function with one text as its argument; OpenAI's older `functions` become tools; of allowed
tools, the others are left out. `gateway/tool_calls.py` writes the calls of the answer in the form that was asked for.
"""

from typing import Annotated, Literal

import msgspec

from core.errors import InvalidRequest, UnsupportedField
from gateway.limits import MAX_DESCRIPTION_CHARS, MAX_TOOLS
from gateway.schemas.messages import CUSTOM_INPUT, FunctionName
from gateway.schemas.structured import Schema, StructuredRequest, check_schema, has_constraint

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


class CustomFormat(msgspec.Struct):
    """The form of a custom tool's input; only free text is supported."""

    type: Literal["text", "grammar"]


class CustomSpec(msgspec.Struct):
    """A tool whose input is text."""

    name: FunctionName
    description: Description | None = None
    format: CustomFormat | None = None


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


_INPUT_SCHEMA = msgspec.Raw(
    msgspec.json.encode(
        {
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string"}},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
    )
)


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
    custom: list[str] = []
    for position, tool in enumerate(offered):
        place = f"{where}[{position}]" if legacy else f"{where}[{position}].{_kind(tool)}"
        if isinstance(tool, CustomTool):
            custom.append(tool.custom.name)
            tool = _as_function(tool, place)
        spec = tool.function
        if spec.name in tools:
            raise InvalidRequest(f"Two tools are named '{spec.name}'.", param=f"{place}.name")
        spec.parameters = check_schema(spec.parameters, f"{place}.parameters")
        tools[spec.name] = tool
    choice, allowed = _choice(request, tools)
    _check_choice(request, choice, allowed)
    return Offer(allowed, choice, False if legacy else request.parallel_tool_calls, tuple(custom), legacy)


def _kind(tool: Tool) -> str:
    return "custom" if isinstance(tool, CustomTool) else "function"


def _as_function(tool: CustomTool, place: str) -> FunctionTool:
    """The function that stands for a custom tool. Raises UnsupportedField for a grammar."""
    spec = tool.custom
    if spec.format is not None and spec.format.type != "text":
        raise UnsupportedField(
            f"The input of '{spec.name}' must follow a grammar, which is not supported for tools; leave out the "
            "format, or use a function with a schema.",
            param=f"{place}.format",
        )
    return FunctionTool(FunctionSpec(spec.name, spec.description, _INPUT_SCHEMA, strict=True))


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
