"""Assigns GPUs: the targets of all models are fitted onto the hosts.

The GPUs of a host hold one set of awake replicas, so waking one model may put another to sleep. Who gets scarce GPUs is
decided by the claims of the models (claims.py); no model loses its first replica for another's second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from scheduler.core.autoscale.claims import (
    MIN_STAY_S,
    Claim,
    Desired,
    Rank,
    Victim,
    claim,
    may_take,
    precedence,
    turn_in_s,
)
from scheduler.core.autoscale.coming import create_s
from scheduler.core.autoscale.floors import Floor, place_of, removable_by_floors, room_at, shortfalls
from scheduler.core.autoscale.ladder import host_memory_gb, resting_rung, settled_rung, wake_s
from scheduler.core.autoscale.plan import ReplicaPlan
from scheduler.core.autoscale.retire import retire_order
from scheduler.core.autoscale.spending import Spending
from scheduler.core.autoscale.state import (
    Binding,
    HostObservation,
    ModelSpec,
    ReplicaObservation,
    Rung,
)


@dataclass(slots=True)
class Arrangement:
    """The result of the assignment."""

    replicas: list[ReplicaPlan] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    """By model: replicas of the whole that no host has room for, or none within the model's budget."""
    turns: dict[str, float] = field(default_factory=dict)
    """By model that waits for its turn: seconds until its first replica serves."""
    missing_there: dict[str, dict[Binding, int]] = field(default_factory=dict)
    """By model: replicas that are missing in some places, whether or not they are missing to the whole."""
    room: dict[str, int] = field(default_factory=dict)
    """By model of `missing`: how many more replicas its maximum allows."""
    turns_there: dict[tuple[str, Binding], float] = field(default_factory=dict)
    """As `turns`, for the first replica in these places."""


def arrange(
    specs: Mapping[str, ModelSpec],
    desired: Mapping[str, Desired],
    reasons: Mapping[str, str],
    hosts: Sequence[HostObservation],
    replicas: Sequence[ReplicaObservation],
    spending: Spending,
    retiring: frozenset[str] = frozenset(),
) -> Arrangement:
    """Choose the awake replicas. `retiring` are chosen by scaling down; `reasons` are given per model.

    `spending`, with nothing taken, counts the awake replicas afterwards. An awake replica stays awake unless it retires
    or is outbid, so a repeated call on its own result changes nothing.
    """
    arranger = _Arranger(specs, desired, hosts, replicas, spending, retiring)
    while (model := arranger.most_valuable()) is not None:
        if not arranger.wake_one(model):
            arranger.mark_unsatisfiable(model)
    arranger.use_contracted()
    return arranger.result(reasons)


