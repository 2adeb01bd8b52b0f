"""Runs the simulated engine: `python -m sim.engine --model penstock/tiny --port 9000`."""

import argparse
import os
import ssl
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.clock import SystemClock
from core.errors import InvalidRequest, PenstockError
from sim.engine.adapters import Adapters
from sim.engine.failpoints import parse_failpoints
from sim.engine.kv_events import KvPublisher
from sim.engine.loop import EngineLoop
from sim.engine.model import EngineModel
from sim.engine.request_log import RequestLog
from sim.engine.server import VERSION, SimServer
from sim.engine.step_model.engine import StepConfig
from workers.added_models import decode_model
from workers.catalog import CatalogModel, load_catalog
from workers.engine_guard import EngineGuard

FAILPOINTS_VARIABLE = "PENSTOCK_SIM_FAILPOINTS"
VERSIONS_VARIABLE = "PENSTOCK_SIM_VERSION_FAILPOINTS"
"""The failpoints of other engine versions, as `0.33.0:step_delay_s=1;0.34.0:error_next=9`."""
KEY_VARIABLE = "VLLM_API_KEY"
"""The environment variable from which vLLM, and so the simulated engine, takes its API key."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which also exposes its transport so that a failpoint can cut the connection."""

    def on_message_begin(self) -> None:
        """Called by the parser for every request."""
        super().on_message_begin()
        self.scope["penstock.transport"] = self.transport  # type: ignore[typeddict-unknown-key]  # an extension


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Return the parsed command line; `argv` None = sys.argv."""
    parser = argparse.ArgumentParser(prog="python -m sim.engine", description="A simulated engine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--model", default="penstock/tiny", help="a model of the catalog")
    parser.add_argument("--profile", default="", help="an engine profile of the model; default: its first")
    parser.add_argument("--catalog", type=Path, default=None, help="another catalog file")
    parser.add_argument("--entry", type=Path, default=None, help="the entry of an added model, in JSON")
    parser.add_argument(
        "--max-adapters", type=int, default=0, help="LoRA adapters of one batch; 0: it takes none"
    )
    parser.add_argument("--speedup", type=float, default=1.0, help="how much faster than the profile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.05, help="coefficient of variation of the step time")
    parser.add_argument(
        "--api-key", default=os.environ.get(KEY_VARIABLE, ""), help=f"default: ${KEY_VARIABLE}"
    )
    parser.add_argument(
        "--failpoints",
        default=os.environ.get(FAILPOINTS_VARIABLE, ""),
        help=f"e.g. die_after_tokens=20,no_usage=true; default: ${FAILPOINTS_VARIABLE}",
    )
    parser.add_argument(
        "--engine-version",
        default=VERSION,
        help=f"its version; failpoints of others than the default: ${VERSIONS_VARIABLE}",
    )
    parser.add_argument(
        "--kv-events-endpoint", default="", help="ZMQ address to publish KV events on, as vLLM does"
    )
    parser.add_argument("--kv-replay-endpoint", default="", help="ZMQ address to replay KV events on")
    parser.add_argument(
        "--shutdown-timeout", type=int, default=30, help="seconds that running requests get at SIGTERM"
    )
    parser.add_argument("--ssl-keyfile", default=None)
    parser.add_argument("--ssl-certfile", default=None)
    parser.add_argument(
        "--enable-ssl-refresh", action="store_true", help="use a certificate that was replaced"
    )
    return parser.parse_args(argv)


def _model(arguments: argparse.Namespace) -> CatalogModel:
    """Return the model of the entry, else that of the catalog. Raises InvalidRequest."""
    if arguments.entry is None:
        return load_catalog(arguments.catalog).model(arguments.model)
    try:
        return decode_model(arguments.entry.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"the entry {arguments.entry} cannot be read: {error}") from None


def build(arguments: argparse.Namespace) -> SimServer:
    """Return the application that the command line describes. Raises PenstockError for invalid arguments."""
    model = _model(arguments)
    profile = model.profile(arguments.profile)
    config = StepConfig(
        capacity=profile.capacity,
        block_size=profile.block_size,
        noise_cv=arguments.noise,
        kv_events=bool(arguments.kv_events_endpoint),
    )
    ranks = profile.dp_ranks if arguments.kv_events_endpoint else 0
    publishers = [
        KvPublisher(arguments.kv_events_endpoint, arguments.kv_replay_endpoint, topic=model.name, rank=rank)
        for rank in range(ranks)
    ]
    loop = EngineLoop(
        EngineModel(config, arguments.seed),
        speedup=arguments.speedup,
        failpoints=parse_failpoints(_failpoints(arguments)),
        publishers=publishers,
    )
    log = RequestLog.from_environment()
    return SimServer(
        loop,
        model=model.name,
        api_key=arguments.api_key,
        clock=SystemClock(),
        log=log,
        version=arguments.engine_version,
        adapters=Adapters(arguments.max_adapters),
    )


def _failpoints(arguments: argparse.Namespace) -> str:
    """Return the failpoints of the engine's version, else those of every version."""
    for part in os.environ.get(VERSIONS_VARIABLE, "").split(";"):
        version, _, points = part.partition(":")
        if version and version == arguments.engine_version:
            return points
    return str(arguments.failpoints)


def _refresh(config: uvicorn.Config) -> None:
    """Have each handshake use the certificate that is in the file then, as vLLM does with --enable-ssl-refresh."""
    config.load()

    def renew(connection: ssl.SSLObject, _: object, __: object) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(config.ssl_certfile), config.ssl_keyfile)
        connection.context = context

    if config.ssl is not None:
        config.ssl.sni_callback = renew


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then complete running requests; return the exit status."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    try:
        app = build(arguments)
    except PenstockError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        EngineGuard(app, open_paths=("/failpoints",)),
        host=arguments.host,
        port=arguments.port,
        loop="uvloop",
        http=_Protocol,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=arguments.shutdown_timeout,
        ssl_keyfile=arguments.ssl_keyfile,
        ssl_certfile=arguments.ssl_certfile,
    )
    if arguments.enable_ssl_refresh:
        _refresh(config)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has drained
        uvicorn.Server(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
