"""Engines' errors: their shapes, which of them refuse the request itself, and our words for those."""

import json
from typing import Any

import pytest

from gateway.refusals import MAX_MESSAGE_CHARS, RefusedByEngine, engine_error, invalid_request

FLAGS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
DUMP = "2 validation errors:\n  {'type': 'string_type', 'loc': 'body.stop', 'input': '<list of 8 items>'}"
FORMAT = {"messages": 1, "response_format": 1}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            b'{"error":{"message":"too long","type":"BadRequestError","code":400}}',
            "too long",
        ),  # vLLM, llama.cpp
        (b'{"object":"error","message":"too long","code":400}', "too long"),  # SGLang, older vLLM
        (b'{"error":"model not found","error_type":"validation"}', "model not found"),  # TGI, Ollama
        (b'{"detail":"Not Found"}', "Not Found"),  # FastAPI
        (b'{"error":{"code":500}}', ""),
        (b'{"error":null,"message":"odd"}', ""),
        (b'{"message":["a"]}', ""),
        (b'["a"]', ""),
        (b"<html>", ""),
        (b'{"error":"' + b"x" * 5000 + b'"}', "x" * MAX_MESSAGE_CHARS),
    ],
)
def test_messages(document: bytes, message: str) -> None:
    assert engine_error(document).message == message


@pytest.mark.parametrize(
    ("status", "message", "refuses"),
    [
        (400, "stop cannot contain an empty string.", True),
        (422, "no", True),
        (501, "no", True),
        (500, "Grammar error: Invalid type: strin", True),
        (500, "Token id 99999999 is out of vocabulary", True),
        (500, "EngineCore encountered an issue", False),
        (503, "The server is overloaded", False),
        (404, "The model `x` does not exist.", False),
        (400, "Client disconnected", False),  # the engine gave the request up: we had not left
        (0, "", False),
    ],
)
def test_which_errors_refuse_the_request(status: int, message: str, refuses: bool) -> None:
    error = engine_error(json.dumps({"error": {"message": message, "code": status}}).encode())
    assert (error.refusal(status) is not None) == refuses


@pytest.mark.parametrize(
    ("message", "param", "fields", "field", "code", "words"),
    [
        ('Grammar error: Unimplemented keys: ["uniqueItems"]', "", FORMAT, "response_format", "invalid_schema",
         "'uniqueItems'"),
        ("Grammar error: Unsatisfiable schema: required property 'a' is unsatisfiable", "", FORMAT, "response_format",
         "invalid_schema", "property 'a'"),
        ("Grammar error: Invalid type: strin", "", FORMAT, "response_format", "invalid_schema", "type 'strin'"),
        ("Grammar error: Pointer '/$defs/nope' does not exist", "", {"tools": 1}, "tools", "invalid_schema",
         "'/$defs/nope'"),
        ("Grammar error: regex parse error:\n    ([\n     ^\nerror: unclosed", "", {"structured_outputs": 1},
         "structured_outputs", "invalid_schema", "regular expression"),
        ("Invalid grammar specification: Failed to convert the grammar from GBNF", "", {}, None, "invalid_schema",
         "cannot be enforced"),
        ("token_id(s) [999999] in logit_bias contain out-of-vocab token ids. Vocabulary size: 4096 (parameter=x)",
         "logit_bias", {"logit_bias": 1}, "logit_bias", "invalid_request", "999999 in 'logit_bias'"),
        ("Token id 99999999 is out of vocabulary", "", {"prompt": 1}, "prompt", "invalid_request", "99999999"),
        (DUMP, "body.stop", {"stop": 1}, "stop", "invalid_request", "At most 4"),
        ("stop cannot contain an empty string.", "", {"stop": 1}, "stop", "invalid_request", "not be empty"),
        ("n must be 1 when using greedy sampling, got 2.", "", {"n": 2}, "n", "invalid_request", "temperature"),
        ("This model's maximum context length is 2048 tokens. However, you", "input_tokens", {"messages": 1},
         "messages", "context_length_exceeded", "This model's maximum context length is 2048 tokens"),
        (FLAGS, "", {"tools": 1}, "tools", "unsupported_by_model", "does not call tools"),
        ("1 validation error: {'loc': 'body.cache_salt'}", "body.cache_salt", {}, None, "invalid_request", "outside"),
        ("LoRA adapter 'm:prompt-fix:a' was found but could not be loaded.", "", {"prompt": 1}, "model",
         "adapter_not_loaded", "cannot load this adapter"),
        ("TypeError: 'NoneType' object is not iterable at /x/y.py", "", {}, None, "invalid_request", "outside"),
    ],
)  # fmt: skip
def test_our_words(
    message: str, param: str, fields: dict[str, Any], field: str | None, code: str, words: str
) -> None:
    error = invalid_request(RefusedByEngine(message, param), "tiny", fields)
    assert (error.param, error.code) == (field, code)
    assert words.lower() in error.message.lower()
    for raw in ("--", "Grammar error", "validation error", "GBNF", "parameter=", "NoneType", "input_tokens"):
        assert raw not in error.message
