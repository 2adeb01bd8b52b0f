"""Plays schedules of faults on the fake cloud against the provider's own code, on virtual time, and looks after each
pass that what is promised holds.
"""

import random
from collections import Counter
from datetime import timedelta
from fractions import Fraction
from uuid import UUID

import msgspec

from core.money import PICO_PER_CENT, usd_to_pico
from sim.digitalocean.cloud import FakeCloud
from sim.digitalocean.droplets import Droplet
from sim.digitalocean.faults import Fault
from tests.support.fake_droplets import (
    TOKEN,
    CloudApi,
    Crash,
    Crashes,
    MemoryStore,
    VirtualTime,
    finish,
    hold_to_description,
)
from workers.providers.ceilings import Ceilings
from workers.providers.costs import host_cost_pico
from workers.providers.digitalocean import NAME, DigitalOceanHosts, DropletOptions
from workers.providers.intents import Intent, IntentState, Retire
from workers.providers.interface import DesiredHosts, HostGroup, ImageRollout
from workers.providers.reconciler import PassReport, Reconciler

FLEET = "test"
TAG = "penstock-test"
EVERY_S = 10
GROUPS = (
    HostGroup(NAME, "nyc2", "gpu-h100x1-80gb", "a"),
    HostGroup(NAME, "tor1", "gpu-mi350x1-288gb-spot", "b"),
    HostGroup(NAME, "nyc2", "s-1vcpu-1gb", ""),
)
RECLAIM_S = 7200
"""Notice of a reclaim."""
CALM_S = 6 * 3600
"""Time without faults after which everything must be as desired."""


