"""The engines of the play: what each incarnation really counted, and what is known of it."""

from collections import Counter
from dataclasses import dataclass, field

from core.db import Database
from workers.engine_counters import CounterReport, Cut, record_counters
from workers.wire import EngineCounters

WARM = EngineCounters(prompt_tokens=100, generation_tokens=10)
CAUSES = ("billed", "engine_failed", "zero_output", "cancelled_tail", "retried", "choices", "warmup")


@dataclass
class Tally:
    """Tokens by cause as the play made them: (prompt, generation)."""

    prompt: Counter[str] = field(default_factory=Counter)
    generation: Counter[str] = field(default_factory=Counter)

    def add(self, cause: str, prompt: int, generation: int) -> None:
        """Count."""
        self.prompt[cause] += prompt
        self.generation[cause] += generation


class Engine:
    """One replica of one model, through its incarnations."""

    def __init__(self, model: str, tally: Tally) -> None:
        self.model = model
        self.replica = f"host-a/{model}"
        self._tally = tally
        self._number = 0
        self.prompt = self.generation = 0
        self._boot()

    def _boot(self) -> None:
        self._number += 1
        self.boot = f"{self.model}-boot-{self._number}"
        self.prompt, self.generation = WARM.prompt_tokens, WARM.generation_tokens
        self._tally.add("warmup", self.prompt, self.generation)

    def work(self, cause: str, prompt: int, generation: int) -> None:
        """Count tokens, for the reason that will explain them."""
        self.prompt += prompt
        self.generation += generation
        self._tally.add(cause, prompt, generation)

    async def report(
        self,
        database: Database,
        *,
        still: bool = False,
        ended: bool = False,
        unseen: tuple[int, int] = (0, 0),
        scrape_age_s: float = 0.0,
    ) -> None:
        """What the scheduler stores; `still`: it has nothing to do; `unseen`: counted after the last scrape."""
        seen = EngineCounters(self.prompt - unseen[0], self.generation - unseen[1])
        cuts = (Cut(0.0, seen.prompt_tokens, seen.generation_tokens),) if still else ()
        report = CounterReport(
            self.boot, self.replica, self.model, "sim", True, seen, WARM, scrape_age_s, 0.0, ended, cuts
        )
        for _ in range(2):  # a report may come twice
            async with database.system() as connection:
                await record_counters(connection, report)

    async def die(self, database: Database, unseen: tuple[int, int], scrape_age_s: float) -> None:
        """It is gone, with what it counted after its last scrape; the next incarnation starts."""
        await self.report(database, ended=True, unseen=unseen, scrape_age_s=scrape_age_s)
        self._tally.add("unobserved", *unseen)
        self._boot()
        await self.report(database)
