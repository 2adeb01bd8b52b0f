"""A harmless value of every field that the completion routes accept, in requests that the tiny model can answer."""

from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}
CHOSEN = {"type": "function", "function": {"name": "look"}}
CUSTOM = {"type": "custom", "custom": {"name": "note", "format": {"type": "text"}}}
GRAMMAR = {"syntax": "lark", "definition": 'start: "look " ("up" | "down")'}
YEAR = {"syntax": "regex", "definition": r"[0-9]{4}"}
GRAMMARS = [
    {"type": "custom", "custom": {"name": "go", "format": {"type": "grammar", "grammar": GRAMMAR}}},
    {"type": "custom", "custom": {"name": "year", "format": {"type": "grammar", "grammar": YEAR}}},
]
BOTH: list[dict[str, Any]] = [
    {"stream": True, "stream_options": {"include_usage": True}},
    {"ignore_eos": True, "max_tokens": 12},
    {"min_tokens": 5, "max_tokens": 12},
    {"n": 2, "temperature": 0.0, "max_tokens": 1},  # later tokens of equal choices may differ by rounding
    {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7},
    {"top_p": 0},
    {"service_tier": "auto"},
    {"user": "u-1", "safety_identifier": "s-1", "metadata": {"tag_team": "a"}},
    {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5},
    {"logit_bias": {"5": 1.5}},
    {"return_token_ids": True},
    {"return_token_ids": True, "stream": True},
    {"stop": ""},
    {"stop": ["\x00", "zzz", "yyy", "xxx"], "include_stop_str_in_output": True},
    {"stop_token_ids": [5, 6], "skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
    {"guided_regex": "a{3}"},
    {"guided_choice": ["one", "two"]},
    {"guided_grammar": 'root ::= "yes" | "no"'},
]
CHAT: list[dict[str, Any]] = [
    {"max_completion_tokens": 3},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "top_logprobs": 2, "stream": True},
    {"top_logprobs": 2},
    {"tools": [TOOL, CUSTOM], "tool_choice": "auto", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": CHOSEN},
    {"tools": [TOOL], "tool_choice": CHOSEN, "stream": True},
    {"tools": [TOOL, CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "note"}}},
    {"tools": [TOOL, CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "note"}}, "stream": True},
    {
        "tools": [TOOL, CUSTOM],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHOSEN]}},
    },
    {"tools": GRAMMARS, "tool_choice": {"type": "custom", "custom": {"name": "go"}}},
    {"tools": GRAMMARS, "tool_choice": {"type": "custom", "custom": {"name": "go"}}, "stream": True},
    {"tools": GRAMMARS, "tool_choice": {"type": "custom", "custom": {"name": "year"}}},
    {"tools": GRAMMARS[1:], "tool_choice": "auto"},
    {"functions": [TOOL["function"]], "function_call": {"name": "look"}},
    {"reasoning_effort": "none", "modalities": ["text"]},
    {"reasoning_effort": "high", "max_tokens": 40},
    {"reasoning_effort": "high", "max_tokens": 40, "stream": True},
    {"chat_template_kwargs": {"thinking": True}, "enable_thinking": None, "max_tokens": 40},
]
TEXT: list[dict[str, Any]] = [
    {"logprobs": 1, "best_of": 1},
    {"logprobs": 1, "stream": True},
    {"prompt": ["a"] * 16, "max_tokens": 1},
    {"prompt": [[5, 6], [7]]},
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "developer", "content": "be \x00 brief"},
    {"role": "user", "name": "me", "content": [{"type": "text", "text": "look"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": None},
    {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
    {"role": "function", "name": "look", "content": "seen"},
]  # fmt: skip
