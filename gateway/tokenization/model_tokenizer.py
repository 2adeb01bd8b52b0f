"""Tokenizes requests of one model as its engine does: files, chat template and tokenizer."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
from jinja2 import TemplateError

from gateway.schemas.common import PreparedRequest
from gateway.tokenization.chat_template import ChatTemplate
from gateway.tokenization.text_encoder import TextEncoder, TokenCache, TokenizationError
from workers.token_blocks import packed

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class PromptTokenizer(Protocol):
    """Tokenises requests of one model. Safe for several threads."""

    def tokenize(self, prepared: PreparedRequest, salt: str, *, reasoning: bool) -> bytes:
        """Return the prompt's packed token ids, as the engine computes them. Raises TokenizationError.

        `salt`: the tenant's cache salt. `reasoning`: whether the model's template has a switch for thinking.
        """

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the vocabulary's entries of token ids. Raises UnknownToken."""

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids. Raises UnknownToken, and TokenizationError for a text that is too long."""


class ModelTokenizer:
    """The model's tokenizer and chat template, from a directory laid out as on the Hugging Face hub."""

    def __init__(self, directory: Path, name: str, cache: TokenCache, now: Callable[[], datetime]) -> None:
        """Raises ValueError or OSError when files are missing or invalid. `now`: the time that templates print."""
        self._encoder = TextEncoder(directory / "tokenizer.json", name, cache)
        config = _config(directory)
        try:
            variables = {key: _text_of(config[key]) for key in _SPECIAL if config.get(key)}
            self._templates = {
                key: ChatTemplate(source, variables, now)
                for key, source in _templates(directory, config).items()
            }
        except TemplateError as error:
            raise ValueError(f"the chat template in {directory} is invalid: {error}") from None
        except (KeyError, TypeError) as error:
            raise ValueError(f"tokenizer_config.json in {directory} is invalid: {error!r}") from None

    def tokenize(self, prepared: PreparedRequest, salt: str, *, reasoning: bool) -> bytes:
        """Return the prompt's packed token ids. Raises TokenizationError."""
        special = prepared.form.add_special_tokens
        if prepared.endpoint == "chat":
            return self._encode(self._chat_text(prepared, reasoning), salt, special=bool(special))
        name = "input" if prepared.endpoint == "embeddings" else "prompt"
        prompt = msgspec.json.decode(prepared.fields[name])
        if isinstance(prompt, str):
            return self._encode(prompt, salt, special=special is not False)
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return self._encoder.plain(prompt[0], salt)
        if isinstance(prompt[0], int):
            return packed(prompt)
        raise TokenizationError("several_prompts")

    def _encode(self, text: str, salt: str, *, special: bool) -> bytes:
        return self._encoder.plain(text, salt) if special else self._encoder.chat(text, salt)

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the vocabulary's entries of token ids. Raises UnknownToken."""
        return self._encoder.names(tokens)

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids. Raises UnknownToken, and TokenizationError for a text that is too long."""
        return self._encoder.text(tokens)

    def _chat_text(self, prepared: PreparedRequest, reasoning: bool) -> str:
        fields = prepared.fields
        tools = msgspec.json.decode(fields["tools"]) if "tools" in fields else None
        template = self._templates.get("tool_use") if tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise TokenizationError("no_template")
        try:
            return template.render(
                msgspec.json.decode(fields["messages"]),
                tools,
                prepared.template_kwargs(reasoning=reasoning),
                generation_prompt=prepared.form.add_generation_prompt,
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise TokenizationError("template_failed") from error


def _config(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    if not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


def _templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; the file chat_template.jinja takes precedence over the configuration."""
    path = directory / "chat_template.jinja"
    if path.exists():
        return {"default": path.read_text(encoding="utf-8")}
    found = config.get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    return {each["name"]: each["template"] for each in found or ()}


def _text_of(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)
