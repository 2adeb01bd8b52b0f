"""Files of the public formats: what they say is taken exactly, and what is wrong is named with its line."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from core.errors import InvalidRequest
from sim.pool.contract import SimRequest
from sim.pool.workloads import files, mooncake, servegen
from sim.pool.workloads.lengths import read_azure
from sim.pool.workloads.mooncake import read_mooncake
from sim.pool.workloads.registry import workload
from sim.pool.workloads.trace import TraceWorkload

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def _row(at: int, tokens: int = 1024, ids: tuple[int, ...] = (1, 2), **more) -> str:
    return json.dumps({"timestamp": at, "input_length": tokens, "output_length": 7, "hash_ids": ids} | more)


def _play(path: Path, **options) -> list[SimRequest]:
    return list(workload(str(path), **options).requests(rate=1.0, seconds=4.0, seed=3))


def _file(tmp_path: Path, text: str, name: str = "trace.jsonl") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_mooncake_lines_become_requests(tmp_path: Path) -> None:
    lines = [_row(0, 1100, (1, 2, 3)), _row(1000, 600, (1, 9)), _row(2000, 2048, (1, 2, 5, 6)), _row(3000)]
    trace = read_mooncake(_file(tmp_path, "\n".join(lines) + "\n\n"), "t")
    assert trace.at_s.tolist() == [0, 1, 2, 3]
    assert trace.prompt_tokens.tolist() == [1100, 600, 2048, 1024]
    assert (trace.offsets[1:] - trace.offsets[:-1]).tolist() == [2, 1, 4, 2], "whole blocks only"
    played = TraceWorkload(trace, ["m"], seeded_start=False).requests(rate=1.0, seconds=4.0, seed=3)
    requests = partial, short, long, plain = list(played)
    assert plain.blocks == partial.blocks == long.blocks[:2]
    assert short.blocks == plain.blocks[:1]
    assert all(request.block_tokens == 512 and request.output_tokens == 7 for request in requests)


def test_equal_ids_after_different_ones_are_not_equal(tmp_path: Path) -> None:
    path = _file(tmp_path, "\n".join([_row(0, ids=(1, 2)), _row(1, ids=(3, 2))]))
    one, two = list(workload(str(path)).requests(rate=1.0, seconds=2.0, seed=1))
    assert one.blocks[1] != two.blocks[1]


def test_what_everybody_has_is_no_sign_of_a_tenant(tmp_path: Path) -> None:
    text = "\n".join(_row(number, 1536, (0, 100 + number // 4, 1000 + number)) for number in range(400))
    requests = list(workload(str(_file(tmp_path, text))).requests(rate=1.0, seconds=400.0, seed=1))
    assert len({request.session.rpartition("/")[0] for request in requests}) == 100
    assert len({request.tenant for request in requests}) > 20
    by_session: dict[str, set[str]] = {}
    for request in requests:
        by_session.setdefault(request.session, set()).add(request.tenant)
    assert all(len(tenants) == 1 for tenants in by_session.values())


def test_tenant_model_and_tier_are_taken_where_a_line_says_them(tmp_path: Path) -> None:
    text = "\n".join(
        _row(number, tenant="acme", model="m1", tier="batch", block_tokens=1024) for number in range(4)
    )
    path = _file(tmp_path, text)
    source = workload(str(path))
    assert source.models == ("m1",)
    [request, *_] = _play(path)
    assert (request.tenant, request.model, request.tier, request.block_tokens) == (
        "acme",
        "m1",
        "batch",
        1024,
    )
    assert {request.model for request in _play(path, models=["other"])} == {"other"}


def test_gzip_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(
        gzip.compress(b"\xef\xbb\xbf" + (AZURE + "2023-11-16 18:17:03.9799600,48,10\n").encode())
    )
    [request] = list(workload(str(path)).requests(rate=1.0, seconds=1.0, seed=1))
    assert (request.prompt_tokens, request.output_tokens, request.blocks) == (48, 10, ())


def test_azures_clock_is_read_to_the_digit(tmp_path: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,1,2\n2023-11-16 18:17:04.0319601,3,0\n2023-11-17 00:00:00,5,6\n"
    trace = read_azure(_file(tmp_path, AZURE + rows), "a")
    assert trace.at_s.tolist() == pytest.approx([0.0, 0.0520001, 20576.02004], abs=1e-6)


def test_azures_clock_of_2024_and_an_empty_first_line(tmp_path: Path) -> None:
    text = "\n" + AZURE + "2024-05-10 00:00:00.5+00:00,3,1\n2024-05-10 00:00:01.25+00:00,4,2\n"
    trace = read_azure(_file(tmp_path, text), "t")
    assert trace.at_s.tolist() == [0, 0.75]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_unknown(name: str) -> None:
    with pytest.raises(InvalidRequest, match="no workload and no file"):
        workload(name)


def test_vidurs_lengths_arrive_at_random(tmp_path: Path) -> None:
    head = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    path = _file(
        tmp_path, head + "".join(f"{100 + n},{n + 1},{101 + 2 * n},1.5\n" for n in range(4)), "v.csv"
    )
    assert {request.prompt_tokens for request in _play(path)} == {100, 101, 102, 103}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither a Mooncake request"),
        ("hello\n", r"line 1: neither a Mooncake request .* nor the header TIMESTAMP"),
        ("{}\n", "line 1: not a Mooncake request: .*timestamp"),
        (_row(0) + "\n" + "{\n", "line 2: not a Mooncake request"),
        (_row(0) + "\n\n" + _row(5, -1), "line 3: input_length is -1"),
        (_row(0, 10**9, ()), "line 1: input_length is 1000000000"),
        (_row(5) + "\n" + _row(4), "line 2: timestamp 4 is before the previous line's 5"),
        (_row(0, 512, (1, 2, 3)), "line 1: 3 hash_ids are too many for 512 tokens"),
        (_row(0, ids=(-1, 2)), "line 1: hash_ids must be whole numbers"),
        (_row(0, ids=(1.5, 2)), "line 1: not a Mooncake request"),
        (_row(-1), "line 1: timestamp is -1.0"),
        (_row(0, tier="gold"), "line 1: tier is 'gold'"),
        (_row(0, block_tokens=0), "line 1: block_tokens is 0"),
        (_row(0, weight=0), "line 1: weight is 0"),
        (_row(0, cached_tokens=-5), "line 1: cached_tokens is -5"),
        (_row(0, ttft_ms=-2), "line 1: queue_ms, ttft_ms and total_ms"),
        (_row(0, total_ms=10**30), "line 1: queue_ms, ttft_ms and total_ms"),
        (AZURE, "line 1: the file has no requests"),
        (AZURE + "2023-11-16 18:17:03,1\n", "line 2: 2 columns"),
        (AZURE + "yesterday,1,2\n", "line 2: TIMESTAMP is 'yesterday'"),
        (AZURE + "2023-11-16 18:17:03,1.5,2\n", "line 2: ContextTokens is '1.5'"),
        (AZURE + "2023-11-16 18:17:03,1,2\n2023-11-16 18:17:02,1,2\n", "line 3: .* before the previous"),
        ("num_prefill_tokens,num_decode_tokens\n3,x\n", "line 2: num_decode_tokens is 'x'"),
        ("num_prefill_tokens,num_decode_tokens\ninf,1\n", "line 2: num_prefill_tokens is 'inf'"),
        (_row(0, 200_000, ()), "no request that fits a context of 32,768"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_reason(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        workload(str(_file(tmp_path, text)))


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path, "\n".join(_row(number) for number in range(50)))
    for module, name, limit, why in (
        (files, "MAX_ROWS", 10, "line 11: more than 10 rows"),
        (files, "MAX_LINE_BYTES", 50, "line 1: longer than 50 bytes"),
        (files, "MAX_FILE_BYTES", 300, "the file is larger than 300 bytes"),
        (mooncake, "MAX_IDS", 20, "line 11: more than 20 hash_ids"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, limit)
            with pytest.raises(InvalidRequest, match=why):
                workload(str(path))


def test_damaged_gzip_and_other_bytes_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(_row(number) for number in range(50)).encode())
    for content, why in ((whole[:-40], "damaged"), (b"\xff\xfe\x00x", "not UTF-8")):
        path = tmp_path / "broken"
        path.write_bytes(content)
        with pytest.raises(InvalidRequest, match=why):
            workload(str(path))


def _tar(tmp_path: Path, **members: str) -> Path:
    path = tmp_path / "clients.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(f"language/x/{name.replace('_', '-', 2).replace('_', '.')}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


TRACE = "0,2.0,1.0,Gamma,1.0,0.5\n600,0,,,0,0\n1200,1.0,3.0,Weibull,0.5,0.5\n"
DATA = json.dumps({"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{7: 1.0}"}, "600": {}})


def test_servegens_clients_are_tenants_with_their_lengths(tmp_path: Path) -> None:
    path = _tar(tmp_path, chunk_1_trace_csv=TRACE, chunk_1_dataset_json=DATA, chunk_2_trace_csv=TRACE)
    requests = list(workload(str(path)).requests(rate=5.0, seconds=100.0, seed=1))
    assert len(requests) == 500
    assert {request.tenant for request in requests} == {"client-001"}, "client 2 has no lengths"
    assert {request.prompt_tokens for request in requests} == {100, 200}
    assert {request.output_tokens for request in requests} == {7}


@pytest.mark.parametrize(
    ("trace", "data", "why"),
    [
        ("0,1\n", DATA, r"chunk-1-trace.csv, line 1: not start, rate"),
        ("0,1,1,Pareto,1,1\n", DATA, "inter-arrivals are 'Pareto'"),
        ("0,nan,1,Gamma,1,1\n", DATA, "line 1: a number is out of range"),
        (TRACE + "5,1,1,Gamma,1,1\n", DATA, "line 4: windows must follow"),
        (TRACE, "[1]", "chunk-1-dataset.json is not JSON of windows"),
        (TRACE, json.dumps({"0": {"input_tokens": "{a: 1}", "output_tokens": "{1: 1}"}}), "window 0: not"),
        (TRACE, json.dumps({"0": {"input_tokens": "{1: 9}", "output_tokens": "{1: 1}"}}), "out of range"),
        (TRACE, "{}", "holds no client"),
    ],
)
def test_a_wrong_tar_is_refused_with_member_and_reason(
    tmp_path: Path, trace: str, data: str, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        workload(str(_tar(tmp_path, chunk_1_trace_csv=trace, chunk_1_dataset_json=data)))


def test_a_tar_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _tar(tmp_path, chunk_1_trace_csv=TRACE, chunk_1_dataset_json=DATA)
    monkeypatch.setattr(servegen, "MAX_MEMBER_BYTES", 20)
    with pytest.raises(InvalidRequest, match="larger than 20 bytes"):
        workload(str(path))
