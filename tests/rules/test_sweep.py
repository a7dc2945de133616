"""Every differentiable op of PyTorch's own database, its saved tensors coded exactly: gradients equal plain ones."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.rules.harness import code_graph, coded

database = pytest.importorskip("torch.testing._internal.common_methods_invocations")
#: Samples of each op; and of each in the full sweep.
QUICK = 1
FULL = 20
#: Their gradients differ between two plain runs as well.
UNSTEADY = frozenset({"empty_like", "empty", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
OPS = [op for op in database.op_db if op.supports_autograd and torch.float32 in op.supported_dtypes("cpu")]


def tensors(value: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]


def gradients(run: Callable[[], Any], inputs: list[Tensor], code: bool) -> list[Tensor | None] | None:
    """Gradients of everything that comes out; None where nothing does that has any."""
    torch.manual_seed(0)
    outputs = [y for y in tensors(run()) if y.grad_fn is not None and y.layout == torch.strided]
    if not outputs:
        return None
    if code:
        seen: set[Any] = set()
        for y in outputs:
            code_graph(y, coded, seen)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in outputs]
    return list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))


def same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.layout != torch.strided:
        return torch.equal(a.to_dense(), b.to_dense())
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return bool((((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())).all())


def samples(op: Any, count: int) -> Iterator[tuple[Callable[[], Any], list[Tensor]]]:
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), count):

        def run(sample: Any = sample) -> Any:
            return op(sample.input, *sample.args, **sample.kwargs)

        inputs = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
        if inputs:
            yield run, inputs


def wrong(op: Any, count: int) -> Iterator[str]:
    for number, (run, inputs) in enumerate(samples(op, count)):
        try:
            plain, again = gradients(run, inputs, False), gradients(run, inputs, False)
        except (RuntimeError, NotImplementedError):  # no gradient for this sample
            continue
        if plain is None or again is None or not all(map(same, plain, again)):
            continue
        got = gradients(run, inputs, True)
        if got is None or not all(map(same, got, plain)):
            yield f"{op.name}, sample {number}"


def sweep(count: int) -> list[str]:
    return [difference for op in OPS if op.name not in UNSTEADY for difference in wrong(op, count)]


@pytest.mark.filterwarnings("ignore")
def test_one_sample_of_every_op() -> None:
    assert len(OPS) > 400
    assert sweep(QUICK) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_samples_of_every_op() -> None:
    assert sweep(FULL) == []
