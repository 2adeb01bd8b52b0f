"""The simulated engine's tokenizer, for exact prefix matching without a GPU."""

from collections.abc import Sequence

import msgspec

from gateway.schemas.common import PreparedRequest
from gateway.tokenization.text_encoder import TokenizationError
from sim.engine import text
from sim.engine.schemas import Message
from workers.token_blocks import packed

_messages = msgspec.json.Decoder(list[Message])


class SimulatedTokenizer:
    """Applies the simulated engine's chat template and counts four bytes of text as one token."""

    def tokenize(self, prepared: PreparedRequest, salt: str, *, reasoning: bool) -> bytes:
        """Return the prompt's packed token ids. Raises TokenizationError."""
        del salt, reasoning
        if prepared.endpoint == "chat":
            messages = _messages.decode(prepared.fields["messages"])
            spoken = [(message.role, message.plain()) for message in messages]
            content = text.chat_prompt(spoken, answer=prepared.form.add_generation_prompt)
        else:
            name = "input" if prepared.endpoint == "embeddings" else "prompt"
            prompt = msgspec.json.decode(prepared.fields[name])
            if not isinstance(prompt, str):
                raise TokenizationError("several_prompts")
            content = text.encode(prompt)
        return packed(text.token_ids(content))

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the four bytes of each token as text."""
        return [text.from_ids([token]).decode("utf-8", "replace") for token in tokens]

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids."""
        return text.from_ids(tokens).decode("utf-8", "replace")
