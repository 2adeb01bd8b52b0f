"""A plan of several steps in closed form: an arithmetic series of step times."""

import math


class Plan:
    """`left` steps, of which the next takes `first` seconds and each further one `slope` seconds more than the
    one before.

    The first j of them take  t(j) = j*first + slope*j*(j-1)/2  seconds.
    """

    __slots__ = ("first", "left", "slope")

    def __init__(self) -> None:
        self.left = 0
        """Number of remaining steps; 0 = no plan."""
        self.first = 0.0
        self.slope = 0.0

    def seconds(self, steps: int) -> float:
        """Return t(steps) in seconds."""
        return steps * self.first + self.slope * (steps * (steps - 1) / 2)

    def within(self, clock: float, until: float) -> int:
        """Return how many whole steps end by `until` when the first begins at `clock`.

        The result is the largest j with clock + t(j) <= until. The comparison keeps exactly this form, so that
        rounding cannot leave step j unfinished at time `clock + t(j)`.
        """
        left, first, slope = self.left, self.first, self.slope
        if clock + self.seconds(left) <= until:
            return left
        if clock + first > until:
            return 0
        room = until - clock
        if slope <= 0.0:
            steps = int(room / first)
        else:
            linear = first - slope / 2
            steps = int((math.sqrt(linear * linear + 2 * slope * room) - linear) / slope)
        steps = min(steps, left)
        while steps and clock + self.seconds(steps) > until:
            steps -= 1
        while steps < left and clock + self.seconds(steps + 1) <= until:
            steps += 1
        return steps

    def advance(self, steps: int) -> None:
        """Complete the next `steps` steps."""
        self.first += self.slope * steps
        self.left -= steps

    def truncate(self) -> None:
        """End the plan with the step in progress."""
        self.left = min(self.left, 1)
