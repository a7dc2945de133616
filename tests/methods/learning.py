"""A method that learns the mean square of every gradient, and records how large its codes came out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from division.codecs.codec import Codec
from division.methods import Division, Method
from division.methods.learned import Learned
from division.methods.method import Gradients, Observer
from division.rules import Reading
from division.saved import Saved


@dataclass(frozen=True)
class Learning(Method):
    """Codes as ``division`` does."""

    name: ClassVar[str] = "learning"
    learns: ClassVar[bool] = True
    learned: Learned = field(default_factory=Learned, init=False, repr=False, compare=False)
    calls: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> None:
        self.learned.sites.bind(parameters)

    def begin_step(self) -> None:
        self.calls.append("begin")
        self.learned.values |= self.learned.seen.read()

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return Division().lossy(reading, saved)

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        site = self.learned.sites.site(saved)
        self.calls.append(str(site))
        if site is None:
            return None
        self.learned.note_bytes(site, saved, packed_bytes)

        def observed(inputs: Gradients, outputs: Gradients) -> None:
            (gradient,) = (g for g in outputs[:1] if g is not None)
            self.learned.seen.add(site, gradient.square().mean())

        return observed

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        return self.learned.expected_bytes(reading, saved)

    def state_dict(self) -> dict[str, Any]:
        return self.learned.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learned.load_state_dict(state, self.name, 1)
