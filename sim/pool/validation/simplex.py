"""Nelder and Mead's simplex (1965), with restarts: minimises a function of a few numbers without derivatives."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESTARTS = (0.7, 0.4, 0.4, 0.2)
"""Sizes of the simplex at the start and at each restart, as logarithms: factors of 2, 1.5, 1.5, 1.2."""
STEPS = 60
"""Maximum number of steps of one descent."""
TOLERANCE = 2e-4
"""Difference of the losses of a simplex's corners at which a descent ends."""


def minimise(loss: Callable[[Floats], float], start: Floats, *, tick: Callable[[float], None]) -> Floats:
    """Return the best point found from `start` on; restarts around it until that no longer helps.

    Deterministic. The coordinates are logarithms, for which the sizes are made. `tick` is called with the loss after
    every descent.
    """
    best, best_loss = start, loss(start)
    for size in RESTARTS:
        found, found_loss = _descend(loss, best, size)
        tick(found_loss)
        if found_loss < best_loss:
            best, best_loss = found, found_loss
    return best


def _descend(loss: Callable[[Floats], float], start: Floats, size: float) -> tuple[Floats, float]:
    """Run one descent with the usual coefficients: reflect 1, expand 2, contract and shrink 1/2."""
    points = [start, *(start + size * axis for axis in np.eye(len(start)))]
    simplex = sorted(((loss(point), point) for point in points), key=lambda pair: pair[0])
    for _ in range(STEPS):
        if simplex[-1][0] - simplex[0][0] < TOLERANCE:
            break
        (worst_loss, worst), rest = simplex[-1], simplex[:-1]
        middle = np.mean([point for _, point in rest], axis=0)
        reflected = middle + (middle - worst)
        reflected_loss = loss(reflected)
        tried = (reflected_loss, reflected)
        if reflected_loss < simplex[0][0]:
            expanded = middle + 2 * (middle - worst)
            expanded_loss = loss(expanded)
            tried = min(tried, (expanded_loss, expanded), key=lambda pair: pair[0])
        elif reflected_loss >= rest[-1][0]:
            toward = reflected if reflected_loss < worst_loss else worst
            contracted = middle + 0.5 * (toward - middle)
            tried = (loss(contracted), contracted)
        if tried[0] < worst_loss:
            simplex = sorted([*rest, tried], key=lambda pair: pair[0])
        else:
            best = simplex[0]
            shrunk = [best[1] + 0.5 * (point - best[1]) for _, point in simplex[1:]]
            simplex = sorted([best, *((loss(point), point) for point in shrunk)], key=lambda pair: pair[0])
    return simplex[0][1], simplex[0][0]
