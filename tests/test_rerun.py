"""Blocks that are run again: everything is as in plain training, but for what is kept."""

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import CheckpointError

import division
from division.blocks import choose
from division.methods import Checkpoint, Division, FixedBits, Lossless, Nothing, Swap
from division.private import storage_of
from tests.models import WAYS, Of, convnet, go, grads, images, same, steps, total

Context = Callable[[nn.Module], Any]


class Block(nn.Module):
    """A residual block with batch norm and dropout, which counts its calls."""

    def __init__(self, channels: int = 8, inplace: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.drop = nn.Dropout(0.2)
        self.inplace, self.calls = inplace, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.norm(self.conv(x.relu_() if self.inplace else x.relu()))
        return x + self.drop(h)  # type: ignore[no-any-return]


def network(count: int = 4, **settings: bool) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(Block(**settings)) for _ in range(count)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


NAMES = [segment.name for segment in choose(network())]


def blocks_of(model: nn.Module) -> list[Block]:
    return [part for part in model.modules() if isinstance(part, Block)]


def within(method: Any = "checkpoint") -> Context:
    return lambda model: division.compress(method, model=model, seed=0)


def attached(method: Any = "checkpoint") -> Context:
    return lambda model: division.attach(model, method, seed=0)


def plain(model: nn.Module) -> Any:
    return division.compress("none")


BOTH = pytest.mark.parametrize("around", [within, attached])


def touched(model: nn.Module) -> list[str]:
    return [name for name, part in model.named_modules() if "forward" in vars(part)]


def once(model: nn.Module, x: Tensor, around: Context) -> list[Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    with around(model):
        loss = total(model(x))
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@BOTH
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "method", ["checkpoint", "checkpoint-lossless", "checkpoint-swap", "swap-checkpoint", "offload-checkpoint"]
)
def test_training_is_the_same_bit_for_bit(
    around: Callable[..., Context], method: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(way, monkeypatch)
    for model in (network(), network(inplace=True), convnet(16)):
        x = images(2, 3, 32, 32)
        assert same(steps(model, [x], plain, 3), steps(model, [x], around(method), 3))


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("densenet121", "swin_t", "googlenet", "vgg11", "efficientnet_b0")
]


@pytest.mark.parametrize("name", ["resnet18", "vgg", "vit", "mobilenet_v3_small", *SLOW])
def test_torchvision_trains_the_same_bit_for_bit(name: str) -> None:
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    if name == "vit":
        model = models.VisionTransformer(32, 8, 4, 2, 32, 64, 0.1, 0.1, num_classes=5)
    elif name == "vgg":
        model = models.vgg.make_layers([8, "M", 16, 16, "M", 24, 24, "M"], batch_norm=True)
    else:
        extra = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        model = models.get_model(name, weights=None, num_classes=5, **extra)
    x = images(2, 3, 32, 32)
    assert same(steps(model, [x], plain), steps(model, [x], attached()))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto", "regnety_002", "mobilenetv3_small_050"])
def test_timm_trains_the_same_bit_for_bit(name: str) -> None:
    pytest.importorskip("timm")
    from tests.families.family import Called
    from tests.families.of_timm import FAMILIES

    model, x = Called(FAMILIES[name].build()), FAMILIES[name].batch()
    assert same(steps(model, [x], plain), steps(model, [x], attached()))


@BOTH
def test_each_block_runs_once_in_forward_and_once_in_backward(around: Callable[..., Context]) -> None:
    model, x = network(), images(2, 3, 16, 16)
    with around()(model):
        loss = total(model(x))
    assert [block.calls for block in blocks_of(model)] == [1, 1, 1, 1]
    loss.backward()
    assert [block.calls for block in blocks_of(model)] == [2, 2, 2, 2]


@BOTH
def test_only_what_goes_into_the_blocks_stays_in_memory(around: Callable[..., Context]) -> None:
    model, x, inner = network(8), images(2, 3, 16, 16), []
    for block in blocks_of(model):
        block.conv.register_forward_hook(lambda module, args, output: inner.append(storage_of(output)))
    for context, free in ((plain, 0), (around(), 8)):
        inner.clear()
        with context(model):
            loss = total(model(x))
        assert sum(each.expired() for each in inner) == free
        del loss


@BOTH
def test_the_account_tells_what_is_kept_and_what_a_second_run_takes(around: Callable[..., Context]) -> None:
    model, x = network(), images(2, 3, 32, 32)
    with around("none")(model) as exact:
        model(x)
    with around()(model) as context:
        model(x)
    report, prediction = context.report, division.predict(model, x, "checkpoint")
    assert report.raw_bytes == exact.report.raw_bytes == prediction.normal_bytes
    assert report.packed_bytes == prediction.packed_bytes
    assert report.recomputed_bytes == prediction.recomputed_bytes
    # Batch, what went into the last three blocks, and what lies behind them: the first one begins with the batch.
    kept = 4 * x.numel() + 3 * (4 * 2 * 8 * 30 * 30)
    assert kept <= report.packed_bytes < kept + 2000
    # Of a block: results of the ReLU and of the convolution, and the mask.
    plane = 4 * 2 * 8 * 30 * 30
    assert 3 * plane <= report.recomputed_bytes < 3 * plane + 1000
    assert "more while the largest segment is run again" in str(report)
    assert {r.field for r in report.records if r.left == "run again in backward"} == set(NAMES)


def test_what_lies_between_goes_to_the_other_method() -> None:
    model, x = network(), images(4, 3, 32, 32)
    with within("checkpoint-division")(model) as context:
        total(torch.relu(model[:5](x) * 2))
    coded = [r for r in context.report.records if r.codec]
    assert coded
    assert all(r.node != "checkpoint" for r in coded)


@pytest.mark.parametrize("bits", [4, 8])
def test_inputs_in_codes(bits: int) -> None:
    model, x = network(), images(4, 3, 32, 32)
    exact, off = once(model, x, plain), once(model, x, within(Checkpoint(bits=bits)))
    a, b = (torch.cat([g.flatten() for g in each]) for each in (exact, off))
    assert 0 < float((a - b).norm() / a.norm()) < (0.5 if bits == 4 else 0.05)
    with within(Checkpoint(bits=bits))(model) as context:
        total(model(x))
    prediction = division.predict(model, x, Checkpoint(bits=bits), loss=total)
    assert context.report.packed_bytes == prediction.packed_bytes < 4 * x.numel() + 4 * x.numel() * 8 / 3 * 4 / 3


@BOTH
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_a_block_leaves_the_model_as_it_was(
    around: Callable[..., Context], error: type[BaseException]
) -> None:
    def fail(*_: object) -> None:
        raise error

    model, x = network(), images(2, 3, 16, 16)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    context = around()(model)
    hook = blocks_of(model)[2].conv.register_forward_hook(fail)
    with pytest.raises(error), context:
        model(x)
    hook.remove()
    assert touched(model) == []
    model.load_state_dict(state)
    fresh = copy.deepcopy(model)
    assert same(once(model, x, around()), once(fresh, x, around()))


@BOTH
def test_outside_a_call_the_model_is_as_ever(around: Callable[..., Context]) -> None:
    """Under `attach` a flat sequence alone keeps an attribute: its forward is looked up before anyone is told of the call."""
    model = Of(lambda layers, x: layers["net"](x), net=network())
    kinds = [type(part) for part in model.modules()]
    keys = list(model.state_dict())
    context = around()(model)
    with context:
        loss = total(model(images(2, 3, 16, 16)))
        if around is attached:
            assert touched(model) == []
    assert touched(model) == []
    other, again = copy.deepcopy(network()), pickle.loads(pickle.dumps(network()))
    loss.backward()
    assert [type(part) for part in model.modules()] == kinds
    assert list(model.state_dict()) == keys
    assert touched(other) == touched(again) == []


@BOTH
def test_copies_made_in_the_middle_of_a_forward_work_alone(around: Callable[..., Context]) -> None:
    model, x = network().eval(), images(2, 3, 16, 16)
    made: list[nn.Module] = []
    blocks_of(model)[1].register_forward_pre_hook(_copier(model, made))
    with around()(model):
        model(x)
    expected = model(x)
    with torch.no_grad():
        model[1][0].conv.weight.zero_()  # type: ignore[index, union-attr, operator]
    for copied in made:
        assert torch.equal(copied(x), expected)
        assert len(once(copied, x, around())) == len(list(model.parameters()))


class _copier:
    """A hook that copies the model once each way, itself left out of the copies."""

    def __init__(self, model: nn.Module, made: list[nn.Module]) -> None:
        self.model, self.made = model, made

    def __call__(self, *_: object) -> None:
        if not self.made:
            self.made.append(copy.deepcopy(self.model))
            self.made.append(pickle.loads(pickle.dumps(self.model)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing(*_: object) -> Any:
    return _nothing if not _ else None


def test_a_flat_sequence_is_as_ever_once_the_handle_is_removed() -> None:
    model = convnet(16)
    handle = division.attach(model, "checkpoint")
    loss = total(model(images(2, 3, 32, 32)))
    handle.remove()
    assert touched(model) == []
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def flat(count: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(count) for layer in (nn.Linear(8, 8), nn.Tanh())))


def test_shallow_copies_of_a_flat_sequence_run_their_own_layers() -> None:
    model, other, x = flat(), flat(), torch.randn(4, 8)
    for p in other.parameters():
        p.data.mul_(2)
    expected = other(x)
    handle = division.attach(model, "checkpoint")
    copies = [copy.copy(model), copy.deepcopy(model), copy.copy(copy.deepcopy(model)), copy.deepcopy(copy.copy(model))]
    stray = copy.deepcopy(copies[0])
    for each in [*copies, model._replicate_for_data_parallel()]:
        each._modules = dict(other._modules)
        assert torch.equal(each(x), expected)
        with handle.step():
            assert torch.equal(each(x), expected)
        with division.attach(each, "checkpoint") as own:
            loss = total(each(x))
        assert any(r.left == "run again in backward" for r in own.report.records)
        loss.backward()
        assert grads(other)
        other.zero_grad()
    handle.remove()
    del model, handle
    assert all(torch.equal(each(x), expected) for each in copies)
    with pytest.raises(RuntimeError, match="got a forward of a copy, expected a call of the copy itself"):
        stray.forward(x)


def test_what_is_pickled_while_attached_knows_nothing_of_it() -> None:
    model, x = flat(), torch.randn(4, 8)
    with division.attach(model, "checkpoint"):
        data, copied = pickle.dumps(model), copy.deepcopy(model)
    assert b"division" not in data
    for each in (pickle.loads(data), copied):
        assert torch.equal(each(x), model(x))
        assert torch.equal(each.forward(x), model(x))
        next(each.parameters()).data.zero_()
        assert not torch.equal(each(x), model(x))


@pytest.mark.filterwarnings("ignore:.torch.jit.")
def test_an_attached_flat_sequence_is_scripted_and_exported() -> None:
    model, x = flat(), torch.randn(4, 8)
    expected = model(x)
    with division.attach(model, "checkpoint"):
        assert torch.equal(torch.jit.script(model)(x), expected)
        assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
        assert torch.equal(torch.fx.symbolic_trace(model)(x), expected)
        assert torch.equal(torch.jit.trace(model, x)(x), expected)


@BOTH
def test_accumulation_eval_passes_and_retained_graphs(around: Callable[..., Context]) -> None:
    x, y = images(2, 3, 16, 16), images(3, 3, 16, 16)

    def train(context: Context) -> Any:
        model = network()
        torch.manual_seed(5)
        with context(model):
            first = total(model(x))
        model.eval()
        with torch.no_grad():
            seen = model(y)
        with context(model):
            second = total(model(y))
        model.train()
        with context(model):
            third = total(model(y))
        third.backward(retain_graph=True)
        third.backward()
        first.backward()
        return seen, grads(model), dict(model.state_dict()), second.detach()

    assert same(train(plain), train(around()))


def test_modes_weights_and_statistics_of_the_call_are_used() -> None:
    model, x = network(), images(4, 3, 16, 16)
    exact = once(copy.deepcopy(model), x, plain)
    torch.manual_seed(3)
    with within()(model):
        loss = total(model(x))
    model.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    loss.backward()
    assert same([p.grad for p in model.parameters()], exact)
    assert not any(part.training for part in model.modules())
    assert same(dict(model.state_dict()), state)


def test_weights_that_stand_in_for_the_models() -> None:
    model, x = network(), images(2, 3, 16, 16)
    other = {name: p.detach() * 1.5 for name, p in model.named_parameters()}

    def run(context: Context) -> list[Tensor]:
        weights = {name: p.clone().requires_grad_() for name, p in other.items()}
        torch.manual_seed(2)
        with context(model):
            loss = total(torch.func.functional_call(model, weights, (x,)))
        return list(torch.autograd.grad(loss, list(weights.values())))

    assert same(run(plain), run(within()))
    assert same(run(plain), run(attached()))


def test_buffers_that_decide_what_comes_out() -> None:
    """Spectral norm turns its vectors at each forward: the second run must begin where the first one did."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (spectral_norm(nn.Linear(16, 16)), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(4, 16)
    assert same(steps(model, [x], plain, 3), steps(model, [x], within(), 3))
    assert same(steps(model, [x], plain, 3), steps(model, [x], attached(), 3))


@BOTH
def test_an_embedding_with_a_greatest_norm(around: Callable[..., Context]) -> None:
    """Its forward scales the weight, which backward must not do once more."""

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.net = nn.Embedding(500, 32, max_norm=0.5), nn.Sequential(nn.Linear(32, 32), nn.Tanh())

        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            return self.net(x + self.table(ids))  # type: ignore[no-any-return]

    def run(layers: nn.ModuleDict, ids: Tensor) -> Tensor:
        x = torch.zeros(*ids.shape, 32)
        for layer in layers.values():
            x = layer(ids, x)
        return x

    torch.manual_seed(0)
    model, ids = Of(run, **{name: Looking() for name in "abcdef"}), torch.randint(0, 500, (16, 32))
    assert same(steps(model, [ids], plain, 3), steps(model, [ids], around(), 3))


def test_statistics_that_torch_writes_without_a_word() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.average, self.variance = nn.Buffer(torch.zeros(8)), nn.Buffer(torch.ones(8))
            self.conv = nn.Conv2d(8, 8, 1)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(nn.functional.batch_norm(self.conv(x), self.average, self.variance, training=True))

    torch.manual_seed(0)
    model, x = nn.Sequential(*(Own() for _ in range(4))), torch.randn(2, 8, 9, 9)
    assert same(steps(model, [x], plain, 3), steps(model, [x], attached(), 3))


class Renorm(nn.BatchNorm1d):
    """Batch renormalisation, which reads the running statistics in training."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        mean, std = x.mean(0), x.var(0).add(self.eps).sqrt()
        running = self.running_var.add(self.eps).sqrt()
        shift = ((mean - self.running_mean) / running).detach()
        y = (x - mean) / std * (std / running).detach() + shift
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(std.square(), 0.1)
        return y * self.weight + self.bias


class Folded(nn.Module):
    """A layer that reads the statistics of the norm behind it, as layers do that train for fixed-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        assert self.norm.running_var is not None
        std = (self.norm.running_var + self.norm.eps).sqrt()
        return self.norm(nn.functional.linear(x, self.layer.weight / std[:, None]))  # type: ignore[no-any-return]


@BOTH
@pytest.mark.parametrize("layer", [lambda: nn.Sequential(nn.Linear(16, 16), Renorm(16)), Folded])
def test_running_statistics_that_are_read_in_training(
    around: Callable[..., Context], layer: Callable[[], nn.Module]
) -> None:
    model, x = nn.Sequential(*(nn.Sequential(layer(), nn.ReLU()) for _ in range(6))), torch.randn(8, 16) * 3 + 1
    assert same(steps(model, [x], plain, 3), steps(model, [x], around(), 3))


@pytest.mark.parametrize("counts", [True, False])
def test_a_forward_in_eval_mode_keeps_its_statistics_whatever_trains_before_its_backward(counts: bool) -> None:
    """Gradients are as if backward had come at once; torch alone reads the new statistics in backward."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(6)))
    if not counts:
        for part in model.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.num_batches_tracked = None
    x = torch.randn(8, 8) * 3 + 1
    expected = once(copy.deepcopy(model).eval(), x, plain)
    context = within()(model)
    for _ in range(2):
        fresh = copy.deepcopy(dict(model.named_buffers()))
        model.eval().zero_grad()
        with context:
            loss = total(model(x))
            model.train()
            model(x)
        state = {name: value.clone() for name, value in model.named_buffers()}
        loss.backward()
        assert same(list(grads(model).values()), expected)
        assert same(dict(model.named_buffers()), state)
        for name, buffer in model.named_buffers():
            buffer.copy_(fresh[name])


def test_changes_in_place_that_would_be_wrong_raise() -> None:
    model, x = network(), images(2, 3, 16, 16)
    with within()(model):
        loss = total(model(x))
    with torch.no_grad():
        blocks_of(model)[0].conv.weight.add_(1)
    with pytest.raises(
        RuntimeError, match=r"'weight' .* in block '0-1', which is run again .* changed in place since forward"
    ):
        loss.backward()

    def change(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        h = layers["stem"](x)
        y = layers["b"](layers["a"](h)) + layers["c"](layers["d"](x[:, :1].expand(-1, 8, -1, -1) * 1))
        h.add_(1)
        return y

    other = Of(change, stem=nn.Conv2d(3, 8, 3, padding=1), **{name: Block() for name in "abcd"})
    with within(Checkpoint(segments=4))(other):
        loss = total(other(x))
    with pytest.raises(
        RuntimeError, match=r"an input \(2, 8, 16, 16\) of a block .* was changed in place after the block"
    ):
        loss.backward()


def test_a_block_that_begins_to_work_in_place_raises() -> None:
    model, x = network(), images(2, 3, 16, 16)
    context = within()(model)
    with context:
        model(x)
    blocks_of(model)[1].inplace = True
    with (
        pytest.raises(
            RuntimeError, match=r"block '2'.* changed its input .* in place, which it did not when it was first"
        ),
        context,
    ):
        model(x)


def test_blocks_with_keywords_lists_and_one_tensor_twice() -> None:
    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(16, 16), nn.Linear(16, 16), nn.ReLU(inplace=True)

        def forward(self, pair: list[Tensor], other: Tensor, *, scale: Tensor, name: str = "") -> dict[str, Any]:
            pair.append(other)
            return {"y": self.act(self.a(pair[0]) + self.b(pair[1]) * scale + other), "all": pair, "name": name}

    def call(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        for block in layers.values():
            given = [x, x]
            found = block(given, x, scale=x.sigmoid(), name="n")
            assert len(given) == 3
            assert found["all"] is given
            x = found["y"] + found["all"][2]
        return x

    torch.manual_seed(0)
    model, x = Of(call, **{name: Join() for name in "abcd"}), torch.randn(8, 16)
    assert same(steps(model, [x], plain), steps(model, [x], within()))
    context = within()(model)
    with context:
        model(x)
    assert any(r.left == "run again in backward" for r in context.report.records)


@BOTH
def test_a_module_that_a_sequence_holds_again_and_again(around: Callable[..., Context]) -> None:
    act, block = nn.Tanh(), Block()
    flat = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(8, 8), act)))
    deep = nn.Sequential(nn.Conv2d(3, 8, 3), block, Block(), block, Block(), block)
    for model, x in ((flat, torch.randn(4, 8)), (deep, images(2, 3, 16, 16))):
        assert same(steps(model, [x], plain), steps(model, [x], around()))


@BOTH
def test_a_sequence_with_two_names_is_run_once(around: Callable[..., Context]) -> None:
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.Tanh())))
    holder = nn.Module()
    holder.net = net
    model, x = Of(lambda layers, x: layers["net"](x), holder=holder, net=net), torch.randn(4, 8)
    assert same(steps(model, [x], plain), steps(model, [x], around()))


