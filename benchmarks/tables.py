"""Render the tables of README and docs from recorded rows. Run: ``python -m benchmarks.tables`` (``--check`` in tests).

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; ``TABLES`` says how each name is made.
"""

import csv
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.rows import amp_of, recorded
from division.bench.baselines import RECOMPUTED

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *(ROOT / "docs" / name for name in ("methods.md", "memory.md", "benchmarks.md")))
GIB, MIB = 2**30, 2**20
NOTHING = "Nothing recorded yet."

Rows = Sequence[dict[str, Any]]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _logged() -> dict[tuple[str, int], dict[str, float]]:
    """Activation memory that the papers' code logged, in GiB: by network and batch, by method."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    with (Path(__file__).parent / "paper" / "memory.csv").open() as file:
        for row in csv.DictReader(file):
            if row["activation_gib"]:
                own = found.setdefault((row["model"], int(row["batch_size"])), {})
                own[row["method"]] = float(row["activation_gib"])
    return found


def memory() -> str:
    """Predicted against logged memory of the paper's networks."""
    paper = _logged()
    rows, chosen = [], [r for r in recorded("memory") if r["method"] == "division" and r["batch_size"] <= 256]
    for row in chosen:
        logged = paper[row["model"], row["batch_size"]]
        normal, packed = row["normal_bytes"] / GIB, row["packed_bytes"] / GIB
        cells = (normal, logged["Normal"], packed, logged["DIVISION"])
        rows.append([row["model"], str(row["batch_size"]), *(f"{x:.2f}" for x in cells), f"{row['ratio']:.1f}"])
    head = ["network", "batch", "normal, GiB", "paper", "DIVISION, GiB", "paper", "ratio"]
    return f"{_markdown(head, rows)}\n\n{_recorded_on(chosen)}"


#: Methods, and what the papers' rows call them.
IN_PAPERS = {
    "none": "Normal", "division": "DIVISION", "actnn": "ActNN", "blpa-4": "BLPA", "ac-gc": "AC-GC",
    "checkpoint": "Checkpoint", "swap": "SWAP",
}  # fmt: skip


def peers() -> str:
    """Predicted memory of every method, with what the papers' code logged in brackets."""
    paper, rows = _logged(), recorded("memory")
    places = sorted({(row["model"], row["batch_size"]) for row in rows})
    found = {(row["method"], row["model"], row["batch_size"]): row for row in rows}
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = []
    for method in methods:
        line = [f"`{method}`"]
        for place in places:
            row, logged = found[method, *place], paper.get(place, {}).get(IN_PAPERS.get(method, ""))
            text = f"{row['packed_bytes'] / GIB:.2f}"
            line.append(text if logged is None else f"{text} ({logged:.2f})")
        first = found[method, *places[0]]
        trained = f", after {first['trained_steps']} steps" if first["trained_steps"] else ""
        cells.append([*line, first["basis"] + trained])
    short = {"wide_resnet50_2": "wide"}
    head = ["method", *(f"{short.get(model, model)} {batch}" for model, batch in places), "bytes known from"]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(rows)}"


def recomputing() -> str:
    """Predicted memory of checkpointing and swapping, beside what the papers' code logged and its figure shows."""
    paper, rows = _logged(), recorded("memory")
    places = list(dict.fromkeys((row["model"], row["batch_size"]) for row in rows))
    found = {(row["method"], row["model"], row["batch_size"]): row for row in rows}
    cells = []
    for place in places:
        logged = paper.get(place, {})
        own, coded, swap = (found[method, *place] for method in ("checkpoint", "checkpoint-division", "swap"))
        sizes = [own["packed_bytes"] / GIB, logged.get("Checkpoint"), logged.get("Checkpoint-figure")]
        more = [coded["packed_bytes"] / GIB, swap["packed_bytes"] / GIB]
        more += [(swap["packed_bytes"] - swap["elsewhere_bytes"]) / GIB, logged.get("SWAP")]
        line = [f"{x:.2f}" if x is not None else "-" for x in sizes + more]
        cells.append([place[0], str(place[1]), *line[:3], f"+{own['recomputed_bytes'] / GIB:.2f}", *line[3:]])
    head = [
        "network",
        "batch",
        "`checkpoint`",
        "paper, rows",
        "paper, figure",
        "while run again",
        "`checkpoint-division`",
    ]
    head += ["`swap`", "of it on the device", "paper"]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(rows)}"


