import dataclasses

import pytest
import torch

from division.bench.kernels import Case, cases, measure
from division.bench.settings import QUICK_KERNELS, KernelSettings
from division.bench.subjects import LAYOUTS, NAMES, SUBJECTS
from division.kernels.cpu import library
from tests.bench.clock import Scripted

ONE = KernelSettings(("dual",), (2,), ((2, 3, 8, 8),), ("float32",), ("contiguous",), repeats=3, seconds=1e9)
COLUMNS = {
    "op", "codec", "bits", "shape", "dtype", "layout", "device", "device_name", "body", "why", "time_ratio", "gbps",
    "bytes", "seconds", "spread", "repeats", "threads", "torch", "triton", "division", "python", "commit", "time",
}  # fmt: skip


def test_ratio_and_rate_are_those_of_the_medians() -> None:
    # Three rounds of three runs, each round beginning with the next of clone, encode, decode.
    turns = [("clone", 2.0), ("encode", 6.0), ("decode", 1.0)]
    turns += [("encode", 60.0), ("decode", 3.0), ("clone", 4.0)]
    turns += [("decode", 2.0), ("clone", 4.0), ("encode", 8.0)]
    rows = list(measure(ONE, clock=Scripted(lambda run: turns[run][1])))
    assert [row["op"] for row in rows] == ["encode", "decode", "clone"]
    encode, decode, clone = rows
    x, code = 2 * 3 * 8 * 8 * 4, 6 * (2 + 16 + 4)
    assert (encode["seconds"], encode["time_ratio"], encode["bytes"]) == (8.0, 2.0, x + code)
    assert (decode["seconds"], decode["time_ratio"], decode["bytes"]) == (2.0, 0.5, x + code)
    assert (clone["seconds"], clone["time_ratio"], clone["bytes"]) == (4.0, 1.0, 2 * x)
    assert [row["gbps"] for row in rows] == [float(f"{row['bytes'] / row['seconds'] / 1e9:.5g}") for row in rows]
    assert clone["spread"] == 0.25
    assert [row["repeats"] for row in rows] == [3, 3, 3]


def test_rows_say_what_and_where() -> None:
    rows = list(measure(ONE))
    assert all(set(row) == COLUMNS for row in rows)
    encode = rows[0]
    named = ("codec", "bits", "shape", "dtype", "layout", "device", "body", "threads")
    assert tuple(encode[name] for name in named) == (
        "dual", 2, [2, 3, 8, 8], "float32", "contiguous", "cpu", library.body(), torch.get_num_threads(),
    )  # fmt: skip
    assert (rows[2]["codec"], rows[2]["bits"], rows[2]["body"]) == ("clone", 32, "torch")


def test_a_body_can_be_forced() -> None:
    rows = list(measure(dataclasses.replace(ONE, body="reference")))
    assert [row["body"] for row in rows] == ["reference", "reference", "torch"]
    assert rows[0]["why"]


def test_the_quick_form_measures_every_codec_in_both_layouts() -> None:
    told: list[int] = []
    rows = list(measure(QUICK_KERNELS, lambda done, what: told.append(done), Scripted(lambda run: 1.0)))
    coded = [row for row in rows if row["op"] != "clone"]
    assert told == list(range(len(cases(QUICK_KERNELS))))
    assert len(coded) == 2 * len(told)
    assert {row["codec"] for row in coded} == set(NAMES)
    assert {row["layout"] for row in coded} == set(LAYOUTS)
    assert {row["op"] for row in coded} == {"encode", "decode"}
    places = {(tuple(row["shape"]), row["dtype"], row["layout"]) for row in coded}
    copies = [(tuple(row["shape"]), row["dtype"], row["layout"]) for row in rows if row["op"] == "clone"]
    assert len(copies) == len(places)
    assert set(copies) == places


def test_cases_go_with_shape_and_dtype() -> None:
    every = cases(KernelSettings())
    assert not any(case.layout == "channels_last" for case in every if len(case.shape) == 2)
    assert {case.dtype for case in every if case.subject.name == "window"} == {"int64"}
    assert {case.dtype for case in every if case.subject.name == "mask"} == {"bool", "float32"}
    assert {case.dtype for case in every if case.subject.name == "dual"} == {"float32", "bfloat16", "float16"}
    assert {len(case.shape) for case in every if case.subject.name == "group-rows"} == {2}
    assert {len(case.shape) for case in every if case.subject.name == "group"} == {4}
    only = KernelSettings(("dual",), (1, 8), dtypes=("bfloat16",), layouts=("channels_last",))
    assert {(c.subject.bits, c.dtype, c.layout) for c in cases(only)} == {
        (1, "bfloat16", "channels_last"), (8, "bfloat16", "channels_last"),
    }  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: f"{s.name}-{s.bits}-{s.input}")
def test_each_codec_takes_the_tensors_made_for_it(subject: object, layout: str) -> None:
    found = [
        case
        for case in cases(KernelSettings(shapes=((2, 3, 9, 6), (3, 70)), layouts=(layout, "contiguous")))
        if case.subject == subject
    ]
    assert found
    for case in found:
        x = case.subject.tensor(case.shape, case.dtype, case.layout, "cpu")
        codec = case.subject.codec_for(case.shape)
        assert codec.why_not(x) is None
        packed = codec.encode(x, 0)
        assert codec.least_bytes(x.shape, x.dtype) <= packed.nbytes <= codec.packed_bytes(x.shape, x.dtype)
        out = codec.decode(packed)
        assert (tuple(out.shape), out.dtype, out.stride()) == (case.shape, x.dtype, x.stride())
        assert str(x.dtype) == f"torch.{case.dtype}"
        assert x.is_contiguous(memory_format=_format(case))
        assert torch.equal(x, case.subject.tensor(case.shape, case.dtype, case.layout, "cpu")), "the same each time"
        if "exact" in codec.promises:
            assert torch.equal(out, x)


def _format(case: Case) -> torch.memory_format:
    return torch.channels_last if case.layout == "channels_last" else torch.contiguous_format
