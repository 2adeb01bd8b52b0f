"""The admin REST under /admin/v1, put together from its parts."""

from fastapi import APIRouter, Depends

from api import (
    admin_alerts,
    admin_audit,
    admin_billing,
    admin_contracts,
    admin_economics,
    admin_exports,
    admin_invoices,
    admin_keys,
    admin_ledger,
    admin_models,
    admin_payments,
    admin_pools,
    admin_statements,
    admin_tenants,
    admin_users,
)
from api.admin_deps import AdminDeps

_PARTS = (
    admin_tenants,
    admin_keys,
    admin_users,
    admin_models,
    admin_pools,
    admin_billing,
    admin_exports,
    admin_contracts,
    admin_ledger,
    admin_invoices,
    admin_economics,
    admin_audit,
    admin_alerts,
    admin_statements,
    admin_payments,
)


def admin_routers(deps: AdminDeps) -> list[APIRouter]:
    """Every admin router. The outer one demands a platform token, whatever a part forgets."""
    guarded = APIRouter(dependencies=[Depends(deps.actor)])
    for part in _PARTS:
        guarded.include_router(part.router(deps))
    return [guarded]
