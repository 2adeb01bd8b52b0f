"""All workloads by name, and files of the public formats."""

import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import InvalidRequest
from sim.pool.contract import Workload
from sim.pool.workloads.files import lines, refuse
from sim.pool.workloads.generated import GENERATED
from sim.pool.workloads.lengths import AZURE_HEADER, VIDUR_HEADER, read_azure, read_vidur
from sim.pool.workloads.mooncake import read_mooncake
from sim.pool.workloads.servegen import ServeGenWorkload, read_servegen
from sim.pool.workloads.sessions import Sessions
from sim.pool.workloads.trace import Trace, TraceWorkload

DATA = Path(__file__).with_name("data")
DEFAULT_MODEL = "llama-3.3-70b"
"""Model of workloads that name none."""
DEFAULT_CONTEXT = 32_768
"""Longest prompt plus answer in tokens when no other context is given."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A public trace of which an excerpt is in data/."""

    file: str
    about: str


EXCERPTS: Mapping[str, Excerpt] = {
    "mooncake-conversation": Excerpt(
        "mooncake-conversation.jsonl.gz", "conversations of a chat product: long prompts, prefix reuse"
    ),
    "mooncake-synthetic": Excerpt(
        "mooncake-synthetic.jsonl.gz", "public long-context data sets with Poisson arrivals, much reuse"
    ),
    "azure-code": Excerpt("azure-code.csv.gz", "code completion: long prompts, short answers, no prefixes"),
    "azure-conversation": Excerpt("azure-conversation.csv.gz", "chat: medium lengths, no prefixes"),
    "servegen": Excerpt(
        "servegen-m-large.tar.gz", "API clients with their own bursts and lengths, no prefixes"
    ),
    "vidur-arxiv": Excerpt("vidur-arxiv.csv.gz", "summaries of papers, Poisson arrivals, no prefixes"),
}
"""Excerpts of public traces by name; data/README.md lists rows, licences and sources."""


def catalogue() -> dict[str, str]:
    """Return every workload name with a one-line description."""
    return {name: excerpt.about for name, excerpt in EXCERPTS.items()} | {
        name: recipe.about for name, recipe in GENERATED.items()
    }


def workload(name_or_file: str, *, models: Sequence[str] = (), context: int = DEFAULT_CONTEXT) -> Workload:
    """Return a workload by name, or read one from a file in Mooncake, Azure, Vidur or ServeGen format.

    `models` are the models it requests (default: those of the workload, else DEFAULT_MODEL). `context` is the
    longest prompt plus answer in tokens: requests of a trace that exceed it are omitted, generated ones are
    shortened to fit.

    Raises InvalidRequest for an unknown name (listing the known ones) and for a file that has an invalid line.
    """
    if context < 1024:
        raise InvalidRequest(f"a context of {context} tokens is too short for any workload", param="context")
    if name_or_file in EXCERPTS:
        return _of_file(DATA / EXCERPTS[name_or_file].file, name_or_file, models, context)
    if name_or_file in GENERATED:
        recipe = GENERATED[name_or_file]
        if recipe.models and len(models) == 1:
            raise InvalidRequest(
                f"{name_or_file} is about several models; name two or more, or none for {', '.join(recipe.models)}",
                param="models",
            )
        return Sessions(name_or_file, recipe, tuple(models) or recipe.models or (DEFAULT_MODEL,), context)
    path = Path(name_or_file)
    if _is_file(path):
        return _of_file(path, path.name, models, context)
    raise InvalidRequest(
        f"no workload and no file is called {name_or_file!r}; workloads: {', '.join(catalogue())}",
        param="workload",
    )


def models_of(name_or_file: str) -> tuple[str, ...]:
    """Return the default models of a workload: those of its recipe, else DEFAULT_MODEL."""
    recipe = GENERATED.get(name_or_file)
    return (recipe.models if recipe is not None else ()) or (DEFAULT_MODEL,)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a valid file name
        return False


def _of_file(path: Path, name: str, models: Sequence[str], context: int) -> Workload:
    read = _reader(path)
    if read is None:
        return ServeGenWorkload(name, read_servegen(path), tuple(models) or (DEFAULT_MODEL,), context)
    trace = read(path, name).within(context)
    own = sorted({label.model for label in trace.labels if label.model})
    return TraceWorkload(trace, tuple(models) or tuple(own) or (DEFAULT_MODEL,))


def _reader(path: Path) -> Callable[[Path, str], Trace] | None:
    """Return the reader for the file's format; None = ServeGen's tar."""
    try:
        if tarfile.is_tarfile(path):
            return None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    number, head = next(lines(path), (1, ""))
    if head.startswith("{"):
        return read_mooncake
    if head.replace(" ", "") == AZURE_HEADER:
        return read_azure
    if head.startswith(VIDUR_HEADER):
        return read_vidur
    raise refuse(
        path,
        number,
        "neither a Mooncake request (JSON with timestamp, input_length, output_length, hash_ids), nor the header "
        f"{AZURE_HEADER} (Azure) or {VIDUR_HEADER} (Vidur), nor a tar of ServeGen's clients",
    )
