"""The identity that ties an engine's counters to usage rows, for one counter and one stretch of time. Pure.

    engine + unobserved = billed + engine_failed + zero_output + cancelled_tail + retried + choices + warmup + probe
                          + unexplained

All but `unexplained` is known from rows, or bounded by them:

- A stream that was cut may have yielded tokens that never reached us. What the engine counted beyond the rows is such
  a tail as far as the tails of cut requests can reach, first of those we or the client cut, then of those that died
  with their engine; what lies beyond is unexplained.
- An engine that died counted tokens that its last scrape did not see (`unobserved`). What the rows have beyond the
  engine is that, as far as the requests reach that ended after that scrape; what lies beyond is unexplained.
"""

import msgspec

COUNTERS = ("prompt", "generation")
CAUSES = (
    "billed",
    "engine_failed",
    "zero_output",
    "cancelled_tail",
    "retried",
    "choices",
    "warmup",
    "probe",
)
"""Where an engine's tokens went, in the order in which they are shown."""


class KnownTokens(msgspec.Struct):
    """Tokens that rows tell of, by cause, and how far the unknown can reach."""

    billed: int = 0
    engine_failed: int = 0
    zero_output: int = 0
    cancelled_tail: int = 0
    retried: int = 0
    choices: int = 0
    warmup: int = 0
    probe: int = 0
    cancelled_limit: int = 0
    """The most that cut streams can have yielded unseen."""
    failed_limit: int = 0
    """The same for streams whose engine failed."""
    unscraped_limit: int = 0
    """Tokens of requests that ended after the last scrape of an engine that is gone; 0 while it lives."""


class TokenBalance(msgspec.Struct, frozen=True):
    """The identity's lines; they add up by construction."""

    engine: int
    billed: int
    engine_failed: int
    zero_output: int
    cancelled_tail: int
    retried: int
    choices: int
    warmup: int
    probe: int
    unobserved: int
    unexplained: int


def balance_tokens(engine: int, known: KnownTokens) -> TokenBalance:
    """Account for what `engine` counted."""
    causes = {name: int(getattr(known, name)) for name in CAUSES}
    rest = engine - sum(causes.values())
    cancelled = min(max(rest, 0), known.cancelled_limit)
    failed = min(max(rest, 0) - cancelled, known.failed_limit)
    causes["cancelled_tail"] += cancelled
    causes["engine_failed"] += failed
    unobserved = min(max(-rest, 0), known.unscraped_limit)
    return TokenBalance(
        engine=engine,
        **causes,
        unobserved=unobserved,
        unexplained=rest - cancelled - failed + unobserved,
    )
