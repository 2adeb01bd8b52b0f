"""`penstock models`: which models are offered."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from admin import acting as admin_acting
from admin import added_models, models, scaling, targets
from admin.actor import Actor
from cli.added_model import engine_environment, given_model
from cli.commands import model_life, rollouts, wake_deadlines
from cli.context import AsJson, DataDir, perform
from cli.durations import parse_duration
from core.db import Database
from core.errors import InvalidRequest
from workers.models import ModelSpec
from workers.service_level import Tier

app = typer.Typer(help="Which models are offered to customers.", no_args_is_help=True)
app.add_typer(model_life.app)
app.add_typer(wake_deadlines.app)
app.add_typer(rollouts.app, name="rollout")

Name = Annotated[str, typer.Argument(help="A model's name.")]
TierOption = Annotated[Tier, typer.Option("--tier", help="The tier.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the audit log.")]
Note = Annotated[str | None, typer.Option("--note", help="What customers should use instead, or why.")]


@app.command("list")
def list_models(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Every model and alias, retired ones included.

    Example: penstock models list --json
    """
    perform(models.list_models, data_dir, as_json, title="Models")


@app.command("targets")
def list_targets(
    name: Annotated[str | None, typer.Argument(help="A model's name; without it, all models.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What each tier of a model is promised: seconds to the first token, on top of the prompt's own prefill (ttft_s),
    and per further token (tpot_s). The source is the catalog, an admin, or the default.

    Example: penstock models targets llama-3.3-70b --json
    """
    perform(partial(targets.list_targets, model=name), data_dir, as_json, title="Targets")


@app.command("set-targets")
def set_targets(
    name: Name,
    tier: TierOption = "standard",
    ttft_s: Annotated[
        float | None, typer.Option("--ttft-s", help="Seconds to the first token, on top of the own prefill.")
    ] = None,
    tpot_s: Annotated[
        float | None, typer.Option("--tpot-s", help="Mean seconds per further token, such as 0.03.")
    ] = None,
    reason: Reason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Promise a tier of a model other times; the scheduler follows within seconds. What is not given stays as it is.

    Example: penstock models set-targets llama-3.3-70b --tier priority --ttft-s 1 --tpot-s 0.05
    """
    change = partial(targets.set_targets, model=name, tier=tier, ttft_s=ttft_s, tpot_s=tpot_s, reason=reason)
    perform(change, data_dir, as_json)


@app.command("reset-targets")
def reset_targets(
    name: Name,
    tier: TierOption = "standard",
    reason: Reason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Return a tier of a model to the catalog's targets.

    Example: penstock models reset-targets llama-3.3-70b --tier priority
    """
    change = partial(targets.reset_targets, model=name, tier=tier, reason=reason)
    perform(change, data_dir, as_json)


@app.command("scaling")
def list_scaling(
    name: Annotated[str | None, typer.Argument(help="A model's name; without it, all models.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What the autoscaler may do for a model: replicas awake, dollars per hour, kinds of hosts to create.

    Example: penstock models scaling llama-3.3-70b --json
    """
    perform(partial(scaling.list_scaling, model=name), data_dir, as_json, title="Scaling")


@app.command("set-scaling")
def set_scaling(
    name: Name,
    min_awake: Annotated[
        int | None, typer.Option("--min", help="Replicas that are always awake; it comes before the budget.")
    ] = None,
    max_awake: Annotated[int | None, typer.Option("--max", help="Most replicas awake.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", help="Most dollars per hour for its hosts that no contract covers; none = no limit."
        ),
    ] = None,
    host_kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--host-kind",
            help="Kind of host that may be created; repeat it in the order of trying; none = no kind.",
        ),
    ] = None,
    month_budget: Annotated[
        str | None,
        typer.Option(
            "--month-budget",
            help="Most dollars in a UTC month for those hosts: none is created beyond it, and the newest are "
            "destroyed, down to --min; none = no limit.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Engine profile of hosts that are created from now on; first-fit = the first that fits.",
        ),
    ] = None,
    regions: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            help="Replicas awake in a region, at least and at most, as REGION=MIN-MAX; repeat it; none = no limits of "
            "regions.",
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help="Replicas awake on hosts of a kind, at least and at most, as KIND=MIN-MAX; repeat it; none = no "
            "limits of kinds.",
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            "--share-hosts",
            help="The models that share hosts which are created, this one among them, as PENSTOCK_MODEL has them; it "
            "holds for each of them; none = each has its own.",
        ),
    ] = None,
    acting: Annotated[
        str | None,
        typer.Option("--acting", help="off | dry-run | on | platform: whether the plan is acted on."),
    ] = None,
    reason: Reason = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let the autoscaler do more or less for a model; it follows within seconds. What is not given stays as it is.

    Example: penstock models set-scaling llama-3.3-70b --min 1 --max 8 --budget 128 --host-kind gpu-h100x8-640gb
    """
    change = partial(
        scaling.set_scaling,
        model=name,
        min_awake=min_awake,
        max_awake=max_awake,
        budget_usd_per_hour=budget,
        host_kinds=[] if host_kinds == [scaling.NONE] else host_kinds or None,
        budget_usd_per_month=month_budget,
        acting=acting,
        profile=profile,
        regions=[] if regions == [scaling.NONE] else regions or None,
        kinds=[] if kinds == [scaling.NONE] else kinds or None,
        shares=shares,
        reason=reason,
    )
    perform(change, data_dir, as_json)


@app.command("reset-scaling")
def reset_scaling(
    name: Name, reason: Reason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Return a model to the default limits: no minimum, no budget, no hosts created.

    Example: penstock models reset-scaling llama-3.3-70b
    """
    perform(partial(scaling.reset_scaling, model=name, reason=reason), data_dir, as_json)


@app.command("holds")
def list_holds(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show how many replicas of which model a person holds awake, and until when.

    Example: penstock models holds --json
    """
    perform(admin_acting.list_holds, data_dir, as_json, title="Holds")


@app.command("hold-replicas")
def hold_replicas(
    name: Name,
    awake: Annotated[int, typer.Option("--awake", help="Replicas that are awake, no more and no fewer.")],
    hold_for: Annotated[str, typer.Option("--for", help="How long, as 90m, 2h or 3d; at most 31 days.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit log.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Decide in the autoscaler's place how many replicas of a model are awake, for a time.

    Example: penstock models hold-replicas llama-3.3-70b --awake 4 --for 2h --reason "the launch"
    """

    async def act(db: Database, actor: Actor) -> object:
        time = parse_duration(hold_for, "for")
        return await admin_acting.hold_replicas(
            db, actor, model=name, awake=awake, hold_for=time, reason=reason
        )

    perform(act, data_dir, as_json)


@app.command("release-replicas")
def release_replicas(
    name: Name,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit log.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Leave the number of a model's replicas to the autoscaler again, before the hold expires.

    Example: penstock models release-replicas llama-3.3-70b --reason "the launch is over"
    """
    perform(partial(admin_acting.release_replicas, model=name, reason=reason), data_dir, as_json)


@app.command("add")
def add_model(
    name: Name,
    note: Note = None,
    context_len: Annotated[
        int | None,
        typer.Option(
            "--context-len", help="Of an external engine's model: tokens of prompt and answer together."
        ),
    ] = None,
    max_output_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-output-tokens",
            help="With it: output tokens of requests without max_tokens (default: the rest of the context).",
        ),
    ] = None,
    embeddings: Annotated[
        bool,
        typer.Option("--embeddings", help="With --context-len: the model is served on /v1/embeddings only."),
    ] = False,
    host_kind: Annotated[
        str | None,
        typer.Option("--host-kind", help="Any other model: the kind of host that it is to run on."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", help="With it: GPUs of one engine; default: all of a host.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="With it: a directory that every host has, or a name on the hub; default: the name.",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="With it: revision on the hub.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg", help="With it: an argument of the engine, as max-model-len=32768; several times."
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile", help="With it: a TOML file of args, env and figures that are known better."
        ),
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="With it: do not ask the engine's parser about the arguments.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With it: only check and compute; nothing is stored.")
    ] = False,
    engine_env: Annotated[
        Path | None,
        typer.Option("--engine-env", help="The engine's environment; default: as `penstock engine`."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Offer a model of the catalog, with --context-len any that an external engine serves, or with --host-kind any
    other; a retired one again.

    With --host-kind the fit is computed from the model's config.json, its arguments are checked by the engine's parser,
    and its figures start from a roofline. It needs a price before it answers.

    Example: penstock models add llama-3.3-70b

    Example: penstock models add meta-llama/Llama-3.1-8B --context-len 8192

    Example: penstock models add BAAI/bge-m3 --context-len 8192 --embeddings

    Example: penstock models add Qwen/Qwen3-32B --host-kind gpu-h100x8-640gb --gpus 2 --arg max-model-len=32768
    """
    if host_kind is None:
        if any((gpus, weights, revision, arg, profile, unchecked, dry_run)):
            raise InvalidRequest(
                "--gpus, --weights, --revision, --arg, --profile, --unchecked and --dry-run go with --host-kind"
            )
        spec = external_spec(context_len, max_output_tokens, embeddings)
        perform(partial(models.add_model, name=name, note=note, spec=spec), data_dir, as_json)
        return
    if context_len is not None or embeddings or max_output_tokens is not None:
        raise InvalidRequest("--host-kind goes without the options of external engines' models")
    act = partial(
        added_models.add,
        new=given_model(name, host_kind, gpus, weights, revision, arg or [], profile),
        engine_env=engine_environment(engine_env),
        today=datetime.now(UTC).date(),
        note=note,
        unchecked=unchecked,
        dry_run=dry_run,
    )
    perform(act, data_dir, as_json)


def external_spec(
    context_len: int | None, max_output_tokens: int | None, embeddings: bool
) -> ModelSpec | None:
    """What is said of a model that an external engine serves; None = it is of the catalog. Raises InvalidRequest."""
    if embeddings and (context_len is None or max_output_tokens is not None):
        raise InvalidRequest("--embeddings goes with --context-len, and without --max-output-tokens")
    if context_len is None:
        return None
    if embeddings:
        return ModelSpec.embedding(context_len)
    return ModelSpec(context_len, min(max_output_tokens or context_len, context_len))


@app.command("remove")
def remove_model(name: Name, note: Note = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Take a model out of service that was added with --host-kind: requests for it get 404.

    Its agents go on until they are stopped. Its entry is kept for the cost of past hours; add it again to change it.

    Example: penstock models remove Qwen/Qwen3-32B
    """
    perform(partial(added_models.remove, name=name, note=note), data_dir, as_json)
