"""Accuracy of the methods, three seeds each. Run: ``python -m benchmarks.accuracy digits`` (or ``photos``).

What follows goes to ``division compare``, such as ``--methods none,division --amp bf16``. Rows replace those of the same
method and autocast.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.rows import amp_of, provenance, replace

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=("digits", "photos"))
    wanted, options = parser.parse_known_args()
    data = wanted.data
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, "-m", "division", "compare", "--data", data, "--json", str(out), *options]
        subprocess.run(command, check=True)
        rows = json.loads(out.read_text())
    source = provenance()
    device = source["device"]  # its type, as in every row: a run's own describes it in words
    found = [{**source, **row, "device": device} for row in rows]
    replace(data, found, lambda row: (row["method"], amp_of(row)))
