"""The local Stripe for the tests of payments."""

from tests.support.stripe_sim import fake_stripe

__all__ = ["fake_stripe"]
