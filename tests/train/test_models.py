import pytest
import torch
from torch import nn

from division.train import models


def test_width_64_is_the_network_of_the_papers() -> None:
    network = models.build("resnet18-cifar", channels=3, classes=10, size=32, width=64)
    assert sum(p.numel() for p in network.parameters()) == 11_173_962
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions[0].kernel_size == (3, 3)
    assert convolutions[0].stride == (1, 1)
    assert not any(isinstance(m, nn.MaxPool2d) for m in network.modules())
    assert len(convolutions) == 20


@pytest.mark.parametrize("channels", [1, 3])
def test_strides_and_outputs(channels: int) -> None:
    network = models.build("resnet18-cifar", channels, classes=7, size=32, width=2)
    sizes = []
    for block in network.get_submodule("blocks").children():
        block.register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    assert network(torch.randn(3, channels, 32, 32)).shape == (3, 7)
    assert sizes == [(2, 32, 32)] * 2 + [(4, 16, 16)] * 2 + [(8, 8, 8)] * 2 + [(16, 4, 4)] * 2


def test_torchvision_networks_see_grey_as_colour() -> None:
    network = models.build("squeezenet1_1", channels=1, classes=10, size=32).eval()
    images = torch.randn(2, 1, 32, 32)
    assert isinstance(network, nn.Sequential)
    torch.testing.assert_close(network(images), network[1](images.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("name", "width", "said"),
    [("resnet19", None, "resnet18"), ("fcn_resnet50", None, "classification"), ("resnet18", 8, "width"),
     ("resnet18-cifar", 0, "width")],
)  # fmt: skip
def test_wrong_names_and_widths(name: str, width: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        models.build(name, channels=3, classes=10, size=32, width=width)


def test_misfit_names_the_shape_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    assert models.misfit("alexnet", (16, 3, 224, 224), 10) is None
    assert "(16, 1, 32, 32)" in str(models.misfit("alexnet", (16, 1, 32, 32), 10))
    assert "(1, 3, 32, 32)" in str(models.misfit("resnet18", (1, 3, 32, 32), 10))  # one value a channel in batch norm
    assert torch.equal(torch.get_rng_state(), before)


def test_auxiliary_outputs_add_to_the_loss() -> None:
    main, aux, labels = torch.randn(4, 5), torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    expected = nn.functional.cross_entropy(main, labels) + 0.3 * nn.functional.cross_entropy(aux, labels)
    torch.testing.assert_close(models.cross_entropy((main, aux), labels), expected)
    assert models.logits((main, aux)) is main
    assert models.logits(aux) is aux
