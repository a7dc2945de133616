"""What the rules leave alone, what they read off a node, and rules of the user's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from division.codecs.bits import Bits
from division.codecs.index import AdaptiveWindow, Narrow, Window
from division.codecs.interval import Interval
from division.rules import Reading, Use, known_nodes, register_rule, rules_for
from tests.rules.harness import nodes_of, readings_of


def read(op: Callable[..., Any], *inputs: Tensor) -> dict[str, Reading]:
    return {f"{node}.{field}": reading for (node, field), _, reading, _ in readings_of(op(*inputs))}


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


@pytest.mark.parametrize(
    "op",
    [
        lambda x: F.rrelu(x, training=True),  # saves its noise before it is drawn
        F.rrelu,
        lambda x: x.reciprocal(),
        lambda x: x**-1,
        lambda x: x**0.5,
        lambda x: x**2.5,
        lambda x: x**0,
        lambda x: x ** torch.full((4,), 2.0),
        lambda x: 2.0**x,
        lambda x: x.sqrt(),
        lambda x: x.rsqrt(),
        lambda x: x.log(),
        lambda x: x.clamp(1, 0),
        lambda x: x.clamp(torch.zeros(4), torch.ones(4)),
        lambda x: x.clamp(float("nan"), 1),
        lambda x: F.mse_loss(x, torch.zeros(6, 4)),
        lambda x: F.smooth_l1_loss(x, torch.zeros(6, 4)),
        lambda x: F.huber_loss(x, torch.zeros(6, 4)),
        lambda x: F.binary_cross_entropy(x.sigmoid().detach().requires_grad_(), torch.zeros(6, 4)),
        lambda x: x.norm(3),
        lambda x: x.norm(float("inf")),
        lambda x: x.prod(),
        lambda x: x.logsumexp(1),
        lambda x: x.cumprod(0),
        lambda x: x.amax(1),
        lambda x: torch.cdist(x, x + 1),
        lambda x: x.logit(),
        lambda x: x.acos(),
        lambda x: F.hardshrink(x, -1.0),
        lambda x: F.threshold(x, float("inf"), 0.0),
    ],
)
def test_left_alone(op: Callable[[Tensor], Tensor]) -> None:
    assert read(op, leaf(6, 4)) == {}


def test_weights_and_statistics_have_no_rule() -> None:
    fields = {field for rules in known_nodes().values() for field in rules}
    assert fields.isdisjoint({"weight", "bias", "running_mean", "running_var", "result2", "result3", "noise", "buffer"})


def test_what_is_divided_by_has_no_rule() -> None:
    assert set(rules_for("DivBackward0")) == {"self"}
    assert set(rules_for("AddcdivBackward0")) == {"tensor1"}
    assert set(rules_for("StdBackward0")) == {"self"}
    assert set(rules_for("LinalgVectorNormBackward0")) == {"self"}


def test_an_exactly_known_reading_for_each_kind() -> None:
    x = leaf(2, 4, 9, 8)
    assert read(F.relu, x)["ReluBackward0.result"].codec == Bits(lo=0.0, nan_inside=True, inside=1.0, outside=-1.0)
    assert read(F.relu6, x)["HardtanhBackward0.self"].codec == Interval(0.0, 6.0, inside=3.0, outside=-1.0)
    pooled = read(lambda x: F.max_pool2d(x, 3, 2, (1, 0)), x)
    assert pooled["MaxPool2DWithIndicesBackward0.result1"].codec == Window((9, 8), (3, 3), (2, 2), (1, 0), (1, 1))
    adaptive = read(lambda x: F.adaptive_max_pool2d(x, 2), x)
    assert adaptive["AdaptiveMaxPool2DBackward0.result1"].codec == AdaptiveWindow((9, 8))
    assert read(lambda x: x.topk(2, 2)[0], x)["TopkBackward0.indices"].codec == Narrow(9)
    assert read(lambda x: x.topk(2, -1)[0], x)["TopkBackward0.indices"].codec == Narrow(8)


IDS = torch.tensor([[1, 2], [0, 5]])
LABELS = torch.tensor([0, 3, -100, 1, 2, 2])


@pytest.mark.parametrize(
    ("op", "shape", "field", "codec"),
    [
        (lambda x: F.embedding(IDS, x), (6, 4), "EmbeddingBackward0.indices", Narrow(6)),
        (lambda x: F.embedding_bag(IDS, x), (300, 4), "EmbeddingBagBackward0.indices", Narrow(300)),
        (lambda x: F.nll_loss(x, LABELS), (6, 4), "NllLossBackward0.target", Narrow(101, signed=True)),
        (lambda x: F.nll_loss(x, LABELS.clamp(0), ignore_index=1), (6, 4), "NllLossBackward0.target", Narrow(4)),
        (lambda x: F.cross_entropy(x, LABELS), (6, 500), "NllLossBackward0.target", Narrow(500, signed=True)),
        (
            lambda x: F.cross_entropy(x, IDS.unsqueeze(0), ignore_index=255),
            (1, 6, 2, 2),
            "NllLoss2DBackward0.target",
            Narrow(256),
        ),
        (lambda x: x.cummax(-1)[0], (4, 9), "CummaxBackward0.indices", Narrow(9)),
        (lambda x: x.gather(-1, IDS), (4, 9), "GatherBackward0.index", Narrow(9, signed=True)),
        (lambda x: x.scatter(0, IDS, 1.0), (6, 9), "ScatterBackward1.index", Narrow(6, signed=True)),
        (lambda x: x.index_select(1, IDS[0]), (4, 9), "IndexSelectBackward0.index", Narrow(9, signed=True)),
        (lambda x: x.take(IDS), (4, 9), "TakeBackward0.index", Narrow(36, signed=True)),
        (lambda x: x[:, IDS], (4, 9), "IndexBackward0.indices[1]", Narrow(9, signed=True)),
        (lambda x: x[IDS[0] > 1, IDS[0, :1]], (2, 9), "IndexBackward0.indices[1]", Narrow(9, signed=True)),
        (lambda x: x[torch.ones(2, 3) > 0, IDS[0, :1]], (2, 3, 4), "IndexBackward0.indices[1]", Narrow(4, signed=True)),
        (lambda x: x.index_put((IDS,), x[0]), (6, 9), "IndexPutBackward0.indices[0]", Narrow(6, signed=True)),
    ],
)
def test_the_range_of_indices(op: Callable[[Tensor], Tensor], shape: tuple[int, ...], field: str, codec: Any) -> None:
    assert read(op, leaf(*shape))[field].codec == codec


def test_ids_and_labels_come_with_the_batch_and_other_indices_do_not() -> None:
    given = {
        f"{node}.{field}"
        for op in (
            lambda x: F.embedding(IDS, x).flatten(1)[:, IDS],
            lambda x: F.embedding_bag(IDS, x).topk(2)[0],
            lambda x: F.cross_entropy(x[LABELS[-2:]], IDS[0]),
        )
        for (node, field), _, reading, _ in readings_of(op(leaf(6, 9)))
        if reading.given
    }
    assert given == {"EmbeddingBackward0.indices", "EmbeddingBagBackward0.indices", "NllLossBackward0.target"}


def test_indices_beyond_32_bits_have_no_rule() -> None:
    x = torch.empty(1, device="meta").expand(1 << 32).requires_grad_()
    assert read(lambda x: x.take(torch.zeros(3, dtype=torch.int64, device="meta")), x).keys() == {"TakeBackward0.self"}
    assert read(lambda x: F.nll_loss(x, LABELS.clamp(0), ignore_index=-(1 << 40)), leaf(6, 4)).keys() == {
        "NllLossBackward0.self"
    }


def test_a_deprecated_mask_of_bytes_is_left_alone() -> None:
    with pytest.warns(UserWarning, match="uint8"):
        assert read(lambda x: x[(IDS > 1).byte()], leaf(2, 2)) == {}


@pytest.mark.parametrize(
    ("shape", "dim", "axes"),
    [((6, 4), 1, "rows"), ((6, 4), -1, "rows"), ((4,), 0, "rows"), ((2, 3, 4, 5), 1, "map"), ((6, 4), 0, "map")],
)
def test_where_the_classes_of_log_softmax_are(shape: tuple[int, ...], dim: int, axes: str) -> None:
    (reading,) = read(lambda x: F.log_softmax(x, dim), leaf(*shape)).values()
    assert reading == Reading(Use.LINEAR, axes=axes, logs=True)  # type: ignore[arg-type]


def test_what_attention_exponentiates() -> None:
    x = leaf(2, 3, 8, 16)
    readings = read(F.scaled_dot_product_attention, x, x, x)
    node = "ScaledDotProductFlashAttentionForCpuBackward0"
    assert readings[f"{node}.query"] == readings[f"{node}.key"] == Reading(Use.SMOOTH, axes="rows", exponent=True)
    assert readings[f"{node}.value"] == readings[f"{node}.output"] == Reading(Use.LINEAR, axes="rows", cancels=True)
    assert len(readings) == 4


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (torch.mm, ((4, 5), (5, 3))),
        (torch.bmm, ((2, 4, 5), (2, 5, 3))),
        (torch.mv, ((4, 5), (5,))),
        (torch.dot, ((5,), (5,))),
        (torch.vdot, ((5,), (5,))),
        (torch.mul, ((4, 5), (4, 5))),
        (torch.linalg.cross, ((4, 3), (4, 3))),
        (lambda a, b: torch.addmm(torch.zeros(3), a, b), ((4, 5), (5, 3))),
        (lambda a, b: torch.baddbmm(torch.zeros(3), a, b), ((2, 4, 5), (2, 5, 3))),
        (lambda a, b: torch.addbmm(torch.zeros(3), a, b), ((2, 4, 5), (2, 5, 3))),
        (lambda a, b: torch.addmv(torch.zeros(4), a, b), ((4, 5), (5,))),
        (lambda a, b: torch.addr(torch.zeros(4, 5), a, b), ((4,), (5,))),
        (lambda a, b: torch.addcmul(torch.zeros(4), a, b), ((3, 4), (3, 4))),
        (lambda a, b: F.bilinear(a, b, torch.zeros(2, 4, 3)), ((6, 4), (6, 3))),
    ],
)
def test_no_product_saves_what_it_will_not_read(
    op: Callable[[Tensor, Tensor], Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    """So that there is nothing to add a rule for: with one factor frozen, the other is not saved."""
    for frozen in (0, 1):
        a, b = (torch.randn(shape) for shape in shapes)
        trained = (b, a)[frozen].requires_grad_()
        saved = [x for node in nodes_of(op(a, b)) for x in tensors_saved(node)]
        assert saved
        assert all(x.untyped_storage().data_ptr() != trained.untyped_storage().data_ptr() for x in saved)


def tensors_saved(node: Any) -> list[Tensor]:
    fields = (getattr(node, name.removeprefix("_raw")) for name in dir(node) if name.startswith("_raw_saved_"))
    return [x for field in fields for x in (field if isinstance(field, tuple) else (field,)) if isinstance(x, Tensor)]


@pytest.mark.parametrize(
    "op",
    [
        lambda x: torch.cat([x, x], 1),
        lambda x: torch.stack([x, x]),
        lambda x: F.pad(x, (1, 2, 0, 1)),
        lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"),
        *(
            lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode)
            for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
        ),
        lambda x: F.interpolate(x, size=3, mode="bilinear", antialias=True),
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.channel_shuffle(x, 2),
        lambda x: F.unfold(x, 2),
        lambda x: x + x.mean(),
        lambda x: x.sum(1, True) - x.cumsum(1),
        lambda x: x.flip(0).roll(1, 2).repeat(2, 1, 1, 1),
        lambda x: x.permute(1, 0, 3, 2).reshape(4, -1)[:, 1:].contiguous(),
        lambda x: x.diff().tril(),
    ],
)
def test_much_saves_nothing(op: Callable[[Tensor], Tensor]) -> None:
    assert [x for node in nodes_of(op(leaf(2, 4, 6, 8))) for x in tensors_saved(node)] == []


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_on_the_cpu(kind: Any) -> None:
    """The whole of a fused layer is left alone, with its workspace; what is made of common operations is not."""
    layer, x = kind(9, 5, num_layers=2), leaf(7, 3, 9)
    nodes = list(nodes_of(layer(x)[0]))
    fused = [node for node in nodes if node.name() == "MkldnnRnnLayerBackward0"]
    assert len(fused) == (2 if kind is nn.LSTM else 0)
    assert all(tensors_saved(node) for node in fused)
    assert rules_for("MkldnnRnnLayerBackward0") == rules_for("CudnnRnnBackward0") == {}
    assert any(rules_for(node.name()) for node in nodes) is (kind is not nn.LSTM)


def test_axes_and_norms() -> None:
    x, w = leaf(2, 4, 9, 8), leaf(4, 4, 3, 3)
    assert read(F.conv2d, x, w)["ConvolutionBackward0.input"] == Reading(Use.LINEAR, axes="map")
    assert read(F.linear, leaf(3, 8), leaf(5, 8))["MmBackward0.self"].axes == "rows"
    assert read(lambda x: F.group_norm(x, 2), x)["NativeGroupNormBackward0.input"] == Reading(
        Use.SMOOTH, axes="map", norm=True
    )
    assert read(lambda x: F.layer_norm(x, (8,)), x)["NativeLayerNormBackward0.input"] == Reading(
        Use.SMOOTH, axes="rows", norm=True
    )
    assert read(torch.mul, x, x)["MulBackward0.other"].factor


def test_a_saved_input_changed_in_place_leaves_its_indices_alone() -> None:
    x = leaf(1, 1, 4, 4)
    y = x * 1
    node: Any = F.max_pool2d(y, 2).grad_fn
    y.add_(1)
    assert rules_for("MaxPool2DWithIndicesBackward0")["result1"](node) is None


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grads[0]


def test_a_rule_of_the_users_own_and_its_end() -> None:
    node = Cube.apply(leaf(3)).grad_fn
    assert rules_for(node.name()) == {}
    rule = register_rule("CubeBackward", 0, Use.SMOOTH, axes="rows", norm=True)
    assert rules_for(node.name())[0](node) == Reading(Use.SMOOTH, axes="rows", norm=True)
    rule.remove()
    rule.remove()
    assert rules_for(node.name()) == {}
    with register_rule("CubeBackward", 0, Use.SHAPE):
        reading = rules_for("CubeBackward")[0](node)
        assert reading is not None
        assert reading.codec is not None
    assert rules_for("CubeBackward") == {}


def test_a_rule_added_to_a_known_node_keeps_the_others() -> None:
    with register_rule("AddmmBackward0", "self", Use.LINEAR):
        assert set(rules_for("AddmmBackward0")) == {"mat1", "mat2", "self"}
    assert set(rules_for("AddmmBackward0")) == {"mat1", "mat2"}


def test_an_ended_rule_does_not_take_its_successor_along() -> None:
    first = register_rule("CubeBackward", 0, Use.SMOOTH)
    first.remove()
    with register_rule("CubeBackward", 0, Use.LINEAR):
        first.remove()
        assert list(rules_for("CubeBackward")) == [0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 0, Use.LINEAR), "expected a node's name"),
        (("My Fn", 0, Use.LINEAR), "expected a node's name"),
        ((Cube, 0, Use.LINEAR), "expected a node's name"),
        (("CubeBackward", -1, Use.LINEAR), "index of 0 or more"),
        (("CubeBackward", "", Use.LINEAR), "expected the name after"),
        (("CubeBackward", "_saved_self", Use.LINEAR), "expected the name after"),
        (("CubeBackward", 0, Use.SIGN), "others need exact codecs"),
        (("CubeBackward", 0, "linear"), "expected one of"),
        (("ReluBackward0", "result", Use.LINEAR), "has a rule already"),
    ],
)
def test_bad_rules_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        register_rule(*arguments)


@pytest.mark.parametrize("field", [True, 1.0, None])
def test_a_field_of_the_wrong_type(field: Any) -> None:
    with pytest.raises(TypeError, match="expected a name like"):
        register_rule("CubeBackward", field, Use.LINEAR)


def test_wrong_axes() -> None:
    axes: Any = "columns"
    with pytest.raises(ValueError, match="expected one of"):
        register_rule("CubeBackward", 0, Use.LINEAR, axes=axes)


def test_names_exist_in_this_torch() -> None:
    nodes = getattr(torch._C, "_functions", None)
    if nodes is None:
        pytest.skip("this torch doesn't list its nodes")
    missing = [
        (name, field)
        for name, fields in known_nodes().items()
        for field in fields
        if not hasattr(getattr(nodes, name, None), f"_raw_saved_{str(field).partition('[')[0]}")
    ]
    assert missing == []
