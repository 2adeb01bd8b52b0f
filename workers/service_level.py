"""What customers are promised of a model, by tier: the figures of the catalog, and those that an admin has stored."""

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from workers.wire import Targets, TierTargets

Tier = Literal["priority", "standard", "batch"]
TIERS: tuple[Tier, ...] = get_args(Tier)
LEAST_TTFT_S = 0.001
LEAST_TPOT_S = 0.0001
MOST_S = 3600.0
"""Range of targets in seconds; also a constraint of the table `model_targets`."""


class TargetFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the catalog promises one tier, in seconds; the fields as in workers.wire.TierTargets."""

    ttft_s: float
    tpot_s: float


def service_level(figures: Mapping[Tier, TargetFigures]) -> Targets:
    """The targets of a model from the catalog's figures.

    Without figures a tier is promised what the standard tier is, and that one what workers.wire.Targets says.
    """
    own = {tier: TierTargets(each.ttft_s, each.tpot_s) for tier, each in figures.items()}
    return with_stored(Targets(), own)


def with_stored(targets: Targets, stored: Mapping[Tier, TierTargets]) -> Targets:
    """`targets` with those of some tiers replaced by stored ones."""
    if not stored:
        return targets
    standard = stored.get("standard", targets)
    priority, batch = stored.get("priority", targets.priority), stored.get("batch", targets.batch)
    return Targets(standard.ttft_s, standard.tpot_s, priority, batch)


def target_problem(ttft_s: float, tpot_s: float) -> str | None:
    """What is wrong with targets in seconds, naming the figure; None = nothing."""
    for name, seconds, least in (("ttft_s", ttft_s, LEAST_TTFT_S), ("tpot_s", tpot_s, LEAST_TPOT_S)):
        if not least <= seconds <= MOST_S:
            return f"{name} is {seconds:g}, must be between {least:g} and {MOST_S:g} seconds"
    return None


MOST_WAKE_S = 600.0
"""Longest wait for a replica that wakes; also a constraint of the table `models`, and the scheduler's own bound."""


def wake_deadline_problem(seconds: float | None) -> str | None:
    """What is wrong with a model's longest wait for a replica that wakes; None = nothing."""
    if seconds is None or 0.0 <= seconds <= MOST_WAKE_S:
        return None
    return f"wake_deadline_s is {seconds:g}, must be between 0 and {MOST_WAKE_S:g} seconds"
