"""Where a request may run: regions and classes of GPU, as its key and its headers name them."""

from core.errors import PermissionDenied
from gateway.ports import Headers
from gateway.schemas.common import PreparedRequest
from scheduler.wire import Placement
from tenants.names import clean_places
from tenants.principal import Principal

REGION, GPU = b"x-penstock-region", b"x-penstock-gpu"
"""Headers in which a request names regions and classes of GPU, and an answer says where it ran."""


def named_places(value: bytes | None, header: bytes) -> tuple[str, ...]:
    """The names in a header, separated by commas; None = there is no such header. Raises InvalidRequest, also for an
    empty one: a client whose variable is not set must not run anywhere."""
    names = None if value is None else value.decode("latin-1").split(",")
    return tuple(clean_places(names, header.decode()) or ())


def restrict_places(principal: Principal, prepared: PreparedRequest) -> None:
    """Narrow the regions and GPUs of a request to those of its key. Raises PermissionDenied for others."""
    prepared.regions = _narrowed(prepared.regions, principal.regions, "regions", REGION)
    prepared.gpus = _narrowed(prepared.gpus, principal.gpus, "classes of GPU", GPU)


def _narrowed(asked: tuple[str, ...], own: tuple[str, ...], what: str, header: bytes) -> tuple[str, ...]:
    """What the request asks for, else what its key is restricted to."""
    if not own or not asked:
        return asked or own
    if outside := [name for name in asked if name not in own]:
        raise PermissionDenied(
            f"This key's {what} are {', '.join(own)}, and {header.decode()} asks for {outside[0]}; name one of "
            "them, or leave the header out.",
            param=header.decode(),
            code="place_not_allowed",
        )
    return asked


def place_headers(placement: Placement) -> Headers:
    """The headers of an answer that say where it runs."""
    headers = [(REGION, placement.region.encode())] if placement.region else []
    return headers + ([(GPU, placement.gpu.encode())] if placement.gpu else [])
