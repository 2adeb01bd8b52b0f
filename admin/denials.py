"""Records administrative acts that were refused for lack of rights, of a scope, of a second person or of a sign-in.

REST, console and commands call `record_denial` where they turn an error into an answer.
"""

import logging
from uuid import UUID

from admin.actor import Actor
from core.db import Database
from core.errors import PenstockError, PermissionDenied
from tenants import denied_acts
from tenants.denied_acts import DeniedAct
from tenants.keys import DATABASE_ERRORS

log = logging.getLogger(__name__)


def is_denial(error: PenstockError) -> bool:
    """Whether an error says that the actor may not do this: 403, or a second person is needed."""
    return isinstance(error, PermissionDenied) or error.code == "second_person_needed"


async def record_denial(
    database: Database,
    actor: Actor | None,
    act: str,
    error: PenstockError,
    *,
    tenant_id: UUID | None = None,
    address: str = "",
) -> None:
    """Record that `act` was refused with `error`, if this is a denial that is not recorded yet, of a known actor.

    `tenant_id`: the organisation that the act is about; None = the actor's own. A database that does not answer is
    logged only: the refusal stands.
    """
    if actor is None or error.is_recorded or not is_denial(error):
        return
    error.is_recorded = True
    denied = DeniedAct(
        actor.kind, actor.id, actor.label, act, error.code, tenant_id or actor.tenant_id, address
    )
    try:
        async with database.system() as connection:
            await denied_acts.count(connection, denied)
    except DATABASE_ERRORS as failure:
        log.warning("a refused act could not be recorded: %s by %s: %s", act, actor.label, failure)
