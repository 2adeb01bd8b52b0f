"""The tier of one request, which its price and its band in the queue follow."""

from collections.abc import Callable, Collection

from core.errors import InvalidRequest

TIERS = ("priority", "standard", "batch")
"""Dearest first."""
AUTO = "auto"
"""The organisation's own tier, as without the field."""
SCALE = "scale"
"""OpenAI's name for capacity that is bought in advance."""
STANDARD_ONLY = "standard_only"
"""Anthropic's name for no more than standard."""
BY_NAME = {
    "default": "standard",
    "standard": "standard",
    STANDARD_ONLY: "standard",
    "flex": "batch",
    "batch": "batch",
    "priority": "priority",
}
"""What `service_tier` may name: OpenAI's names and ours."""
ECHOED = {"priority": "priority", "standard": "default", "batch": "flex"}
"""By tier: OpenAI's name for it, as answers carry it."""


def tier_of(asked: str, own: str, offered: Callable[[], Collection[str]], highest: str = "") -> str:
    """The tier of a request that asks for the tier `asked` ("" = it does not) of an organisation with the tier `own`.

    An organisation may ask for its own tier, for those below, and for those up to `highest` ("" = its own). `offered`
    returns the tiers in which the model has a price for it; it is called only for another tier than its own. Raises
    InvalidRequest.
    """
    if asked in ("", AUTO) or (asked == STANDARD_ONLY and own != "priority"):
        return own
    if asked == SCALE:
        raise InvalidRequest(
            "'scale' is capacity that is bought from OpenAI in advance, which is not sold here; leave service_tier "
            "out, or ask for 'priority'.",
            param="service_tier",
            code="invalid_service_tier",
        )
    tier = BY_NAME.get(asked)
    if tier is None:
        raise InvalidRequest(
            f"There is no service tier {asked[:40]!r}; use one of: {', '.join((AUTO, *BY_NAME))}.",
            param="service_tier",
            code="invalid_service_tier",
        )
    if tier == own:
        return tier
    if own in TIERS and TIERS.index(tier) < min(TIERS.index(own), TIERS.index(highest or own)):
        raise InvalidRequest(
            f"This organisation's tier is {own}, so a request may not ask for {asked!r}; leave service_tier out, or "
            "ask the platform's admin to allow it.",
            param="service_tier",
            code="service_tier_not_allowed",
        )
    if tier not in offered():
        raise InvalidRequest(
            f"The model has no price in the tier {tier}; GET /v1/models shows in which it has.",
            param="service_tier",
            code="service_tier_not_offered",
        )
    return tier