class Play:
    """One schedule. `late_s`: how long a hidden droplet that was accepted is not shown."""

    def __init__(self, seed: int = 0, *, late_s: int = 60, described: bool = False) -> None:
        self.rng = random.Random(seed)
        self.time = VirtualTime()
        self.crashes = Crashes()
        self.cloud = FakeCloud(TOKEN, self.time.seconds)
        self.cloud.faults.hidden_s = late_s
        self.cloud.faults.retry_after_s = 25
        self.cloud.droplet_limit = 40
        self.cloud.largest_page = 7
        self.cloud.create_s = self.rng.choice([0, 40])
        if described:
            self.cloud.seen = hold_to_description
        self.store = MemoryStore(self.time, self.crashes)
        self.bounded = late_s < 300
        self.foreign: list[Droplet] = []
        self.strays: set[str] = set()
        """Names of the fleet's droplets that no intent made."""
        self.blinked: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.unaware_until = 0
        self.overlapped = False
        """Whether two passes ran at once."""
        self.crashes.other = self.overlap
        self._ids = 0
        self.ceilings = Ceilings(30, usd_to_pico("10000"))
        self.use_fleet(FLEET)

    def hosts(self, fleet: str = FLEET) -> DigitalOceanHosts:
        """The provider's own code on the fake cloud."""
        options = DropletOptions(fleet, user_data="#!/bin/sh")
        return DigitalOceanHosts(CloudApi(self.cloud, self.crashes), options, self.time.now)

    def use_fleet(self, fleet: str) -> None:
        """Later passes have this PENSTOCK_FLEET."""
        self.reconciler = Reconciler(
            self.hosts(fleet), self.store, fleet=fleet, new_id=self.new_id, ceilings=self.ceilings
        )

    def pass_once(self) -> PassReport:
        """One pass at the present instant."""
        report = finish(self.reconciler.run())
        self.join()
        return report

    def new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids)

    def desire(self, group: HostGroup, count: int) -> None:
        others = [row for row in self.store.wanted if row.group != group]
        before = [row for row in self.store.wanted if row.group == group]
        row = msgspec.structs.replace(before[0], count=count) if before else DesiredHosts(group, count)
        self.store.wanted = [*others, row]

    def ours(self) -> list[Droplet]:
        """Droplets that are or were the fleet's."""
        return [one for one in self.cloud.droplets.values() if TAG in one.tags]

    def add_foreign(self) -> None:
        """Somebody else's droplet, GPU or not, perhaps with a tag of another installation."""
        size = self.rng.choice(["gpu-h100x1-80gb", "s-1vcpu-1gb"])
        tags = self.rng.choice([[], ["web"], ["penstock-test2"]])
        name = self.rng.choice(["web", "test-ffffffffffff", "test-1", "db"])
        self.foreign.append(self.cloud.create(name, size, "nyc2", tags))

    def add_stray(self) -> None:
        """A droplet of the fleet without an intent."""
        name = f"test-stray{len(self.strays)}"
        self.strays.add(name)
        self.cloud.create(name, self.rng.choice(GROUPS).kind, "nyc2", [TAG, name])

    def reclaim(self, *, told: bool) -> None:
        """The provider takes a host back in two hours; an operator enters the notice, or missed the mail."""
        there = [
            one
            for one in self.store.intents.values()
            if one.state is IntentState.EXISTS and one.provider_id and one.reclaim_at is None
        ]
        alive = {one.droplet_id for one in self.cloud.alive() if one.gone_at is None}
        there = [one for one in there if int(one.provider_id or 0) in alive]
        if not there:
            return
        intent = self.rng.choice(there)
        self.cloud.reclaim(int(intent.provider_id or 0), self.time.at + RECLAIM_S)
        self.counts["reclaims"] += 1
        if told:
            at = self.time.now() + timedelta(seconds=RECLAIM_S)
            self.store.intents[intent.intent_id] = msgspec.structs.replace(intent, reclaim_at=at)

    def blink(self) -> None:
        """Hosts that run are 404 and in no list for a while, each once."""
        for intent in self.store.intents.values():
            droplet = self.cloud.droplets.get(int(intent.provider_id or 0))
            seen = intent.state is IntentState.EXISTS and intent.missing_since is None
            if seen and droplet is not None and droplet.gone_at is None and droplet.name not in self.blinked:
                self.blinked.add(droplet.name)
                self.cloud.hide(droplet.droplet_id, self.cloud.faults.hidden_s)

    def join(self) -> None:
        """Agents of running hosts send their first heartbeat a while after the start."""
        for intent in list(self.store.intents.values()):
            if intent.joined_at is None and intent.running_at is not None:
                joined = intent.running_at + timedelta(seconds=self.rng.randrange(60, 400))
                self.store.intents[intent.intent_id] = msgspec.structs.replace(
                    intent, joined_at=joined, fit_at=joined
                )

    def silence(self) -> None:
        """The agent of a host ends for good."""
        heard = [one for one in self.store.intents.values() if one.joined_at and one.silent_since is None]
        if heard:
            intent = self.rng.choice(heard)
            since = self.time.now()
            self.store.intents[intent.intent_id] = msgspec.structs.replace(intent, silent_since=since)

    def run(self, passes: int = 1, every_s: int = EVERY_S) -> None:
        """Passes, some of which die, with the checks after each."""
        for _ in range(passes):
            self.time.at += every_s
            self.counts["passes"] += 1
            try:
                report = finish(self.reconciler.run())
            except Crash:
                self.counts["crashes"] += 1
                self.unaware_until = self.cloud.barred_until
                report = None
                self._show_soon()
            self.crashes.before_other = None
            if report is not None:
                self._count(report)
            self.join()
            self.check(None if self.overlapped else report)
            self.overlapped = False

    def _show_soon(self) -> None:
        """A droplet whose create has no known result is shown within SETTLE, as after an error."""
        known = {one.provider_id for one in self.store.intents.values()}
        for droplet in self.cloud.alive():
            if str(droplet.droplet_id) not in known:
                droplet.shown_at = min(
                    droplet.shown_at, self.time.at + self.cloud.faults.hidden_after_error_s
                )

    def overlap(self) -> None:
        """Another process runs a whole pass while one is under way: its lock was lost."""
        left, self.crashes.left = self.crashes.left, None
        self._count(finish(self.reconciler.run()))
        self.crashes.left = left
        self.counts["overlaps"] += 1
        self.overlapped = True
        self.unaware_until = max(self.unaware_until, self.cloud.barred_until)

    def calm(self) -> None:
        """No more faults, and the time in which everything settles."""
        for group in GROUPS:
            self.store.roll_image(group, None)
        self.cloud.faults.clear()
        self.crashes.left, self.crashes.after_create, self.crashes.before_other = None, False, None
        self.cloud.create_s, self.cloud.destroy_s, self.cloud.tag_gpus_s = 40, 0, 0
        self.run(90, 30)
        self.run((CALM_S - 90 * 30) // 300, 300)
        if "actions" in self.cloud.denied:  # a host that went during the calm ends an hour later
            self.run(20, 300)

    def night(self) -> None:
        """A host is taken back while nothing runs, and the records cannot be read at first."""
        self.reclaim(told=False)
        self.cloud.faults.add(Fault.ACTIONS_ERROR)
        self.time.at += RECLAIM_S + self.rng.randrange(7200)
        self.run(2)

    def brief(self) -> None:
        """A host is wanted for less than a minute."""
        group, count = self.desire_more()
        self.run(3)
        self.desire(group, count)
        self.run(2)

    def desire_more(self) -> tuple[HostGroup, int]:
        """One more host of a group is wanted; returns the group and how many were before."""
        group = self.rng.choice(GROUPS)
        count = sum(row.count for row in self.store.wanted if row.group == group)
        self.desire(group, min(count, 4) + 1)
        return group, count

    def _count(self, report: PassReport) -> None:
        self.counts["waited"] += report.waited
        self.counts["complete"] += report.complete
        for act in report.acts:
            self.counts[type(act).__name__] += 1
            self.counts["images"] += isinstance(act, Retire) and act.why.startswith("its image is not")

    def check(self, report: PassReport | None) -> None:
        """What holds at any time."""
        if self.time.at < self.unaware_until:  # a process did not know what a 429 had asked of another
            self.cloud.too_early = 0
        assert self.cloud.too_early == 0, "a call came inside the wait of a 429"
        alive = {one.droplet_id for one in self.cloud.alive()}
        for droplet in self.foreign:
            assert droplet.droplet_id in alive, f"{droplet.name} of somebody else was destroyed"
        names = Counter(one.name for one in self.ours())
        assert not names or max(names.values()) == 1, f"created twice: {names.most_common(1)}"
        if self.bounded:
            self._check_no_life_after_the_end()
        if report is not None and report.complete:
            self._check_counts()

    def _check_no_life_after_the_end(self) -> None:
        """An intent is ended, or free for another create, only when its host is gone or never was."""
        here = {one.name for one in self.cloud.alive() if TAG in one.tags}
        for intent in self.store.intents.values():
            if intent.state in (IntentState.ENDED, IntentState.WRITTEN):
                assert intent.name not in here, f"{intent.name} is {intent.state} and alive"

    def _check_counts(self) -> None:
        held: Counter[HostGroup] = Counter()
        for intent in self.store.intents.values():
            if intent.wanted and intent.state is not IntentState.ENDED and intent.reclaim_at is None:
                held[intent.group] += 1
        desired = {row.group: row for row in self.store.wanted}
        for group in GROUPS:
            row = desired.get(group, DesiredHosts(group, 0))
            more = (0, 1) if row.surge else (-1, 0)
            if row.rollout is not None:
                more = (-int(not row.rollout.surge), int(row.rollout.surge))
            moves = row.count and (row.image or row.rollout is not None)
            allowed = {row.count, *(row.count + extra for extra in more if moves)}
            assert held[group] in allowed, (held[group], row)

    def check_settled(self) -> None:
        """What holds after a calm: hosts as desired, no orphan, and a cost that is the bill."""
        alive = {str(one.droplet_id): one for one in self.cloud.alive() if TAG in one.tags}
        wanted = {one.provider_id: one for one in self.store.intents.values() if one.wanted}
        assert set(alive) == set(wanted)
        assert all(one.state is IntentState.EXISTS and one.running_at for one in wanted.values())
        assert not [one.name for one in wanted.values() if one.silent_since], "a silent host is replaced"
        desired = {row.group: row.count for row in self.store.wanted if row.count}
        assert Counter(one.group for one in wanted.values()) == Counter(desired)
        images = {row.group: row.image for row in self.store.wanted}
        for one in wanted.values():
            assert images[one.group] in ("", one.image), "a host of another image is replaced"
            assert one.image == alive[one.provider_id].image
        if "actions" not in self.cloud.denied:
            self._check_bill()

    def _check_bill(self) -> None:
        now = self.time.now()
        by_id: dict[str, Intent] = {}
        for intent in self.store.intents.values():
            if intent.billed:
                assert intent.provider_id not in by_id
                by_id[str(intent.provider_id)] = intent
            else:
                assert host_cost_pico(intent, None, now) == 0
        assert set(by_id) == {str(one.droplet_id) for one in self.ours()}
        for droplet in self.ours():
            intent = by_id[str(droplet.droplet_id)]
            if not self.bounded and droplet.name in self.blinked and not intent.end_recorded:
                continue  # not shown for longer than GONE_AFTER, and taken back before a pass saw it again
            billed = self.cloud.ledger.meters[droplet.droplet_id].cents(self.time.at)
            ours = host_cost_pico(intent, None, now)
            assert ours == billed * PICO_PER_CENT, (intent, droplet)
            middle = intent.created_at + timedelta(seconds=777) if intent.created_at else now
            parts = host_cost_pico(intent, None, middle) + host_cost_pico(intent, middle, now)
            assert parts == ours or middle > now

    def act(self, step: str) -> None:
        """One step of a schedule."""
        rng, cloud = self.rng, self.cloud
        match step:
            case "pass":
                self.run(rng.randrange(1, 6))
            case "minutes":
                self.run(rng.randrange(6, 40), 20)
            case "asleep":
                self.time.at += rng.randrange(30, 3000)
            case "desire":
                self.desire(rng.choice(GROUPS), rng.randrange(4))
            case "rollout":
                most, surge = rng.choice([0, 1, 1024]), rng.random() < 0.5
                rolled = ImageRollout(rng.choice(["one", "two"]), most, surge, rng.random() < 0.5)
                self.store.roll_image(rng.choice(GROUPS), rng.choice([rolled, None]))
            case "image":
                self.store.set_image(
                    rng.choice(GROUPS), rng.choice(["", "one", "two"]), surge=rng.random() < 0.5
                )
            case "slow":
                cloud.create_s, cloud.destroy_s = rng.choice(
                    [(0, 0), (40, 0), (400, 0), (2400, 0), (40, 300)]
                )
                cloud.tag_gpus_s = rng.choice([0, 5, 900])
            case "price":
                cloud.prices[rng.choice(GROUPS).kind] = Fraction(rng.randrange(100, 90_000), 10_000)
            case "told":
                self.reclaim(told=True)
            case "missed":
                self.reclaim(told=False)
            case "crash":
                self.crashes.left = rng.randrange(12)
            case "overlap":
                self.desire_more()
                self.run()
                self.crashes.before_other = rng.randrange(25)
                self.run()
            case "died":
                cloud.faults.add(Fault.CREATE_ERROR_AFTER)
                self.crashes.after_create = True
            case "night":
                self.night()
            case "brief":
                self.brief()
            case "blink":
                self.blink()
            case "silence":
                self.silence()
            case "foreign" if len(self.foreign) < 5:
                self.add_foreign()
            case "stray" if len(self.strays) < 5:
                self.add_stray()
            case _ if step in set(Fault):
                cloud.faults.add(Fault(step))


STEPS = (
    *["pass"] * 12, *["minutes"] * 4, "asleep", *["desire"] * 6, "slow", "price", "told", "missed", "blink", "silence",
    "died", "died", "brief", "brief", "night", "overlap", "overlap", "overlap", "overlap",
    *["crash"] * 4, "foreign", "stray", "stray", "overlap", "image", "image", "rollout", "rollout",
    *(fault.value for fault in Fault), *(fault.value for fault in Fault),
)  # fmt: skip
"""Steps by weight."""
