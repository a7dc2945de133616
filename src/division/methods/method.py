"""What a method is: a value that picks a codec for each saved tensor, and may learn while training."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from division.codecs.codec import Codec
from division.codecs.logs import Logs
from division.rules import LOSSY, Reading
from division.saved import Saved


class Method(ABC):
    """Base of all methods; a subclass sits in the file of its name, decorated with ``@register``.

    A method sees the use that backward makes of a saved tensor and its shape, dtype and place, and returns a codec, or
    None to leave it. Uses with an exact code (sign, mask, index, shape) take the rule's own codec unless
    :meth:`codec` is overridden.
    """

    name: ClassVar[str]

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
