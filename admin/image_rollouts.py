"""Rollouts of an image: of which hosts, and what keeps one from beginning. docs/rollouts.md describes them."""

import re

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import Conflict, InvalidRequest
from workers.providers import digitalocean, store
from workers.providers.images import is_outdated
from workers.providers.intents import Intent, IntentState
from workers.providers.interface import DesiredHosts, HostGroup
from workers.rollouts import ImageChange, Strategy
from workers.wire import SIMULATED_HOST

MAX_IMAGE = 100
_IMAGE = re.compile(rf"[A-Za-z0-9._-]{{0,{MAX_IMAGE}}}")
_OTHER_MODELS = text(
    "SELECT host_id, model FROM model_seconds WHERE host_id = ANY(:hosts) AND model <> :model "
    "AND hour > clock_timestamp() - interval '2 hours' ORDER BY host_id, model LIMIT 1"
)


def check_image(image: str) -> None:
    """Raise InvalidRequest for a text that can be no provider's id or slug of an image."""
    if not _IMAGE.fullmatch(image):
        raise InvalidRequest(
            f"image is {image[:MAX_IMAGE]!r}, must be an id or slug of at most {MAX_IMAGE} letters, digits, '.', '_' "
            "and '-'; empty = the provider's settings say",
            param="image",
        )


async def image_change(
    connection: AsyncConnection,
    model: str,
    image: str,
    region: str | None,
    kind: str | None,
    strategy: Strategy,
) -> ImageChange:
    """The change of the image of a group of a model's hosts; region and kind choose it where there are several.

    Raises InvalidRequest for what is no image, for a choice that leaves none or several groups, and for a canary that
    would take the only host; Conflict for hosts that have the image, that are being replaced, or on which other models
    run.
    """
    check_image(image)
    if not image:
        raise InvalidRequest(
            "image is empty; give the id or slug of the image that is to be rolled out", param="image"
        )
    row = await _group(connection, model, region, kind)
    group = row.group
    held = [
        one
        for one in await store.read_open(connection, group.provider)
        if one.group == group and one.wanted and one.state is not IntentState.WRITTEN
    ]
    if image == row.image or (held and all(one.image == image for one in held)):
        raise Conflict(f"the hosts of {model!r} are to have the image {image} already", param="image")
    if any(is_outdated(one, row) for one in held):
        raise Conflict(
            f"hosts are still being replaced by those of the image {row.image}; wait until `penstock hosts desired` "
            "shows none that are outdated",
            param="image",
        )
    if strategy.has_canary and not strategy.max_surge and row.count < 2:
        raise InvalidRequest(
            "a canary would take the only host, as max_surge is 0; with max_surge 1 it comes beside",
            param="max_surge",
        )
    await _check_alone(connection, model, held)
    return ImageChange(group.provider, group.region, group.kind, row.image, image)


async def require_no_rollout(connection: AsyncConnection, group: HostGroup) -> None:
    """Raise Conflict while an image of the group's hosts is rolled out."""
    for row in await store.read_desired(connection, group.provider):
        if row.group == group and row.rollout is not None:
            raise Conflict(
                f"the image {row.rollout.image} of these hosts is being rolled out; wait until that has ended, or "
                "abort it with `penstock models rollout abort`",
                param="image",
            )


async def _group(
    connection: AsyncConnection, model: str, region: str | None, kind: str | None
) -> DesiredHosts:
    """The one group of a model's hosts that is meant. Raises InvalidRequest."""
    found = [
        row
        for row in await store.read_desired(connection, digitalocean.NAME)
        if row.group.model == model
        and row.count
        and region in (None, row.group.region)
        and kind in (None, row.group.kind)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidRequest(
            f"no hosts of {digitalocean.NAME} are desired for {model!r}{' there' if region or kind else ''}; "
            "`penstock hosts desired` shows the groups, and other hosts are made from no image",
            param="image",
        )
    places = ", ".join(f"{row.group.region} {row.group.kind}" for row in found)
    raise InvalidRequest(
        f"{model!r} has hosts of several groups ({places}); choose one by region and kind", param="region"
    )


async def _check_alone(connection: AsyncConnection, model: str, hosts: list[Intent]) -> None:
    """Raise Conflict where another model has run on these hosts lately, which would move with them."""
    names = [prefix + one.name for one in hosts for prefix in ("", SIMULATED_HOST)]
    other = (await connection.execute(_OTHER_MODELS, {"hosts": names, "model": model})).one_or_none()
    if other is not None:
        raise Conflict(
            f"{other.model!r} runs on {other.host_id}, too, and a rollout compares and moves one model's hosts; use "
            "`penstock hosts set-image`",
            param="image",
        )
