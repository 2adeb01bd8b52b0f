"""The load generator: what counts as a token, and what errors leave of a run."""

from typing import Any

from bench.gateway.__main__ import by_target, run
from bench.gateway.cells import Cell
from bench.gateway.connection import Connection
from bench.gateway.load import Target, Timed, _times
from bench.gateway.load_process import LoadProcess

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


class Answers:
    """Stands for the load generator: gives prepared results."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self._results = list(results)

    def run(self, job: str, target: Target, **options: object) -> dict[str, Any]:
        return self._results.pop(0)


def test_the_first_event_with_a_choice_is_the_first_token() -> None:
    connection = Connection()
    connection.on_body(b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n')
    assert not connection.first_at
    connection.on_body(ROLE)
    assert connection.first_at


def test_time_per_token_runs_to_the_end_of_the_answer() -> None:
    times = _times([Timed(ttft_s=0.1, e2e_s=1.1, decode_s=1.0, tokens=11)])
    assert times["tpot_p50_s"] == 0.1


def test_an_unexpected_exception_is_the_result_of_its_job_and_the_next_jobs_run() -> None:
    load = LoadProcess(())
    try:
        gone = Target("gone", 9, "m", groups={"gone": (2**22 + 1, True)})
        assert load.run("idle", gone, seconds=0)["error"].startswith("NoSuchProcess")
        assert load.run("idle", Target("empty", 9, "m"), seconds=0)["cpu_s"] == {}
    finally:
        load.close()


def test_jobs_of_a_dead_generator_end_with_an_error() -> None:
    load = LoadProcess(())
    load._process.kill()
    load._process.wait()
    try:
        assert load.run("idle", Target("any", 9, "m"), seconds=0) == {"error": "the load generator has died"}
    finally:
        load.close()


def test_both_attempts_at_a_cell_are_recorded() -> None:
    cell = Cell("memory", "2000", "memory")
    load = Answers({"error": "OSError: x", "refused": {"503 full": 1}}, {"streams": 2000})
    records = run([cell], [Target("penstock", 9, "m")], load, {})
    assert [("error" in each.result, each.round) for each in records] == [(True, 0), (False, 0)]


def test_idle_cost_of_all_targets_is_split() -> None:
    found = by_target({"cpu_s": {"penstock/api": 1.0, "bare/bare": 2.0}, "window_s": 3.0, "refused": {}})
    assert found["penstock"]["cpu_s"] == {"api": 1.0}
    assert found["bare"] == {"cpu_s": {"bare": 2.0}, "window_s": 3.0, "refused": {}}
