"""The hosts of a group whose image is rolled out, read from PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler.core.image_rollout import ImageHost, ImageHosts
from workers.providers.intents import Intent, IntentState
from workers.providers.store import read_desired, read_recent
from workers.rollouts import ImageChange, Rollout

_LAST_REFUSAL = text(
    "SELECT detail FROM host_events WHERE intent_id = :intent_id AND outcome <> 'ok' ORDER BY event_id DESC LIMIT 1"
)


async def read_image_hosts(connection: AsyncConnection, rollouts: Sequence[Rollout]) -> dict[str, ImageHosts]:
    """By model: the hosts of the rollouts that change an image."""
    changes = [(each, each.image, each.group) for each in rollouts]
    if not any(image for _, image, _ in changes):
        return {}
    counts = {row.group: row.count for row in await read_desired(connection)}
    intents = await read_recent(connection)
    found = {}
    for rollout, image, group in changes:
        if image is not None and group is not None:
            of_group = [one for one in intents if one.group == group]
            found[rollout.model] = await _hosts(connection, rollout, image, of_group, counts.get(group, 0))
    return found


async def _hosts(
    connection: AsyncConnection, rollout: Rollout, image: ImageChange, intents: Sequence[Intent], count: int
) -> ImageHosts:
    made = [one for one in intents if one.image == image.after]
    failed = failures_in_a_row(made, rollout.started_at)
    why = ""
    if failed:
        last = max(failed, key=lambda one: (one.failed_at or rollout.started_at, one.name))
        refusal = None
        if not last.why:
            refusal = await connection.scalar(_LAST_REFUSAL, {"intent_id": last.intent_id})
        why = f"{last.name}: {last.why or refusal or 'it could not be created'}"
    hosts = [
        ImageHost(one.name, one.image == image.after, one.wanted)
        for one in intents
        if one.state in (IntentState.CALLED, IntentState.EXISTS)
    ]
    return ImageHosts(count, tuple(hosts), sum(one.failures for one in failed), why)


def failures_in_a_row(made: Sequence[Intent], since: datetime) -> list[Intent]:
    """Those of an image's hosts that failed since it is rolled out, and since one of them was last found fit."""
    since = max([since, *(one.first_fit_at for one in made if one.first_fit_at is not None)])
    return [one for one in made if one.failed_at is not None and one.failed_at >= since]
