"""What a method is: a value that picks a codec for each saved tensor, and may learn while training."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from division.codecs.codec import Codec
from division.codecs.logs import Logs
from division.rules import LOSSY, Reading
from division.saved import Saved

#: The suffix of a method that goes around another: the other's name.
OTHER = "<name>"
Gradients = tuple[Tensor | None, ...]
#: Called in backward with the gradients of a node's inputs and of its outputs; keeps neither.
Observer = Callable[[Gradients, Gradients], None]


@dataclass(frozen=True)
class Keeping:
    """An observer that keeps something from forward to backward.

    Attributes:
        observer: what is called.
        nbytes: what it keeps until then.
    """

    observer: Observer
    nbytes: int

    def __call__(self, grad_inputs: Gradients, grad_outputs: Gradients) -> None:
        """Calls it."""
        self.observer(grad_inputs, grad_outputs)


#: Runs a step under another method with this seed of the noise, and returns the gradients of all parameters; each time
#: from the same state: random numbers, running statistics.
Run = Callable[["Method", int], tuple[Tensor, ...]]


class Blocks(NamedTuple):
    """How the blocks of a model are run again in backward.

    Attributes:
        segments: about how many; None for the square root of the number of blocks.
        inputs: makes the codes of what they are run from; None to keep it as it is.
    """

    segments: int | None = None
    inputs: "Method | None" = None


class Method(ABC):
    """Base of all methods; a subclass sits in the file of its name, decorated with ``@register``.

    A method sees the use that backward makes of a saved tensor and its shape, dtype and place, and returns a codec, or
    None to leave it. Uses with an exact code (sign, mask, index, shape) take the rule's own codec unless
    :meth:`codec` is overridden.

    A method that learns is a frozen value all the same: what it learned is kept in a field that takes no part in
    comparisons, by the site of the saved tensor (:class:`division.sites.Sites`). It says ``learns = True`` and is then
    told when a step begins, of each tensor whose values backward reads, and of the gradients there. None of that happens
    where nothing is saved, as under ``no_grad``, nor in a prediction.

    Attributes:
        name: by which it is found.
        suffix: what may follow the name and a dash, such as ``"<bits>"``; "" for nothing.
        learns: whether it learns while training.
        blocks: how it has blocks of the model run again in backward; None where it doesn't.
    """

    name: ClassVar[str]
    suffix: ClassVar[str] = ""
    learns: ClassVar[bool] = False
    blocks: ClassVar[Blocks | None] = None

    @property
    def kind(self) -> str:
        """Whose states it takes over: the name of its class."""
        return type(self).__name__

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        """The codec for one saved tensor; None leaves it as it is."""
        if reading.use not in LOSSY:
            return reading.codec
        codec = self.lossy(reading, saved)
        return Logs(codec) if reading.logs and codec is not None else codec

    @abstractmethod
    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The codec for a tensor whose values backward reads (uses LINEAR and SMOOTH).

        Of logarithms (``reading.logs``) it is that of their exponentials, which are coded instead.
        """

    @classmethod
    def around(cls, method: "Method") -> "Method":
        """This method around another one, where its suffix is ``OTHER``."""
        raise ValueError(f"method {cls.name!r} goes around no other one: got {method!r}")

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> None:
        """Learn the names of the parameters, and who changes them; called where they are known."""
        return

    @property
    def settling(self) -> bool:
        """Whether it keeps more at first than it will once it has learned."""
        return False

    def begin_step(self) -> None:
        """A step's first node was made: what was seen in the steps before may be worked into what comes."""
        return

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        """Look at a tensor whose values backward reads, and ask for the gradients of its node.

        Args:
            reading, saved: as for :meth:`codec`.
            packed_bytes: of its code, 0 of one that is shared; None if the tensor was left.

        Returns:
            what is called with the node's gradients in backward, each time it runs, a :class:`Keeping` if it keeps
            anything until then; None for nothing.
        """
        return None

    def wants_step(self) -> bool:
        """Whether :meth:`calibrate` is due. Asked before each step, where the training loop offers it."""
        return False

    def calibrate(self, run: Run) -> None:
        """Measure what codes do to the gradients of a step, by running it under other methods."""
        return

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        """Bytes of a code by what was learned, for predictions; None where nothing is known, or all codes are fixed."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What the method learned, as plain data; empty for methods that learn nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            ValueError: a state that this method can't have written.
        """
        if not isinstance(state, Mapping) or state:
            raise ValueError(f"method {self.name!r} learns nothing: got state {state!r}, expected an empty one")

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Method":
        """The method from what a command line gives; ``suffix`` is what follows the name and a dash."""
        _refuse(cls.name, block=block, bits=bits)
        return cls()


def _refuse(name: str, **settings: object) -> None:
    given = [f"{key}={value}" for key, value in settings.items() if value is not None]
    if given:
        raise ValueError(f"method {name!r} has no such setting: got {', '.join(given)}, expected none")


METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def register(name: str) -> Callable[[M], M]:
    """Class decorator: makes a method known by a name, everywhere a name is taken.

    Example::

        @register("mine")
        @dataclass(frozen=True)
        class Mine(Method):
            def lossy(self, reading: Reading, saved: Saved) -> Codec | None: ...
    """

    def decorate(method: M) -> M:
        method.name = name
        METHODS[name] = method
        return method

    return decorate
