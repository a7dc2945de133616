"""One saved tensor: which are coded, which are left and why, whose code is shared, and when memory is free."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import division
from division.account import Record
from division.code import Codes
from division.methods import Division, Lossless
from division.private import storage_of
from division.saved import Saved, is_weight
from tests.models import WAYS, Copy, Copying, Cube, Log, Sign, convnet, go, images, same, total


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def found(context: division.compress, node: str, field: str | int) -> list[Record]:
    return [r for r in context.report.records if r.node == node and r.field == str(field)]


def one(context: division.compress, node: str, field: str | int) -> Record:
    (record,) = found(context, node, field)
    return record


# Weights, in every disguise.

DISGUISES: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda w: w,
    "transposed": lambda w: w.t(),
    "permuted": lambda w: w.permute(1, 0),
    "cast": lambda w: w.to(torch.float64),
    "cast and transposed": lambda w: w.double().mT,
    "expanded": lambda w: w.expand(3, 16, 16)[0],
    "unsqueezed": lambda w: w[None].squeeze(0),
    "flattened": lambda w: w.flatten().view(16, 16),
    "sliced": lambda w: w[:, :16],
    "chunked": lambda w: w.chunk(1)[0],
    "cloned": lambda w: w.clone(),
    "detached view": lambda w: w.detach()[:],
}


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_weights_are_never_coded(disguise: str, frozen: bool) -> None:
    weight = nn.Parameter(torch.randn(16, 16), requires_grad=not frozen)
    x = leaf(16, 16)
    with division.compress(Copying()) as context:
        seen = DISGUISES[disguise](weight)
        y = (x + 0).to(seen.dtype) @ seen
        z = (x + 0).to(seen.dtype) * seen
    for record in (one(context, "MmBackward0", "mat2"), *found(context, "MulBackward0", "other")):
        assert record.left
        if disguise != "detached view" and not (disguise in {"cast", "cast and transposed", "cloned"} and frozen):
            assert record.left == "weight"
    (y.sum() + z.sum()).backward()


def test_linear_and_conv_weights_are_never_coded() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(64 * 4, 64))
    addresses = {p.untyped_storage().data_ptr() for p in model.parameters()}
    met: list[int] = []

    class See(Copying):
        def lossy(self, reading: Any, saved: Saved) -> Any:
            met.append(saved.tensor.untyped_storage().data_ptr())
            return super().lossy(reading, saved)

    for frozen in (False, True):
        model[0].requires_grad_(requires_grad=not frozen)
        with division.compress(See(), inputs=True):
            loss = model(images(2, 3, 4, 4).requires_grad_()).sum()
        loss.backward()
    assert met
    assert not addresses & set(met)


def test_weights_cast_by_autocast_are_never_coded() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    with division.compress(Copying()) as context, torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(8, 32)).sum()
    lefts = {r.left for r in found(context, "AddmmBackward0", "mat2")}
    assert lefts == {"weight"}
    assert [bool(r.left) for r in found(context, "AddmmBackward0", "mat1")] == [True, False]


def test_tied_weights_are_never_coded() -> None:
    embedding, head = nn.Embedding(16, 16), nn.Linear(16, 16, bias=False)
    head.weight = embedding.weight
    with division.compress(Copying()) as context:
        head(embedding(torch.arange(16)) * 2).sum()
    assert one(context, "MmBackward0", "mat2").left == "weight"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nn.Parameter(torch.ones(4)), True),
        (lambda: nn.Parameter(torch.ones(4), requires_grad=False).view(2, 2), True),
        (lambda: nn.Parameter(torch.ones(4)) * 1, False),
        (lambda: torch.ones(4), False),
        (lambda: (nn.Parameter(torch.ones(4)) + 0).view(2, 2), False),
        (lambda: torch.cat([nn.Parameter(torch.ones(4))] * 2), False),
    ],
)
def test_is_weight(make: Callable[[], Tensor], expected: bool) -> None:
    assert is_weight(make()) is expected


# What is left, and why.


def test_tensors_that_no_node_made_are_left_unless_inputs() -> None:
    conv = nn.Conv2d(3, 8, 3)
    for inputs in (False, True):
        with division.compress(Copying(), inputs=inputs) as context:
            conv(images())
        assert bool(one(context, "ConvolutionBackward0", "input").left) is not inputs


class Tagged(torch.Tensor):
    """A plain subclass."""


def test_subclasses_are_left_with_a_reason() -> None:
    x = leaf(4, 4).as_subclass(Tagged)
    with division.compress(Copying(), inputs=True) as context:
        y = (x + x).relu()
        z = y @ y
    assert {r.left for r in context.report.records if r.node == "MmBackward0"} == {"a Tagged, not a plain tensor"}
    z.sum().backward()


def test_sparse_tensors_are_left_with_a_reason() -> None:
    s = torch.eye(8).to_sparse().requires_grad_()
    d = leaf(8, 8)
    with division.compress(Copying(), inputs=True) as context:
        y = torch.sparse.mm(s + s, d + 0) + torch.mm(s * 2.0, d * 3)
    left = [r for r in context.report.records if r.left == "layout torch.sparse_coo"]
    assert {r.raw_bytes for r in left} == {8 * 2 * 8 + 8 * 4}
    assert context.report.raw_bytes >= 160
    y.sum().backward()
    assert torch.equal(d.grad, torch.full((8, 8), 8.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_other_layouts_pass(layout: torch.layout) -> None:
    weight = leaf(8, 8)
    with division.compress(Copying(), inputs=True) as context:
        if layout in {torch.strided, torch.jagged}:
            x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=layout)
            loss = F.linear(x + x, weight).relu()
            loss = torch.cat(loss.unbind()).sum()
            size = 5 * 8 * 4
        else:
            x = torch.eye(8).to_sparse(layout=layout).requires_grad_()
            loss = torch.sparse.mm(x, weight + 0).sum()
            size = 0
    assert any("nested" in r.left.lower() or str(layout) in r.left for r in context.report.records if r.left)
    assert context.report.raw_bytes >= size
    assert str(context.report)
    loss.backward()
    assert weight.grad is not None


def test_tensors_without_memory_pass() -> None:
    x = torch.randn(8, 8, device="meta", requires_grad=True)
    with division.compress(Copying()):
        y = (x + 0).relu() * x
    y.sum().backward()
    assert x.grad is not None


def test_lazily_negated_views_share_no_code_with_what_they_negate() -> None:
    p = torch.randn(5, dtype=torch.complex64, requires_grad=True)
    w, v = leaf(5), leaf(5)
    with division.compress(Copying()):
        z = p + 0
        loss = (z.imag * w).sum() + (z.conj().imag * v).sum()
    loss.backward()
    assert torch.equal(w.grad, p.detach().imag)  # type: ignore[arg-type]
    assert torch.equal(v.grad, -p.detach().imag)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["division", "fixed-4", "high-frequency", Copying()], ids=str)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float64], ids=str)
def test_other_dtypes_give_right_or_no_code(method: Any, dtype: torch.dtype) -> None:
    x, w = leaf(64, 64, dtype=dtype), leaf(64, 64, dtype=dtype)
    with division.compress(method) as context:
        y = (x + 0) @ w
    plain = x.detach().mH @ torch.ones_like(y)
    y.backward(torch.ones_like(y))
    error = ((w.grad - plain).abs().mean() / plain.abs().mean()).item()  # type: ignore[operator]
    left = one(context, "MmBackward0", "self").left
    if dtype.is_complex and not isinstance(method, Copying):
        assert "complex" in left
    assert error == 0 if left or isinstance(method, Copying) else 0 < error < 0.9


def test_integers_that_backward_reads_stay_exact() -> None:
    x = leaf(6, 40)
    index = torch.randint(0, 40, (6, 3))

    def run() -> Tensor:
        h = x + 0
        a = h.gather(1, index) * torch.tensor([1, 2, 300])
        b = h.sort(-1)[0] * torch.arange(40) + h.topk(3)[0].sum() + F.embedding(index, h.mT.contiguous()).sum()
        return a.sum() + b.sum() + h[index[:, 0] % 6].square().sum() + F.max_pool2d(h.view(1, 6, 5, 8), 2).sum()

    (plain,) = torch.autograd.grad(run(), x)
    for method in ("lossless", Copying()):
        with division.compress(method, inputs=True):
            loss = run()
        assert same(torch.autograd.grad(loss, x)[0], plain)


def test_expanded_tensors_are_left() -> None:
    x = leaf(1, 64)
    w = leaf(64, 64)
    with division.compress(Division()) as context:
        y = (x + 0).expand(64, 64) * w
    assert one(context, "MulBackward0", "self").left == "overlapping layout"
    assert one(context, "MulBackward0", "self").raw_bytes >= 0
    assert context.report.packed_bytes <= context.report.raw_bytes
    y.sum().backward()


def test_nothing_is_stored_larger_than_it_was() -> None:
    w = leaf(1)
    with division.compress(Division()) as context:
        h = w + 0
        for _ in range(3):
            h = (h * h).relu().tanh()
        big = leaf(4, 4, 2, 2) + 0
        (big * big).sum()
    for record in context.report.records:
        assert record.packed_bytes <= record.raw_bytes
        assert bool(record.codec) is not bool(record.left)
    assert context.report.packed_bytes <= context.report.raw_bytes


# Values changed in place after they were saved.


def test_a_coded_tensor_changed_in_place_later_gives_the_old_values_gradient() -> None:
    x, w = leaf(8, 8), leaf(8, 8)
    with division.compress(Copying()):
        h = x * 2
        y = h * w
        old = h.detach().clone()
        h.add_(1)
    y.sum().backward()
    assert torch.equal(w.grad, old)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["lossless", "none"])
def test_a_left_tensor_changed_in_place_later_still_raises(method: str) -> None:
    x, w = leaf(8, 8), leaf(8, 8)
    with division.compress(method):
        h = x * 2
        y = h * w
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_weight_stepped_before_backward_still_raises() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with division.compress(Copying()):
        loss = model(torch.randn(4, 8)).sum()
    with torch.no_grad():
        model[2].weight.add_(1)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_batch_norm_state_updated_by_a_second_forward_still_trains_or_raises_as_plain() -> None:
    for context in (nullcontext(), division.compress(Copying())):
        norm = nn.BatchNorm2d(4).eval()
        with context:
            loss = norm(leaf(2, 4, 3, 3) + 0).sum()
            norm.running_mean.add_(1)  # type: ignore[union-attr, operator]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_field_changed_in_place_within_the_context_is_left() -> None:
    x = leaf(8, 8)
    with division.compress(Copying()) as context:
        h = x + 0
        h.relu_()
        h.mul_(2)
        h.sum()
    (record,) = found(context, "ReluBackward0", "result")
    assert record.left in {"", "changed in place since it was saved"}


# Sharing.


def test_query_key_and_value_of_one_tensor_share_one_code() -> None:
    x = leaf(2, 4, 16, 32)
    with division.compress(Division()) as context:
        h = x + 0
        y = (h @ h.mT) @ h
    shared = [r for r in context.report.records if r.shared]
    assert shared
    packed = Log(Division())
    with division.compress(packed):
        h = x + 0
        y = h * h * h
    product: Any = y.grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    assert len(packed.codes) == 2  # h, and h * h
    assert torch.equal(product._saved_self, product._saved_other)


def test_three_layers_of_one_input_keep_one_code() -> None:
    q, k, v = (nn.Linear(64, 64) for _ in range(3))
    base = leaf(4, 64)
    with division.compress("division") as context:
        h = base + 0
        (q(h) + k(h) + v(h)).sum().backward()
    first, *rest = found(context, "AddmmBackward0", "mat1")
    assert first.packed_bytes > 0
    assert [r.shared for r in rest] == ["AddmmBackward0.mat1"] * 2
    assert context.report.code_bytes == first.packed_bytes


def test_a_relu_and_the_next_conv_keep_what_each_needs_of_one_tensor() -> None:
    conv = nn.Conv2d(8, 8, 3)
    x = leaf(2, 8, 16, 16)
    with division.compress("division") as context:
        y = conv((x + 0).relu())
    relu, entry = one(context, "ReluBackward0", "result"), one(context, "ConvolutionBackward0", "input")
    assert relu.packed_bytes == 2 * 8 * 16 * 16 // 8
    assert entry.packed_bytes > relu.packed_bytes
    assert not relu.shared
    assert not entry.shared
    assert not relu.held
    y.sum().backward()


def test_different_views_of_one_storage_share_no_code() -> None:
    x, w = leaf(8, 8), leaf(4, 8)
    with division.compress(Copying()):
        h = x + 0
        loss = (h[:4] * w).sum() + (h[4:] * w).sum() + (h.t()[:4] * w).sum() + (h[:4].view(torch.int32) * w).sum()
    loss.backward()
    d = x.detach()
    assert torch.allclose(w.grad, d[:4] + d[4:] + d.t()[:4] + d[:4].contiguous().view(torch.int32))  # type: ignore[arg-type]


def test_a_version_between_two_saves_makes_two_codes() -> None:
    x, w = leaf(8, 8), leaf(8, 8)
    with division.compress(Copying()) as context:
        h = x + 0
        first = (h * w).sum()
        h.add_(10)
        second = (h * w).sum()
    (g,) = torch.autograd.grad(first, w, retain_graph=True)
    (k,) = torch.autograd.grad(second, w)
    assert torch.equal(g, x.detach())
    assert torch.equal(k, x.detach() + 10)
    assert not any(r.shared for r in context.report.records)


def test_a_reused_address_is_never_taken_for_the_old_tensor() -> None:
    w = leaf(64, 64)
    graphs, expected = [], []
    with division.compress(Copying()) as context:
        for i in range(60):
            value = torch.full((64, 64), float(i), requires_grad=True)
            graphs.append(((value + 0) * w).sum())
            expected.append(i)
            del value
            if i % 3 == 0:
                graphs.pop(), expected.pop()
    assert not any(r.shared for r in context.report.records)
    for graph, i in zip(graphs, expected, strict=True):
        assert torch.equal(torch.autograd.grad(graph, w)[0], torch.full((64, 64), float(i)))


def test_two_contexts_share_no_code() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    h = x + 0
    with division.compress("fixed-2", seed=1) as a:
        y = h * w
    with division.compress("fixed-2", seed=1) as b:
        z = h * w
    assert not any(r.shared for c in (a, b) for r in c.report.records)
    assert same(torch.autograd.grad(y.sum(), w)[0], torch.autograd.grad(z.sum(), w)[0])


def test_codes_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("division.code._ROOM", 8)
    codes, record = Codes(), Record("", "N", "f", "", (4,), torch.float32, 16)
    held = []
    for i in range(60):
        x = torch.zeros(4)
        code, shared = codes.code(x, storage_of(x), record, Copy(), lambda: 0)
        assert not shared
        if i % 20 == 0:
            held.append((code, x))
        assert len(codes._alive) <= 8 + 1
    for code, x in held:
        again, shared = codes.code(x, code.storage, record, Copy(), lambda: 0)
        assert shared
        assert again is code


def test_codes_of_one_tensor_made_again_and_again_are_forgotten_too() -> None:
    codes, record, x = Codes(), Record("", "N", "f", "", (4,), torch.float32, 16), torch.zeros(4)
    storage = storage_of(x)
    for _ in range(20):
        codes.code(x, storage, record, Copy(), lambda: 0)
    assert len(codes._alive[storage.address]) <= 2


# What comes back.


@pytest.mark.parametrize(
    "method", ["lossless", "division", "low-frequency", "high-frequency", "fixed-3", Copying()], ids=str
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "one channel", "one pixel", "permuted", "gapped"])
def test_unpacked_tensors_have_the_shape_dtype_and_strides_that_were_saved(method: Any, layout: str) -> None:
    x = {
        "contiguous": lambda: leaf(2, 8, 16, 16),
        "channels_last": lambda: leaf(2, 8, 16, 16).to(memory_format=torch.channels_last),
        "one channel": lambda: leaf(2, 1, 16, 16).to(memory_format=torch.channels_last),
        "one pixel": lambda: leaf(8, 64, 1, 1).to(memory_format=torch.channels_last),
        "permuted": lambda: leaf(16, 2, 8, 16).permute(1, 2, 3, 0),
        "gapped": lambda: (leaf(2, 16, 16, 16) + 0)[:, :8],
    }[layout]()
    conv = nn.Conv2d(x.shape[1], 4, 1)
    saved: dict[str, Tensor] = {}
    coded = 0
    for name, context in (("plain", nullcontext()), ("ours", division.compress(method))):
        with context as c:
            h = x + 0 if layout != "gapped" else x
            y = conv(h.relu() if layout != "gapped" else h)
        node: Any = y.grad_fn
        saved[f"{name} input"] = node._saved_input
        if layout != "gapped":
            saved[f"{name} relu"] = node.next_functions[0][0]._saved_result
        coded = sum(not r.left or r.left.startswith("kept as it is") for r in c.report.records) if c else 0
    assert coded or layout == "gapped"
    for what in ("input", "relu")[: 1 + (layout != "gapped")]:
        plain, ours = saved[f"plain {what}"], saved[f"ours {what}"]
        assert (ours.shape, ours.dtype, ours.device) == (plain.shape, plain.dtype, plain.device)
        if layout != "gapped":
            assert ours.stride() == plain.stride()
        assert ours.requires_grad == plain.requires_grad
        assert ours.grad_fn is plain.grad_fn or ours.grad_fn.name() == plain.grad_fn.name()  # type: ignore[union-attr]


def test_every_unpack_gives_a_fresh_tensor_with_the_same_bits() -> None:
    x, w = leaf(16, 64), leaf(16, 64)
    with division.compress("division"):
        y = (x + 0) * w
    node: Any = y.grad_fn
    first, second = node._saved_self, node._saved_self
    assert same(first, second)
    assert first.data_ptr() != second.data_ptr()
    with torch.no_grad():
        second.zero_()
    assert same(first, node._saved_self)


def test_a_custom_function_may_change_what_it_unpacked() -> None:
    class Rude(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * x.mul_(2)

    x = leaf(8)
    with division.register_rule("RudeBackward", 0, division.Use.LINEAR), division.compress(Copying()) as context:
        h = x + 0
        y = Rude.apply(h).sum() * 1
    assert not one(context, "RudeBackward", 0).left
    before = h.detach().clone()
    version = h._version
    for _ in range(2):
        (g,) = torch.autograd.grad(y, x, retain_graph=True)
        assert torch.equal(g, 2 * x.detach())
    assert torch.equal(h, before)
    assert h._version == version


def test_a_codec_that_gives_back_something_else_is_named() -> None:
    class Wrong(Copying):
        def lossy(self, reading: Any, saved: Saved) -> Any:
            codec = super().lossy(reading, saved)
            object.__setattr__(codec, "decode", lambda packed: packed.parts[0].double())
            return codec

    x, w = leaf(8), leaf(8)
    with division.compress(Wrong()):
        y = (x + 0) * w
    with pytest.raises(RuntimeError, match=r"codec Copy\(\) gave back torch.float64 .* expected torch.float32"):
        y.sum().backward()


def test_encoding_leaves_its_input_and_its_version_alone() -> None:
    x = leaf(4, 8, 16, 16)
    for method in ("division", "fixed-2", "lossless", "low-frequency", "high-frequency"):
        with torch.no_grad():
            h = x.clone()
        h.requires_grad_()
        with division.compress(method, inputs=True):
            y = nn.Conv2d(8, 8, 3)(F.relu(h + 0))
            m = F.max_pool2d(y, 2)
        assert same(h.detach(), x.detach())
        assert h._version == 0
        assert y._version == 0
        m.sum().backward()


# Custom Functions.


def test_custom_functions_are_left_until_a_rule_is_registered() -> None:
    x = leaf(4, 64)
    with division.compress(Copying()) as context:
        Sign.apply(Cube.apply(x + 0)) + 0
    assert {r.left for r in context.report.records if r.node in {"SignBackward", "CubeBackward"}} == {"no rule"}
    (plain,) = torch.autograd.grad(total(Sign.apply(Cube.apply(x + 0))), x)
    with contextlib.ExitStack() as rules:
        for node, field in [("CubeBackward", 0), *(("SignBackward", i) for i in range(3))]:
            rules.enter_context(division.register_rule(node, field, division.Use.SMOOTH))
        with division.compress(Copying()) as context:
            loss = total(Sign.apply(Cube.apply(x + 0)))
    assert not any(r.left for r in context.report.records if r.node in {"SignBackward", "CubeBackward"})
    assert same(torch.autograd.grad(loss, x)[0], plain)


def test_nodes_of_classes_made_on_the_fly_are_let_go() -> None:
    def make() -> weakref.ref[type]:
        class Once(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * 2

        with division.compress(Copying()):
            (Once.apply(leaf(3)) * 1).sum().backward()
        return weakref.ref(Once)

    ref = make()
    gc.collect()
    assert ref() is None


# Memory.


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("method", [Division(), Copying()], ids=str)
def test_originals_are_free_after_forward_and_codes_fall_node_by_node(method: Any) -> None:
    model, log = convnet(16), Log(method)
    falling: list[int] = []
    with division.compress(log) as context:
        h = images(4, 3, 32, 32)
        for layer in model:
            h = layer(h)
            h.register_hook(lambda g: falling.append(log.alive))
        loss = total(h)
        del h, layer
    assert log.freed >= 0.95
    assert not any(r.held for r in context.report.records if r.codec)
    if isinstance(method, Division):
        assert log.alive == context.report.code_bytes > 0
    whole = log.alive
    loss.backward()
    assert falling[0] == whole
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) >= 6
    assert log.alive == 0
    assert all(code() is None for code in log.codes)


@pytest.mark.usefixtures("no_gc")
def test_nothing_grows_over_steps() -> None:
    model = convnet(4)
    context = division.compress("division")

    def tensors() -> int:
        return sum(issubclass(type(x), Tensor) for x in gc.get_objects())

    counts = []
    for i in range(20):
        model.zero_grad()
        with context:
            loss = total(model(images(2, 3, 8, 8)))
        loss.backward()
        del loss
        if i in {1, 19}:
            counts.append((tensors(), len(context.report.records)))
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("method", ["none", "lossless", "division"])
@pytest.mark.parametrize(
    "op", [torch.exp, torch.tanh, lambda x: x.softmax(-1), lambda x: F.layer_norm(x, (64,)), F.relu]
)
def test_a_graph_that_never_sees_backward_is_freed(method: str, op: Callable[[Tensor], Tensor]) -> None:
    x = leaf(64, 64)
    with division.compress(method):
        y = op(x + 0)
    ref, storage = weakref.ref(y), StorageWeakRef(y.untyped_storage())
    del y
    assert ref() is None
    assert storage.expired()


@pytest.mark.usefixtures("no_gc")
def test_a_failed_forward_is_freed() -> None:
    log = Log(Division())
    model = nn.Sequential(convnet(8), nn.Linear(5, 4))
    context = division.compress(log)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), context:
        model(images())
    assert log.codes
    gc.collect()  # the exception itself is a cycle: it holds its frames
    assert log.alive == 0


@pytest.mark.usefixtures("no_gc")
def test_lossless_alone_holds_no_more_than_plain() -> None:
    log = Log(Lossless())
    with division.compress(log) as context:
        loss = convnet()(images()).sum()
    assert context.report.packed_bytes <= context.report.raw_bytes
    loss.backward()
    assert log.alive == 0


@pytest.mark.parametrize("first", ["code", "original"])
def test_a_code_beside_an_original_that_the_graph_keeps_anyway_is_given_up(first: str) -> None:
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x + 0
        if first == "code":
            return h.clamp(-0.5, 0.5), h.sinh()  # signs of h would do for clamp, but sinh keeps h as it is
        kept = h.sinh()
        return h.clamp(-0.5, 0.5), kept

    x = leaf(64)
    plain = torch.autograd.grad(sum(forward(x)).sum(), x)  # type: ignore[union-attr]
    with division.compress("lossless") as context:
        a, b = forward(x)
    report = context.report
    assert report.packed_bytes == report.raw_bytes == x.nbytes
    assert {r.left for r in report.records} == {"no rule", "kept as it is for SinhBackward0.self"}
    assert same(plain, torch.autograd.grad((a + b).sum(), x, retain_graph=True))
    assert same(plain, torch.autograd.grad((a + b).sum(), x))


@pytest.mark.parametrize("first", ["code", "original"])
@pytest.mark.parametrize(
    ("coded", "kept"),
    [
        (lambda h: h, lambda h: h.view(8, 8, 4)),
        (lambda h: h, lambda h: h[:, :1]),
        (lambda h: h[:4].t(), lambda h: h),
        (lambda h: h[3:9], lambda h: h[12:]),
    ],
    ids=["another shape", "a part", "transposed", "another part"],
)
def test_a_code_of_memory_that_the_graph_keeps_in_another_view_is_given_up(
    first: str, coded: Callable[[Tensor], Tensor], kept: Callable[[Tensor], Tensor]
) -> None:
    def forward(x: Tensor) -> list[Tensor]:
        h = x + 0
        steps = [lambda: coded(h).clamp(-0.5, 0.5), lambda: kept(h).sin()]
        return [step() for step in (steps if first == "code" else steps[::-1])]

    x = leaf(16, 16)
    plain = torch.autograd.grad(sum(y.sum() for y in forward(x)), x)  # type: ignore[arg-type]
    with division.compress("lossless") as context:
        loss = sum(y.sum() for y in forward(x))
    report = context.report
    assert report.packed_bytes == report.raw_bytes == x.nbytes
    assert {r.left for r in report.records} == {"the method leaves this use", "kept as it is for SinBackward0.self"}
    for _ in range(2):
        assert same(plain, torch.autograd.grad(loss, x, retain_graph=True))  # type: ignore[arg-type]


def test_a_code_stays_where_the_memory_is_kept_in_another_state() -> None:
    x = leaf(64)
    with division.compress("lossless") as context:
        h = x + 0
        y = h.clamp(-0.5, 0.5)
        h.mul_(3)
        z = h.sin()
    assert [r.left for r in context.report.records if r.node == "ClampBackward1"] == [""]
    (gradient,) = torch.autograd.grad(y.sum() + z.sum(), x)
    assert torch.equal(gradient, ((x >= -0.5) & (x <= 0.5)).float() + 3 * (3 * x).cos())


def test_what_is_not_read_has_no_code_beside_an_original_that_is_kept_anyway() -> None:
    """Its decoding would take memory in backward, as large as the original, for nothing."""
    x, y = leaf(8, 100), torch.arange(8)
    with division.compress("lossless") as context:
        loss = F.cross_entropy(x + 0, y)
    left = {f"{r.node}.{r.field}": r.left for r in context.report.records}
    assert left["NllLossBackward0.self"] == "kept as it is for LogSoftmaxBackward0.result"
    (gradient,) = torch.autograd.grad(loss, x)
    assert same(gradient, torch.autograd.grad(F.cross_entropy(x, y), x)[0])


def test_a_weight_that_is_not_read_is_a_weight() -> None:
    real, imaginary = (nn.Parameter(torch.randn(40)) for _ in range(2))
    with division.compress() as context:
        torch.view_as_real(torch.complex(real, imaginary.view(40))).sum().backward()
    assert [r.left for r in context.report.records] == ["weight", "weight"]
    assert context.report.raw_bytes == 0


def test_numbers_that_come_with_the_batch_are_coded_only_if_inputs_are() -> None:
    words, labels, weight = torch.arange(64) % 9, torch.arange(64) % 5, leaf(9, 5)
    fields = {"EmbeddingBackward0.indices", "NllLossBackward0.target"}
    for inputs in (False, True):
        with division.compress("lossless", inputs=inputs) as context:
            loss = F.cross_entropy(F.embedding(words, weight), labels)
        found = {r.codec: r.packed_bytes for r in context.report.records if f"{r.node}.{r.field}" in fields}
        coded = {"narrow(limit=9)": 64, "narrow(limit=101, signed=True)": 64}
        assert found == (coded if inputs else {"": 0})
        (gradient,) = torch.autograd.grad(loss, weight)
        assert same(gradient, torch.autograd.grad(F.cross_entropy(F.embedding(words, weight), labels), weight)[0])


@pytest.mark.parametrize(
    ("index", "first"),
    [
        (torch.tensor([-1, 3, 0]), "narrow(limit=4, signed=True)"),
        (torch.tensor([True, False, True, True]), "mask"),
    ],
)
def test_a_list_of_saved_indices_is_coded_one_by_one(index: Tensor, first: str) -> None:
    x, column = leaf(4, 6), torch.tensor([5, -6, 2])

    def run() -> Tensor:
        return (x + 0)[index, column].square().sum()

    with division.compress("lossless") as context:
        loss = run()
    codecs = [r.codec for r in context.report.records if r.node == "IndexBackward0"]
    assert codecs == [first, "narrow(limit=6, signed=True)"]
    assert same(torch.autograd.grad(loss, x)[0], torch.autograd.grad(run(), x)[0])


def test_an_original_kept_instead_of_a_code_is_still_checked_for_changes_in_place() -> None:
    x = leaf(64)
    with division.compress("lossless"):
        h = x + 0
        a, _ = h.clamp(-0.5, 0.5), h.sinh()
    h.mul_(2)
    with pytest.raises(
        RuntimeError, match=r"backward of ClampBackward1.self needs was changed in place.*expected version 0"
    ):
        a.sum().backward()


def test_what_the_user_excludes_costs_the_rest_no_code() -> None:
    x = leaf(2, 3, 16, 16)
    with division.compress("division", only="Convolution*") as context:
        nn.Conv2d(3, 4, 3)((x + 0).relu())
    assert [r.codec for r in context.report.records if r.field == "input"] == ["dual"]
