"""The x-ratelimit-* headers of OpenAI's API, for the scope with the least remaining."""

from collections.abc import Mapping, Sequence
from typing import Any

from tenants.principal import Limits

Header = tuple[bytes, bytes]


class RateHeaders:
    """Formats the headers of one key's limits; what does not change from request to request is formatted once."""

    __slots__ = ("_at", "_kinds", "_levels")

    def __init__(self, limits: Sequence[Limits]) -> None:
        requests, tokens = [], []
        for index, each in enumerate(limits):
            if each.requests_per_min is not None:
                requests.append((each.requests_per_min, 3 * index))
            if each.input_tokens_per_min is not None:
                tokens.append((each.input_tokens_per_min, 3 * index + 1))
            if each.output_tokens_per_min is not None:
                tokens.append((each.output_tokens_per_min, 3 * index + 2))
        kinds = ((b"requests", requests), (b"tokens", tokens))
        self._kinds = [_Kind(name, scopes) for name, scopes in kinds if scopes]
        self._levels: Sequence[int] = (0,) * (3 * len(limits))
        self._at = 0.0

    def format(self, levels: Sequence[int]) -> list[Header]:
        """Headers for requests and for tokens, each from the limit with the least remaining; none without a limit.

        `levels` holds three bucket levels per scope: requests, input tokens and output tokens.
        """
        headers: list[Header] = []
        for kind in self._kinds:
            kind.append_to(headers, levels)
        return headers

    def remember(self, levels: Sequence[int], now: float) -> None:
        """Keep the levels of a request that was granted at `now`, in monotonic seconds, for `format_known`."""
        self._levels, self._at = levels, now

    def format_known(self, now: float) -> list[Header]:
        """Headers of a request that no limit was asked about: from the last levels, less what has drained since."""
        headers: list[Header] = []
        for kind in self._kinds:
            kind.append_to(headers, kind.drained(self._levels, now - self._at))
        return headers


def refusal_headers(details: Mapping[str, Any], wait_s: float) -> list[Header]:
    """Headers of a response refused by requests per minute; empty for a refusal by another limit.

    `details` are those of the RateLimited error. `wait_s` is the time until one request conforms, so the bucket
    holds `limit - 1` requests and what drains in `wait_s`.
    """
    limit = details.get("limit")
    if details.get("kind") != "requests_per_min" or not isinstance(limit, int):
        return []
    reset_s = min(60.0, 60.0 * (limit - 1) / limit + wait_s) if limit else 60.0
    return [
        (b"x-ratelimit-limit-requests", b"%d" % limit),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-ratelimit-reset-requests", b"%.3fs" % reset_s),
    ]


class _Kind:
    """The headers of requests or of tokens."""

    __slots__ = ("_remaining", "_reset", "_scopes")

    def __init__(self, name: bytes, scopes: Sequence[tuple[int, int]]) -> None:
        """`scopes` holds pairs of a limit and the index of its level."""
        self._scopes = [
            (limit, at, (b"x-ratelimit-limit-" + name, b"%d" % limit), 60.0 / limit if limit else 0.0)
            for limit, at in scopes
        ]
        self._remaining = b"x-ratelimit-remaining-" + name
        self._reset = b"x-ratelimit-reset-" + name

    def drained(self, levels: Sequence[int], elapsed_s: float) -> list[int]:
        """`levels` after `elapsed_s` seconds without a request: a limit drains in a minute."""
        later = list(levels)
        for limit, at, _, _ in self._scopes:
            later[at] = max(0, levels[at] - int(limit * elapsed_s / 60.0))
        return later

    def append_to(self, headers: list[Header], levels: Sequence[int]) -> None:
        """Append three headers."""
        tightest, *others = self._scopes
        for other in others:
            if other[0] - levels[other[1]] < tightest[0] - levels[tightest[1]]:
                tightest = other
        limit, at, header, unit_s = tightest
        used = levels[at]
        reset_s = used * unit_s if limit else 60.0
        headers += (
            header,
            (self._remaining, b"%d" % (limit - used if used < limit else 0)),
            (self._reset, b"%.3fs" % reset_s),
        )
