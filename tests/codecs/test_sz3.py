"""SZ3 behind the codecs' interface."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from division.codecs import Sz3, from_config, sz3
from tests.codecs.contract import decode, encode, same_bits
from tests.codecs.kinds import KINDS, values

needs_sz3 = pytest.mark.skipif(not sz3.available(), reason="pysz is not installed")


@needs_sz3
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.sampled_from([(1,), (2, 3), (7, 300), (2, 3, 9, 10), (2, 2, 3, 9, 10), (5000,)]),
    exponent=st.floats(-7, 2),
    flat=st.booleans(),
)
def test_the_bound_and_the_zeros(kind: str, shape: tuple[int, ...], exponent: float, flat: bool) -> None:
    x = values(kind, math.prod(shape)).view(shape)
    share = 10.0**exponent
    out = decode(Sz3(share, relative=True, flat=flat), encode(Sz3(share, relative=True, flat=flat), x))
    if not x.isfinite().all():
        assert same_bits(out, x)
        return
    assert bool(((x.double() - out.double()).abs() <= share * float(x.abs().max())).all())
    assert bool((out[x == 0] == 0).all())


@needs_sz3
def test_zeros_cost_a_bit_an_element_and_may_be_left_to_sz3() -> None:
    x = values("relu", 4096)
    kept, left = encode(Sz3(1e-3), x), encode(Sz3(1e-3, zeros=False), x)
    assert kept.nbytes == left.nbytes + 4096 // 8
    assert not bool((decode(Sz3(1e-3, zeros=False), left)[x == 0] == 0).all()), "else the bits would be for nothing"
    assert encode(Sz3(1e-3), x + 1).nbytes == encode(Sz3(1e-3, zeros=False), x + 1).nbytes


@needs_sz3
def test_what_does_not_shrink_is_kept() -> None:
    x = torch.randn(3)
    packed = encode(Sz3(1e-3), x)
    assert packed.parts[0].numel() == 12
    assert same_bits(decode(Sz3(1e-3), packed), x)


@needs_sz3
def test_what_it_takes() -> None:
    assert Sz3(1.0).why_not(torch.zeros(3, dtype=torch.bfloat16)) == "dtype torch.bfloat16"
    with pytest.raises(ValueError, match="got bound=-1, expected a finite number above 0"):
        Sz3(-1)


def test_without_sz3_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sz3, "available", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'division\[sz3\]'"):
        Sz3(0.01)
    with pytest.raises(ImportError, match=r"pip install 'division\[sz3\]'"):
        from_config({"codec": "sz3", "bound": 0.01})
    assert Sz3.examples() == []
