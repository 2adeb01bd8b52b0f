"""Hosts of providers as the autoscaler takes them: in creation, failing by kind, and leaving. Pure."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import msgspec

from scheduler.core.autoscale.state import CreatingHost, CreationFailures
from workers.acting.places import Places
from workers.providers.decide import Failures, failures_of
from workers.providers.intents import Intent, IntentState
from workers.providers.interface import HostGroup
from workers.wire import SIMULATED_HOST

LOAD_WITHIN = timedelta(minutes=30)
"""A host counts as in creation for so long after its agent joined, until a replica on it is observed."""
RECLAIM_DRAIN = timedelta(minutes=5)
"""So long before its provider takes a host back its replicas are drained: few answers take longer."""


class Departure(msgspec.Struct, frozen=True):
    """Why a host goes soon, and when."""

    why: str
    left_s: float
    """Seconds until it may be gone."""
    by_notice: bool = False
    """Whether its provider takes it back, by a notice that may be cancelled."""
    replaced: bool = False
    """Whether another host is to serve its model, so that its last serving replica waits for that."""


class ProviderHosts(msgspec.Struct, frozen=True):
    """The intents as PostgreSQL had them at `at`, by its clock."""

    at: datetime
    intents: tuple[Intent, ...] = ()
    """Those that have not ended, and those that ended lately."""
    persons: frozenset[HostGroup] = frozenset()
    """Groups that a person decides on."""

    @property
    def wanted(self) -> list[Intent]:
        """The hosts that are wanted."""
        return [one for one in self.intents if one.wanted and one.state is not IntentState.ENDED]

    def intent_of(self, host_id: str) -> Intent | None:
        """The intent of a host by the id in its heartbeats; None = no provider has created it."""
        names = (host_id, host_id.removeprefix(SIMULATED_HOST))
        return next((one for one in self.intents if one.name in names), None)

    def is_leaving(self, host_id: str) -> bool:
        """Whether a host is being destroyed, or taken back by its provider, so that nothing may be planned on it."""
        intent = self.intent_of(host_id)
        return intent is not None and (not intent.wanted or intent.reclaim_at is not None)

    def departure(self, host_id: str) -> Departure | None:
        """Why the replicas of a host are drained now: it is not wanted any more, or its provider takes it back within
        RECLAIM_DRAIN. None = they are not."""
        intent = self.intent_of(host_id)
        if intent is None or intent.state is IntentState.ENDED:
            return None
        if not intent.wanted:
            if intent.drain_until is None:
                return None
            others = any(
                one.model == intent.model or not set(intent.models).isdisjoint(one.models)
                for one in self.wanted
            )
            left_s = (intent.drain_until - self.at).total_seconds()
            return Departure(f"its host is destroyed: {intent.why}", left_s, replaced=others)
        at = intent.reclaim_at
        if at is None or at - self.at > RECLAIM_DRAIN:
            return None
        why = f"its provider takes its host back at {at.isoformat(timespec='seconds')}"
        return Departure(why, (at - self.at).total_seconds(), by_notice=True, replaced=True)

    @property
    def counted(self) -> list[str]:
        """Names of the hosts that the plan counts with, sorted: those that are wanted and stay."""
        return sorted(one.name for one in self.wanted if one.reclaim_at is None)

    def may_destroy(self, host_id: str) -> bool:
        """Whether the plan may destroy a host: a provider has created it, and no person decides on its group."""
        intent = self.intent_of(host_id)
        return intent is not None and intent.wanted and intent.group not in self.persons

    def creating(self, host_ids: Collection[str]) -> list[CreatingHost]:
        """The hosts on their way; `host_ids` are those of heartbeats. One that cannot be created now is left out."""
        found = []
        for one in self.wanted:
            joined = one.joined_at is not None and self.at - one.joined_at >= LOAD_WITHIN
            if joined or one.reclaim_at is not None or self._is_stuck(one):
                continue
            simulated = f"{SIMULATED_HOST}{one.name}"
            found.append(
                CreatingHost(
                    simulated if simulated in host_ids else one.name,
                    one.kind,
                    one.model,
                    max(0.0, (self.at - one.requested_at).total_seconds()),
                    region=one.region,
                )
            )
        return found

    def failures(self, places: Places) -> list[CreationFailures]:
        """The kinds that fail in a region, and those that fail wherever they may be created, by the place that may be
        tried first."""
        regions: dict[str, dict[tuple[str, str], list[Intent]]] = defaultdict(lambda: defaultdict(list))
        for one in self.intents:
            regions[one.kind][one.provider, one.region].append(one)
        found = []
        for kind, groups in sorted(regions.items()):
            keys = [(place.provider, place.region) for place in places.of(kind)] or sorted(groups)
            failing = {key: failures_of(groups.get(key, []), self.at) for key in keys}
            for region in dict.fromkeys(region for _, region in keys):
                there = {key: failed for key, failed in failing.items() if key[1] == region}
                found += self._failing(kind, there, region.lower())
            found += self._failing(kind, failing, "")
        return found

    def _failing(
        self, kind: str, places: Mapping[tuple[str, str], Failures | None], region: str
    ) -> list[CreationFailures]:
        known = [each for each in places.values() if each is not None]
        if len(known) < len(places):
            return []  # a place is left to try
        first = min(known, key=lambda each: each.wait(self.at))
        since_s = max(0.0, (self.at - first.last).total_seconds())
        where = ", ".join("/".join(key) for key in places)
        return [CreationFailures(kind, first.count, since_s, where, region)]

    def _is_stuck(self, intent: Intent) -> bool:
        """Whether an intent was not called and its kind is left alone in its region."""
        if intent.state is not IntentState.WRITTEN:
            return False
        place = (intent.provider, intent.region, intent.kind)
        alike = [one for one in self.intents if (one.provider, one.region, one.kind) == place]
        failures = failures_of(alike, self.at)
        return failures is not None and bool(failures.wait(self.at))
