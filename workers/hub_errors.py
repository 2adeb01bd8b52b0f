"""What the client of the model hub raises when the hub cannot be reached, breaks off, or refuses."""

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # its HTTP client, under every version's name

HUB_FAILURES: tuple[type[Exception], ...] = (
    HfHubHTTPError,
    httpx.HTTPError,
    OSError,
    RuntimeError,
    ValueError,
)
"""Errors of the network reach the caller as the HTTP client's own, and not every function of the client wraps them.
Its faster transport (hf_xet) raises RuntimeError for all its failures, and ValueError where it is needed and absent."""
