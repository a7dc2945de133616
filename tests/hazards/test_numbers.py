"""Values, sizes and dtypes that break quantisation, and how much of a network is covered at all."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division import Use, methods, register_rule
from division.codecs.bits import is_mask
from division.codecs.dual import Dual
from division.codecs.group import Group
from tests.hazards.live import Live
from tests.models import NETS, Copying, Log, convnet, images, same, total

LOSSY = ["division", "low-frequency", "high-frequency", "fixed-2", "fixed-8"]


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_ranges_of_16_bit_tensors_are_taken_in_full_precision(bits: int, dtype: torch.dtype) -> None:
    """Maxima at a power of two and its neighbours: nothing decodes beyond them by more than one step."""
    for exponent in range(-10, 15, 3):
        for top in (2.0**exponent, 2.0**exponent * (1 - 2**-9), 2.0**exponent * (1 + 2**-7)):
            x = (torch.rand(2, 4, 16, 16) * top).to(dtype)
            x[..., 0, 0] = top
            for codec in (Dual(8, bits), Group(bits, 64, "plane")):
                back = codec.decode(codec.encode(x, seed=exponent)).float()
                step = 2 * top / (2**bits - 1) if codec.name == "dual" else 1.01 * top / (2**bits - 1)
                assert back.max() <= x.float().max() + step
                assert 0.9 < back.norm() / x.float().norm() < 1.1 + (bits == 2)


@pytest.mark.parametrize("method", LOSSY)
def test_masked_logits_keep_their_gradient_finite(method: str) -> None:
    torch.manual_seed(0)
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
    x = leaf(2, 2, 6, 8)

    def run() -> Tensor:
        q, k, v = x * 1, x * 2, x * 3
        scores = (q @ k.mT).masked_fill(mask, float("-inf"))
        attended = scores.softmax(-1) @ v + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        certain = (scores.log_softmax(-1).exp() @ v).logsumexp(-1) + scores.logsumexp(-1)
        return total(attended) + total(certain)

    (plain,) = torch.autograd.grad(run(), x)
    assert torch.isfinite(plain).all()
    with division.compress(method):
        loss = run()
    assert torch.isfinite(torch.autograd.grad(loss, x)[0]).all()


@pytest.mark.parametrize("method", ["division", "fixed-2", "lossless", Copying()], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8, torch.int16, torch.bool, torch.complex64], ids=str
)  # fmt: skip
def test_other_dtypes_come_back_bit_for_bit(dtype: torch.dtype, method: Any) -> None:
    """Also a user's bytes of zeros and ones, which are no mask unless a rule says so."""
    met: list[Tensor] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            kept = x.abs() if dtype == torch.uint8 else x
            ctx.save_for_backward(*(t.to(dtype) for t in (kept * 3, (x > 0).float())))
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            met[:] = ctx.saved_tensors
            return grad * 2

    x = images(16, 64).requires_grad_()
    with register_rule("KeepsBackward", 0, Use.LINEAR), register_rule("KeepsBackward", 1, Use.LINEAR):
        with division.compress(method, inputs=True):
            y = Keeps.apply(x) + 0
        y.sum().backward()
    kept = x.abs() if dtype == torch.uint8 else x
    expected = [t.detach().to(dtype) for t in (kept * 3, (x > 0).float())]
    assert [(t.dtype, t.shape) for t in met] == [(t.dtype, t.shape) for t in expected]
    assert same(met, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3, 4, 5])
def test_every_shape_and_dtype_is_coded_or_the_reason_is_told(dims: int, dtype: torch.dtype) -> None:
    shape = {1: (4096,), 2: (32, 128), 3: (4, 16, 64), 4: (2, 4, 16, 32), 5: (2, 2, 8, 8, 16)}[dims]
    x = torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
    w = torch.ones(shape, dtype=dtype, requires_grad=True)
    for method in LOSSY:
        with division.compress(method) as context:
            y = (x + 0) * w
        saved = [r for r in context.report.records if r.raw_bytes and r.field == "self"]
        assert all(bool(r.left) is not bool(r.codec) for r in saved)
        if method == "division" or (method.startswith("fixed") and dims > 1):
            assert [r.left for r in saved] == [""]
        (gradient,) = torch.autograd.grad(y.sum(), w)
        error = (gradient - x).double().norm() / x.double().norm()
        assert (error < 1) if method != "low-frequency" else (error < 1.1)


@pytest.mark.parametrize("build", ["3-D convolutions", "bfloat16", "detached branch"])
def test_no_kind_of_network_is_left_out_in_silence(build: str) -> None:
    x = images(2, 2, 8, 8, 8) if build == "3-D convolutions" else images(2, 3, 32, 32)
    model: nn.Module = (
        nn.Sequential(nn.Conv3d(2, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 4, 2))
        if build == "3-D convolutions"
        else convnet(16)
    )
    if build == "bfloat16":
        model, x = model.bfloat16(), x.bfloat16()
    head = nn.Linear(4, 4, dtype=x.dtype)
    with division.compress("division", inputs=True) as context:
        y = model(x)
        if build == "detached branch":
            y = y + F.dropout(head(y.detach()).softmax(-1), 0.3) * y
        loss = total(y)
    assert context.report.ratio > 4
    assert all(bool(r.left) is not bool(r.codec) for r in context.report.records)
    loss.backward()


