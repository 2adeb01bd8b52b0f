"""How many hosts of a provider there may be, and what they may cost per hour; creates beyond that are refused."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from core.money import pico_to_usd
from workers.providers.intents import Act, Adopt, Create, Intent, IntentState, Note, noted
from workers.providers.interface import Prices


class Ceilings(msgspec.Struct, frozen=True):
    """The most of one provider. Hosts that are being destroyed count until they are gone."""

    hosts: int
    usd_pico_per_hour: int


def hold_to(
    ceilings: Ceilings, acts: Sequence[Act], intents: Sequence[Intent], prices: Prices, now: datetime
) -> tuple[list[Act], list[str]]:
    """The acts without the creates that would exceed a ceiling, and why each of those is refused.

    A kind without a known price is refused too, since no ceiling can be kept for it; so is any kind while the price of
    a host that may exist is not known.
    """
    after = {intent.intent_id: intent for intent in intents}
    hosts, spent, unknown = 0, 0, ""
    for act in acts:
        if isinstance(act, Note):
            after[act.intent_id] = noted(after[act.intent_id], act, now)
        elif isinstance(act, Adopt):
            hosts, spent = hosts + 1, spent + act.host.usd_pico_per_hour
    for intent in after.values():
        if intent.state in (IntentState.CALLED, IntentState.EXISTS):
            hosts += 1
            price = intent.usd_pico_per_hour
            if price is None:
                price = prices.usd_pico_per_hour.get(intent.kind)
            if price is None:
                unknown = intent.kind
            spent += price or 0
    kept: list[Act] = []
    reasons: list[str] = []
    for act in acts:
        if isinstance(act, Create):
            intent = after[act.intent_id]
            reason = _refusal(ceilings, hosts, spent, unknown or intent.kind, prices.usd_pico_per_hour)
            if reason:
                reasons.append(reason)
                continue
            hosts, spent = hosts + 1, spent + prices.usd_pico_per_hour[intent.kind]
        kept.append(act)
    return kept, reasons


def _refusal(ceilings: Ceilings, hosts: int, spent: int, kind: str, prices: Mapping[str, int]) -> str:
    if hosts >= ceilings.hosts:
        return f"there are {hosts} hosts, and PENSTOCK_HOSTS_MAX is {ceilings.hosts}"
    if kind not in prices:
        return f"the price of {kind} is not known, so PENSTOCK_HOSTS_MAX_USD_PER_HOUR cannot be kept"
    if spent + prices[kind] > ceilings.usd_pico_per_hour:
        return (
            f"hosts cost {pico_to_usd(spent)} USD per hour and one of {kind} costs {pico_to_usd(prices[kind])}: more "
            f"than PENSTOCK_HOSTS_MAX_USD_PER_HOUR, {pico_to_usd(ceilings.usd_pico_per_hour)}"
        )
    return ""
