"""The guard in front of an engine: development endpoints are the agent's alone, and a sleeping engine takes no work."""

import io
import logging
from pathlib import Path
from typing import Any

import pytest

from workers.engine_guard import (
    KEY_HEADER,
    KEY_VARIABLE,
    OPEN_PATHS,
    STRICT_VARIABLE,
    EngineGuard,
    Scope,
    agent_key,
)

DEVELOPMENT = (
    "/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/pause", "/resume", "/reset_prefix_cache", "/server_info",
    "/update_weights", "/weight_checker", "/v1/load_lora_adapter", "/scale_elastic_ep", "//sleep", "/v1/../sleep",
)  # fmt: skip


class Engine:
    """The application behind the guard; it notes what reaches it."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})


async def ask(guard: EngineGuard, path: str, key: str = "", query: str = "", kind: str = "http") -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    headers = [(KEY_HEADER.encode(), key.encode())] if key else []
    scope = {"type": kind, "path": path, "query_string": query.encode(), "headers": headers}
    await guard(scope, receive, send)
    return sent[0].get("status", sent[0].get("code")) if sent else 0


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def guard(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> EngineGuard:
    monkeypatch.setenv(KEY_VARIABLE, "own")
    return EngineGuard(engine)


@pytest.mark.parametrize("path", DEVELOPMENT)
async def test_development_endpoints_need_the_agents_key(
    engine: Engine, guard: EngineGuard, path: str
) -> None:
    assert [await ask(guard, path), await ask(guard, path, "wrong")] == [403, 403]
    assert engine.paths == []
    assert await ask(guard, path, "own") == 200
    assert engine.paths == [path]


async def test_what_serves_customers_needs_no_agents_key(engine: Engine, guard: EngineGuard) -> None:
    assert {await ask(guard, path) for path in OPEN_PATHS} == {200}
    assert await ask(guard, "/v1/realtime", kind="websocket") == 1008
    await ask(guard, "", kind="lifespan")
    assert engine.paths[-1] == ""


async def test_without_a_key_of_its_own_nobody_is_the_agent(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert await ask(EngineGuard(engine), "/sleep", "") == 403


async def test_a_sleeping_engine_takes_no_work_until_it_is_wholly_awake(
    engine: Engine, guard: EngineGuard
) -> None:
    work = "/v1/chat/completions"
    assert await ask(guard, "/sleep", "own", "level=2") == 200
    assert await ask(guard, work) == 503
    assert await ask(guard, "/metrics") == 200
    assert await ask(guard, "/wake_up", "own", "tags=weights") == 200
    assert await ask(guard, work) == 503
    assert await ask(guard, work, "own") == 200  # the agent's proof
    engine.status = 500
    assert await ask(guard, "/wake_up", "own", "tags=kv_cache") == 500
    assert await ask(guard, work) == 503
    engine.status = 200
    assert await ask(guard, "/wake_up", "own", "tags=kv_cache") == 200
    assert await ask(guard, work) == 200


async def test_a_sleep_that_fails_leaves_it_open(engine: Engine, guard: EngineGuard) -> None:
    engine.status = 404
    assert await ask(guard, "/sleep", "own") == 404
    engine.status = 200
    assert await ask(guard, "/v1/completions") == 200


def test_the_agents_key_is_kept_for_the_next_agent_and_readable_to_it_alone(tmp_path: Path) -> None:
    key = agent_key(tmp_path / "new")
    assert len(key) == 64
    assert agent_key(tmp_path / "new") == key != agent_key(tmp_path)
    assert (tmp_path / "new" / "agent-key").stat().st_mode & 0o077 == 0


async def test_an_engine_of_a_host_that_has_joined_answers_nothing_without_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "agent")
    monkeypatch.setenv(STRICT_VARIABLE, "requests")
    passed: list[str] = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def status(path: str, *headers: tuple[bytes, bytes]) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "path": path, "headers": list(headers)}
        await EngineGuard(engine)(scope, None, send)  # type: ignore[arg-type]  # nothing is received
        return int(sent[0]["status"])

    requests = (b"authorization", b"Bearer requests")
    for path in ("/v1/chat/completions", "/v1/models", "/metrics", "/health", "/sleep"):
        assert await status(path) == 401
        assert await status(path, (b"authorization", b"Bearer wrong")) == 401
        assert await status(path, requests) == (200 if path == "/v1/chat/completions" else 403)
        assert await status(path, (KEY_HEADER.encode(), b"agent")) == 200


def test_exceptions_in_the_engines_log_are_without_their_text() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    log = logging.getLogger("vllm")
    log.addHandler(handler)
    try:
        EngineGuard(Engine())
        try:
            try:
                raise RuntimeError("cannot find #/$defs/of-the-customer")
            except RuntimeError as cause:
                raise ValueError("no grammar for of-the-customer") from cause
        except ValueError:
            logging.getLogger("vllm.entrypoints.serving").exception("a stream failed")
        log.error("without an exception")
    finally:
        log.removeHandler(handler)
    lines = out.getvalue().splitlines()
    assert (lines[0], lines[2:]) == (
        "a stream failed",
        ["ValueError (text left out)", "without an exception"],
    )
    assert lines[1].startswith('  File "')
    assert lines[1].endswith("without_their_text")
