"""Names of places: the same in every step, whatever else it does, and not another model's."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division.methods import Division
from division.saved import Saved
from division.sites import Sites, plain_name
from tests.models import WAYS, go


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.again = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x)))
        h = F.gelu(self.again(h)) + h
        return self.head(h.relu().mean((2, 3)))


class Naming(Division):
    """Collects the sites of all it is asked about."""

    def __init__(self, sites: Sites) -> None:
        super().__init__()
        object.__setattr__(self, "sites", sites)
        object.__setattr__(self, "met", [])

    def lossy(self, reading: Any, saved: Saved) -> Any:
        self.met.append(self.sites.site(saved))  # type: ignore[attr-defined]
        return super().lossy(reading, saved)


def named(model: nn.Module, sites: Sites, **autocast: Any) -> list[str | None]:
    method = Naming(sites)
    with division.compress(method, inputs=True), torch.autocast("cpu", torch.bfloat16, **autocast):
        model(torch.randn(2, 3, 16, 16)).sum()
    return method.met  # type: ignore[attr-defined, no-any-return]


NAMES = [
    "conv.weight: ConvolutionBackward0.input",
    "norm.weight: NativeBatchNormBackward0.input",
    "again.weight: ConvolutionBackward0.input",
    "again.weight: ConvolutionBackward0 GeluBackward0.self",
    "head.weight: AddmmBackward0.mat1",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("enabled", [False, True])
def test_a_site_is_the_parameter_at_work_and_what_came_behind(
    way: str, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(way, monkeypatch)
    model, sites = Net(), Sites()
    sites.bind(dict(model.named_parameters()))
    assert named(model, sites, enabled=enabled) == NAMES


def test_a_copy_knows_the_parameters_that_are_copied_with_it() -> None:
    model, sites = Net(), Sites()
    first = named(model, sites, enabled=False)
    alone, (together, twin) = copy.deepcopy(sites), copy.deepcopy((model, sites))
    twin.bind(dict(together.named_parameters()))
    assert named(together, twin, enabled=False) == first
    assert alone.shapes() == {}


def test_the_first_who_met_a_tensor_is_its_root_among_the_same_names() -> None:
    sites, x = Sites(), torch.ones(4, requires_grad=True)
    for names in (sites, copy.deepcopy(sites), Sites()):
        first, second = (x + 0).chunk(2)
        for y, site in ((first, "a"), (second, "b")):
            assert names.root(site, Saved("Node", "field", y)) == site
            assert names.root("c", Saved("Node", "field", y)) == site
            assert Sites().root("c", Saved("Node", "field", y)) == "c"
    assert [sites.root(site, Saved("Node", "field", x)) for site in "ab"] == ["a", "b"]


def test_without_names_parameters_are_numbered_as_they_are_met() -> None:
    model, sites = Net(), Sites()
    first = named(model, sites, enabled=False)
    assert first[0] == "parameter 0 (8, 3, 3, 3): ConvolutionBackward0.input"
    other = Net()
    assert named(other, sites, enabled=False)[0] == "parameter 4 (8, 3, 3, 3): ConvolutionBackward0.input"
    assert named(model, sites, enabled=False) == first


def test_names_are_without_what_wrappers_put_before_them() -> None:
    assert plain_name("module.a.module.b.weight") == "a.b.weight"
    assert plain_name("_orig_mod.module.a.weight") == "a.weight"
    assert plain_name("modules.a.weight") == "modules.a.weight"
    wrapped, sites = nn.ModuleDict({"module": Net()}), Sites()
    sites.bind(dict(wrapped.named_parameters()))
    assert named(wrapped["module"], sites, enabled=False) == NAMES


def test_a_tensor_behind_no_parameter_has_no_site() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    node = (x * 2).sin().grad_fn
    assert Sites().site(Saved("SinBackward0", "self", x, grad_fn=node)) is None
    assert Sites().site(Saved("SinBackward0", "self", x)) is None


def test_sites_of_another_model_are_refused() -> None:
    sites = Sites()
    sites.bind(dict(Net().named_parameters()))
    sites.expect(NAMES, {})
    with pytest.raises(ValueError, match=r"parameter 'stem.weight', which this model hasn't"):
        sites.expect(["stem.weight: ConvolutionBackward0.input"], {})
    late = Sites()
    late.expect(["stem.weight: ConvolutionBackward0.input"], {})
    with pytest.raises(ValueError, match=r"which this model hasn't"):
        late.bind(dict(Net().named_parameters()))


def test_numbered_sites_of_another_model_are_refused_where_they_are_met() -> None:
    sites = Sites()
    learned = [site for site in named(Net(width=8), sites, enabled=False) if site]
    fresh = Sites()
    fresh.expect(learned, {})
    with pytest.raises(ValueError, match=r"it has parameter 0 \(8, 3, 3, 3\) where .* parameter 0 \(16, 3, 3, 3\)"):
        named(Net(width=16), fresh, enabled=False)
    again = Sites()
    again.expect(learned, {})
    assert named(Net(width=8), again, enabled=False) == learned


def test_a_copy_meets_its_own_parameters() -> None:
    model, sites = Net(), Sites()
    sites.bind(dict(model.named_parameters()))
    for twin in (copy.deepcopy(sites), pickle.loads(pickle.dumps(sites))):
        assert named(model, twin, enabled=False)[0] == "parameter 0 (8, 3, 3, 3): ConvolutionBackward0.input"
