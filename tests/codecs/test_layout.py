"""Which layouts can be coded element by element, and the strides they come back with."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.layout import dense_stride, from_memory_order, in_memory_order, memory_order, overlaps

sizes = st.lists(st.integers(0, 4), max_size=4)


@given(size=sizes, strides=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_what_shares_memory_is_never_taken_for_distinct(size: list[int], strides: list[int]) -> None:
    x = torch.zeros(200).as_strided(size, strides[: len(size)])
    places = [sum(i * s for i, s in zip(index, x.stride(), strict=True)) for index in product(*map(range, size))]
    if len(set(places)) < len(places):
        assert overlaps(x)


@given(size=sizes, data=st.data())
def test_views_of_dense_tensors_never_overlap(size: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(size))))
    gaps = data.draw(st.lists(st.integers(0, 2), min_size=len(size), max_size=len(size)))
    steps = data.draw(st.lists(st.integers(1, 2), min_size=len(size), max_size=len(size)))
    base = torch.zeros([size[d] * steps[d] + gaps[d] for d in order])
    view = base.permute(sorted(range(len(size)), key=order.__getitem__))
    view = view[tuple(slice(0, n * s, s) for n, s in zip(size, steps, strict=True))]
    assert list(view.shape) == size
    assert not overlaps(view)


@given(size=sizes, data=st.data())
def test_dense_strides_stay_as_they_are(size: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(size))))
    x = torch.zeros([size[d] for d in order]).permute(sorted(range(len(size)), key=order.__getitem__))
    odd = [s + 77 * (n == 1) for n, s in zip(size, x.stride(), strict=True)]
    assert dense_stride(size, x.stride()) == x.stride()
    assert dense_stride(size, odd) == tuple(odd)


@given(size=st.lists(st.integers(2, 5), max_size=4), data=st.data())
def test_gaps_are_closed_in_the_same_order(size: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(size))))
    base = torch.zeros([size[d] + 1 for d in order]).permute(sorted(range(len(size)), key=order.__getitem__))
    view = base[tuple(slice(n) for n in size)]
    # preserve_format asks PyTorch the same question
    assert dense_stride(size, view.stride()) == torch.empty_like(view).stride()


@given(size=sizes, data=st.data())
def test_a_dense_layout_is_contiguous_in_memory_order(size: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(size))))
    x = torch.zeros([size[d] for d in order]).permute(sorted(range(len(size)), key=order.__getitem__))
    x = x.as_strided(size, [s + 77 * (n == 1) for n, s in zip(size, x.stride(), strict=True)])
    assert in_memory_order(x).is_contiguous()

    def make(size: Sequence[int], stride: Sequence[int]) -> Tensor:
        made = torch.empty_strided(size, stride)
        assert made.is_contiguous()
        return made.copy_(in_memory_order(x).reshape(made.shape))

    y = from_memory_order(make, x.shape, x.stride())
    assert (y.shape, y.stride()) == (x.shape, x.stride())


@given(size=sizes, data=st.data())
def test_closing_gaps_leaves_the_order(size: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(size))))
    base = torch.zeros([size[d] + 1 for d in order]).permute(sorted(range(len(size)), key=order.__getitem__))
    view = base[tuple(slice(n) for n in size)]
    assert memory_order(size, view.stride()) == memory_order(size, dense_stride(size, view.stride()))


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        ((2, 3, 4), (100, 1, 3), (12, 1, 3)),
        ((2, 3, 4, 5), (60, 1, 15, 3), (60, 1, 15, 3)),
        ((2, 3, 4, 5), (120, 2, 30, 6), (60, 1, 15, 3)),
        ((1, 3), (999, 1), (999, 1)),
        ((4, 0, 3), (0, 5, 1), (0, 5, 1)),
        ((), (), ()),
    ],
)
def test_known_strides(size: tuple[int, ...], stride: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert dense_stride(size, stride) == expected


def test_expanded_and_sliding_views_overlap() -> None:
    x = torch.zeros(6)
    assert overlaps(x[:1].expand(4))
    assert overlaps(x.unfold(0, 3, 1))
    assert not overlaps(x.unfold(0, 3, 3))
    assert not overlaps(x[:1].expand(4)[:0])
    assert not overlaps(x[0])
