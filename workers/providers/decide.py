"""Which call each intent needs next: a pure function of desired hosts, intents, what the provider shows, and the time.

Its rules, and what each is against:

* A host is created once. After a create whose result is not known (a 500, a broken connection) there is no second one
  until SETTLE has passed and a complete list still does not show the host.
* An accepted host may be unknown to the provider for a while: it counts as coming until APPEAR_WITHIN has passed.
* A host that is not shown any more has ended when the provider's records say so. Only after GONE_AFTER (one that was
  destroyed: DESTROYED_AFTER) without a record it has ended when it was destroyed, or was first not shown. Where the
  provider refuses to show its records, REFUSED_AFTER takes the place of these times.
* Every host of the fleet that no live intent wants is destroyed, whatever became of its intent.
* A host whose agent sends no heartbeat, whose checks refuse it, or that comes to no replica is replaced: one of a kind
  at a time, since a mistake of ours looks like that on all of them.
* A host whose agent falls silent for long is drained and replaced, one of a model at a time.
* A host that may run engines is drained before it is destroyed, whatever made it one too many.
* A host that its provider takes back stays until others of its group have had the time to load the model.
* A host that was not made from its group's image is replaced (images.py).
* A kind of host that failed is left alone for a while, then tried with one host at a time until one may serve.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from workers.providers.images import is_outdated, next_move
from workers.providers.intents import (
    Act,
    Add,
    Adopt,
    Create,
    Destroy,
    End,
    GiveUpImage,
    Intent,
    IntentState,
    Missed,
    Note,
    Release,
    Retire,
    Saw,
    noted,
)
from workers.providers.interface import DesiredHosts, HostGroup, ObservedHost

SETTLE = timedelta(minutes=5)
"""After a create whose result is not known: from then on a complete list shows the host if there is one."""
APPEAR_WITHIN = timedelta(minutes=10)
"""After a create that was accepted: a host that was not shown by then never appears."""
GONE_AFTER = timedelta(minutes=10)
"""A host that was not shown for so long has ended, though no record says so."""
DESTROYED_AFTER = timedelta(minutes=2)
"""The same for a host that the provider agreed to destroy."""
REFUSED_AFTER = timedelta(hours=1)
"""The same for any host while the provider refuses to show its records, as to a token that lacks the scope."""
START_WITHIN = timedelta(minutes=30)
"""A host that has not run for so long is replaced."""
JOIN_WITHIN = timedelta(minutes=30)
"""A host that runs and whose agent has not sent a heartbeat for so long is replaced."""
FIT_WITHIN = timedelta(minutes=15)
"""A host whose checks have refused it for so long is replaced: they are repeated every five minutes."""
UNCHECKED_AFTER = timedelta(minutes=35)
"""A host with replicas and without any result of checks may serve when its agent joined so long ago: they would have
ended."""
RUN_WITHIN = timedelta(minutes=45)
"""A host without any result of checks whose agent joined so long ago and never reported a replica is replaced: longer
than the engine's installation and the longest checks (20 minutes) take together."""
SILENT_WITHIN = timedelta(minutes=30)
"""A host that runs, as its provider says, and whose agent has been silent for so long is drained and replaced: longer
than a request takes, and than a restart of its agent or of the network should."""
LOAD_WITHIN = timedelta(minutes=30)
"""A host that was fit for so long has loaded its model, and takes the place of one that its provider takes back."""
ROOM_WITHIN = timedelta(minutes=5)
"""A host that could be created and was not for so long has no room, by the ceilings."""
ORPHAN_AFTER = timedelta(minutes=10)
"""From the discovery of a host without intent to its destruction: time for a person to stop a wrong one."""
FIRST_PAUSE = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(minutes=30)
"""Between two tries of a kind of host that failed: doubled with each failure."""

ORPHAN = "no intent: it is destroyed"


class Observed(msgspec.Struct, frozen=True):
    """What a provider showed in one pass."""

    at: datetime
    """When the list began."""
    hosts: tuple[ObservedHost, ...]
    complete: bool
    endings: Mapping[str, datetime] = {}
    """By provider_id: ends of hosts by the provider's records."""
    records: bool = False
    """Whether all records of the hosts that are missing were read."""
    refused: bool = False
    """Whether the provider refuses to show its records; after an error they are read by a later pass."""

    def enough(self, known: timedelta) -> timedelta:
        """How long a host must not be shown to have ended, if with all records `known` is long enough."""
        if self.records:
            return known
        return REFUSED_AFTER if self.refused else timedelta.max


def missing(intents: Iterable[Intent], observed: Observed) -> list[Intent]:
    """The hosts whose ends are worth asking for: the provider knew them, and a complete list does not show them."""
    if not observed.complete:
        return []
    shown = {host.provider_id for host in observed.hosts}
    return [
        intent
        for intent in intents
        if intent.state in (IntentState.EXISTS, IntentState.CALLED)
        and intent.provider_id is not None
        and intent.provider_id not in shown
    ]


