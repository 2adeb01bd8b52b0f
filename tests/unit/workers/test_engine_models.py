"""The models that engines of several kinds list, and the engines' addresses."""

import pytest

from core.errors import EngineFailed, InvalidRequest
from workers.engine_api import EngineApi
from workers.engine_models import ServedModel, engine_urls, list_models, parse_models


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (  # vLLM with a LoRA adapter
            b'{"object":"list","data":[{"id":"meta-llama/Llama-3.1-8B","object":"model","owned_by":"vllm",'
            b'"root":"meta-llama/Llama-3.1-8B","parent":null,"max_model_len":8192},'
            b'{"id":"sql-lora","root":"/adapters/sql","parent":"meta-llama/Llama-3.1-8B","max_model_len":null}]}',
            [ServedModel("meta-llama/Llama-3.1-8B", 8192), ServedModel("sql-lora", 8192)],
        ),
        (  # llama.cpp
            b'{"object":"list","data":[{"id":"/models/x.gguf","owned_by":"llamacpp","meta":{"n_ctx_train":131072}}]}',
            [ServedModel("/models/x.gguf")],
        ),
        (  # Ollama
            b'{"object":"list","data":[{"id":"llama3.2:latest","object":"model","owned_by":"library"}]}',
            [ServedModel("llama3.2:latest")],
        ),
        (b'{"object":"list","data":null}', []),
        (b'{"data":[{"id":"a","context_length":"long","max_model_len":true}]}', [ServedModel("a")]),
        (b'{"data":[{"id":"a"},{"id":"a","max_model_len":5}]}', [ServedModel("a")]),
        (b"<html>", None),
        (b"[]", None),
        (b'{"data":[{"name":"a"}]}', None),
        (b'{"detail":"nothing here"}', None),
    ],
)
def test_lists_of_models(body: bytes, expected: list[ServedModel] | None) -> None:
    assert parse_models(body) == expected


def test_addresses() -> None:
    assert engine_urls("http://a:8000/v1/, https://b/llm,http://a:8000") == ["http://a:8000", "https://b/llm"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:8000",
        "ftp://a",
        "http://",
        "http://a:b",
        "http://a/?x=1",
        "http://a/\u00e9",
        "http://a\n/b",
        "http://a /",
    ],
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--engine-url"):
        engine_urls(text)


def test_a_password_in_an_address_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidRequest, match="PENSTOCK_ENGINE_KEY") as caught:
        engine_urls("http://user:hunter2@a:8000")
    assert "hunter2" not in caught.value.message


class _Api(EngineApi):
    """An engine that answers some paths and resets the connection for all others."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages = pages
        self.asked: list[str] = []
        super().__init__(None, "http://engine", "")  # type: ignore[arg-type] # get() is replaced

    async def get(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if path not in self.pages:
            raise EngineFailed("connection reset")
        return 200, self.pages[path]


async def test_an_engine_without_pages_of_its_own_is_served() -> None:
    listed = b'{"data":[{"id":"a"}]}'
    assert await list_models(_Api({"/v1/models": listed})) == [ServedModel("a")]
    info = _Api({"/v1/models": listed, "/info": b'{"max_total_tokens":4096}'})
    assert await list_models(info) == [ServedModel("a", 4096)]


async def test_the_context_of_a_server_is_not_that_of_several_models() -> None:
    api = _Api({"/v1/models": b'{"data":[{"id":"a"},{"id":"b"}]}', "/info": b'{"max_total_tokens":4096}'})
    assert await list_models(api) == [ServedModel("a"), ServedModel("b")]
    assert api.asked == ["/v1/models"]