def headline() -> str:
    """What a step of the paper's networks keeps, for the README."""
    chosen = [r for r in recorded("memory") if r["method"] == "division" and r["batch_size"] == 256]
    rows = []
    for row in chosen:
        normal, packed = row["normal_bytes"] / GIB, row["packed_bytes"] / GIB
        rows.append(
            [f"{row['model']}, batch 256", f"{normal:.2f} GiB", f"{packed:.2f} GiB", f"{row['ratio']:.1f} times less"]
        )
    table = _markdown(["a training step keeps for backward", "PyTorch", "DIVISION", ""], rows)
    return f"{table}\n\n{_recorded_on(chosen)}"


def linear_inputs() -> str:
    """Gradient error of the candidates for tensors without spatial dims."""
    found: dict[str, dict[tuple[str, int], dict[str, float]]] = {}
    for row in recorded("linear_inputs"):
        found.setdefault(row["candidate"], {})[row["norm"], row["steps"]] = row
    settings = list(next(iter(found.values())))
    names = {"none": "no norm", "batch": "batch norm", "layer": "layer norm"}
    head = ["code", "bits an element", *(f"{names[norm]}, {steps} steps" for norm, steps in settings)]
    rows = [
        [name, f"{by[settings[0]]['bits']:.2f}", *(f"{by[s]['relative_error']:.3f}" for s in settings)]
        for name, by in found.items()
    ]
    device = recorded("linear_inputs")[0]
    return f"{_markdown(head, rows)}\n\nRecorded on {device['device_name']}, torch {device['torch']}."


def zeros() -> str:
    """Errors of codecs on results of ReLU, with and without exact zeros."""
    rows = recorded("zeros")
    if not rows:
        return NOTHING
    cells = []
    for codec in dict.fromkeys(row["codec"] for row in rows):
        own = [row for row in rows if row["codec"] == codec]
        plain, exact = ([row[key] for row in own] for key in ("plain", "zeros"))
        cells.append([codec, _mean_and_error(plain), _mean_and_error(exact), f"{mean(exact) / mean(plain):.2f}"])
    share = mean(row["share_of_zeros"] for row in rows)
    table = _markdown(["codec", "error", "with exact zeros", "ratio"], cells)
    return f"{table}\n\n{share:.0%} of the elements are zero. Mean over the seeds ± its standard error. {_recorded_on(rows)}"


def error_bound() -> str:
    """The error-bounded codec beside SZ3, all tensors of a network together."""
    rows = recorded("error_bound")
    if not rows:
        return NOTHING
    cells = []
    for model, bound in dict.fromkeys((row["model"], row["bound"]) for row in rows):
        own = [row for row in rows if (row["model"], row["bound"]) == (model, bound)]
        raw, ours, theirs = (sum(row[key] for row in own) for key in ("raw_bytes", "bytes", "sz3_bytes"))
        cell = [model, f"{bound:g}", f"{raw / ours:.1f}", f"{raw / theirs:.1f}", f"{theirs / ours:.2f}"]
        for threads in ("one", "all", "alone"):
            encode, decode, compress, decompress = (sum(row[threads][k] for row in own) for k in range(4))
            faster = (compress / encode, decompress / decode, (compress + decompress) / (encode + decode))
            cell += [f"{x:.0f}" for x in (faster if threads == "one" else faster[2:])]
        cells.append(cell)
    head = [
        "network",
        "bound",
        "ratio",
        "SZ3's",
        "of SZ3's",
        "encode",
        "decode",
        "both",
        f"both, {rows[0]['threads']} threads",
        "both, call by call",
    ]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(rows)}"


