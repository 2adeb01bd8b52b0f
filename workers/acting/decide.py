"""Which hosts are desired by the autoscaler's plan: a pure function of the plan, what is desired, intents and money.

Its rules:

* A creation counts beside the hosts that the plan knew of. What was desired or created since it was made counts for
  it, so a plan that is read twice creates no host twice.
* A host is destroyed by its name, when the plan says that no engine runs on it, and never while the model is below its
  minimum. Hosts that a contract covers, and the operator's own, are never destroyed, and count for no budget.
* Groups of hosts that a person decides on are left alone until their decision expires.
* A host whose creation was refused is given up, so that the plan chooses again: the next region, or the next kind.
* A host that several models share is theirs together: the plan acts on it where it acts for all of them, it stays while
  any of them is below its minimum, and each of them pays an equal part of it from its budget of the month.
* Nothing is created beyond a provider's ceilings or a budget of the month, and hosts for whose next hour the budget of
  the month has no room are retired, the newest first, down to the minimum.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from core.money import pico_to_usd
from workers.acting.contracts import Contracts
from workers.acting.covered import Covered, covered_hosts
from workers.acting.places import SETTING, Place, Places
from workers.acting.plan import ActResult, Mode, PlannedCreation, PlannedRemoval, PoolAct, StoredPlan, mode_of
from workers.providers.ceilings import Ceilings
from workers.providers.decide import failures_of, trials
from workers.providers.intents import Intent, IntentState
from workers.providers.interface import DesiredHosts, HostGroup, models_of
from workers.scaling import ScalingLimits

PLAN_MAX_AGE = timedelta(seconds=60)
"""An older plan changes nothing: the scheduler that made it may be gone."""
CALL_WITHIN = timedelta(minutes=10)
"""A host whose creation was not called for so long is given up."""
_ANY = 1 << 20
"""Stands for the number of regions where any will do."""
ROOM_HOURS = 2
"""Hours of all hosts for which a budget of the month needs room, so that one more is created."""
GIVEN_UP = "it could not be created; the plan chooses again"


class Money(msgspec.Struct, frozen=True):
    """What hosts may cost and have cost, in picodollars. Covered hosts and the operator's own cost nothing here."""

    ceilings: Ceilings
    """Of each provider."""
    prices: Mapping[tuple[str, str], int]
    """Per hour by provider and kind; others are not known."""
    spent: Mapping[str, int]
    """By model of their groups: since the month began."""
    month_budget: int | None = None
    """Most for the hosts of all models in a month."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a plan is looked at."""

    now: datetime
    plan: StoredPlan
    desired: Sequence[DesiredHosts]
    intents: Sequence[Intent]
    """Of all providers: those that have not ended, and those that ended lately."""
    places: Places
    providers: frozenset[str]
    """Those that are set up."""
    own: frozenset[str]
    """Kinds of hosts that are the operator's own."""
    limits: Mapping[str, ScalingLimits]
    money: Money
    mode: Mode
    """The platform's switch."""
    contracts: Contracts = Contracts()
    """Those that run, and the hosts that they may cover."""


class Decision(msgspec.Struct):
    """What is to be written."""

    desired: dict[HostGroup, int] = {}
    """New counts of the plan's groups."""
    retired: list[tuple[Intent, str]] = []
    """Hosts that are not wanted any more, with the reason."""
    acts: list[PoolAct] = []


def decide_hosts(situation: Situation) -> Decision:
    """The changes that the plan asks for, as far as they are allowed, and all acts with their reasons."""
    decider = _Decider(situation)
    decider.take_over()
    decider.give_up()
    for removal in situation.plan.destroy:
        decider.destroy(removal)
    decider.keep_budgets()
    # What is planned for some regions first: the hosts that it gets count for what may be anywhere.
    for creation in sorted(situation.plan.creations, key=lambda each: len(each.regions) or _ANY):
        decider.create(creation)
    return decider.decision


def _serves(intent: Intent) -> bool:
    """Whether a host has joined, is fit to serve, and stays."""
    shown = intent.fit_at is not None or intent.ran
    return (
        intent.joined_at is not None and shown and intent.refused_since is None and intent.reclaim_at is None
    )


