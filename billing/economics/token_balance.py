"""The token balance: an engine's counter against usage rows, for one counter and one interval. Pure functions.

    engine + unobserved = billed + engine_failed + zero_output + cancelled_tail + retried + choices + warmup + probe
                          + unexplained

Every term but `unexplained` is read from rows or bounded by them:

- The engine counted more than the rows: an aborted stream may have generated tokens that never reached the gateway.
  The surplus is attributed to such tails, at most `cancelled_limit` to requests that the client or the gateway
  cancelled, then at most `failed_limit` to requests whose engine failed. The rest is unexplained.
- The rows have more than the engine: an engine that died counted tokens after its last scrape. The deficit is
  `unobserved`, at most `unscraped_limit`. The rest is unexplained.
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
"""Causes of an engine's tokens, in the order of display."""


class KnownTokens(msgspec.Struct):
    """Tokens in rows by cause, and the bounds of what rows cannot show."""

    billed: int = 0
    engine_failed: int = 0
    zero_output: int = 0
    cancelled_tail: int = 0
    retried: int = 0
    choices: int = 0
    warmup: int = 0
    probe: int = 0
    cancelled_limit: int = 0
    """Upper bound of the tokens that cancelled streams generated and the gateway did not receive."""
    failed_limit: int = 0
    """The same bound for streams whose engine failed."""
    unscraped_limit: int = 0
    """Tokens of requests that ended after the last scrape of an engine that has ended; 0 while it lives."""


class TokenBalance(msgspec.Struct, frozen=True):
    """The terms of the balance, in tokens; they add up by construction."""

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
    """Balance the `engine` counter's increase (tokens) against the `known` tokens of the interval."""
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
