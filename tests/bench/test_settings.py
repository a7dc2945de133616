import pytest

from division.bench import networks, settings
from division.bench.settings import KernelSettings, StepSettings, Workload, changed
from division.train.errors import SettingsError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"codecs": ("dual", "triple")}, r"codec is 'triple': expected one of dual, .*window"),
        ({"codecs": ()}, "no codec is given"),
        ({"dtypes": ("float64",)}, "dtype is 'float64': expected one of float32, bfloat16, float16"),
        ({"layouts": ("nchw",)}, "layout is 'nchw': expected one of contiguous, channels_last"),
        ({"shapes": ((2, 0, 3),)}, "shape is 2x0x3: expected 1 to 5 sizes"),
        ({"shapes": ((1,) * 6,)}, "1x1x1x1x1x1"),
        ({"shapes": ()}, "no shape is given"),
        ({"shapes": ((10**20, 2),)}, "shape is 100000000000000000000x2: expected 2.32 elements at most"),
        ({"repeats": 0}, "repeats is 0: expected 1 or more"),
        ({"device": "tpu"}, "device is 'tpu': expected cpu"),
        ({"device": "cuda:99"}, "device is 'cuda:99': expected cpu"),
        ({"device": "cuda:99", "body": "avx2"}, "only the CPU has bodies"),
    ],
)
def test_what_kernels_refuses(given: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        changed(KernelSettings(), given).check()


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        KernelSettings(codecs=("x",), dtypes=("y",), repeats=0).check()
    assert len(caught.value.problems) == 3
    with pytest.raises(SettingsError) as caught:
        StepSettings((Workload("resnet18", 0, 1), Workload("resnet18", 0, 2, amp="fp8")), repeats=0).check()
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (Workload("resnet18", 0, 4), "image size is 0"),
        (Workload("resnet18", 32, 0), "batch size is 0"),
        (Workload("resnet51", 224, 4), "resnet51"),
        (Workload("inception_v3", 32, 4), "can't train on batches of shape"),
        (
            Workload("resnet18", 32, 4, ("division", "recompute")),
            r"'recompute', expected one of: .*checkpoint.*, save_on",
        ),
        (Workload("resnet18", 32, 4, ("division", "division")), "expected each once"),
        (Workload("vgg11", 32, 4), "'vgg11' is no list of blocks: leave checkpoint out"),
        (Workload("resnet18", 32, 4, amp="fp8"), "amp is 'fp8': expected one of none, bf16"),
        (Workload("resnet18", 32, 4, amp="fp16"), "amp is 'fp16': expected one of none, bf16"),
        (Workload("resnet18", 32, 4, device="cuda:99"), "cuda:99"),
    ],
)
def test_what_step_refuses(load: Workload, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        StepSettings((load,)).check()


def test_defaults_pass() -> None:
    Workload("vgg11", 32, 4, ("division",)).check()
    KernelSettings().check()
    StepSettings().check()
    settings.QUICK_KERNELS.check()
    settings.QUICK_STEP.check()


def test_none_comes_first_whether_given_or_not() -> None:
    assert Workload("m", 1, 1, ("division",)).methods == ("none", "division")
    assert Workload("m", 1, 1, ("division", "none")).methods == ("none", "division")


def test_lists_on_the_command_line() -> None:
    assert settings.listed(None) is None
    assert settings.listed(" a,b ,,") == ("a", "b")
    assert settings.shapes("1x2,3") == ((1, 2), (3,))
    assert settings.numbers("2, 4", "bits") == (2, 4)
    with pytest.raises(SettingsError, match="shape is '3xa': expected numbers such as 32x64x56x56"):
        settings.shapes("1x2,3xa")
    with pytest.raises(SettingsError, match="bits is 'two': expected a whole number"):
        settings.numbers("two", "bits")


def test_workloads_that_are_meant() -> None:
    def titles(*given: object, device: str = "cpu", quick: bool = False) -> list[str]:
        return [load.title for load in settings.workloads(*given, device=device, quick=quick)]  # type: ignore[arg-type]

    usual = ["resnet18 32x32, batch 128", "resnet50 224x224, batch 8", "resnet50 224x224, batch 32"]
    assert titles(None, None, None) == usual
    assert titles(None, None, None, device="cuda") == ["resnet50 224x224, batch 256"]
    assert titles(None, None, None, quick=True) == ["resnet18 8x8, batch 4"]
    assert titles(("resnet18", "vgg11"), None, None) == ["resnet18 32x32, batch 128", "vgg11 224x224, batch 8"]
    assert titles(("resnet50",), 64, 2) == ["resnet50 64x64, batch 2"]
    assert {load.device for load in settings.workloads(None, None, None, device="cuda:1", quick=False)} == {"cuda:1"}


def test_resnet18_of_small_images_is_the_cifar_form() -> None:
    assert networks.network_of("resnet18", 64) == ("resnet18-cifar", 64)
    assert networks.network_of("resnet18", 65) == ("resnet18", None)
    assert networks.network_of("resnet18-cifar", 224) == ("resnet18-cifar", 64)
    assert sum(p.numel() for p in networks.build("resnet18", 32).parameters()) == 11_173_962
    assert networks.classes("resnet18", 32) == 10
    assert networks.classes("resnet50", 32) == 1000
