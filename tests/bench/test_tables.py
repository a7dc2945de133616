from typing import Any

from benchmarks.tables import NOTHING, TABLES, codecs, compared, fidelity, hook, kernels, peak, recomputed, step

SOURCE: dict[str, Any] = {"device": "cpu", "device_name": "A CPU", "threads": 2, "torch": "2.14"}
GPU: dict[str, Any] = {"device": "cuda", "device_name": "A GPU", "threads": 16, "torch": "2.11"}
CODED = {**SOURCE, "codec": "dual", "bits": 2, "dtype": "float32", "body": "avx2", "gbps": 12.34}
MIB = 1 << 20


def body(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def coded(op: str, ratio: float, **other: object) -> dict[str, Any]:
    return {**CODED, "op": op, "shape": [2, 3, 4, 5], "layout": "contiguous", "time_ratio": ratio, **other}


def test_no_rows_no_table() -> None:
    assert [make([]) for make in (kernels, codecs, step, peak, hook)] == [NOTHING] * 5
    assert {"kernels", "codecs", "step", "peak", "hook"} <= set(TABLES)


def test_kernels_shows_the_dual_codec_by_layout() -> None:
    table = kernels(
        [
            coded("encode", 2.04),
            coded("decode", 0.96),
            coded("encode", 3.0, layout="channels_last"),
            coded("clone", 1.0, codec="clone", bits=32),
            coded("encode", 9.0, bits=4),
            coded("decode", 1.5, dtype="bfloat16"),
            coded("decode", 1.25, **GPU),
        ]
    )
    assert body(table) == [
        ["CPU", "2x3x4x5", "float32", "2.0", "3.0", "1.0", ""],
        ["CPU", "2x3x4x5", "bfloat16", "", "", "1.5", ""],
        ["A GPU", "2x3x4x5", "float32", "", "", "1.2", ""],
    ]
    assert table.endswith("Recorded on A CPU (2 threads), torch 2.14; A GPU, torch 2.11.")


def test_codecs_shows_the_first_shape_of_each() -> None:
    table = codecs(
        [
            coded("encode", 2.0),
            coded("decode", 1.0, gbps=5.0),
            coded("encode", 7.0, shape=[9, 9]),
            coded("encode", 7.0, dtype="bfloat16"),
            coded("encode", 3.0, codec="mask", bits=1, dtype="bool", body="reference"),
            coded("clone", 1.0, codec="clone", bits=32),
        ]
    )
    assert body(table) == [
        ["CPU", "`dual`", "2", "2x3x4x5", "float32", "2.0", "12.3", "1.0", "5.0", "avx2"],
        ["CPU", "`mask`", "1", "2x3x4x5", "bool", "3.0", "12.3", "", "", "reference"],
    ]


def test_spread_is_told_of_what_is_shown() -> None:
    rows = [
        coded("encode", 2.0, spread=0.1),
        coded("decode", 1.0, spread=0.123),
        coded("encode", 2.0, bits=4, spread=1.5),
    ]
    hidden = coded("encode", 7.0, shape=[9, 9], spread=3.0)
    assert kernels(rows).endswith("Spread of the runs (`spread` in the rows): 11% for the median figure, 12% at most.")
    assert codecs([*rows, hidden]).endswith("12% for the median figure, 150% at most.")


def test_compared_names_both_kinds_of_uncertainty() -> None:
    rows = [
        {
            **SOURCE,
            "threads": 1,
            "method": method,
            "seed": seed,
            "top1": top1,
            "raw_bytes": 4 * MIB,
            "packed_bytes": packed,
            "images_per_s": 100.0 + seed,
        }
        for method, packed, scores in (("none", 4 * MIB, (90.0, 92.0)), ("division", MIB, (91.0, 92.0)))
        for seed, top1 in enumerate(scores)
    ]
    table = compared(rows)
    assert body(table) == [
        ["`none`", "91.00 ± 1.41", "", "4.0", "1.0", "100"],
        ["`division`", "91.50 ± 0.71", "+0.50 ± 0.50", "1.0", "4.0", "100"],
    ]
    head = table.splitlines()[0]
    assert "± standard deviation over seeds" in head
    assert "± its standard error" in head
    assert table.endswith("Recorded on A CPU (1 thread), torch 2.14.")


def test_gradient_errors() -> None:
    base = {**SOURCE, "threads": 1, "model": "gpt", "raw_bytes": 1000, "packed_bytes": 250}
    rows = [
        {**base, "method": method, "steps": steps, "seed": seed, "relative_error": error}
        for method, steps, errors in (
            ("released", 0, (0.5,)),
            ("division", 0, (0.1, 0.3)),
            ("fixed-2", 0, (0.25,)),
            ("division", 300, (200.0,)),
            ("released", 300, (None, 0.5)),
            ("recompute-4", 0, (0.25,)),
        )
        for seed, error in enumerate(errors)
    ]
    table = fidelity(rows)
    assert table.splitlines()[0] == "| network | steps | seeds | `division` | `fixed-2` | `released` |"
    assert body(table) == [
        ["gpt", "0", "2", "0.200 ± 0.100 (25.0%)", "0.250 (25.0%)", "0.500 (25.0%)"],
        ["gpt", "300", "2", "2.0e+02 (25.0%)", "", "NaN (25.0%)"],
    ]
    assert body(recomputed(rows)) == [["gpt", "0", "1", "0.250 (25.0%)"]]


def test_step_and_peak() -> None:
    base: dict[str, Any] = {
        **SOURCE, "model": "resnet50", "image_size": 224, "batch_size": 8, "method": "division", "amp": "none",
        "layout": "contiguous", "tf32": False, "throughput_ratio": 0.934, "raw_bytes": 10 * MIB,
        "packed_bytes": 2 * MIB, "peak_bytes": 30 * MIB,
    }  # fmt: skip
    other = {**base, **GPU, "amp": "bf16", "layout": "channels_last", "method": "checkpoint", "peak_bytes": None}
    other |= {"packed_bytes": None, "tf32": True}
    measured = {**base, "kept_bytes": 3 * MIB}
    assert body(step([measured])) == [["resnet50, 224x224", "8", "CPU", "`division`", "0.93", "10", "3", "30"]]
    assert body(step([base, other])) == [
        ["resnet50, 224x224", "8", "CPU", "`division`", "0.93", "10", "2", "30"],
        ["resnet50, 224x224, bf16 autocast, TF32, channels_last", "8", "A GPU", "`checkpoint`", "0.93", "10", "", ""],
    ]
    names = ("process", "weight", "momentum", "batch", "saved", "gradient", "transient", "outside")
    parts = {f"{name}_bytes": (i + 1) * MIB for i, name in enumerate(names)}
    whole = {**base, **parts, "largest_transient_bytes": 9 * MIB, "explained": 0.98}
    table = peak([base, whole, {**whole, "transient_bytes": None}])
    row = ["resnet50, 224x224", "8", "`division`", *"12345678", "30", "9", "0.98"]
    assert body(table) == [row]


def test_hook_shows_percent_and_microseconds() -> None:
    rows = [{**SOURCE, "model": "resnet50", "overhead": 0.0312, "us_per_tensor": 14.26}]
    rows += [{**SOURCE, "model": "tiny", "overhead": None, "us_per_tensor": 20.0}]
    assert body(hook(rows)) == [["resnet50", "3.1%", "14.3"], ["tiny", "", "20.0"]]
