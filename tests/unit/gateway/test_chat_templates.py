"""Chat templates, rendered as engines render them."""

import json

from gateway.tokenization.chat_template import ChatTemplate
from tests.unit.gateway.tokenizing import BOS, END, START, Json, day
from workers.tiny_model import TEMPLATE as TINY

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def render(source: str, *messages: Json, tools: list[Json] | None = None, **switches: bool) -> str:
    return ChatTemplate(source, {"bos_token": BOS}, day).render(list(messages), tools, switches)


def test_the_tiny_models_template() -> None:
    messages: list[Json] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PARTS}]
    expected = f"{START}system\nbe brief{END}\n{START}user\nab{END}\n{START}assistant\n"
    assert render(TINY, *messages) == expected
    assert render(TINY, *messages, thinking=True) == expected + "<think>\n"


F_AS_VLLM_WRITES = '{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}'


def test_the_tiny_models_tools() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "<é>"}'}}
    messages: list[Json] = [
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]
    text = render(TINY, *messages, tools=[{"type": "function", "function": {"name": "f"}}])
    system, *turns = text.split(START)[1:]
    assert f"{F_AS_VLLM_WRITES}\n</tools>" in system
    assert turns == [
        "assistant\n<think>\nhm\n</think>\n\n<tool_call>\n"
        f'{{"name": "f", "arguments": {{"x": "<é>"}}}}\n</tool_call>{END}\n',
        f"user\n<tool_response>\nseen\n</tool_response>{END}\n",
        "assistant\n",
    ]


def test_parts_become_text_where_the_template_reads_text() -> None:
    assert render("{{ messages[0]['content'] }}", {"role": "user", "content": PARTS}) == "a\nb"
    assert render("{{ messages[0].content }}", {"role": "assistant", "content": None}) == ""


def test_calls_tools_and_switches() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "<é>"}'}}
    source = (
        "{{ bos_token }}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
        "{% endfor %}{% endfor %}{{ tools | tojson }}{% if thinking %}!{% endif %}"
    )
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render(source, message, tools=tools, thinking=True) == f'<s>{{"x": "<é>"}}[{F_AS_VLLM_WRITES}]!'
    whole = {"parameters": {"type": "object"}, "strict": True, "description": "d", "name": "f"}
    told = render("{{ tools | tojson }}", message, tools=[{"type": "function", "function": whole}])
    assert json.loads(told) == [{"type": "function", "function": whole}]
    assert told.index("name") < told.index("description") < told.index("parameters") < told.index("strict")


def test_dates_and_training_marks() -> None:
    loop = "{% for a in [1, 2] %}{% break %}{% endfor %}"
    source = "{{ strftime_now('%d %b %Y') }}{% generation %}x{% endgeneration %}" + loop
    assert render(source, {"role": "user", "content": ""}) == "01 Mar 2026x"
