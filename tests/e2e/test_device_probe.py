"""The measurement of devices runs with the engine's own PyTorch; without a GPU, on the processor."""

from pathlib import Path

import pytest

from tests.e2e.test_engine import ENGINE_ENV
from workers.acceptance.bandwidth import measure_devices
from workers.acceptance.readings import DevicesReading

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


async def test_the_engines_pytorch_measures_a_device() -> None:
    reading = await measure_devices(ENGINE_ENV, kind="cpu", copy_bytes=1 << 22)
    assert reading is not None
    assert reading.error == ""
    (device,) = reading.devices
    assert device.index == 0
    assert min(device.memory_gb_per_s, device.to_device_gb_per_s, device.from_device_gb_per_s) > 0.01
    assert 0 < device.launch_us < 1e6


async def test_gpus_that_pytorch_does_not_see_have_no_figures() -> None:
    assert await measure_devices(ENGINE_ENV, kind="cuda") == DevicesReading()


async def test_without_an_engine_nothing_is_measured(tmp_path: Path) -> None:
    assert await measure_devices(tmp_path, kind="cpu") is None
