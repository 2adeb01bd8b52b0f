"""What an engine of unknown kind serves: its GET /v1/models, as vLLM, SGLang, llama.cpp, Ollama and TGI answer it."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from core.clock import Clock
from core.errors import EngineFailed, InvalidRequest, Unavailable
from workers.engine_api import EngineApi

ASSUMED_CONTEXT_LEN = 131_072
"""Tokens of context when neither the engine nor the operator states them; the engine refuses what is too long."""
MAX_CONTEXT_LEN = 2**31 - 1
RETRY_S = 0.5


class ServedModel(msgspec.Struct, frozen=True):
    """A model that an engine lists."""

    name: str
    context_len: int = 0
    """Tokens of prompt and answer together; 0 = the engine does not say."""


def engine_urls(text: str) -> list[str]:
    """The base URLs of a comma-separated text, each once and without /v1. Raises InvalidRequest."""
    urls: dict[str, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            split = urlsplit(part)
            usable = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
        except ValueError:
            usable = False
        written = part.isascii() and part.isprintable() and " " not in part
        if not usable or not written or split.query or split.fragment:
            raise InvalidRequest(
                f"--engine-url must look like http://host:port, not {part!r}", param="engine_url"
            )
        if split.username is not None or split.password is not None:
            raise InvalidRequest(
                "--engine-url must not contain a user or password; an engine's key goes into PENSTOCK_ENGINE_KEY",
                param="engine_url",
            )
        urls[part.rstrip("/").removesuffix("/v1").rstrip("/")] = None
    if not urls:
        raise InvalidRequest("--engine external needs --engine-url http://host:port", param="engine_url")
    return list(urls)


async def list_models(api: EngineApi) -> list[ServedModel]:
    """The models that the engine lists, in its order.

    Raises EngineFailed when it does not answer or is not ready, InvalidRequest when its answer will not change by
    waiting: a missing key, no such path, no list of models, an empty list.
    """
    status, body = await api.get("/v1/models")
    where = f"the engine at {api.url}"
    if status in (401, 403):
        problem = "refuses the API key" if api.has_key else "requires an API key"
        raise InvalidRequest(
            f"{where} {problem} (GET /v1/models: {status}); set PENSTOCK_ENGINE_KEY or give --engine-key-file",
            param="engine_key",
        )
    if status >= 500 or status == 429:
        raise EngineFailed(f"GET /v1/models answered {status}")
    if status != 200:
        raise InvalidRequest(
            f"{where} answered {status} to GET /v1/models; --engine-url must be the base URL of an OpenAI-compatible "
            "server",
            param="engine_url",
        )
    models = parse_models(body)
    if models is None:
        raise InvalidRequest(
            f"{where} answered GET /v1/models with something that is not OpenAI's list of models; is --engine-url the "
            "base URL of an OpenAI-compatible server?",
            param="engine_url",
        )
    if not models:
        raise InvalidRequest(f"{where} lists no models; load one into it first", param="engine_url")
    if len(models) == 1 and not models[0].context_len:
        context_len = await _context_of_server(api)
        models = [msgspec.structs.replace(model, context_len=context_len) for model in models]
    return models


async def wait_for_models(
    api: EngineApi, *, wait_s: float, clock: Clock, note: Callable[[str], None]
) -> list[ServedModel]:
    """`list_models`, repeated for `wait_s` seconds while the engine starts; `note` is given each reason.

    Raises Unavailable when the engine does not answer in time, InvalidRequest as `list_models`.
    """
    give_up_at = clock.monotonic() + wait_s
    while True:
        try:
            return await list_models(api)
        except EngineFailed as error:
            if clock.monotonic() >= give_up_at:
                raise Unavailable(
                    f"no engine answers at {api.url} ({error.message}); start it, or correct --engine-url"
                ) from None
            note(f"{api.url}: {error.message}")
        await asyncio.sleep(RETRY_S)


def parse_models(body: bytes) -> list[ServedModel] | None:
    """The models of a /v1/models document, each once; None when it is no such document.

    Sources of the context length: `max_model_len` (vLLM, SGLang), `meta.n_ctx` (llama.cpp), `context_length`. An
    adapter without one has its parent's (vLLM's LoRA entries).
    """
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    entries = document.get("data") if isinstance(document, dict) else None
    if entries is None and isinstance(document, dict) and document.get("object") == "list":
        entries = []  # Ollama without models: "data": null
    if not isinstance(entries, list):
        return None
    found: dict[str, ServedModel] = {}
    parents: dict[str, str] = {}
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            return None
        found.setdefault(name, ServedModel(name, _context_of_entry(entry)))
        if isinstance(entry.get("parent"), str):
            parents[name] = entry["parent"]
    for name, parent in parents.items():
        if not found[name].context_len and parent in found:
            found[name] = ServedModel(name, found[parent].context_len)
    return list(found.values())


def _context_of_entry(entry: dict[str, Any]) -> int:
    meta = entry.get("meta")
    sources = (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None)
    return next(filter(None, map(_tokens, (*sources, entry.get("context_length")))), 0)


async def _context_of_server(api: EngineApi) -> int:
    """The context length that llama.cpp (/props) or TGI (/info) states for its one model; 0 = not said."""
    for path, members in (
        ("/props", ("default_generation_settings", "n_ctx")),
        ("/info", ("max_total_tokens",)),
    ):
        try:
            status, body = await api.get(path)
        except EngineFailed:
            continue  # a proxy may drop paths that it does not know
        try:
            value: Any = msgspec.json.decode(body) if status == 200 else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        for member in members:
            value = value.get(member) if isinstance(value, dict) else None
        if tokens := _tokens(value):
            return tokens
    return 0


def _tokens(value: object) -> int:
    """`value` if it is a usable number of tokens, else 0."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 1 < value <= MAX_CONTEXT_LEN
    return value if usable and isinstance(value, int) else 0
