"""Waking on demand: which resting replica a model's requests wake, and in how many seconds one can serve.

A request for a model without a ready replica waits while one comes. When none comes sooner by itself, the quickest
resting replica is woken at once; the plan of the autoscaler is too slow for that and decides everything else.
Pure: times are arguments, in monotonic seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.core.replica import Replica
from scheduler.wire import PlaceRequest, allows_place
from workers.backoff import INITIAL_DELAY_S, pause_after
from workers.wire import ReplicaState, ReplicaStatus, StageTime

SETTLE_S = 5.0
"""Seconds after a command has succeeded until the replica counts as resting if heartbeats still say so."""
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
"""Seconds for which a replica that could not be woken is left alone, doubled with each further failure."""
LONG_WAKE = 3.0
LEAST_WAKE_S = 60.0
UNKNOWN_WAKE_S = 600.0
"""A command without a result counts as hanging after LONG_WAKE times the expected seconds and at least LEAST_WAKE_S, or
after UNKNOWN_WAKE_S where none are expected."""
LONG_LOAD = 2.0
"""A load or wake counts as stuck after this many times its expected seconds."""
MAX_WANTED = 256
"""Different wants that are kept between two calls; clients can invent any number."""
MIN_LEFT_S = 1.0
"""Least time that a load or wake in progress is taken to last."""

Figures = Callable[[str, int], float | None]
"""Seconds until a replica of a model serves from sleep level 1 or 2, or with 0 from a stop, before any was measured;
None = it cannot be said."""


class Arrival(NamedTuple):
    """A host in creation that will serve a model."""

    at: float
    """When it serves, as expected."""
    region: str
    gpu: str
    adapters: bool = False
    """Whether its engine takes adapters."""


class Creatable(NamedTuple):
    """A kind of hosts that the plan may create for a model."""

    regions: tuple[str, ...]
    """Where it may be created, in lower case."""
    gpu: str
    in_s: float | None
    """Seconds until one would serve; None = not known."""

    def serves(self, request: PlaceRequest) -> bool:
        """Whether such a host may serve a request; one that is bound to no place may be anywhere."""
        if not (request.regions or request.gpus):
            return True
        return any(request.allows(region, self.gpu) for region in self.regions)


class Coming(NamedTuple):
    """What comes to serve a request, or requests of a model."""

    awaited: bool
    """Whether no replica is ready and one may come, whether or not its time is known."""
    ready_in_s: float | None
    """Seconds until one serves, waking included; None = one is ready, or it is not known, or none is going to."""

    @property
    def is_cold(self) -> bool:
        """Whether no replica is ready and the time until one is can be said."""
        return self.ready_in_s is not None


class WakeOrder(NamedTuple):
    """A command that makes a resting replica serve."""

    replica_id: str
    model: str
    action: str
    """wake | resume."""


class _Wanted(NamedTuple):
    """What a blocked request may run on."""

    model: str
    regions: tuple[str, ...]
    gpus: tuple[str, ...]
    exclude: tuple[str, ...]
    adapter: bool
    """Whether it needs an engine that takes adapters."""

    @classmethod
    def of(cls, request: PlaceRequest) -> "_Wanted":
        """What `request` may run on."""
        exclude = tuple(request.exclude)
        return cls(request.model, request.regions, request.gpus, exclude, bool(request.adapter))

    def allows(self, replica: Replica) -> bool:
        """Whether the request may run there."""
        engine = replica.engine
        allowed = allows_place(self.regions, self.gpus, engine.region, engine.gpu)
        takes = not self.adapter or engine.max_adapters > 0
        return allowed and takes and engine.replica_id not in self.exclude


@dataclass(slots=True)
class _Tries:
    """The commands to one replica."""

    under_way: bool = False
    hangs_at: float = float("inf")
    """When the command under way no longer keeps requests from waking another replica."""
    not_before: float = float("-inf")
    failures: int = 0
    why: str = ""
    """What the last failure said."""


class Waker:
    """What is known of the resting replicas, and the commands to them."""

    def __init__(self, figures: Figures, allowed: Callable[[str], bool], stale_s: float) -> None:
        """`allowed` tells whether requests may wake a model. A replica whose last heartbeat is older than `stale_s`
        cannot be woken."""
        self._figures, self.allowed, self._stale_s = figures, allowed, stale_s
        self.begins_at = float("-inf")
        """Until then not all agents have had the time to report, and nothing is predicted or woken."""
        self._tries: dict[str, _Tries] = {}
        self._wanted: dict[_Wanted, None] = {}
        self._served_at: dict[str, float] = {}
        """When a replica last served."""
        self._gpus: dict[tuple[str, str], set[str]] = {}
        """The replicas that use a GPU, by agent and GPU."""
        self.reserved: Mapping[tuple[str, str], str] = {}
        """By agent and GPU: the model that the plan gives it to, until its replica starts."""
        self.turns: Mapping[str, float] = {}
        """By model that waits for GPUs which others use: when the plan expects its first replica to serve."""
        self.gives_gpus: Callable[[str], bool] = lambda model: True
        """Whether the plan gives a model GPUs which others use."""
        self.arrivals: Mapping[str, Sequence[Arrival]] = {}
        """By model: the hosts in creation on which none of its replicas is known yet."""
        self.creatable: Mapping[str, Sequence[Creatable]] = {}
        """By model for which the plan may create hosts: their kinds, in the order in which it tries them."""

    def want(self, request: PlaceRequest) -> None:
        """Note that a request found no ready replica."""
        if len(self._wanted) < MAX_WANTED:
            self._wanted[_Wanted.of(request)] = None

    def note_gpus(self, fleet: Iterable[Replica], now: float) -> None:
        """Note which GPUs the replicas use. `fleet`: all of them."""
        self._gpus = self._gpus_in_use(fleet, now)

    def take_orders(
        self, replicas_of: Callable[[str], Iterable[Replica]], fleet: Iterable[Replica], now: float
    ) -> list[WakeOrder]:
        """The commands for what was wanted since the last call. Requests that still wait want it again.

        `fleet`: all replicas. None is woken onto GPUs that another one uses or has just been told to use, and of
        several models the one that was served longest ago comes first.
        """
        wanted, self._wanted = self._wanted, {}
        if not wanted:
            return []
        every = list(fleet)
        self.note_gpus(every, now)
        known = {each: list(replicas_of(each.model)) for each in wanted}
        orders = []
        for each, replicas in sorted(known.items(), key=lambda row: self._last_served(row[1])):
            order = self.order(each.model, [one for one in replicas if each.allows(one)], now)
            if order is not None:
                orders.append(order)
                self.note_gpus(every, now)
        return orders

    def _last_served(self, replicas: Iterable[Replica]) -> float:
        served = (self._served_at.get(replica.engine.replica_id) for replica in replicas)
        return max((at for at in served if at is not None), default=float("-inf"))

    def _gpus_in_use(self, fleet: Iterable[Replica], now: float) -> dict[tuple[str, str], set[str]]:
        """The replicas by agent and GPU that hold it, or have been told to start and have not failed."""
        used: dict[tuple[str, str], set[str]] = {}
        for replica in fleet:
            name = replica.engine.replica_id
            tries = self._tries.get(name, _UNTRIED)
            starts = tries.under_way or (not tries.failures and now < tries.not_before)
            # After a command its engine still holds them until a heartbeat says otherwise.
            if starts or {replica.state, replica.engine.state} & _HOLDS_GPUS:
                for gpu in replica.engine.gpu_ids:
                    used.setdefault((replica.agent_id, gpu), set()).add(name)
        return used

    def created_in_s(self, request: PlaceRequest) -> float | None:
        """Seconds until a host would serve that the plan may create for a request; None = none may be created where it
        has to run, or it is not known."""
        kinds = (each for each in self.creatable.get(request.model, ()) if each.serves(request))
        first = next(kinds, None)
        return None if first is None else first.in_s

    def creates_for(self, request: PlaceRequest) -> bool:
        """Whether the plan may create a host where a request has to run."""
        return any(each.serves(request) for each in self.creatable.get(request.model, ()))

    def ready_in_s(
        self, model: str, replicas: Iterable[Replica], now: float, request: PlaceRequest | None = None
    ) -> float | None:
        """Seconds until the first replica of `model` serves; None when that is not known or none is going to.

        With a `request`, whose replicas are given, hosts in creation count that may serve it.
        """
        if now < self.begins_at:
            return None
        allowed = self.allowed(model)
        waits = [
            wait
            for replica in self._heard(replicas, now)
            if (allowed or not rests(replica)) and (wait := self._turn_s(replica, now)) is not None
        ]
        waits += [max(MIN_LEFT_S, arrival.at - now) for arrival in self._arriving(model, request)]
        return min(waits, default=None)

    def awaits(
        self, model: str, replicas: Iterable[Replica], now: float, request: PlaceRequest | None = None
    ) -> bool:
        """Whether a replica of `model` may come to serve: it or its host is on its way, or a request may wake
        it. Until all agents have had the time to report, one may. `request` as for `ready_in_s`."""
        allowed = self.allowed(model)
        return (
            now < self.begins_at
            or bool(self._arriving(model, request))
            or any(
                _on_its_way(replica) or (allowed and self._may_wake(replica))
                for replica in self._heard(replicas, now)
            )
        )

    def wakes_for(self, request: PlaceRequest, replicas: Iterable[Replica]) -> bool:
        """Whether a request may wake one of `replicas`, those of its model."""
        wanted = _Wanted.of(request)
        return self.allowed(request.model) and any(
            self._may_wake(each) for each in replicas if wanted.allows(each)
        )

    def lacks_gpus(self, replicas: Iterable[Replica]) -> bool:
        """Whether one of these replicas of a model rests, and none of those can get the GPUs that others use."""
        resting = [each for each in replicas if rests(each)]
        return bool(resting) and not any(self._may_wake(each) for each in resting)

    def _may_wake(self, replica: Replica) -> bool:
        """Whether a replica rests, and has its GPUs or is given them by the plan."""
        return rests(replica) and (not self._used_by_others(replica) or self.gives_gpus(replica.engine.model))

    def _used_by_others(self, replica: Replica) -> bool:
        """Whether other replicas use GPUs of a replica that the plan does not give to its model."""
        engine = replica.engine
        return any(
            self._gpus.get((replica.agent_id, gpu), set()) - {engine.replica_id}
            and self.reserved.get((replica.agent_id, gpu)) != engine.model
            for gpu in engine.gpu_ids
        )

    def arrives(self, request: PlaceRequest) -> bool:
        """Whether a host in creation will serve a request."""
        return bool(self._arriving(request.model, request))

    def _arriving(self, model: str, request: PlaceRequest | None) -> list[Arrival]:
        return [
            each
            for each in self.arrivals.get(model, ())
            if request is None or request.allows(each.region, each.gpu, adapters=each.adapters)
        ]

    def order(self, model: str, replicas: Iterable[Replica], now: float) -> WakeOrder | None:
        """The command that makes a replica of `model` serve soonest; None when one comes by itself or none can."""
        known = list(self._heard(replicas, now))
        tried = [self._tries.get(replica.engine.replica_id, _UNTRIED) for replica in known]
        if (
            now < self.begins_at
            or not self.allowed(model)
            or any(tries.under_way and now < tries.hangs_at for tries in tried)
        ):
            return None
        best: tuple[float, str, str] | None = None
        for replica, tries in zip(known, tried, strict=True):
            name = replica.engine.replica_id
            gpus = [(replica.agent_id, gpu) for gpu in replica.engine.gpu_ids]
            used = any(self._gpus.get(gpu, set()) - {name} for gpu in gpus)
            if tries.under_way or now < tries.not_before or used or self._promised(gpus, model):
                continue
            if action := action_of(replica):
                wait_s = self._wait_s(replica, now)
                row = (float("inf") if wait_s is None else wait_s, name, action)
                best = row if best is None or row < best else best
        coming = [
            wait
            for replica in known
            if replica.state in _COMING and (wait := self._wait_s(replica, now)) is not None
        ]
        if best is None or (coming and min(coming) <= best[0]):
            return None
        wait_s, name, action = best
        tries = self._tries.setdefault(name, _Tries())
        expected_s = LONG_WAKE * wait_s if wait_s < float("inf") else UNKNOWN_WAKE_S
        tries.under_way, tries.hangs_at = True, now + max(expected_s, LEAST_WAKE_S)
        return WakeOrder(name, model, action)

    def _promised(self, gpus: Iterable[tuple[str, str]], model: str) -> bool:
        """Whether the plan gives one of these GPUs to another model."""
        return any(self.reserved.get(gpu, model) != model for gpu in gpus)

    def on_result(self, replica_id: str, ok: bool, why: str, now: float) -> None:
        """Take the result of a command; `why` is the agent's message."""
        tries = self._tries.setdefault(replica_id, _Tries())
        tries.under_way = False
        if ok:
            tries.failures, tries.why, tries.not_before = 0, "", now + SETTLE_S
        else:
            tries.failures, tries.why = tries.failures + 1, why
            tries.not_before = now + pause_after(tries.failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def trouble(self, replicas: Iterable[Replica]) -> str:
        """What the last failed wake of one of these replicas said; empty when none has failed since it last served."""
        found = (self._tries.get(replica.engine.replica_id) for replica in replicas)
        return next((tries.why for tries in found if tries is not None and tries.why), "")

    def on_ready(self, replica_id: str, now: float) -> None:
        """A replica serves, whoever woke it: its failures and pauses are over, so that it can be woken again."""
        self._served_at[replica_id] = now
        tries = self._tries.get(replica_id)
        if tries is not None:
            tries.failures, tries.why, tries.not_before = 0, "", float("-inf")

    def forget(self, known: Iterable[str]) -> None:
        """Drop what is kept of replicas that are not in `known`, unless a command is under way."""
        names = set(known)
        self._served_at = {name: at for name, at in self._served_at.items() if name in names}
        self._tries = {name: tries for name, tries in self._tries.items() if tries.under_way or name in names}

    def _heard(self, replicas: Iterable[Replica], now: float) -> Iterable[Replica]:
        return (replica for replica in replicas if now - replica.last_seen_at <= self._stale_s)

    def _turn_s(self, replica: Replica, now: float) -> float | None:
        """Seconds until a replica serves, the turns of those that use its GPUs included."""
        if not rests(replica) or not self._used_by_others(replica):
            return self._wait_s(replica, now)
        at = self.turns.get(replica.engine.model)
        return None if at is None else max(MIN_LEFT_S, at - now)

    def _wait_s(self, replica: Replica, now: float) -> float | None:
        """Seconds until a replica serves; of a resting one, as if it were woken now."""
        status, state = replica.engine, replica.state
        spent_s = status.phase_s + now - replica.last_seen_at
        match state:
            case ReplicaState.READY:
                return 0.0
            case ReplicaState.ASLEEP | ReplicaState.STOPPED if rests(replica):
                return self._expected_s(status, status.sleep_level if state is ReplicaState.ASLEEP else 0)
            case ReplicaState.LOADING:
                whole_s = self._whole_s(status)
                if whole_s is None or spent_s > LONG_LOAD * whole_s or status.failures > 1:
                    return None
                return max(MIN_LEFT_S, whole_s - spent_s)
            case ReplicaState.FAILED if _restarts_once(status) and status.times.load.count:
                return max(0.0, INITIAL_DELAY_S - spent_s) + status.times.load.mean_s
            case ReplicaState.DRAINING if rests(replica):
                return 0.0
        return None

    def _whole_s(self, status: ReplicaStatus) -> float | None:
        """Seconds of a whole wake or load in progress. A first load, of which nothing is known, has no figure."""
        if status.phase == "waking":
            return self._expected_s(status, status.sleep_level or 1)
        times = status.times
        if status.phase == "prefetching":
            measured = times.prefetch.count and times.load.count
            return times.prefetch.mean_s + times.load.mean_s if measured else None
        return status.times.load.mean_s if status.times.load.count else None

    def _expected_s(self, status: ReplicaStatus, rung: int) -> float | None:
        """Measured seconds from sleep level 1 or 2, or 0 = from a stop; else those of the catalog."""
        measured = stage_of(status, rung)
        return measured.mean_s if measured.count else self._figures(status.model, rung)


_UNTRIED = _Tries()
_HOLDS_GPUS = frozenset({ReplicaState.READY, ReplicaState.LOADING, ReplicaState.DRAINING})
_COMING = frozenset({ReplicaState.LOADING, ReplicaState.FAILED, ReplicaState.READY})


def stage_of(status: ReplicaStatus, rung: int) -> StageTime:
    """What was measured of a replica's way from sleep level 1 or 2 to ready, or with 0 from a stop."""
    return (status.times.load, status.times.wake_1, status.times.wake_2)[min(max(rung, 0), 2)]


def _restarts_once(status: ReplicaStatus) -> bool:
    """Whether a failed replica starts again and has failed once; one that fails again and again is not counted on."""
    return status.phase != "unfit" and status.failures <= 1


def _on_its_way(replica: Replica) -> bool:
    """Whether a replica loads or wakes, or its agent starts it again."""
    if replica.state is ReplicaState.FAILED:
        return replica.engine.phase != "unfit" and replica.engine.engine != "external"
    return replica.state is ReplicaState.LOADING


def rests(replica: Replica) -> bool:
    """Whether a replica is at rest, or about to be, so that a request may wake it. An external engine never is,
    nor one that a client of the scheduler has stopped."""
    if replica.engine.engine == "external" or replica.engine.held:
        return False
    if replica.state is ReplicaState.DRAINING:
        return replica.engine.phase in ("settling", "falling_asleep")
    return replica.state in (ReplicaState.ASLEEP, ReplicaState.STOPPED)


def action_of(replica: Replica) -> str:
    """The command that makes a resting replica serve; empty = none does now."""
    if not rests(replica):
        return ""
    if replica.state is ReplicaState.ASLEEP:
        # Until a heartbeat says so it is only expected to sleep, and what it does is not known.
        return "wake" if replica.engine.state is ReplicaState.ASLEEP else ""
    if replica.state is ReplicaState.DRAINING:
        return "resume" if replica.engine.phase == "settling" else ""
    return "resume" if replica.engine.state is ReplicaState.STOPPED else ""
