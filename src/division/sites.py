"""Names for the places in a network where tensors are saved, so that what is learned there is found again."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from division.saved import Saved, is_disguise

_ACCUMULATE = "AccumulateGrad"
_FARTHEST = 64  # nodes between a saved tensor and the nearest parameter before it
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module)(?=\.)")
_NUMBERED = re.compile(r"parameter (\d+) ")


class Sites:
    """Names each saved tensor by the parameter at work there and the operations behind that.

    A site is ``"bn1.weight: NativeBatchNormBackward0 ReluBackward0.result"``: what a ``ReluBackward0`` saved as ``result``,
    its input made by a ``NativeBatchNormBackward0`` with the parameter ``bn1.weight``. It is the same in every step, whatever else the step does. Operations that
    share a parameter, such as the steps of a recurrent cell, share a site.

    Parameters have the names that :meth:`bind` gave them; the others are numbered as they are met, ``"parameter 0 (8, 3,
    3, 3)"``, which is the same in the next process as long as the program is.
    """

    def __init__(self) -> None:
        self._names: Any = WeakIdKeyDictionary()
        self._copied: Any = WeakIdKeyDictionary()  # what the original of a copy calls them, whose numbers go by that
        self._met = 0
        self._bound: frozenset[str] = frozenset()
        self._learned: tuple[str, ...] = ()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._expected: dict[int, str] = {}

    def bind(self, parameters: Mapping[str, Tensor]) -> None:
        """Take over the names of a model's parameters, without what wrappers put before them (``module.``).

        Raises:
            ValueError: what was loaded is of another model, or another model with parameters of these names is bound.
        """
        own = {plain_name(name): parameter for name, parameter in parameters.items()}
        known = self._names.items()
        before = {name: parameter for parameter, name in known if name in own and parameter not in self._copied}
        if before and not any(own[name] is parameter for name, parameter in before.items()):
            raise ValueError(
                f"got one method for two models, both with a parameter {min(before)!r}: expected a method object for each,"
                " for what it learns goes by these names"
            )
        self._check_all(self._learned, self._shapes, {name: tuple(x.shape) for name, x in own.items()}, frozenset(own))
        for name, parameter in own.items():
            self._names[parameter] = name
        self._bound = frozenset(name for name in self._names.values() if not _NUMBERED.match(name))

    def site(self, saved: Saved) -> str | None:
        """The name of the place of a saved tensor; None if no parameter is at work there or before.

        Raises:
            ValueError: what was loaded is of another model.
        """
        node, path = saved.grad_fn, [saved.node]
        for _ in range(_FARTHEST):
            if node is None:
                return None
            parameter = self.parameter_of(node)
            if parameter is not None:
                return f"{self.name(parameter)}: {' '.join(reversed(path))}.{saved.field}"
            node = next((source for source, _ in node.next_functions if source is not None), None)
            if node is not None and not is_disguise(node.name()):
                path.append(node.name())
        return None

    def parameter_of(self, node: Any) -> Tensor | None:
        """The parameter that an operation works with: of several the one of most dims, its weight."""
        found: Tensor | None = None
        for source, _ in node.next_functions:
            while source is not None and is_disguise(source.name()):
                sources = source.next_functions
                source = sources[0][0] if sources else None  # noqa: PLW2901
            if source is None or not source.name().endswith(_ACCUMULATE):
                continue
            leaf = source.variable
            if (isinstance(leaf, Parameter) or leaf in self._names) and (found is None or leaf.dim() > found.dim()):
                found = leaf
        return found

    def root(self, site: str, saved: Saved) -> str:
        """The site at which these names first met the tensor of ``site`` in this step: whose code all share."""
        made_by: Any = saved.tensor.grad_fn
        if made_by is None:
            return site
        return str(made_by.metadata.setdefault((self, saved.tensor.output_nr), site))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter that is known, by its name; as they were loaded, as long as none is."""
        known = {name: tuple(parameter.shape) for parameter, name in self._names.items()}
        return dict(sorted((known or self._shapes).items()))

    def expect(self, sites: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Check that sites that were learned elsewhere are of this network, as far as it is known; and remember them.

        Args:
            sites: the sites.
            shapes: of the parameters that were known there, as by :meth:`shapes`.

        Raises:
            ValueError: a parameter that the bound model hasn't or that has another shape, or another one by that number.
        """
        learned = tuple(dict.fromkeys(map(parameter_name, sites)))
        self._check_all(learned, shapes, {name: tuple(x.shape) for x, name in self._names.items()}, self._bound)
        self._learned, self._shapes, self._expected = learned, dict(shapes), _numbered((*shapes, *learned))

    @staticmethod
    def _check_all(
        learned: Sequence[str], shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, tuple[int, ...]],
        bound: frozenset[str],
    ) -> None:  # fmt: skip
        for name in learned:
            if bound and not _NUMBERED.match(name) and name not in bound:
                raise ValueError(
                    f"got a learned state with parameter {name!r}, which this model hasn't: expected that of a model with"
                    f" {', '.join(sorted(bound)[:3])}, …; make a new method, without a state, if the model is another"
                )
        for name in known:
            # What has one dim may be the shard of a parameter, which differs by rank.
            of, own = shapes.get(name, ()), known[name]
            if len(of) > 1 and len(own) > 1 and of != own:
                raise ValueError(
                    f"got a learned state of another model: {name!r} has shape {of} there and {own} here; make a new"
                    " method, without a state, if the model is another"
                )
        expected = _numbered((*shapes, *learned))
        for name in known:
            _check_number(name, expected)

    def name(self, parameter: Tensor) -> str:
        """What a parameter is called here: by its number, if it was met before it was bound."""
        name = self._copied.get(parameter) or self._names.get(parameter)
        if name is None:
            name = f"parameter {self._met} {tuple(parameter.shape)}"
            _check_number(name, self._expected)
            self._names[parameter] = name
            self._met += 1
        return str(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Sites":
        """Parameters are held weakly: a copy knows those that were copied before it, by these names."""
        new = Sites()
        for parameter in self._names:
            if id(parameter) in memo:
                new._names[memo[id(parameter)]] = new._copied[memo[id(parameter)]] = self.name(parameter)
        if len(new._names):
            new._met, new._bound = self._met, self._bound
            new._learned, new._shapes, new._expected = self._learned, self._shapes, self._expected
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {}  # parameters are held weakly: a copy meets its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


def parameter_name(site: str) -> str:
    """The parameter of a site.

    Example:
        >>> parameter_name("layer1.weight: ConvolutionBackward0.input")
        'layer1.weight'
    """
    return site.partition(": ")[0]


def _numbered(names: Iterable[str]) -> dict[int, str]:
    found = ((_NUMBERED.match(name), name) for name in names)
    return {int(number[1]): name for number, name in found if number is not None}


def _check_number(name: str, expected: Mapping[int, str]) -> None:
    number = _NUMBERED.match(name)
    if number is not None and (other := expected.get(int(number[1]), name)) != name:
        raise ValueError(
            f"got a learned state of another model: it has {other} where this network has {name}; expected the"
            " state of this network, with the same parameters in the same order"
        )


def plain_name(name: str) -> str:
    """A parameter's name without what ``DistributedDataParallel``, ``torch.compile`` and FSDP put before it.

    Example:
        >>> plain_name("module._orig_mod.layer1.weight")
        'layer1.weight'
    """
    return _WRAPPERS.sub("", name).removeprefix(".")
