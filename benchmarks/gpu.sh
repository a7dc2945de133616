#!/usr/bin/env bash
# Everything that needs a GPU, in one go: parity of the codes with the CPU's, speed of the kernels, training steps.
# Needs torch and this checkout, nothing installed. Rows go to the folder $OUT as they come, or where it is not set
# into benchmarks/results; `python -m benchmarks.gpu --keep FOLDER` puts those of a folder there later.
# DIVISION_PYTHON names the Python to use; further arguments go to benchmarks/gpu.py (--help lists them).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${DIVISION_PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TRITON_INTERPRET=0 # the tests would else run the kernels in the interpreter
status=0

tests=tests/kernels/gpu/test_device.py
if [ ! -f $tests ]; then
    echo "no $tests here: parity by the loop of benchmarks/gpu.py alone"
elif ! "$python" -c 'import pytest, hypothesis' 2>/dev/null; then
    echo "pytest or hypothesis is missing: parity by the loop of benchmarks/gpu.py alone"
else
    # Without this project's own settings, which ask for a newer pytest than may be there.
    timeout 240 "$python" -m pytest -q -p no:cacheprovider -c /dev/null --rootdir=. --import-mode=importlib $tests || status=1
fi

"$python" -m benchmarks.gpu "$@" || status=1
exit $status
