"""Every accepted field of the completion routes on the real vLLM, the official client's parameters among them."""

import ast
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.fields import IGNORED, REFUSED
from tests.e2e.conftest import MODEL
from tests.e2e.test_engine import ENGINE_ENV
from tests.support.openai_schema import check, events_of
from tests.support.request_fields import BOTH, CHAT, CHOSEN, CONVERSATION, SCHEMA, TEXT, TOOL
from tests.support.stack import Stack, Tenant

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

FOLLOWED = {"go": "look (up|down)", "year": "[0-9]{4}"}
"""What the input of a custom tool has to match, whose grammar says so in its own words."""
HELLO = [{"role": "user", "content": "hi"}]
WORDS = "I will look."
UNFINISHED_CALL = (
    r'I will look\. <tool_call>\{"name": "look", "arguments": \{"ok": "[a-z]{900}"\}\}</tool_call>'
)
"""What the model has to write: text, and a call that is longer than the answer may be."""
LONG = {"type": "object", "properties": {"ok": {"type": "string", "minLength": 900}}, "required": ["ok"]}
CALLED = {"type": "function", "function": {"name": "look", "parameters": LONG}}


@pytest.fixture
def mirrored(stacks: dict[str, Stack]) -> Stack:
    """The platform whose engines' counters no test compares with what was billed."""
    return stacks["mirrored"]


def test_every_field_of_the_real_engine_has_a_treatment() -> None:
    [protocols] = ENGINE_ENV.glob("lib/python*/site-packages/vllm/entrypoints/openai")
    for place, shape in (("chat_completion", ChatRequest), ("completion", CompletionRequest)):
        fields = _annotated(
            protocols / place / "protocol.py", shape.__name__.replace("ChatR", "ChatCompletionR")
        )
        assert fields
        assert fields <= {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__} | {
            *IGNORED,
            *REFUSED,
        }


