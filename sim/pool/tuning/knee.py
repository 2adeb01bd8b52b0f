"""The highest rate at which an arrangement of engines serves nine of ten requests in time."""

from collections.abc import Callable, Sequence

from sim.pool.contract import SimRequest, Workload
from sim.pool.knee import SERVED, alone_s, highest_rate
from sim.pool.tuning.play import Arrangement, Played, play
from sim.pool.workloads.registry import workload
from workers.catalog import CatalogModel, EngineProfile
from workers.wire import Capacity, Targets

REQUESTS = 500
"""Least requests of a run."""
MIN_SECONDS = 90.0
"""Shortest run: several lifetimes of an answer."""
NEAR = 1.25
"""Factor between rates that are tried first where the knee of a similar arrangement is known."""
SEED = 9001
LOAD = 0.8
"""Rate of the figures beside the knee, as a share of the knee of the arrangement that others are compared with."""


class Trial:
    """One workload at any rate on arrangements that are made anew for every run."""

    def __init__(
        self,
        workload: Workload,
        targets: Targets,
        promised: Capacity,
        *,
        requests: int = REQUESTS,
        seconds: float = MIN_SECONDS,
        seed: int = SEED,
    ) -> None:
        """`requests` and `seconds`: least size of a run; `seed` is that of its requests."""
        self._seed = seed
        self._requests = requests
        self._seconds = seconds
        self._workload = workload
        self._targets = targets
        self._promised = promised

    def run(self, make: Callable[[], Arrangement], rate: float) -> Played:
        """Play the workload at `rate` requests/s."""
        return play(make(), self.requests(rate), self._targets, self._promised)

    def requests(self, rate: float) -> Sequence[SimRequest]:
        """Return the requests of a run at `rate` requests/s."""
        seconds = max(self._seconds, self._requests / rate)
        return list(self._workload.requests(rate=rate, seconds=seconds, seed=self._seed))

    def knee(self, make: Callable[[], Arrangement], guess: float = 0.0) -> float:
        """Return the highest rate (requests/s) with a share SERVED in time, to PRECISION.

        `guess` is the knee of a similar arrangement; 0 = none is known.
        """
        return highest_rate(
            guess or self.first_guess(make),
            lambda rate: self.run(make, rate).in_time >= SERVED,
            factor=NEAR if guess else 2.0,
        )

    def first_guess(self, make: Callable[[], Arrangement]) -> float:
        """Return the requests per second of engines with empty caches and half-full batches."""
        capacity, sample = self._promised, self.requests(5.0)
        return (
            len(make().engines) * len(sample) / alone_s(capacity, sample, max(1, capacity.max_num_seqs // 2))
        )


def trial_of(
    name: str,
    model: CatalogModel,
    profile: EngineProfile,
    *,
    requests: int = REQUESTS,
    seconds: float = MIN_SECONDS,
    seed: int = SEED,
) -> Trial:
    """Return the trial of the workload `name` with a profile's context, and its model's targets."""
    source = workload(name, models=[model.name], context=profile.max_model_len)
    return Trial(source, model.service_level, profile.capacity, requests=requests, seconds=seconds, seed=seed)
