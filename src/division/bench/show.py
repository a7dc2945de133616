"""Rows as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.table import Table

from division.bench.rows import Row


def kernels(rows: Sequence[Row]) -> Table:
    """One line a case: times as ratios to a copy of the tensor, GB/s, and the copy's own GB/s."""
    shown = _table("time as a ratio to torch.clone of the same tensor", ["codec", "bits", "shape", "dtype", "layout"])
    for head in ("encode", "decode", "encode GB/s", "decode GB/s", "clone GB/s"):
        shown.add_column(head, justify="right")
    shown.add_column("body")
    copies = {_tensor(row): row["gbps"] for row in rows if row["op"] == "clone"}
    decodes = {(row["codec"], row["bits"], _tensor(row)): row for row in rows if row["op"] == "decode"}
    for encode in (row for row in rows if row["op"] == "encode"):
        decode = decodes[encode["codec"], encode["bits"], _tensor(encode)]
        cells = encode["time_ratio"], decode["time_ratio"], encode["gbps"], decode["gbps"], copies[_tensor(encode)]
        body = encode["body"] if encode["body"] == decode["body"] else f"{encode['body']}, {decode['body']}"
        shape = "x".join(map(str, encode["shape"]))
        names = encode["codec"], str(encode["bits"]), shape, encode["dtype"], encode["layout"]
        shown.add_row(*names, *(f"{cell:.2f}" for cell in cells), body)
    return shown


def _tensor(row: Row) -> tuple[object, ...]:
    return tuple(row["shape"]), row["dtype"], row["layout"]


def step(rows: Sequence[Row]) -> Table:
    """One line a method: throughput and memory."""
    shown = _table("training steps", ["model", "image", "batch", "method"])
    for head in ("throughput", "images/s", "raw MiB", "kept MiB", "peak MiB", "explained"):
        shown.add_column(head, justify="right")
    for row in rows:
        names = row["model"], str(row["image_size"]), str(row["batch_size"]), row["method"]
        kept = row["packed_bytes"] if row.get("kept_bytes") is None else row["kept_bytes"]
        sizes = map(_mib, (row["raw_bytes"], kept, row.get("peak_bytes")))
        explained = "" if row.get("explained") is None else f"{row['explained']:.2f}"
        shown.add_row(*names, f"{row['throughput_ratio']:.3f}", f"{row['images_per_s']:.1f}", *sizes, explained)
    return shown


def peaks(rows: Sequence[Row]) -> Table | None:
    """What the peaks are made of, where that was measured; None where it wasn't."""
    measured = [row for row in rows if row.get("transient_bytes") is not None]
    if not measured:
        return None
    shown = _table("at the peak, MiB", ["model", "batch", "method"])
    parts = ("process", "weight", "momentum", "batch", "saved", "gradient", "transient", "outside", "peak")
    for head in parts:
        shown.add_column(head, justify="right")
    shown.add_column("within")
    for row in measured:
        sizes = (_mib(row.get(f"{part}_bytes")) for part in parts)
        shown.add_row(row["model"], str(row["batch_size"]), row["method"], *sizes, row["peak_within"])
    return shown


def hook(rows: Sequence[Row]) -> Table:
    """One line a model: what the way into autograd costs."""
    shown = _table("without a codec", ["model"])
    for head in ("overhead", "µs a saved tensor"):
        shown.add_column(head, justify="right")
    for row in rows:
        overhead = "" if row["overhead"] is None else f"{100 * row['overhead']:.1f} %"
        shown.add_row(row["model"], overhead, f"{row['us_per_tensor']:.1f}")
    return shown


def fidelity(rows: Sequence[Row]) -> Table:
    """One line a network, number of steps and method: means over the seeds."""
    shown = _table("gradients beside exact ones", ["model", "steps", "method"])
    for head in ("relative error", "bias", "cosine", "packed MiB", "ratio"):
        shown.add_column(head, justify="right")
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], str(row["steps"]), row["method"]), []).append(row)
    for names, of_seeds in found.items():
        mean = {key: fmean(row[key] for row in of_seeds) for key in ("relative_error", "bias", "cosine")}
        packed, raw = (fmean(row[key] for row in of_seeds) for key in ("packed_bytes", "raw_bytes"))
        shown.add_row(*names, *(f"{x:.3f}" for x in mean.values()), f"{packed / 2**20:.1f}", f"{raw / packed:.1f}")
    return shown


def doctor(found: Row) -> list[Table]:
    """What `division.doctor.examine` found: the bodies, and the rest."""
    bodies = _table("bodies", ["op", "device", "body", "why not a faster one"])
    for body in found["bodies"]:
        bodies.add_row(body["op"], body["device"], body["body"], body["why"])
    rest = _table("here", ["", ""])
    for device, name in found["devices"].items():
        rest.add_row(device, name)
    for name, version in found["versions"].items():
        rest.add_row(name, version or "missing")
    compiled = f"for {', '.join(found['compiled']['bodies'])}" if found["compiled"]["here"] else "missing"
    rest.add_row("compiled library", compiled)
    rest.add_row("autograd's nodes by", found["nodes"])
    rest.add_row("threads", str(found["threads"]))
    for name, value in found["environment"].items():
        rest.add_row(name, "not set" if value is None else value)
    return [bodies, rest]


def _table(title: str, heads: Sequence[str]) -> Table:
    shown = Table(title=title, title_justify="left")
    for head in heads:
        shown.add_column(head)
    return shown


def _mib(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.1f}"
