"""The admin REST under /admin/v1, put together from its parts."""

from fastapi import APIRouter, Depends

from api.admin import (
    alerts,
    audit,
    billing,
    contracts,
    economics,
    exports,
    invoices,
    keys,
    ledger,
    models,
    payments,
    pools,
    statements,
    tenants,
    users,
)
from api.admin.deps import AdminDeps

_MODULES = (
    tenants,
    keys,
    users,
    models,
    pools,
    billing,
    exports,
    contracts,
    ledger,
    invoices,
    economics,
    audit,
    alerts,
    statements,
    payments,
)


def admin_routers(deps: AdminDeps) -> list[APIRouter]:
    """Every admin router. The outer one demands a platform token, whatever a part forgets."""
    guarded = APIRouter(dependencies=[Depends(deps.actor)])
    for part in _MODULES:
        guarded.include_router(part.router(deps))
    return [guarded]
