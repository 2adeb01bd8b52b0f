"""End user and tags of a request: what is taken, what is refused, and where they go."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.metering.records import Labels
from billing.metering.settle_calls import label_columns
from core.errors import InvalidRequest, RequestTooLarge
from core.ids import uuid7
from gateway.parsing.worker import Reply, decode_reply
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.completions import parse_completion
from tests.support.gateway_fakes import FakeEngines, FakeReply, Gateway, answer, principal


def parsed(route: str = "chat", **fields: object) -> PreparedRequest:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if route == "chat" else {"prompt": "hi"}
    body = json.dumps({"model": "tiny", **prompt, **fields}).encode()
    return parse_chat(body) if route == "chat" else parse_completion(body)


@pytest.mark.parametrize("route", ["chat", "text"])
@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({}, None),
        ({"user": "u-1"}, Labels("u-1")),
        ({"safety_identifier": "s-1", "user": "u-1"}, Labels("s-1")),
        ({"safety_identifier": "", "user": "u-1"}, Labels("u-1")),
        ({"user": "", "metadata": {}}, None),
        ({"user": None, "metadata": None}, None),
        ({"user": "Zoë \u4f60"}, Labels("Zoë \u4f60")),
        ({"metadata": {"tag_team": "blue", "tag_x.y-Z": "1"}}, Labels("", {"tag_team": "blue", "tag_x.y-Z": "1"})),
        ({"metadata": {"trace": {"deep": [1]}, "n": 5, "tag_a": "1", "tag_b": ""}}, Labels("", {"tag_a": "1"})),
        ({"user": "u" * 128, "metadata": {"tag_" + "n" * 60: "v" * 128}},
         Labels("u" * 128, {"tag_" + "n" * 60: "v" * 128})),
    ],
)  # fmt: skip
def test_what_is_taken(route: str, fields: dict[str, Any], labels: Labels | None) -> None:
    found = parsed(route, **fields)
    assert found.labels == labels
    assert found.ignored_fields == ()
    assert not {"user", "safety_identifier", "metadata"} & found.fields.keys()


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"user": "u" * 129}, RequestTooLarge, "user"),
        ({"safety_identifier": "u" * 129}, RequestTooLarge, "safety_identifier"),
        ({"user": 7}, InvalidRequest, "user"),
        ({"user": "a\nb"}, InvalidRequest, "user"),
        ({"safety_identifier": "a\x00"}, InvalidRequest, "safety_identifier"),
        ({"metadata": "x"}, InvalidRequest, "metadata"),
        ({"metadata": {f"k{n}": "" for n in range(65)}}, RequestTooLarge, "metadata"),
        ({"metadata": {f"tag_{n}": "x" for n in range(6)}}, RequestTooLarge, "metadata"),
        ({"metadata": {"tag_": "x"}}, InvalidRequest, "metadata"),
        ({"metadata": {"tag_a b": "x"}}, InvalidRequest, "metadata"),
        ({"metadata": {"tag_(other)": "x"}}, InvalidRequest, "metadata"),
        ({"metadata": {"tag_" + "n" * 61: "x"}}, InvalidRequest, "metadata"),
        ({"metadata": {"tag_a": 5}}, InvalidRequest, "metadata.tag_a"),
        ({"metadata": {"tag_a": "v" * 129}}, RequestTooLarge, "metadata.tag_a"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], error: type[InvalidRequest], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    assert (type(caught.value), caught.value.param) == (error, param)


_values = st.one_of(st.none(), st.integers(), st.text(max_size=200), st.lists(st.text(max_size=3)))


@given(
    _values, _values, st.one_of(_values, st.dictionaries(st.text(max_size=80).map("tag_".__add__), _values))
)
def test_whatever_is_sent_is_bounded_and_printable(user: object, safe: object, metadata: object) -> None:
    try:
        labels = parsed(user=user, safety_identifier=safe, metadata=metadata).labels
    except InvalidRequest:
        return
    if labels is not None:
        values = [labels.end_user, *labels.tags, *labels.tags.values()]
        assert all(value.isprintable() and len(value) <= 128 for value in values)
        assert len(labels.tags) <= 5
        assert labels.end_user or labels.tags


async def test_they_go_to_the_usage_record_and_to_no_engine() -> None:
    engines = FakeEngines(answer(["hi"]))
    gateway = Gateway(engines)
    asked = parsed(user="u-1", metadata={"tag_team": "blue", "other": "x"})
    await gateway.director.handle(uuid7(), principal(), asked, FakeReply())
    assert not {"user", "safety_identifier", "metadata"} & json.loads(engines.bodies[0]).keys()
    [record] = gateway.meter.settled
    assert record.open.labels == Labels("u-1", {"tag_team": "blue"})
    columns = label_columns([record])
    assert (columns.names, columns.values) == (["user", "tag_team"], ["u-1", "blue"])
    assert set(columns.requests) == {record.open.request_id}


async def test_records_of_requests_without_them_are_as_before() -> None:
    gateway = Gateway(FakeEngines(answer(["hi"])))
    await gateway.director.handle(uuid7(), principal(), parsed(), FakeReply())
    [record] = gateway.meter.settled
    written = msgspec.json.encode(record)
    assert b"labels" not in written
    assert msgspec.json.decode(written, type=type(record)).open.labels is None
    assert label_columns([record]).requests == []


def test_a_body_that_another_process_parses_keeps_them() -> None:
    prepared = parsed(user="u-1", metadata={"tag_team": "blue"})
    sent = msgspec.structs.replace(prepared, fields={})
    assert decode_reply(msgspec.msgpack.encode(Reply(sent))).labels == prepared.labels
