"""Counts of an attempt's tokens, from the usage members of the engine's chunks.

An engine with continuous usage puts running counts on every chunk: those of the chunk's own choice. The last chunk has
no choices; it carries the sums over all choices and, where known, cached and reasoning tokens.
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
    """Running counts of one attempt over all choices; they never decrease.

    `content_events` counts the events with content. While the engine has reported no usage, it stands for the output
    tokens, as a lower bound: an event carries at least one token. The input is 0 then. `reported`: whether the engine
    has reported any usage.
    """

    __slots__ = (
        "_batch_began_at",
        "_by_choice",
        "_cached",
        "_choices",
        "_choices_per_prompt",
        "_input",
        "_output",
        "_output_by_choice",
        "_reasoning",
        "_totals_known",
        "content_events",
        "reported",
    )

    def __init__(self, choices: int, choices_per_prompt: int = 0) -> None:
        """`choices_per_prompt`: 0 = there is one prompt."""
        self._choices = choices
        self._choices_per_prompt = choices_per_prompt or choices
        self._by_choice: dict[int, tuple[int, int]] = {}
        self._output_by_choice = (
            0  # the sum over _by_choice, so that an event costs the same with many choices
        )
        self._input = 0
        self._output = 0
        self._cached = 0
        self._reasoning = 0
        self._totals_known = False
        self._batch_began_at = NO_TOKENS
        """The counts of the batches of prompts before this one."""
        self.reported = False
        self.content_events = 0

    def begin_batch(self) -> None:
        """Count what follows in addition: the engine counts each batch of prompts by itself."""
        self._batch_began_at = self.usage
        self._by_choice.clear()
        self._output_by_choice = 0

    @property
    def batch(self) -> TokenUsage:
        """The counts of the current batch of prompts."""
        return self.usage - self._batch_began_at

    def update_choice(self, usage: EngineUsage, choice: int) -> None:
        """Take the running counts of a chunk of the choice with this index."""
        self.reported = True
        self._update_details(usage)
        output = usage.completion_tokens or 0
        if self._choices == 1:
            self._input = max(self._input, usage.prompt_tokens)
            self._output = max(self._output, output)
            return
        before_input, before_output = self._by_choice.get(choice, (0, 0))
        self._by_choice[choice] = (max(before_input, usage.prompt_tokens), max(before_output, output))
        self._output_by_choice += max(output - before_output, 0)
        began_at = self._batch_began_at
        self._output = max(self._output, began_at.output + self._output_by_choice)
        if usage.prompt_tokens > before_input:
            self._input = max(self._input, began_at.input + self._prompts_started())

    def running_usage(self, choice: int, prompt: int, more_output: int) -> EngineUsage:
        """The running usage of a chunk without one, which brings `more_output` tokens of the choice with this index.

        `prompt`: tokens of its prompt where the chunk tells them, else 0.
        """
        before = (self._input, self._output) if self._choices == 1 else self._by_choice.get(choice, (0, 0))
        return EngineUsage(max(before[0], prompt), before[1] + more_output)

    def _prompts_started(self) -> int:
        """Tokens of the prompts of which a choice has been reported."""
        prompts: dict[int, int] = {}
        for choice, (tokens, _) in self._by_choice.items():
            prompt = choice // self._choices_per_prompt
            prompts[prompt] = max(prompts.get(prompt, 0), tokens)
        return sum(prompts.values())

    def advance(self, output: int) -> None:
        """Take the output tokens of a chunk of a single choice that repeats everything else of the chunk before."""
        if output > self._output:
            self._output = output

    def count_reasoning(self, usage: EngineUsage) -> None:
        """Take a chunk of reasoning of an engine that does not count it: all output so far was reasoning.

        Of several choices nothing is known then.
        """
        if self._choices == 1 and usage.completion_tokens_details is None:
            self._reasoning = max(self._reasoning, usage.completion_tokens or 0)

    def output_after(self, usage: EngineUsage, choice: int) -> int:
        """Return the output tokens that `update_choice` with the same arguments would lead to."""
        output = usage.completion_tokens or 0
        if self._choices == 1:
            return max(self._output, output)
        before = self._by_choice.get(choice, (0, 0))[1]
        return self._batch_began_at.output + self._output_by_choice + max(output - before, 0)

    def set_prompt(self, tokens: int) -> None:
        """Take the tokens of a prompt that the engine has prefilled, before it reports any usage itself."""
        self.reported = True
        self._input = max(self._input, tokens)

    def set_totals(self, usage: EngineUsage) -> None:
        """Take the sums of the last chunk. Counts that are lower than before are ignored."""
        self.reported = True
        self._totals_known = True
        began_at = self._batch_began_at
        self._input = max(self._input, began_at.input + usage.prompt_tokens)
        self._output = max(self._output, began_at.output + (usage.completion_tokens or 0))
        self._update_details(usage)

    @property
    def cached_known(self) -> bool:
        """Whether the engine has reported the cached part of the prompt."""
        return self._totals_known or self._cached > 0

    def _update_details(self, usage: EngineUsage) -> None:
        began_at = self._batch_began_at
        if usage.prompt_tokens_details is not None:
            cached = began_at.cached_input + (usage.prompt_tokens_details.cached_tokens or 0)
            self._cached = max(self._cached, cached)
        if usage.completion_tokens_details is not None:
            reasoning = began_at.reasoning + (usage.completion_tokens_details.reasoning_tokens or 0)
            self._reasoning = max(self._reasoning, reasoning)

    @property
    def output(self) -> int:
        """Output tokens so far."""
        return self._output if self.reported else self.content_events

    @property
    def choices_started(self) -> int:
        """Number of choices that have produced a token."""
        if self._choices == 1:
            return 1 if self._output else 0
        return sum(1 for _, output in self._by_choice.values() if output)

    @property
    def usage(self) -> TokenUsage:
        """The counts so far, with cached <= input and reasoning <= output."""
        if not self.reported and not self.content_events:
            return NO_TOKENS
        output = self.output
        return TokenUsage(self._input, min(self._cached, self._input), output, min(self._reasoning, output))