def decide(
    desired: Sequence[DesiredHosts], intents: Sequence[Intent], observed: Observed, now: datetime
) -> list[Act]:
    """The acts of one pass for one provider, in order. Calls come last, destroys before creates.

    Nothing is concluded from what an incomplete list does not show, and then nothing is called either.
    """
    plan = _Plan(intents, now)
    _match(plan, observed)
    if observed.complete:
        _conclude(plan, observed)
        _replace_silent(plan)
    _count(plan, desired)
    if observed.complete:
        _call(plan)
    return plan.acts


class _Plan:
    """The intents as the acts so far leave them."""

    def __init__(self, intents: Sequence[Intent], now: datetime) -> None:
        self.acts: list[Act] = []
        self.intents: dict[UUID, Intent] = {intent.intent_id: intent for intent in intents}
        self.now = now

    def note(self, act: Note) -> None:
        """Add an act and apply it; one that changes nothing is left out."""
        before = self.intents[act.intent_id]
        after = noted(before, act, self.now)
        if after != before:
            self.intents[act.intent_id] = after
            self.acts.append(act)

    def open(self) -> list[Intent]:
        return [one for one in self.intents.values() if one.state is not IntentState.ENDED]


def _match(plan: _Plan, observed: Observed) -> None:
    """Find each host's intent: by the provider's id, else by the name that was written down before the call."""
    by_id = {one.provider_id: one for one in plan.intents.values() if one.provider_id is not None}
    by_name = {one.name: one for one in plan.intents.values() if one.provider_id is None}
    taken = {one.name for one in plan.intents.values()}
    for host in sorted(observed.hosts, key=lambda host: (host.created_at, host.provider_id)):
        intent = by_id.get(host.provider_id) or by_name.pop(host.name, None)
        if intent is None:
            if host.tagged:
                name = f"{host.name}.{host.provider_id}" if host.name in taken else host.name
                taken.add(name)
                plan.acts.append(Adopt(host, ORPHAN, name))
        elif not intent.end_recorded:  # a list may be older than the record of an end
            plan.note(Saw(intent.intent_id, host))


def _conclude(plan: _Plan, observed: Observed) -> None:
    """What it means that a host is not shown."""
    shown = {host.provider_id for host in observed.hosts}
    for intent in plan.open():
        if intent.provider_id in shown or intent.state is IntentState.WRITTEN:
            continue
        ended = None if intent.provider_id is None else observed.endings.get(intent.provider_id)
        if ended is not None:
            plan.note(End(intent.intent_id, ended, "taken back by its provider", recorded=True))
        elif intent.state is IntentState.EXISTS:
            _not_shown(plan, intent, observed)
        elif intent.called_at is None:
            raise AssertionError(f"intent {intent.name} is called without an instant")
        elif intent.provider_id is None:
            if observed.at - intent.called_at >= SETTLE:
                plan.note(Release(intent.intent_id))
        elif observed.at - intent.called_at >= observed.enough(APPEAR_WITHIN):
            plan.note(
                End(intent.intent_id, plan.now, "it was accepted and never appeared", failed=intent.wanted)
            )


def _not_shown(plan: _Plan, intent: Intent, observed: Observed) -> None:
    if intent.missing_since is None:
        plan.note(Missed(intent.intent_id))
        return
    enough = GONE_AFTER if intent.destroy_at is None else DESTROYED_AFTER
    if plan.now - intent.missing_since >= observed.enough(enough):
        ended = intent.destroy_at or intent.missing_since
        plan.note(End(intent.intent_id, ended, "it is not shown any more"))


