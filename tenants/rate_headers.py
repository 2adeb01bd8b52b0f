"""The x-ratelimit-* headers of OpenAI's API, for the scope with the least remaining."""

from collections.abc import Mapping, Sequence
from typing import Any

from tenants.principal import Limits

Header = tuple[bytes, bytes]


def rate_headers(limits: Sequence[Limits], levels: Sequence[int]) -> list[Header]:
    """Headers for requests and for tokens, each from the limit with the least remaining; none without a limit.

    `levels` holds three bucket levels per scope of `limits`: requests, input tokens and output tokens.
    """
    requests: list[tuple[int, int]] = []
    tokens: list[tuple[int, int]] = []
    for index, each in enumerate(limits):
        used = levels[index * 3 : index * 3 + 3]
        if each.requests_per_min is not None:
            requests.append((each.requests_per_min, used[0]))
        if each.input_tokens_per_min is not None:
            tokens.append((each.input_tokens_per_min, used[1]))
        if each.output_tokens_per_min is not None:
            tokens.append((each.output_tokens_per_min, used[2]))
    return [*_headers(b"requests", requests), *_headers(b"tokens", tokens)]


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


def _headers(kind: bytes, pairs: list[tuple[int, int]]) -> list[Header]:
    if not pairs:
        return []
    limit, used = min(pairs, key=lambda pair: pair[0] - pair[1])
    reset_s = 60.0 * used / limit if limit else 60.0
    return [
        (b"x-ratelimit-limit-" + kind, b"%d" % limit),
        (b"x-ratelimit-remaining-" + kind, b"%d" % max(0, limit - used)),
        (b"x-ratelimit-reset-" + kind, b"%.3fs" % reset_s),
    ]