def _beside(rows: Rows, none: Rows) -> tuple[str, str]:
    """How some runs' accuracy differs from plain PyTorch's by seed, and how many images they took a second."""
    base = {row["seed"]: row["top1"] for row in none}
    gap = "" if rows[0]["method"] == "none" else _gap([row["top1"] - base[row["seed"]] for row in rows])
    return gap, f"{mean(row['images_per_s'] for row in rows):.0f}"


def _top1(rows: Rows) -> str:
    return f"{mean(row['top1'] for row in rows):.2f}"


def _settings(rows: Rows, grown: bool) -> list[list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        if row["method"] == "none" or (row["grow"] > 1) == grown:
            found.setdefault((row["method"], row["grow"]), []).append(row)
    return list(found.values())


def jpeg_act() -> str:
    """Bytes of COMET beside JPEG-ACT's, trained on the digits."""
    rows = recorded("comet")
    if not rows:
        return NOTHING
    none, *others = _settings(rows, grown=False)
    cells = []
    for own in others:
        gap, speed = _beside(own, none)
        ratios = [
            mean(row[f"{kind}_raw_bytes"] / row[f"{kind}_packed_bytes"] for row in own) for kind in ("conv", "norm")
        ]
        ratios.append(mean(row["ratio"] for row in own))
        cells.append([f"`{own[0]['method']}`", _top1(own), gap, *(f"{ratio:.1f}" for ratio in ratios), speed])
    head = [
        "method",
        "top-1, %",
        "difference to `none`",
        "ratio, inputs of convolutions",
        "of norms",
        "all",
        "images/s",
    ]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(rows)}"


def growth() -> str:
    """Batches that grow into the memory that a method freed."""
    rows = recorded("comet")
    if not rows:
        return NOTHING
    none, *others = _settings(rows, grown=True)
    cells = []
    for own in (none, *others):
        gap, speed = _beside(own, none)
        batch = mean(row["batch_size"] for row in own)
        kept = f"{mean(row['packed_bytes'] for row in own) / MIB:.1f}"
        cells.append([f"`{own[0]['method']}`", f"{batch:.0f}", kept, _top1(own), gap, speed])
    head = ["method", "batch in the end", "kept then, MiB", "top-1, %", "difference to `none`", "images/s"]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(rows)}"


def tokens() -> str:
    """Gradient error of the candidates for token tensors."""
    rows = recorded("tokens")
    if not rows:
        return NOTHING
    networks = list(dict.fromkeys(row["network"] for row in rows))
    cells = []
    for candidate in dict.fromkeys(row["candidate"] for row in rows):
        cell = [candidate]
        for network in networks:
            own = [row for row in rows if (row["network"], row["candidate"]) == (network, candidate)]
            cell += [f"{mean(r['kept'] for r in own):.1%}", _mean_and_error([r["relative_error"] for r in own])]
        cells.append(cell)
    head = ["bits and groups", *(head for n in networks for head in (f"{n}, kept", f"{n}, error"))]
    return f"{_markdown(head, cells)}\n\nMean over the seeds ± its standard error. {_recorded_on(rows)}"


#: What the README shows: the paper's method, its ablations, and what they are compared with.
FIRST = ("none", "lossless", "division", "low-frequency", "high-frequency", "fixed-2")


