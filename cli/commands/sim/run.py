"""`penstock sim run`: one workload against one simulated pool under one routing policy."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.blocking import check_output, run_blocking
from cli.text_chart import columns
from core.errors import InvalidRequest
from sim.pool.compare import Setting
from sim.pool.contract import RunResult
from sim.pool.faults import Fault, Kill, KillApiProcess, Slow, parse_fault
from sim.pool.knee import find
from sim.pool.network import Network
from sim.pool.pool import ReplicaSpec, unvalidated_note
from sim.pool.registry import Variant, checked_prefix, names_of, policy
from sim.pool.run import simulate
from sim.pool.settings import Progress as Standing
from sim.pool.settings import RunConfig
from sim.pool.summary import Summary, over_time, service_levels, summarise
from sim.pool.workloads.registry import catalogue, workload
from workers.catalog import load_catalog

CHART_COLUMNS = 64
_TENANTS_SHOWN = 12


def register(group: typer.Typer) -> None:
    """Add the command to `penstock sim`."""
    group.command(
        "run",
        epilog="Example: penstock sim run --workload mooncake-conversation --hosts 4 --rate 12 --seconds 300 "
        "--fail host-1/llama-3.3-70b-0@120",
    )(command)


def command(
    workload_name: Annotated[
        str,
        typer.Option(
            "--workload", help=f"Name ({', '.join(catalogue())}), or a file in Mooncake or Azure form."
        ),
    ] = "mooncake-conversation",
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="NAME or NAME:PROFILE of the catalog; may be given several times."),
    ] = None,
    hosts: Annotated[int, typer.Option(min=1, help="Hosts of each model.")] = 2,
    policy_name: Annotated[
        str, typer.Option("--policy", help="Routing policy; `penstock` is ours.")
    ] = "penstock",
    rate: Annotated[float | None, typer.Option(min=0.001, help="Arrivals a second.")] = None,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, help="Instead of --rate: a multiple of what the pool can serve in time."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Simulated seconds of arrivals.")] = 300.0,
    warmup: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds left out of the figures; default: a fifth.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 1,
    api_processes: Annotated[int, typer.Option(min=1, help="Router instances.")] = 3,
    prefix: Annotated[
        str, typer.Option(help="What ours knows of prefix caches: mirrored or exact (KV events).")
    ] = "mirrored",
    fail: Annotated[
        list[str] | None,
        typer.Option(
            help="REPLICA@T dies at T s; also hang:REPLICA@T+S, slow:REPLICA@T+SxSPEED, scheduler@T, api:N@T."
        ),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file; - prints them.")
    ] = None,
) -> None:
    """Play a workload against a simulated pool, and say how it was served."""

    def act() -> "CompletedRun":
        check_output(json_out)
        if (rate is None) == (load is None):
            raise InvalidRequest(
                "give either --rate (arrivals a second) or --load (share of the pool's capacity)"
            )
        setting = Setting(
            workload_name, tuple(models or ["llama-3.3-70b"]), hosts, seconds, checked_prefix(prefix),
            api_processes=api_processes,
        )  # fmt: skip
        faults = [parse_fault(text) for text in fail or []]
        return run_simulation(
            setting, policy_name, faults, rate=rate, load=load, seed=seed,
            warmup_s=0.2 * seconds if warmup is None else warmup,
        )  # fmt: skip

    completed = run_blocking(act)
    if json_out is not None:
        text = msgspec.json.format(msgspec.json.encode(completed.as_json())).decode()
        if str(json_out) == "-":
            typer.echo(text)
            return
        json_out.write_text(text + "\n")
    show(completed, Console())


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A simulation's result with its parameters. `rate` is in requests/s."""

    setting: Setting
    pool: Sequence[ReplicaSpec]
    rate: float
    result: RunResult
    summary: Summary
    wall_s: float
    """Wall-clock seconds that the simulation took."""

    def as_json(self) -> dict[str, Any]:
        """The figures with all parameters that reproduce the run."""
        return {
            "models": list(self.setting.models),
            "hosts": self.setting.hosts,
            "replicas": [spec.replica_id for spec in self.pool],
            "rate": self.rate,
            "seconds": self.setting.seconds,
            "prefix": self.setting.prefix,
            **asdict(self.summary),
            "simulated_s": self.result.seconds,
            "replica_seconds": self.result.replica_seconds,
            "wall_s": self.wall_s,
        }


def run_simulation(
    setting: Setting,
    policy_name: str,
    faults: Sequence[Fault],
    *,
    rate: float | None,
    load: float | None,
    seed: int,
    warmup_s: float,
) -> CompletedRun:
    """Run a simulation with progress on stderr.

    `rate` is in requests/s; without it the rate is `load` (default 1) times the measured knee. `warmup_s` simulated
    seconds at the start do not count. Raises InvalidRequest for an unknown policy.
    """
    pool = setting.pool(load_catalog())
    check_faults(faults, pool, setting.api_processes)
    (name,) = names_of(policy_name, setting.prefix)[:1]
    entry = policy(name, Variant(setting.prefix))
    context = min(spec.capacity.max_model_len for spec in pool)
    source = workload(
        setting.workload, models=[model.partition(":")[0] for model in setting.models], context=context
    )
    with _progress() as progress:
        task = progress.add_task("finding the pool's capacity", total=None, note="")
        if rate is None:
            knee = find(
                setting,
                on_rate_tried=lambda tried, share: progress.update(
                    task, note=f"{tried:.3g}/s: {share:.0%} in time"
                ),
            )
            rate = knee.rate_rps * (load or 1.0)
        requests = source.requests(rate=rate, seconds=setting.seconds, seed=seed)
        began = time.perf_counter()

        def on_progress(at: Standing) -> None:
            speed = at.now / max(1e-9, time.perf_counter() - began)
            note = f"{at.now:,.0f} s at {speed:,.0f}x, {at.in_flight} in flight, {at.waiting} waiting"
            progress.update(task, completed=min(at.now, setting.seconds), note=note)

        progress.update(task, description=f"{name} on {escape(source.name)}", total=setting.seconds)
        config = RunConfig(
            seed=seed,
            api_processes=setting.api_processes,
            network=entry.network(Network()),
            faults=faults,
            warmup_s=warmup_s,
            on_progress=on_progress,
        )
        result = simulate(entry.make, requests, pool, config, workload=source.name, load=load or 0.0)
        wall_s = time.perf_counter() - began
    return CompletedRun(setting, pool, rate, result, summarise(result, service_levels(pool)), wall_s)


