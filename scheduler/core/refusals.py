"""What a refused caller is told: status, reason, position, prediction, when to come back."""

from collections.abc import Mapping, Sequence

from scheduler.core.policy import Reason, step_time_s
from scheduler.core.queue import ModelQueue, Ticket
from scheduler.core.replica import Replica
from scheduler.messages import PlaceRefused
from scheduler.wire import PlaceRequest
from workers.wire import ReplicaState

MAX_WAITING_SHARE = 0.5
"""The part of a model's queue that one tenant may fill while others wait."""
RETRY_AFTER_S = (1.0, 60.0)
"""Least and most we ask a refused caller to wait."""


def crowded(
    request: PlaceRequest, queue: ModelQueue, replicas: Sequence[Replica], max_waiting: int
) -> PlaceRefused | None:
    """The refusal of a request that may not even queue: 503 when the queue is full, 429 when its tenant fills it."""
    if len(queue) >= max_waiting:
        text = f"{len(queue)} requests already wait for model {request.model}; try again later"
        return _refusal(request, 503, "queue_full", text, len(queue) + 1, replicas)
    mine = queue.waiting_of(request.tenant_id)
    if mine >= max_waiting * MAX_WAITING_SHARE and len(queue) > mine:
        text = f"{mine} of your requests already wait for model {request.model} and others wait too"
        return _refusal(request, 429, "tenant_share", text, mine + 1, replicas)
    return None


def overdue(ticket: Ticket, position: int, over_share: bool, replicas: Sequence[Replica]) -> PlaceRefused:
    """The refusal of a request that waited until its deadline; 429 when its tenant holds more than its share."""
    request = ticket.request
    waited_s = ticket.deadline_at - ticket.enqueued_at
    text = f"no replica of model {request.model} came free within {waited_s:.1f} s"
    if over_share:
        text += ", while your organisation runs more than its share and others wait"
        return _refusal(request, 429, "tenant_share", text, position, replicas)
    return _refusal(request, 503, "queue_deadline", text, position, replicas)


def over_share(running: Mapping[str, int], tenant_id: str) -> bool:
    """Whether a tenant runs more than an even share of a model.

    `running` counts placements by tenant, with 0 for those that only wait.
    """
    tenants = len(running) + (tenant_id not in running)
    return running.get(tenant_id, 0) * tenants > sum(running.values())


def hopeless(request: PlaceRequest, reason: Reason, replicas: Sequence[Replica]) -> PlaceRefused:
    """The refusal of a request for which waiting cannot help."""
    model = request.model
    texts = {
        Reason.NOT_WARM: f"model {model} has no warm replica and none is starting",
        Reason.EXCLUDED: f"model {model} has no replica left that this request has not failed on",
        Reason.UNKNOWN_MODEL: f"no host serves model {model} now",
    }
    text = texts.get(reason, f"model {model} has no capacity now")
    return _refusal(request, 503, reason.value, text, 0, replicas)


def predicted_wait_s(request: PlaceRequest, warm: Sequence[Replica], position: int) -> float:
    """Seconds until `position` in the queue is served, were all requests like this one.

    Little's law over the replicas' full batches. With no warm replica nothing can be predicted: the request's
    own deadline.
    """
    per_s = 0.0
    for replica in warm:
        prefill_s = request.prompt_tokens / max(1.0, replica.status.capacity.prefill_tokens_per_s)
        kv_tokens = replica.slots * (request.prompt_tokens + request.output_tokens)
        decode_s = request.output_tokens * step_time_s(replica, replica.slots, kv_tokens)
        per_s += replica.slots / max(1e-3, prefill_s + decode_s)
    return position / per_s if per_s > 0 else request.deadline_s


def _refusal(
    request: PlaceRequest, status: int, reason: str, text: str, position: int, replicas: Sequence[Replica]
) -> PlaceRefused:
    warm = [replica for replica in replicas if replica.status.state is ReplicaState.READY]
    wait_s = predicted_wait_s(request, warm, max(1, position))
    retry_s = min(max(wait_s, RETRY_AFTER_S[0]), RETRY_AFTER_S[1])
    return PlaceRefused(
        request.request_id, status, reason, text, round(retry_s, 1), position, len(warm), round(wait_s, 3)
    )
