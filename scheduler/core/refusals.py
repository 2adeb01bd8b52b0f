"""Refusals with status, reason, queue position, predicted wait and retry time.

429 = the tenant's share is used up while other tenants wait; 503 = no capacity for any tenant.
"""

from dataclasses import dataclass

from scheduler.core.policy import Reason
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest

RETRY_AFTER_S = (1.0, 60.0)
"""Smallest and largest Retry-After, in seconds. Clients add the jitter."""
UNKNOWN_WAIT_S = 600.0
"""Wait that is reported when none can be predicted: the longest deadline."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a request stood when it was refused."""

    position: int
    """1 = next in fair order; 0 = it never queued."""
    warm_replicas: int
    wait_s: float | None
    """Predicted further wait in seconds; None when there is nothing to predict from."""


def queue_full(request: PlaceRequest, standing: Standing, waiting: int) -> PlaceRefused:
    """The model's queue is full with `waiting` requests."""
    text = f"{waiting} requests already wait for model {request.model}; try again later"
    return _refusal(request, 503, "queue_full", text, standing)


def tenant_fills_queue(request: PlaceRequest, standing: Standing, mine: int) -> PlaceRefused:
    """The tenant has filled its part of the queue with `mine` requests while other tenants wait."""
    text = f"{mine} of your requests already wait for model {request.model} and others wait too"
    return _refusal(request, 429, "tenant_share", text, standing)


def too_late(
    request: PlaceRequest, standing: Standing, allowed_s: float, caused_by_tenant: bool
) -> PlaceRefused:
    """The predicted wait exceeds `allowed_s`; `caused_by_tenant`: only because of the tenant's own requests ahead."""
    wait_s = standing.wait_s or 0.0
    text = (
        f"the wait for model {request.model} would be {wait_s:.1f} s, more than the {allowed_s:.1f} s allowed"
    )
    if caused_by_tenant:
        text += ", because of your organisation's own requests ahead of it while others wait"
        return _refusal(request, 429, "tenant_share", text, standing, allowed_s)
    return _refusal(request, 503, "predicted_wait", text, standing, allowed_s)


def waking(request: PlaceRequest, standing: Standing, allowed_s: float, trouble: str) -> PlaceRefused:
    """No replica is awake, and the first serves later than `allowed_s`. `trouble`: why the last wake failed."""
    text = (
        f"no replica of model {request.model}{_there(request)} is awake; one needs about "
        f"{standing.wait_s or 0.0:.0f} s to serve, more than the {allowed_s:.0f} s allowed"
    )
    if trouble:
        text += f"; the last wake failed: {trouble}"
    return _refusal(request, 503, "waking", text, standing, longest_retry_s=UNKNOWN_WAIT_S)


def not_woken(request: PlaceRequest, waited_s: float, standing: Standing, trouble: str) -> PlaceRefused:
    """The request waited until its deadline and no replica woke. `trouble`: why the last wake failed; empty = it did
    not."""
    text = f"no replica of model {request.model}{_there(request)} woke within {waited_s:.1f} s"
    if trouble:
        text += f"; the last wake failed: {trouble}"
    return _refusal(request, 503, "waking", text, standing, longest_retry_s=UNKNOWN_WAIT_S)


def overdue(request: PlaceRequest, waited_s: float, standing: Standing, over_share: bool) -> PlaceRefused:
    """The request waited until its deadline; 429 when its tenant runs more than its share while others wait."""
    text = f"no replica of model {request.model} came free within {waited_s:.1f} s"
    if over_share:
        text += ", while your organisation runs more than its share and others wait"
        return _refusal(request, 429, "tenant_share", text, standing)
    return _refusal(request, 503, "queue_deadline", text, standing)


def too_large(request: PlaceRequest, standing: Standing, need: int, largest: int) -> PlaceRefused:
    """The request needs more tokens (`need`) than the largest KV cache of any replica holds."""
    text = (
        f"the request needs about {need} tokens of KV cache and the largest replica of model {request.model} "
        f"has {largest}"
    )
    return _refusal(request, 503, "larger_than_kv_cache", text, standing)


def hopeless(
    request: PlaceRequest,
    reason: Reason,
    standing: Standing,
    *,
    lacks_gpus: bool = False,
    creates: bool = False,
) -> PlaceRefused:
    """No replica will take the request, for `reason`. The wait of `standing` is that for a host that may be created.

    `lacks_gpus`: other models use the GPUs of the model's resting replicas. `creates`: a host may be created where the
    request has to run.
    """
    model, where = request.model, _there(request)
    texts = {
        Reason.NOT_WARM: f"model {model} has no warm replica{where} and none is starting",
        Reason.EXCLUDED: f"model {model} has no replica left that this request has not failed on",
        Reason.ELSEWHERE: f"no host {_where(request)} serves model {model} now; others do",
        Reason.UNKNOWN_MODEL: f"no host{where} serves model {model} now",
    }
    text = texts.get(reason, f"model {model} has no capacity now")
    if lacks_gpus and reason is Reason.NOT_WARM:
        text = f"model {model} has no warm replica, and other models use the GPUs of those that rest"
    if where and not creates and reason is not Reason.EXCLUDED:
        text += f", and none may be created{where}"
    if standing.wait_s is None:
        return _refusal(request, 503, reason.value, text, standing)
    text += f"; a host that is created for it serves about {standing.wait_s:.0f} s later"
    return _refusal(request, 503, reason.value, text, standing, longest_retry_s=UNKNOWN_WAIT_S)


def _where(request: PlaceRequest) -> str:
    """What a request is restricted to, in words."""
    parts = [f"in {' or '.join(request.regions)}"] if request.regions else []
    if request.adapter:
        parts.append("that takes adapters")
    return " ".join(parts + ([f"with {' or '.join(request.gpus)}"] if request.gpus else []))


def _there(request: PlaceRequest) -> str:
    """The regions and GPUs that a request is restricted to, after a space; empty when it may run anywhere."""
    region = f" in {' or '.join(request.regions)}" if request.regions else ""
    return region + (f" with {' or '.join(request.gpus)}" if request.gpus else "")


def _refusal(
    request: PlaceRequest,
    status: int,
    reason: str,
    text: str,
    standing: Standing,
    allowed_s: float = 0.0,
    longest_retry_s: float = RETRY_AFTER_S[1],
) -> PlaceRefused:
    """Build a refusal. Retry-After is the time in which the predicted wait falls to `allowed_s`."""
    wait_s = standing.wait_s if standing.wait_s is not None else min(request.deadline_s, UNKNOWN_WAIT_S)
    retry_s = min(max(wait_s - allowed_s, RETRY_AFTER_S[0]), longest_retry_s)
    return PlaceRefused(
        request.request_id,
        status,
        reason,
        text,
        round(retry_s, 1),
        standing.position,
        standing.warm_replicas,
        round(wait_s, 3),
        request.tier,
    )