def check_faults(faults: Sequence[Fault], pool: Sequence[ReplicaSpec], api_processes: int) -> None:
    """Raise InvalidRequest for a fault of a replica or an API process that does not exist."""
    names = {spec.replica_id for spec in pool}
    for fault in faults:
        if isinstance(fault, Kill | Slow) and fault.replica_id not in names:
            raise InvalidRequest(
                f"there is no replica {fault.replica_id!r}; there are: {', '.join(sorted(names))}",
                param="fail",
            )
        if isinstance(fault, KillApiProcess) and fault.router >= api_processes:
            raise InvalidRequest(
                f"there is no API process {fault.router}; they count from 0 to {api_processes - 1}",
                param="fail",
            )


def show(completed: CompletedRun, console: Console) -> None:
    """Print table and charts."""
    summary, result = completed.summary, completed.result
    console.print(_figures(completed))
    for line in unvalidated_note(completed.pool):
        console.print(line)
    if len(summary.tenants) > 1:
        console.print(_tenants(summary))
    rows = over_time(result, CHART_COLUMNS, service_levels(completed.pool))
    charts = (
        ("median TTFT of arrivals", [row[1] for row in rows], " s"),
        ("waiting for a first token", [row[2] for row in rows], ""),
    )
    for title, values, unit in charts:
        console.print(f"[bold]{title}[/bold], 0 to {result.arrivals_s:,.0f} s")
        for line in columns(values, unit=unit):
            console.print(line, highlight=False, markup=False)
    console.print(
        f"{result.seconds:,.0f} simulated seconds in {completed.wall_s:.1f} s: "
        f"{result.seconds / max(completed.wall_s, 1e-9):,.0f}x real time"
    )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _figures(completed: CompletedRun) -> Table:
    summary = completed.summary
    what = f"{summary.policy} on {escape(summary.workload)}"
    table = Table(
        title=f"{what}: {completed.rate:.3g} requests/s on {len(completed.pool)} replicas",
        title_justify="left",
        show_header=False,
    )
    table.add_column()
    table.add_column(justify="right")
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.refusals.items()))
    refusals = f" ({reasons})" if reasons else ""
    rows = (
        ("requests", f"{summary.requests:,} ({summary.finished:,} answered)"),
        ("goodput", f"{summary.goodput_rps:.3g}/s of {summary.offered_rps:.3g}/s ({summary.slo_met:.1%} in time)"),
        ("TTFT p50 / p90 / p99", f"{summary.ttft_p50_s:.3g} / {summary.ttft_p90_s:.3g} / {summary.ttft_p99_s:.3g} s"),
        ("time per token p50 / p99", f"{1e3 * summary.tpot_p50_s:.1f} / {1e3 * summary.tpot_p99_s:.1f} ms"),
        ("prompt tokens from cache", f"{summary.hit_rate:.1%}"),
        ("refused / lost to faults", f"{summary.shed_rate:.2%} / {summary.lost_rate:.2%}{refusals}"),
        ("retried / preempted", f"{summary.retried} / {summary.preemptions}"),
        ("waiting, mean / most", f"{summary.mean_waiting:.1f} / {summary.max_waiting}"),
        ("Jain index, largest service gap", f"{summary.jain:.3f}, {summary.max_service_gap:,.0f} weighted tokens"),
        ("GPU-hours", f"{summary.gpu_hours:.2f}"),
        ("cost per million tokens", f"${summary.usd_per_mtok:.3f}" if summary.usd_per_mtok else "no price known"),
    )  # fmt: skip
    for label, text in rows:
        table.add_row(label, text)
    return table


def _tenants(summary: Summary) -> Table:
    table = Table(title="Tenants, most tokens first", title_justify="left")
    for name in ("tenant", "requests", "tokens", "TTFT p50", "TTFT p99", "in time"):
        table.add_column(name, justify="left" if name == "tenant" else "right")
    ranked = sorted(summary.tenants.items(), key=lambda item: -item[1].tokens)
    for tenant, figures in ranked[:_TENANTS_SHOWN]:
        table.add_row(
            escape(tenant),
            f"{figures.requests:,}",
            f"{figures.tokens:,}",
            f"{figures.ttft_p50_s:.3g} s",
            f"{figures.ttft_p99_s:.3g} s",
            f"{figures.slo_met:.1%}",
        )
    if len(ranked) > _TENANTS_SHOWN:
        table.caption = f"and {len(ranked) - _TENANTS_SHOWN} more"
    return table
