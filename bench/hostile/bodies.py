"""Bodies that are expensive to read, to parse, to tokenise or to answer, near the limit of a model's body or above."""

import json
from collections.abc import Callable, Iterator

from gateway.limits import MAX_BODY_BYTES


def bodies(model: str, size: int) -> dict[str, bytes]:
    """Return bodies by name, of about `size` bytes each; `size` is at most the limit of the model."""

    def chat(messages: list[dict[str, object]], **fields: object) -> bytes:
        return json.dumps({"model": model, "messages": messages, "max_tokens": 1, **fields}).encode()

    def user(text: str) -> bytes:
        return chat([{"role": "user", "content": text}])

    hello = user("hi")[:-1]
    tool = {"name": "f", "parameters": {str(number): {} for number in range(4000)}}
    tools = [
        {"type": "function", "function": {**tool, "name": f"f{number}"}} for number in range(size // 50_000)
    ]
    return {
        "nested": hello + b',"x":[' + (b"[" * 60 + b"]" * 60 + b",") * (size // 121 - 9) + b"1]}",
        "deep": hello + b',"x":' + b"[" * (size // 2 - 200) + b"]" * (size // 2 - 200) + b"}",
        "valid text": user("The river runs to the sea. " * ((size - 200) // 27)),
        "one letter": user("a" * (size - 200)),
        "rare letters": user("qzxj" * ((size - 200) // 4)),
        "escapes": user("é\n" * ((size - 200) // 8)),
        "many messages": chat([{"role": "user", "content": "x" * (size // 4096 - 40)}] * 4090),
        "many parts": chat(
            [{"role": "user", "content": [{"type": "text", "text": "a"}] * 250}] * (size // 32 // 250)
        ),
        "long schemas": chat([{"role": "user", "content": "hi"}], tools=[{**each} for each in tools]),
        "invalid utf-8": user("x" * (size - 300))[:-30] + b'\xff\xfe"}]}',
        "huge numbers": hello + b',"seed":' + b"9" * (size - 200) + b"}",
        "cut short": user("x" * (size - 200))[:-1],
        "4 MiB nested": hello + b',"x":' + b"[" * (MAX_BODY_BYTES - 200) + b"}",
        "no such model": user("hi").replace(model.encode(), b"nobody"),
    }


def in_turn(made: dict[str, bytes]) -> Callable[[], tuple[str, bytes]]:
    """Return a function that returns the next name and body, endlessly."""

    def endless() -> Iterator[tuple[str, bytes]]:
        while True:
            yield from made.items()

    source = endless()
    return lambda: next(source)
