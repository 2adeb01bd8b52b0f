"""The options of `penstock models rollout start`, and the strategy that follows from them."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli.durations import parse_duration

EngineVersion = Annotated[
    str | None, typer.Option("--engine-version", help="Such as 0.33.0; hosts need its environment.")
]
Revision = Annotated[str | None, typer.Option("--revision", help="Of the weights on the hub.")]
Profile = Annotated[str | None, typer.Option("--profile", help="With the same GPUs and ranks.")]
Args = Annotated[
    list[str] | None, typer.Option("--arg", help="Argument of the engine, NAME=VALUE; none takes it away.")
]
FromBase = Annotated[
    bool, typer.Option("--from-base", help="The rest as hosts and catalog say, not as promoted last.")
]
Image = Annotated[
    str | None, typer.Option("--image", help="Of the model's hosts, in place of all of these: id or slug.")
]
Region = Annotated[
    str | None, typer.Option("--region", help="Of the hosts with --image, where there are several groups.")
]
HostKind = Annotated[str | None, typer.Option("--host-kind", help="Likewise.")]
SameAnswer = Annotated[
    bool | None,
    typer.Option(
        "--same-answer/--any-answer",
        help="Whether engines must give the stored greedy answer; default: unless profile or revision change.",
    ),
]
MinAgreement = Annotated[
    float | None,
    typer.Option(help="Least share of its tokens that they must give (0.25; any with --any-answer)."),
]
MaxLogprobDistance = Annotated[
    float | None,
    typer.Option(help="Of the log-probabilities of those, in nats (1.0; any with --any-answer)."),
]
MaxSurge = Annotated[
    int | None, typer.Option(help="Replicas beyond the usual number; with --image, 0 = no host beside.")
]
MaxUnavailable = Annotated[
    int | None, typer.Option(help="Replicas that may be missing; with --image, 0 = no host.")
]
CanaryPercent = Annotated[
    int | None,
    typer.Option(help="Percent of the organisations, or requests, that use the new version first."),
]
CanaryTenants = Annotated[
    list[str] | None,
    typer.Option("--canary-tenant", help="Id of an organisation that uses it first; may be repeated."),
]
CanaryBy = Annotated[
    str | None, typer.Option(help="What the percent is of: organisation (default) or request.")
]
PromoteAfter = Annotated[
    str | None, typer.Option(help="Promote a canary without regression by itself, such as 30m.")
]
CanaryDeadline = Annotated[str | None, typer.Option(help="Roll back a canary that was not promoted (1d).")]
MinReady = Annotated[str | None, typer.Option(help="How long a replica serves until it counts (10s).")]
Bake = Annotated[
    str | None,
    typer.Option(help="How long the last old replica waits until a new one has served so long (1m)."),
]
ProgressDeadline = Annotated[
    str | None, typer.Option(help="Roll back without progress (30m; 2h with --image).")
]
Drain = Annotated[str | None, typer.Option(help="What running requests get (10m).")]
MinRequests = Annotated[int | None, typer.Option(help="Of each version, before times are compared (50).")]
MaxErrorIncrease = Annotated[float | None, typer.Option(help="Of the share of failures (0.02).")]
MaxTtftRatio = Annotated[float | None, typer.Option(help="Of the median time to a first token (1.5).")]
MaxTpotRatio = Annotated[float | None, typer.Option(help="Of the median time per token (1.3).")]
MaxLengthRatio = Annotated[
    float | None, typer.Option(help="Of the mean length of answers, in both directions (2.0).")
]
MaxAcceptanceDrop = Annotated[float | None, typer.Option(help="Of the share of accepted draft tokens (0.1).")]

_TIMES = ("promote_after", "canary_deadline", "min_ready", "bake", "progress_deadline", "drain")
_FIGURES = (
    "max_surge",
    "max_unavailable",
    "canary_percent",
    "canary_tenants",
    "canary_by",
    "min_requests",
    "max_error_increase",
    "max_ttft_ratio",
    "max_tpot_ratio",
    "max_length_ratio",
    "max_acceptance_drop",
    "min_agreement",
    "max_logprob_distance",
)


def strategy_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the strategy that were given, of all options by name. Raises InvalidRequest for what is no time."""
    figures = {name: given[name] for name in _FIGURES if given[name] is not None and given[name] != ()}
    times = {name: given[name] for name in _TIMES if given[name] is not None}
    return figures | {f"{name}_s": parse_duration(time, name).total_seconds() for name, time in times.items()}
