"""The messages of engines' error objects, in the shapes of several engines."""

import pytest

from gateway.engine import error_message


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
        (b'{"error":"' + b"x" * 1000 + b'"}', "x" * 500),
    ],
)
def test_messages(document: bytes, message: str) -> None:
    assert error_message(document) == message
