"""The prepared request: what the gateway keeps of a valid request, and the engine's body built from it."""

from collections.abc import Callable
from typing import Any

import msgspec

from billing.metering.records import Labels


class CallForm(msgspec.Struct, frozen=True):
    """The form of an answer's tool calls that a request asked for."""

    functions: bool = False
    """Whether the answer has OpenAI's older `function_call`."""
    custom: tuple[str, ...] = ()
    """Names of custom tools, whose calls are written as such."""
    text_call: str = ""
    """Name of the custom tool whose input the engine's text is; empty = none."""

    @property
    def changed(self) -> bool:
        """Whether it differs from the form in which engines write calls."""
        return self.functions or bool(self.custom)


_AS_ENGINES_WRITE = CallForm()


class Extras(msgspec.Struct, frozen=True):
    """Members of an answer that the customer gets only when the request asks for them."""

    stop_reason: bool = False
    """Which stop string ended a choice."""
    logprobs: bool = False
    token_ids: bool = False
    """The ids of the prompt's tokens and of the answer's, where the engine tells them."""
    calls: CallForm = _AS_ENGINES_WRITE
    """The form of tool calls."""


class PromptForm(msgspec.Struct, frozen=True):
    """How a prompt is made of its text, where a request may say so; the defaults are those of answers."""

    add_generation_prompt: bool = True
    """Whether a chat's prompt ends in the beginning of the answer."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its own; None = to a text, and not to a chat, whose template writes them."""


_AS_ANSWERED = PromptForm()


class PromptPart(msgspec.Struct):
    """Some of a request's prompts (gateway/prompt_batches.py)."""

    max_input_tokens: int
    """Upper bound of their tokens."""
    prompts: bytes
    """They as a JSON array; empty once the engine has them and no other attempt will be made."""


