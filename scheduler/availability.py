"""Whether a model can serve within a deadline, from the scheduler's last snapshot. No request waits for this."""

import math
from collections.abc import Callable

import msgspec

from core.errors import Refused
from scheduler.wire import ModelView, PoolSnapshot, TierView

RETRY_S = 120.0
"""Seconds after which a client may ask again for a model that nothing is known to bring back: longer than SDKs wait by
themselves, so that none is held."""
OFFLINE = "model_offline"
"""Code of the refusal."""


class ModelState(msgspec.Struct, frozen=True):
    """What the last snapshot says of a model."""

    known: bool
    """Whether it says anything: before the first snapshot of a scheduler nothing is known."""
    serves: bool
    """Whether a replica serves it, is expected to within the deadline, or is woken by a request, which the scheduler
    refuses when that takes too long; True when nothing is known."""
    offline_since_ms: int | None = None
    """When it could serve last, or when the scheduler began to look; None while it serves."""
    expected_ms: int | None = None
    """When it is expected to serve again; None = not known, or it serves."""
    retry_after_s: float = RETRY_S
    tiers: tuple[TierView, ...] = ()


UNKNOWN = ModelState(known=False, serves=True)


class Availability:
    """The states of models, from snapshots. One per API process."""

    def __init__(self, snapshot: Callable[[], PoolSnapshot], deadline_s: Callable[[str], float]) -> None:
        """`snapshot` returns the last one; `deadline_s` how long a request for a model may wait for a replica."""
        self._snapshot = snapshot
        self._deadline_s = deadline_s
        self._seen: PoolSnapshot | None = None
        self._models: dict[str, ModelView] = {}

    def of(self, model: str) -> ModelState:
        """The state of a model by its canonical name."""
        snapshot = self._snapshot()
        if snapshot is not self._seen:
            self._seen, self._models = snapshot, {view.model: view for view in snapshot.models}
        view = self._models.get(model)
        if view is None:
            if not snapshot.complete:
                return UNKNOWN
            return ModelState(known=True, serves=False, offline_since_ms=snapshot.started_unix_ms)
        tiers = tuple(view.tiers)
        wait_s = view.ready_in_s
        if view.wakes or (wait_s is not None and wait_s <= self._deadline_s(model)):
            return ModelState(known=True, serves=True, tiers=tiers)
        if not snapshot.complete:
            return UNKNOWN
        expected = None if wait_s is None else snapshot.at_unix_ms + math.ceil(wait_s * 1000)
        return ModelState(
            known=True,
            serves=False,
            offline_since_ms=view.last_ready_unix_ms or snapshot.started_unix_ms,
            expected_ms=expected,
            retry_after_s=RETRY_S if wait_s is None else wait_s,
            tiers=tiers,
        )

    def check(self, model: str) -> None:
        """Raise Refused with the code `model_offline` when no replica will serve the model within the deadline."""
        state = self.of(model)
        if state.serves:
            return
        when = "It is starting" if state.expected_ms is not None else "Nothing is starting it now"
        raise Refused(
            f"The model '{model}' is offline: no replica serves it. {when}; ask again in "
            f"{math.ceil(state.retry_after_s)} s, or use another model: GET /v1/models shows which are active. "
            "Nothing was charged.",
            code=OFFLINE,
            param="model",
            retry_after_s=state.retry_after_s,
            details={
                "reason": OFFLINE,
                "offline_since": seconds(state.offline_since_ms),
                "expected_at": seconds(state.expected_ms),
                "position": 0,
                "warm_replicas": 0,
                "predicted_wait_s": state.retry_after_s,
                "retry_after_s": state.retry_after_s,
            },
        )


def seconds(unix_ms: int | None) -> int | None:
    """Whole seconds since 1970, as in `created`."""
    return None if unix_ms is None else unix_ms // 1000
