"""The mechanisms of our scheduler, each of which a setting switches off alone.

Each has a row in the ablation: the policy `penstock-NAME` is ours without it. A mechanism whose row ties with ours is
deleted, together with its setting. To add one, give its settings without it here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler.core.rules import SchedulerConfig

_NEVER = 10**9


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A mechanism with the settings that switch it off."""

    about: str
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Fields of PolicyConfig without it."""
    queue: Mapping[str, Any] = field(default_factory=dict)
    """Fields of QueueRules without it."""
    admission: Mapping[str, Any] = field(default_factory=dict)
    """Fields of AdmissionRules without it."""

    def without(self, config: SchedulerConfig) -> SchedulerConfig:
        """Return the configuration without the mechanism."""
        return replace(
            config,
            policy=replace(config.policy, **self.policy),
            queue=replace(config.queue, **self.queue),
            admission=replace(config.admission, **self.admission),
        )


MECHANISMS: Mapping[str, Mechanism] = {
    "timely": Mechanism("timely requests before late ones while the queue grows", queue={"oldest_every": 1}),
    "reorder": Mechanism("longest cached prefix first inside a tenant", queue={"reorder_window": 1}),
    "kv_share": Mechanism("cap on a tenant's share of the KV cache", queue={"kv_share": 1.0}),
    "hold": Mechanism("an end to the passing of a request that fits nowhere", queue={"max_passed": _NEVER}),
    "learnt_slack": Mechanism("learnt share of the target per token", policy={"slack_step": 0.0}),
    "warm_slack": Mechanism("larger batches for prompts that are held", policy={"warm_slack": 1.0}),
    "residual": Mechanism("predicted waits corrected by past ones", admission={"residual_step": 0.0}),
    "near_tie": Mechanism("random choice among costs within 3 %", policy={"near_tie": 0.0}),
    "delay": Mechanism("delay of the running requests in the cost", policy={"eta": 0.0}),
    "sticky": Mechanism(
        "replicas that hold the prompt first", policy={"sticky_extra_s": 0.0, "sticky_min_s": 0.0}
    ),
}
"""Mechanisms by the name of their row."""
