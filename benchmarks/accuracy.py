"""Accuracy of the methods, three seeds each. Run: ``python -m benchmarks.accuracy digits`` (or ``photos``)."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.rows import provenance, record

if __name__ == "__main__":
    data, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, "-m", "division", "compare", "--data", data, "--json", str(out), *options]
        subprocess.run(command, check=True)
        rows = json.loads(out.read_text())
    source = provenance()
    record(data, [{**source, **row} for row in rows])
