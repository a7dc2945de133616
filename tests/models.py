"""What the tests of the way into autograd share: tiny models, exact codes for everything, comparison bit for bit."""

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from division import nodes
from division.codecs.codec import Codec, Packed, packed_like
from division.methods import Method
from division.rules import Reading
from division.saved import Saved

WAYS = ["hook", "walk"] if nodes.HAS_HOOK else ["walk"]
"""The ways into autograd that this torch has."""


def go(way: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make every context of the test find nodes this way: by torch's hook or by walking."""
    monkeypatch.setattr(nodes.watch.__init__, "__defaults__", (way == "walk",))
    return way


class Biggest(TorchDispatchMode):
    """The largest real tensor made inside."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if type(x) is Tensor and x.device.type == "cpu":
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return out


@dataclass(frozen=True)
class Copy(Codec):
    """A copy that says it takes no memory: exact, so that every tensor with a use can be coded and nothing moves."""

    name: ClassVar[str] = "copy"
    promises: ClassVar[frozenset[str]] = frozenset({"exact", "fixed_size"})

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        return -1

    def encode(self, x: Tensor, seed: int) -> Packed:
        return packed_like(x, (x.clone(),))

    def decode(self, packed: Packed) -> Tensor:
        x = torch.empty_strided(packed.size, packed.stride, dtype=packed.dtype, device=packed.device)
        return x.copy_(packed.parts[0])

    @classmethod
    def examples(cls) -> list[Codec]:
        return [cls()]


@dataclass(frozen=True)
class Copying(Method):
    """Lossless in what it gives back, but with a code for every LINEAR and SMOOTH tensor too."""

    name: ClassVar[str] = "copying"

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        return self.lossy(reading, saved) if reading.logs else super().codec(reading, saved)  # not of exponentials

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return Copy()


@dataclass(frozen=True)
class Watched(Codec):
    """Another codec, which notes weakly every storage it codes and every code it makes."""

    inner: Codec
    log: "Log"

    name: ClassVar[str] = "watched"

    @property
    def promises(self) -> frozenset[str]:
        return self.inner.promises

    def why_not(self, x: Tensor) -> str | None:
        return self.inner.why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        return self.inner.packed_bytes(size, dtype)

    def encode(self, x: Tensor, seed: int) -> Packed:
        packed = self.inner.encode(x, seed)
        self.log.seeds.append(seed)
        self.log.storages.append(StorageWeakRef(x.untyped_storage()))
        self.log.codes.append(weakref.ref(packed))
        return packed

    def decode(self, packed: Packed) -> Tensor:
        self.log.decoded += 1
        return self.inner.decode(packed)

    @classmethod
    def examples(cls) -> list[Codec]:
        return []


class Log(Method):
    """A method that picks what another one picks, and notes all that is coded."""

    name: ClassVar[str] = "log"

    def __init__(self, method: Method) -> None:
        self.method = method
        self.seeds: list[int] = []
        self.storages: list[StorageWeakRef] = []
        self.codes: list[weakref.ref[Packed]] = []
        self.decoded = 0

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        codec = self.method.codec(reading, saved)
        return None if codec is None else Watched(codec, self)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        raise NotImplementedError

    @property
    def alive(self) -> int:
        """Bytes of the codes alive."""
        return sum(code.nbytes for code in (ref() for ref in self.codes) if code is not None)

    @property
    def freed(self) -> float:
        """Share of the coded tensors' storages that are free."""
        return sum(ref.expired() for ref in self.storages) / len(self.storages)


def same(a: Any, b: Any) -> bool:
    """Whether two results hold the same bits: NaN equals the same NaN, 0 differs from -0; also the same layout."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.stride() != b.stride():
            return False
        return torch.equal(_bits(a), _bits(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _bits(x: Tensor) -> Tensor:
    return x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def grads(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def total(output: Any) -> Tensor:
    """A loss of any output: each element weighs differently, so that no error cancels."""
    if isinstance(output, Tensor):
        if output.is_complex():
            output = torch.view_as_real(output)
        weights = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape)
        return (output * weights.to(output)).float().sum()
    if isinstance(output, dict):
        output = list(output.values())
    return torch.stack([total(item) for item in output if isinstance(item, Tensor | list | tuple | dict)]).sum()


def steps(
    model: nn.Module, inputs: Sequence[Any], context: Callable[[nn.Module], AbstractContextManager[Any]], count: int = 2,
    loss: Callable[[Any], Tensor] = total,
) -> dict[str, Any]:  # fmt: skip
    """Train a copy of ``model`` for some steps; everything that may not differ: outputs, gradients, state, random state."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5)
    seen: dict[str, Any] = {"outputs": [], "grads": []}
    torch.manual_seed(7)
    for _ in range(count):
        optimizer.zero_grad()
        with context(model):
            output = model(*inputs)
            value = loss(output)
        value.backward()
        seen["outputs"].append(
            [value.detach(), *(x.detach().clone() for x in tree_leaves(output) if type(x) is Tensor)]
        )
        seen["grads"].append(grads(model))
        optimizer.step()
    return {**seen, "state": dict(model.state_dict()), "random": torch.get_rng_state(), "mode": model.training}


class Sign(torch.autograd.Function):
    """Old style: saves its input, its output and an intermediate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        inner = x * 2
        y = inner.tanh()
        ctx.save_for_backward(x, inner, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, inner, y = ctx.saved_tensors
        return grad * (1 - y * y) * (inner / x)


class Cube(torch.autograd.Function):
    """New style: with ``setup_context``, and reads its saved tensors twice."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * grad * ctx.saved_tensors[0] * ctx.saved_tensors[0]


class Double(torch.autograd.Function):
    """In place: marks its input dirty and saves the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2 + 0 * ctx.saved_tensors[0]


class Of(nn.Module):
    """A module made of a function of its layers and the input."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.call = forward

    def forward(self, *args: Any) -> Any:
        return self.call(self.layers, *args)


def convnet(width: int = 8) -> nn.Sequential:
    """Conv, batch norm, in-place ReLU, max pool, dropout, linear."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.3), nn.Conv2d(width, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4),
    )  # fmt: skip


def mlp(width: int = 64) -> nn.Sequential:
    """Linear layers with a smooth and a sign activation between."""
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def images(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 3, 16, 16)), generator=torch.Generator().manual_seed(1))


def _shapes_1d_3d() -> nn.Module:
    layers = {
        "c1": nn.Conv1d(4, 6, 3, stride=2), "n1": nn.BatchNorm1d(6), "p1": nn.MaxPool1d(2), "t1": nn.ConvTranspose1d(6, 4, 3),
        "c3": nn.Conv3d(2, 4, 2), "n3": nn.InstanceNorm3d(4, affine=True), "p3": nn.MaxPool3d(2), "t3": nn.ConvTranspose3d(4, 2, 2),
        "l": nn.LazyLinear(3),
    }  # fmt: skip

    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        a = m["t1"](m["p1"](F.leaky_relu(m["n1"](m["c1"](x)), 0.1, inplace=True)))
        b = m["t3"](F.avg_pool3d(m["p3"](F.hardtanh(m["n3"](m["c3"](x.view(2, 2, 8, 8, 8))))), 1))
        return m["l"](torch.cat([a.flatten(1), b.flatten(1)], 1)).relu()

    model = Of(forward, **layers)
    model(images(2, 4, 256))
    return model


def _conv_kinds() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=2, dilation=2, padding_mode="reflect"), nn.GroupNorm(2, 8), nn.SiLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=8, padding="same"), nn.LeakyReLU(0.2, inplace=True), nn.MaxPool2d(3, 2, 1, 1, ceil_mode=True),
        nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.PReLU(4), nn.Upsample(scale_factor=2, mode="bilinear"), nn.ReLU6(inplace=True),
        nn.Conv2d(4, 12, 1), nn.PixelShuffle(2), nn.ELU(inplace=True), nn.Dropout2d(0.3), nn.AdaptiveMaxPool2d(3),
        nn.LocalResponseNorm(2), nn.Hardswish(), nn.Flatten(), nn.Linear(27, 5), nn.LogSoftmax(1),
    )  # fmt: skip


def _activations() -> nn.Module:
    kinds: list[Callable[[Tensor], Tensor]] = [
        F.relu, F.relu6, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus, F.softsign, F.tanh, F.sigmoid,
        F.hardtanh, F.hardswish, F.hardsigmoid, F.hardshrink, F.softshrink, F.tanhshrink, F.logsigmoid, F.leaky_relu, torch.exp,
        torch.square, lambda x: x.pow(3), lambda x: x.clamp(-0.5, 0.5), lambda x: x.clamp(min=0), lambda x: F.rrelu(x, training=True),
        lambda x: F.threshold(x, 0.1, 0.2), F.glu, lambda x: x.softmax(-1), lambda x: x.log_softmax(1), lambda x: x.abs() / (1 + x * x),
        lambda x: x.sort(-1)[0], lambda x: x.topk(3)[0], lambda x: x.max(1)[0], lambda x: torch.where(x > 0, x, x * x), lambda x: x.masked_fill(x > 1, 0),
        lambda x: F.alpha_dropout(x, 0.2, True), lambda x: F.feature_alpha_dropout(x, 0.2, True), lambda x: x.cumsum(0).sin(), lambda x: F.dropout(x, 0.0), lambda x: F.dropout(x, 1.0),
    ]  # fmt: skip

    def forward(m: nn.ModuleDict, x: Tensor) -> list[Tensor]:
        h = m["l"](x)
        return [kind(h + 0) for kind in kinds]

    return Of(forward, l=nn.Linear(6, 8))


def _inplace_views() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        y = m["a"](x)
        y[:, 1:3].mul_(y[:, 3:5].detach().clone())
        y[:, 0].relu_()
        z = (m["b"](y).relu_() + 1).clamp_(max=2.0)
        z[0] = z[1] * 2
        return Double.apply(Sign.apply(Cube.apply(z)) * 1.0)

    return Of(forward, a=nn.Conv2d(3, 6, 3), b=nn.Conv2d(6, 6, 3))


def _attention() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> list[Tensor]:
        h = m["block"](x)
        a, w = m["heads"](h, h, h)
        q, k, v = m["qkv"](a).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT / 8**0.5).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        return [m["norm"](a), w, F.dropout(s, 0.2) @ v, F.scaled_dot_product_attention(q, k, v, is_causal=True)]

    block = nn.TransformerEncoderLayer(16, 2, 32, 0.1, activation="gelu", batch_first=True)
    return Of(
        forward, block=block, heads=nn.MultiheadAttention(16, 2, 0.1, batch_first=True), qkv=nn.Linear(16, 48),
        norm=nn.LayerNorm(16),
    )  # fmt: skip


def _recurrent() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> list[Tensor]:
        out, (h, c) = m["lstm"](x)
        packed = nn.utils.rnn.pack_padded_sequence(out, torch.tensor([5, 3, 2]), batch_first=True)
        gru, last = m["gru"](packed)
        return [out, h, c, gru.data, last]

    return Of(
        forward, lstm=nn.LSTM(6, 8, 2, dropout=0.2, bidirectional=True, batch_first=True),
        gru=nn.GRU(16, 4, 2, dropout=0.2, bidirectional=True, batch_first=True),
    )  # fmt: skip


def _words() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> list[Tensor]:
        e = m["e"](x)
        logits = F.linear(m["n"](e).relu(), m["e"].weight)  # type: ignore[arg-type]
        loss = F.cross_entropy(logits.flatten(0, 1), x.flatten(), label_smoothing=0.1)
        return [loss, m["bag"](x), F.nll_loss(logits.log_softmax(-1).flatten(0, 1), x.flatten())]

    return Of(forward, e=nn.Embedding(11, 8), n=nn.RMSNorm(8), bag=nn.EmbeddingBag(11, 4, mode="max"))


def _complex() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> list[Tensor]:
        f = torch.fft.rfft2(m["c"](x))
        spectrum = f * f.conj()
        part = (f.imag * m["c"](x)[..., : f.shape[-1]]) + f.conj().imag.relu() * f.real
        return [spectrum.abs(), f, part, torch.fft.irfft2(f * 2)]

    return Of(forward, c=nn.Conv2d(3, 4, 3))


def _dense() -> nn.Module:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        y = m["a"](x).relu()
        for name in ("b", "c"):
            y = torch.cat([y, m[name](F.relu(m["n" + name](y)))], 1)
        return y.mean((2, 3))

    return Of(
        forward, a=nn.Conv2d(3, 4, 3), b=nn.Conv2d(4, 4, 3, padding=1), c=nn.Conv2d(8, 4, 3, padding=1),
        nb=nn.BatchNorm2d(4), nc=nn.BatchNorm2d(8),
    )  # fmt: skip


def _eval_norm() -> nn.Module:
    model = convnet()
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval().requires_grad_(requires_grad=False)
    model[0].requires_grad_(requires_grad=False)
    return model


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convnet": (convnet, images),
    "mlp": (mlp, lambda: images(5, 64)),
    "1d-3d": (_shapes_1d_3d, lambda: images(2, 4, 256)),
    "conv-kinds": (_conv_kinds, images),
    "activations": (_activations, lambda: images(4, 6)),
    "in-place": (_inplace_views, images),
    "attention": (_attention, lambda: images(2, 6, 16)),
    "recurrent": (_recurrent, lambda: images(3, 5, 6)),
    "words": (_words, lambda: torch.arange(12).view(2, 6) % 11),
    "complex": (_complex, images),
    "dense": (_dense, images),
    "frozen": (_eval_norm, images),
}
"""Name to a function that builds the net and one that makes its input."""
