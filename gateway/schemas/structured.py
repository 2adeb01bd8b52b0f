"""Constraints of an answer's form: `response_format`, `structured_outputs` and the older `guided_*`.

An engine gets one constraint. A request with several of them is refused, so that none is dropped.
"""

from typing import Annotated, Any

import msgspec

from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from gateway.limits import (
    MAX_CHOICE_CHARS,
    MAX_CHOICE_OPTIONS,
    MAX_DESCRIPTION_CHARS,
    MAX_GRAMMAR_CHARS,
    MAX_NAME_CHARS,
    MAX_PATTERN_CHARS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
)
from gateway.schemas.complaints import invalid_json
from gateway.schemas.guard import nests_deeper
from gateway.schemas.sampling import SamplingRequest

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Pattern = Annotated[str, msgspec.Meta(max_length=MAX_PATTERN_CHARS)]
Grammar = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Options = Annotated[
    list[Annotated[str, msgspec.Meta(max_length=MAX_CHOICE_CHARS)]],
    msgspec.Meta(min_length=1, max_length=MAX_CHOICE_OPTIONS),
]
Schema = msgspec.Raw | msgspec.UnsetType


class JsonSchema(msgspec.Struct, omit_defaults=True):
    """The JSON schema of a structured answer."""

    name: Name
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    schema: Schema = msgspec.UNSET
    strict: bool | None = None


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Plain text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that conforms to a schema."""

    json_schema: JsonSchema


class StructuredOutputs(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """vLLM's constraints. `structural_tag` is known, and refused."""

    json: Schema = msgspec.UNSET
    regex: Pattern | None = None
    choice: Options | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    structural_tag: Schema = msgspec.UNSET
    whitespace_pattern: Pattern | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class StructuredRequest(SamplingRequest, kw_only=True):
    """The fields of both endpoints that constrain the answer's form."""

    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema = msgspec.UNSET
    guided_regex: Pattern | None = None
    guided_choice: Options | None = None
    guided_grammar: Grammar | None = None
    guided_whitespace_pattern: Pattern | None = None


_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_OPTIONS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")


def structured_fields(request: StructuredRequest) -> dict[str, msgspec.Raw]:
    """Return the engine's `response_format` or `structured_outputs`, encoded; empty without a constraint.

    Raises InvalidRequest for an invalid constraint or several of them, and RequestTooLarge above the limits.
    """
    constraints, options = _constraints(request)
    chosen = request.response_format
    if chosen is not None and not isinstance(chosen, TextFormat):
        constraints["response_format"] = chosen
    if len(constraints) > 1:
        names = ", ".join(f"'{name}'" for name in constraints)
        raise InvalidRequest(
            f"An answer can follow one constraint, but the request has {len(constraints)}: {names}. Keep one.",
            param=next(iter(constraints)),
        )
    if options and (not constraints or "response_format" in constraints):
        name = next(iter(options))
        raise InvalidRequest(
            f"'{name}' belongs to a constraint of 'structured_outputs', and there is none.",
            param="structured_outputs",
        )
    if not constraints:
        return {}
    if isinstance(chosen, JsonSchemaFormat):
        answer = chosen.json_schema
        answer.schema = check_schema(answer.schema, "response_format.json_schema.schema")
        if answer.schema is msgspec.UNSET:  # engines need a schema; JSON is what is left of the constraint
            chosen = JsonObjectFormat()
    if "response_format" in constraints:
        return {"response_format": msgspec.Raw(msgspec.json.encode(chosen))}
    where, value = next(iter(constraints.items()))
    kind = where.removeprefix("structured_outputs.").removeprefix("guided_")
    if kind == "json":
        value = _schema(value, where)
    elif kind in ("regex", "grammar"):
        check_text(kind, value, where)
    return {"structured_outputs": msgspec.Raw(msgspec.json.encode({kind: value, **options}))}


def has_constraint(request: StructuredRequest) -> bool:
    """Whether `structured_outputs` or a `guided_*` field constrains the answer's text."""
    return bool(_constraints(request)[0])


def _constraints(request: StructuredRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """The constraints by the name of their field, and the options of `structured_outputs`."""
    found: dict[str, Any] = {}
    options: dict[str, Any] = {}
    outputs = request.structured_outputs
    if outputs is not None:
        if _is_set(outputs.structural_tag):
            raise UnsupportedField(
                "'structured_outputs.structural_tag' is not supported; use 'json', 'regex', 'choice' or 'grammar'.",
                param="structured_outputs.structural_tag",
            )
        found = {
            f"structured_outputs.{name}": value for name in _KINDS if _is_set(value := getattr(outputs, name))
        }
        options = {name: value for name in _OPTIONS if (value := getattr(outputs, name))}
    found |= {
        f"guided_{name}": value
        for name in ("json", "regex", "choice", "grammar")
        if _is_set(value := getattr(request, f"guided_{name}"))
    }
    if request.guided_whitespace_pattern:
        options["whitespace_pattern"] = request.guided_whitespace_pattern
    return found, options


def _is_set(value: Any) -> bool:
    if isinstance(value, msgspec.Raw):
        return bytes(value) != b"null"
    return value is not None and value is not msgspec.UNSET and value is not False


def _schema(value: msgspec.Raw, param: str) -> Schema:
    """The schema of a constraint, which may be written as text."""
    if bytes(value).startswith(b'"'):
        text = msgspec.json.decode(value, type=str).strip()
        try:
            value = msgspec.Raw(bytes(msgspec.json.decode(text, type=msgspec.Raw)))
        except (msgspec.DecodeError, RecursionError):
            raise InvalidRequest(f"The JSON schema at '{param}' is not JSON.", param=param) from None
    return check_schema(value, param)


def check_text(kind: str, text: str, param: str) -> None:
    """Refuse expressions that engines do not compile. Raises InvalidRequest."""
    if "\0" in text:
        raise InvalidRequest(f"'{param}' contains a NUL character; remove it.", param=param)
    if kind == "grammar" and not text.strip():
        raise InvalidRequest(f"'{param}' is empty.", param=param)


def check_schema(schema: Schema, param: str) -> Schema:
    """Return a JSON schema, which an engine compiles into a grammar; UNSET for null.

    It is passed on as the client wrote it, since decoding and encoding it costs more than the rest of the request.
    Raises InvalidRequest when it is not an object or not UTF-8, and RequestTooLarge above the limits.
    """
    if schema is msgspec.UNSET:
        return schema
    text = bytes(schema)
    if text == b"null":
        return msgspec.UNSET
    if not text.startswith(b"{"):
        raise InvalidRequest(f"The JSON schema at '{param}' must be an object.", param=param)
    if len(text) > MAX_SCHEMA_BYTES:
        raise RequestTooLarge(
            f"The JSON schema at '{param}' is {len(text):,} bytes; at most {MAX_SCHEMA_BYTES:,} are accepted.",
            param=param,
        )
    if nests_deeper(text, MAX_SCHEMA_DEPTH):
        raise RequestTooLarge(
            f"The JSON schema at '{param}' nests deeper than {MAX_SCHEMA_DEPTH} levels.", param=param
        )
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(invalid_json(error), code="invalid_json") from None
    return schema
