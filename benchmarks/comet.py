"""COMET on the digits: its bytes beside JPEG-ACT's at one accuracy, and batches that grow into the freed memory.

Every setting is trained with three seeds; then a few steps more tell what the inputs of convolutions take. Run:
``python -m benchmarks.comet`` (``--out DIR`` goes on with runs that were stopped).
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rows import provenance, record
from division.account import Report
from division.train import checkpoint, data, loop, run
from division.train.seeds import order
from division.train.settings import TrainSettings

SEEDS, STEPS = 3, 3
#: A method and how many times its size the batch may grow to.
SETTINGS = (
    ("none", 1), ("jpeg-act", 1), ("comet", 1), ("comet-0.05", 1), ("comet-0.1", 1), ("comet-0.2", 1),
    ("division", 4), ("comet", 4),
)  # fmt: skip


def kept(report: Report) -> dict[str, int]:
    """Bytes of what convolutions and norms read, before and after; a tensor once."""
    found = {}
    for name, node in (("conv", "ConvolutionBackward"), ("norm", "NativeBatchNormBackward")):
        own = [
            r for r in report.records if r.node.startswith(node) and r.field == "input" and r.coded_by and not r.shared
        ]
        found[f"{name}_raw_bytes"] = sum(r.raw_bytes for r in own)
        found[f"{name}_packed_bytes"] = sum(r.packed_bytes for r in own)
    return found


def after(folder: Path, wanted: TrainSettings) -> dict[str, int]:
    """What a step keeps once a run has ended."""
    training = loop.Training(wanted, data.load(wanted.data, None, None))
    training.load_state_dict(checkpoint.load(folder))
    training.position.epoch = wanted.epochs - 1
    batches = order(wanted.seed, wanted.epochs - 1, len(training.data.train)).split(training.batch_size)
    for batch in batches[:STEPS]:
        training.advance(batch)
    return kept(training.compression.report)


def measure(out: Path, method: str, grow: int, seed: int) -> dict[str, Any]:
    """One run to its end."""
    wanted = TrainSettings(method=method, grow=grow, seed=seed)
    folder = out / f"{method}-grow{grow}-seed{seed}"
    result = (run.resume if folder.exists() else run.start)(wanted, folder)
    bytes_of = {} if method == "none" else after(folder, wanted)
    return {"grow": grow, "batch_size": wanted.batch_size, **result, **bytes_of}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out or Path(tempfile.mkdtemp(prefix="comet-"))
    source = provenance()
    rows = [measure(out, method, grow, seed) for method, grow in SETTINGS for seed in range(SEEDS)]
    record("comet", [{**source, **row, "device": source["device"]} for row in rows])
