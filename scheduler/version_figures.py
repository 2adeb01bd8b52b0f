"""What requests see of the two versions of a model while both serve: errors, times, lengths of answers."""

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler.core.placement import ActivePlacement
from scheduler.core.rollout import Verdict
from scheduler.listeners import Listener
from scheduler.wire import Placement, Released
from workers.rollouts import Strategy, VersionFigures
from workers.wire import AnswerQuality, EngineCounters, Heartbeat

WINDOW_S = 1_800.0
"""Seconds of requests that are compared."""
SAMPLES = 4_096
"""Requests of a version that are kept."""
MIN_TOKENS = 8
"""Output tokens of the shortest answer whose speed counts."""
MIN_FAILURES = 3
"""Failed requests of the new version from which their share counts, however few requests there were."""
MIN_DRAFTS = 1_000
"""Draft tokens of a version from which the accepted share of them is a figure."""
TTFT_SLACK_S = 0.05
TPOT_SLACK_S = 0.002
"""Seconds by which a time may be longer whatever the ratio: below them differences are noise."""


@dataclass(slots=True)
class _Version:
    """Recent requests of one version, with the monotonic instant of each."""

    first_at: float | None = None
    last_at: float = 0.0
    ended: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Whether the replica failed it."""
    ttft: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    tpot: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    lengths: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    counters: dict[str, EngineCounters] = field(default_factory=dict)
    """Of each engine incarnation."""
    quality: dict[str, AnswerQuality] = field(default_factory=dict)
    """Of each incarnation whose answers were compared."""

    def figures(self, version: str, since: float, until: float, *, errors_since: float) -> VersionFigures:
        """The times and lengths of the requests between two instants, and how all ended since `errors_since`."""
        ended = [failed for at, failed in self.ended if at >= errors_since]
        lengths = _between(self.lengths, since, until)
        drafts = sum(each.drafts for each in self.counters.values())
        accepted = sum(each.accepted_tokens for each in self.counters.values())
        moved = [each.logprob_distance for each in self.quality.values() if each.logprob_distance is not None]
        return VersionFigures(
            version,
            requests=len(ended),
            compared=len(lengths),
            failed=sum(ended),
            error_rate=sum(ended) / len(ended) if ended else None,
            ttft_p50_s=_median(self.ttft, since, until),
            tpot_p50_s=_median(self.tpot, since, until),
            output_tokens=statistics.fmean(lengths) if lengths else None,
            acceptance=accepted / drafts if drafts >= MIN_DRAFTS else None,
            agreement=min((each.agreement for each in self.quality.values()), default=None),
            logprob_distance=max(moved, default=None),
        )


def _between(samples: deque[tuple[float, float]], since: float, until: float) -> list[float]:
    return [value for at, value in samples if since <= at <= until]


def _median(samples: deque[tuple[float, float]], since: float, until: float) -> float | None:
    return statistics.median(found) if (found := _between(samples, since, until)) else None


class VersionComparison(Listener):
    """The requests of the models that are being rolled out, by version. Others cost one look-up."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, _Version]] = {}
        self._version_of: dict[tuple[str, str], str] = {}
        """By model and incarnation of an engine."""
        self._before_after: dict[str, tuple[str, str]] = {}
        """By model."""
        self._of_hosts: Mapping[str, Mapping[str, str]] = {}

    def watch(
        self, models: Mapping[str, tuple[str, str]], of_hosts: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """Keep the requests of these models alone, for the versions before and after.

        `of_hosts`, by model and id of a host: the version of all engines there, where it is not theirs but that of the
        image of their host. Engines on other hosts count for none.
        """
        self._of_hosts = of_hosts or {}
        self._models = {
            model: {version: self._models.get(model, {}).get(version) or _Version() for version in versions}
            for model, versions in models.items()
        }
        if models != self._before_after:
            kept = {model for model, versions in self._before_after.items() if models.get(model) == versions}
            self._version_of = {key: each for key, each in self._version_of.items() if key[0] in kept}
            self._before_after = dict(models)

    def on_heartbeat(self, beat: Heartbeat, open_placements: Callable[[str], int], at: float) -> None:
        """Learn which engine is of which version."""
        for status in beat.replicas:
            if (versions := self._models.get(status.model)) is not None:
                hosts = self._of_hosts.get(status.model)
                says = status.version if hosts is None else hosts.get(beat.host_id)
                if says is None:
                    continue
                # Between the end of an engine and its successor, the new version comes with the old incarnation.
                known = self._version_of.setdefault((status.model, status.boot_id), says)
                if (version := versions.get(known)) is not None:
                    version.counters[status.boot_id] = status.counters
                    quality = status.quality
                    # A replica may have come from another version, of which the rollout says nothing.
                    if quality is not None and (quality.beside, known) == self._before_after[status.model]:
                        version.quality[status.boot_id] = quality

    def on_answers(self, model: str, boot_id: str, quality: AnswerQuality) -> None:
        """Keep how the greedy answers of an engine on a new image compare with those of one on the old."""
        if (version := self._of(model, boot_id)) is not None:
            version.quality[boot_id] = quality

    def on_place(self, client: str, placement: Placement, tier: str, at: float) -> None:
        """Note since when, and until when, a version serves."""
        if (version := self._of(placement.model, placement.boot_id)) is not None:
            version.first_at = at if version.first_at is None else version.first_at
            version.last_at = at

    def on_first_token(
        self, client: str, request_id: str, placement: ActivePlacement | None, at: float
    ) -> None:
        """Keep the time to the first token, without the wait for a replica."""
        if placement is not None and (version := self._of(placement.model, placement.boot_id)) is not None:
            version.ttft.append((at, at - placement.placed_at))

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """Keep how a request ended."""
        if placement is None or (version := self._of(placement.model, placement.boot_id)) is None:
            return
        version.ended.append((at, released.failed))
        if released.failed:
            return
        version.lengths.append((at, float(released.output_tokens)))
        if placement.first_token_at and released.output_tokens >= MIN_TOKENS:
            version.tpot.append((at, (at - placement.first_token_at) / (released.output_tokens - 1)))

    def compare(
        self, model: str, before: str, after: str, now: float
    ) -> tuple[VersionFigures, VersionFigures]:
        """The figures of both versions of a watched model.

        Times depend on the load, so those of the time count in which both took requests. Errors count to the end, as
        the new version may begin to fail once it is alone; those of the old one are of its last half hour then.
        """
        versions = self._models.get(model, {})
        old, new = versions.get(before) or _Version(), versions.get(after) or _Version()
        recent = now - WINDOW_S
        if old.first_at is None or new.first_at is None:
            return (
                old.figures(before, recent, now, errors_since=recent),
                new.figures(after, recent, now, errors_since=recent),
            )
        since = max(old.first_at, new.first_at, recent)
        until = max(since, min(old.last_at, new.last_at)) + WINDOW_S / 10
        last = min(recent, old.last_at - WINDOW_S)
        return (
            old.figures(before, since, until, errors_since=last),
            new.figures(after, since, until, errors_since=recent),
        )

    def _of(self, model: str, boot_id: str) -> _Version | None:
        versions, known = self._models.get(model), self._version_of.get((model, boot_id), "")
        return versions.get(known) if versions is not None else None


def verdict(strategy: Strategy, old: VersionFigures, new: VersionFigures) -> Verdict:
    """Whether the new version is worse than the strategy allows. A few errors count, times from `min_requests` on."""
    enough = min(old.compared, new.compared) >= strategy.min_requests
    old_rate, new_rate = old.error_rate or 0.0, new.error_rate or 0.0
    if new.failed >= MIN_FAILURES and new_rate > old_rate + strategy.max_error_increase:
        return Verdict(
            f"{new.failed} of its {new.requests} requests failed ({new_rate:.1%}), before {old_rate:.1%}",
            enough,
        )
    if not enough:
        return Verdict(enough=False)
    for name, most, slack_s, now_s, before_s in (
        ("a first token", strategy.max_ttft_ratio, TTFT_SLACK_S, new.ttft_p50_s, old.ttft_p50_s),
        ("an output token", strategy.max_tpot_ratio, TPOT_SLACK_S, new.tpot_p50_s, old.tpot_p50_s),
    ):
        if now_s is None or before_s is None:
            continue
        if now_s > max(before_s * most, before_s + slack_s):
            return Verdict(
                f"its median time to {name} is {now_s * 1000:.1f} ms, before {before_s * 1000:.1f} ms",
                enough,
            )
    return Verdict(_other_answers(strategy, old, new), enough=True)


def _other_answers(strategy: Strategy, old: VersionFigures, new: VersionFigures) -> str:
    """How much longer, shorter or harder to draft the answers are, as a clause; empty = not beyond the strategy."""
    if old.output_tokens and new.output_tokens:
        ratio = new.output_tokens / old.output_tokens
        if max(ratio, 1 / ratio) > strategy.max_length_ratio:
            return (
                f"its answers have {new.output_tokens:.0f} tokens on average, before {old.output_tokens:.0f}"
            )
    if old.acceptance is None or new.acceptance is None:
        return ""
    if new.acceptance < old.acceptance - strategy.max_acceptance_drop:
        return f"it accepts {new.acceptance:.1%} of the draft tokens, before {old.acceptance:.1%}"
    return ""
