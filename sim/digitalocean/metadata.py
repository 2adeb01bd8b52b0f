"""The metadata service of one droplet: `python -m sim.digitalocean.metadata NAME ADDRESS`, at 169.254.169.254:80."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = "169.254.169.254"


def serve(name: str, address: str) -> None:
    """Answer as DigitalOcean's does for a droplet, until the process ends."""
    answers = {
        "/metadata/v1/hostname": name,
        "/metadata/v1/interfaces/private/0/ipv4/address": address,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "not found").encode())

    ThreadingHTTPServer((ADDRESS, 80), Handler).serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
