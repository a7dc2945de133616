"""Recomputing from coded inputs: what is kept, what backward then runs on, and where it stands aside."""

import copy
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, noop_context_fn

import division
from division.codecs.dual import Dual
from division.codecs.group import Group
from division.private import storage_of

BOTH = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


class Block(nn.Module):
    """A residual block that notes what it is called with."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.seen.append(x.detach().clone())
        return x + self.norm(self.conv(x)).relu() * scale


def images(*size: int) -> Tensor:
    return torch.randn(size or (4, 3, 16, 16), generator=torch.Generator().manual_seed(7))


def network(blocks: int = 3) -> tuple[nn.Conv2d, list[Block]]:
    torch.manual_seed(0)
    return nn.Conv2d(3, 8, 3, padding=1), [Block() for _ in range(blocks)]


def gradients(stem: nn.Module, blocks: list[Block], run: Callable[..., Tensor]) -> list[Tensor]:
    model = nn.ModuleList([stem, *blocks])
    model.zero_grad()
    h = stem(images())
    for block in blocks:
        h = run(block, h)
    h.square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def off(found: list[Tensor], exact: list[Tensor]) -> float:
    a, b = (torch.cat([g.flatten() for g in each]) for each in (found, exact))
    return float((a - b).norm() / b.norm())


@BOTH
@pytest.mark.parametrize(("bits", "most"), [(8, 0.05), (4, 0.5)])
def test_the_error_is_that_of_the_bits(bits: int, most: float, reentrant: bool) -> None:
    stem, blocks = network()
    exact = gradients(stem, blocks, lambda block, h: block(h))
    found = gradients(stem, blocks, partial(division.recompute(bits, seed=0), use_reentrant=reentrant))
    assert most / 100 < off(found, exact) < most


@BOTH
def test_backward_runs_on_the_decoded_input_and_nothing_else_changes(reentrant: bool) -> None:
    stem, (block,) = network(1)
    h = stem(images())
    y = division.recompute(4, seed=0)(block, h, use_reentrant=reentrant)
    assert torch.equal(y, block(h.detach()))  # forward is exact
    block.seen.clear()
    y.square().mean().backward()
    (decoded,) = block.seen
    step = (h - nn.functional.avg_pool2d(h, 8).repeat_interleave(8, 2).repeat_interleave(8, 3)).flatten(2)
    step = (step.amax(-1) - step.amin(-1))[..., None, None] / 15
    assert (decoded - h).abs().max() > 0
    assert ((decoded - h).abs() <= step * 1.02 + 1e-3).all()
    found = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    block.zero_grad()
    block(decoded).backward((y / y.numel() * 2).detach())
    assert all(torch.equal(a, p.grad) for a, p in zip(found, block.parameters(), strict=True) if p.grad is not None)


def test_bytes_are_those_of_the_codes_while_they_are_needed() -> None:
    stem, blocks = network()
    recompute = division.recompute(8)
    h = stem(images())
    size = 4 * h.numel()
    for block in blocks:
        h = recompute(block, h)
    code = Dual(8, 8).packed_bytes(h.shape, h.dtype)
    assert (recompute.raw_bytes, recompute.packed_bytes) == (3 * size, 3 * code)
    h.sum().backward()
    assert (recompute.raw_bytes, recompute.packed_bytes) == (0, 0)


def test_originals_are_let_go() -> None:
    stem, blocks = network(1)
    recompute = division.recompute(8)
    h = stem(images()) * 1
    original = storage_of(h)
    y = recompute(lambda x: blocks[0](x) * 1, h)
    del h
    assert original.expired()
    y.sum().backward()


def test_one_tensor_is_coded_once() -> None:
    stem, (first, second) = network(2)
    recompute = division.recompute(8)
    h = stem(images())
    (recompute(first, h) + recompute(second, h)).sum().backward()
    h = stem(images())
    y = recompute(first, h) + recompute(second, h)
    assert recompute.packed_bytes == Dual(8, 8).packed_bytes(h.shape, h.dtype)
    y.sum().backward()
    assert torch.equal(first.seen[-1], second.seen[-1])


def test_tokens_are_coded_along_the_sequence() -> None:
    recompute = division.recompute(4)
    linear = nn.Linear(64, 64)
    y = recompute(linear, images(2, 64, 64).requires_grad_() * 1)
    assert recompute.packed_bytes == Group(4, 32, 1).packed_bytes((2, 64, 64), torch.float32)
    y.sum().backward()


@BOTH
def test_what_is_kept_as_it_is(reentrant: bool) -> None:
    """The batch, a weight, integers, a mask, numbers, keyword arguments."""
    weight, index = nn.Parameter(torch.randn(8, 8)), torch.tensor([3, 1, 2])
    recompute = division.recompute(4)

    def function(x: Tensor, w: Tensor, i: Tensor, keep: Tensor, factor: float, *, bias: Tensor) -> Tensor:
        return ((x @ w)[i] * keep * factor + bias).tanh()

    bias = (weight[0] * 2).detach().requires_grad_()

    def run(call: Any) -> list[Tensor | None]:
        weight.grad = bias.grad = None
        x = images(4, 8).requires_grad_()
        y = call(function, x, weight, index, torch.arange(8) > 2, 0.5, bias=bias)
        assert recompute.packed_bytes == 0
        y.sum().backward()
        return [x.grad, weight.grad, bias.grad]

    plain = run(lambda f, *args, **kwargs: f(*args, **kwargs))
    call: Any = recompute
    if reentrant:  # which takes no keyword arguments for the function
        call = lambda f, *args, bias: recompute(partial(f, bias=bias), *args, use_reentrant=True)  # noqa: E731
    for a, b in zip(plain, run(call), strict=True):
        assert a is not None
        assert torch.equal(a, b)  # type: ignore[arg-type]


def test_each_call_and_each_step_has_noise_of_its_own_and_a_seed_repeats_it() -> None:
    stem, (block,) = network(1)

    def draws(recompute: division.recompute, steps: int) -> list[Tensor]:
        block.seen.clear()
        for _ in range(steps):
            recompute(block, stem(images())).sum().backward()
        return block.seen[1::2]

    state = torch.get_rng_state()
    a, b = draws(division.recompute(4, seed=3), 2), draws(division.recompute(4, seed=3), 2)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a[0], a[1])
    assert not torch.equal(draws(division.recompute(4, seed=4), 1)[0], a[0])
    assert not torch.equal(draws(division.recompute(4), 1)[0], draws(division.recompute(4), 1)[0])


def test_a_second_backward_decodes_the_same() -> None:
    stem, (block,) = network(1)
    y = division.recompute(4)(block, stem(images())).square().sum()
    y.backward(retain_graph=True)
    first = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    block.zero_grad()
    y.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, block.parameters(), strict=True) if p.grad is not None)


@pytest.mark.parametrize("around", ["checkpoint", "recompute", "save_on_cpu"])
def test_inside_other_hooks_nothing_is_coded_and_nothing_recomputed_more_often(around: str) -> None:
    stem, blocks = network()
    recompute = division.recompute(4)

    def chain(call: Any, x: Tensor) -> Tensor:
        for block in blocks:
            x = call(block, x)
        return x

    def run(call: Any) -> tuple[list[Tensor], list[int]]:
        model = nn.ModuleList([stem, *blocks])
        model.zero_grad()
        for block in blocks:
            block.seen.clear()
        outer: Any = {"checkpoint": partial(checkpoint, use_reentrant=False), "recompute": recompute}.get(around)
        h = stem(images()) * 1
        if outer is None:
            with save_on_cpu():
                y = chain(call, h)
        else:
            y = outer(partial(chain, call), h)
        kept = recompute.raw_bytes
        y.square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        assert kept == (4 * h.numel() if around == "recompute" else 0)
        return grads, [len(block.seen) for block in blocks]

    found, counts = run(recompute)
    plain, expected = run(partial(checkpoint, use_reentrant=False))
    assert counts == expected
    if around == "recompute":
        assert 0 < off(found, plain) < 0.4
    else:
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def save_convolutions(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.convolution.default else CheckpointPolicy.PREFER_RECOMPUTE


def test_selective_checkpoints_keep_what_they_keep_as_it_is() -> None:
    stem, (block,) = network(1)
    recompute = division.recompute(8)
    context = partial(create_selective_checkpoint_contexts, save_convolutions)
    with warnings.catch_warnings(action="error"):
        h = stem(images())
        y = recompute(block, h, context_fn=context)
        assert recompute.raw_bytes == 4 * h.numel()
        y.square().mean().backward()
    found = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    block.zero_grad()
    block(h.detach()).square().mean().backward()
    assert 0 < off(found, [p.grad for p in block.parameters() if p.grad is not None]) < 0.05


@pytest.mark.parametrize("attached", [False, True], ids=["compress", "attach"])
def test_beside_compression_nothing_is_coded_twice(attached: bool) -> None:
    stem, blocks = network(2)
    recompute, head = division.recompute(8), nn.Conv2d(8, 4, 3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([stem, *blocks, head])

        def forward(self, x: Tensor) -> Tensor:
            h = stem(x)
            for block in blocks:
                h = recompute(block, h)
            return head(h).tanh()  # type: ignore[no-any-return]

    model = Net()
    context: Any = division.attach(model, seed=0) if attached else division.compress(seed=0)
    with context:
        y = model(images())
    coded = [record.node for record in context.report.records if not record.left]
    assert coded == ["ConvolutionBackward0", "TanhBackward0"]
    assert recompute.raw_bytes == 2 * 4 * 4 * 8 * 16 * 16
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert recompute.raw_bytes == 0


def test_an_input_changed_afterwards() -> None:
    """Of a coded one the value at the call counts; of one that is kept as it is PyTorch's rule holds: an error."""
    stem, (block,) = network(1)
    recompute = division.recompute(8, seed=0)
    h = stem(images()) * 1
    y = recompute(block.conv, h)
    with torch.no_grad():
        h.zero_()
    y.square().mean().backward()
    assert block.conv.weight.grad is not None
    assert block.conv.weight.grad.abs().max() > 1e-4
    x = images(4, 8, 16, 16)
    y = recompute(block, x)
    x.zero_()
    with pytest.raises(RuntimeError, match=r"changed in place: it is at version 1, expected version 0; clone it"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    stem, (block,) = network(1)
    with torch.autocast("cpu", dtype):
        h = stem(images())
        assert h.dtype is dtype
        y = division.recompute(8)(block.conv, h)
    y.float().square().mean().backward()
    found = [p.grad.clone() for p in block.conv.parameters() if p.grad is not None]
    block.zero_grad()
    with torch.autocast("cpu", dtype):
        y = block.conv(h.detach())
    y.float().square().mean().backward()
    assert 0 < off(found, [p.grad for p in block.conv.parameters() if p.grad is not None]) < 0.05


def test_where_compression_is_disabled_nothing_is_coded() -> None:
    stem, (block,) = network(1)
    recompute = division.recompute(8)
    with division.compress(), division.disabled():
        y = recompute(block, stem(images()))
    assert recompute.raw_bytes == 0
    y.sum().backward()


def test_without_grad_and_under_a_transform_it_is_the_function_itself() -> None:
    _, (block,) = network(1)
    recompute, x = division.recompute(8), images(2, 8, 16, 16)
    with torch.no_grad():
        assert torch.equal(recompute(block, x), block(x))
    assert recompute.raw_bytes == 0
    weights = dict(block.named_parameters())

    def loss(w: Any, call: Any) -> Tensor:
        return call(partial(torch.func.functional_call, block, w), x * 1).sum()  # type: ignore[no-any-return]

    with pytest.raises(RuntimeError, match="saved tensor hooks"):  # torch's own, of its checkpoint
        torch.func.grad(loss)(weights, partial(checkpoint, use_reentrant=False))
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(loss)(weights, recompute)


def test_within_what_is_compiled_it_is_torchs_own() -> None:
    _, (block,) = network(1)
    recompute, conv = division.recompute(4), block.conv
    x = images(2, 8, 16, 16).requires_grad_()

    def run(function: Any) -> list[Tensor]:
        conv.zero_grad()
        function(x).square().sum().backward()
        return [p.grad.clone() for p in conv.parameters() if p.grad is not None]

    plain = run(lambda h: conv(h * 2))
    compiled = torch.compile(lambda h: recompute(conv, h * 2), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(compiled), plain)
    assert recompute.raw_bytes == 0


@pytest.mark.parametrize("how", ["in its graph", "in a graph of its own"])
@pytest.mark.parametrize("mode", ["non-reentrant", "reentrant", "no_grad"])
def test_a_function_that_runs_a_backward_of_its_own_is_exact_in_forward(how: str, mode: str) -> None:
    """A force, say: there the function is run again before it has returned."""
    stem, (block,) = network(1)

    def force(x: Tensor) -> Tensor:
        with torch.enable_grad():
            source = x if how == "in its graph" and x.requires_grad else x.detach().requires_grad_()
            energy = (block.conv(source).square() * source).sum()
            return torch.autograd.grad(energy, source, create_graph=source is x)[0]

    recompute, h = division.recompute(4), stem(images())
    with torch.set_grad_enabled(mode != "no_grad"):
        found = recompute(force, h, use_reentrant=mode == "reentrant")
    assert torch.equal(found, force(h))
    if how == "in its graph" and mode == "non-reentrant":
        assert recompute.raw_bytes == 4 * h.numel()
        found.square().sum().backward()
        assert 0 < off([block.conv.weight.grad], [exact(force, h, block.conv.weight)]) < 0.5  # type: ignore[list-item]
    del found
    assert recompute.raw_bytes == 0


def exact(function: Callable[[Tensor], Tensor], h: Tensor, weight: Tensor) -> Tensor:
    return torch.autograd.grad(function(h.detach().requires_grad_()).square().sum(), weight)[0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("seed", [None, 5])
def test_a_model_that_holds_one_can_be_copied(copied: Callable[[Any], Any], seed: int | None) -> None:
    """A copy keeps nothing of what is coded, and goes on with the noise where it stood."""
    stem, (block,) = network(1)
    first = block.recompute = division.recompute(4, seed=seed)  # type: ignore[assignment]
    y = first(block.conv, stem(images()))
    second: Any = copied(block).recompute
    assert second is not first
    assert (second.bits, second.raw_bytes, first.raw_bytes) == (4, 0, 4 * y.numel())

    def drawn(recompute: Any) -> Tensor:
        block.zero_grad()
        recompute(block.conv, stem(images())).square().sum().backward()
        return block.conv.weight.grad.clone()  # type: ignore[union-attr]

    assert torch.equal(drawn(first), drawn(second))


def test_bytes_can_be_asked_for_while_other_threads_add_some() -> None:
    recompute, errors = division.recompute(8), []
    linear, interval = nn.Linear(64, 64), sys.getswitchinterval()

    def work() -> None:
        try:
            kept = []
            for _ in range(100):
                kept.append(recompute(linear, torch.ones(8, 64, requires_grad=True) * 1))
                assert recompute.raw_bytes >= len(kept) * 8 * 64 * 4
                assert recompute.packed_bytes > 0
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_an_attention_mask_goes_in_as_a_keyword_argument() -> None:
    """Infinite or huge values would take what lies beside them with them."""

    def grads(call: Any, fill: float) -> list[Tensor]:
        x = images(1, 4, 16, 16).requires_grad_()
        bias = (x * 0.5).masked_fill(torch.ones(16, 16).triu(1) > 0, fill)
        call(lambda scores, bias: (scores + bias).softmax(-1).square(), x * 1, bias=bias).sum().backward()
        return [x.grad]  # type: ignore[list-item]

    for fill in (float("-inf"), torch.finfo(torch.float32).min, -1e4):
        plain = grads(lambda function, x, bias: function(x, bias), fill)
        assert 0 < off(grads(division.recompute(8), fill), plain) < 0.05


def test_reentrance_takes_torchs_own_settings_at_their_defaults() -> None:
    stem, (block,) = network(1)
    y = division.recompute(8)(block, stem(images()), use_reentrant=True, context_fn=noop_context_fn)
    y.sum().backward()
    assert block.conv.weight.grad is not None


@pytest.mark.parametrize("bits", [0, 1, 2, 3, 16, 8.5, True, None, "8"])
def test_bits_out_of_range_are_refused(bits: Any) -> None:
    with pytest.raises(ValueError, match=r"got bits=.*, expected 8 or 4"):
        division.recompute(bits)


def test_a_function_in_the_place_of_the_bits_is_explained() -> None:
    with pytest.raises(TypeError, match=r"make an object first, recompute = division.recompute\(bits=8\)"):
        division.recompute(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_failing_function_leaves_nothing_behind() -> None:
    def fail(x: Tensor) -> Tensor:
        raise KeyError("no")

    recompute = division.recompute(8)
    with pytest.raises(KeyError):
        recompute(fail, images(8, 8, 16, 16).requires_grad_() * 1)
    stem, (block,) = network(1)
    y = block.conv(stem(images()))
    assert y.grad_fn._raw_saved_input.unpack_hook is None  # type: ignore[union-attr]
    assert recompute.raw_bytes == 0
