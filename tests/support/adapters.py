"""Small LoRA adapters in PEFT's form, written without its libraries."""

import csv
import io
import json
import random
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import openai
import pytest

from tests.support.stack import Stack, Tenant
from tests.support.waiting import until_sync

CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "down_proj"],
    "bias": "none",
}
SHAPES = {"self_attn.q_proj": (64, 256), "mlp.down_proj": (256, 512)}
"""Outputs and inputs of modules of penstock/tiny."""


def tensors(rank: int = 4, layers: int = 2) -> dict[str, tuple[int, int]]:
    """The shapes of an adapter's weights by name."""
    found = {}
    for layer in range(layers):
        for module, (outputs, inputs) in SHAPES.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            found[f"{name}.lora_A.weight"] = (rank, inputs)
            found[f"{name}.lora_B.weight"] = (outputs, rank)
    return found


def safetensors(shapes: dict[str, tuple[int, int]], seed: int = 7, scale: float = 0.5) -> bytes:
    """A safetensors file of F32 matrices with seeded random content."""
    rng, header, at, chunks = random.Random(seed), {}, 0, []
    for name, (rows, columns) in shapes.items():
        size = 4 * rows * columns
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [at, at + size]}
        at += size
        chunks.append(
            struct.pack(f"<{rows * columns}f", *(rng.gauss(0.0, scale) for _ in range(rows * columns)))
        )
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(chunks)


def adapter_files(seed: int = 7) -> dict[str, bytes]:
    """The files of an adapter of penstock/tiny."""
    return {
        "adapter_config.json": json.dumps(CONFIG).encode(),
        "adapter_model.safetensors": safetensors(tensors(), seed),
    }


def write_adapter(directory: Path, seed: int = 7) -> Path:
    """An adapter of penstock/tiny in a new directory."""
    directory.mkdir(parents=True)
    for name, content in adapter_files(seed).items():
        (directory / name).write_bytes(content)
    return directory


class Owner:
    """An owner of an organisation with a token, who calls the members' REST."""

    def __init__(self, stack: Stack, tenant: Tenant) -> None:
        email, password = f"owner-{tenant.id}@example.com", "battery staple horse"
        body = {"email": email, "password": password, "role": "tenant_owner", "tenant_id": tenant.id}
        stack.admin("POST", "/users", json=body)
        self._client = httpx.Client(base_url=stack.base_url, timeout=60.0)
        token = self._client.post("/sessions", json={"email": email, "password": password}).json()["secret"]
        self._client.headers["authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def upload(self, model: str, name: str, seed: int = 7) -> httpx.Response:
        """Upload an adapter as a browser's form does."""
        config, weights = adapter_files(seed).values()
        files = {"config": ("adapter_config.json", config), "weights": ("adapter_model.safetensors", weights)}
        return self._client.post("/organization/adapters", data={"model": model, "name": name}, files=files)

    def delete(self, adapter_id: str) -> httpx.Response:
        """Delete an adapter."""
        return self._client.post(f"/organization/adapters/{adapter_id}/delete")


def use_adapters(stack: Stack, model: str) -> None:
    """Two organisations upload an adapter each of one name; each gets its own answers, and no other's."""
    acme, other = stack.make_tenant("Acme"), stack.make_tenant("Other")
    with ExitStack() as opened:
        owners = [opened.enter_context(Owner(stack, each)) for each in (acme, other)]
        clients = {
            each.id: opened.enter_context(
                openai.OpenAI(base_url=stack.base_url, api_key=each.key, max_retries=0)
            )
            for each in (acme, other)
        }
        _use(stack, model, acme, other, owners, clients)


def _use(
    stack: Stack,
    model: str,
    acme: Tenant,
    other: Tenant,
    owners: list[Owner],
    clients: dict[str, openai.OpenAI],
) -> None:
    made = owners[0].upload(model, "support")
    assert made.status_code == 201, made.text
    theirs = owners[1].upload(model, "support", seed=8).json()["public_name"]
    ours = made.json()["public_name"]

    def said(tenant: Tenant, name: str) -> str:
        answer = clients[tenant.id].completions.create(
            model=name, prompt="The river fills the lake behind the dam and", max_tokens=8, temperature=0
        )
        assert answer.model == name
        return answer.choices[0].text

    def listed(tenant: Tenant) -> set[str]:
        return {each.id for each in clients[tenant.id].models.list() if each.id.startswith(f"{model}:")}

    until_sync(lambda: (listed(acme), listed(other)) == ({ours}, {theirs}), what="each sees its own adapter")
    plain = said(acme, model)
    answers = [said(acme, ours), said(other, theirs)]
    assert len({plain, *answers}) == 3
    assert (said(acme, ours), said(acme, model)) == (answers[0], plain)
    with pytest.raises(openai.NotFoundError):
        said(other, ours)

    def used() -> dict[str, tuple[str, str]]:
        rows = csv.DictReader(
            io.StringIO(
                stack.command(
                    "usage", "report", "--tenant", acme.id, "--by", "tag_adapter,model", "--format", "csv"
                )
            )
        )
        return {
            json.loads(row["tags"] or "{}").get("tag_adapter", ""): (row["model"], row["requests"])
            for row in rows
        }

    until_sync(lambda: used() == {"": (model, "2"), ours: (model, "2")}, what="usage leads to the adapter")
    assert owners[0].delete(made.json()["id"]).status_code == 200

    def refused() -> bool:
        try:
            said(acme, ours)
        except openai.NotFoundError:
            return True
        return False

    until_sync(refused, what="a deleted adapter is refused")
    assert said(other, theirs) == answers[1]
