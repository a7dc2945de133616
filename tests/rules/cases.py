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
    name: str, op: Callable[..., Tensor], node: str, field: str, x: tuple[int, ...], w: tuple[int, ...], **more: Any
) -> list[Case]:
    return [
        Case(name, op, (x, w, B), one(node, field, LINEAR), **more),
        Case(f"{name}, frozen weight", op, (x, w, B), one(node, field, SHAPE), frozen=(1,), **more),
    ]


def slow(name: str, dims: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Called by itself it takes no other layout: of a gapped input it makes wrong gradients."""
    return lambda x, w, b: getattr(aten, name)(x.contiguous(), w, [3] * dims, b, [1] * dims, [0] * dims)


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
        widest=torch.float32,
    ),
    *conv("slow_conv2d", slow("_slow_conv2d_forward", 2), "SlowConv2DBackward0", "self", X4, W2),
    *conv("slow_conv3d", slow("slow_conv3d_forward", 3), "SlowConv3DBackward0", "self", X5, W3),
    *conv("slow_conv_dilated2d", slow("slow_conv_dilated2d", 2), "SlowConvDilated2DBackward0", "self", X4, W2),
    *conv("slow_conv_dilated3d", slow("slow_conv_dilated3d", 3), "SlowConvDilated3DBackward0", "self", X5, W3),
    *conv("slow_conv_transpose2d", slow("slow_conv_transpose2d", 2), "SlowConvTranspose2DBackward0", "self", X4, W2),
    *conv("slow_conv_transpose3d", slow("slow_conv_transpose3d", 3), "SlowConvTranspose3DBackward0", "self", X5, W3),
    Case("conv_tbc", torch.conv_tbc, ((5, 2, 4), (3, 4, 6), (6,)), one("ConvTbcBackward0", "self", LINEAR)),
    Case(
        "conv_tbc, frozen weight",
        torch.conv_tbc,
        ((5, 2, 4), (3, 4, 6), (6,)),
        one("ConvTbcBackward0", "self", LINEAR),
        frozen=(1,),
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
    Case("vdot", torch.vdot, ((30,), (30,)), two("VdotBackward0", "self", "other")),
    Case("cross", torch.linalg.cross, ((6, 3), (6, 3)), two("LinalgCrossBackward0", "self", "other")),
    Case(
        "bilinear",
        F.bilinear,
        (X2, (6, 5), (4, 9, 5)),
        {("TrilinearBackward0", field): LINEAR for field in ("i1", "i2", "i3")},
    ),
    Case(
        "grouped_mm",
        lambda a, b: torch._grouped_mm(a, b, offs=numbers(5, 16).int()) * 1,
        ((16, 8), (2, 8, 4)),
        two("GroupedMmBackward0", "self", "mat2"),
        widest=torch.float32,
    ),
    Case("div", lambda x, y: x / (y.abs() + 1), (X4, X4), one("DivBackward0", "self", LINEAR)),
    Case(
        "div without rounding",
        lambda x, y: aten.div(x, y.abs() + 1, rounding_mode=None),
        (X4, X4),
        one("DivBackward2", "self", LINEAR),
    ),
    *(
        Case(
            f"div, {mode}",
            lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode),
            (X4, X4),
            two("DivBackward2", "self", "other", SHAPE),
        )
        for mode in ("floor", "trunc")
    ),
    Case(
        "addcdiv",
        lambda x, y, z: torch.addcdiv(z, x, y.abs() + 1, value=0.5),
        (X4, X4, X4),
        one("AddcdivBackward0", "tensor1", LINEAR),
    ),
    *(elementwise(f"power {n}", power(n), "PowBackward0", "self", SMOOTH) for n in (1, 2, 3.0)),
    elementwise("square", torch.square, "PowBackward0", "self", SMOOTH),
    elementwise("exp", torch.exp, "ExpBackward0", "result", SMOOTH),
    elementwise("exp2", torch.exp2, "Exp2Backward0", "result", SMOOTH),
    elementwise("expm1", torch.expm1, "Expm1Backward0", "result", SMOOTH),
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
    elementwise("abs", torch.abs, "AbsBackward0", "self", SIGN),
    elementwise("softsign", F.softsign, "AbsBackward0", "self", SIGN),
    *(
        elementwise(name, getattr(torch, name), f"{name.title()}Backward0", "self", SMOOTH)
        for name in ("sin", "cos", "atan", "asinh", "erf", "erfc")
    ),
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
    Case("log_softmax", lambda x: F.log_softmax(x, 1), (X4,), one("LogSoftmaxBackward0", "result", LINEAR)),
    Case("log_softmax, last", lambda x: x.log_softmax(-1), (X2,), one("LogSoftmaxBackward0", "result", LINEAR)),
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
]


def numbers(*values: int) -> Tensor:
    return torch.tensor(values)


def many(*shape: int, below: int, signed: bool = False) -> Tensor:
    """Numbers from 0, or from -below, up to below: always the same."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-below if signed else 0, below, shape, generator=generator)


def written(
    name: str, op: Callable[..., Tensor], node: str, *unread: str, x: tuple[int, ...] = X4, **more: Any
) -> Case:
    """An op on a tensor and one of its size or another, by index."""
    return Case(name, op, (x, x), {(node, "index"): INDEX, **{(node, field): SHAPE for field in unread}}, **more)


def items(node: str, *uses: Use | None) -> dict[Key, Use]:
    return {(node, f"indices[{i}]"): use for i, use in enumerate(uses) if use is not None}


def put(*indices: Any, accumulate: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """Puts values in place of some of a tensor's, out of place."""

    def op(x: Tensor, y: Tensor) -> Tensor:
        return aten.index_put(x, indices, y[indices] if None not in indices else y[:, indices[1]], accumulate)

    return op


def pooled_back(dims: int) -> Callable[[Tensor], Tensor]:
    pool, unpool = ((F.max_pool2d, F.max_unpool2d), (F.max_pool3d, F.max_unpool3d))[dims - 2]

    def op(x: Tensor) -> Tensor:
        size = list(x.shape[2:])
        _, indices = pool(x.detach().nan_to_num(), 2, return_indices=True)
        for dim, n in enumerate(size, 2):
            x = x.narrow(dim, 0, n // 2)
        return unpool(x, indices, [2] * dims, output_size=size)

    return op


def assigned(x: Tensor, y: Tensor) -> Tensor:
    x = x + 0
    x[:, numbers(0, 1, 1, 0) > 0] = y[:, :2]
    return x


EMB, BAG, IX, PUT = "EmbeddingBackward0", "EmbeddingBagBackward0", "IndexBackward0", "IndexPutBackward0"
NLL, NLL2, SCATTER = "NllLossBackward0", "NllLoss2DBackward0", "ScatterBackward0"
X8 = (2,) * 8
INDICES = [
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
    along("cumulative max of a single number", lambda x: x.cummax(0)[0], "CummaxBackward0"),
    *(
        Case(
            f"cum{which} {dim}",
            lambda x, which=which, dim=dim: getattr(x, f"cum{which}")(dim)[0],
            (X4,),
            {(f"Cum{which}Backward0", "indices"): INDEX, (f"Cum{which}Backward0", "self"): SHAPE},
            double=False,
        )
        for which, dim in (("max", -1), ("max", 2), ("min", 0))
    ),
    Case("max_unpool2d", pooled_back(2), (X4,), one("MaxUnpool2DBackward0", "indices", INDEX)),
    Case("max_unpool3d", pooled_back(3), (X5,), one("MaxUnpool3DBackward0", "indices", INDEX)),
    Case("embedding", lambda w: F.embedding(many(3, 5, below=6), w), (X2,), one(EMB, "indices", INDEX)),
    Case(
        "embedding, padded",
        lambda w: F.embedding(many(3, 5, below=6).int(), w, padding_idx=-1, scale_grad_by_freq=True),
        (X2,),
        one(EMB, "indices", INDEX),
    ),
    *(
        Case(
            f"embedding_bag, {mode}",
            lambda w, mode=mode: F.embedding_bag(many(3, 5, below=6), w, mode=mode, padding_idx=2),
            (X2,),
            one(BAG, "indices", INDEX),
            double=False,
        )
        for mode in ("sum", "mean", "max")
    ),
    Case(
        "embedding_bag with weights",
        lambda w, s: F.embedding_bag(many(15, below=6), w, numbers(0, 4, 9), mode="sum", per_sample_weights=s),
        (X2, (15,)),
        one(BAG, "indices", INDEX),
        double=False,
    ),
    Case(
        "nll_loss",
        lambda x: F.nll_loss(x, numbers(0, -100, 8, 3, 3, 1)),
        (X2,),
        {(NLL, "target"): INDEX, (NLL, "self"): SHAPE},
    ),
    Case(
        "nll_loss, one sample",
        lambda x: F.nll_loss(x, torch.tensor(8), torch.linspace(0, 1, 9).to(x.dtype), ignore_index=300),
        ((9,),),
        {(NLL, "target"): INDEX, (NLL, "self"): SHAPE},
    ),
    Case(
        "nll_loss of maps",
        lambda x: F.nll_loss(x, many(2, 8, 7, below=4), ignore_index=2, reduction="none"),
        (X4,),
        {(NLL2, "target"): INDEX, (NLL2, "self"): SHAPE},
    ),
    Case(
        "gather",
        lambda x: x.gather(-2, many(2, 4, 3, 7, below=8)),
        (X4,),
        {("GatherBackward0", "index"): INDEX, ("GatherBackward0", "self"): SHAPE},
    ),
    Case(
        "take",
        lambda x: x.take(many(30, below=448, signed=True)),
        (X4,),
        {("TakeBackward0", "index"): INDEX, ("TakeBackward0", "self"): SHAPE},
    ),
    written(
        "put", lambda x, y: x.put(numbers(-1, 5, 40), y.view(-1)[:3]), "PutBackward0", "source", x=X2, double=False
    ),
    written(
        "put added", lambda x, y: x.put(numbers(5, 5), y[0, :2], True), "PutBackward0", "source", x=X2, double=False
    ),
    Case(
        "index_select",
        lambda x: x.index_select(-1, numbers(6, 0, 0, 2)),
        (X4,),
        one("IndexSelectBackward0", "index", INDEX),
    ),
    written("index_add", lambda x, y: x.index_add(1, numbers(3, 0, 0), y[:, :3]), "IndexAddBackward0", "source"),
    written("index_copy", lambda x, y: x.index_copy(-1, numbers(3, 1), y[..., :2]), "IndexCopyBackward0", "source"),
    Case("index_fill", lambda x: x.index_fill(2, numbers(-1, 0), 3), (X4,), one("IndexFillBackward0", "index", INDEX)),
    Case(
        "index_fill by a tensor",
        lambda x, v: x.index_fill(2, numbers(7, 0), v),
        (X4, ()),
        one("IndexFillBackward1", "index", INDEX),
    ),
    written("scatter", lambda x, y: x.scatter(1, many(2, 4, 8, 7, below=4), y), SCATTER, double=False),
    Case(
        "scatter of a number",
        lambda x: x.scatter(-1, many(2, 3, 8, 5, below=7), 2.0),
        (X4,),
        one("ScatterBackward1", "index", INDEX),
    ),
    written("scatter_add", lambda x, y: x.scatter_add(2, many(2, 4, 8, 7, below=8), y), "ScatterAddBackward0"),
    *(
        written(
            f"scatter_reduce {how}",
            lambda x, y, how=how: x.scatter_reduce(2, many(2, 4, 8, 7, below=8), y, how),
            "ScatterReduceBackward0",
            double=False,
        )
        for how in ("sum", "amin")
    ),
    Case("index", lambda x: x[numbers(1, -2, 0)], (X4,), items(IX, INDEX)),
    Case(
        "index behind a slice",
        lambda x: x[:, :, numbers(7, -8), numbers(0, 1)],
        (X4,),
        items(IX, None, None, INDEX, INDEX),
    ),
    Case("index by a mask", lambda x: x[x > 0], (X4,), items(IX, MASK)),
    Case(
        "index by a mask of two dims and by numbers",
        lambda x: x[torch.tensor([[True, False, False, True], [False, False, True, False]]), numbers(7, -8, 2)],
        (X4,),
        items(IX, MASK, INDEX),
    ),
    Case("index of eight dims", lambda x: x[(numbers(1, 0, -1),) * 8], (X8,), items(IX, *[INDEX] * 8)),
    Case("index_put", put(many(5, below=2), numbers(3, -4, 1, 2, 2)), (X4, X4), items(PUT, INDEX, INDEX), double=False),
    Case("index_put added", put(numbers(1, 1, 0), accumulate=True), (X4, X4), items(PUT, INDEX)),
    Case("index_put behind a slice", put(None, numbers(3, -4)), (X4, X4), items(PUT, None, INDEX)),
    Case("index_put of eight dims", put(*[numbers(1, 0)] * 8), (X8, X8), items(PUT, *[INDEX] * 8)),
    Case("written by index", assigned, (X4, X4), items(PUT, None, MASK)),
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
    Case(
        "masked_select",
        lambda x: x.masked_select(many(4, 8, 7, below=2) > 0),
        (X4,),
        {("MaskedSelectBackward0", "mask"): MASK, ("MaskedSelectBackward0", "self"): SHAPE},
    ),
    Case(
        "masked_scatter",
        lambda x, y: x.masked_scatter(many(2, 4, 8, 7, below=2) > 0, y),
        (X4, X4),
        one("MaskedScatterBackward0", "mask", MASK),
    ),
    Case(
        "fake_quantize",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7),
        (X4,),
        one("FakeQuantizePerTensorAffineCachemaskBackward0", "mask", MASK),
        double=False,
    ),
    Case(
        "fake_quantize by tensors",
        lambda x: torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.1), numbers(0).int(), -8, 7),
        (X4,),
        one("FakeQuantizePerTensorAffineCachemaskTensorQparamsBackward0", "mask", MASK),
        double=False,
    ),
    Case(
        "fake_quantize by channels",
        lambda x: torch.fake_quantize_per_channel_affine(x, torch.full((4,), 0.1), numbers(0, 0, 1, 2).int(), 1, -8, 7),
        (X4,),
        one("FakeQuantizePerChannelAffineCachemaskBackward0", "mask", MASK),
        double=False,
    ),
    Case(
        "fake_quantize, observed",
        lambda x: aten.fused_moving_avg_obs_fake_quant(
            x, *(torch.ones(1) for _ in range(5)), numbers(0).int(), 0.01, -8, 7, 0
        ),
        (X4,),
        one("FusedMovingAvgObsFqHelperBackward0", "mask", MASK),
        double=False,
    ),
]


