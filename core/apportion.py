"""Split an integer amount by weights so that the parts add up to it exactly."""

from collections.abc import Sequence


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Largest-remainder shares of `total` (>= 0): each within one unit of exact, their sum `total`.

    Without any positive weight every share is 0: the caller must book the total elsewhere. Ties go to the earlier one.
    """
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    shares = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return shares
