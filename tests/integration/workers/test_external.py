"""The replicas of an external engine: a plain one without /health and /metrics, whose list of models changes."""

import aiohttp
import pytest

from core.clock import SystemClock
from core.errors import InvalidRequest
from tests.support.openai_engine import OpenAIEngine
from workers.engine_api import EngineApi
from workers.external import ExternalEngine, ExternalSettings, ReplicaNames
from workers.replica_view import Replica
from workers.wire import ReplicaState


def names(replicas: list[Replica]) -> dict[str, ReplicaState]:
    return {replica.status().model: replica.status().state for replica in replicas}


async def test_replicas_follow_the_list_of_models(caplog: pytest.LogCaptureFixture) -> None:
    replicas: list[Replica] = []
    async with aiohttp.ClientSession() as session:
        with OpenAIEngine({"a": {"max_model_len": 4096}, "b": {}}) as served:
            api = EngineApi(session, served.url, "")
            engine = ExternalEngine(
                api, ExternalSettings(max_num_seqs=8), ReplicaNames("h", 0), replicas.append, SystemClock()
            )
            await engine.probe()
            assert names(replicas) == {"a": ReplicaState.READY, "b": ReplicaState.READY}
            status = replicas[0].status()
            assert (status.replica_id, status.url, status.engine) == ("h/a-0", served.url, "external")
            assert (status.capacity.max_num_seqs, status.capacity.max_model_len) == (8, 4096)
            assert replicas[1].status().capacity.max_model_len == 131_072
            boot = status.boot_id

            del served.models["a"]
            served.models["c"] = {}
            await engine.probe()
            assert names(replicas) == {
                "a": ReplicaState.STOPPED, "b": ReplicaState.READY, "c": ReplicaState.READY,
            }  # fmt: skip
            assert "does not list this model any more" in replicas[0].status().detail

            served.models["a"] = {}
            await engine.probe()
            assert names(replicas)["a"] is ReplicaState.READY
            assert replicas[0].status().boot_id not in ("", boot)
            await replicas[1].command("drain", 1.0)
            await engine.probe()
            assert names(replicas)["b"] is ReplicaState.DRAINING
            assert caplog.records == [record for record in caplog.records if record.levelname == "INFO"]

            served.models.clear()
            with pytest.raises(InvalidRequest, match="lists no models"):
                await engine.probe()


async def test_one_model_of_many() -> None:
    replicas: list[Replica] = []
    async with aiohttp.ClientSession() as session:
        with OpenAIEngine({"a": {}, "b": {}}) as served:
            api = EngineApi(session, served.url, "")
            engine = ExternalEngine(
                api, ExternalSettings(model="b"), ReplicaNames("h", 0), replicas.append, SystemClock()
            )
            await engine.probe()
    assert names(replicas) == {"b": ReplicaState.READY}
