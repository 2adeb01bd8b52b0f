"""The admin API under /admin/v1, assembled from its modules."""

from fastapi import APIRouter, Depends

from api.admin import (
    adapters,
    alerts,
    approvals,
    audit,
    billing,
    contracts,
    economics,
    exports,
    host_contracts,
    hosts,
    invoices,
    keys,
    ledger,
    maintenance,
    models,
    payments,
    pools,
    provider_hosts,
    rollouts,
    sign_in,
    statements,
    tenants,
    users,
)
from api.admin.deps import AdminDeps

_MODULES = (
    tenants,
    keys,
    users,
    sign_in,
    maintenance,
    models,
    rollouts,
    adapters,
    pools,
    host_contracts,
    hosts,
    provider_hosts,
    billing,
    exports,
    contracts,
    approvals,
    ledger,
    invoices,
    economics,
    audit,
    alerts,
    statements,
    payments,
)


def admin_routers(deps: AdminDeps) -> list[APIRouter]:
    """Return the router of the admin API, which requires a platform token for every route."""
    guarded = APIRouter(dependencies=[Depends(deps.actor)])
    for part in _MODULES:
        guarded.include_router(part.router(deps))
    return [guarded]
