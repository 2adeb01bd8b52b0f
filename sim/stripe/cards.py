"""Stripe's test payment methods (https://docs.stripe.com/testing) and how each behaves when attached and charged."""

from typing import NamedTuple

from sim.stripe.errors import StripeError, card_error


class Card(NamedTuple):
    """One test card. `decline` and `attach_decline` hold error code and decline code; empty = the operation
    succeeds.
    """

    last4: str = "4242"
    brand: str = "visa"
    decline: tuple[str, str] = ("", "")
    attach_decline: tuple[str, str] = ("", "")
    dispute: str = ""
    """Reason of the dispute that follows each charge; empty = none."""
    inquiry: bool = False
    """Whether the dispute is an inquiry, for which no money is withdrawn."""
    refund: str = "succeeded"
    """Outcome of refunds: succeeded, fails_later or pending."""
    needs_authentication: bool = False
    """Whether off-session payments are refused with authentication_required."""


def _declined(last4: str, code: str, decline_code: str) -> Card:
    return Card(last4, decline=(code, decline_code), attach_decline=(code, decline_code))


CARDS = {
    "pm_card_visa": Card(),
    "pm_card_visa_debit": Card("5556"),
    "pm_card_mastercard": Card("4444", "mastercard"),
    "pm_card_amex": Card("8431", "amex"),
    "pm_card_us": Card(),
    "pm_card_bypassPending": Card("0077"),
    "pm_card_chargeDeclined": _declined("0002", "card_declined", "generic_decline"),
    "pm_card_visa_chargeDeclined": _declined("0002", "card_declined", "generic_decline"),
    "pm_card_chargeDeclinedInsufficientFunds": _declined("9995", "card_declined", "insufficient_funds"),
    "pm_card_visa_chargeDeclinedInsufficientFunds": _declined("9995", "card_declined", "insufficient_funds"),
    "pm_card_chargeDeclinedLostCard": _declined("9987", "card_declined", "lost_card"),
    "pm_card_chargeDeclinedStolenCard": _declined("9979", "card_declined", "stolen_card"),
    "pm_card_chargeDeclinedExpiredCard": _declined("0069", "expired_card", ""),
    "pm_card_chargeDeclinedIncorrectCvc": _declined("0127", "incorrect_cvc", ""),
    "pm_card_chargeDeclinedProcessingError": _declined("0119", "processing_error", ""),
    "pm_card_chargeCustomerFail": Card("0341", decline=("card_declined", "generic_decline")),
    "pm_card_createDispute": Card("0259", dispute="fraudulent"),
    "pm_card_createDisputeProductNotReceived": Card("2685", dispute="product_not_received"),
    "pm_card_createDisputeInquiry": Card("1976", dispute="fraudulent", inquiry=True),
    "pm_card_refundFail": Card("5126", refund="fails_later"),
    "pm_card_pendingRefund": Card("7726", refund="pending"),
    "pm_card_authenticationRequired": Card("3184", needs_authentication=True),
    "pm_card_threeDSecure2Required": Card("3220", needs_authentication=True),
}

_MESSAGES = {
    "card_declined": "Your card was declined.",
    "insufficient_funds": "Your card has insufficient funds.",
    "expired_card": "Your card has expired.",
    "incorrect_cvc": "Your card's security code is incorrect.",
    "processing_error": "An error occurred while processing your card. Try again in a little bit.",
    "authentication_required": "Your card was declined. This transaction requires authentication.",
}


def message(code: str, decline_code: str) -> str:
    """Return Stripe's message to the card holder."""
    return _MESSAGES.get(decline_code) or _MESSAGES[code]


def declined(code: str, decline_code: str, **facts: object) -> StripeError:
    """Return the 402 error for a decline."""
    return card_error(message(code, decline_code), code, decline_code or None, **facts)