def _annotated(source: Path, name: str) -> set[str]:
    """The annotated members of a class in a module, which is not imported."""
    [shape] = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    targets = [
        node.target.id
        for node in shape.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return {target for target in targets if not target.startswith("_")}


def test_every_accepted_field_is_answered(mirrored: Stack) -> None:
    tenant = mirrored.make_tenant("Fields", "25")
    requests = [("chat/completions", {"messages": HELLO, **fields}) for fields in (*BOTH, *CHAT)]
    requests += [("completions", {"prompt": "hi", **fields}) for fields in (*BOTH, *TEXT)]
    requests.append(("chat/completions", {"messages": CONVERSATION, "tools": [TOOL], "tool_choice": "none"}))
    sent = {"chat/completions": {"model"}, "completions": {"model"}}
    for route, fields in requests:
        sent[route] |= fields.keys()
        answer = _post(mirrored, tenant, route, fields)
        assert answer.status_code == 200, (fields, answer.text)
        _check_answer(fields, answer, "text" if route == "completions" else "chat")
    assert sent["chat/completions"] == set(ChatRequest.__struct_fields__)
    assert sent["completions"] == set(CompletionRequest.__struct_fields__)


def _post(stack: Stack, tenant: Tenant, route: str, fields: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {tenant.key}"}
    body = {"model": MODEL, "max_tokens": 200, **fields}
    return httpx.post(f"{stack.base_url}/{route}", json=body, headers=headers, timeout=180)


def _check_answer(fields: dict[str, Any], answer: httpx.Response, endpoint: str) -> None:
    if fields.get("stream"):
        events_of(answer.text.splitlines(), endpoint)
        return
    check(answer.json(), endpoint)
    choices = answer.json()["choices"]
    if fields.get("ignore_eos"):
        assert answer.json()["usage"]["completion_tokens"] == fields["max_tokens"]
    if fields.get("n"):
        assert len({str(choice.get("message", choice.get("text"))) for choice in choices}) == 1
    if choices[0]["finish_reason"] != "length":  # random weights may fill an answer with blanks
        if "functions" in fields:
            assert choices[0]["message"]["function_call"]["name"] == "look"
        if fields.get("tool_choice") == {"type": "custom", "custom": {"name": "note"}}:
            assert choices[0]["message"]["tool_calls"][0]["type"] == "custom"
    chosen = fields.get("tool_choice")
    if isinstance(chosen, dict) and chosen.get("custom", {}).get("name") in FOLLOWED:
        [call] = choices[0]["message"]["tool_calls"]
        assert re.fullmatch(FOLLOWED[call["custom"]["name"]], call["custom"]["input"]), call
    if "guided_choice" in fields:
        text = choices[0]["text"] if "text" in choices[0] else choices[0]["message"]["content"]
        assert text in fields["guided_choice"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("chosen", {"structured_outputs": {"regex": UNFINISHED_CALL}, "max_tokens": 80}),
        ("required", {"tool_choice": "required", "max_tokens": 40}),
        ("named", {"tool_choice": CHOSEN, "max_tokens": 40}),
    ],
)
def test_a_call_that_max_tokens_cuts_leaves_no_markup_in_a_whole_answer(
    mirrored: Stack, kind: str, fields: dict[str, Any]
) -> None:
    """The engine has an unfinished call as content: as it is written, or as bare JSON where it is forced."""
    tenant = mirrored.make_tenant(f"Cut {kind}", "5")
    answer = _post(mirrored, tenant, "chat/completions", {"messages": HELLO, "tools": [CALLED], **fields})
    assert answer.status_code == 200, answer.text
    check(answer.json(), "chat")
    [choice] = answer.json()["choices"]
    # vLLM lets the model choose between a call and the text of the form, which has a call, too.
    assert choice["message"]["content"] in ((None, WORDS) if kind == "chosen" else (None,))
    assert "tool_call>" not in answer.text
    assert choice["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == fields["max_tokens"]


def test_the_official_clients_parameters(mirrored: Stack) -> None:
    tenant = mirrored.make_tenant("Typed", "25")
    client = openai.OpenAI(base_url=mirrored.base_url, api_key=tenant.key, max_retries=0, timeout=180)
    chat = client.chat.completions.create(
        model=MODEL, messages=HELLO, frequency_penalty=0.1, logit_bias={"5": 1}, logprobs=True, top_logprobs=1,  # type: ignore[arg-type]
        max_completion_tokens=8, metadata={"a": "b"}, modalities=["text"], n=1, parallel_tool_calls=True,
        presence_penalty=0.1, prompt_cache_key="k", response_format={"type": "text"}, safety_identifier="s", seed=7,
        service_tier="auto", stop=["zzz"], store=False, stream=False, temperature=1, tool_choice="auto",
        tools=[TOOL], top_p=0.9, user="u", verbosity="medium", reasoning_effort="none",  # type: ignore[list-item]
        prediction={"type": "content", "content": "hi"},
    )  # fmt: skip
    assert chat.choices[0].logprobs is not None
    text = client.completions.create(
        model=MODEL, prompt="hi", best_of=1, echo=False, frequency_penalty=0.1, logit_bias={"5": 1}, logprobs=1,
        max_tokens=8, n=1, presence_penalty=0.1, seed=7, stop="zzz", suffix=None, temperature=1, top_p=1, user="u",
    )  # fmt: skip
    assert text.usage is not None
    parsed = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=40,  # type: ignore[arg-type]
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
    )  # fmt: skip
    assert parsed.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_token": 3}, "unknown_field"),
        ({"chat_template_kwargs": {"verbose": True}}, "unsupported_field"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
         "unsupported_content"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_is_reserved(
    mirrored: Stack, fields: dict[str, Any], code: str
) -> None:
    answer = _post(
        mirrored,
        mirrored.make_tenant(f"Refused {code}", "5"),
        "chat/completions",
        {"messages": HELLO, **fields},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
