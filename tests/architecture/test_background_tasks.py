"""Every task that serves for the life of a process is supervised (core/supervise.py)."""

import ast
from collections import Counter

from core.services import MIGRATIONS

ROOT = MIGRATIONS.parent
PACKAGES = (
    "admin",
    "api",
    "billing",
    "cli",
    "console",
    "core",
    "gateway",
    "jobs",
    "scheduler",
    "tenants",
    "workers",
)
STARTERS = {"create_task", "ensure_future"}

AWAITED = {
    "api/customer/background.py": 1,  # one response, which ends with its row; errors are logged
    "api/customer/hotpath.py": 1,  # watches one request's connection
    "api/read_pace.py": 1,  # one write of one answer, awaited
    "billing/exports/datasets.py": 1,  # one download, awaited
    "billing/payments/stripe_differences.py": 1,  # a task group
    "cli/stack.py": 4,  # start, stop and one installation, awaited; one start of a server, which the watch repeats
    "core/supervise.py": 1,
    "gateway/acquire_both.py": 1,  # one placement, awaited
    "gateway/dialects/responses/unbroken.py": 1,  # one read or write, awaited for a bounded time
    "gateway/open_requests.py": 1,  # one comment of one request
    "gateway/parsing/pool.py": 1,  # one body; its end starts the next
    "gateway/tokenization/hasher.py": 1,  # loads one tokenizer; tried again when it is next asked for
    "gateway/whole.py": 1,  # counts one prompt
    "scheduler/accept.py": 1,  # opens one connection, within seconds
    "scheduler/adapter_answers.py": 1,  # one answer to an agent, which asks again
    "scheduler/door.py": 1,  # one host joins, within seconds
    "scheduler/lease_table.py": 1,  # one statement, awaited for a bounded time
    "scheduler/serve.py": 2,  # stop or service, awaited
    "scheduler/store_loop.py": 1,  # the last round, awaited
    "tenants/keys.py": 1,  # one look-up, awaited
    "tenants/rate_pipeline.py": 1,  # one connection; the next call starts another
    "tenants/rates.py": 1,  # seeds one tenant, awaited
    "workers/acceptance/check.py": 1,  # looks at the GPUs while tools run, ended with them
    "workers/agent.py": 4,  # preparation, stop and drain, awaited
    "workers/external.py": 1,  # four requests to one engine, in a task group
    "workers/replica.py": 1,  # the prefetch of weights, awaited and ended by the replica's own task
    "workers/host_access.py": 2,  # reports and certificate, in a task group
    "workers/host_reporting.py": 2,  # the join and the link, in a task group
    "workers/scheduler_link.py": 4,  # connections and senders, awaited by their supervised tasks; one command
}
"""Tasks that end by themselves, by file: their number, which grows only with a reason."""


def _is_start(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id) in STARTERS
    )


def test_no_serving_task_is_started_without_supervision() -> None:
    found = Counter(
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _is_start(node)
    )
    assert dict(found) == AWAITED
