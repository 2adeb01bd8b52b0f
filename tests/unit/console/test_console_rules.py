"""Who may open what, what may be typed, and which period is meant."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection

from billing.pricing.prices import PriceView
from billing.reports.activity import Minute
from console.access import AccessRules, cookie_name
from console.app import PAGES
from console.pages.models import unpriced
from console.pages.pools import problems
from console.panels.amounts import parse_instant, parse_usd
from console.panels.limits import parse_limit
from console.panels.prices import parse_rate, price_state
from console.panels.report_choice import read_options
from console.panels.scheduling import hosts_line
from console.panels.share import parse_share
from console.periods import form_period, named_period
from console.sign_in import local_target
from console.time_series import resample
from console.viewer import PLATFORM_ROLES, TENANT_ROLES
from core.cross_site import is_cross_site
from scheduler.wire import (
    HostCreationView,
    HostRemovalView,
    HostView,
    KindPlanView,
    PlanChangeView,
    PlanView,
    PoolSnapshot,
)
from tests.support.scheduling import replica
from workers.wire import AcceptanceFinding, AcceptanceReport, ReplicaState

TODAY = date(2026, 3, 5)
NOW = datetime(2026, 3, 5, 12, 0, 30, tzinfo=UTC)


def test_every_page_names_its_roles_and_unknown_paths_have_none() -> None:
    access = AccessRules([(page.path.split("/{")[0], page.roles) for page in PAGES])
    assert access.roles("/tenants/01a1/anything") == PLATFORM_ROLES
    assert access.roles("/home") == TENANT_ROLES
    assert access.roles("/usage/download") == PLATFORM_ROLES | TENANT_ROLES
    assert access.roles("/tenantsx") is None
    assert access.roles("/docs") is None
    assert all(page.roles for page in PAGES)


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("/usage?by=day", "/usage?by=day"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_nowhere_else(target: str, kept: str) -> None:
    assert local_target(target) == kept


@pytest.mark.parametrize(
    ("method", "headers", "refused"),
    [
        ("POST", {"origin": "https://evil.example"}, True),
        ("POST", {"origin": "null"}, True),
        ("POST", {"sec-fetch-site": "cross-site"}, True),
        ("POST", {"sec-fetch-site": "same-site"}, True),
        ("POST", {"origin": "http://console.example", "sec-fetch-site": "same-origin"}, False),
        ("POST", {}, False),
        ("GET", {"sec-fetch-site": "cross-site"}, False),  # a link
        ("GET", {"origin": "https://evil.example"}, True),  # a WebSocket
    ],
)
def test_what_a_page_of_another_site_sends_is_refused(
    method: str, headers: dict[str, str], refused: bool
) -> None:
    pairs = {"host": "console.example", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": "/sign-in",
        "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
    }
    assert is_cross_site(HTTPConnection(scope)) == refused


def test_the_cookie_is_pinned_to_the_host_behind_tls() -> None:
    assert cookie_name(secure=True).startswith("__Host-")
    assert not cookie_name(secure=False).startswith("__Host-")


@pytest.mark.parametrize(
    ("typed", "limit"), [("", None), (" 600 ", 600), ("1,200", 1200), ("1 000 000", 1_000_000)]
)
def test_limits_as_typed(typed: str, limit: int | None) -> None:
    assert parse_limit(typed) == limit


@pytest.mark.parametrize("typed", ["0", "-5", "many", "1.5", "1e3", "٣", "9" * 16])
def test_limits_that_are_none(typed: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_limit(typed)


@pytest.mark.parametrize(
    ("typed", "usd"), [("25", "25"), ("$1,250.50", "1250.50"), (" 0.000001 ", "0.000001")]
)
def test_amounts_as_typed(typed: str, usd: str) -> None:
    assert parse_usd(typed) == usd


@pytest.mark.parametrize("typed", ["", "ten", "-1", "0", "NaN", "Infinity", "1.0000000000001"])
def test_amounts_that_are_none(typed: str) -> None:
    with pytest.raises(ValueError, match="amount"):
        parse_usd(typed)


def test_rates_and_starts_as_typed() -> None:
    assert parse_rate("$0.50") == "0.50"
    with pytest.raises(ValueError, match="per million"):
        parse_rate("0.0000001")
    assert parse_instant("") is None
    assert parse_instant("2026-12-01 14:30") == datetime(2026, 12, 1, 14, 30, tzinfo=UTC)
    with pytest.raises(ValueError, match="UTC date"):
        parse_instant("tomorrow")


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("month", date(2026, 3, 1), TODAY),
        ("last_month", date(2026, 2, 1), date(2026, 2, 28)),
        ("7d", date(2026, 2, 27), TODAY),
        ("today", TODAY, TODAY),
        ("nonsense", date(2026, 3, 1), TODAY),
    ],
)
def test_periods(name: str, first: date, last: date) -> None:
    period = named_period(name, TODAY)
    assert (period.first, period.last) == (first, last)
    assert period.end - period.start == timedelta(days=(last - first).days + 1)


def test_chosen_days_are_put_in_order_and_checked() -> None:
    period = form_period("custom", "2026-02-10", "2026-02-01", TODAY)
    assert (period.first, period.last) == (date(2026, 2, 1), date(2026, 2, 10))
    with pytest.raises(ValueError, match="2026-11-20"):
        form_period("custom", "2026-13-40", "x", TODAY)
    with pytest.raises(ValueError, match="at once"):
        form_period("custom", "1999-01-01", "2026-01-01", TODAY)


def test_a_tenant_cannot_name_another_in_the_address() -> None:
    params = QueryParams("tenant=01a1fb37-c67a-7e58-a725-e144e47f0efd&by=tenant,model,rubbish&period=never")
    choice = read_options(params, is_platform=False)
    assert choice.tenant == ""
    assert choice.by == ("model",)
    assert choice.period == "month"
    assert read_options(params, is_platform=True).tenant


def _price(model: str, start: datetime, end: datetime | None = None) -> PriceView:
    return PriceView(
        id=1,
        model=model,
        tier="standard",
        tenant_id=None,
        input="1",
        cached_input="1",
        output="1",
        reasoning="1",
        effective_from=start.isoformat(),
        effective_to=None if end is None else end.isoformat(),
        status="current",
        contract_id=None,
        ended_by=None,
        created_by="test",
    )


def test_a_model_is_unpriced_until_a_list_price_is_in_force() -> None:
    hour = timedelta(hours=1)
    prices = [_price("now", NOW - hour), _price("later", NOW + hour), _price("over", NOW - hour, NOW)]
    assert [price_state(price, NOW)[0] for price in prices] == ["In force", "Scheduled", "Ended"]
    assert unpriced(["now", "later", "over", "never"], prices, NOW) == ["later", "never", "over"]


def test_what_is_wrong_comes_first() -> None:
    snapshot = PoolSnapshot(
        replicas=[replica("h/r0", state=ReplicaState.FAILED, detail="exited with 1")],
        hosts=[HostView("h", "a", "local-cpu", "local", 0, last_seen_s=60.0)],
    )
    found = [headline for headline, _ in problems(snapshot, connected=False)]
    assert found[0] == "The scheduler is not connected"
    assert "Replica h/r0 has failed" in found
    assert "Host h is silent" in found
    assert any(headline.startswith("No replica serves") for headline in found)
    assert problems(PoolSnapshot(replicas=[replica()]), connected=True) == []


def test_a_refused_host_is_a_problem_with_its_first_reason() -> None:
    finding = AcceptanceFinding("refused", "xid", "GPU 2: the driver reported Xid 79")
    host = HostView(
        "h", "a", "gpu-h100x8-640gb", "nyc2", 8, 0.1, acceptance=AcceptanceReport("refused", 0, [finding])
    )
    assert problems(PoolSnapshot(hosts=[host]), connected=True) == [
        ("Host h is refused", "GPU 2: the driver reported Xid 79")
    ]


def test_the_series_is_even_and_adds_up() -> None:
    since = NOW - timedelta(hours=1)
    minutes = [
        Minute(since.replace(second=0) + timedelta(minutes=n), 2, 10, 5, "0.000000000001", 100 + n, 200 + n)
        for n in (3, 4, 17)
    ]
    points = resample(minutes, since, NOW, 5)
    assert len(points) == 12
    assert sum(point.requests for point in points) == 6
    assert sum((point.cost for point in points), Decimal(0)) == Decimal("0.000000000003")
    assert (points[0].ttft_p50_ms, points[0].ttft_p95_ms) == (104, 204)
    assert points[1].ttft_p50_ms is None


def test_what_the_plan_would_do_to_hosts_is_one_line() -> None:
    assert hosts_line(PlanView()) == ""
    move = PlanChangeView("host-1/r0", "awake", "sleep_1", "idle")
    plan = PlanView(
        changes=[move],
        changes_total=4,
        kinds=[KindPlanView("gpu-a", 0, 0, 2), KindPlanView("gpu-b", 2, 0, 0, failures=3, retry_in_s=100.0)],
        create=[
            HostCreationView("gpu-a", "m", 2, "load"),
            HostCreationView("gpu-a", "m", 1, "load", ("tor1", "nyc2")),
        ],
        destroy=[
            HostRemovalView("host-7", "gpu-b", "idle"),
            HostRemovalView("host-8", "gpu-b", "idle", "tor1"),
        ],
    )
    assert hosts_line(plan) == (
        "Would create 2 gpu-a for m; would create 1 gpu-a in tor1 or nyc2 for m; would give back host-7, host-8 in "
        "tor1; gpu-b failed 3 times, next attempt in 1 min 40 s; "
        "3 more moves are not listed"
    )


@pytest.mark.parametrize(("typed", "percent"), [("100", 100), (" 250 % ", 250), ("10,000", 10_000), ("1", 1)])
def test_a_share_is_read_as_people_type_it(typed: str, percent: int) -> None:
    assert parse_share(typed) == percent


@pytest.mark.parametrize("typed", ["", "0", "-5", "10001", "1.5", "much", "٣", "9" * 400])
def test_what_is_no_share_is_refused_with_the_range(typed: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 10000"):
        parse_share(typed)
