"""Every differentiable op of PyTorch's own database: gradients with exact codes equal plain ones, bit for bit."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import division
from tests.rules.harness import code_graph, coded

database = pytest.importorskip("torch.testing._internal.common_methods_invocations")
OPS = [op for op in database.op_db if op.supports_autograd]
Run = Callable[[], Any]
Gradients = list[Tensor | None]
pytestmark = pytest.mark.filterwarnings("ignore")


def tensors(value: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]


def outputs_of(run: Run) -> list[Tensor]:
    """The strided results that have a gradient, of a run with the same random numbers always."""
    torch.default_generator.manual_seed(0)
    return [y for y in tensors(run()) if y.grad_fn is not None and y.layout == torch.strided]


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> Gradients:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in outputs]
    return list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))


def plain(run: Run, inputs: list[Tensor]) -> Gradients | None:
    """None where nothing comes out that has a gradient."""
    outputs = outputs_of(run)
    return gradients(outputs, inputs) if outputs else None


def by_the_rules(run: Run, inputs: list[Tensor]) -> Gradients:
    """Every rule alone, on everything: exact codes where there are any, copies for the other uses."""
    outputs = outputs_of(run)
    seen: set[Any] = set()
    for y in outputs:
        code_graph(y, coded, seen)
    return gradients(outputs, inputs)


def by_the_method(method: str) -> Callable[[Run, list[Tensor]], Gradients]:
    """With the library itself."""

    def way(run: Run, inputs: list[Tensor]) -> Gradients:
        with division.compress(method, seed=0, inputs=True):
            outputs = outputs_of(run)
        return gradients(outputs, inputs)

    return way


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Bit for bit; any NaN equals any NaN."""
    if a is None or b is None:
        return a is b
    if a.layout != torch.strided:
        return torch.equal(a.to_dense(), b.to_dense())
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    equal = ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
    return a.dtype == b.dtype and a.stride() == b.stride() and bool(equal.all())


def alike(a: Tensor | None, b: Tensor | None) -> bool:
    """Of the same kind, and finite where ``b`` is."""
    if a is None or b is None:
        return a is b
    if a.layout != torch.strided or b.layout != torch.strided:
        return a.layout == b.layout and alike(a.to_dense(), b.to_dense())
    kinds = [(x.shape, x.dtype, x.stride()) for x in (a, b)]
    return kinds[0] == kinds[1] and bool((a.isfinite() | ~b.isfinite()).all())


def samples(op: Any, dtype: torch.dtype) -> Iterator[tuple[Run, list[Tensor], Gradients]]:
    """(how to run it, its inputs, plain gradients) of each sample that has gradients."""
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):

        def run(sample: Any = sample) -> Any:
            return op(sample.input, *sample.args, **sample.kwargs)

        inputs = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
        if not inputs:
            continue
        with contextlib.suppress(RuntimeError, NotImplementedError):  # no gradient for this sample
            expected = plain(run, inputs)
            if expected is not None:
                yield run, inputs, expected


def sweep(
    dtype: torch.dtype, ways: list[Callable[[Run, list[Tensor]], Gradients]], agree: Callable[..., bool]
) -> tuple[Counter[str], list[str]]:
    """How many samples of each op were tried, and those whose gradients in one of the ways don't agree.

    A sample that two plain runs don't agree on, such as one of uninitialised memory, is left out.
    """
    tried: Counter[str] = Counter()
    unsteady: set[str] = set()
    wrong = []
    for op in OPS:
        if dtype not in op.supported_backward_dtypes("cpu"):
            continue
        name = f"{op.name} {op.variant_test_name}".strip()
        for run, inputs, expected in samples(op, dtype):
            results = [all(map(agree, way(run, inputs), expected)) for way in ways]
            if not all(results) and not all(map(agree, plain(run, inputs) or (), expected)):
                unsteady.add(name)
                continue
            tried[name] += 1
            wrong += [f"{name}, sample {tried[name]}, way {i}" for i, right in enumerate(results) if not right]
    print(f"{dtype}: {len(tried)} ops, {tried.total()} samples; unsteady: {sorted(unsteady)}")
    return tried, wrong


def test_every_op_with_exact_codes() -> None:
    tried, wrong = sweep(torch.float32, [by_the_rules, by_the_method("lossless")], same)
    assert wrong == []
    assert len(tried) > 400
    assert tried.total() > 10_000


@pytest.mark.slow
def test_every_op_with_exact_codes_in_bfloat16() -> None:
    tried, wrong = sweep(torch.bfloat16, [by_the_rules, by_the_method("lossless")], same)
    assert wrong == []
    assert len(tried) > 300


@pytest.mark.slow
def test_every_op_with_lossy_codes() -> None:
    tried, wrong = sweep(torch.float32, [by_the_method("division")], alike)
    assert wrong == []
    assert len(tried) > 400