@BOTH
def test_an_object_that_blocks_add_to_is_an_error_that_says_what_to_do(around: Callable[..., Context]) -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys: list[Tensor] = []

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = nn.Linear(8, 8), nn.Tanh()

        def forward(self, x: Tensor, cache: Cache) -> Tensor:
            cache.keys.append(x)
            return self.act(self.layer(torch.cat(cache.keys)))[: len(x)]  # type: ignore[no-any-return]

    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        cache = Cache()
        for layer in layers.values():
            x = layer(x, cache)
        return x

    model = Of(run, **{name: Reads() for name in "abcdef"})
    with around()(model):
        loss = total(model(torch.randn(4, 8)))
    with pytest.raises(
        CheckpointError,
        match=r"block 'layers.f' saved other tensors .* go without \(use_cache=False .* torch says: torch",
    ):
        loss.backward()


def test_inner_contexts_and_regions_left_alone() -> None:
    model, x = network(), images(2, 3, 16, 16)

    def calls(run: Callable[[], Tensor]) -> int:
        before = blocks_of(model)[0].calls
        run().backward()
        return blocks_of(model)[0].calls - before

    def nested() -> Tensor:
        with within()(model), within()(model):
            return total(model(x))

    def inner() -> Tensor:
        with within()(model), division.compress("none"):
            return total(model(x))

    def disabled() -> Tensor:
        with within()(model), division.disabled():
            return total(model(x))

    def hooked() -> Tensor:
        with within()(model), save_on_cpu():
            return total(model(x))

    def both() -> Tensor:
        with division.attach(model, "checkpoint"), within()(model):
            return total(model(x))

    assert [calls(run) for run in (nested, inner, disabled, hooked, both)] == [2, 1, 1, 1, 2]
    assert touched(model) == []


