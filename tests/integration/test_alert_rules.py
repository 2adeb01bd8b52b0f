"""The shipped alert rules under the real promtool, which `make edge` fetches: each fires when it should."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
PROMTOOL = shutil.which("promtool") or shutil.which(ROOT / ".tools/usr/bin/promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: `make edge` fetches it on Debian")

UP = 'up{job="%s",instance="a"}'
REFUSED = 'penstock_scheduler_refusals_total{model="m",status="503",reason="queue_full"}'
PLACED = 'penstock_scheduler_placements_total{model="m"}'
ENDED = 'penstock_requests_total{gen_ai_request_model="m",tier="standard",outcome="%s"}'
TTFT = 'gen_ai_server_time_to_first_token_seconds_bucket{gen_ai_request_model="m",tier="standard",le="%s"}'
OLDEST = 'penstock_scheduler_queue_oldest_seconds{model="m",band="standard"}'
RUNS = 'penstock_job_runs_total{exported_job="penstock.seal",result="failed"}'
SUCCESS = 'penstock_job_last_success_seconds{exported_job="penstock.%s"}'

# Series by name, for an alert that fires and for one that does not. In Prometheus' notation 0+5x240 begins at 0 and
# grows by 5 each 15 s, for an hour. `0x240` stays 0. Time begins at 0.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "NoApiProcess": ({UP % "api": "0x240"}, {UP % "api": "1x240"}),
    "RoleDown": ({UP % "jobs": "0x240"}, {UP % "jobs": "1x240"}),
    "NoScheduler": (
        {'penstock_scheduler_term{instance="a"}': "0x240"},
        {'penstock_scheduler_term{instance="a"}': "0x240", 'penstock_scheduler_term{instance="b"}': "3x240"},
    ),
    "SchedulerLosesItsLease": (
        {"penstock_scheduler_leases_lost_total": "0+1x240"},
        {"penstock_scheduler_leases_lost_total": "1x240"},
    ),
    "TasksRestart": (
        {'penstock_task_restarts_total{job="api",task="models"}': "0+1x240"},
        {'penstock_task_restarts_total{job="api",task="models"}': "7x240"},
    ),
    "ModelsStale": ({"penstock_models_age_seconds": "61x240"}, {"penstock_models_age_seconds": "5x240"}),
    "RequestsRefused": ({REFUSED: "0+3x240", PLACED: "0+97x240"}, {REFUSED: "0+1x240", PLACED: "0+97x240"}),
    "RequestsFail": (
        {ENDED % "engine_failed": "0+3x240", ENDED % "completed": "0+97x240"},
        {ENDED % "client_cancelled": "0+30x240", ENDED % "completed": "0+97x240"},
    ),
    "FirstTokensLate": (
        {TTFT % "5.12": "0+80x240", TTFT % "30.0": "0+100x240", TTFT % "+Inf": "0+100x240"},
        {TTFT % "5.12": "0+95x240", TTFT % "30.0": "0+100x240", TTFT % "+Inf": "0+100x240"},
    ),
    "QueueOld": ({OLDEST: "16x240"}, {OLDEST.replace("standard", "batch"): "500x240"}),
    "ReplicaFailed": (
        {'penstock_agent_replicas{state="failed"}': "1x240"},
        {
            'penstock_agent_replicas{state="failed"}': "0x240",
            'penstock_agent_replicas{state="ready"}': "2x240",
        },
    ),
    "ReplicaRestarts": (
        {'penstock_agent_restarts{replica="r"}': "0+1x240"},
        {'penstock_agent_restarts{replica="r"}': "9x240"},
    ),
    "AgentWithoutScheduler": (
        {"penstock_agent_scheduler_connected": "0x240"},
        {"penstock_agent_scheduler_connected": "1x240"},
    ),
    "ReplicasRefused": (
        {"penstock_scheduler_replicas_refused_total": "0+1x240"},
        {"penstock_scheduler_replicas_refused_total": "4x240"},
    ),
    "CacheEventsLost": (
        {'penstock_agent_kv_lost_total{replica="r"}': "0+1x240"},
        {'penstock_agent_kv_lost_total{replica="r"}': "4x240"},
    ),
    "HostProviderStopped": (
        {'penstock_host_provider_stopped{provider="digitalocean"}': "1x240"},
        {'penstock_host_provider_stopped{provider="digitalocean"}': "0x240"},
    ),
    "WalArchiveFails": (
        {"penstock_wal_archive_failing": "1x240"},
        {"penstock_wal_archive_failing": "0x240"},
    ),
    "SettlementBehind": (
        {"penstock_settlement_backlog": "1001x240"},
        {"penstock_settlement_backlog": "900x240"},
    ),
    "HoldsWait": ({"penstock_holds_waiting": "1001x240"}, {"penstock_holds_waiting": "900x240"}),
    "TokensUnexplained": (
        {'penstock_reconciliation_unexplained_tokens{counter="prompt"}': "-5x240"},
        {'penstock_reconciliation_unexplained_tokens{counter="prompt"}': "0x240"},
    ),
    "ReconciliationBehind": (
        {"penstock_reconciliation_behind_seconds": "3601x240"},
        {"penstock_reconciliation_behind_seconds": "120x240"},
    ),
    "JobFails": ({RUNS: "0+1x240"}, {RUNS: "8x240"}),
    "JobOverdue": ({SUCCESS % "seal": "0x240"}, {SUCCESS % "seal": "0+15x240"}),
    "HourlyJobOverdue": (
        {SUCCESS % "make_invoices": "-14400x240"},
        {SUCCESS % "make_invoices": "-9000x240"},
    ),
    "DailyJobOverdue": ({SUCCESS % "prune": "-180000x240"}, {SUCCESS % "prune": "-90000x240"}),
}


def case(series: dict[str, str], fire: bool) -> dict[str, Any]:
    """A test in promtool's form: after an hour every alert fires, or none."""
    return {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0',
                "eval_time": "1h",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fire else [],
            }
            for alert in CASES
        ],
    }


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    assert CASES.keys() == {rule["alert"] for group in groups for rule in group["rules"]}
    bad = {name: values for series, _ in CASES.values() for name, values in series.items()}
    good = {name: values for _, series in CASES.values() for name, values in series.items()}
    file = tmp_path / "alerts_test.yml"
    tests = [case(bad, fire=True), case(good, fire=False)]
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    outcome = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=300
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_prometheus_takes_the_configuration() -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "config", str(ROOT / "deploy/prometheus/prometheus.yml")]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