class _Arranger:
    """The GPUs during the assignment."""

    def __init__(
        self,
        specs: Mapping[str, ModelSpec],
        desired: Mapping[str, Desired],
        hosts: Sequence[HostObservation],
        replicas: Sequence[ReplicaObservation],
        spending: Spending,
        retiring: frozenset[str],
    ) -> None:
        self._specs, self._desired, self._spending = specs, desired, spending
        self._hosts = {host.host_id: host for host in hosts}
        self._replicas = [replica for replica in replicas if replica.model in specs]
        self._free = {host.host_id: host.gpus for host in hosts}
        self._users: dict[tuple[str, str], set[str]] = {}
        """The awake replicas on a GPU, by host and GPU, where replicas have GPUs of their own."""
        self._awake: dict[str, list[ReplicaObservation]] = {model: [] for model in specs}
        self._outbid: dict[str, str] = {}
        self._moved: set[str] = set()
        """Replicas that wake on contracted hosts in place of paid ones."""
        self._unsatisfiable: set[str] = set()
        self._turns: dict[str, float] = {}
        self._turns_there: dict[tuple[str, Binding], float] = {}
        for replica in sorted(self._replicas, key=lambda replica: replica.replica_id):
            if replica.rung is Rung.AWAKE and replica.replica_id not in retiring:
                self._take(replica)

    def _take(self, replica: ReplicaObservation) -> None:
        self._awake[replica.model].append(replica)
        self._free[replica.host_id] = self._free.get(replica.host_id, 0) - self._gpus(replica)
        for gpu in replica.gpu_ids:
            self._users.setdefault((replica.host_id, gpu), set()).add(replica.replica_id)
        self._spending.take(replica)

    def _release(self, replica: ReplicaObservation) -> None:
        self._awake[replica.model].remove(replica)
        self._free[replica.host_id] += self._gpus(replica)
        for gpu in replica.gpu_ids:
            self._users[replica.host_id, gpu].remove(replica.replica_id)
        self._spending.release(replica)

    def _fits(self, replica: ReplicaObservation) -> bool:
        free = self._free.get(replica.host_id, 0) >= self._gpus(replica)
        return free and not self._in_the_way(replica)

    def _in_the_way(self, replica: ReplicaObservation) -> set[str]:
        """The awake replicas on the GPUs of a replica."""
        return {name for gpu in replica.gpu_ids for name in self._users.get((replica.host_id, gpu), ())}

    def _affords(self, replica: ReplicaObservation) -> bool:
        """Whether the replica may wake: its model is below its minimum or stays within its budget."""
        model = replica.model
        below = len(self._awake[model]) < self._specs[model].min_awake
        below = below or self._rank_there(replica) is Rank.MINIMUM
        return below or self._spending.affords(replica)

    def _has_room(self, replica: ReplicaObservation) -> bool:
        """Whether another replica of its model may be awake in its region, on its kind of host."""
        limits, model = self._specs[replica.model].places, replica.model
        if not limits:
            return True
        awake = [*map(place_of, self._awake[model]), *self._desired[model].coming]
        return room_at(limits, awake, place_of(replica)) > 0

    def _resting(self, model: str) -> list[ReplicaObservation]:
        """The model's replicas that may be woken: the quickest to wake first, then those that cost least."""
        spec = self._specs[model]
        awake = {replica.replica_id for replica in self._awake[model]}
        return sorted(
            (
                row
                for row in self._replicas
                if row.model == model and row.replica_id not in awake and not row.held and self._has_room(row)
            ),
            key=lambda row: (wake_s(spec, row), self._spending.idle_usd(row), row.replica_id),
        )

    def _gpus(self, replica: ReplicaObservation) -> int:
        return len(replica.gpu_ids) or self._specs[replica.model].capacity.gpus

    def most_valuable(self) -> str | None:
        """The model with the most valuable missing replica; None when none is missing."""
        lacking = [
            model
            for model, desired in sorted(self._desired.items())
            if model not in self._unsatisfiable and self._lack(model) > 0
        ]
        return max(lacking, key=self._precedence, default=None)

    def _lack(self, model: str) -> int:
        """Replicas of a model that are missing, to the whole or in places that need them."""
        desired, awake = self._desired[model], len(self._awake[model])
        short = sum(more for _, more in self._short(model))
        return min(max(desired.target - awake, short), desired.most - awake)

    def _lack_anywhere(self, model: str) -> int:
        """Replicas that are missing to the whole and need not be in the places of a floor.

        What a floor lacks is taken out of it where its demand is part of the whole, and where hosts may be created,
        which will serve the rest, too.
        """
        part = sum(
            max(0, more - floor.comes) for floor, more in self._short(model) if floor.served or floor.open
        )
        return self._desired[model].target - len(self._awake[model]) - part

    def _short(self, model: str) -> list[tuple[Floor, int]]:
        return shortfalls(self._desired[model].floors, self._awake[model])

    def _precedence(self, model: str) -> tuple[int, bool, float]:
        resting = self._resting(model) if self._desired[model].floors else []
        ranks = [
            self._rank_in(floor, self._awake[model])
            for floor, _ in self._short(model)
            if any(floor.has(replica) for replica in resting)
        ]
        nth = len(self._awake[model]) + 1
        there = max(ranks, default=Rank.OTHER)
        return precedence(self._specs[model], self._desired[model], nth, there=there)

    def _is_empty(self, model: str, floor: Floor) -> bool:
        return not any(floor.has(replica) for replica in self._awake[model])

    def _claim(self, replica: ReplicaObservation, nth: int) -> Claim:
        """The claim of a replica as the `nth` of its model."""
        spec, desired = self._specs[replica.model], self._desired[replica.model]
        return claim(spec, desired, nth, there=self._rank_there(replica))

    def _rank_there(self, replica: ReplicaObservation) -> Rank:
        """The rank of a replica by what is needed in its places, beside the others that are awake there."""
        awake = [other for other in self._awake[replica.model] if other.replica_id != replica.replica_id]
        floors = (floor for floor in self._desired[replica.model].floors if floor.has(replica))
        return max((self._rank_in(floor, awake) for floor in floors), default=Rank.OTHER)

    @staticmethod
    def _rank_in(floor: Floor, awake: Sequence[ReplicaObservation]) -> Rank:
        """The rank of one more replica in the places of a floor."""
        there = sum(floor.has(other) for other in awake)
        if there < floor.least:
            return Rank.MINIMUM
        return Rank.FIRST if not there and max(floor.need, floor.recent) > 0 else Rank.OTHER

    def _candidates(self, model: str) -> list[ReplicaObservation]:
        """The resting replicas that may be woken for a model, those in places that need one first; the others only
        while more are missing than there."""
        resting = [replica for replica in self._resting(model) if self._affords(replica)]
        short = self._short(model)
        there = [row for row in resting if any(floor.has(row) for floor, _ in short)]
        least = shortfalls(self._desired[model].floors, self._awake[model], lambda floor: floor.least)
        if self._desired[model].most - len(self._awake[model]) <= sum(more for _, more in least):
            return [row for row in there if self._rank_there(row) is Rank.MINIMUM]
        if self._lack_anywhere(model) <= 0:
            return there
        return [*there, *(row for row in resting if row not in there)]

    def wake_one(self, model: str) -> bool:
        """Wake the quickest resting replica of a model that has room or outbids others; returns whether one was
        found."""
        resting = self._candidates(model)
        for replica in resting:
            if self._fits(replica):
                self._take(replica)
                return True
        return any(self._outbid_for(replica) for replica in resting)

    def use_contracted(self) -> None:
        """Wake replicas on free GPUs of contracted hosts, one for each that is awake on a paid host.

        The paid ones are spare from then on, and scaling down removes them.
        """
        for model, spec in self._specs.items():
            awake = self._awake[model]
            spare = max(0, len(awake) - self._desired[model].needed)
            for replica in self._resting(model):
                if len(awake) >= spec.max_awake:
                    break
                if spare >= self._replaceable(replica) or not self._has_room(replica):
                    continue
                host = self._hosts.get(replica.host_id)
                if host is not None and host.contracted and self._fits(replica):
                    self._take(replica)
                    self._moved.add(replica.replica_id)
                    spare += 1

    def _replaceable(self, replica: ReplicaObservation) -> int:
        """The awake replicas on paid hosts that may be removed once `replica` of the same model is awake."""
        awake = self._awake[replica.model]
        paid = [other for other in awake if not self._spending.free(other)]
        floors = self._desired[replica.model].floors
        return len(removable_by_floors(floors, [*awake, replica], paid)) if floors else len(paid)

    def _held(self, replica: ReplicaObservation) -> int:
        """Requests that wait for what a resting replica would be the first to serve."""
        desired = self._desired[replica.model]
        there = [
            floor.held
            for floor in desired.floors
            if floor.has(replica) and self._is_empty(replica.model, floor)
        ]
        return max([*there, desired.held if not self._awake[replica.model] or not there else 0])

    def _outbid_for(self, replica: ReplicaObservation) -> bool:
        """Free GPUs for a replica from models whose claims are weaker; returns whether that was possible."""
        model, spec = replica.model, self._specs[replica.model]
        victims = self._victims(replica)
        own = self._claim(replica, len(self._awake[model]) + 1)
        held = self._held(replica)
        if not victims or not may_take(own, spec, wake_s(spec, replica), held, victims):
            return False
        for victim in victims:
            self._release(victim.replica)
        if not self._affords(replica):  # alone on the host it pays the whole of it
            for victim in victims:
                self._take(victim.replica)
            return False
        self._outbid |= {victim.replica.replica_id: model for victim in victims}
        self._take(replica)
        return True

    def _serves_in_s(self, replica: ReplicaObservation) -> float:
        """Seconds until a replica serves, if it waits until the turns of others end; infinite where they do not."""
        model, spec = replica.model, self._specs[replica.model]
        victims = self._victims(replica, settled=False)
        own, takes_s = self._claim(replica, len(self._awake[model]) + 1), wake_s(spec, replica)
        desired = self._desired[model]
        # Requests will be held for a model that was awake a moment ago.
        held = self._held(replica) or int(desired.unserved_s < create_s(spec))
        left_s = turn_in_s(own, spec, takes_s, held, victims)
        return max(0.0, left_s) + max((each.spec.drain_s for each in victims), default=0.0) + takes_s

    def _victims(self, replica: ReplicaObservation, *, settled: bool = True) -> list[Victim]:
        """The awake replicas that would have to sleep for a replica, those with the weakest claims; empty = its GPUs
        are its own model's, or not to be had."""
        short = self._gpus(replica) - self._free.get(replica.host_id, 0)
        blocking = self._in_the_way(replica)
        victims: list[Victim] = []
        taken: dict[str, int] = {}
        for other in sorted(self._losers(replica, settled), key=lambda row: row.replica_id not in blocking):
            if short <= 0 and not blocking:
                break
            nth = len(self._awake[other.model]) - taken.get(other.model, 0)
            taken[other.model] = taken.get(other.model, 0) + 1
            desired = self._desired[other.model]
            victims.append(Victim(other, self._specs[other.model], self._claim(other, nth), desired.busy))
            short -= self._gpus(other)
            blocking.discard(other.replica_id)
        return [] if short > 0 or blocking else victims

    def _losers(self, replica: ReplicaObservation, settled: bool) -> list[ReplicaObservation]:
        """Awake replicas of other models on the same host, the weakest claim first; if `settled`, only those that have
        been awake long enough."""
        found: list[tuple[int, float, int, ReplicaObservation]] = []
        for model, awake in sorted(self._awake.items()):
            if model == replica.model:
                continue
            for place, other in enumerate(retire_order(awake, self._specs[model].capacity)):
                weakest = self._claim(other, len(awake))
                stays = settled and (other.rung is not Rung.AWAKE or other.since_s < MIN_STAY_S)
                if not stays and other.host_id == replica.host_id:
                    per_gpu = weakest.usd_per_s / max(1, self._gpus(other))
                    found.append((weakest.rank, per_gpu, place, other))
        return [other for *_, other in sorted(found, key=lambda row: (*row[:3], row[3].replica_id))]

    def mark_unsatisfiable(self, model: str) -> None:
        """Note that no host has room for another replica of `model`."""
        self._unsatisfiable.add(model)
        waits = [(self._serves_in_s(replica), replica) for replica in self._candidates(model)]
        soonest_s = min((wait_s for wait_s, _ in waits), default=math.inf)
        if soonest_s < math.inf:
            self._turns[model] = soonest_s
        for floor, _ in self._short(model):
            there_s = min((wait_s for wait_s, row in waits if floor.has(row)), default=math.inf)
            if there_s < math.inf and self._is_empty(model, floor):
                self._turns_there[model, floor.where] = there_s

    def result(self, reasons: Mapping[str, str]) -> Arrangement:
        """The rung of every replica, with a reason."""
        awake = {replica.replica_id for rows in self._awake.values() for replica in rows}
        asleep_gb = self._asleep_gb(awake)
        outcome = Arrangement(turns=self._turns, turns_there=self._turns_there)
        for replica in sorted(self._replicas, key=lambda replica: replica.replica_id):
            spec = self._specs[replica.model]
            rung, reason = replica.rung, ""
            if replica.replica_id in awake:
                rung = Rung.AWAKE
                reason = self._reason_up(replica, reasons) if replica.rung is not Rung.AWAKE else ""
            elif replica.rung is Rung.AWAKE:
                host = self._hosts.get(replica.host_id)
                rung = resting_rung(spec, host, asleep_gb[replica.host_id]) if host else Rung.STOPPED
                figures = spec.ladder.get(rung)
                asleep_gb[replica.host_id] += figures.host_gb if figures else 0.0
                reason = self._reason_down(replica, reasons)
            elif not replica.held and (rung := self._settled(replica)) is not replica.rung:
                reason = f"{replica.rung} for {replica.since_s:.0f} s has cost as much as coming back from {rung} would"
            outcome.replicas.append(
                ReplicaPlan(replica.replica_id, replica.model, replica.host_id, rung, reason, replica.region)
            )
        for model in self._unsatisfiable:
            desired, there = self._desired[model], len(self._awake[model])
            outcome.missing[model] = max(0, min(desired.target, desired.most) - there)
            most = min(desired.most, self._specs[model].max_awake - len(desired.coming))
            outcome.room[model] = most - there
            outcome.missing_there[model] = {floor.where: more for floor, more in self._short(model)}
        return outcome

    def _settled(self, replica: ReplicaObservation) -> Rung:
        spec, host = self._specs[replica.model], self._hosts.get(replica.host_id)
        return settled_rung(spec, host, replica, gpus_free=self._fits(replica))

    def _asleep_gb(self, awake: set[str]) -> dict[str, float]:
        """Host memory of the replicas that rest and will go on resting, in GB."""
        rest: dict[str, list[ReplicaObservation]] = {replica.host_id: [] for replica in self._replicas}
        for replica in self._replicas:
            if replica.replica_id not in awake and replica.rung is not Rung.AWAKE:
                rest[replica.host_id].append(msgspec.structs.replace(replica, rung=self._settled(replica)))
        return {host_id: host_memory_gb(dict(self._specs), rows) for host_id, rows in rest.items()}

    def _reason_up(self, replica: ReplicaObservation, reasons: Mapping[str, str]) -> str:
        if replica.replica_id in self._moved:
            return f"the hours of {replica.host_id} are paid for; it replaces a replica on a host that is not"
        return reasons.get(replica.model, "")

    def _reason_down(self, replica: ReplicaObservation, reasons: Mapping[str, str]) -> str:
        if winner := self._outbid.get(replica.replica_id):
            return f"its GPUs go to {winner}: {reasons.get(winner, '')}"
        return reasons.get(replica.model, "")
