"""One case or more for every rule."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from division.rules import Use
from tests.rules.harness import Case, Key

LINEAR, SMOOTH, SIGN, MASK, INDEX, SHAPE = Use
aten = torch.ops.aten

X2, X3, X4, X5 = (6, 9), (2, 4, 9), (2, 4, 8, 7), (2, 4, 5, 4, 6)
W1, W2, W3 = (4, 4, 3), (4, 4, 3, 3), (4, 4, 3, 3, 3)
B = (4,)


def one(node: str, field: str, use: Use) -> dict[Key, Use]:
    return {(node, field): use}


def elementwise(
    name: str, op: Callable[[Tensor], Tensor], node: str, field: str, use: Use, *thresholds: float, **more: Any
) -> Case:
    return Case(name, op, (X4,), one(node, field, use), thresholds, **more)


def conv(
    name: str, op: Callable[..., Tensor], node: str, field: str, x: tuple[int, ...], w: tuple[int, ...]
) -> list[Case]:
    return [
        Case(name, op, (x, w, B), one(node, field, LINEAR)),
        Case(f"{name}, frozen weight", op, (x, w, B), one(node, field, SHAPE), frozen=(1,)),
    ]


CONV = "ConvolutionBackward0"
CONVOLUTIONS = [
    Case("conv2d, all frozen", F.conv2d, (X4, W2, B), one(CONV, "input", SHAPE), frozen=(1, 2)),
    *conv("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), CONV, "input", X3, W1),
    *conv("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=2, dilation=2), CONV, "input", X4, W2),
    *conv("conv3d", lambda x, w, b: F.conv3d(x, w, b, padding=1), CONV, "input", X5, W3),
    *conv("depthwise", lambda x, w, b: F.conv2d(x, w, b, groups=4), CONV, "input", X4, (4, 1, 3, 3)),
    *conv("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, 2), CONV, "input", X3, W1),
    *conv("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), CONV, "input", X4, W2),
    *conv("conv_transpose3d", F.conv_transpose3d, CONV, "input", X5, W3),
    *conv(
        "_convolution",
        lambda x, w, b: aten._convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True, True),
        "ConvolutionBackward1",
        "input",
        X4,
        W2,
    ),
    *conv(
        "mkldnn_convolution",
        lambda x, w, b: aten.mkldnn_convolution(x, w, b, [1, 1], [1, 1], [1, 1], 1),
        "MkldnnConvolutionBackward0",
        "self",
        X4,
        W2,
    ),
]


def two(node: str, a: str, b: str, use: Use = LINEAR) -> dict[Key, Use]:
    return {(node, a): use, (node, b): use}


def power(exponent: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x**exponent


PRODUCTS = [
    Case("linear", F.linear, (X2, (5, 9), (5,)), two("AddmmBackward0", "mat1", "mat2")),
    Case("linear on rows", F.linear, (X3, (5, 9), (5,)), two("AddmmBackward0", "mat1", "mat2")),
    Case("mm", torch.mm, (X2, (9, 4)), two("MmBackward0", "self", "mat2")),
    Case("bmm", torch.bmm, (X3, (2, 9, 3)), two("BmmBackward0", "self", "mat2")),
    Case(
        "baddbmm",
        lambda a, b, c: torch.baddbmm(c, a, b),
        (X3, (2, 9, 3), (3,)),
        two("BaddbmmBackward0", "batch1", "batch2"),
    ),
    Case(
        "addbmm",
        lambda a, b, c: torch.addbmm(c, a, b),
        (X3, (2, 9, 3), (4, 3)),
        two("AddbmmBackward0", "batch1", "batch2"),
    ),
    Case("addmv", lambda a, b, c: torch.addmv(c, a, b), (X2, (9,), (6,)), two("AddmvBackward0", "mat", "vec")),
    Case("mv", torch.mv, (X2, (9,)), two("MvBackward0", "self", "vec")),
    Case("addr", lambda a, b, c: torch.addr(c, a, b), ((6,), (9,), X2), two("AddrBackward0", "vec1", "vec2")),
    Case("dot", torch.dot, ((30,), (30,)), two("DotBackward0", "self", "tensor")),
    Case("mul", torch.mul, (X4, X4), two("MulBackward0", "self", "other")),
    Case("mul, broadcast", torch.mul, (X4, (4, 1, 1)), two("MulBackward0", "self", "other")),
    Case("mul by a bool", lambda x, y: (x > 0) * y, (X4, X4), one("MulBackward0", "self", LINEAR), frozen=(0,)),
    Case(
        "addcmul",
        lambda x, y, z: torch.addcmul(z, x, y, value=0.5),
        (X4, X4, X4),
        two("AddcmulBackward0", "tensor1", "tensor2"),
    ),
    *(elementwise(f"power {n}", power(n), "PowBackward0", "self", SMOOTH) for n in (1, 2, 3.0)),
    elementwise("square", torch.square, "PowBackward0", "self", SMOOTH),
    elementwise("exp", torch.exp, "ExpBackward0", "result", SMOOTH),
]


def in_place(op: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """On a copy that is in the graph, as after a batch norm."""
    return lambda x: op(x + 0)


ACTIVATIONS = [
    elementwise("relu", F.relu, "ReluBackward0", "result", SIGN),
    elementwise("relu_", in_place(F.relu_), "ReluBackward0", "result", SIGN),
    elementwise("leaky_relu", F.leaky_relu, "LeakyReluBackward0", "self", SIGN),
    elementwise("leaky_relu, slope -2", lambda x: F.leaky_relu(x, -2.0), "LeakyReluBackward0", "self", SIGN),
    elementwise("leaky_relu_", in_place(F.leaky_relu_), "LeakyReluBackward1", "result", SIGN),
    elementwise("threshold", lambda x: F.threshold(x, 0.5, 7.0), "ThresholdBackward0", "self", SIGN, 0.5),
    elementwise("threshold 0.3", lambda x: F.threshold(x, 0.3, 7.0), "ThresholdBackward0", "self", SIGN, 0.3),
    elementwise(
        "threshold_", in_place(lambda x: aten.threshold_(x, 0.5, 7.0)), "ThresholdBackward1", "self", SIGN, 0.5
    ),
    elementwise(
        "threshold_, value 0", in_place(lambda x: aten.threshold_(x, 1, 0)), "ThresholdBackward1", "self", SIGN, 1.0
    ),
    elementwise("hardtanh", F.hardtanh, "HardtanhBackward0", "self", SIGN, -1.0, 1.0),
    elementwise("hardtanh 0.1", lambda x: F.hardtanh(x, -0.1, 0.7), "HardtanhBackward0", "self", SIGN, -0.1, 0.7),
    elementwise("hardtanh_", in_place(F.hardtanh_), "HardtanhBackward0", "self", SIGN, -1.0, 1.0),
    elementwise("relu6", F.relu6, "HardtanhBackward0", "self", SIGN, 0.0, 6.0),
    elementwise("relu6 in place", in_place(lambda x: F.relu6(x, inplace=True)), "HardtanhBackward0", "self", SIGN, 6.0),
    elementwise("hardsigmoid", F.hardsigmoid, "HardsigmoidBackward0", "self", SIGN, -3.0, 3.0, double=False),
    elementwise(
        "hardsigmoid_",
        in_place(lambda x: F.hardsigmoid(x, True)),
        "HardsigmoidBackward0",
        "self",
        SIGN,
        -3.0,
        3.0,
        double=False,
    ),
    elementwise("hardshrink", F.hardshrink, "HardshrinkBackward0", "self", SIGN, -0.5, 0.5),
    elementwise("hardshrink 0", lambda x: F.hardshrink(x, 0.0), "HardshrinkBackward0", "self", SIGN),
    elementwise("softshrink", F.softshrink, "SoftshrinkBackward0", "self", SIGN, -0.5, 0.5),
    elementwise("softshrink 0.3", lambda x: F.softshrink(x, 0.3), "SoftshrinkBackward0", "self", SIGN, -0.3, 0.3),
    elementwise("clamp", lambda x: x.clamp(0, 1), "ClampBackward1", "self", SIGN, 0.0, 1.0),
    elementwise("clamp 0.1", lambda x: x.clamp(0.1, 0.7), "ClampBackward1", "self", SIGN, 0.1, 0.7),
    elementwise("clamp at a point", lambda x: x.clamp(1, 1), "ClampBackward1", "self", SIGN, 1.0),
    elementwise("clamp from below", lambda x: x.clamp(min=-2), "ClampBackward1", "self", SIGN, -2.0),
    elementwise("clamp from above", lambda x: x.clamp(max=0.25), "ClampBackward1", "self", SIGN, 0.25),
    elementwise("clamp_", in_place(lambda x: x.clamp_(0, 1)), "ClampBackward1", "self", SIGN, 0.0, 1.0),
    elementwise("clamp_min", lambda x: x.clamp_min(0.5), "ClampMinBackward0", "self", SIGN, 0.5),
    elementwise("clamp_max", lambda x: x.clamp_max(0.5), "ClampMaxBackward0", "self", SIGN, 0.5),
    elementwise("gelu", F.gelu, "GeluBackward0", "self", SMOOTH),
    elementwise("gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), "GeluBackward0", "self", SMOOTH),
    elementwise("silu", F.silu, "SiluBackward0", "self", SMOOTH),
    elementwise("mish", F.mish, "MishBackward0", "self", SMOOTH),
    elementwise("hardswish", F.hardswish, "HardswishBackward0", "self", SMOOTH, -3.0, 3.0),
    elementwise("elu", F.elu, "EluBackward0", "self", SMOOTH),
    elementwise("selu", F.selu, "EluBackward0", "self", SMOOTH),
    elementwise("elu_", in_place(F.elu_), "EluBackward1", "result", SMOOTH),
    elementwise("celu", F.celu, "CeluBackward0", "self", SMOOTH),
    elementwise("celu_", in_place(F.celu_), "CeluBackward1", "result", SMOOTH),
    Case("prelu", F.prelu, (X4, B), one("PreluKernelBackward0", "self", SMOOTH)),
    elementwise("softplus", F.softplus, "SoftplusBackward0", "self", SMOOTH),
    elementwise("logsigmoid", F.logsigmoid, "LogSigmoidBackward0", "self", SMOOTH),
    Case("glu", lambda x: F.glu(x, 1), (X4,), one("GluBackward0", "self", SMOOTH)),
    elementwise("tanh", torch.tanh, "TanhBackward0", "result", SMOOTH),
    elementwise("tanhshrink", F.tanhshrink, "TanhBackward0", "result", SMOOTH),
    elementwise("sigmoid", torch.sigmoid, "SigmoidBackward0", "result", SMOOTH),
    Case("softmax", lambda x: F.softmax(x, 1), (X4,), one("SoftmaxBackward0", "result", SMOOTH)),
    Case("safe softmax", lambda x: aten._safe_softmax(x, -1), (X4,), one("SafeSoftmaxBackward0", "result", SMOOTH)),
]


def running(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, x.shape[1], dtype=x.dtype), torch.linspace(0.5, 2, x.shape[1], dtype=x.dtype)


def batch_norm(training: bool) -> Callable[..., Tensor]:
    return lambda x, w, b: F.batch_norm(x, *running(x), w, b, training)


BN = "NativeBatchNormBackward0"
NORMS = [
    *(
        Case(f"batch_norm {len(x)}-D", batch_norm(True), (x, (x[1],), (x[1],)), one(BN, "input", SMOOTH))
        for x in (X2, X3, X4, X5)
    ),
    Case("batch_norm, frozen", batch_norm(True), (X4, B, B), one(BN, "input", SMOOTH), frozen=(1, 2)),
    Case("batch_norm in eval", batch_norm(False), (X4, B, B), one(BN, "input", LINEAR)),
    Case("batch_norm in eval, frozen weight", batch_norm(False), (X4, B, B), one(BN, "input", LINEAR), frozen=(1,)),
    Case("batch_norm in eval, frozen bias", batch_norm(False), (X4, B, B), one(BN, "input", LINEAR), frozen=(2,)),
    Case("batch_norm in eval, frozen", batch_norm(False), (X4, B, B), one(BN, "input", SHAPE), frozen=(1, 2)),
    Case("batch_norm in eval, no weight", lambda x: F.batch_norm(x, *running(x)), (X4,), one(BN, "input", SHAPE)),
    Case("batch_norm in eval, frozen, 1-D", batch_norm(False), (X3, B, B), one(BN, "input", SHAPE), frozen=(1, 2)),
    Case("batch_norm in eval, frozen, 3-D", batch_norm(False), (X5, B, B), one(BN, "input", SHAPE), frozen=(1, 2)),
    Case("instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b), (X4, B, B), one(BN, "input", SMOOTH)),
    Case("instance_norm, frozen", F.instance_norm, (X4,), one(BN, "input", SMOOTH)),
    Case(
        "group_norm",
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (X4, B, B),
        one("NativeGroupNormBackward0", "input", SMOOTH),
    ),
    Case("group_norm, frozen", lambda x: F.group_norm(x, 2), (X4,), one("NativeGroupNormBackward0", "input", SMOOTH)),
    Case(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, (9,), w, b),
        (X3, (9,), (9,)),
        one("NativeLayerNormBackward0", "input", SMOOTH),
    ),
    Case(
        "layer_norm, frozen", lambda x: F.layer_norm(x, (9,)), (X3,), one("NativeLayerNormBackward0", "input", SMOOTH)
    ),
    Case(
        "batch norm without statistics",
        lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)[0],
        (X4, B, B),
        one("NativeBatchNormLegitBackward1", "input", SMOOTH),
    ),
    *(
        Case(
            f"_native_batch_norm_legit, {'train' if training else 'eval'}",
            lambda x, w, b, t=training: aten._native_batch_norm_legit(x, w, b, *running(x), t, 0.1, 1e-5)[0],
            (X4, B, B),
            one("NativeBatchNormLegitBackward0", "input", use),
            frozen=frozen,
        )
        for training, use, frozen in ((True, SMOOTH, (1, 2)), (False, LINEAR, ()), (False, SHAPE, (1, 2)))
    ),
    *(
        Case(
            f"_native_batch_norm_legit_no_training, {use.value}",
            lambda x, w, b: aten._native_batch_norm_legit_no_training(x, w, b, *running(x), 0.1, 1e-5)[0],
            (X4, B, B),
            one("NativeBatchNormLegitNoTrainingBackward0", "input", use),
            frozen=frozen,
        )
        for use, frozen in ((LINEAR, ()), (SHAPE, (1, 2)))
    ),
    Case(
        "_batch_norm_with_update",
        lambda x, w, b: aten._batch_norm_with_update(x, w, b, *running(x), 0.1, 1e-5)[0],
        (X4, B, B),
        one("BatchNormWithUpdateBackward0", "input", SMOOTH),
        frozen=(1, 2),
    ),
    *(
        Case(
            f"_batch_norm_no_update, {use.value}",
            lambda x, w, b: aten._batch_norm_no_update(x, w, b, *running(x), 0.1, 1e-5)[0],
            (X4, B, B),
            one("BatchNormNoUpdateBackward0", "input", use),
            frozen=frozen,
        )
        for use, frozen in ((LINEAR, ()), (SHAPE, (1, 2)))
    ),
]


def pooled(node: str) -> dict[Key, Use]:
    return {(node, "result1"): INDEX, (node, "self"): SHAPE}


def unread(name: str, op: Callable[[Tensor], Tensor], node: str, x: tuple[int, ...]) -> Case:
    return Case(name, op, (x,), one(node, "self", SHAPE))


def along(name: str, op: Callable[[Tensor], Tensor], node: str) -> Case:
    return Case(name, op, (X4,), one(node, "indices", INDEX))


def padded(dims: int, mode: str) -> Callable[[Tensor], Tensor]:
    return lambda x: F.pad(x, (1, 2) * dims, mode=mode)


MAX2, MAX3 = "MaxPool2DWithIndicesBackward0", "MaxPool3DWithIndicesBackward0"
POOLS = [
    Case("max_pool1d", lambda x: F.max_pool1d(x, 2), (X3,), pooled(MAX2)),
    Case("max_pool2d", lambda x: F.max_pool2d(x, 2), (X4,), pooled(MAX2)),
    Case("max_pool2d 3", lambda x: F.max_pool2d(x, 3, 2, 1), (X4,), pooled(MAX2)),
    Case("max_pool2d dilated", lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0), (2, 3), True), (X4,), pooled(MAX2)),
    Case("max_pool2d unbatched", lambda x: F.max_pool2d(x, 2, 1), (X3,), pooled(MAX2)),
    Case("max_pool3d", lambda x: F.max_pool3d(x, 2), (X5,), pooled(MAX3)),
    Case("max_pool3d 3", lambda x: F.max_pool3d(x, (3, 2, 3), (2, 1, 2), (1, 0, 1), (1, 2, 2)), (X5,), pooled(MAX3)),
    Case("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 4), (X3,), pooled("AdaptiveMaxPool2DBackward0")),
    Case(
        "adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 4)), (X4,), pooled("AdaptiveMaxPool2DBackward0")
    ),
    Case("adaptive_max_pool2d up", lambda x: F.adaptive_max_pool2d(x, 11), (X4,), pooled("AdaptiveMaxPool2DBackward0")),
    Case(
        "adaptive_max_pool3d",
        lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)),
        (X5,),
        pooled("AdaptiveMaxPool3DBackward0"),
    ),
    Case(
        "fractional_max_pool2d",
        lambda x: F.fractional_max_pool2d(x, 2, output_size=(3, 4)),
        (X4,),
        pooled("FractionalMaxPool2DBackward0"),
    ),
    Case(
        "fractional_max_pool3d",
        lambda x: F.fractional_max_pool3d(x, 2, output_size=(3, 2, 4)),
        (X5,),
        pooled("FractionalMaxPool3DBackward0"),
    ),
    unread("avg_pool1d", lambda x: F.avg_pool1d(x, 2), "AvgPool2DBackward0", X3),
    unread("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), "AvgPool2DBackward0", X4),
    unread("avg_pool3d", lambda x: F.avg_pool3d(x, 2), "AvgPool3DBackward0", X5),
    unread("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 4), "AdaptiveAvgPool2DBackward0", X3),
    unread("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 3), "AdaptiveAvgPool2DBackward0", X4),
    unread("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 3), "AdaptiveAvgPool3DBackward0", X5),
    Case(
        "lp_pool2d",
        lambda x: F.lp_pool2d(x, 2, 2),
        (X4,),
        {("PowBackward0", "self"): SMOOTH, ("AvgPool2DBackward0", "self"): SHAPE, ("ReluBackward0", "result"): SIGN},
    ),
    *(
        unread(f"{mode} pad {d}-D", padded(d, mode), f"{node}{d}DBackward0", x)
        for mode, node in (("reflect", "ReflectionPad"), ("replicate", "ReplicationPad"))
        for d, x in ((1, X3), (2, X4), (3, X5))
    ),
    along("sort", lambda x: x.sort(-2)[0], "SortBackward0"),
    along("stable sort", lambda x: x.sort(dim=1, stable=True)[0], "SortBackward1"),
    along("topk", lambda x: x.topk(3, -1)[0], "TopkBackward0"),
    along("max along a dim", lambda x: x.max(-1)[0], "MaxBackward0"),
    along("min along a dim", lambda x: x.min(2, keepdim=True)[0], "MinBackward0"),
    along("median along a dim", lambda x: x.median(-1)[0], "MedianBackward1"),
    along("nanmedian along a dim", lambda x: x.nanmedian(1)[0], "NanmedianBackward1"),
    along("kthvalue", lambda x: x.kthvalue(2, -1)[0], "KthvalueBackward0"),
    along("mode", lambda x: x.mode(-1)[0], "ModeBackward0"),
    Case("max of a single number", lambda x: x.max(0)[0], ((),), one("MaxBackward0", "indices", INDEX)),
]
MASKS = [
    Case(
        "native_dropout",
        lambda x: torch.native_dropout(x, 0.3, True)[0],
        (X4,),
        one("NativeDropoutBackward0", "result1", MASK),
    ),
    Case("dropout", lambda x: F.dropout(x, 0.3), (X4,), one("MulBackward0", "other", LINEAR)),
    Case("dropout2d", lambda x: F.dropout2d(x, 0.3), (X4,), one("MulBackward0", "other", LINEAR)),
    Case("dropout of all", lambda x: F.dropout(x, 1.0), (X4,), one("MulBackward0", "other", LINEAR)),
    Case("where", lambda x, y: torch.where(x > 0, x, y), (X4, X4), one("WhereBackward0", "condition", MASK)),
    Case("masked_fill", lambda x: x.masked_fill(x > 1, 2.0), (X4,), one("MaskedFillBackward0", "mask", MASK)),
    Case(
        "masked_fill by a tensor",
        lambda x, v: x.masked_fill(x > 1, v),
        (X4, ()),
        one("MaskedFillBackward1", "mask", MASK),
    ),
]
CASES = [*CONVOLUTIONS, *PRODUCTS, *ACTIVATIONS, *NORMS, *POOLS, *MASKS]
