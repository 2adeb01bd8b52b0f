"""`penstock up --engine external`: what the engines serve, and the rows and prices that offer it to customers."""

from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from admin.actor import Actor
from admin.models import ModelView, add_model, describe_model, list_models
from admin.prices import ensure_list_prices, list_prices, set_price
from billing.pricing.prices import PriceView, Rates
from core.clock import Clock
from core.db import Database
from core.errors import InvalidRequest
from core.money import per_mtok_to_pico_per_token
from tenants.names import is_model_name
from workers.catalog import Catalog
from workers.engine_api import EngineApi
from workers.engine_models import ASSUMED_CONTEXT_LEN, ServedModel, wait_for_models
from workers.models import ModelSpec
from workers.plan import TINY

START_WAIT_S = 30.0
"""Seconds that an engine has to answer GET /v1/models."""


class ExternalOptions(msgspec.Struct, frozen=True):
    """Options of `penstock up` on external engines. Prices are decimal dollars per million tokens."""

    urls: tuple[str, ...] = ()
    key: str = ""
    """API key of the engines; empty = they need none."""
    max_num_seqs: int = 256
    fleet: int = 0
    """Engines behind each URL, where it is a router that does not list them itself."""
    context_len: int = 0
    """Context length of models whose engine does not state it; 0 = ASSUMED_CONTEXT_LEN."""
    embeddings: tuple[str, ...] = ()
    """Models that give embeddings, and nothing else; engines do not say which do."""
    price_input: str | None = None
    price_cached_input: str | None = None
    price_output: str | None = None

    @property
    def rates(self) -> Rates | None:
        """The given prices; None without any.

        Raises InvalidRequest when only some are given or one is no price. Cached input defaults to the price of input.
        """
        if self.price_input is None and self.price_output is None and self.price_cached_input is None:
            return None
        if self.price_input is None or self.price_output is None:
            raise InvalidRequest("--price-input and --price-output go together", param="price_input")
        cached = self.price_input if self.price_cached_input is None else self.price_cached_input
        rates = Rates(self.price_input, cached, self.price_output, self.price_output)
        rates.to_pico()
        return rates


async def discover(
    options: ExternalOptions, model: str, clock: Clock, note: Callable[[str], None]
) -> list[ServedModel]:
    """The models that the engines list, each once: all of them, or only `model`.

    Raises Unavailable when an engine does not answer within START_WAIT_S, InvalidRequest when it cannot be used or none
    lists `model`.
    """
    found: dict[str, ServedModel] = {}
    async with aiohttp.ClientSession() as session:
        for url in options.urls:
            api = EngineApi(session, url, options.key)
            for each in await wait_for_models(api, wait_s=START_WAIT_S, clock=clock, note=note):
                known = found.get(each.name)
                if known is None or 0 < each.context_len < (known.context_len or each.context_len + 1):
                    found[each.name] = each
    for name in options.embeddings:
        if name not in found:
            raise InvalidRequest(
                f"--embeddings names {name!r}, which no engine lists; listed: {', '.join(sorted(found))}",
                param="embeddings",
            )
    if not model:
        return list(found.values())
    if model not in found:
        raise InvalidRequest(
            f"no engine lists the model {model!r}; listed: {', '.join(sorted(found))}", param="model"
        )
    return [found[model]]


async def offer(
    database: Database,
    actor: Actor,
    catalog: Catalog,
    served: Sequence[ServedModel],
    options: ExternalOptions,
    *,
    demo: bool,
) -> list[str]:
    """Offer the engines' models at the given prices; returns notes for the operator.

    A price that is in force and equal stays; another one makes a new version. Without given prices, those in force
    stay, and with `demo` models without any get the price of the demonstration model. Raises InvalidRequest when a
    model would have no price.
    """
    notes: list[str] = []
    known = {model.name: model for model in await list_models(database, actor)}
    offered: list[str] = []
    for model in served:
        problem = await _offer_model(database, actor, catalog, model, known.get(model.name), options)
        if problem:
            notes.append(problem)
        else:
            offered.append(model.name)
    assumed = [model.name for model in served if not (model.context_len or options.context_len)]
    if assumed := [name for name in assumed if name in offered and name not in catalog.models]:
        notes.append(
            f"No context length is stated for {', '.join(assumed)}: {ASSUMED_CONTEXT_LEN:,} tokens are assumed "
            "(--context-len sets it)."
        )
    return notes + await _price(database, actor, catalog, offered, options.rates, demo=demo)


async def _offer_model(
    database: Database,
    actor: Actor,
    catalog: Catalog,
    model: ServedModel,
    known: ModelView | None,
    options: ExternalOptions,
) -> str:
    """Add or describe one model; returns why it is not offered, "" when it is.

    The catalog's description of a model stays, also when it is named as one that gives embeddings.
    """
    if not is_model_name(model.name):
        return f"The model {model.name[:80]!r} is not offered: its name has blanks or unusual characters."
    if known is not None and known.alias_of is not None:
        return f"The model {model.name!r} is not offered: the name is an alias of {known.alias_of!r} here."
    if known is not None and known.status == "retired":
        return f"The model {model.name!r} is not offered: it is retired here (`penstock models add` offers it again)."
    if model.name in catalog.models:
        if known is None:
            await add_model(database, actor, name=model.name)
        return ""
    context_len = model.context_len or options.context_len or ASSUMED_CONTEXT_LEN
    embeds = model.name in options.embeddings
    spec = ModelSpec.embedding(context_len) if embeds else ModelSpec(context_len, context_len)
    if known is None:
        await add_model(database, actor, name=model.name, spec=spec)
    else:
        await describe_model(database, actor, name=model.name, spec=spec)
    return ""


async def _price(
    database: Database,
    actor: Actor,
    catalog: Catalog,
    names: Sequence[str],
    rates: Rates | None,
    *,
    demo: bool,
) -> list[str]:
    """Set the list prices of the models; returns notes."""
    in_force = {
        price.model: price
        for price in await list_prices(database, actor)
        if price.tier == "standard" and price.tenant_id is None and price.status == "current"
    }
    if rates is not None:
        for name in names:
            if name not in in_force or not _same(in_force[name], rates):
                await set_price(
                    database,
                    actor,
                    model=name,
                    **msgspec.structs.asdict(rates),
                    reason="price of penstock up",
                    below_cost=True,  # the catalog says nothing of the hosts of engines that run elsewhere
                )
        return []
    missing = [name for name in names if name not in in_force]
    if missing and not demo:
        raise InvalidRequest(
            f"{', '.join(missing)} has no price: give --price-input and --price-output in dollars per million tokens",
            param="price_input",
        )
    price = catalog.model(TINY).list_price
    if price is None:
        raise InvalidRequest(
            f"the catalog has no list price of {TINY}, which is the demo's", param="price_input"
        )
    rates = Rates(price.input, price.cached_input, price.output, price.reasoning)
    made = await ensure_list_prices(
        database, actor, dict.fromkeys(missing, rates), reason="demo price of penstock up"
    )
    if not made:
        return []
    return [
        f"Demo price for {', '.join(one.model for one in made)}: {price.input} dollars per million input tokens "
        f"({price.cached_input} cached), {price.output} per million output tokens. "
        "Set your own: --price-input and --price-output."
    ]


def _same(price: PriceView, rates: Rates) -> bool:
    return all(
        per_mtok_to_pico_per_token(getattr(price, kind)) == amount for kind, amount in rates.to_pico().items()
    )
