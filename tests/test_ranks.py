"""What processes agree on; two real ones in test_distributed.py."""

import torch

from division.ranks import mean_over_ranks


def test_alone_there_is_nothing_to_agree_on() -> None:
    values = torch.tensor([1.0, float("nan")], dtype=torch.float64)
    assert mean_over_ranks(["a", "b"], values) is values
