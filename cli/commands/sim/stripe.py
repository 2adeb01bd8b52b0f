"""`penstock stripe-sim`: the simulated Stripe."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from core.errors import InvalidRequest

app = typer.Typer()


@app.command("stripe-sim")
def stripe_sim(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the API.")] = 8020,
    host: Annotated[str, typer.Option("--host", help="Address to bind; keep it on loopback.")] = "127.0.0.1",
    webhook_url: Annotated[
        str,
        typer.Option("--webhook-url", help="Where events go, e.g. http://127.0.0.1:8000/webhooks/stripe."),
    ] = "",
    webhook_secret: Annotated[
        str,
        typer.Option(
            "--webhook-secret", envvar="STRIPE_WEBHOOK_SECRET", help="Signs the webhooks (whsec_...)."
        ),
    ] = "",
    api_key: Annotated[
        str,
        typer.Option(
            "--api-key",
            envvar="PENSTOCK_STRIPE_SIM_KEY",
            help="The only key let in; default: any sk_test_...",
        ),
    ] = "",
    state: Annotated[
        Path | None, typer.Option("--state", help="Keep the account in this file, and find it again.")
    ] = None,
    public_url: Annotated[
        str, typer.Option("--public-url", help="Base address of its payment pages; default: host and port.")
    ] = "",
    after_dunning: Annotated[
        str,
        typer.Option(
            "--after-dunning", help="uncollectible | past_due: an invoice after its last failed attempt."
        ),
    ] = "uncollectible",
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same ids.")] = 1,
) -> None:
    """Answer Stripe's API on this machine, SIMULATED: with state, virtual time, failures on demand and signed webhooks.

    Example: penstock stripe-sim --port 8020 --webhook-url http://127.0.0.1:8000/webhooks/stripe
    --webhook-secret whsec_local --state .penstock/stripe.jsonl
    """
    from core.clock import SystemClock
    from sim.stripe.serve import WebhookClient, build, ensure_endpoint, run
    from sim.stripe.sim import Options

    if after_dunning not in ("uncollectible", "past_due"):
        raise InvalidRequest(f"--after-dunning is uncollectible or past_due, not {after_dunning}")
    if webhook_url and not webhook_secret:
        raise InvalidRequest("--webhook-url needs --webhook-secret: webhooks are signed")
    if webhook_url and not webhook_url.startswith(("http://", "https://")):
        raise InvalidRequest(f"--webhook-url {webhook_url} is no http(s) address")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    options = Options(
        base_url=public_url.rstrip("/") or f"http://{host}:{port}", api_key=api_key, after_dunning=after_dunning,
        seed=seed,
    )  # fmt: skip
    client = WebhookClient()
    try:
        served = build(SystemClock(), options, state, client)
    except OSError as error:
        raise InvalidRequest(f"--state {state} cannot be used: {error.strerror}") from None
    if webhook_url:
        ensure_endpoint(served, webhook_url, webhook_secret)
    typer.echo(f"Stripe, SIMULATED, at http://{host}:{port} (no money moves). Ctrl-C stops it.")
    run(served, client, host, port)
