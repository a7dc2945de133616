"""Predicted bytes are those of a real run, and predicting costs and changes nothing."""

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import division
from division.codecs.codec import Codec, Packed, packed_like
from division.methods import Division, Reading, Saved, Use
from division.private import is_fake
from tests.methods.learning import Learning
from tests.models import NETS, WAYS, Biggest, Of, convnet, go, images, mlp, same


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def measured(model: nn.Module, *inputs: Any, method: Any = "division", loss: Any = None) -> tuple[int, int]:
    model = copy.deepcopy(model)
    with division.attach(model, method) as handle, handle.step():
        output = model(*inputs)
        if loss:
            loss(output)
    return handle.report.raw_bytes, handle.report.packed_bytes


@pytest.mark.parametrize("method", ["division", "none", "lossless", "fixed-3"])
@pytest.mark.parametrize("net", sorted(set(NETS) - {"complex", "recurrent", "words"}))
def test_predicted_bytes_are_the_measured_ones(net: str, method: str) -> None:
    build, batch = NETS[net]
    model, x = build(), batch()
    prediction = division.predict(model, x, method)
    assert (prediction.normal_bytes, prediction.packed_bytes) == measured(model, x, method=method)
    assert prediction.ratio == prediction.normal_bytes / prediction.packed_bytes


def test_the_account_is_that_of_a_real_run_line_by_line() -> None:
    model, x = convnet(), images()
    prediction = division.predict(model, x)
    with division.attach(model) as handle, handle.step():
        model(x)

    def lines(report: Any) -> list[Any]:
        return [
            (r["module"], r["node"], r["field"], r["use"], r["shape"], r["dtype"], r["raw_bytes"], r["packed_bytes"], r["codec"], r["left"])
            for r in report.to_rows()
        ]  # fmt: skip

    assert lines(prediction.report) == lines(handle.report)


