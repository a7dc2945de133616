"""What the rules leave alone, what they read off a node, and rules of the user's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from division.codecs.bits import Bits
from division.codecs.index import AdaptiveWindow, Narrow, Window
from division.codecs.interval import Interval
from division.rules import Reading, Use, known_nodes, register_rule, rules_for
from tests.rules.harness import readings_of


def read(op: Callable[..., Any], *inputs: Tensor) -> dict[str, Reading]:
    return {f"{node}.{field}": reading for (node, field), _, reading, _ in readings_of(op(*inputs))}


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


@pytest.mark.parametrize(
    "op",
    [
        lambda x: F.rrelu(x, training=True),  # saves its noise before it is drawn
        F.rrelu,
        lambda x: F.log_softmax(x, 1),
        lambda x: x.reciprocal(),
        lambda x: x / x,
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
        lambda x: F.embedding(torch.tensor([1, 2]), x),
        lambda x: x[torch.tensor([1, 2])],
        lambda x: F.hardshrink(x, -1.0),
        lambda x: F.threshold(x, float("inf"), 0.0),
    ],
)
def test_left_alone(op: Callable[[Tensor], Tensor]) -> None:
    assert read(op, leaf(6, 4)) == {}


def test_weights_and_statistics_have_no_rule() -> None:
    fields = {field for rules in known_nodes().values() for field in rules}
    assert fields.isdisjoint({"weight", "bias", "running_mean", "running_var", "result2", "result3", "noise", "buffer"})


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
        if not hasattr(getattr(nodes, name, None), f"_raw_saved_{field}")
    ]
    assert missing == []
