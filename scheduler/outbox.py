"""What a client has to tell the scheduler, collected until the next flush of its connection."""

from scheduler.messages import ClientBatch, PlacementId, Progress
from scheduler.wire import PlaceRequest, Released

PART_BYTES = 1024 * 1024
"""Approximate size above which a batch leaves at once."""
MESSAGE_BYTES = 256
"""Approximate size of a message, without block hashes."""
HASH_BYTES = 9
"""Largest size of a block hash."""


class Outbox:
    """The batch of one connection."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._requests: dict[str, PlaceRequest] = {}
        self._prefilled: list[PlacementId] = []
        self._released: list[Released] = []
        self._cancelled: list[str] = []
        self._progress = Progress([], [], [])
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether the batch should leave before more is added."""
        return self._bytes >= PART_BYTES

    def place(self, request: PlaceRequest) -> None:
        """Add a request for a placement."""
        self._requests[request.request_id] = request
        self._bytes += MESSAGE_BYTES + HASH_BYTES * len(request.blocks)

    def cancel(self, request_id: str) -> None:
        """Add a cancellation; a request that has not left yet is dropped instead."""
        if self._requests.pop(request_id, None) is None:
            self._cancelled.append(request_id)
            self._bytes += MESSAGE_BYTES

    def prefill_done(self, request_id: str, replica_id: str) -> None:
        """Add a first token."""
        self._prefilled.append(PlacementId(request_id, replica_id))
        self._bytes += MESSAGE_BYTES

    def progress(self, request_id: str, replica_id: str, output_tokens: int) -> None:
        """Add the output tokens of a placement so far."""
        self._progress.request_ids.append(request_id)
        self._progress.replica_ids.append(replica_id)
        self._progress.output_tokens.append(output_tokens)
        self._bytes += MESSAGE_BYTES

    def release(self, released: Released) -> None:
        """Add the end of a placement."""
        self._released.append(released)
        self._bytes += MESSAGE_BYTES

    def take(self) -> list[ClientBatch]:
        """The batch, and an empty one from now on; nothing when there is nothing to send."""
        if not self._bytes:
            return []
        progress = self._progress if self._progress.request_ids else None
        batch = ClientBatch(
            self._prefilled, progress, self._released, self._cancelled, list(self._requests.values())
        )
        self._clear()
        return [batch]
