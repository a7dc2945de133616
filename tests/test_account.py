"""The account: true in every line and every total."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import division
from division.account import Record, Report
from division.codecs.dual import Dual
from division.private import Storage, storage_of
from tests.models import WAYS, Copying, convnet, go, images, mlp


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def test_bytes_of_a_known_net() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    with division.compress("lossless") as context:
        model(images(2, 3, 16, 16)).sum()
    x, h = 2 * 3 * 16 * 16 * 4, 2 * 8 * 14 * 14 * 4
    report = context.report
    assert report.raw_bytes == x + h  # the batch, and the ReLU's result, which the second conv saves too
    assert report.code_bytes == 0  # the second conv keeps that result as it is: its signs beside it would only add
    assert report.packed_bytes == report.left_bytes == x + h
    assert [r.left for r in report.records if r.use == "sign"] == ["kept as it is for ConvolutionBackward0.input"]
    with division.compress("division", inputs=True) as context:
        model(images(2, 3, 16, 16)).sum()
    report = context.report
    signs, first, second = 2 * 8 * 14 * 14 // 8, 6 * (2 * 4 + 64 + 4), 16 * (2 * 4 + 49 + 4)
    assert report.raw_bytes == x + h
    assert report.left_bytes == 0
    assert report.packed_bytes == report.code_bytes == signs + first + second
    assert report.ratio == (x + h) / (signs + first + second)


def test_every_record_says_what_became_of_it() -> None:
    with division.compress("division") as context:
        convnet()(images()).sum()
    for r in context.report.records:
        assert bool(r.left) is not bool(r.codec)
        assert not (r.left and (r.packed_bytes or r.shared))
        if r.shape:
            assert r.raw_bytes == torch.Size(r.shape).numel() * r.dtype.itemsize
    reasons = {(r.node, r.field): r.left for r in context.report.records}
    assert reasons["ConvolutionBackward0", "weight"] == "weight"
    assert reasons["NativeBatchNormBackward0", "running_mean"] == "state"
    assert reasons["NativeBatchNormBackward0", "result1"] == "no rule"
    first = context.report.records[[r.field for r in context.report.records].index("input")]
    assert first.left == "made by no node: its owner still holds it"


def test_weights_and_state_count_neither_raw_nor_packed() -> None:
    big = nn.Linear(512, 512)
    norm = nn.BatchNorm1d(512).eval()
    with division.compress("none") as context:
        norm(big(torch.randn(2, 512))).sum()
    # the batch and the norm's input
    assert context.report.raw_bytes <= 2 * 2 * 512 * 4 + 8
    model = nn.Sequential(big, norm)
    with division.attach(model, "none") as handle:
        model(torch.randn(2, 512))
    assert {r.left for r in handle.report.records if r.field.startswith("running")} == {"state"}


def test_a_view_counts_the_storage_under_it_once() -> None:
    x, w = leaf(64, 96), nn.Parameter(torch.randn(64, 32))
    with division.compress("none") as context:
        h = x + 0
        q, k, v = h.chunk(3, 1)
        (q * w + k * w + v * w).sum()
    assert context.report.raw_bytes == h.nbytes
    with division.compress("division") as context:
        h = x + 0
        q, k, v = h.chunk(3, 1)
        (q * w + k * w + v * w).sum()
    assert context.report.raw_bytes == h.nbytes
    assert sum(not r.left for r in context.report.records) == 3
    assert context.report.left_bytes == 0


def test_a_shared_code_is_counted_once_and_names_its_owner() -> None:
    layers = [nn.Linear(64, 64) for _ in range(3)]
    x = leaf(4, 64)
    with division.compress("division") as context:
        h = x + 0
        sum(layer(h) for layer in layers).sum()  # type: ignore[union-attr]
    inputs = [r for r in context.report.records if r.field == "mat1"]
    assert [bool(r.packed_bytes) for r in inputs] == [True, False, False]
    assert [r.shared for r in inputs] == ["", "AddmmBackward0.mat1", "AddmmBackward0.mat1"]
    assert context.report.raw_bytes == h.nbytes
    assert context.report.packed_bytes == inputs[0].packed_bytes
    assert "shared with AddmmBackward0.mat1" in str(context.report)


def test_what_the_caller_keeps_is_reported_as_held() -> None:
    model, kept = mlp(), []
    with division.compress("division") as context:
        h = images(4, 64)
        for layer in model:
            h = layer(h)
            kept.append(h)
    held = {(r.node, r.field): r.held for r in context.report.records if not r.left}
    assert held[("GeluBackward0", "self")] is True
    assert context.report.held_bytes == 3 * (4 * 64 * 4)
    assert "held    3.0 KiB" in str(context.report)
    assert "still held elsewhere" in str(context.report)
    kept.clear()
    with division.compress("division") as context:
        model(images(4, 64)).sum()
    assert context.report.held_bytes == 0
    assert "held  " not in str(context.report)


def test_totals_add_up_over_steps() -> None:
    context = division.compress("division")
    model = mlp()
    raw = packed = 0
    assert (context.report.steps, context.report.total_raw_bytes, context.report.ratio) == (0, 0, 1.0)
    assert "never entered" in str(context.report)
    for i in range(1, 4):
        with context:
            model(images(4 * i, 64)).sum().backward()
        raw, packed = raw + context.report.raw_bytes, packed + context.report.packed_bytes
        assert context.report.steps == i
        assert (context.report.total_raw_bytes, context.report.total_packed_bytes) == (raw, packed)
    assert context.report.raw_bytes < raw
    with context, torch.no_grad():
        model(images(4, 64))
    assert (context.report.raw_bytes, context.report.packed_bytes, context.report.ratio) == (0, 0, 1.0)
    assert (context.report.total_raw_bytes, context.report.total_packed_bytes) == (raw, packed)


@pytest.mark.parametrize("why", ["no_grad", "inference", "frozen"])
def test_a_step_that_saved_nothing_says_so(why: str) -> None:
    model = mlp().requires_grad_(why != "frozen")
    mode = {"no_grad": torch.no_grad(), "inference": torch.inference_mode()}.get(why, nullcontext())
    with division.compress() as context, mode:
        model.eval()(images(4, 64))
    assert "saved nothing for backward" in str(context.report)
    assert context.report.to_rows() == []


def test_eval_mode_alone_is_accounted_as_any_other() -> None:
    with division.compress("division") as context:
        convnet().eval()(images()).sum()
    assert context.report.ratio > 1


def test_the_report_reads_largest_first_and_is_plain_data() -> None:
    with division.compress("division") as context:
        convnet(32)(images()).sum()
    lines = str(context.report).splitlines()
    assert lines[0].startswith("division: step 1, ")
    table = lines[next(i for i, line in enumerate(lines) if "saved by" in line) + 1 :]
    largest = max(context.report.records, key=lambda r: r.raw_bytes)
    assert f"{largest.node}.{largest.field}" in table[0]
    assert "x".join(map(str, largest.shape)) in table[0]
    rows = context.report.to_rows()
    assert json.loads(json.dumps(rows)) == rows
    assert {"module", "node", "field", "use", "shape", "dtype", "raw_bytes", "packed_bytes", "shared", "left"} <= set(
        rows[0]
    )
    assert sum(row["packed_bytes"] for row in rows) == context.report.code_bytes
    assert rows[0]["dtype"] == "float32"


def test_many_records_are_cut_and_counted() -> None:
    x = leaf(4)
    with division.compress("none") as context:
        h = x + 0
        for _ in range(50):
            h = h.sin()
    assert str(context.report).endswith("and 20 smaller; to_rows() has all")


def test_a_report_and_its_context_read_as_one_line() -> None:
    context = division.compress("none")
    assert repr(context) == "compress(Nothing(), Report(no step yet))"
    x = leaf(256)
    with context:
        (x + 0).sin()
    assert repr(context.report) == "Report(step 1: 1 saved tensors, 1.0 KiB kept in 1.0 KiB, ratio 1.00)"
    assert repr(context) == f"compress(Nothing(), {context.report!r})"


def test_modules_have_a_column_where_a_model_is_attached() -> None:
    model = mlp()
    with division.compress("none") as context:
        model(torch.randn(8, 64))
    assert not any(line.startswith("module") for line in str(context.report).splitlines())
    with division.attach(model, "none") as handle:
        model(torch.randn(8, 64))
    assert any(line.startswith("module  saved by") for line in str(handle.report).splitlines())


def line(field: str, memory: Storage, left: str = "") -> Record:
    return Record("", "N", field, "", (25,), torch.float32, 100, memory, left)


def test_a_left_and_a_coded_view_of_one_storage_count_whole_and_the_code_besides() -> None:
    memory, weight = storage_of(torch.zeros(25)), storage_of(torch.zeros(25))
    coded = line("f", memory)
    coded.coded_by, coded.packed_bytes = Dual(), 10
    report = Report()
    report.begin_step()
    report.records += [coded, line("f", memory, "no rule"), line("w", weight, "weight")]
    assert (report.raw_bytes, report.code_bytes, report.left_bytes, report.packed_bytes) == (100, 10, 100, 110)


def test_a_batch_that_requires_a_gradient_is_no_weight() -> None:
    model, x = convnet(), images().requires_grad_()
    with division.attach(model, "none") as handle:
        model(x).sum().backward()
    first = next(r for r in handle.report.records if r.field == "input")
    assert first.left != "weight"
    assert handle.report.raw_bytes >= x.nbytes


def test_failed_steps_are_settled_too() -> None:
    context = division.compress(Copying())
    with pytest.raises(ZeroDivisionError), context:
        _: Any = (leaf(4, 4) + 0).relu() * leaf(4, 4) / (1 // 0)
    assert all(r.held is not None and r.reference is None for r in context.report.records if r.shape)
