"""An HTTP endpoint that takes webhooks, for tests: what came, and what it answers."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import stripe


class Receiver:
    """Keeps every webhook in the order of arrival; answers `status`."""

    def __init__(self, secret: str) -> None:
        self.events: list[Any] = []
        self.raw: list[tuple[bytes, str]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                signature = self.headers["stripe-signature"]
                receiver.raw.append((body, signature))
                receiver.events.append(stripe.Webhook.construct_event(body, signature, secret))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/webhooks/stripe"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def types(self) -> list[str]:
        """Types of what came."""
        return [event.type for event in self.events]

    @property
    def ids(self) -> list[str]:
        """Ids of what came."""
        return [event.id for event in self.events]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
