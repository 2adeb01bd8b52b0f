"""`penstock models rollout start|status|promote|abort`: new versions of a model's engines."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from admin import rollouts
from admin.rollouts import RolloutView
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from cli.durations import parse_duration
from workers.model_definition import parse_changes

app = typer.Typer(
    help="Replace the engines of a model's replicas with another version.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="A model's name.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit log.")]
_SECONDS = ("promote_after", "canary_deadline", "min_ready", "bake", "progress_deadline", "drain")


@app.command("start")
def start(
    name: Name,
    reason: Reason,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", help="Such as 0.33.0; hosts need its environment.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Of the weights on the hub.")] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="With the same GPUs and ranks.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", help="Argument of the engine, NAME=VALUE; none takes it away."),
    ] = None,
    from_base: Annotated[
        bool, typer.Option("--from-base", help="The rest as hosts and catalog say, not as promoted last.")
    ] = False,
    same_answer: Annotated[
        bool | None,
        typer.Option(
            "--same-answer/--any-answer",
            help="Whether engines must give the stored greedy answer; default: unless profile or revision change.",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(help="Least share of its tokens that they must give (0.25; any with --any-answer)."),
    ] = None,
    max_logprob_distance: Annotated[
        float | None,
        typer.Option(help="Of the log-probabilities of those, in nats (1.0; any with --any-answer)."),
    ] = None,
    max_surge: Annotated[int | None, typer.Option(help="Replicas beyond the usual number.")] = None,
    max_unavailable: Annotated[int | None, typer.Option(help="Replicas that may be missing.")] = None,
    canary_percent: Annotated[
        int | None,
        typer.Option(help="Percent of the organisations, or requests, that use the new version first."),
    ] = None,
    canary_tenant: Annotated[
        list[str] | None, typer.Option(help="Id of an organisation that uses it first; may be repeated.")
    ] = None,
    canary_by: Annotated[
        str | None, typer.Option(help="What the percent is of: organisation (default) or request.")
    ] = None,
    promote_after: Annotated[
        str | None, typer.Option(help="Promote a canary without regression by itself, such as 30m.")
    ] = None,
    canary_deadline: Annotated[
        str | None, typer.Option(help="Roll back a canary that was not promoted (1d).")
    ] = None,
    min_ready: Annotated[
        str | None, typer.Option(help="How long a replica serves until it counts (10s).")
    ] = None,
    bake: Annotated[
        str | None,
        typer.Option(help="How long the last old replica waits until a new one has served so long (1m)."),
    ] = None,
    progress_deadline: Annotated[str | None, typer.Option(help="Roll back without progress (30m).")] = None,
    drain: Annotated[str | None, typer.Option(help="What running requests get (10m).")] = None,
    min_requests: Annotated[
        int | None, typer.Option(help="Of each version, before times are compared (50).")
    ] = None,
    max_error_increase: Annotated[float | None, typer.Option(help="Of the share of failures (0.02).")] = None,
    max_ttft_ratio: Annotated[
        float | None, typer.Option(help="Of the median time to a first token (1.5).")
    ] = None,
    max_tpot_ratio: Annotated[float | None, typer.Option(help="Of the median time per token (1.3).")] = None,
    max_length_ratio: Annotated[
        float | None, typer.Option(help="Of the mean length of answers, in both directions (2.0).")
    ] = None,
    max_acceptance_drop: Annotated[
        float | None, typer.Option(help="Of the share of accepted draft tokens (0.1).")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Begin to replace the engines of a model's replicas. What is not given stays as in the version promoted last.

    Example: penstock models rollout start llama-3.3-70b --engine-version 0.33.0 --canary-percent 10 --reason "faster"
    """
    strategy: dict[str, Any] = {
        "max_surge": max_surge,
        "max_unavailable": max_unavailable,
        "canary_percent": canary_percent,
        "canary_tenants": canary_tenant or None,
        "canary_by": canary_by,
        "min_requests": min_requests,
        "max_error_increase": max_error_increase,
        "max_ttft_ratio": max_ttft_ratio,
        "max_tpot_ratio": max_tpot_ratio,
        "max_length_ratio": max_length_ratio,
        "max_acceptance_drop": max_acceptance_drop,
        "min_agreement": min_agreement,
        "max_logprob_distance": max_logprob_distance,
    }
    times = dict(
        zip(
            _SECONDS, (promote_after, canary_deadline, min_ready, bake, progress_deadline, drain), strict=True
        )
    )

    async def act() -> RolloutView:
        strategy.update(
            {
                f"{key}_s": parse_duration(value, key).total_seconds()
                for key, value in times.items()
                if value is not None
            }
        )
        async with open_db(data_dir) as database:
            return await rollouts.start_rollout(
                database,
                await acting(database, data_dir),
                model=name,
                reason=reason,
                profile=profile,
                engine_version=engine_version,
                revision=revision,
                args=parse_changes(arg or ()),
                from_base=from_base,
                same_answer=same_answer,
                strategy={key: value for key, value in strategy.items() if value is not None},
            )

    _show(run(act, as_json=as_json), as_json)


@app.command("status")
def status(
    name: Annotated[str | None, typer.Argument(help="A model's name; without it, every rollout.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the last rollout of a model with what requests saw of both versions, or list all rollouts.

    Example: penstock models rollout status llama-3.3-70b --json
    """

    async def act() -> RolloutView | list[RolloutView]:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            if name is not None:
                return await rollouts.last_rollout(database, who, model=name)
            return await rollouts.list_rollouts(database, who)

    found = run(act, as_json=as_json)
    if isinstance(found, RolloutView):
        _show(found, as_json)
    elif as_json:
        emit(found, as_json)
    else:
        emit([_summary(each) for each in found], as_json, title="Rollouts")


@app.command("promote")
def promote(name: Name, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Let a canary go on: all other replicas get its version.

    Example: penstock models rollout promote llama-3.3-70b --reason "no regression in a day"
    """
    perform(partial(rollouts.promote_rollout, model=name, reason=reason), data_dir, as_json)


@app.command("abort")
def abort(name: Name, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Bring all replicas back to the version of before.

    Example: penstock models rollout abort llama-3.3-70b --reason "answers are too long"
    """
    perform(partial(rollouts.abort_rollout, model=name, reason=reason), data_dir, as_json)


def _show(view: RolloutView, as_json: bool) -> None:
    if as_json:
        emit(view, as_json)
        return
    emit(_summary(view), as_json, title=f"Rollout of {view.model}")
    figures = [
        {"which": which, **msgspec.to_builtins(each), "version": each.version or rollouts.BASE_NAME}
        for which, each in (("old", view.old), ("new", view.new))
        if each is not None
    ]
    if figures:
        emit(figures, as_json, title="What requests saw of both versions")


def _summary(view: RolloutView) -> dict[str, Any]:
    return {
        "model": view.model,
        "state": view.state,
        "version": f"{view.old_version} -> {view.new_version}",
        "updated": f"{view.updated} of {view.replicas}",
        "available": f"{view.available} of {'?' if view.wanted is None else view.wanted}",
        "started_at": view.started_at,
        "ended_at": view.ended_at,
        "reason": view.reason,
    }