def _count(plan: _Plan, desired: Sequence[DesiredHosts]) -> None:
    """Retire hosts that are lost or too many, and write intents for those that are missing."""
    unfit: dict[tuple[str, str], list[tuple[Intent, str]]] = defaultdict(list)
    for intent in plan.open():
        if not intent.wanted:
            continue
        if intent.reclaim_at is not None and intent.reclaim_at <= plan.now:
            plan.note(Retire(intent.intent_id, "taken back by its provider", drained=True))
        elif (
            intent.state is IntentState.EXISTS
            and intent.status != "running"
            and intent.status_since is not None
            and plan.now - intent.status_since >= START_WITHIN
        ):
            late = f"{intent.status} for {_minutes(START_WITHIN)}"
            plan.note(Retire(intent.intent_id, late, failed=True))
        elif why := _unfit(intent, plan.now):
            unfit[intent.region, intent.kind].append((intent, why))
    for kind, found in unfit.items():
        _replace_one(plan, kind, found)
    wanted = {row.group: row.count for row in desired}
    rows = {row.group: row for row in desired}
    for row in desired:
        wanted[row.group] += _move_to_image(plan, row)
    held: dict[HostGroup, list[Intent]] = defaultdict(list)
    taken: dict[HostGroup, list[tuple[datetime, Intent]]] = defaultdict(list)
    for intent in plan.open():
        if intent.wanted and intent.reclaim_at is None:
            held[intent.group].append(intent)
        elif intent.wanted and intent.reclaim_at is not None:
            taken[intent.group].append((intent.reclaim_at, intent))
    for group, reclaimed in taken.items():
        loaded = sum(_has_loaded(one, plan.now) for one in held[group])
        stay = max(wanted.get(group, 0) - loaded, 0)
        reclaimed.sort(key=lambda row: row[0], reverse=True)
        for _, intent in reclaimed[stay:]:
            plan.note(Retire(intent.intent_id, "its provider takes it back, and it is not needed until then"))
    for group in {**wanted, **held}:
        surplus = len(held[group]) - wanted.get(group, 0)
        given_up = sorted(held[group], key=lambda one: _worth(one, rows.get(group)))
        for intent in given_up[: max(surplus, 0)]:
            plan.note(Retire(intent.intent_id, "not desired any more"))
        plan.acts += [Add(group)] * max(-surplus, 0)


def _move_to_image(plan: _Plan, row: DesiredHosts) -> int:
    """Carry out the next step towards the group's image; returns how many hosts more are wanted for it."""
    of_group = [one for one in plan.intents.values() if one.group == row.group]
    alike = [
        one for one in plan.intents.values() if (one.region, one.kind) == (row.group.region, row.group.kind)
    ]
    fails = failures_of(alike, plan.now) is not None
    move = next_move(
        row,
        of_group,
        lambda one: _has_loaded(one, plan.now),
        lambda one: not fails and one.calls == 0 and plan.now - one.requested_at >= ROOM_WITHIN,
    )
    if move.give_up:
        plan.acts.append(GiveUpImage(row.group, row.image))
    if move.retire is not None:
        plan.note(Retire(move.retire.intent_id, _why_replaced(row)))
    return move.extra


def _why_replaced(row: DesiredHosts) -> str:
    """Why a host of the group is replaced for its image."""
    if row.rollout is None:
        return f"its image is not {row.image}"
    rolled = row.rollout
    return (
        f"its image is not {rolled.image}" if rolled.most else f"the rollout of {rolled.image} is rolled back"
    )


def _replace_one(plan: _Plan, kind: tuple[str, str], unfit: Sequence[tuple[Intent, str]]) -> None:
    """Retire the first of a kind's unfit hosts, unless another host of that kind is still on its way."""
    known = {intent.intent_id for intent, _ in unfit}
    coming = any(
        one.wanted and (one.region, one.kind) == kind and _serves_since(one, plan.now) is None
        for one in plan.open()
        if one.intent_id not in known
    )
    if not coming:
        intent, why = unfit[0]  # it starts no engine
        plan.note(Retire(intent.intent_id, why, failed=True, drained=True))


def _replace_silent(plan: _Plan) -> None:
    """Retire one silent host of each model, unless another host of the model is on its way or being replaced."""
    silent: dict[str, list[tuple[datetime, Intent]]] = defaultdict(list)
    busy = set()
    for one in plan.open():
        since = one.silent_since
        if one.wanted and since is not None and _is_silent(one, plan.now):
            silent[one.model].append((since, one))
        elif one.wanted:
            busy |= {one.model} if _serves_since(one, plan.now) is None else set()
        elif since is not None and one.drain_until is not None:
            busy.add(one.model)
    for model, found in silent.items():
        if model not in busy:
            _, first = min(found, key=lambda row: (row[0], row[1].name))
            why = f"its agent has been silent for {_minutes(SILENT_WITHIN)}, though it runs"
            plan.note(Retire(first.intent_id, why, failed=True))


def _is_silent(intent: Intent, now: datetime) -> bool:
    """Whether the provider shows a host as running whose agent joined and was not heard for SILENT_WITHIN."""
    return (
        intent.state is IntentState.EXISTS
        and intent.status == "running"
        and intent.missing_since is None
        and intent.reclaim_at is None
        and intent.silent_since is not None
        and now - intent.silent_since >= SILENT_WITHIN
    )


def _unfit(intent: Intent, now: datetime) -> str:
    """Why a host that runs is not fit to serve, empty where it is or may become so."""
    if intent.state is not IntentState.EXISTS or intent.missing_since is not None:
        return ""
    if intent.refused_since is not None and now - intent.refused_since >= FIT_WITHIN:
        return f"its checks have refused it for {_minutes(FIT_WITHIN)}"
    if intent.joined_at is not None and intent.refused_since is None and not _has_shown(intent):
        if now - intent.joined_at >= RUN_WITHIN:
            return f"its agent reported neither checks nor a replica within {_minutes(RUN_WITHIN)}"
        return ""
    due = intent.must_join and intent.joined_at is None
    if due and intent.running_at is not None and now - intent.running_at >= JOIN_WITHIN:
        return f"its agent sent no heartbeat within {_minutes(JOIN_WITHIN)}"
    return ""


