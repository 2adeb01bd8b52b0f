"""What `make gpu` does with the real vLLM, on a processor: all of it but sleep, which vLLM has on GPUs alone."""

from pathlib import Path

import msgspec
import pytest

from bench.gpu.catalog import with_gpu_profiles
from bench.gpu.measure import greedy, one_user, prefix_knowledge, sweep
from bench.gpu.rig import serving
from tests.e2e.test_engine import ENGINE_ENV
from workers.catalog import Catalog, load_catalog
from workers.engine_args import check_arguments
from workers.plan import TINY

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def with_made_weights(catalog: Catalog) -> Catalog:
    """penstock/tiny with a larger layer and weights that the engine makes, as the larger model of `make gpu` is."""
    model = catalog.models[TINY]
    plain = model.profile("")
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3}
    made = msgspec.structs.replace(plain, args={**plain.args, "load-format": "dummy", "hf-overrides": shape})
    changed = msgspec.structs.replace(model, profiles={plain.name: made})
    return msgspec.structs.replace(catalog, models={**catalog.models, TINY: changed})


async def test_the_real_engine_is_measured_under_the_agent(tmp_path: Path) -> None:
    catalog = with_made_weights(load_catalog())
    async with serving(catalog, tmp_path, engine="vllm", engine_env=ENGINE_ENV) as rig:
        assert rig.loaded_s > rig.warmed_s > 0
        assert not rig.replica.simulated
        assert await greedy(rig) == await greedy(rig)
        assert (await one_user(rig, sentences=64))["decode_tokens_per_s"] > 0
        prefix = await prefix_knowledge(rig, tokens=256)
        assert prefix["known_tokens"] == prefix["cached_tokens"] == 256
        [row] = await sweep(rig, shapes=((64, 8),), users=(2,), each=1)
        assert row["output_tok_s"] > 0


async def test_the_engine_takes_the_arguments_of_the_profiles_for_gpus() -> None:
    model = with_gpu_profiles(load_catalog(), "gpu-h100x1-80gb").models[TINY]
    await check_arguments(model, ENGINE_ENV)
