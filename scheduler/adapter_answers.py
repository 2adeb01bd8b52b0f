"""Answers agents about LoRA adapters from PostgreSQL, beside the placement of requests."""

import asyncio
from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from core.db import Database
from workers.adapter_wire import (
    AdapterAnswer,
    AdapterPartAnswer,
    AdapterPartQuestion,
    AdapterQuestion,
    AdaptersGone,
    AdaptersKept,
    Answer,
    Question,
)
from workers.adapters import deleted_of, find_adapter, read_part

AT_A_TIME = 2
"""Questions that are answered at a time: a part of a file is encoded between two decisions on requests."""
MAX_KEPT = 10_000
"""Adapters of one host that are looked up at a time."""
_AWAY = "PostgreSQL does not answer the scheduler"
_ANSWER_TO: Mapping[type[Question], Callable[..., Answer]] = {
    AdapterQuestion: AdapterAnswer,
    AdapterPartQuestion: AdapterPartAnswer,
    AdaptersKept: AdaptersGone,
}


class AdapterAnswers:
    """The adapters as agents ask for them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gate = asyncio.Semaphore(AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, question: Question, send: Callable[[msgspec.Struct], None]) -> None:
        """Answer a question by `send`, some time later."""

        async def answer() -> None:
            async with self._gate:
                send(await self._answer(question))

        task = asyncio.create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Answer nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, question: Question) -> Answer:
        number = question.question_id
        try:
            async with self._database.system() as connection:
                match question:
                    case AdapterQuestion():
                        found = await find_adapter(connection, question.name)
                        if found is None:
                            return AdapterAnswer(number)
                        return AdapterAnswer(number, str(found.id), list(found.files))
                    case AdapterPartQuestion():
                        adapter_id = UUID(question.adapter_id)
                        data = await read_part(connection, adapter_id, question.path, question.part)
                        return AdapterPartAnswer(number, data or b"")
                    case AdaptersKept():
                        kept = [UUID(each) for each in question.adapter_ids[:MAX_KEPT]]
                        return AdaptersGone(
                            number, [str(each) for each in await deleted_of(connection, kept)]
                        )
        except (SQLAlchemyError, OSError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else _AWAY
        return _ANSWER_TO[type(question)](number, error=why)
