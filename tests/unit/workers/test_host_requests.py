"""A create whose request cannot be made fails alone, and leaves no intent that counts as called."""

from core.errors import InvalidRequest
from tests.support.host_play import FLEET, GROUPS, Play
from workers.providers.intents import IntentState
from workers.providers.interface import CallResult, HostRequest
from workers.providers.reconciler import Reconciler


def test_a_token_that_cannot_be_made_is_a_refusal_before_the_call() -> None:
    play = Play()

    async def none(name: str) -> str:
        raise InvalidRequest("PENSTOCK_SCHEDULER_CA: the file holds no certificate")

    play.reconciler = Reconciler(
        play.hosts(), play.store, fleet=FLEET, new_id=play.new_id, ceilings=play.ceilings, token_for=none
    )
    play.desire(GROUPS[0], 2)
    play.run(2)
    assert {one.state for one in play.store.intents.values()} == {IntentState.WRITTEN}
    assert not [call for call in play.cloud.calls if call.operation == "create"]
    assert any("holds no certificate" in result.detail for _, result in play.store.events)


def test_a_request_that_is_impossible_stops_no_other() -> None:
    play = Play()
    hosts = play.hosts()
    create = hosts.create

    async def picky(request: HostRequest) -> CallResult:
        if request.model == GROUPS[0].model:
            raise InvalidRequest("model of a host is bad")
        return await create(request)

    hosts.create = picky  # type: ignore[method-assign]
    play.reconciler = Reconciler(hosts, play.store, fleet=FLEET, new_id=play.new_id, ceilings=play.ceilings)
    for group in GROUPS[:2]:
        play.desire(group, 1)
    play.run(6)
    states = {one.model: one.state for one in play.store.intents.values()}
    assert states[GROUPS[0].model] is IntentState.WRITTEN
    assert len(play.cloud.alive()) == 1
