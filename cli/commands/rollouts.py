"""`penstock models rollout start|status|promote|abort`: new versions of a model's engines, or an image of its hosts."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from admin import rollouts
from admin.rollouts import RolloutView
from cli.commands import rollout_options as options
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from workers.model_definition import parse_changes

app = typer.Typer(
    help="Replace the engines of a model's replicas with another version, or its hosts with another image.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="A model's name.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit log.")]


@app.command("start")
def start(
    context: typer.Context,
    name: Name,
    reason: Reason,
    engine_version: options.EngineVersion = None,
    revision: options.Revision = None,
    profile: options.Profile = None,
    arg: options.Args = None,
    from_base: options.FromBase = False,
    image: options.Image = None,
    region: options.Region = None,
    host_kind: options.HostKind = None,
    same_answer: options.SameAnswer = None,
    min_agreement: options.MinAgreement = None,
    max_logprob_distance: options.MaxLogprobDistance = None,
    max_surge: options.MaxSurge = None,
    max_unavailable: options.MaxUnavailable = None,
    canary_percent: options.CanaryPercent = None,
    canary_tenants: options.CanaryTenants = None,
    canary_by: options.CanaryBy = None,
    promote_after: options.PromoteAfter = None,
    canary_deadline: options.CanaryDeadline = None,
    min_ready: options.MinReady = None,
    bake: options.Bake = None,
    progress_deadline: options.ProgressDeadline = None,
    drain: options.Drain = None,
    min_requests: options.MinRequests = None,
    max_error_increase: options.MaxErrorIncrease = None,
    max_ttft_ratio: options.MaxTtftRatio = None,
    max_tpot_ratio: options.MaxTpotRatio = None,
    max_length_ratio: options.MaxLengthRatio = None,
    max_acceptance_drop: options.MaxAcceptanceDrop = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Begin to replace the engines of a model's replicas. What is not given stays as in the version promoted last.

    With --image the hosts are replaced by those of another image, and the version of engines stays.

    Example: penstock models rollout start llama-3.3-70b --engine-version 0.33.0 --canary-percent 10 --reason "faster"
    """

    async def act() -> RolloutView:
        strategy = options.strategy_of(context.params)
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
                strategy=strategy,
                image=image,
                region=region,
                host_kind=host_kind,
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
