"""Real architectures: exactness, prediction, memory.

Those of torchvision for classification are listed here; tests/families/ lists its other ones, transformers' and timm's.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

import division
from division.methods import Division
from tests.families import of_timm, of_torchvision, of_transformers
from tests.families.family import Called, DenseCopying, Family
from tests.models import WAYS, Biggest, Copying, Log, go, same, steps, total

#: Family to (member, settings, smallest image side it takes).
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "alexnet": ("alexnet", {}, 63),
    "convnext": ("convnext_tiny", {}, 32),
    "densenet": ("densenet121", {}, 32),
    "efficientnet": ("efficientnet_b0", {}, 32),
    "efficientnet v2": ("efficientnet_v2_s", {}, 32),
    "googlenet": ("googlenet", {"aux_logits": True, "init_weights": False}, 64),
    "inception": ("inception_v3", {"aux_logits": True, "init_weights": False}, 299),
    "maxvit": ("maxvit_t", {}, 224),
    "mnasnet": ("mnasnet0_5", {"dropout": 0.2}, 32),
    "mobilenet v2": ("mobilenet_v2", {}, 32),
    "mobilenet v3": ("mobilenet_v3_small", {}, 32),
    "regnet": ("regnet_y_400mf", {}, 32),
    "resnet": ("resnet18", {}, 32),
    "resnext": ("resnext50_32x4d", {}, 32),
    "wide resnet": ("wide_resnet50_2", {}, 32),
    "shufflenet": ("shufflenet_v2_x0_5", {}, 32),
    "squeezenet": ("squeezenet1_1", {}, 32),
    "swin": ("swin_t", {}, 32),
    "swin v2": ("swin_v2_t", {}, 32),
    "vgg": ("vgg11_bn", {}, 32),
    "vit": ("vit_b_32", {"image_size": 32, "dropout": 0.1, "attention_dropout": 0.1}, 32),
}
THREE = ["resnet18", "densenet121", "mobilenet_v2"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def build(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)(weights=None, num_classes=10, **settings)
    return model.train()


def image(side: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def trained() -> dict[str, tuple[nn.Module, Tensor, dict[str, Any]]]:
    """What plain PyTorch gives, once for both ways."""
    return {}


def loss_of(output: Any) -> Tensor:
    return total(list(output) if isinstance(output, tuple) else output)


@pytest.mark.parametrize("family", FAMILIES)
def test_lossless_changes_no_bit_of_any_family(family: str, way: str, trained: dict[str, Any]) -> None:
    if family not in trained:
        trained.clear()
        name, settings, side = FAMILIES[family]
        model, x = build(name, **settings), image(side)
        trained[family] = model, x, steps(model, [x], lambda _: warnings.catch_warnings(), 1, loss_of)
    model, x, plain = trained[family]
    context = division.compress("lossless")
    ours = steps(model, [x], lambda _: context, 1, loss_of)
    for key in plain:
        assert same(plain[key], ours[key]), key
    coded = {r.use for r in context.report.records if not r.left}
    assert coded, "nothing was coded, so nothing was shown"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order: several threads add to one gradient as they come, where boxes or indices meet."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


ARCHITECTURES = [
    pytest.param(family, id=f"{family.package}: {name}", marks=() if family.sample else pytest.mark.slow)
    for table in (of_torchvision, of_transformers, of_timm)
    for name, family in table.FAMILIES.items()
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_exact_codes_change_no_bit_of_any_architecture(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(family.package, reason=f"{family.package} is not installed: pip install 'division[families]'")
    model, batch = Called(family.build()), family.batch()
    plain = steps(model, [batch], lambda _: nullcontext(), 1)
    moved = [bool(g.any()) for g in plain["grads"][0].values() if g is not None]
    assert sum(moved) > 0.8 * len(moved) > 4, "most gradients are zero, so nothing was shown"
    for way in WAYS:
        go(way, monkeypatch)
        coded = 0
        for context in (division.compress("lossless"), division.compress(DenseCopying())):
            ours = steps(model, [batch], lambda _, context=context: context, 1)  # type: ignore[misc]
            for key in plain:
                assert same(plain[key], ours[key]), f"{key}, {context.method}, {way}"
            coded += sum(bool(r.use) and not r.left for r in context.report.records)
        assert coded > 4, "next to nothing was coded, so nothing was shown"


@pytest.mark.parametrize("family", ["resnet", "mobilenet v3"])
def test_exact_codes_of_every_value_change_no_bit(family: str, way: str) -> None:
    name, settings, side = FAMILIES[family]
    model, x = build(name, **settings), image(side)
    plain = steps(model, [x], lambda _: warnings.catch_warnings(), 1)
    context = division.compress(Copying(), inputs=True)
    assert same(plain, steps(model, [x], lambda _: context, 1))
    for record in context.report.records:
        if record.use in {"linear", "smooth"} and record.left:
            assert record.left == "weight" or record.shape == () or "overlapping" in record.left, record


@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_predicted_bytes_are_the_measured_ones(name: str, way: str) -> None:
    model, x = build(name), image(64)
    state = copy.deepcopy(model.state_dict())
    with Biggest() as biggest:
        prediction = division.predict(model, x)
    assert biggest.bytes <= 1 << 20
    assert same(dict(model.state_dict()), dict(state))
    with division.compress("division") as context:
        model(x)
    assert prediction.packed_bytes == context.report.packed_bytes
    assert prediction.normal_bytes == context.report.raw_bytes
    assert prediction.ratio > 4
    built = division.predict(lambda: build(name), torch.empty(2, 3, 64, 64, device="meta"))
    assert (built.normal_bytes, built.packed_bytes) == (prediction.normal_bytes, prediction.packed_bytes)


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_originals_are_free_after_forward_and_codes_fall_node_by_node(name: str, way: str) -> None:
    model, log, x = build(name), Log(Division()), image(64)
    falling: list[int] = []
    hooks = [
        m.register_forward_hook(lambda m, i, o: falling_at(o, falling, log))
        for m in model.modules()
        if isinstance(m, nn.Conv2d | nn.Linear)
    ]
    with division.compress(log) as context:
        loss = loss_of(model(x))
    assert len(log.storages) > 40
    assert log.freed >= 0.95
    held = [r for r in context.report.records if r.codec and r.held]
    assert len(held) <= 0.05 * len(log.storages)
    whole = log.alive
    assert whole == context.report.code_bytes
    assert context.report.ratio > 4
    loss.backward()
    assert falling[0] > 0.9 * whole
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) >= len(hooks) // 2
    assert falling[-1] < 0.2 * whole
    assert log.alive == 0
    assert log.freed == 1


def falling_at(output: Tensor, falling: list[int], log: Log) -> None:
    output.register_hook(lambda grad: falling.append(log.alive))
