"""Runs `all_reduce_perf` of NVIDIA's nccl-tests over all GPUs of the host, and reads its table.

A row has size, count, type, operation, root and then time in us, algorithm and bus bandwidth in GB/s and wrong results,
first out of place, then in place (nccl-tests, doc/PERFORMANCE.md: the bus bandwidth of an all-reduce is the algorithm's
times 2(n-1)/n).
"""

from workers.acceptance.commands import Run, run_tool
from workers.acceptance.readings import AllReduceReading

SIZES = ("-b", "8", "-e", "8G", "-f", "2")
TIMEOUT_S = 300.0
_COLUMNS = 13
_TIME, _BUS, _WRONG = 5, 7, 8


async def all_reduce(gpus: int) -> AllReduceReading | None:
    """Measure all-reduce over `gpus` GPUs; None for fewer than two, or where nccl-tests or libraries are missing."""
    if gpus < 2:
        return None
    ran = await run_tool(("all_reduce_perf", *SIZES, "-g", str(gpus)), TIMEOUT_S)
    return None if ran is None else parse(ran)


def parse(ran: Run) -> AllReduceReading:
    """The smallest size's time and the largest's bus bandwidth."""
    rows = [
        cells
        for line in ran.output.splitlines()
        if len(cells := line.split()) == _COLUMNS and cells[0].isdigit()
    ]
    if ran.status != 0 or not rows:
        return AllReduceReading(0.0, 0.0, error=f"it ended with {ran.status}: {ran.last_line}")
    wrong = sum(int(cells[_WRONG]) for cells in rows if cells[_WRONG].isdigit())
    return AllReduceReading(float(rows[-1][_BUS]), float(rows[0][_TIME]), wrong)