def compared(found: Rows, methods: Sequence[str] | None = None) -> str:
    """Accuracy and speed of the methods in float32 over the seeds, and their differences to plain PyTorch."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    found = [row for row in found if amp_of(row) == "none" and (methods is None or row["method"] in methods)]
    if not found:
        return NOTHING
    for row in found:
        by_method.setdefault(row["method"], []).append(row)
    rows = []
    for method, runs in by_method.items():
        gap, speed = _beside(runs, by_method["none"])
        raw, packed = mean(run["raw_bytes"] for run in runs), mean(run["packed_bytes"] for run in runs)
        spread = f" ± {stdev(run['top1'] for run in runs):.2f}" if len(runs) > 1 else ""
        kept = f"{packed / 2**20:.1f}", f"{raw / packed:.1f}"
        rows.append([f"`{method}`", f"{_top1(runs)}{spread}", gap, *kept, speed])
    spread_head = "top-1, % (± standard deviation over seeds)"
    error_head = "difference to `none` (± its standard error, paired by seed)"
    table = _markdown(["method", spread_head, error_head, "kept for backward, MiB", "ratio", "images/s"], rows)
    return f"{table}\n\n{_recorded_on(found)}"


def autocast(found: Rows) -> str:
    """Accuracy under autocast beside float32, seed by seed, of the methods that were trained under both."""
    by: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for row in found:
        by.setdefault(row["method"], {}).setdefault(amp_of(row), {})[row["seed"]] = row
    both = {method: runs for method, runs in by.items() if len(runs) > 1 and "none" in runs}
    if not both:
        return NOTHING
    seeds = sorted({seed for runs in both.values() for rows in runs.values() for seed in rows})
    cells: list[list[str]] = []
    shown: list[dict[str, Any]] = []
    for method, runs in both.items():
        for amp, rows in runs.items():
            shown += rows.values()
            gaps = [rows[seed]["top1"] - runs["none"][seed]["top1"] for seed in rows]
            top1 = [*(_number(rows.get(seed, {}).get("top1"), ".1f") for seed in seeds)]
            raw, packed = (mean(row[key] for row in rows.values()) for key in ("raw_bytes", "packed_bytes"))
            average = f"{mean(row['top1'] for row in rows.values()):.2f}"
            gap = "" if amp == "none" else _gap(gaps)
            cells.append([f"`{method}`", amp, *top1, average, gap, *(f"{n / MIB:.1f}" for n in (raw, packed))])
    by_seed = (f"seed {seed}" for seed in seeds)
    head = ["method", "amp", *by_seed, "mean", "difference to float32", "saved, MiB", "kept, MiB"]
    said = "Top-1, %; the difference of the means ± its standard error, paired by seed."
    return f"{_markdown(head, cells)}\n\n{said} {_recorded_on(shown)}"


def kernels(rows: Rows) -> str:
    """The dual codec of 2 bits against a copy, by device, shape, dtype and layout."""
    chosen = [row for row in rows if (row["codec"], row["bits"]) == ("dual", 2)]
    if not chosen:
        return NOTHING
    found: dict[tuple[str, str, str], dict[tuple[str, str], float]] = {}
    for row in chosen:
        place = _device(row), _shape(row["shape"]), row["dtype"]
        found.setdefault(place, {})[row["op"], row["layout"]] = row["time_ratio"]
    columns = [(op, layout) for op in ("encode", "decode") for layout in ("contiguous", "channels_last")]
    head = ["device", "shape", "dtype", *(f"{op}, {layout}" for op, layout in columns)]
    cells = [[*place, *(_number(by.get(column), ".1f") for column in columns)] for place, by in found.items()]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(chosen)}{_spread_of(chosen)}"


def codecs(rows: Rows) -> str:
    """Every codec on the first shape that it was recorded on, contiguous, float32 or the one dtype it takes."""
    contiguous = [row for row in rows if row["layout"] == "contiguous" and row["op"] != "clone"]
    if not contiguous:
        return NOTHING
    found: dict[tuple[str, str, int, str], dict[str, dict[str, Any]]] = {}
    for row in contiguous:
        if row["dtype"] in ("float32", "bool", "int64"):
            by = found.setdefault((_device(row), row["codec"], row["bits"], row["dtype"]), {})
            by.setdefault(row["op"], row)
    cells = []
    for (device, codec, bits, dtype), by in found.items():
        first = next(iter(by.values()))
        ops = [by.get(op, {}) for op in ("encode", "decode")]
        figures = [_number(op.get(key), ".1f") for op in ops for key in ("time_ratio", "gbps")]
        cells.append([device, f"`{codec}`", str(bits), _shape(first["shape"]), dtype, *figures, first["body"]])
    head = ["device", "codec", "bits", "shape", "dtype", "encode", "GB/s", "decode", "GB/s", "body"]
    shown = [row for by in found.values() for row in by.values()]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(contiguous)}{_spread_of(shown)}"


def step(rows: Rows) -> str:
    """Throughput and memory of training steps by method."""
    if not rows:
        return NOTHING
    cells = []
    for row in sorted(rows, key=_size):
        kept = row["packed_bytes"] if row.get("kept_bytes") is None else row["kept_bytes"]
        sizes = [_number(size, ".0f", MIB) for size in (row["raw_bytes"], kept, row["peak_bytes"])]
        ratio = _number(row["throughput_ratio"], ".2f")
        cells.append([*_work(row), _device(row), f"`{row['method']}`", ratio, *sizes])
    head = ["network", "batch", "device", "method", "throughput", "saved for backward, MiB", "kept, MiB", "peak, MiB"]
    return f"{_markdown(head, cells)}\n\n{_recorded_on(rows)}"


def peak(rows: Rows) -> str:
    """What the peaks of steps on a CPU are made of."""
    measured = [row for row in rows if row.get("transient_bytes") is not None]
    if not measured:
        return NOTHING
    parts = ("process", "weight", "momentum", "batch", "saved", "gradient", "transient", "outside", "peak")
    cells = [
        [
            *_work(row),
            f"`{row['method']}`",
            *(_number(row.get(f"{part}_bytes"), ".0f", MIB) for part in parts),
            _number(row["largest_transient_bytes"], ".0f", MIB),
            _number(row.get("explained"), ".2f"),
        ]
        for row in sorted(measured, key=_size)
    ]
    names = ("process", "weights", "momentum", "batch", "saved", "gradients", "transient", "outside torch", "peak")
    head = ["network", "batch", "method", *names, "most transient", "explained"]
    return f"{_markdown(head, cells)}\n\nMiB. {_recorded_on(measured)}"


def hook(rows: Rows) -> str:
    """What the way into autograd costs without a codec."""
    if not rows:
        return NOTHING
    cells = [[row["model"], _number(row["overhead"], ".1%"), _number(row["us_per_tensor"], ".1f")] for row in rows]
    return f"{_markdown(['network', 'overhead', 'µs a saved tensor'], cells)}\n\n{_recorded_on(rows)}"


def fidelity(rows: Rows) -> str:
    """Gradient error of each method on each network, at initialisation and after training."""
    return _errors([row for row in rows if row["method"] not in RECOMPUTED])


def recomputed(rows: Rows) -> str:
    """The same of recomputing from coded inputs."""
    return _errors([row for row in rows if row["method"] in RECOMPUTED])


def _errors(rows: Rows) -> str:
    if not rows:
        return NOTHING
    found: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        found.setdefault((row["model"], row["steps"]), {}).setdefault(row["method"], []).append(row)
    methods = sorted({row["method"] for row in rows}, key=_order)
    cells = []
    for (model, steps), by in found.items():
        seeds = {row["seed"] for of_method in by.values() for row in of_method}
        cells.append([model, str(steps), str(len(seeds)), *(_error_and_share(by.get(name, [])) for name in methods)])
    table = _markdown(["network", "steps", "seeds", *(f"`{name}`" for name in methods)], cells)
    return f"{table}\n\nMean over the seeds ± its standard error (share of the bytes kept). {_recorded_on(rows)}"


def _error_and_share(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    share = mean(row["packed_bytes"] / row["raw_bytes"] for row in rows)
    errors = [row["relative_error"] for row in rows]  # None for what is not finite
    return f"{'NaN' if None in errors else _mean_and_error(errors)} ({share:.1%})"


def _size(row: dict[str, Any]) -> tuple[str, str, int, int]:
    """Rows of one workload together, small ones first, in the order they were recorded."""
    return row["device_name"], row["model"], row["image_size"], row["batch_size"]


def _gap(gaps: list[float]) -> str:
    """Mean ± standard error of paired differences."""
    error = stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
    return f"{mean(gaps):+.2f} ± {error:.2f}"


def _order(method: str) -> tuple[bool, str]:
    return method != "division", method


def _mean_and_error(values: list[float]) -> str:
    if not values:
        return ""
    how = ".3f" if mean(values) < 100 else ".1e"
    return f"{mean(values):{how}}" + (f" ± {stdev(values) / len(values) ** 0.5:{how}}" if len(values) > 1 else "")


def _work(row: dict[str, Any]) -> list[str]:
    how = [] if row.get("amp", "none") == "none" else [f"{row['amp']} autocast"]
    how += ["TF32"] if row.get("tf32") else []
    how += ["channels_last"] if row.get("layout") == "channels_last" else []
    name = f"{row['model']}, {row['image_size']}x{row['image_size']}"
    return [", ".join([name, *how]), str(row["batch_size"])]


def _device(row: dict[str, Any]) -> str:
    return "CPU" if row["device"] == "cpu" else str(row["device_name"])


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _number(value: float | None, how: str, unit: int = 1) -> str:
    return "" if value is None else format(value / unit, how)


def _recorded_on(rows: Rows) -> str:
    """One sentence on where the figures come from."""
    places = {}
    for row in rows:
        threads = "1 thread" if row["threads"] == 1 else f"{row['threads']} threads"
        of_cpu = f" ({threads})" if row["device"] == "cpu" else ""
        places[row["device_name"]] = f"{row['device_name']}{of_cpu}, torch {row['torch']}"
    return f"Recorded on {'; '.join(places.values())}."


def _spread_of(rows: Rows) -> str:
    """One sentence on how far the runs of a figure lie apart; "" where the rows don't tell."""
    spreads = [row["spread"] for row in rows if row.get("spread") is not None]
    if not spreads:
        return ""
    middle, widest = median(spreads), max(spreads)
    return f" Spread of the runs (`spread` in the rows): {middle:.0%} for the median figure, {widest:.0%} at most."


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "memory": memory,
    "peers": peers,
    "recomputing": recomputing,
    "linear_inputs": linear_inputs,
    "tokens": tokens,
    "zeros": zeros,
    "error_bound": error_bound,
    "jpeg_act": jpeg_act,
    "growth": growth,
    "digits": lambda: compared(recorded("digits"), FIRST),
    "all_digits": lambda: compared(recorded("digits")),
    "all_photos": lambda: compared(recorded("photos")),
    "amp": lambda: autocast(recorded("digits")),
    "kernels": lambda: kernels(recorded("bench_kernels")),
    "codecs": lambda: codecs(recorded("bench_kernels")),
    "step": lambda: step(recorded("bench_step")),
    "peak": lambda: peak(recorded("bench_step")),
    "fidelity": lambda: fidelity(recorded("bench_fidelity")),
    "recomputed": lambda: recomputed(recorded("bench_fidelity")),
    "hook": lambda: hook(recorded("bench_hook")),
}


def rendered(page: str) -> str:
    """The page with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def stale() -> list[Path]:
    """Pages whose tables differ from what the rows say."""
    return [page for page in PAGES if rendered(page.read_text()) != page.read_text()]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(f"tables out of date: {', '.join(map(str, stale()))}" if stale() else 0)
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