def test_no_gradient_no_second_run() -> None:
    model, x = network(), images(2, 3, 16, 16)
    context = within()(model)
    with context, torch.no_grad():
        model(x)
    with context, torch.inference_mode():
        model(x)
    model.requires_grad_(False)
    with context:
        model(x)
    assert context.report.packed_bytes == context.report.recomputed_bytes == 0


def test_a_forward_with_a_backward_of_its_own() -> None:
    def energy(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(layers["net"](x).sum(), x, create_graph=True)
        return slope

    def flat() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())))

    model, x = Of(energy, net=flat()), torch.randn(4, 8)
    assert same(steps(model, [x], plain), steps(model, [x], within()))

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.out = flat(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.net(x)
            (slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            return self.out(y + slope)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Of(lambda layers, x: layers["b"](layers["a"](x + layers["s"](x))), s=nn.Linear(8, 8), a=Inner(), b=Inner())
    assert same(steps(model, [x], plain), steps(model, [x], within(Checkpoint(segments=2))))


def test_threads_share_a_model() -> None:
    model, x = network(), images(2, 3, 16, 16)
    model.eval()
    exact = once(model, x, plain)
    handle, found, gate = division.attach(model, "checkpoint"), {}, threading.Barrier(3)

    def work(number: int) -> None:
        gate.wait()
        for _ in range(3):
            found[number] = torch.autograd.grad(total(model(x)), list(model.parameters()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(same(list(each), exact) for each in found.values())
    handle.remove()
    assert touched(model) == []


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@BOTH
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("each", [True, False], ids=["each block", "pairs"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("alone")
def test_blocks_whose_weights_are_sharded_one_by_one(around: Callable[..., Context], reshard: bool, each: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def train(context: Context) -> list[Tensor]:
        torch.manual_seed(0)
        blocks: list[nn.Module] = [nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(8)]
        model, mesh = nn.Sequential(*blocks), init_device_mesh("cpu", (1,))
        for part in blocks if each else [[a, b] for a, b in zip(blocks[::2], blocks[1::2], strict=True)]:
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh)
        optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
        for _ in range(3):
            optimizer.zero_grad()
            with context(model):
                loss = total(model(torch.randn(4, 16)))
            loss.backward()
            seen += [p.grad.full_tensor() for p in model.parameters()]  # type: ignore[operator, union-attr]
            optimizer.step()
        return [*seen, *(p.detach().full_tensor() for p in model.parameters())]  # type: ignore[attr-defined]

    assert same(train(plain), train(around()))


def test_a_method_for_each_part() -> None:
    model, x = nn.ModuleDict({"a": network(4), "b": network(4)}), images(4, 3, 16, 16)
    net = Of(lambda layers, x: layers["a"](x) + layers["b"](x), **model)
    with division.attach(net, {"layers.a": Checkpoint(), "layers.b": "lossless"}) as handle:
        loss = total(net(x))
    loss.backward()
    fates = {
        (r.module.split(".")[1], r.left == "run again in backward") for r in handle.report.records if r.raw_bytes > 4096
    }
    assert ("a", True) in fates
    assert ("b", True) not in fates
    with division.attach(net, "checkpoint", skip="layers.b.*") as handle:
        total(net(x))
    assert {r.field.split(".")[1] for r in handle.report.records if r.left == "run again in backward"} == {"a"}


@pytest.mark.filterwarnings("ignore:Using .torch.compile.module.. when there are global hooks")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by the compiler itself
def test_compiled_models_are_left_to_the_compiler() -> None:
    model, x = network(), images(2, 3, 16, 16)
    model.eval()
    exact = once(model, x, plain)
    handle = division.attach(model, "checkpoint")
    compiled: Any = torch.compile(model, backend="aot_eager")
    assert all(
        torch.allclose(a, b, atol=1e-5) for a, b in zip(once(compiled, x, lambda m: _nowhere()), exact, strict=True)
    )
    handle.remove()
    torch.compiler.reset()


class _nowhere:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_bad_input() -> None:
    with pytest.raises(
        ValueError,
        match=r"method Checkpoint\(.*\), which runs blocks .* no model: pass model=model, or use division.att",
    ):
        division.compress("checkpoint")
    with pytest.raises(ValueError, match=r"method Offload\(.*\), which runs blocks"):
        division.compress("offload-checkpoint")
    with pytest.raises(ValueError, match="found no blocks in Linear"):
        division.attach(nn.Linear(4, 4), "checkpoint")
    with pytest.raises(ValueError, match="found no blocks"):
        division.predict(nn.Linear(4, 4), torch.empty(2, 4, device="meta"), "checkpoint")
    with pytest.raises(TypeError, match="got 'division' to use between blocks, expected a method"):
        Checkpoint("division")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is or holds a method 'checkpoint' itself"):
        Checkpoint(Swap(Checkpoint()))
    with pytest.raises(ValueError, match=r"got segments=1, expected a whole number from 2"):
        Checkpoint(segments=1)
    with pytest.raises(ValueError, match=r"got bits=2, expected 8 or 4"):
        Checkpoint(bits=2)


def test_names() -> None:
    assert division.methods.find("checkpoint") == Checkpoint(Nothing())
    assert division.methods.find("checkpoint-division", bits=4) == Checkpoint(Division(bits=4))
    assert division.methods.find("checkpoint-fixed-4") == Checkpoint(FixedBits(4))
    assert division.methods.find("checkpoint-swap") == Checkpoint(Swap())
    assert division.methods.find("checkpoint-lossless") == Checkpoint(Lossless())
