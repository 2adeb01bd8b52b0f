"""The official client's Responses API against the platform with the simulated engine."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import text

from admin import keys as admin_keys
from admin import projects as admin_projects
from cli.commands.sim.engine import simulated_tokenizer
from jobs import retention
from tests.support.api_process import MODEL, Api, api_process
from tests.support.tenancy import ADMIN, PEPPER
from tests.support.waiting import until

WATER = "Say something about water."


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_process(pg_url, redis_url, tmp_path, tokenizer=simulated_tokenizer()) as made:
        yield made


async def test_whole_and_streamed_responses_are_billed_like_chat(api: Api) -> None:
    client: Any = api.openai()  # every kind of event has another type
    whole = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=20)
    assert whole.output_text
    assert whole.status in ("completed", "incomplete")
    stream = await client.responses.create(
        model=MODEL, input=WATER, max_output_tokens=20, instructions="Be brief.", stream=True
    )
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == last.output_text != ""
    rows = await api.usage_rows(2)
    for row, usage in zip(rows, (whole.usage, last.usage), strict=True):
        assert (row.input_tokens, row.output_tokens) == (usage.input_tokens, usage.output_tokens)
        assert usage.cost > 0
    assert last.penstock["request_id"] == str(rows[1].request_id)


async def test_the_tokens_of_a_prompt_are_counted(api: Api) -> None:
    client: Any = api.openai()
    first = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    counted = await client.responses.input_tokens.count(model=MODEL, input=WATER)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", first.usage.input_tokens)
    more = await client.responses.input_tokens.count(model=MODEL, input="x", previous_response_id=first.id)
    assert more.input_tokens > counted.input_tokens


async def test_errors_have_the_shape_that_the_client_knows(api: Api) -> None:
    client: Any = api.openai()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}])
    assert refused.value.param == "tools[0].type"
    assert "web_search" in refused.value.message
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.responses.create(model=MODEL, input="x", max_output_tokens=1_000_000)
    assert too_long.value.param == "max_output_tokens"
    assert "max_output_tokens is 1,000,000" in too_long.value.message
    with pytest.raises(openai.BadRequestError) as no_place:
        await client.responses.create(model=MODEL, input="x" * 700_000)
    assert (no_place.value.code, no_place.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="nobody/nothing", input="x")
    stranger: Any = api.openai("pen_live_nonsense")
    with pytest.raises(openai.AuthenticationError):
        await stranger.responses.create(model=MODEL, input="x")


async def test_a_response_is_continued_read_and_deleted(api: Api) -> None:
    client: Any = api.openai()
    first = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    assert first.store is True
    stream = await client.responses.create(
        model=MODEL, input="More.", max_output_tokens=9, previous_response_id=first.id, stream=True
    )
    second = [event async for event in stream][-1].response
    third = await client.responses.create(
        model=MODEL, input="And more.", max_output_tokens=9, previous_response_id=second.id
    )
    assert first.usage.input_tokens < second.usage.input_tokens < third.usage.input_tokens
    assert third.previous_response_id == second.id
    read = await client.responses.retrieve(second.id)
    assert read.to_dict() == second.to_dict()
    page = await client.responses.input_items.list(third.id)
    assert [item.content[0].text for item in page.data] == ["And more."]
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(second.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        await client.responses.create(model=MODEL, input="x", previous_response_id=third.id)
    assert gone.value.code == "previous_response_not_found"


async def test_items_are_named_by_their_ids(api: Api) -> None:
    client: Any = api.openai()
    first = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    named = {"type": "item_reference", "id": first.output[0].id}
    follow_up = [{"role": "user", "content": WATER}, named, {"role": "user", "content": "More."}]
    answer = await client.responses.create(model=MODEL, input=follow_up, max_output_tokens=9)
    assert answer.usage.input_tokens > first.usage.input_tokens
    unknown = [{"type": "item_reference", "id": "msg_" + "0" * 36}]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=MODEL, input=unknown)
    assert refused.value.code == "item_not_found"


async def test_what_shall_not_be_stored_is_not(api: Api) -> None:
    client: Any = api.openai()
    answer = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9, store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)


async def test_other_projects_see_nothing(api: Api) -> None:
    client: Any = api.openai()
    first = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    tenant_id = api.organisation.tenant_id
    project = await admin_projects.create_project(api.database, ADMIN, tenant_id=tenant_id, name="other")
    created = await admin_keys.create_key(
        api.database, ADMIN, pepper=PEPPER, tenant_id=tenant_id, project_id=project.id, name="other"
    )
    stranger: Any = api.openai(created.secret)
    for attempt in (
        stranger.responses.retrieve(first.id),
        stranger.responses.delete(first.id),
        stranger.responses.create(model=MODEL, input="x", previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt
    with pytest.raises(openai.NotFoundError):
        await stranger.responses.input_items.list(first.id)
    named = [{"type": "item_reference", "id": first.output[0].id}]
    with pytest.raises(openai.BadRequestError):
        await stranger.responses.create(model=MODEL, input=named)
    assert (await client.responses.retrieve(first.id)).id == first.id


async def test_responses_expire(api: Api) -> None:
    client: Any = api.openai()
    first = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    async with api.database.engine.begin() as connection:
        await connection.execute(text("UPDATE stored_responses SET expires_at = now() - interval '1 s'"))
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    async with api.database.system() as connection:
        await retention.prune(connection)
        assert (await connection.execute(text("SELECT count(*) FROM stored_responses"))).scalar_one() == 0


async def retain(api: Api, days: int | None) -> None:
    """Set the project's retention, and wait until the process knows it."""
    organisation = api.organisation
    await admin_projects.set_retention(
        api.database, ADMIN, tenant_id=organisation.tenant_id, project_id=organisation.project_id, days=days
    )

    async def known() -> bool:
        return (await api.deps.keys.authenticate(organisation.key)).responses_kept_days == days

    await until(known)


async def test_a_project_without_retention_stores_nothing(api: Api) -> None:
    client: Any = api.openai()
    await retain(api, 0)
    answer = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    assert answer.store is False
    stream = await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9, stream=True)
    assert [event async for event in stream][-1].response.store is False
    with pytest.raises(openai.BadRequestError, match="This project stores no responses") as refused:
        await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9, background=True)
    assert (refused.value.code, refused.value.param) == ("not_available", "background")
    async with api.database.system() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM stored_responses"))).scalar_one() == 0
    await retain(api, None)
    assert (await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)).store is True


async def test_a_project_keeps_responses_for_its_own_days(api: Api) -> None:
    client: Any = api.openai()

    async def kept() -> list[int]:
        async with api.database.system() as connection:
            rows = await connection.execute(
                text(
                    "SELECT extract(day FROM expires_at - created_at) FROM stored_responses ORDER BY created_at"
                )
            )
            return [int(days) for days in rows.scalars()]

    await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    await retain(api, 7)
    await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    await retain(api, 400)
    await client.responses.create(model=MODEL, input=WATER, max_output_tokens=9)
    assert await kept() == [30, 7, 30], "at most the platform's days"
    async with api.database.engine.begin() as connection:
        await connection.execute(
            text("UPDATE stored_responses SET created_at = created_at - interval '8 days'")
        )
    await retain(api, 7)
    async with api.database.system() as connection:
        await retention.prune(connection)
    assert await kept() == [], "what was stored before follows the project's days"
