"""Recipes that train real networks on real images and text, written with the public names of `division` alone.

| file | holds |
|---|---|
| `settings.py` | what decides the result of a training, as one frozen value, and its checks |
| `data/` | data sets by name |
| `models.py`, `language.py` | networks by name, for images and for text |
| `optimizers.py`, `amp.py` | optimizers and automatic mixed precision by name |
| `loop.py` | the training loop |
| `checkpoint.py`, `files.py` | what a run writes, never half |
| `run.py` | a run directory: start, resume, summary |
| `compare.py`, `statistics.py` | several methods side by side, paired by seed |
| `predict.py` | the memory a torchvision model would need |

Needs the extra `train`: `pip install "division[train]"`.
"""
