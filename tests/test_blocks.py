"""Which parts of a network are run again: found in its structure, never the network as a whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from division.blocks import Segment, choose, is_sequence
from tests.models import Of, convnet, mlp


class Block(nn.Module):
    """A residual block of five layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def leaves(segment: Segment) -> list[nn.Module]:
    members = (
        [segment.module] if segment.start is None else list(segment.module.children())[segment.start : segment.stop]
    )
    return [part for member in members for part in member.modules() if next(part.children(), None) is None]


def torchvision(name: str, **settings: object) -> nn.Module:
    models = pytest.importorskip("torchvision").models
    with torch.device("meta"):
        model: nn.Module = models.get_model(name, weights=None, **settings)
    return model


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", ["layer1", "layer2", "layer3", "layer4"]),
        ("resnet50", ["layer1", "layer2", "layer3", "layer4"]),
        ("resnet152", ["layer1", "layer2", *(f"layer3.{a}-{a + 8}" for a in (0, 9, 18, 27)), "layer4"]),
        ("vgg11", ["features.0-9", "features.10-14", "features.15-20", "classifier"]),
        ("vit_b_16", [f"encoder.layers.encoder_layer_{a}-encoder_layer_{a + 2}" for a in (0, 3, 6, 9)]),
        ("swin_t", ["features.0-4", "features.5.0-2", "features.5.3-5", "features.6-7"]),
        ("mobilenet_v2", ["features.0-4", "features.5-9", "features.10-13", "features.14-18", "classifier"]),
    ],
)  # fmt: skip
def test_of_known_networks(name: str, expected: list[str]) -> None:
    assert [segment.name for segment in choose(torchvision(name))] == expected


@pytest.mark.parametrize(
    "name",
    [
        "alexnet",
        "convnext_tiny",
        "densenet121",
        "efficientnet_b0",
        "googlenet",
        "inception_v3",
        "mnasnet1_0",
        "squeezenet1_0",
    ],
)
def test_none_is_most_of_the_network_and_no_layer_is_in_two(name: str) -> None:
    model = torchvision(name, **({"init_weights": False} if name in ("googlenet", "inception_v3") else {}))
    found = choose(model)
    held = [layer for segment in found for layer in leaves(segment)]
    layers = sum(next(part.children(), None) is None for part in model.modules())
    assert len(held) == len(set(held)) == sum(segment.layers for segment in found)
    assert len(found) >= 2
    assert max(segment.layers for segment in found) <= layers / 2
    assert len(held) >= 0.8 * layers


def test_flat_sequences_are_cut_between_their_members_but_not_before_one_that_works_in_place() -> None:
    assert [segment.name for segment in choose(mlp())] == ["0-1", "3-4"]
    layers = [layer for _ in range(9) for layer in (nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True))]
    for segment in choose(nn.Sequential(*layers)):
        assert isinstance(segment.module, nn.Sequential)
        assert isinstance(segment.module[segment.start or 0], nn.Conv2d)
    assert all(segment.module is not None and segment.layers > 1 for segment in choose(convnet()))


@pytest.mark.parametrize(
    "wrapped",
    [
        nn.Sequential,
        lambda m: nn.Sequential(nn.Identity(), m),
        lambda m: Of(lambda layers, x: layers["m"](x), m=m),
    ],
    ids=["alone", "behind a layer", "called"],
)
def test_what_is_around_a_network_changes_nothing(wrapped: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(*(Block() for _ in range(8)))
    plain, found = choose(model), choose(wrapped(model))
    assert [(s.module, s.start, s.stop) for s in found] == [(s.module, s.start, s.stop) for s in plain]


def test_a_module_that_a_sequence_holds_twice_counts_twice() -> None:
    act, body = nn.ReLU(), Block()
    flat = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(4, 4), act)))
    assert [segment.name for segment in choose(flat)] == ["0-3", "4-7", "8-11", "12-15"]
    assert [segment.layers for segment in choose(flat)] == [4, 4, 4, 4]
    found = choose(nn.Sequential(body, Block(), body, Block()))
    assert [segment.name for segment in found] == ["0", "1", "3"]


def test_a_module_with_two_names_is_found_once() -> None:
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.Tanh())))
    holder = nn.Module()
    holder.net = net
    model = Of(lambda layers, x: layers["net"](x), holder=holder, net=net)
    found = choose(model)
    assert [segment.name for segment in found] == [f"layers.holder.net.{a}-{a + 2}" for a in (0, 3, 6, 9)]
    assert [(s.module, s.start, s.stop) for s in found] == [(s.module, s.start, s.stop) for s in choose(net)]


def test_lists_that_cannot_be_called_give_their_members() -> None:
    def each(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        for block in layers["blocks"].children():
            x = block(x)
        return x

    model = Of(each, blocks=nn.ModuleList(Block() for _ in range(3)))
    assert [segment.name for segment in choose(model)] == [f"layers.blocks.{i}" for i in range(3)]


def test_more_segments_on_request_and_only_what_is_covered() -> None:
    model = nn.Sequential(*(Block() for _ in range(16)))
    assert len(choose(model, 2)) == 2
    assert len(choose(model, 8)) == 8
    found = choose(model, covered=lambda name: not name.startswith("3"))
    assert sum(segment.layers for segment in found) == 15 * 5
    assert not any(part in set(model[3].modules()) for segment in found for part in leaves(segment))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 4),
        nn.LSTM(4, 4, 2),
        Of(lambda layers, x: layers["b"](layers["a"](x)), a=nn.Linear(4, 4), b=nn.Linear(4, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 4)),
        nn.ModuleList(),
        nn.DataParallel(nn.Sequential(*(Block() for _ in range(8)))),
    ],
    ids=["a layer", "an lstm", "two layers", "a short sequence", "nothing", "works on copies"],
)
def test_where_nothing_is_found_an_error_says_what_is_expected(model: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=f"found no blocks in {type(model).__name__} .*expected a network of two or more"
    ):
        choose(model)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_compiled_models_are_refused() -> None:
    compiled: Any = torch.compile(nn.Sequential(*(Block() for _ in range(8))))
    with pytest.raises(ValueError, match="found no blocks in OptimizedModule"):
        choose(compiled)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_scripted_modules_are_left_alone() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    found = choose(nn.Sequential(*(Block() for _ in range(4)), scripted))
    assert not any(part is scripted for segment in found for part in leaves(segment))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_what_changes_its_weight_in_forward_is_left_alone(kind: Any) -> None:
    class Looking(Block):
        def __init__(self, **settings: float) -> None:
            super().__init__()
            self.table = kind(8, 4, **settings)

    limited = Looking(max_norm=1.0)
    found = choose(nn.Sequential(Looking(), limited, Looking(), Block()))
    assert [segment.name for segment in found] == ["0", "1.body", "2", "3"]
    assert not any(part is limited.table for segment in found for part in leaves(segment))


def test_a_sequence_is_one_by_its_forward() -> None:
    class Other(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x

    assert is_sequence(nn.Sequential())
    assert is_sequence(convnet())
    assert not is_sequence(Other())
