"""Whether a page of another site sent a request: signing in from there would act for a person who did not ask."""

from urllib.parse import urlsplit

from starlette.requests import HTTPConnection


def is_cross_site(connection: HTTPConnection) -> bool:
    """Whether a page of another origin sent this.

    Browsers send Origin with WebSockets and all but plain GET requests, and Sec-Fetch-Site with all requests to
    trustworthy addresses (Fetch Metadata, W3C); programs send neither. A link from another site stays allowed.
    """
    origin = connection.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc != connection.headers.get("host", "")
    reads = connection.scope.get("method", "GET") in ("GET", "HEAD")
    return not reads and connection.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
