"""What methods that go around another one have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor
from torch.optim import Optimizer

from division.codecs.codec import Codec
from division.methods.method import OTHER, Blocks, Method, Observer, Run
from division.methods.none import Nothing
from division.rules import Reading
from division.saved import Saved


@dataclass(frozen=True)
class Around(Method):
    """Base of the methods that go around another one: all that they don't say otherwise is the other's.

    Args:
        method: the other one.

    Raises:
        TypeError: no method.
        ValueError: one of this kind is inside already.
    """

    suffix: ClassVar[str] = OTHER
    verb: ClassVar[str] = "go around"
    method: Method = field(default_factory=Nothing)

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise TypeError(f"got {self.method!r} to {self.verb}, expected a method, such as Division()")
        inner: Method = self.method
        while isinstance(inner, Around):
            if type(inner) is type(self):
                raise ValueError(
                    f"got {self.method!r} to {self.verb}, which is or holds a method {self.name!r} itself, expected one without"
                )
            inner = inner.method

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        """The other method's."""
        return self.method.codec(reading, saved)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The other method's."""
        return self.method.lossy(reading, saved)

    @property
    def settling(self) -> bool:
        """As the other method."""
        return self.method.settling

    @property
    def kind(self) -> str:
        """With that of the other method."""
        return f"{type(self).__name__}({self.method.kind})"

    @property
    def learns(self) -> bool:  # type: ignore[override]
        """As the other method does."""
        return self.method.learns

    @property
    def blocks(self) -> Blocks | None:  # type: ignore[override]
        """As the other method does."""
        return self.method.blocks

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> None:
        """Hands them to the other method."""
        self.method.bind(parameters, optimizer)

    def begin_step(self) -> None:
        """Tells the other method."""
        self.method.begin_step()

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        """The other method's."""
        return self.method.observe(reading, saved, packed_bytes)

    def wants_step(self) -> bool:
        """As the other method does."""
        return self.method.wants_step()

    def calibrate(self, run: Run) -> None:
        """Lets the other method measure, without what goes around it."""
        self.method.calibrate(run)

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        """The other method's."""
        return self.method.expected_bytes(reading, saved)

    def state_dict(self) -> dict[str, Any]:
        """What the other method learned."""
        return self.method.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hands it to the other method."""
        self.method.load_state_dict(state)

    @classmethod
    def around(cls, method: Method) -> Self:
        """With that method inside."""
        return cls(method)
