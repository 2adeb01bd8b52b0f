"""Split an integer amount by weights so that the parts add up to it exactly."""

from collections.abc import Sequence


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Shares of `total` (>= 0) by the largest-remainder method: each within one unit of exact, their sum `total`.

    `weights` are >= 0. If all are 0, every share is 0 and the caller must book the total elsewhere. Of equal
    remainders the earlier one is rounded up.
    """
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    shares = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return shares
