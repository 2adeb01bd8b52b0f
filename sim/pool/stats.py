"""Means over seeds with confidence intervals, and paired differences between policies with the same requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_Z_975 = 1.959964


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval; infinite for a single value."""

    mean: float
    half: float
    n: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half

    @property
    def verdict(self) -> str:
        """Verdict on a difference: `better` or `worse` where zero is outside the interval, else `same`."""
        if self.low > 0.0:
            return "better"
        return "worse" if self.high < 0.0 else "same"


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t: by table up to 30 degrees, then by Cornish and Fisher's expansion."""
    if freedom < 1:
        return math.inf
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = _Z_975
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    return z + first / freedom + second / freedom**2


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with its t interval. Raises ValueError when there are none."""
    count = len(values)
    if not count:
        raise ValueError("no values")
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, math.inf, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Interval(mean, t_quantile(count - 1) * math.sqrt(variance / count), count)


def paired(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the mean of `first - second`, in pairs: both had the same requests, so the seed's common effect
    cancels.

    Raises ValueError where the lengths differ.
    """
    return interval([one - other for one, other in zip(first, second, strict=True)])
