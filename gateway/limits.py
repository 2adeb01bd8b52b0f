"""Every size the gateway accepts, in one place. Above a cap the answer is a 4xx that names it."""

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Counted while the body streams in, so a lying Content-Length gains nothing."""
MAX_JSON_DEPTH = 64
MAX_MESSAGES = 4096
MAX_PARTS_PER_MESSAGE = 256
MAX_CHOICES = 16
"""`n`, and `n` times the number of prompts of a text completion."""
MAX_PROMPTS = 16
MAX_TOKENS_FIELD = 1_048_576
"""Sanity bound of max_tokens; the model's own context bounds it further."""
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_TOP_LOGPROBS = 20
MAX_TEXT_LOGPROBS = 5
MAX_LOGIT_BIAS = 300
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128
MAX_SCHEMA_BYTES = 64 * 1024
"""One JSON schema of a tool or of `response_format`, encoded."""
MAX_SCHEMA_DEPTH = 32
MAX_NAME_CHARS = 64
MAX_ID_CHARS = 128
MAX_DESCRIPTION_CHARS = 8192
MAX_MODEL_CHARS = 200
MAX_SEED = 2**63 - 1
MAX_TOKEN_ID = 2**31 - 1

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""One event of an engine's stream; more means the engine has gone mad."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""A whole non-streamed answer while it is being collected."""
