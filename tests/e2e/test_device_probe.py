"""The measurement of devices runs with the engine's own PyTorch; without a GPU, on the processor."""

import pytest

from tests.e2e.test_engine import ENGINE_ENV
from workers.acceptance.bandwidth import measure_devices

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


async def test_the_engines_pytorch_measures_a_device() -> None:
    (device,) = await measure_devices(ENGINE_ENV, kind="cpu", copy_bytes=1 << 22)
    assert device.index == 0
    assert min(device.memory_gb_per_s, device.to_device_gb_per_s, device.from_device_gb_per_s) > 0.01
    assert 0 < device.launch_us < 1e6


async def test_gpus_that_pytorch_cannot_use_give_no_figures() -> None:
    assert await measure_devices(ENGINE_ENV, kind="cuda:99") == ()
