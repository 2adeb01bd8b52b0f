"""One model's queue as snapshots show it."""

from scheduler.core.fair_queue import FairQueue, largest_flows
from scheduler.core.rules import BANDS
from scheduler.wire import BandView, QueueView, TenantView

MAX_TENANT_VIEWS = 20
"""Tenants shown per queue."""


def queue_view(model: str, queue: FairQueue, now: float) -> QueueView | None:
    """Bands with queued requests and the tenants with most requests; None when nothing is queued or running."""
    if not len(queue) and not queue.running:
        return None
    bands, tenants = [], []
    for tier, band in zip(BANDS, queue.bands, strict=True):
        oldest_at = band.oldest_at()
        if oldest_at is not None:
            bands.append(BandView(tier, band.waiting, now - oldest_at))
        tenants += [
            TenantView(flow.name, tier, len(flow), flow.running, flow.counter)
            for flow in largest_flows(band.flows.values(), MAX_TENANT_VIEWS)
            if flow.waiting or flow.running
        ]
    tenants.sort(key=lambda tenant: (-tenant.waiting, -tenant.running, tenant.tenant_id))
    oldest_s = max((band.oldest_s for band in bands), default=0.0)
    return QueueView(model, len(queue), oldest_s, queue.running, bands, tenants[:MAX_TENANT_VIEWS])