def attention(**settings: Any) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **settings)


def heads(of: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """Attention of one projection's three parts, four heads of it."""

    def op(x: Tensor) -> Tensor:
        q, k, v = (
            (x * torch.linspace(0.1, 0.3, x.shape[-1]).to(x.dtype)).unflatten(-1, (4, 3, -1)).transpose(1, 2).unbind(3)
        )
        return of(q, k, v).transpose(1, 2).flatten(2)

    return op


CPU_ATTENTION = {
    ("ScaledDotProductFlashAttentionForCpuBackward0", field): use
    for field, use in (("query", SMOOTH), ("key", SMOOTH), ("value", LINEAR), ("output", LINEAR))
}
Q, KV = (2, 3, 6, 8), (2, 3, 5, 8)
ATTENTION = [
    Case("attention", attention(), (Q, KV, KV), CPU_ATTENTION, double=False),
    Case("attention, causal", attention(is_causal=True, scale=0.5), (Q, Q, Q), CPU_ATTENTION, double=False),
    Case("attention, masked", attention(attn_mask=many(6, 5, below=3) < 2), (Q, KV, KV), CPU_ATTENTION, double=False),
    Case("attention of one projection", heads(attention()), ((2, 6, 96),), CPU_ATTENTION, double=False),
    Case("attention, frozen keys", attention(), (Q, KV, KV), CPU_ATTENTION, frozen=(1,), double=False),
]
LOSSES = [
    Case(
        "binary_cross_entropy_with_logits",
        lambda x: F.binary_cross_entropy_with_logits(
            x, torch.full_like(x, 0.2), pos_weight=torch.ones(7).to(x.dtype) * 3
        ),
        (X4,),
        one("BinaryCrossEntropyWithLogitsBackward0", "self", SMOOTH),
    ),
    Case(
        "soft_margin_loss",
        lambda x: F.soft_margin_loss(x, torch.ones_like(x), reduction="none"),
        (X4,),
        one("SoftMarginLossBackward0", "self", SMOOTH),
    ),
    Case("l1_loss", F.l1_loss, (X4, X4), one("AbsBackward0", "self", SIGN)),
]


def spread(name: str) -> Case:
    node = "".join(word.title() for word in name.split("_"))
    op = getattr(torch, name)
    return Case(
        name, lambda x: op(x, 1) if "_" not in name else sum(op(x, 1)), (X4,), one(f"{node}Backward0", "self", LINEAR)
    )


def parts(x: Tensor) -> Tensor:
    """Real and imaginary part, of complex numbers."""
    return torch.view_as_real(x).sin()


FOURIER = [
    Case("rfft", lambda x: parts(torch.fft.rfft(x)), (X4,), one("FftR2CBackward0", "self", SHAPE)),
    Case("rfft2", lambda x: parts(torch.fft.rfft2(x, norm="ortho")), (X4,), one("FftR2CBackward0", "self", SHAPE)),
    Case("complex", lambda x, y: parts(torch.complex(x, y)), (X4, X4), two("ComplexBackward0", "real", "imag", SHAPE)),
]
REDUCTIONS = [
    *(spread(name) for name in ("var", "std", "var_mean", "std_mean")),
    Case("norm", lambda x: x.norm(dim=-1), (X4,), one("LinalgVectorNormBackward0", "self", LINEAR)),
    Case("normalize", F.normalize, (X4,), one("LinalgVectorNormBackward0", "self", LINEAR)),
    *(
        Case(
            f"aten norm {i}",
            lambda x, more=more: aten.norm(x, 2, *more),
            (X4,),
            one(f"NormBackward{i}", "self", LINEAR),
        )
        for i, more in enumerate(((), ([1],)))
    ),
    Case("aten norm 2", lambda x: aten.norm(x, None, dtype=x.dtype), (X4,), one("NormBackward2", "self", LINEAR)),
    Case(
        "aten norm 3", lambda x: aten.norm(x, 2, [1], True, dtype=x.dtype), (X4,), one("NormBackward3", "self", LINEAR)
    ),
]


def sampled(dims: int, mode: str = "bilinear", padding: str = "zeros") -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, grid: F.grid_sample(x, grid.tanh().view(2, *[3] * dims, dims), mode, padding, align_corners=False)


def sampler(name: str, op: Callable[[Tensor, Tensor], Tensor], node: str, dims: int = 2, **more: Any) -> list[Case]:
    shapes = ((2, 4, 5, 4, 6)[: 2 + dims], (2 * 3**dims * dims,))
    return [
        Case(name, op, shapes, one(node, "input", LINEAR), **more),
        Case(f"{name}, frozen grid", op, shapes, one(node, "input", SHAPE), frozen=(1,), **more),
    ]


SAMPLERS = [
    *sampler("grid_sample", sampled(2), "GridSampler2DBackward0"),
    *sampler("grid_sample, nearest", sampled(2, "nearest", "border"), "GridSampler2DBackward0"),
    *sampler("grid_sample, bicubic", sampled(2, "bicubic", "reflection"), "GridSampler2DBackward0"),
    *sampler("grid_sample 3-D", sampled(3), "GridSampler3DBackward0", 3),
    *sampler(
        "grid_sample, fallback",
        lambda x, grid: aten._grid_sampler_2d_cpu_fallback(x, grid.tanh().view(2, 3, 3, 2), 0, 0, False),
        "GridSampler2DCpuFallbackBackward0",
        widest=torch.float32,
    ),
]
CASES = [
    *CONVOLUTIONS,
    *PRODUCTS,
    *ACTIVATIONS,
    *NORMS,
    *POOLS,
    *INDICES,
    *MASKS,
    *ATTENTION,
    *LOSSES,
    *FOURIER,
    *REDUCTIONS,
    *SAMPLERS,
]
