"""The droplets of the fake cloud and how DigitalOcean's API shows them: droplets, sizes, actions."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any

DEFAULT_SIZES: Mapping[str, str] = {
    "s-1vcpu-1gb": "0.00893",
    "gpu-h100x1-80gb": "3.39",
    "gpu-h100x8-640gb": "23.92",
    "gpu-mi300x1-192gb": "2.59",
    "gpu-mi350x1-288gb-spot": "2.46",
}
"""Slug and dollars per hour. Sizes whose slug begins with `gpu-` make GPU droplets."""
REGIONS = ("nyc2", "tor1")
FEATURES = ["private_networking", "metadata"]


@dataclass
class Droplet:
    """A droplet. Times are whole Unix seconds."""

    droplet_id: int
    name: str
    size: str
    region: str
    image: str
    tags: list[str]
    usd_per_hour: Fraction
    created_at: int
    active_at: int
    shown_at: int
    """Before that it is 404 and in no list."""
    tagged_at: int = 0
    """When its tags are put on; the API does so after the create."""
    user_data: str = ""
    gone_at: int | None = None
    """When it is gone; in the future while it is being destroyed, or reclaimed."""
    destroying: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU droplet."""
        return self.size.startswith("gpu-")

    def tags_at(self, now: int) -> list[str]:
        """The tags that it carries."""
        return list(self.tags) if now >= self.tagged_at else []

    def status(self, now: int) -> str:
        """`new` until it is active."""
        return "active" if now >= self.active_at else "new"


@dataclass
class Action:
    """An entry of the account's list of actions."""

    action_id: int
    kind: str
    droplet_id: int
    region: str
    started_at: int
    completed_at: int
    fails: bool = field(default=False)

    def view(self, now: int) -> dict[str, Any]:
        """The action as the API shows it."""
        done = now >= self.completed_at
        return {
            "id": self.action_id,
            "status": ("errored" if self.fails else "completed") if done else "in-progress",
            "type": self.kind,
            "started_at": shown(self.started_at),
            "completed_at": shown(self.completed_at) if done else None,
            "resource_id": self.droplet_id,
            "resource_type": "droplet",
            "region": region_view(self.region),
            "region_slug": self.region,
        }


def shown(at: int) -> str:
    """An instant as the API writes it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=256)
def size_view(slug: str, usd_per_hour: Fraction) -> dict[str, Any]:
    """A size as the API shows it. The price is a binary float of single precision, as the real one is."""
    view: dict[str, Any] = {
        "slug": slug,
        "memory": 1024,
        "vcpus": 8,
        "disk": 25,
        "transfer": 15.0,
        "price_monthly": float(usd_per_hour * 672),
        "price_hourly": _single(usd_per_hour),
        "regions": list(REGIONS),
        "available": True,
        "description": "GPU" if slug.startswith("gpu-") else "Basic",
    }
    if slug.startswith("gpu-"):
        view["gpu_info"] = {"count": 1, "model": "nvidia_h100", "vram": {"amount": 80, "unit": "gib"}}
    return view


@lru_cache
def region_view(slug: str) -> dict[str, Any]:
    """A region as the API shows it."""
    return {
        "name": slug.upper(),
        "slug": slug,
        "features": FEATURES,
        "available": True,
        "sizes": list(DEFAULT_SIZES),
    }


def droplet_view(droplet: Droplet, now: int) -> dict[str, Any]:
    """A droplet as the API shows it."""
    active = droplet.status(now) == "active"
    number = droplet.droplet_id % 250 + 1
    private = {"ip_address": f"10.118.0.{number}", "netmask": "255.255.240.0", "type": "private"}
    return {
        "id": droplet.droplet_id,
        "name": droplet.name,
        "memory": 1024,
        "vcpus": 8,
        "disk": 25,
        "locked": not active or droplet.destroying,
        "status": droplet.status(now),
        "kernel": None,
        "created_at": shown(droplet.created_at),
        "features": FEATURES if active else [],
        "backup_ids": [],
        "next_backup_window": None,
        "snapshot_ids": [],
        "image": {
            "id": 161451,
            "name": droplet.image,
            "type": "base",
            "distribution": "Ubuntu",
            "slug": droplet.image,
            "public": True,
            "regions": list(REGIONS),
            "created_at": "2026-08-01T00:00:00Z",
            "min_disk_size": 20,
            "size_gigabytes": 2.5,
        },
        "volume_ids": [],
        "size": size_view(droplet.size, droplet.usd_per_hour),
        "size_slug": droplet.size,
        "networks": {"v4": [private] if active else [], "v6": []},
        "region": region_view(droplet.region),
        "tags": droplet.tags_at(now),
        "vpc_uuid": "760e09ef-dc84-11e8-981e-3cfdfeaae000",
    }


def _single(value: Fraction) -> float:
    """The binary float of single precision next to `value`, as a Python float: 3.39 becomes 3.390000104904175."""
    number: float = struct.unpack("f", struct.pack("f", float(value)))[0]
    return number
