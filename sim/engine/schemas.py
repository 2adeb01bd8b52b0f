"""Request bodies of the simulated engine: the fields that affect it; other fields are ignored, as vLLM does."""

import msgspec

from sim.engine import text


class StreamOptions(msgspec.Struct):
    """OpenAI's stream options and vLLM's additional one."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ContentPart(msgspec.Struct):
    """A part of a message; only text is used."""

    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    """A chat message."""

    role: str
    content: str | list[ContentPart] | None = None

    def plain(self) -> str:
        """Return the message's text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields that both endpoints share."""

    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    seed: int | None = None
    cache_salt: str | None = None
    stream_interval: int | None = None
    ignore_eos: bool = False
    priority: int = 0
    return_token_ids: bool | None = False

    def stops(self) -> list[str]:
        """Return the stop strings without empty ones."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [item for item in given if item]


class ChatBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]

    def prompts(self) -> list[bytes]:
        """Return a list with the one prompt, in whole tokens."""
        return [text.chat_prompt([(message.role, message.plain()) for message in self.messages])]


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: str | list[int | str | list[int]] | None = None
    max_tokens: int | None = 16

    def prompts(self) -> list[bytes]:
        """Return every prompt, in whole tokens."""
        prompt = self.prompt if self.prompt is not None else ""
        if isinstance(prompt, str):
            return [text.encode(prompt)]
        if prompt and isinstance(prompt[0], int):
            return [text.from_ids([item for item in prompt if isinstance(item, int)])]
        return [
            text.encode(item) if isinstance(item, str) else text.from_ids(item)
            for item in prompt
            if not isinstance(item, int)
        ]


class TokenizeBody(msgspec.Struct):
    """The body of POST /tokenize: a prompt or messages."""

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = None

    def content(self) -> bytes:
        """Return the text to tokenise, in whole tokens."""
        if self.messages is not None:
            return text.chat_prompt([(message.role, message.plain()) for message in self.messages])
        return text.encode(self.prompt or "")


class UnloadBody(msgspec.Struct):
    """The body of POST /v1/unload_lora_adapter."""

    lora_name: str


class RpcBody(msgspec.Struct):
    """The body of POST /collective_rpc."""

    method: str
