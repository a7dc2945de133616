"""Measurements of speed and memory: ``division bench``.

| file | holds |
|---|---|
| `kernels.py` | encode and decode of each codec against a copy of the same tensor |
| `subjects.py` | the codecs measured, and tensors they take |
| `step.py` | whole training steps, method against method |
| `work.py`, `networks.py`, `baselines.py` | what such a step consists of: network, batch, method |
| `peak.py`, `lifetimes.py` | the most memory a step holds, and what it is made of |
| `fidelity.py` | how far gradients are from exact ones |
| `tasks.py`, `released.py` | the networks and data of that, and the algorithm of the released code to compare with |
| `hook.py` | what the way into autograd costs without a codec |
| `timing.py` | alternating runs, their medians and spreads |
| `malloc.py` | the C library's allocator in a known state |
| `settings.py` | what to measure, and the checks of it |
| `show.py` | rows as tables on a terminal |
| `rows.py` | rows of figures with where they come from |

`docs/benchmarks.md` says what each figure means. Torch is enough to measure; the command line adds the extra `train`.
"""
