"""BLPA: one code for a batch norm, its ReLU and the next layer, with exact signs."""

import copy
import gc
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division import methods
from division.methods import Blpa
from tests.models import WAYS, go

Relu = Callable[[Tensor], Tensor]


class Twice(nn.Conv2d):
    """A residual block of one convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


RELUS: dict[str, Relu] = {"in place": torch.relu_, "functional": F.relu}


def chain(channels: int = 8) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.Conv2d]:
    """Conv, norm and conv; scales of both signs and 0, thresholds near and far."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -1.0, 0.0, 0.0, 0.5, 2.0, -3.0, 1.0]))
        norm.bias.copy_(torch.tensor([0.1, 0.2, 1.0, -1.0, 3.0, -8.0, 0.0, 0.5]))
    return nn.Conv2d(3, channels, 3), norm, nn.Conv2d(channels, 4, 3)


BATCH = torch.randn(4, 3, 18, 18, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("way", WAYS)
def test_norm_relu_and_conv_share_one_code(
    way: str, bits: int, relu: Relu, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    go(way, monkeypatch)
    first, norm, second = chain()
    with division.compress(Blpa(bits)) as context:
        second(relu(norm(first(BATCH))))
    elements = 4 * 8 * 16 * 16
    assert context.report.code_bytes == elements * bits // 8 + 8 * 8
    coded = [(r.node, r.packed_bytes) for r in context.report.records if r.use and not r.left]
    assert coded == [
        ("NativeBatchNormBackward0", elements * bits // 8 + 64), ("ReluBackward0", 0), ("ConvolutionBackward0", 0)
    ]  # fmt: skip
    with division.compress(Blpa(bits)), torch.no_grad():
        second(relu(norm(first(BATCH))))


def levels(size: tuple[int, ...]) -> tuple[Tensor, nn.BatchNorm2d]:
    """A map of few values, and a norm that sends one value of each channel to where rounding alone decides its sign."""
    torch.manual_seed(3)
    x = torch.randint(-5, 6, size).float() / 7
    norm = nn.BatchNorm2d(size[1])
    with torch.no_grad():
        norm.weight.uniform_(-2, 2)
        norm.bias.zero_()
        norm.bias.copy_(-norm(x)[0, :, 0, 0])
    return x, norm


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_signs_of_relu_are_exact(dtype: torch.dtype, channels_last: bool, bits: int) -> None:
    x, norm = levels((6, 16, 9, 7))
    form = torch.channels_last if channels_last else torch.contiguous_format
    x, norm = (
        x.to(dtype, memory_format=form).requires_grad_(),
        norm.to(dtype if dtype == torch.float64 else torch.float32),
    )
    weights = torch.randn(6, 16, 9, 7, dtype=dtype)
    with division.compress(Blpa(bits)) as context:
        y = norm(x + 0)
        z = y.relu()
    assert {str(r.coded_by).partition("(")[0] for r in context.report.records if r.use} == {"normalised", "positive"}
    (grad,) = torch.autograd.grad(z, y, weights)
    assert torch.equal(grad, torch.where(z > 0, weights, 0))
    near = (y.abs() < 1e-6) & (y != 0)
    assert dtype == torch.bfloat16 or near.any()  # the case is met


def test_nan_passes_through_relu_and_shows_in_the_next_layer() -> None:
    first, norm, second = chain()
    x = BATCH.clone()
    x[0, 0, 0, 0] = math.nan
    with division.compress(Blpa()):
        h = first(x)
        y = norm(h)
        z = y.relu()
        out = second(z)
    assert y.isnan().all()
    (grad,) = torch.autograd.grad(z, y, torch.ones_like(z), retain_graph=True)
    assert torch.equal(grad, torch.ones_like(z))
    assert out.grad_fn._saved_input.isnan().all()  # type: ignore[union-attr]
    assert y.grad_fn._saved_input.isnan().all()  # type: ignore[union-attr]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_decoded_is_off_by_half_a_bin(bits: int, channels_last: bool) -> None:
    first, norm, second = chain()
    x = BATCH.contiguous(memory_format=torch.channels_last) if channels_last else BATCH
    with division.compress(Blpa(bits)):
        h = first(x)
        y = norm(h)
        z = y.relu()
        out = second(z)
    deviation = h.var((0, 2, 3), unbiased=False).add(norm.eps).sqrt()[:, None, None]
    normalised = (h - h.mean((0, 2, 3))[:, None, None]) / deviation
    half = 3.001 / (2**bits - 1)
    inside = normalised.abs() < 3 - 2 * half
    rebuilt, rectified = y.grad_fn._saved_input, out.grad_fn._saved_input  # type: ignore[union-attr]
    assert rebuilt.stride() == h.stride()
    assert rectified.stride() == z.stride()
    far = torch.zeros(8, 1, 1, dtype=torch.bool)
    far[5] = True  # its threshold is at 4 deviations: ReLU lets through outliers alone
    assert (((rebuilt - h).abs() / deviation)[inside] <= half).all()
    scale = norm.weight.detach().abs()[:, None, None]
    assert ((rectified - z).abs() <= scale * half + 1e-6)[inside & ~far].all()
    assert torch.equal(rectified > 0, z > 0)


def test_gradients_come_close_with_8_bits() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3, bias=False),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    y = torch.arange(4)

    def gradient(method: str) -> Tensor:
        with division.compress(method, model=model):
            loss = F.cross_entropy(model(BATCH), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    exact = gradient("none")
    errors = {bits: ((gradient(f"blpa-{bits}") - exact).norm() / exact.norm()).item() for bits in (4, 8)}
    assert errors[8] < 0.05
    assert errors[8] < errors[4] < 0.5


def test_behind_a_sum_relu_and_its_consumers_share_one_code() -> None:
    convs = [nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 3)]
    x = torch.randn(4, 8, 10, 10, requires_grad=True)
    with division.compress(Blpa()) as context:
        h = (x + x).relu()
        for conv in convs:
            conv(h)
    coded = [(r.node, str(r.coded_by), r.packed_bytes) for r in context.report.records if not r.left and r.use]
    assert coded == [
        ("ReluBackward0", "positive", 4 * 8 * 100 // 2 + 64),
        ("ConvolutionBackward0", "fixed(rectified=True)", 0), ("ConvolutionBackward0", "fixed(rectified=True)", 0),
    ]  # fmt: skip


def test_a_norm_that_a_sum_follows_has_a_code_of_its_own() -> None:
    first, norm, second = chain()
    with division.compress(Blpa()) as context:
        h = norm(first(BATCH))
        second((h + h).relu())
    coded = [(r.node, r.packed_bytes) for r in context.report.records if not r.left and r.use]
    size = 4 * 8 * 256 // 2 + 64
    assert coded == [("NativeBatchNormBackward0", size), ("ReluBackward0", size), ("ConvolutionBackward0", 0)]


@pytest.mark.parametrize("case", ["eval", "frozen shift", "a slice"])
def test_without_a_chain_it_falls_back(case: str) -> None:
    first, norm, second = chain()
    if case == "eval":
        norm.eval()
    if case == "frozen shift":
        norm.bias.requires_grad_(False)
    x = BATCH.clone().requires_grad_()
    with division.compress(Blpa(8)) as context:
        y = norm(first(x))
        z = (y[:, :4] if case == "a slice" else y).relu()
        out = second(torch.cat([z, z], 1) if case == "a slice" else z)
    assert not any("of its batch norm" in r.codec for r in context.report.records)
    (grad,) = torch.autograd.grad(z, y, torch.ones_like(z), retain_graph=True)
    assert torch.equal(grad[:, : z.shape[1]], (z > 0).float())
    (found,) = torch.autograd.grad(out.square().sum(), x)
    (exact,) = torch.autograd.grad(
        second(norm(first(x)).relu() if case != "a slice" else torch.cat([norm(first(x))[:, :4].relu()] * 2, 1))
        .square()
        .sum(),
        x,
    )
    assert (found - exact).norm() < 0.2 * exact.norm()


@pytest.mark.parametrize("name", ["offload-blpa", "swap-blpa"])
@pytest.mark.parametrize("size", [34, 10])  # codes that are moved, and codes too small to be
def test_moved_codes_are_shared_as_the_others_are(name: str, size: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Twice(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8),
        nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3),
    )  # fmt: skip
    x, found = torch.randn(8, 3, size, size), {}
    for method in ("blpa", name):
        with division.compress(method, model=model) as context:
            loss = model(x).square().mean()
        prediction = division.predict(model, x, method, loss=lambda y: y.square().mean())
        assert prediction.packed_bytes == context.report.packed_bytes
        found[method] = context.report.packed_bytes, torch.autograd.grad(loss, list(model.parameters()))
    assert found[name][0] == found["blpa"][0]
    assert all(map(torch.equal, found[name][1], found["blpa"][1]))
    assert bool(context.report.elsewhere_bytes) is (size == 34 or name == "swap-blpa")


def test_two_relus_of_one_norm_both_read_its_code() -> None:
    first, norm, second = chain()
    with division.compress(Blpa()) as context:
        y = norm(first(BATCH))
        loss = second(y.relu()).sum() + second(y.relu()).sum()
    assert context.report.code_bytes == 4 * 8 * 256 // 2 + 64
    loss.backward()


def test_the_last_layer_is_exact_where_the_model_is_known() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    x = torch.randn(64, 16)
    for bound, left in ((model, 1), (None, 0)):
        with division.compress(Blpa(), model=bound) as context:
            model(x)
        inputs = [r for r in context.report.records if r.field == "mat1"][1:]
        assert [r.left for r in inputs].count("the method leaves this use") == left
        assert bool(inputs[-1].left) is bool(left)


def test_codes_go_with_the_graph_and_decode_alike_each_time() -> None:
    first, norm, second = chain()
    context = division.compress(Blpa())
    with context:
        y = norm(first(BATCH))
        loss = second(torch.relu_(y)).square().sum()
    node = loss.grad_fn
    while node.name() != "NativeBatchNormBackward0":  # type: ignore[union-attr]
        node = node.next_functions[0][0]  # type: ignore[union-attr]
    packed = node.metadata["division.blpa"]  # type: ignore[union-attr]
    assert packed() is not None
    once = torch.autograd.grad(loss, list(first.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(first.parameters()))
    assert all(map(torch.equal, once, again))
    gc.collect()
    assert packed() is None  # though graph and report live


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6), nn.BatchNorm1d(6, affine=False)])
def test_rows_and_sequences_have_chains_too(norm: nn.Module) -> None:
    linear, conv = nn.Linear(6, 3), nn.Conv1d(6, 3, 1)
    for x, last in ((torch.randn(64, 6), linear), (torch.randn(8, 6, 20), conv)):
        x.requires_grad_()
        with division.compress(Blpa()) as context:
            loss = last(norm(x + 0).relu()).sum()
        assert context.report.code_bytes == x.numel() // 2 + 6 * 8
        loss.backward()


def test_a_bound_method_is_copied_and_pickled() -> None:
    method = Blpa(8)
    method.bind(dict(nn.Linear(2, 2).named_parameters()))
    assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == method


@pytest.mark.parametrize(("name", "bits"), [("blpa", 4), ("blpa-4", 4), ("blpa-8", 8)])
def test_names(name: str, bits: int) -> None:
    assert methods.find(name) == Blpa(bits)


@pytest.mark.parametrize(
    "settings", [{"name": "blpa-2"}, {"name": "blpa-x"}, {"name": "blpa", "block": 8}, {"name": "blpa", "bits": 16}]
)
def test_other_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        methods.find(**settings)
