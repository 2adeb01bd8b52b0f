"""The sign-in form before it asks the database: what is refused as no form, and who may name the client."""

from types import SimpleNamespace
from typing import cast

import httpx
from fastapi import FastAPI

from console.deps import Console
from console.serve import server_config
from console.sign_in import MAX_FIELDS, MAX_FORM_BYTES, add_sign_in
from core.settings import Settings


async def test_a_form_of_too_many_fields_or_bytes_is_refused() -> None:
    app = FastAPI()
    add_sign_in(app, cast(Console, SimpleNamespace(settings=Settings())))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://console") as browser:
        many = await browser.post("/sign-in", data={f"f{n}": "x" for n in range(MAX_FIELDS + 1)})
        assert (many.status_code, f"more than {MAX_FIELDS} fields" in many.text) == (400, True)
        large = await browser.post("/sign-in", data={"email": "x" * MAX_FORM_BYTES})
        assert large.status_code == 413


def test_only_the_edge_that_is_set_names_the_client() -> None:
    trusted = server_config(FastAPI(), Settings(trusted_proxies="172.16.0.0/12,10.0.0.1")).forwarded_allow_ips
    assert trusted == ["172.16.0.0/12", "10.0.0.1/32"]
    assert server_config(FastAPI(), Settings(trusted_proxies="")).forwarded_allow_ips == ["127.0.0.1", "::1"]
