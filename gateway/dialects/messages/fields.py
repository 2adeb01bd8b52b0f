"""The fields of Anthropic's and OpenAI's requests that /v1/messages does not accept (see gateway/schemas/fields.py)."""

from gateway.dialects.field_names import TOOL, FieldNames, named
from gateway.schemas.fields import KnownFields, Refused

IGNORED = {
    "cache_control": "prompts are cached without it",
    "speed": "the platform chooses replicas",
    "user_profile_id": "not used by the model",
}
"""Fields without effect, and why."""
_TOOLS = "the platform runs no tools; send tools with an 'input_schema' and run their calls yourself"
REFUSED = {
    "container": Refused(_TOOLS),
    "fallbacks": Refused("`model` names one model"),
    "functions": Refused("use `tools`"),
    "inference_geo": Refused("the region of a model is in GET /v1/models"),
    "max_completion_tokens": Refused("use `max_tokens`"),
    "max_tokens_to_sample": Refused("use `max_tokens`"),
    "mcp_servers": Refused(_TOOLS),
    "n": Refused("an answer is one message", frozenset({b"null", b"1"})),
    "prompt": Refused("use `messages`"),
    "reasoning_effort": Refused("use `output_config.effort`"),
    "response_format": Refused("use `output_config.format`"),
    "stop": Refused("use `stop_sequences`"),
}
"""Fields that are refused unless their value is harmless."""

COUNT_IGNORED = {
    **IGNORED,
    **dict.fromkeys(
        (
            "max_tokens",
            "metadata",
            "service_tier",
            "stop_sequences",
            "stream",
            "temperature",
            "top_k",
            "top_p",
        ),
        "not part of the prompt",
    ),
}
"""The same for count_tokens."""

MESSAGES = KnownFields(IGNORED, REFUSED)
COUNT = KnownFields(COUNT_IGNORED, REFUSED)

NAMES = FieldNames(
    (r"\btools\[(\d+)\]\.function\.parameters\b", r"tools[\1].input_schema"),
    (TOOL, r"tools[\1]."),
    (r"\bresponse_format\b(?:\.json_schema\b(?:\.schema\b)?)?", "output_config.format"),
    (r"\breasoning_effort\b", "output_config.effort"),
    (r"\bparallel_tool_calls\b", "tool_choice.disable_parallel_tool_use"),
    (named("stop"), "stop_sequences"),
    (r"\bmax_completion_tokens\b", "max_tokens"),
)
"""The names of chat's fields here."""
