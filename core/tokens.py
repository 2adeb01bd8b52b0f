"""Token counts of one request, as the engine reports them."""

import msgspec


class TokenUsage(msgspec.Struct, frozen=True, gc=False):
    """Numbers of tokens; `cached_input` is part of `input`, `reasoning` is part of `output`."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        """The sum of each count."""
        return TokenUsage(
            self.input + other.input,
            self.cached_input + other.cached_input,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )

    def __sub__(self, other: "TokenUsage") -> "TokenUsage":
        """The difference of each count."""
        return TokenUsage(
            self.input - other.input,
            self.cached_input - other.cached_input,
            self.output - other.output,
            self.reasoning - other.reasoning,
        )

    @property
    def prompt(self) -> "TokenUsage":
        """The counts of the prompt alone."""
        return TokenUsage(self.input, self.cached_input)

    @property
    def uncached_input(self) -> int:
        """Prompt tokens that the engine had to prefill."""
        return self.input - self.cached_input

    @property
    def total(self) -> int:
        """Input, cached included, plus output: the divisor of all figures per million tokens."""
        return self.input + self.output


NO_TOKENS = TokenUsage()