class PreparedRequest(msgspec.Struct):
    """A validated request with the allow-listed fields of its engine body."""

    endpoint: str
    """chat, text or embeddings: selects the engine's path and the form of the answer. detokenize has no engine."""
    model: str
    """The model's name as the client wrote it."""
    stream: bool
    include_usage: bool
    choices: int
    """Number of generations: n, times the number of prompts."""
    choices_per_prompt: int
    max_tokens: int
    """Output tokens per choice; 0 = no limit was given."""
    prompt_bytes: int
    """Bytes of the prompt's text: tools, then messages, in the order of the template."""
    body_bytes: int
    """Bytes of the body as it was received."""
    max_input_tokens: int
    """Upper bound of the prompt's tokens, without a tokenizer (gateway/schemas/bounds.py)."""
    fields: dict[str, Any]
    """Allow-listed engine fields, without model, salt and stream options; empty after `drop_body`.

    They contain the only copy of the prompt.
    """
    parts: list[PromptPart] = []
    """Of many prompts, what the engine gets one after the other; the first is in `fields`, too. Empty = all at once."""
    reasoning_effort: str = ""
    logprobs_per_token: int = 0
    """Log-probabilities that the request asks for, per output token."""
    min_tokens: int = 0
    """Output tokens that each choice certainly has."""
    template_switches: dict[str, bool | int | float | str] = {}
    """Variables of the chat template that the request sets; `Admission.resolve_model` checks them."""
    needs: tuple[tuple[str, str], ...] = ()
    """Capabilities of the model that the request uses, each with the field that asks for it."""
    calls: CallForm = _AS_ENGINES_WRITE
    labels: Labels | None = None
    """End user and tags, of which no engine learns; None = none are named."""
    service_tier: str = ""
    """What the request names; empty = nothing (gateway/service_tier.py)."""
    regions: tuple[str, ...] = ()
    """Regions in one of which it has to run, in lower case; empty = any."""
    gpus: tuple[str, ...] = ()
    """Classes of GPU on one of which it has to run, in lower case; empty = any."""
    dialect_fields: dict[str, Any] = {}
    """What the answer in another API's form needs of the request, by that dialect's parser (gateway/dialects)."""
    form: PromptForm = _AS_ANSWERED
    limit_yields: bool = False
    """Whether a `max_tokens` that does not fit into the context means the context's end, and is no error."""
    ignored_fields: tuple[str, ...] = ()
    """Names of fields of the body that no known API defines, and of fields without effect in this request."""

    @property
    def in_one_piece(self) -> bool:
        """Whether the engine is best asked for the answer in one piece: embeddings, and answers with tools.

        Engines parse tool calls better whole. The size of log-probabilities has no useful bound, so answers with them
        are read as they grow.
        """
        if self.endpoint == "embeddings":
            return True
        tools = "tools" in self.fields and self.fields.get("tool_choice") != "none"
        return tools and not self.stream and not self.logprobs_per_token

    @property
    def extras(self) -> Extras:
        """The extras that the request asks for, until `drop_body`."""
        stops = "stop" in self.fields or "stop_token_ids" in self.fields
        ids = "return_token_ids" in self.fields
        return Extras(stops, self.logprobs_per_token > 0, ids, self.calls)

    @property
    def may_force_end(self) -> bool:
        """Whether the request can make the model end at once, until `drop_body`.

        A bias or a constraint may leave the end as the only token, and any token may be the end.
        """
        return not _FORCE_END.isdisjoint(self.fields)

    def prompt_prefix(self, limit: int) -> bytes:
        """Return the first bytes of the prompt's text, at most `limit`, for prefix hashes."""
        limit = min(limit, self.prompt_bytes)
        text = b""
        for name in ("tools", "messages", "prompt", "input"):
            if name in self.fields and len(text) < limit:
                text += memoryview(self.fields[name])[: limit - len(text)]
        return text

    def drop_body(self) -> None:
        """Free the prompt: no further attempt will be made. `engine_body` and `prompt_prefix` are useless then."""
        self.fields = {}

    def engine_body(
        self,
        model: str,
        cache_salt: str,
        *,
        reasoning: bool = False,
        interval: int = 0,
        max_tokens: int = 0,
        whole: bool = False,
        to_context_end: bool = False,
        prompts: msgspec.Raw | None = None,
        priority: int | None = None,
        counts_ids: bool = False,
    ) -> bytes:
        """Return the body for the engine: a stream with running counts (gateway/relay.py explains why), or `whole`.

        `model`: the name under which the engine serves the model. `cache_salt`: the tenant's; empty = none.
        `reasoning`: whether the model's chat template has a switch for thinking. `interval`: tokens per event; 0 = the
        engine's own. `max_tokens`: the limit when the request names none; 0 = none. `to_context_end`: the engine gets
        no limit, and the gateway ends the answer at the request's own. `prompts`: those of one batch; None = all.
        `priority`: the request's in the engine's own queue; None = the engine does not schedule by it. `counts_ids`:
        whether the stream's tokens are counted by their ids.
        """
        body = dict(self.fields)
        body["model"] = model
        if prompts is not None:
            body["prompt"] = prompts
        if self.endpoint != "embeddings":
            body["stream"] = not whole
        if not whole:
            body["stream_options"] = _STREAM_OPTIONS
        if counts_ids:
            body["return_token_ids"] = True
        if interval:
            body["stream_interval"] = interval
        if priority is not None:
            body["priority"] = priority
        if to_context_end:
            body.pop("max_tokens", None)
        elif max_tokens:
            body.setdefault("max_tokens", max_tokens)
        if cache_salt:
            body["cache_salt"] = cache_salt
        if switches := self.template_kwargs(reasoning=reasoning):
            body["chat_template_kwargs"] = switches
        return msgspec.json.encode(body)

    def template_kwargs(self, *, reasoning: bool) -> dict[str, bool | int | float | str]:
        """Return the variables of the chat template; empty for the template's defaults.

        Those that the request names take precedence over those that `reasoning_effort` stands for.
        """
        if not (reasoning and self.reasoning_effort):
            return self.template_switches
        thinking = self.reasoning_effort not in THINKING_OFF
        return {"thinking": thinking, "enable_thinking": thinking, **self.template_switches}


Parse = Callable[[bytes], PreparedRequest]
"""Validates a body. Raises InvalidRequest or a subclass of it."""
THINKING_OFF = ("none", "minimal")
"""Values of reasoning_effort that switch thinking off."""
_FORCE_END = frozenset({"logit_bias", "stop_token_ids", "structured_outputs"})
"""Fields of the engine's body with which an answer may end before its first text."""
_STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
