"""What an engine refuses is the customer's mistake, told in our own words.

Engines say it with a status (400, 413, 422, 501), with an error event inside a stream that has begun with 200, or, when
a check of theirs has no status of its own, with 500 and the text of the check. Their texts never reach a customer: they
may name flags of the engine or repeat parts of its code. `invalid_request` recognises what was wrong and words it anew;
of the engine's text it repeats only short names that the request itself contained.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from core.errors import InvalidRequest

MAX_MESSAGE_CHARS = 2000
"""Characters kept of an engine's message."""
_REFUSING = frozenset({400, 413, 422, 501})
"""Statuses by which an engine says that the request itself is wrong."""
_NOT_OURS = "Client disconnected"
"""vLLM's message, with status 400, for a request that it gave up itself."""
_TOO_LONG = re.compile(
    "context length|maximum model length|max_model_len|context size|`inputs` tokens", re.IGNORECASE
)
"""Words by which vLLM, SGLang, llama.cpp and TGI say that a prompt does not fit."""
_CONTEXT_TOKENS = re.compile(r"context length is (\d{1,9}) tokens")
_GRAMMAR = re.compile(r"grammar|json schema|json_schema|invalid regex|structured_outputs", re.IGNORECASE)
_NO_TOOLS = re.compile(r"tool-call-parser|enable-auto-tool-choice|does not support tool")
_CERTAIN = re.compile(r"Grammar error|Invalid grammar|out[- ]of[- ]vocab|tool-call-parser", re.IGNORECASE)
"""Words of a check of the request, whichever status comes with them."""
_NAME = r"[\w$./#-]{1,64}"
_KEYWORDS = re.compile(r"Unimplemented keys: \[([^\]]{1,200})\]")
_UNSATISFIABLE = re.compile("Unsatisfiable|not satisfiable", re.IGNORECASE)
_PROPERTY = re.compile(rf"property '({_NAME})'")
_TYPE = re.compile(rf"Invalid type: ({_NAME})")
_POINTER = re.compile(rf"Pointer '({_NAME})' does not exist")
_REGEX = re.compile("regex", re.IGNORECASE)
_ADAPTER = re.compile(r"LoRA adapter '[^']{1,300}' was found but could not be loaded\.", re.DOTALL)
_TOKEN_IDS = re.compile(r"out[- ]of[- ]vocab", re.IGNORECASE)
_IDS = re.compile(r"[Tt]oken(?:_id\(s\)| id) \[?(\d{1,12})")
_VOCABULARY = re.compile(r"Vocabulary size: (\d{1,9})")
_FIELD = re.compile(r"(?:body\.)?([a-z_]{1,64})(?:\.\d+)?")
_FIELDS = frozenset(
    (
        "messages", "prompt", "max_tokens", "min_tokens", "n", "temperature", "top_p", "top_k", "min_p", "stop", "seed",
        "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs",
        "stop_token_ids", "tools", "tool_choice", "response_format", "structured_outputs", "suffix", "echo",
        "chat_template_kwargs", "stream_options", "reasoning_effort", "input", "dimensions", "encoding_format",
    )
)  # fmt: skip
"""Fields of ours that a refusal may name; others belong to the engine."""
_RULES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile("greedy sampling"), "n", "Several choices need a temperature above 0."),
    (re.compile("stop cannot contain|empty string"), "stop", "A stop sequence must not be empty."),
    (re.compile("min_tokens"), "min_tokens", "'min_tokens' must not be above the tokens of the answer."),
    (
        re.compile("dimensions|[Mm]atryoshka"),
        "dimensions",
        "The model does not give embeddings of this size.",
    ),
    (re.compile("suffix"), "suffix", "This model does not fill in the middle; send no 'suffix'."),
    (
        re.compile("logprobs"),
        "logprobs",
        "More log-probabilities per token are asked for than the model gives.",
    ),
    (re.compile("prompt", re.IGNORECASE), "prompt", "The prompt must not be empty."),
)
"""Pattern in the engine's message, field, and what it says to the customer, in the order in which they are tried."""


class RefusedByEngine(Exception):
    """An engine refused the request itself. Its `message` and `param` are not for customers."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class EngineError(msgspec.Struct, frozen=True):
    """The error object of an engine."""

    message: str = ""
    """At most MAX_MESSAGE_CHARS characters."""
    param: str = ""
    code: int = 0
    """The status that the object names; 0 = none."""

    def refusal(self, status: int) -> RefusedByEngine | None:
        """Return the refusal that this error is; None when it is a failure of the engine itself.

        `status`: that of the response, or the object's own `code` in a stream.
        """
        refuses = status in _REFUSING or _CERTAIN.search(self.message) is not None
        if not refuses or self.message == _NOT_OURS:
            return None
        return RefusedByEngine(self.message, self.param)


def engine_error(document: bytes) -> EngineError:
    """Return the error in `document`, of any engine's form; an empty one when it is no error object."""
    try:
        found: Any = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return EngineError()
    if not isinstance(found, dict):
        return EngineError()
    error = found.get("error", found)  # TGI and Ollama: {"error": text}; FastAPI: {"detail": text}
    if not isinstance(error, dict):
        return EngineError(error[:MAX_MESSAGE_CHARS]) if isinstance(error, str) else EngineError()
    message, param, code = error.get("message", error.get("detail")), error.get("param"), error.get("code")
    return EngineError(
        message[:MAX_MESSAGE_CHARS] if isinstance(message, str) else "",
        param if isinstance(param, str) else "",
        code if isinstance(code, int) else 0,
    )