class Words(nn.Module):
    """Embeds, attends, picks the words of the largest features, and tells them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(300, 32), nn.Linear(32, 96), nn.Linear(32, 40)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.mix(self.embed(ids)).unflatten(-1, (3, 2, 16)).transpose(1, 3).unbind(2)
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        best = h.detach().amax(-1).topk(5, dim=1).indices
        h = h.gather(1, best.unsqueeze(-1).expand(-1, -1, 32)) + h[torch.arange(len(h)).unsqueeze(1), best]
        return nn.functional.log_softmax(self.head(h), -1)


@pytest.mark.parametrize("method", ["division", "lossless"])
def test_attention_and_indices_are_predicted(method: str) -> None:
    model, ids = Words(), torch.arange(48).view(4, 12) * 6
    prediction = division.predict(model, ids, method)
    assert (prediction.normal_bytes, prediction.packed_bytes) == measured(model, ids, method=method)
    coded = {r.node for r in prediction.report.records if not r.left}
    assert "IndexBackward0" in coded
    for node in ("ScaledDotProductFlashAttentionForCpuBackward0", "GatherBackward0", "LogSoftmaxBackward0"):
        assert (node in coded) is (method == "division")


def test_the_loss_counts_if_it_is_given() -> None:
    model, x, y = mlp(), images(6, 64), torch.arange(6) % 4
    loss = lambda output: nn.functional.cross_entropy(output, y)  # noqa: E731
    without, with_it = division.predict(model, x), division.predict(model, x, loss=loss)
    assert with_it.normal_bytes > without.normal_bytes
    assert (with_it.normal_bytes, with_it.packed_bytes) == measured(model, x, loss=loss)


@pytest.fixture
def resident() -> Callable[[], int]:
    """Peak resident memory of this process in bytes, as the kernel counts it."""
    import resource

    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_nothing_is_allocated(resident: Callable[[], int]) -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 512, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1 << 13, 1 << 19)
        )

    division.predict(convnet(), images())
    before = resident()
    with Biggest() as biggest:
        prediction = division.predict(build, torch.empty(256, 3, 64, 64, device="meta"))
    assert prediction.normal_bytes > 256 * 512 * 62 * 62 * 4
    assert biggest.bytes <= 1 << 20
    assert resident() - before < 200 << 20  # the weights alone would take 16 GiB


def test_an_existing_model_is_not_copied(resident: Callable[[], int]) -> None:
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
    division.predict(model, torch.empty(1, 2048, device="meta"))
    before = resident()
    with Biggest() as biggest:
        division.predict(model, torch.empty(100_000, 2048, device="meta"))
    assert biggest.bytes <= 1 << 20
    assert resident() - before < 50 << 20


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_untouched(training: bool) -> None:
    model = convnet().train(training)
    weight = next(model.parameters())
    weight.grad = torch.ones_like(weight)
    state, addresses = copy.deepcopy(model.state_dict()), [p.data_ptr() for p in model.parameters()]
    random = torch.get_rng_state()
    x = images()
    division.predict(model, x)
    assert same(dict(model.state_dict()), dict(state))
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert model.training is training
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert type(model(x)) is Tensor


def test_train_and_eval_are_predicted_as_they_are() -> None:
    model, x = convnet(), images()
    for training in (True, False):
        model.train(training)
        prediction = division.predict(model, x)
        assert (prediction.normal_bytes, prediction.packed_bytes) == measured(model, x)


def test_a_builder_gives_what_the_model_gives() -> None:
    x = images()
    a, b = division.predict(convnet, x), division.predict(convnet(), x)
    assert (a.normal_bytes, a.packed_bytes) == (b.normal_bytes, b.packed_bytes)


def test_inputs_may_be_many() -> None:
    def forward(m: nn.ModuleDict, x: Tensor, scale: Tensor, flip: bool = False, more: Any = None) -> Tensor:
        h = m["l"](x) * scale * (more or {"a": 1})["a"]
        return h.flip(0).relu() if flip else h.relu()  # type: ignore[no-any-return]

    model = Of(forward, l=nn.Linear(64, 64))
    model.forward = lambda *a, **k: model.call(model.layers, *a, **k)  # type: ignore[method-assign]
    x, scale = torch.randn(8, 64), torch.randn(64)
    by_tuple = division.predict(model, (x, scale, True))
    by_dict = division.predict(model, {"x": x, "scale": scale, "flip": True, "more": {"a": torch.randn(64)}})
    assert by_tuple.normal_bytes > 0
    assert by_dict.normal_bytes > by_tuple.normal_bytes

    class Batch(NamedTuple):
        x: Tensor
        scale: Tensor

    assert division.predict(model, Batch(x, scale)).normal_bytes > 0


def test_tensors_that_are_neither_parameters_nor_buffers_go_along() -> None:
    scale = torch.randn(64)
    model = Of(lambda m, x: (m["l"](x) * scale).relu(), l=nn.Linear(64, 64))
    x = torch.randn(8, 64)
    prediction = division.predict(model, x)
    assert (prediction.normal_bytes, prediction.packed_bytes) == measured(model, x)


def test_tied_weights_count_as_one() -> None:
    model = Of(lambda m, x: nn.functional.linear(m["e"](x).relu(), m["e"].weight), e=nn.Embedding(11, 64))
    x = torch.arange(11)
    assert division.predict(model, x, "none").normal_bytes == measured(model, x, method="none")[0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, nullcontext])
def test_a_training_step_is_predicted_wherever_the_call_stands(mode: Any) -> None:
    model, x = convnet(), images()
    with mode():
        prediction = division.predict(model, x)
    assert (prediction.normal_bytes, prediction.packed_bytes) == measured(model, x)


def test_predicting_inside_other_contexts_disturbs_neither() -> None:
    model, x = convnet(), images()
    expected = measured(model, x)
    with division.compress("lossless") as context, division.attach(model, "none") as handle:
        prediction = division.predict(model, x)
    assert (prediction.normal_bytes, prediction.packed_bytes) == expected
    assert context.report.records == []
    assert not handle.report.records


def test_parts_may_have_methods_of_their_own() -> None:
    model, x = convnet(), images()
    whole, part = division.predict(model, x), division.predict(model, x, {"3": Division(), "5": "lossless"})
    assert whole.packed_bytes < part.packed_bytes
    assert whole.normal_bytes == part.normal_bytes
    assert division.predict(model, x, skip="*").packed_bytes == whole.normal_bytes
    assert division.predict(model, x, only=["3", "4", "5", "6"]).packed_bytes < whole.normal_bytes


def test_a_batch_that_takes_a_gradient_counts() -> None:
    model, x = convnet(), images().requires_grad_()
    prediction = division.predict(model, x)
    assert (prediction.normal_bytes, prediction.packed_bytes) == measured(model, x)
    assert prediction.normal_bytes >= division.predict(model, x.detach()).normal_bytes


def test_numbers_are_inputs_where_the_model_takes_them() -> None:
    class Making(nn.Linear):
        def forward(self, count: int, scale: int) -> Tensor:  # type: ignore[override]
            return super().forward(scale * torch.ones(count, 4)).tanh()

    assert division.predict(Making(4, 2), (8, 3)).normal_bytes == 4 * (8 * 4 + 8 * 2)


def test_a_prediction_reads_as_one_line() -> None:
    found = division.predict(convnet(), images())
    assert repr(found) == (
        f"Prediction(normal_bytes={found.normal_bytes}, packed_bytes={found.packed_bytes}, ratio={found.ratio:.2f})"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"inputs": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, TypeError, "got a batch of uint8.*floating"),
        ({"inputs": torch.zeros(2, 3, 8, 8, dtype=torch.int64)}, TypeError, "got a batch of int64.*floating"),
        ({"inputs": torch.zeros(2, 5, 8, 8)}, RuntimeError, "channels"),
        (
            {"inputs": (8, 3, 16, 16)},
            TypeError,
            r"got the numbers 8, 3, 16, 16 .* such as torch.empty\(8, 3, 16, 16, dev",
        ),
        ({"inputs": [8, 3]}, TypeError, "expected tensors"),
        ({"inputs": torch.Size((8, 3))}, TypeError, "expected tensors"),
        ({"inputs": (8, images())}, TypeError, "positional argument"),
        ({"method": "divison"}, ValueError, "lossless"),
        ({"method": Division}, TypeError, "Division"),
        ({"only": "nope"}, ValueError, "matches nothing"),
        ({"model": "resnet18"}, TypeError, "expected a torch.nn.Module"),
        ({"model": lambda: 3}, TypeError, "expected a torch.nn.Module"),
        ({"model": None}, TypeError, "expected a torch.nn.Module"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    model, before = convnet(), torch.get_rng_state()
    with pytest.raises(error, match=message):
        division.predict(**{"model": model, "inputs": images(), **arguments})
    assert torch.equal(before, torch.get_rng_state())
    assert type(convnet()(images())) is Tensor


@dataclass(frozen=True)
class NonZeros(Codec):
    """A bit for each element, and those that aren't zero: more or fewer bytes with what it holds."""

    name: ClassVar[str] = "non_zeros"
    promises: ClassVar[frozenset[str]] = frozenset({"exact"})

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        return self.least_bytes(size, dtype) + prod(size) * dtype.itemsize

    def least_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        return -(-prod(size) // 8)

    def encode(self, x: Tensor, seed: int) -> Packed:
        bits = torch.empty(self.least_bytes(x.shape, x.dtype), dtype=torch.uint8)
        return packed_like(x, (bits, x.reshape(-1) if is_fake(x) else x[x != 0]))

    def decode(self, packed: Packed) -> Tensor:
        raise NotImplementedError

    @classmethod
    def examples(cls) -> list[Codec]:
        return [cls()]


@dataclass(frozen=True)
class Sparse(Learning):
    """Keeps inputs of convolutions so."""

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return NonZeros() if reading.use is Use.LINEAR else Division().lossy(reading, saved)


def test_bytes_that_depend_on_values_are_an_interval_until_they_were_seen() -> None:
    model, x, method = convnet(16), images(4, 3, 32, 32), Sparse()
    fixed = division.predict(model, x)
    prediction = division.predict(model, x, method)
    raw, packed = measured(model, x, method=Sparse())
    assert (fixed.basis, prediction.basis) == ("shapes", "interval")
    assert fixed.least_bytes == fixed.packed_bytes
    assert 0 < prediction.least_bytes < packed < prediction.packed_bytes <= prediction.normal_bytes == raw
    assert f"least_bytes={prediction.least_bytes}" in repr(prediction)
    with division.attach(model, method) as handle, handle.step():
        model(x)
    assert handle.report.least_bytes == handle.report.packed_bytes
    recorded = division.predict(model, x, method)
    assert recorded.basis == "recorded"
    assert recorded.packed_bytes == recorded.least_bytes == handle.report.packed_bytes
    twice = division.predict(model, torch.cat([x, x]), method)
    assert twice.packed_bytes == pytest.approx(2 * recorded.packed_bytes, rel=0.01)


class Masked(nn.Module):
    """Two linear layers, and a buffer of two dims behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("mask", torch.ones(4, 4).tril())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]


def test_a_workspace_that_shapes_do_not_tell_is_warned_of() -> None:
    model, x = nn.LSTM(16, 32, batch_first=True), torch.randn(6, 12, 16)
    with division.compress("none") as context:
        model(x)
    if not any(r.node == "MkldnnRnnLayerBackward0" for r in context.report.records):
        pytest.skip("oneDNN doesn't run it here")
    with pytest.warns(UserWarning, match="not known from shapes"):
        division.predict(model, x, "none", loss=lambda out: out[0].sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measured = division.predict(model, x, "none", measure=True)
    assert measured.normal_bytes == context.report.raw_bytes


@pytest.mark.parametrize("parametrized", [False, True])
def test_the_last_parameter_is_no_buffer(parametrized: bool) -> None:
    model, x = Masked(), torch.randn(64, 64)
    if parametrized:
        nn.utils.parametrizations.orthogonal(model.first)
    assert division.predict(model, x, "blpa").packed_bytes == measured(model, x, method="blpa")[1]


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("name", ["ac-gc", "comet"])
def test_what_was_learned_is_found_whether_parameters_have_names_or_numbers(name: str, bound: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    method, x = division.methods.find(name), images(8, 3, 14, 14)
    context = division.compress(method, model=model if bound else None)
    for _ in range(14):
        with context:
            loss = model(x).square().mean()
        loss.backward()
    before, report = method.state_dict(), context.report
    for measure in (False, True):
        prediction = division.predict(model, x, method, loss=lambda y: y.square().mean(), measure=measure)
        assert prediction.packed_bytes == pytest.approx(report.packed_bytes - measure * report.learning_bytes, rel=0.01)
    assert division.predict(model, x, method).basis == ("shapes" if name == "ac-gc" else "recorded")
    assert method.state_dict() == before
    if not bound:  # numbers are those of one network's parameters
        assert division.predict(copy.deepcopy(model), x, method).basis == ("shapes" if name == "ac-gc" else "interval")


def test_measuring_runs_the_model_on_the_values_and_leaves_it_as_it_was() -> None:
    model, x = convnet(16).append(nn.BatchNorm1d(4)), images(4, 3, 32, 32)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    prediction = division.predict(model, x, Sparse(), measure=True)
    assert torch.equal(state, torch.get_rng_state())
    assert prediction.basis == "inputs"
    assert (prediction.normal_bytes, prediction.packed_bytes) == measured(model, x, method=Sparse())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_measuring_needs_values() -> None:
    for batch in (torch.empty(4, 3, 32, 32, device="meta"), 3):
        with pytest.raises(TypeError, match="expected a model and a batch with real values"):
            division.predict(convnet(), batch, measure=True)
