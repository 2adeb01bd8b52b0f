"""The names of chat's fields in /v1/responses."""

from gateway.dialects.field_names import MESSAGES, TOOL, FieldNames, named

NAMES = FieldNames(
    (TOOL, r"tools[\1]."),
    (r"\btool_choice\.allowed_tools\b", "tool_choice"),
    (r"\bresponse_format\b(?:\.json_schema\b)?", "text.format"),
    (MESSAGES, "input"),
    (r"\breasoning_effort\b", "reasoning.effort"),
    (named("logprobs"), "top_logprobs"),
    (r"\bmax_(?:completion_)?tokens\b", "max_output_tokens"),
)
"""What its callers know chat's fields as."""