class _Decider:
    """The hosts as the decisions so far leave them."""

    def __init__(self, situation: Situation) -> None:
        self.decision = Decision({}, [], [])
        self._at = situation
        self._persons = {row.group for row in situation.desired if row.is_persons(situation.now)}
        self._counts = {row.group: row.count for row in situation.desired}
        self._open = {one.name: one for one in situation.intents if one.state is not IntentState.ENDED}
        ours = {one.name for one in situation.intents}
        joined = tuple(one for one in situation.contracts.hosts if one.name not in ours)
        self._contracts = Contracts(situation.contracts.running, joined)
        """With the hosts that joined by themselves."""
        self._granted: list[tuple[PlannedCreation, int]] = []
        """Creations that were decided on, with the hosts of each that exist or are desired by now."""

    def take_over(self) -> None:
        """Take the groups of persons whose decision has expired, as they are."""
        for row in self._at.desired:
            if row.owner == "person" and row.group not in self._persons:
                self.decision.desired[row.group] = row.count

    def give_up(self) -> None:
        """Give up hosts of the plan's groups that cannot be created where they are desired."""
        now = self._at.now
        for intent in list(self._open.values()):
            waits = intent.wanted and intent.state is IntentState.WRITTEN and self._is_plans(intent.group)
            if not waits or self._mode(intent.model) is not Mode.ON:
                continue
            failures = failures_of(self._alike(intent.group), now)
            if (failures is not None and failures.wait(now)) or now - intent.requested_at >= CALL_WITHIN:
                self._retire(intent, GIVEN_UP)

    def destroy(self, removal: PlannedRemoval) -> None:
        """Retire a host that the plan does not need, once no engine runs on it."""
        intent = self._open.get(removal.host)
        if intent is None or not intent.wanted:
            return
        mode = self._mode(intent.model)
        if mode is Mode.OFF or (mode is Mode.ON and not removal.drained):
            return
        refusal = self._kept(intent)
        result: ActResult = "refused" if refusal else "dry-run" if mode is Mode.DRY_RUN else "done"
        self._note_destroy(intent, removal.reason, mode, result, refusal)
        if result == "done":
            self._retire(intent, f"the autoscaler's plan: {removal.reason}")

    def _note_destroy(
        self, intent: Intent, why: str, mode: Mode, result: ActResult, refusal: str = ""
    ) -> None:
        reason = f"in {intent.region}: {why}" if intent.region else why
        self.decision.acts.append(
            PoolAct(intent.model, intent.name, "destroy", reason, mode, result, refusal)
        )

    def keep_budgets(self) -> None:
        """Retire hosts for whose next hour a budget of the month has no room."""
        for model in sorted({name for one in self._open.values() for name in one.models}):
            self._keep_budget(model)
        self._keep_budget(None)

    def _keep_budget(self, model: str | None) -> None:
        """The same for the budget of one model, or of the platform."""
        least_loss = sorted(
            self._open.values(), key=lambda one: (not _serves(one), one.requested_at, one.name), reverse=True
        )
        covered = self._covered().hosts
        for intent in least_loss:
            if model is not None and model not in intent.models:
                continue
            if not intent.wanted or intent.kind in self._at.own or intent.name in covered:
                continue
            mode, budget = self._mode(intent.model), self._budget(model)
            _, rate = self._expected(self._at.providers, model, free=False, leaving=False)
            if mode is Mode.OFF or budget is None or self._spent(model) + rate <= budget:
                continue
            why = self._over_budget(model, budget, rate)
            if refusal := self._kept(intent) or self._minimum(intent):
                self._note_destroy(intent, why, mode, "refused", refusal)
                continue
            result: ActResult = "dry-run" if mode is Mode.DRY_RUN else "done"
            self._note_destroy(intent, why, mode, result)
            if result == "done":
                self._retire(intent, why)

    def _minimum(self, intent: Intent) -> str:
        """Why a host may not go; empty = as many replicas of each of its models as the minimum are awake without it,
        also in its region and on its kind of host."""
        return next(filter(None, (self._minimum_of(model, intent) for model in intent.models)), "")

    def _minimum_of(self, model: str, intent: Intent) -> str:
        limits = self._at.limits[model]
        serving = sum(_serves(one) for one in self._at.intents if one.wanted and model in one.models)
        each = -(-self._awake(model) // max(1, serving))
        gone = sum(_serves(one) for one, _ in self.decision.retired if model in one.models)
        left = self._awake(model) - each * (gone + _serves(intent))
        if left < limits.min_awake:
            least = limits.min_awake
            return f"at least {least} replicas have to be awake, and without it {max(0, left)} would be"
        others = [one for one in self._open.values() if model in one.models and one.wanted and _serves(one)]
        region, kind = intent.region.lower(), intent.kind
        near = each * (sum(one.region.lower() == region for one in others) - _serves(intent))
        alike = each * (sum(one.kind == kind for one in others) - _serves(intent))
        places = [(row.min_awake, near, f"in {region}") for row in limits.regions if row.region == region]
        places += [
            (row.min_awake, alike, f"on hosts of kind {kind}") for row in limits.kinds if row.kind == kind
        ]
        for least, there, words in places:
            if there < least:
                return f"at least {least} replicas have to be awake {words}, and without it {there} would be"
        return ""

    def create(self, creation: PlannedCreation) -> None:
        """Desire as many more hosts as the plan asks for beside those that it knew of."""
        mode = self._mode(creation.hosts_for)
        if mode is Mode.OFF:
            return
        known = sum(
            name in self._open and self._counts_for(self._open[name], creation)
            for name in set(self._at.plan.known)
        )
        have = sum(self._staying(group) for group in self._groups(creation))
        granted = sum(count for other, count in self._granted if _is_part(other, creation))
        missing = max(0, known + granted + creation.count - have)
        refused = self._desire(creation, missing, mode)
        self._granted.append((creation, max(0, creation.count - refused)))

    def _desire(self, creation: PlannedCreation, missing: int, mode: Mode) -> int:
        """Desire `missing` more hosts, one after the other; returns how many of them may not be created."""
        for created in range(missing):
            place, refusal = self._place(creation)
            group = HostGroup(place.provider, place.region, creation.kind, creation.hosts_for)
            result: ActResult = "refused" if refusal else "dry-run" if mode is Mode.DRY_RUN else "done"
            target = "/".join(filter(None, (place.provider, place.region, creation.kind)))
            self.decision.acts.append(
                PoolAct(creation.model, target, "create", creation.reason, mode, result, refusal)
            )
            if refusal:
                return missing - created
            self._counts[group] = self._staying(group) + 1
            if result == "done":
                self.decision.desired[group] = self._counts[group]
        return 0

    def _retire(self, intent: Intent, why: str) -> None:
        group = intent.group
        self._counts[group] = self.decision.desired[group] = max(0, self._counts.get(group, 0) - 1)
        self.decision.retired.append((intent, why))
        self._open[intent.name] = msgspec.structs.replace(intent, wanted=False)

    def _kept(self, intent: Intent) -> str:
        """Why a host is not destroyed; empty = it may be."""
        if (contract := self._covered().hosts.get(intent.name)) is not None:
            return f"it is paid for by {contract.words}"
        if intent.kind in self._at.own:
            return f"hosts of kind {intent.kind} are the operator's own"
        if not self._is_plans(intent.group):
            return "a person decides on its group; `penstock hosts desired` shows it"
        for model in intent.models:
            awake, least = self._awake(model), self._at.limits[model].min_awake
            if awake < least:
                return f"{awake} replicas are awake, and at least {least} have to be"
        return ""

    def _awake(self, model: str) -> int:
        return next((row.awake for row in self._at.plan.models if row.model == model), 0)

    def _place(self, creation: PlannedCreation) -> tuple[Place, str]:
        """Where the next host is created, and why it may not be; empty = it may."""
        nowhere = Place("", "")
        limits = self._at.limits[creation.model]
        if creation.kind not in limits.host_kinds:
            return nowhere, f"hosts of kind {creation.kind} are not allowed for it any more"
        if creation.shares != limits.shares:
            return nowhere, "it does not share its hosts with the same models any more"
        places = [place for place in self._at.places.of(creation.kind) if creation.allows(place.region)]
        if not places:
            there = f" in {' or '.join(creation.regions)}" if creation.regions else ""
            return nowhere, f"{SETTING} names no provider for hosts of kind {creation.kind}{there}"
        notes = []
        for place in places:
            group = HostGroup(place.provider, place.region, creation.kind, creation.hosts_for)
            note = self._unusable(group) or self._unaffordable(group)
            if not note:
                return place, ""
            notes.append(f"{place.provider}/{place.region}: {note}")
        return nowhere, "; ".join(notes)

    def _unusable(self, group: HostGroup) -> str:
        """Why no host of a group can be added now; empty = one can."""
        if group.provider not in self._at.providers:
            return "the provider is not set up"
        if group in self._persons:
            return "a person decides on its hosts"
        alike = self._alike(group)
        uncalled = sum(
            max(0, self._held(other) - self._called(other))
            for other in {*self._counts, *(one.group for one in alike)}
            if (other.provider, other.region, other.kind) == (group.provider, group.region, group.kind)
        )
        if trials(alike, self._at.now) > uncalled:
            return ""
        failures = failures_of(alike, self._at.now)
        count = failures.count if failures is not None else 0
        wait = failures.wait(self._at.now) if failures is not None else timedelta()
        return f"{count} creations failed" + (
            f", next attempt in {wait.total_seconds():.0f} s" if wait else ", one host at a time"
        )

    def _unaffordable(self, group: HostGroup) -> str:
        """Which ceiling or budget one more host would exceed; empty = none."""
        money, provider = self._at.money, group.provider
        contract = self._covered(group).next
        price = money.prices.get((provider, group.kind))
        if price is None:
            if contract is None:
                return f"the price of {group.kind} is not known"
            price = contract.usd_pico_per_hour
        hosts, rate = self._expected({provider}, None)
        if hosts >= money.ceilings.hosts:
            return f"there are {hosts} hosts, and PENSTOCK_HOSTS_MAX is {money.ceilings.hosts}"
        if rate + price > money.ceilings.usd_pico_per_hour:
            return (
                f"hosts cost {pico_to_usd(rate)} USD per hour, one more {pico_to_usd(price)}: more than "
                f"PENSTOCK_HOSTS_MAX_USD_PER_HOUR, {pico_to_usd(money.ceilings.usd_pico_per_hour)}"
            )
        if contract is not None or group.kind in self._at.own:
            return ""
        for model in (*models_of(group.model), None):
            budget = self._budget(model)
            _, rate = self._expected(self._at.providers, model, free=False)
            rate += _part(price, group.model, model)
            # Else it would be retired for the same budget as soon as it serves.
            if budget is not None and self._spent(model) + ROOM_HOURS * rate > budget:
                return self._over_budget(model, budget, ROOM_HOURS * rate, hours=ROOM_HOURS)
        return ""

    def _budget(self, model: str | None) -> int | None:
        """The month's budget of a model, or of the platform; None = it has none."""
        if model is None:
            return self._at.money.month_budget
        limits = self._at.limits.get(model)
        return None if limits is None else limits.budget_usd_pico_per_month

    def _spent(self, model: str | None) -> int:
        return sum(_part(cost, hosts, model) for hosts, cost in self._at.money.spent.items())

    def _over_budget(self, model: str | None, budget: int, cost: int, *, hours: int = 1) -> str:
        until = "the next hour" if hours == 1 else f"the next {hours} hours with it"
        return (
            f"the month's budget of {'the platform' if model is None else model} is {pico_to_usd(budget)} USD: "
            f"{pico_to_usd(self._spent(model))} are spent, and {until} would cost {pico_to_usd(cost)}"
        )

    def _expected(
        self,
        providers: frozenset[str] | set[str],
        model: str | None,
        *,
        free: bool = True,
        leaving: bool = True,
    ) -> tuple[int, int]:
        """Hosts of these providers that exist or will, of a model or of all, and its picodollars per hour for them.

        Without `leaving` only those that stay; without `free` only those that are neither covered nor the operator's
        own.
        """
        prices = self._at.money.prices
        covered = {} if free else self._covered().groups

        def counts(group: HostGroup) -> bool:
            own = group.kind in self._at.own
            ours = model is None or model in models_of(group.model)
            return group.provider in providers and ours and (free or not own)

        going = [
            _part(one.usd_pico_per_hour or 0, one.model, model)
            for one in self._open.values()
            if leaving and not one.wanted and one.state is not IntentState.WRITTEN and counts(one.group)
        ]
        staying = [
            (
                self._held(group) - covered.get(group, 0),
                _part(prices.get((group.provider, group.kind), 0), group.model, model),
            )
            for group in {*self._counts, *(one.group for one in self._open.values())}
            if counts(group)
        ]
        hosts = len(going) + sum(held for held, _ in staying)
        return hosts, sum(going) + sum(held * price for held, price in staying)

    def _covered(self, more: HostGroup | None = None) -> Covered:
        """The hosts that exist or will and that contracts cover; `next` is for one `more` of a group."""
        wanted = [one for one in self._open.values() if one.wanted]
        there = Counter(one.group for one in wanted)
        unnamed = {group: self._held(group) - there[group] for group in self._counts}
        return covered_hosts(self._contracts, wanted, unnamed, self._at.now, more)

    def _counts_for(self, intent: Intent, creation: PlannedCreation) -> bool:
        return intent.wanted and _is_for(intent.group, creation)

    def _groups(self, creation: PlannedCreation) -> set[HostGroup]:
        every = {*self._counts, *(one.group for one in self._open.values())}
        return {group for group in every if _is_for(group, creation)}

    def _staying(self, group: HostGroup) -> int:
        """Hosts of a group that are desired or wanted, whichever are more, without those that are taken back: like the
        plan and the passes, which replace them."""
        wanted = [one for one in self._open.values() if one.wanted and one.group == group]
        return max(self._counts.get(group, 0), sum(one.reclaim_at is None for one in wanted))

    def _held(self, group: HostGroup) -> int:
        """Hosts of a group that exist or will: those that stay, and those that are taken back and cost until then."""
        leaving = sum(
            one.wanted and one.group == group and one.reclaim_at is not None for one in self._open.values()
        )
        return self._staying(group) + leaving

    def _called(self, group: HostGroup) -> int:
        return sum(
            one.wanted and one.group == group and one.state is not IntentState.WRITTEN
            for one in self._open.values()
        )

    def _alike(self, group: HostGroup) -> list[Intent]:
        """The intents of the same kind in the same region, for any model."""
        key = (group.provider, group.region, group.kind)
        return [one for one in self._at.intents if (one.provider, one.region, one.kind) == key]

    def _is_plans(self, group: HostGroup) -> bool:
        return group in self._counts and group not in self._persons

    def _mode(self, hosts: str) -> Mode:
        """Whether the plan is acted on for hosts of a model, or of the models that share them: as for the least."""
        found = []
        for model in models_of(hosts):
            limits = self._at.limits.get(model)
            own = limits.acting if limits is not None else None
            found.append(mode_of(self._at.mode, own, has_limits=limits is not None))
        return min(found, key=list(Mode).index, default=Mode.OFF)


def _part(cost: int, hosts: str, model: str | None) -> int:
    """What a model pays of the cost of hosts of its own, or of those that it shares: an equal part, rounded up. `model`
    None = all of them."""
    if model is None:
        return cost
    models = models_of(hosts)
    return -(-cost // len(models)) if model in models else 0


def _is_for(group: HostGroup, creation: PlannedCreation) -> bool:
    """Whether the hosts of a group count for a creation."""
    return (group.kind, group.model) == (creation.kind, creation.hosts_for) and creation.allows(group.region)


def _is_part(other: PlannedCreation, creation: PlannedCreation) -> bool:
    """Whether the hosts of another creation are counted with those of this one."""
    if (other.kind, other.hosts_for) != (creation.kind, creation.hosts_for):
        return False
    return not creation.regions or (bool(other.regions) and set(other.regions) <= set(creation.regions))
