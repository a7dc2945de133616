"""What processes agree on; two real ones in test_distributed.py."""

import torch

from division.ranks import _sharing, agreed


def test_alone_rows_stay_as_they_are() -> None:
    rows = {"b": torch.tensor([1.0, float("nan")], dtype=torch.float64), "a": torch.ones(0, dtype=torch.float64)}
    found = agreed(rows)
    assert found.keys() == rows.keys()
    assert all(found[name] is row for name, row in rows.items())


def test_ranks_that_share_a_name_go_together() -> None:
    def groups(*names: str) -> list[list[int]]:
        return [_sharing([set(each) for each in names], rank) for rank in range(len(names))]

    assert groups("ab", "ab") == [[0, 1], [0, 1]]
    assert groups("ab", "b", "cd", "d") == [[0, 1], [0, 1], [2, 3], [2, 3]]  # two pipeline stages, two of each
    assert groups("a", "b", "ab") == [[0, 1, 2]] * 3
    assert groups("ab", "", "a") == [[0, 2], [0, 2], [0, 2]]  # no samples in the second
    assert groups("a", "", "b") == [[0], [], [2]]
    assert groups("", "") == [[], []]
