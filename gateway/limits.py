"""Bounds on what the gateway accepts. A request above a bound gets a 4xx answer that names the bound."""

from core.errors import EngineFailed

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Bytes of a request's body, counted as the body arrives; Content-Length is not trusted."""
BODY_BYTES_PER_TOKEN = 32
"""Bytes that a token of the prompt may take in a body, on average over the prompt.

English text and code have 4 bytes a token. The longest are scripts of two bytes a character with long words in the
vocabulary, such as Russian: 4 to 5 characters a token, each written as six bytes (`\\u0441`) by encoders that escape
all but ASCII. A message of JSON around an empty text has 30 bytes, and its template at least 4 tokens.
"""
BODY_BYTES_BESIDE_PROMPT = 128 * 1024
"""Bytes of a body beside its prompt: a JSON schema of 64 KiB, logit_bias, stop sequences, fields that are ignored."""
MAX_ARGUMENTS_DEPTH = 64
"""Levels of nested arrays and objects in the arguments of a tool call."""
MAX_MESSAGES = 4096
"""Messages of a chat completion."""
MAX_PARTS_PER_MESSAGE = 256
"""Content parts of one message."""
MAX_BODY_FIELDS = 128
"""Fields of a body that has others than the accepted ones."""
MAX_IGNORED_FIELDS_BYTES = 1024
"""Bytes of the header that names ignored fields."""
MAX_CHOICES = 16
"""Value of `n`: choices of one prompt."""
MAX_PROMPTS = 1024
"""Prompts of one text completion, times `n`: those that vLLM takes (VLLM_MAX_COMPLETION_PROMPTS)."""
CHOICES_AT_ONCE = 16
"""Choices of one text completion that an engine generates at once. Placements and concurrency limits count a request
once, whatever its choices, so more would fill the sequences of an engine beside the fair queue."""
MAX_INPUTS = 2048
"""Inputs of one request for embeddings, as OpenAI's."""
MAX_DETOKENIZED_TOKENS = 2**18
"""Tokens whose text is asked for: the largest context of the catalog."""
MAX_LISTED_TOKENS = 2**18
"""Tokens of a prompt that are listed: the largest context of the catalog."""
MAX_DETOKENIZED_CHARS = 4 * 1024 * 1024
"""Characters of the text of tokens, by the lengths of the vocabulary's entries: single tokens have hundreds."""
MAX_DIMENSIONS = 65_536
"""Value of `dimensions`; the model bounds it further."""
MAX_TOKENS_FIELD = 1_048_576
"""Value of max_tokens; the model's context length bounds it further."""
MAX_STOPS = 4
"""Stop sequences of a request: those of OpenAI's specification (`StopConfiguration`), and what vLLM takes
(VLLM_MAX_STOP_STRINGS)."""
MAX_STOP_CHARS = 256
"""Characters of one stop sequence."""
MAX_STOP_TOKENS = 128
"""Token ids that end an answer."""
MAX_TOP_LOGPROBS = 20
"""Value of top_logprobs in a chat completion."""
MAX_TEXT_LOGPROBS = 5
"""Value of logprobs in a text completion."""
MAX_LOGIT_BIAS = 300
"""Entries of logit_bias."""
MAX_TOOLS = 128
"""Tools of a request."""
MAX_TOOL_CALLS = 128
"""Tool calls of one assistant message."""
MAX_SCHEMA_BYTES = 64 * 1024
"""Bytes of one encoded JSON schema, of a tool or of response_format."""
MAX_SCHEMA_DEPTH = 32
"""Levels of nested arrays and objects in one JSON schema."""
MAX_PATTERN_CHARS = 4096
"""Characters of a regular expression or of a pattern of white space that an answer has to match."""
MAX_GRAMMAR_CHARS = 16 * 1024
"""Characters of a grammar that an answer has to follow."""
MAX_CHOICE_OPTIONS = 1024
"""Texts of which an answer has to be one."""
MAX_CHOICE_CHARS = 1024
"""Characters of one of these texts."""
MAX_TEMPLATE_SWITCHES = 16
"""Switches of a chat template that a request sets."""
MAX_NAME_CHARS = 64
"""Characters of the name of a participant or a schema."""
MAX_ID_CHARS = 128
"""Characters of the id of a tool call."""
MAX_DESCRIPTION_CHARS = 8192
"""Characters of the description of a tool or a schema."""
MAX_BLOCK_DESCRIPTION_CHARS = 64 * 1024
"""Characters of the description of a tool in Anthropic's form: agents write manuals there."""
MAX_MODEL_CHARS = 200
"""Characters of the model's name."""
MAX_LABEL_CHARS = 128
"""Characters of an end user, of the value of a tag, and of the name of a tag."""
MAX_TAGS = 5
"""Entries of metadata whose name begins with `tag_`."""
MAX_METADATA = 64
"""Entries of metadata."""
MAX_SEED = 2**63 - 1
"""Absolute value of seed."""
MAX_TOKEN_ID = 2**31 - 1
"""Value of a token id in a prompt that is given as tokens."""

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Bytes of one event of an engine's stream; a longer event fails the attempt."""
TOKEN_ID_BYTES = 12
"""Bytes of a token's id in a list at most, with its comma and a blank."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Bytes of text and logprobs kept of an answer that is not streamed. A larger answer ends there, as at max_tokens."""
EMBEDDED_NUMBER_BYTES = 26
"""Bytes of one number of a vector in JSON at most: a float32 as a double, such as -1.2345678918063641e-05, with a comma
and a blank."""
EMBEDDED_ENTRY_BYTES = 128
"""Bytes of one vector's entry beside its numbers."""
MAX_ANSWER_LOGPROBS = 262_144
"""Log-probabilities of an answer that is not streamed: choices x tokens x (1 + top_logprobs). One takes about 100
bytes; with 256 bytes each they would fill MAX_ANSWER_BYTES."""
MAX_BYTES_PER_TOKEN = 1024
"""Bytes that a token takes in an answer at most: the longest tokens of vocabularies have 256 characters, each of which
takes up to four bytes in JSON within JSON, as the arguments of a tool call are."""


class AnswerTooLarge(EngineFailed):
    """An answer is above a bound. It ends there and is billed; before any content it is a failure of the engine."""


def body_limit(context_len: int, prompts: int) -> int:
    """Return the bytes of the longest body for a model of `context_len` tokens; `prompts`: number of prompts in it.

    A longer body cannot fit into the context unless its text is unusual, such as long runs of blanks.
    """
    return min(MAX_BODY_BYTES, BODY_BYTES_BESIDE_PROMPT + BODY_BYTES_PER_TOKEN * context_len * prompts)