def invalid_request(refused: RefusedByEngine, model: str, fields: Mapping[str, Any]) -> InvalidRequest:
    """Return the error for the customer. `model`: its name; `fields`: those that the engine was sent."""
    message = refused.message
    if _ADAPTER.fullmatch(message):  # before others, which would look for words in its name
        return InvalidRequest(
            f"The engines of '{model}' cannot load this adapter: its modules or shapes are not the model's.",
            param="model",
            code="adapter_not_loaded",
        )
    if _TOO_LONG.search(message):
        return _too_long(message, model, fields)
    if _NO_TOOLS.search(message):
        return no_tools(model)
    if _TOKEN_IDS.search(message):
        return _out_of_vocabulary(refused, fields)
    param = _field(refused.param)
    if param:
        return InvalidRequest(
            f"The model does not accept the value of '{param}'. {_advice(param)}", param=param
        )
    if _GRAMMAR.search(message):
        return _grammar(message, fields)
    for pattern, name, text in _RULES:
        if name in fields and pattern.search(message):
            return InvalidRequest(text, param=name)
    return InvalidRequest(
        f"'{model}' cannot answer this request: a value is outside of what the model accepts. Check its fields against "
        "the API's description."
    )


def no_tools(model: str) -> InvalidRequest:
    """The error for a request with tools to a model that has none."""
    return InvalidRequest(
        f"'{model}' does not call tools. Remove 'tools', set 'tool_choice' to \"none\", or choose a model whose "
        "'capabilities' in GET /v1/models contain 'tools'.",
        param="tools",
        code="unsupported_by_model",
    )


def _too_long(message: str, model: str, fields: Mapping[str, Any]) -> InvalidRequest:
    found = _CONTEXT_TOKENS.search(message)
    holds = f"{found.group(1)} tokens" if found else "a limited number of tokens"
    return InvalidRequest(  # clients tell this error by OpenAI's words, and read the number
        f"This model's maximum context length is {holds} of prompt and answer together, and this request to "
        f"'{model}' does not fit. Send a shorter prompt or ask for fewer tokens.",
        param=next((name for name in ("messages", "input") if name in fields), "prompt"),
        code="context_length_exceeded",
    )


def _out_of_vocabulary(refused: RefusedByEngine, fields: Mapping[str, Any]) -> InvalidRequest:
    param = _field(refused.param) or next(
        (name for name in ("prompt", "input") if name in fields), "logit_bias"
    )
    which, size = _IDS.search(refused.message), _VOCABULARY.search(refused.message)
    token = f"The token id {which.group(1)}" if which else "A token id"
    known = f", which has {int(size.group(1)):,} tokens" if size else ""
    return InvalidRequest(f"{token} in '{param}' is not in the model's vocabulary{known}.", param=param)


def _grammar(message: str, fields: Mapping[str, Any]) -> InvalidRequest:
    """The error for a schema, a regular expression or a grammar that cannot be enforced."""
    param = next(
        (name for name in ("response_format", "structured_outputs", "tools") if name in fields), None
    )
    what = f"The structure that '{param}' demands" if param else "The structure that the request demands"
    if found := _KEYWORDS.search(message):
        names = ", ".join(f"'{name}'" for name in re.findall(_NAME, found.group(1)))
        why = f"uses {names or 'a keyword'}, which no answer can be held to; remove it from the schema"
    elif found := _TYPE.search(message):
        why = f"has the type '{found.group(1)}', which is no type of JSON schema"
    elif found := _POINTER.search(message):
        why = f"refers to '{found.group(1)}', which it does not define; mend the '$ref'"
    elif _UNSATISFIABLE.search(message):
        found = _PROPERTY.search(message)
        where = f" at the property '{found.group(1)}'" if found else ""
        look = "an empty 'enum', a 'false' schema or bounds that exclude each other"
        why = f"allows no answer at all{where}: look for {look}"
    elif _REGEX.search(message):
        why = "contains a regular expression that cannot be compiled; mend its pattern"
    else:
        why = "cannot be enforced; simplify it or send a valid JSON schema"
    return InvalidRequest(f"{what} {why}.", param=param, code="invalid_schema")


def _field(param: str) -> str:
    """The request's field of an engine's `param`; empty when customers have no such field."""
    found = _FIELD.match(param)
    return found.group(1) if found and found.group(1) in _FIELDS else ""


def _advice(param: str) -> str:
    if param == "stop":
        return "Send at most 4 stop sequences, each a text that is not empty."
    return "Send one that the API's description allows."