@pytest.mark.parametrize("net", ["block of a transformer", "attention by hand"])
def test_a_transformer_block_is_covered(net: str) -> None:
    """Not its linear layers alone: softmax, GELU, norms, dropout and the products of attention."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(64, 4, 256, 0.1, activation="gelu", batch_first=True)
    qkv = nn.Linear(64, 192)
    x = images(4, 32, 64)
    with division.compress("division") as context:
        h = x * 1.0 + 0 * qkv.bias[0]
        if net == "block of a transformer":
            y = block(h)
        else:
            q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in qkv(h).chunk(3, -1))
            y = F.dropout((q @ k.mT / 4).softmax(-1), 0.1) @ v
    assert context.report.left_bytes <= 0.05 * context.report.raw_bytes, str(context.report)
    assert context.report.ratio > 4
    total(y).backward()


@pytest.mark.usefixtures("no_gc")
def test_more_bits_never_take_less_memory() -> None:
    """By the account, and as measured when forward ends and at the peak."""
    for made in (
        [f"fixed-{bits}" for bits in (1, 2, 4, 8, 16)],
        [methods.Division(bits=bits) for bits in (1, 2, 4, 8)],
    ):
        counted, alive, peaks = [], [], []
        for method in made:
            torch.manual_seed(0)
            model = convnet(16)
            with Live() as live:
                with division.compress(method) as context:
                    loss = total(model(images(4, 3, 32, 32)))
                alive.append(live.bytes)
                loss.backward()
            counted.append(context.report.packed_bytes)
            peaks.append(live.peak)
        for each in (counted, alive, peaks):
            assert each == sorted(each)
            assert each[0] < each[-1]
        assert [b - a for a, b in pairwise(counted)] == [b - a for a, b in pairwise(alive)]


def test_tensors_that_differ_in_one_element_share_no_code() -> None:
    """Equal sums, equal samples, NaN that equals nothing: codes are shared by memory, never by what is in it."""
    w = leaf(64, 64)
    base = torch.randn(64, 64)
    twin = base.clone()
    twin[17, 23] += 1
    twin[17, 24] -= 1
    nans = torch.full((64, 64), torch.nan)
    log = Log(Copying())
    with division.compress(log, inputs=True) as context:
        losses = [(x * w).sum() for x in (base, twin, nans, nans.clone(), base)]
    assert len(log.codes) == 4
    assert sum(bool(r.shared) for r in context.report.records) == 1
    for loss, x in zip(losses, (base, twin, nans, nans, base), strict=True):
        assert same(torch.autograd.grad(loss, w, retain_graph=True)[0], x)


@pytest.mark.parametrize("net", ["convnet", "attention"])
def test_defaults_are_what_they_are_said_to_be(net: str) -> None:
    """An option left out is the option given its documented default."""
    build, batch = NETS[net]
    said: dict[str, list[Callable[[], Any]]] = {
        "division": [
            lambda: division.compress(seed=5),
            lambda: division.compress("division", seed=5, inputs=False, only=None, skip=None),
            lambda: division.compress(methods.Division(block=8, bits=2, restore_zeros=False), seed=5),
        ],
        "fixed": [
            lambda: division.compress("fixed-2", seed=5),
            lambda: division.compress(methods.FixedBits(2, per="plane"), seed=5),
        ],
        "none": [lambda: division.compress(None), lambda: division.compress("none"), nullcontext],
    }
    for contexts in said.values():
        found = []
        for make in contexts:
            torch.manual_seed(0)
            model, x = build(), batch()
            with make():
                loss = total(model(x))
            found.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
        assert all(same(each, found[0]) for each in found)


@pytest.mark.parametrize("method", [*LOSSY, "lossless"])
def test_no_value_is_waited_for(method: str) -> None:
    """On a device without values: whatever read one, and so made the CPU wait for a GPU, would raise."""
    model = convnet(16).to("meta")
    block = nn.TransformerEncoderLayer(64, 4, 128, 0.1, activation="gelu", batch_first=True, device="meta")
    with division.compress(method, inputs=True) as context:
        x = torch.randn(4, 3, 32, 32, device="meta", requires_grad=True)
        tokens = torch.randn(2, 32, 64, device="meta", requires_grad=True)
        noise = torch.empty(4, 3, 32, 32, device="meta").bernoulli_(0.5)
        loss = model(x * noise).sum() + block(tokens + 0).sum()
    assert any(not r.left for r in context.report.records)
    loss.backward()
    assert x.grad is not None
    with pytest.raises((RuntimeError, NotImplementedError)):
        noise.sum().item()
    assert not is_mask(noise)
