"""Request bodies of the simulated engine: the fields that change what it does; others are ignored, as vLLM does."""

import msgspec

from sim.engine import text


class StreamOptions(msgspec.Struct):
    """OpenAI's stream options and vLLM's addition."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ContentPart(msgspec.Struct):
    """A part of a message; only text counts."""

    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    """A chat message."""

    role: str
    content: str | list[ContentPart] | None = None

    def plain(self) -> str:
        """Its text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class GenerationBody(msgspec.Struct, kw_only=True):
    """What both endpoints share."""

    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    seed: int | None = None
    cache_salt: str | None = None
    ignore_eos: bool = False

    def stops(self) -> list[str]:
        """Stop strings, empty ones left out."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [item for item in given if item]


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message]

    def prompts(self) -> list[bytes]:
        """The one prompt, in whole tokens."""
        return [text.chat_prompt([(message.role, message.plain()) for message in self.messages])]


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | list[int | str | list[int]] | None = None
    max_tokens: int | None = 16

    def prompts(self) -> list[bytes]:
        """Every prompt, in whole tokens."""
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
    """POST /tokenize: a prompt or messages."""

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = None

    def content(self) -> bytes:
        """What is to be tokenised, in whole tokens."""
        if self.messages is not None:
            return text.chat_prompt([(message.role, message.plain()) for message in self.messages])
        return text.encode(self.prompt or "")
