"""Three hundred clients leave at random instants, on four APIs: no answer crosses, and each request is billed once."""

import random
from pathlib import Path

import pytest

from admin import credits as admin_credits
from bench.cancels.asks import APIS
from bench.cancels.run import Platform, Run
from bench.chaos.traffic import Customer
from sim.engine.request_log import VARIABLE
from tests.support.api_process import MODEL, api_process
from tests.support.tenancy import ADMIN, make_organisation

CANCELS = 300


@pytest.mark.promise(1, 2, 4, 6, 8, 24)
async def test_answers_of_clients_that_leave_do_not_cross(
    pg_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "engines.jsonl"
    monkeypatch.setenv(VARIABLE, str(log))
    seed = random.SystemRandom().randrange(1_000_000)
    async with api_process(
        pg_url, redis_url, tmp_path, credit="100", engines=2, speedup=2.0, listings_per_min=0
    ) as api:
        birch = await make_organisation(api.database, "Birch")
        await admin_credits.grant_credit(
            api.database, ADMIN, tenant_id=birch.tenant_id, amount_usd="100", reason="test"
        )
        customers = [
            Customer(name, str(each.tenant_id), each.key)
            for name, each in (("Acme", api.organisation), ("Birch", birch))
        ]
        platform = Platform(api.url, MODEL, customers, pg_url, log)
        outcome = await Run(platform, seed, CANCELS, 48, lambda _: None).play()
    assert outcome.sound, f"seed {seed}: {outcome.audit.violations[:10]}"
    # These say that there was something to compare.
    assert outcome.cancels >= CANCELS
    assert {kind.split()[0] for kind in outcome.left} == set(APIS)
    stages = {stage for by_stage in outcome.left.values() for stage in by_stage}
    assert stages == {"before the head", "before the first token", "in the middle", "at the end"}
    assert outcome.reused > CANCELS / 10
    assert outcome.read > CANCELS / 10
    assert outcome.audit.compared > CANCELS / 2
    assert 0 < outcome.audit.delivered <= outcome.audit.billed