def _has_shown(intent: Intent) -> bool:
    """Whether a host was ever fit, or has reported a replica."""
    return intent.fit_at is not None or intent.ran


def _serves_since(intent: Intent, now: datetime) -> datetime | None:
    """Since when a host may serve: its checks say so, or they had the time to say otherwise. None = it may not yet."""
    if intent.joined_at is None or intent.refused_since is not None or not _has_shown(intent):
        return None
    if intent.fit_at is not None:
        return intent.fit_at
    unchecked = intent.joined_at + UNCHECKED_AFTER
    return unchecked if unchecked <= now else None


def _has_loaded(intent: Intent, now: datetime) -> bool:
    since = None if intent.silent_since is not None else _serves_since(intent, now)
    return since is not None and now - since >= LOAD_WITHIN


def _minutes(time: timedelta) -> str:
    return f"{time.total_seconds() / 60:.0f} minutes"


_ORDER = {IntentState.WRITTEN: 0, IntentState.CALLED: 1, IntentState.EXISTS: 2}


def _worth(intent: Intent, row: DesiredHosts | None) -> tuple[bool, int, bool, bool, bool, bool, float]:
    """Order in which hosts of the group `row` are given up: those of an image that is rolled back first, then those
    that are not there yet, then those of another image than the group is to have, then unfit ones, then the newest."""
    outdated = row is not None and is_outdated(intent, row)
    back = row is not None and row.rollout is not None and row.rollout.most == 0
    return (
        not (back and outdated),
        _ORDER[intent.state],
        not outdated,
        intent.running_at is not None,
        intent.refused_since is None,
        intent.joined_at is not None,
        -intent.requested_at.timestamp(),
    )


def _call(plan: _Plan) -> None:
    for intent in plan.open():
        if not intent.wanted and intent.state is IntentState.WRITTEN:
            plan.note(End(intent.intent_id, plan.now, "it was never created"))
    due = [
        one
        for one in plan.open()
        if all(at is None or at <= plan.now for at in (one.next_at, one.drain_until))
    ]
    plan.acts += [Destroy(one.intent_id) for one in due if not one.wanted and one.provider_id is not None]
    allowed = {kind: trials(group, plan.now) for kind, group in _by_kind(plan.intents.values()).items()}
    for intent in due:
        kind = (intent.region, intent.kind)
        if intent.wanted and intent.state is IntentState.WRITTEN and allowed[kind] > 0:
            allowed[kind] -= 1
            plan.acts.append(Create(intent.intent_id))


def _by_kind(intents: Iterable[Intent]) -> dict[tuple[str, str], list[Intent]]:
    kinds: dict[tuple[str, str], list[Intent]] = defaultdict(list)
    for intent in intents:
        kinds[intent.region, intent.kind].append(intent)
    return kinds


MANY = 1_000_000


class Failures(msgspec.Struct, frozen=True):
    """Creations of a kind that failed since a host of it last became fit to serve."""

    count: int
    last: datetime

    def wait(self, now: datetime) -> timedelta:
        """How long the kind is still left alone; zero = it may be tried with one host at a time."""
        return max(timedelta(), self.last + pause(self.count) - now)


def failures_of(intents: Sequence[Intent], now: datetime) -> Failures | None:
    """The failures of a kind in a region, whose intents these are; None = it does not fail."""
    served = max((since for one in intents if (since := _serves_since(one, now)) is not None), default=None)
    failed = [
        (one.failed_at, one.failures)
        for one in intents
        if one.failed_at is not None and (served is None or one.failed_at > served)
    ]
    return Failures(sum(count for _, count in failed), max(at for at, _ in failed)) if failed else None


def trials(intents: Sequence[Intent], now: datetime) -> int:
    """How many hosts of a kind may be created in a region now, by its failures; those that are called count."""
    failures = failures_of(intents, now)
    if failures is None:
        return MANY
    if failures.wait(now):
        return 0
    coming = sum(
        one.wanted
        and _serves_since(one, now) is None
        and one.state in (IntentState.CALLED, IntentState.EXISTS)
        for one in intents
    )
    return max(1 - coming, 0)


def pause(failures: int) -> timedelta:
    """How long a kind is left alone after its `failures`-th failure in a row."""
    doublings = min(max(failures - 1, 0), 10)
    return min(FIRST_PAUSE * (1 << doublings), LONGEST_PAUSE)
