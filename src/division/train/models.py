"""Networks by name: `resnet18-cifar`, every classification network of torchvision, and those of `language.py`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from division.train import language

Outputs = Tensor | tuple[Tensor, ...]

DEFAULT_WIDTH = 8


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut; the shortcut is a 1x1 convolution where shapes differ."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, width, H / stride, W / stride)."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class CifarResNet18(nn.Module):
    """ResNet-18 for small images: a 3x3 stem without pooling, four stages of `width` x 1, 2, 4, 8 channels.

    Takes (N, channels, H, W), gives (N, classes). Width 64 is the network of the papers.

    Example:
        >>> sum(p.numel() for p in CifarResNet18(channels=3, classes=10, width=64).parameters())
        11173962
    """

    def __init__(self, channels: int, classes: int, width: int = DEFAULT_WIDTH) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        blocks: list[nn.Module] = []
        for stage in range(4):
            before, after = width * max(1, 2 ** (stage - 1)), width * 2**stage
            blocks += [Block(before, after, stride=min(2, 1 + stage)), Block(after, after, stride=1)]
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, classes)."""
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


OWN: dict[str, Callable[[int, int, int], nn.Module]] = {"resnet18-cifar": CifarResNet18}


def names() -> list[str]:
    """Every network for images that `build` knows: our own first, then torchvision's classification networks."""
    import torchvision

    return [*OWN, *torchvision.models.list_models(module=torchvision.models)]


def problem(name: str, width: int | None = None, text: bool = False) -> str | None:
    """What is wrong with a name and a width, or None.

    Args:
        name: of a network for images, or, with `text`, of one that reads tokens.
        width: of the network.
        text: which of the two is expected.
    """
    if text:
        if name not in language.NETWORKS:
            return f"model is {name!r} with data of text: expected {', '.join(language.NETWORKS)}"
        return None if width is None else language.problem(width)
    if name in language.NETWORKS:
        return f"model is {name!r}, which reads text: expected a network for images, such as {next(iter(OWN))}"
    if name not in OWN:
        known = names()
        if name not in known:
            return f"model is {name!r}: expected {_suggested(name, known)}"
        if width is not None:
            return f"width is {width} with model {name!r}: expected none, only {', '.join(OWN)} takes one"
    elif width is not None and width < 1:
        return f"width is {width}: expected 1 or more channels"
    return None


def _suggested(name: str, known: list[str]) -> str:
    """The names that may be meant: those that begin alike, then those spelt alike; the kinds of names where none is."""
    name = name.lower()
    alike = [other for other in known if len(name) > 2 and other.startswith(name)]
    near = list(dict.fromkeys([*alike, *difflib.get_close_matches(name, known, n=3)]))[:5]
    kinds = f"{', '.join(OWN)} or a classification network of torchvision"
    return f"{kinds}, such as {', '.join(near)}" if near else f"{kinds} (torchvision.models.list_models names them)"


def build(name: str, channels: int, classes: int, size: int, width: int | None = None) -> nn.Module:
    """A freshly initialised network, in training mode, drawing from torch's global generator.

    Args:
        name: one of `names()`, or of `language.NETWORKS`.
        channels: of the images; torchvision's networks see one grey channel as three equal ones.
        classes: how many outputs.
        size: of the square images, which vision transformers are built for, or of the longest sequence of text.
        width: channels of the first stage of our own networks, `DEFAULT_WIDTH` by default; of every stage of those that
            read text, `language.DEFAULT_WIDTH` by default.

    Raises:
        ValueError: an unknown name, or a size the network can't be built for.
    """
    wrong = problem(name, width, text=name in language.NETWORKS)
    if wrong is not None:
        raise ValueError(wrong)
    if name in language.NETWORKS:
        return language.NETWORKS[name](classes, size, width or language.DEFAULT_WIDTH)
    if name in OWN:
        return OWN[name](channels, classes, width or DEFAULT_WIDTH)
    import torchvision

    extra: dict[str, object] = {}
    if name.startswith("vit_"):
        extra["image_size"] = size
    if name in ("googlenet", "inception_v3"):
        extra["init_weights"] = True  # their own default warns that it may change
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes, **extra)
    return nn.Sequential(GreyAsColour(), model) if channels == 1 else model


def misfit(name: str, shape: tuple[int, ...], classes: int, width: int | None = None) -> str | None:
    """Why a network can't train on batches of a shape, (N, C, H, W) of images or (N, T) of tokens; None where it can.

    Tries it on the meta device: no memory for the tensors, no arithmetic, nothing drawn from the global generator.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
            example = torch.empty(shape) if len(shape) == 4 else torch.zeros(shape, dtype=torch.int64)
            build(name, shape[1], classes, shape[-1], width)(example)
    except (ValueError, RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        return (
            f"model {name!r} can't train on batches of shape {shape} ({reason}): choose another size of image or batch"
        )
    return None


class GreyAsColour(nn.Module):
    """Repeats the one channel of grey images three times."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, H, W) to (N, 3, H, W)."""
        return x.repeat(1, 3, 1, 1)


def cross_entropy(outputs: Outputs, labels: Tensor) -> Tensor:
    """The mean cross entropy, auxiliary outputs (GoogLeNet, Inception) added with weight 0.3.

    Args:
        outputs: logits, float (N, classes) or (N, T, classes), or a tuple of them, the main ones first.
        labels: int64 (N,) or (N, T).
    """
    if isinstance(outputs, Tensor):
        return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())
    loss = functional.cross_entropy(outputs[0], labels)
    for other in outputs[1:]:
        loss = loss + 0.3 * functional.cross_entropy(other, labels)
    return loss


def logits(outputs: Outputs) -> Tensor:
    """The main outputs, without auxiliary ones: float (..., classes)."""
    return outputs if isinstance(outputs, Tensor) else outputs[0]
