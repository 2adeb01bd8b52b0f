"""What a request needs of its model is checked before anything is reserved."""

import pytest

from billing.metering.records import Outcome
from core.errors import InvalidRequest, RequestTooLarge, UnsupportedField
from core.ids import uuid7
from gateway.records import labels_of
from tests.support.gateway_fakes import (
    FakeEngines,
    FakeModel,
    FakeReply,
    Gateway,
    answer,
    chunk,
    final,
    principal,
)
from tests.unit.gateway.test_request_params import FORMAT, TOOL, prepared

SWITCHES = {"enable_thinking": (True, False), "reasoning_effort": ("low", "high"), "budget": (1, 2)}


def admit(model: FakeModel, route: str = "chat", **fields: object) -> object:
    gateway = Gateway(FakeEngines(), model=model)
    request = prepared(route, model=model.name, **fields)
    gateway.admission.resolve_model(principal(), request)
    return request


@pytest.mark.parametrize(
    ("route", "fields", "missing", "param"),
    [
        ("chat", {}, "chat", "messages"),
        ("text", {}, "completions", "prompt"),
        ("chat", {"tools": [TOOL]}, "tools", "tools"),
        ("chat", {"functions": [TOOL["function"]]}, "tools", "functions"),
        ("chat", {"response_format": FORMAT}, "json", "response_format"),
        ("chat", {"guided_regex": "a"}, "json", "structured_outputs"),
        ("chat", {"logprobs": True}, "logprobs", "logprobs"),
        ("text", {"logprobs": 0}, "logprobs", "logprobs"),
        ("chat", {"reasoning_effort": "low"}, "reasoning", "reasoning_effort"),
    ],
)
async def test_the_model_must_be_able_to_do_it(
    route: str, fields: dict[str, object], missing: str, param: str
) -> None:
    able = ("chat", "completions", "tools", "json", "logprobs", "reasoning")
    admit(FakeModel(capabilities=able), route, **fields)
    rest = tuple(each for each in able if each != missing)
    with pytest.raises(UnsupportedField, match=", ".join(rest)) as caught:
        admit(FakeModel(capabilities=rest), route, **fields)
    assert (caught.value.code, caught.value.param) == ("unsupported_by_model", param)
    assert caught.value.details == {"capabilities": list(rest)}


async def test_off_values_need_nothing() -> None:
    admit(FakeModel(capabilities=("chat",)), reasoning_effort="none", logprobs=False, tools=[], functions=[])


async def test_only_the_models_switches_are_taken() -> None:
    model = FakeModel(template_switches=SWITCHES)
    admit(model, chat_template_kwargs={"enable_thinking": True, "budget": 2})
    with pytest.raises(UnsupportedField, match=r"no switch .thinking.\. It has: enable_thinking"):
        admit(model, chat_template_kwargs={"thinking": True})
    for wrong in ({"enable_thinking": 1}, {"budget": True}, {"reasoning_effort": "max"}, {"budget": 3}):
        with pytest.raises(InvalidRequest, match="may be"):
            admit(model, chat_template_kwargs=wrong)
    with pytest.raises(UnsupportedField, match="It has none"):
        admit(FakeModel(), enable_thinking=True)


async def test_the_effort_reaches_a_template_that_has_a_switch_for_it() -> None:
    model = FakeModel(capabilities=("chat", "reasoning"), template_switches=SWITCHES)
    assert admit(model, reasoning_effort="low").template_switches == {"reasoning_effort": "low"}
    assert admit(model, reasoning_effort="medium").template_switches == {}


async def test_min_tokens_fit_into_the_answer() -> None:
    model = FakeModel(max_output_tokens=100)
    admit(model, min_tokens=100)
    admit(model, min_tokens=200, max_tokens=200)
    with pytest.raises(InvalidRequest, match="at most 100"):
        admit(model, min_tokens=101)


async def test_nothing_is_reserved_for_a_request_that_the_model_cannot_do() -> None:
    gateway = Gateway(FakeEngines(), model=FakeModel(capabilities=("chat",)))
    with pytest.raises(UnsupportedField):
        await gateway.director.handle(
            uuid7(), principal(), prepared("chat", model="tiny", tools=[TOOL]), FakeReply()
        )
    assert not gateway.rates.granted
    assert not gateway.holds.requests
    assert gateway.rates.invalid == 1


async def test_certain_tokens_are_reserved() -> None:
    gateway = Gateway(FakeEngines(answer(["hi"])))
    request = prepared("chat", model="tiny", max_tokens=3000, ignore_eos=True)
    await gateway.director.handle(uuid7(), principal(), request, FakeReply())
    assert gateway.rates.estimates[-1][1] == 3000
    gateway.assert_resolved()


@pytest.mark.parametrize(
    "fields", [{"stop_token_ids": [7]}, {"guided_choice": [""]}, {"logit_bias": {"7": 9}}]
)
async def test_an_end_that_the_request_can_force_is_not_free(fields: dict[str, object]) -> None:
    gateway = Gateway(FakeEngines([chunk(tokens=1, finish="stop"), final(1), b"data: [DONE]\n\n"]))
    request = prepared("chat", model="tiny", stream=True, **fields)
    await gateway.director.handle(uuid7(), principal(), request, FakeReply())
    [record] = gateway.meter.settled
    assert record.outcome is Outcome.COMPLETED


async def test_an_adapter_is_one_of_the_tags_of_its_request() -> None:
    tagged = {"metadata": {f"tag_{number}": "x" for number in range(4)}, "user": "u"}
    with_adapter = FakeModel(adapter="tiny:support:abc")
    request = admit(with_adapter, "chat", **tagged)
    labels = labels_of(request, with_adapter)  # type: ignore[arg-type]
    assert labels is not None
    assert (labels.end_user, labels.tags["tag_adapter"], len(labels.tags)) == ("u", "tiny:support:abc", 5)
    more = {"metadata": tagged["metadata"] | {"tag_4": "x"}}  # type: ignore[operator]
    admit(FakeModel(), "chat", **more)
    with pytest.raises(RequestTooLarge, match="at most 4 are accepted"):
        admit(with_adapter, "chat", **more)
    admit(with_adapter, "chat", metadata=tagged["metadata"] | {"tag_adapter": "mine"})  # type: ignore[operator]
