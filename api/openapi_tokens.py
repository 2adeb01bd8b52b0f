"""The schemas of tokenize and detokenize in the OpenAPI document: those that vLLM's routes answer with."""

from typing import Any

from gateway.schemas.tokenize import DetokenizeRequest, TokenizeRequest

_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
ANSWERS: dict[str, dict[str, Any]] = {
    "TokenizeAnswer": {
        "type": "object",
        "required": ["count", "max_model_len", "tokens", "token_strs"],
        "properties": {
            "count": _INTEGER,
            "max_model_len": _INTEGER,
            "tokens": {"type": "array", "items": _INTEGER},
            "token_strs": {"type": ["array", "null"], "items": _STRING},
        },
    },
    "DetokenizeAnswer": {"type": "object", "required": ["prompt"], "properties": {"prompt": _STRING}},
}
ROUTES = (
    ("/v1/tokenize", "Tokens of a prompt, which are not billed", TokenizeRequest, "TokenizeAnswer"),
    ("/v1/detokenize", "Text of tokens, which are not billed", DetokenizeRequest, "DetokenizeAnswer"),
)
"""Path, title, type of the request, and name of the answer."""
