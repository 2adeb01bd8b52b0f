"""The one place that turns what an engine says about tokens into counts.

An engine with continuous usage puts running counts on every chunk: those of the chunk's own choice. The last chunk
(no choices) carries the sums over all choices and, where known, cached and reasoning tokens.
"""

import msgspec

from core.tokens import NO_TOKENS, TokenUsage


class InputDetails(msgspec.Struct, gc=False):
    """OpenAI's prompt_tokens_details."""

    cached_tokens: int | None = None


class OutputDetails(msgspec.Struct, gc=False):
    """OpenAI's completion_tokens_details."""

    reasoning_tokens: int | None = None


class EngineUsage(msgspec.Struct, gc=False):
    """OpenAI's usage object as engines write it."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None


class UsageTracker:
    """Running counts of one attempt; they never go back.

    `events` counts content-bearing events: a lower bound of the output, used only while the engine has not said
    anything, since an event carries at least one token. Input stays 0 then: never over-billed.
    """

    __slots__ = (
        "_cached",
        "_choices",
        "_final",
        "_input",
        "_output",
        "_parts",
        "_reasoning",
        "counted",
        "events",
    )

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._parts: dict[int, tuple[int, int]] = {}
        self._input = 0
        self._output = 0
        self._cached = 0
        self._reasoning = 0
        self._final = False
        self.counted = False
        self.events = 0

    def running(self, usage: EngineUsage, choice: int) -> None:
        """Take the counts of one choice's chunk."""
        self.counted = True
        self._details(usage)
        output = usage.completion_tokens or 0
        if self._choices == 1:
            self._input = max(self._input, usage.prompt_tokens)
            self._output = max(self._output, output)
            return
        before_input, before_output = self._parts.get(choice, (0, 0))
        self._parts[choice] = (max(before_input, usage.prompt_tokens), max(before_output, output))
        self._output = max(self._output, sum(part[1] for part in self._parts.values()))
        self._input = max(self._input, usage.prompt_tokens)

    def would_be(self, usage: EngineUsage, choice: int) -> int:
        """Output tokens after taking the chunk, without taking it."""
        output = usage.completion_tokens or 0
        if self._choices == 1:
            return max(self._output, output)
        before = self._parts.get(choice, (0, 0))[1]
        return sum(part[1] for part in self._parts.values()) - before + max(before, output)

    def final(self, usage: EngineUsage) -> None:
        """Take the sums of the last chunk. An explicit 0 is believed unless tokens were seen before."""
        self.counted = True
        self._final = True
        self._input = max(self._input, usage.prompt_tokens)
        self._output = max(self._output, usage.completion_tokens or 0)
        self._details(usage)

    @property
    def cached_known(self) -> bool:
        """Whether the engine has said how much of the prompt was cached: with its last chunk, or earlier."""
        return self._final or self._cached > 0

    def _details(self, usage: EngineUsage) -> None:
        if usage.prompt_tokens_details is not None:
            self._cached = max(self._cached, usage.prompt_tokens_details.cached_tokens or 0)
        if usage.completion_tokens_details is not None:
            self._reasoning = max(self._reasoning, usage.completion_tokens_details.reasoning_tokens or 0)

    @property
    def output(self) -> int:
        """Output tokens so far."""
        return self._output if self.counted else self.events

    @property
    def started(self) -> int:
        """Choices that have yielded a token."""
        if self._choices == 1:
            return 1 if self._output else 0
        return sum(1 for _, output in self._parts.values() if output)

    @property
    def usage(self) -> TokenUsage:
        """The counts so far, parts never above their whole."""
        if not self.counted and not self.events:
            return NO_TOKENS
        output = self.output
        return TokenUsage(self._input, min(self._cached, self._input), output, min(self._reasoning, output))
