"""Responses in the background with the official client, against the platform with the simulated engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from admin import keys as admin_keys
from admin import projects as admin_projects
from api.app import create_app
from api.deps import Deps
from cli.commands.sim.engine import simulated_tokenizer
from gateway.dialects.responses import events as response_events
from tests.support.api_process import MODEL, Api, api_process, serving
from tests.support.responses_schema import validate
from tests.support.tenancy import ADMIN, PEPPER
from tests.support.waiting import until

WATER = "Say something about water."
ENDED = ("completed", "incomplete", "failed", "cancelled")
CAP = 3


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(
        pg_url, redis_url, tmp_path, tokenizer=simulated_tokenizer(), background_per_project=CAP, drain_s=0
    ) as made:
        yield made


@pytest.fixture
async def other(api: Api, tmp_path: Path) -> AsyncIterator[Any]:
    """The official client of a second API process of the same platform."""
    settings = api.deps.settings.model_copy(update={"data_dir": tmp_path / "other"})
    deps = Deps(settings, CollectorRegistry(), simulated_tokenizer())
    async with serving(create_app(deps)) as url:
        await until(lambda: len(deps.scheduler.snapshot().replicas) == 1, what="replicas known")
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api.organisation.key, max_retries=0)
        yield client
        await client.close()


def slow_down(api: Api) -> None:
    """Let every token take long, so that a response certainly runs while a test looks at it."""
    api.engines[0].failpoints.step_delay_s = 0.05


async def ended(client: Any, response_id: str) -> Any:
    """The response once it has ended."""
    found: list[Any] = []

    async def over() -> bool:
        found[:] = [await client.responses.retrieve(response_id)]
        return found[0].status in ENDED

    await until(over, what="the response has ended", timeout_s=60)
    return found[0]


async def begun(client: Any, response_id: str) -> None:
    """Wait until a response is in progress."""

    async def progresses() -> bool:
        try:
            return (await client.responses.retrieve(response_id)).status == "in_progress"
        except openai.InternalServerError:  # a machine that stood still checks keys again in a moment
            return False

    await until(progresses, what="the response is in progress", timeout_s=60)


async def test_a_response_runs_without_its_client(api: Api, other: Any) -> None:
    client: Any = api.openai()
    queued = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=12, background=True)
    assert (queued.status, queued.background, queued.output, queued.usage) == ("queued", True, [], None)
    assert queued.store is True
    answer = await ended(other, queued.id)
    assert answer.status in ("completed", "incomplete")
    assert answer.output_text
    [row] = await api.usage_rows(1)
    assert (row.input_tokens, row.output_tokens) == (answer.usage.input_tokens, answer.usage.output_tokens)
    assert answer.penstock["request_id"] == str(row.request_id)
    assert row.outcome in ("completed", "length")
    continued = await other.responses.create(
        model=MODEL, input="More.", max_output_tokens=5, previous_response_id=queued.id
    )
    assert continued.usage.input_tokens > answer.usage.input_tokens


async def test_a_response_is_queued_then_in_progress(api: Api, other: Any) -> None:
    client: Any = api.openai()
    slow_down(api)
    queued = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=60, background=True)
    await begun(other, queued.id)
    with pytest.raises(openai.NotFoundError) as running:
        await client.responses.create(model=MODEL, input="x", previous_response_id=queued.id)
    assert "still runs" in running.value.message
    assert (await ended(other, queued.id)).status in ("completed", "incomplete")


async def events_of(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def test_a_stream_is_replayed_by_another_process_and_goes_on_live(api: Api, other: Any) -> None:
    client: Any = api.openai()
    slow_down(api)
    stream = await client.responses.create(
        model=MODEL, input=WATER, max_output_tokens=40, background=True, stream=True
    )
    first = []
    async with aclosing(aiter(stream)) as events:
        async for event in events:
            first.append(event)
            if event.type == "response.output_text.delta":
                break
    await stream.close()  # the client leaves in the middle
    response_id = first[0].response.id
    rest = await events_of(
        await other.responses.retrieve(response_id, stream=True, starting_after=first[-1].sequence_number)
    )
    assert [event.type for event in first[:3]] == [
        "response.created", "response.queued", "response.in_progress"
    ]  # fmt: skip
    assert first[0].response.status == "queued"
    whole = [*first, *rest]
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert whole[-1].type in ("response.completed", "response.incomplete")
    said = "".join(event.delta for event in whole if event.type == "response.output_text.delta")
    stored = await other.responses.retrieve(response_id)
    assert said == whole[-1].response.output_text == stored.output_text != ""
    assert stored.to_dict() == whole[-1].response.to_dict()
    again = await events_of(await other.responses.retrieve(response_id, stream=True))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in whole]
    for event in again:
        validate(event.to_dict(mode="json"))
    assert (
        await events_of(
            await client.responses.retrieve(
                response_id, stream=True, starting_after=whole[-1].sequence_number
            )
        )
        == []
    )
    [row] = await api.usage_rows(1)
    assert row.outcome in ("completed", "length")
    assert row.output_tokens == stored.usage.output_tokens


async def test_without_its_events_a_stream_is_the_last_event(api: Api) -> None:
    client: Any = api.openai()
    queued = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=5, background=True)
    answer = await ended(client, queued.id)
    [event] = await events_of(await client.responses.retrieve(queued.id, stream=True))
    validate(event.to_dict(mode="json"))
    assert event.response.to_dict() == answer.to_dict()
    plain = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=5)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.retrieve(plain.id, stream=True)
    assert refused.value.code == "not_streamable"


async def test_too_many_events_end_with_the_stored_response(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_events, "MAX_EVENTS_BYTES", 4000)
    client: Any = api.openai()
    stream = await client.responses.create(
        model=MODEL, input=WATER, max_output_tokens=40, background=True, stream=True
    )
    events = await events_of(stream)
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > len(numbers) - 1, "events are missing before the last one"
    assert (
        events[-1].response.to_dict() == (await client.responses.retrieve(events[-1].response.id)).to_dict()
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_ends_a_response_and_bills_what_was_generated(
    api: Api, other: Any, stream: bool
) -> None:
    client: Any = api.openai()
    slow_down(api)
    asked = {"model": MODEL, "input": WATER, "max_output_tokens": 400, "background": True}
    if stream:
        events = aiter(await client.responses.create(**asked, stream=True))
        response_id = (await anext(events)).response.id
        seen = [event async for event in _until_text(events)]
    else:
        response_id = (await client.responses.create(**asked)).id
        await begun(client, response_id)
        seen = []
    cancelled = await other.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    assert (await other.responses.cancel(response_id)).to_dict() == cancelled.to_dict()
    assert (await client.responses.retrieve(response_id)).to_dict() == cancelled.to_dict()
    if stream:
        seen += [event async for event in events]
        said = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        assert said.startswith(cancelled.output_text)
        assert cancelled.output[0].status == "incomplete"
        assert seen[-1].type == "response.output_item.done"
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    assert row.output_tokens < 400
    assert (cancelled.usage.input_tokens, cancelled.usage.output_tokens) == (
        row.input_tokens,
        row.output_tokens,
    )
    assert cancelled.penstock["outcome"] == "client_cancelled"
    plain = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=5)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.cancel(plain.id)
    assert refused.value.code == "not_cancellable"


async def _until_text(events: Any) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        if event.type == "response.output_text.delta":
            return


async def test_a_deleted_response_ends(api: Api, other: Any) -> None:
    client: Any = api.openai()
    slow_down(api)
    queued = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=400, background=True)
    await begun(client, queued.id)
    await other.responses.delete(queued.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(queued.id)
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    await until(lambda: not api.deps.background.running, what="nothing runs")
    async with api.database.system() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM stored_responses"))).scalar_one() == 0


async def test_a_project_runs_so_many_at_a_time(api: Api) -> None:
    client: Any = api.openai()
    slow_down(api)
    asked = {"model": MODEL, "input": WATER, "max_output_tokens": 400, "background": True}
    made = await asyncio.gather(
        *(client.responses.create(**asked) for _ in range(2 * CAP)), return_exceptions=True
    )
    refused = [each for each in made if isinstance(each, openai.RateLimitError)]
    running = [each for each in made if not isinstance(each, BaseException)]
    assert (len(refused), len(running)) == (CAP, CAP)
    assert refused[0].code == "too_many_background_responses"
    assert refused[0].response.headers["retry-after"] == "5"
    await client.responses.cancel(running[0].id)
    more = await client.responses.create(**asked)
    assert more.status == "queued"
    for each in (*running[1:], more):
        await client.responses.cancel(each.id)


async def test_refusals_are_errors_and_leave_no_response(api: Api) -> None:
    client: Any = api.openai()
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="nobody/nothing", input="x", background=True)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="x", background=True, store=False)
    assert refused.value.param == "background"

    async def none_left() -> bool:
        async with api.database.system() as connection:
            return not (await connection.execute(text("SELECT count(*) FROM stored_responses"))).scalar_one()

    await until(none_left, what="the refused response is gone")


async def raw_events(api: Api, response_id: str) -> list[dict[str, Any]]:
    """The events of a response as they are sent: the official client raises at an error event."""
    url = f"{api.url}/v1/responses/{response_id}?stream=true"
    async with api.session.get(url, headers={"Authorization": f"Bearer {api.organisation.key}"}) as answer:
        lines = (await answer.text()).splitlines()
    assert lines[-2] == "data: [DONE]"
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [json.loads(each) for each in data]


async def test_an_answer_that_breaks_fails_the_response(api: Api) -> None:
    client: Any = api.openai()
    slow_down(api)
    created = await admin_keys.create_key(
        api.database, ADMIN, pepper=PEPPER, tenant_id=api.organisation.tenant_id,
        project_id=api.organisation.project_id, name="second",
    )  # fmt: skip
    second: Any = api.openai(created.secret)
    stream = await second.responses.create(
        model=MODEL, input=WATER, max_output_tokens=400, background=True, stream=True
    )
    first = [event async for event in _until_text(aiter(stream))]
    response_id = first[0].response.id
    reading = asyncio.create_task(raw_events(api, response_id))
    await admin_keys.revoke_key(api.database, ADMIN, key_id=created.view.id)
    events = await reading
    for event in events:
        validate(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == "api_key_revoked"
    answer = await client.responses.retrieve(response_id)
    assert (answer.status, answer.error.code) == ("failed", "invalid_prompt")
    assert answer.to_dict() == events[-1]["response"]
    [row] = await api.usage_rows(1)
    assert row.outcome == "client_cancelled"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (row.input_tokens, row.output_tokens)


async def test_a_process_that_is_stopped_ends_its_responses(api: Api, tmp_path: Path) -> None:
    settings = api.deps.settings.model_copy(update={"data_dir": tmp_path / "stopped"})
    deps = Deps(settings, CollectorRegistry(), simulated_tokenizer())
    slow_down(api)
    client: Any = api.openai()
    async with serving(create_app(deps)) as url:
        await until(lambda: len(deps.scheduler.snapshot().replicas) == 1, what="replicas known")
        stopped: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api.organisation.key, max_retries=0)
        queued = await stopped.responses.create(
            model=MODEL, input=WATER, max_output_tokens=400, background=True
        )
        await begun(client, queued.id)
        await stopped.close()
    answer = await client.responses.retrieve(queued.id)
    assert (answer.status, answer.error.code) == ("failed", "server_error")
    assert "being stopped" in answer.error.message
    [row] = await api.usage_rows(1)
    assert row.outcome == "interrupted"
    assert answer.usage.input_tokens == row.input_tokens
    assert answer.penstock["outcome"] == "interrupted"


async def test_a_response_whose_process_is_gone_has_failed(api: Api, other: Any) -> None:
    client: Any = api.openai()
    slow_down(api)
    stream = await client.responses.create(
        model=MODEL, input=WATER, max_output_tokens=400, background=True, stream=True
    )
    events = aiter(stream)
    seen = [event async for event in _until_text(events)]
    response_id = seen[0].response.id
    async with api.database.engine.begin() as connection:  # as if it had not been renewed
        await connection.execute(text("UPDATE stored_responses SET runs_until = now() - interval '1 s'"))
    lost = await other.responses.retrieve(response_id)
    assert (lost.status, lost.error.code) == ("failed", "server_error")
    [row] = await api.usage_rows(1)
    assert row.outcome == "interrupted"
    await until(lambda: not api.deps.background.running, what="nothing runs")
    assert (await other.responses.retrieve(response_id)).to_dict() == lost.to_dict()
    assert (await other.responses.cancel(response_id)).to_dict() == lost.to_dict()


async def test_other_projects_see_nothing(api: Api) -> None:
    client: Any = api.openai()
    slow_down(api)
    queued = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=100, background=True)
    tenant_id = api.organisation.tenant_id
    project = await admin_projects.create_project(api.database, ADMIN, tenant_id=tenant_id, name="other")
    created = await admin_keys.create_key(
        api.database, ADMIN, pepper=PEPPER, tenant_id=tenant_id, project_id=project.id, name="other"
    )
    stranger: Any = api.openai(created.secret)
    for attempt in (
        stranger.responses.retrieve(queued.id),
        stranger.responses.retrieve(queued.id, stream=True),
        stranger.responses.cancel(queued.id),
        stranger.responses.delete(queued.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt
    assert (await client.responses.cancel(queued.id)).status == "cancelled"


async def test_a_test_key_runs_in_the_background(api: Api) -> None:
    tenant_id, project_id = api.organisation.tenant_id, api.organisation.project_id
    created = await admin_keys.create_key(
        api.database, ADMIN, pepper=PEPPER, tenant_id=tenant_id, project_id=project_id, name="t", kind="test"
    )
    client: Any = api.openai(created.secret)
    queued = await client.responses.create(model="test/ok", input="x", background=True)
    assert (await ended(client, queued.id)).output_text
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(model="test/rate_limited", input="x", background=True)
    slow = await client.responses.create(model="test/slow", input="x", background=True)
    assert (await client.responses.cancel(slow.id)).status == "cancelled"
    await until(lambda: not api.deps.background.running, what="nothing runs")
