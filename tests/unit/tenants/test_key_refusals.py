"""The messages of refused keys."""

import pytest

from tenants.resolve import Refusal


@pytest.mark.parametrize("reason", ["unknown", "malformed", "revoked", "rotated", "expired", "archived"])
def test_a_wrong_key_is_called_wrong_in_the_words_that_clients_look_for(reason: str) -> None:
    # LiteLLM takes a 401 of OpenAI's shape without these words for a bad request.
    assert str(Refusal(reason).error()).startswith("Incorrect API key provided: ")
