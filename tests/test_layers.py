"""The direction of imports and the bans, read from the sources without importing them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "division"
SOURCES = sorted(SRC.rglob("*.py"))

#: Lowest first: a module may import from its own layer and from those before it.
LAYERS = (
    "private",
    "seeds",
    "ranks",
    "kernels",
    "codecs",
    "rules",
    "nodes",
    "account",
    "code",
    "saved",
    "sites",
    "methods",
    "recompute",
    "scope",
    "calibrate",
    "blocks",
    "call",
    "rerun",
    "compress",
    "attach",
    "predict",
    "variance",
    "train",
    "bench",
    "doctor",
    "cli",
)
#: Outside the order: they gather what is public.
GATHER = ("__init__", "__main__")
#: Users of the library: what they take from it is public, the package itself or one of these.
PUBLIC_ONLY = ("train", "cli")
PUBLIC = ("division", "methods", "train", "bench", "doctor", "cli")
#: Users that look inside, each at the parts it measures or tells of, besides what is public.
INSIDE = {"bench": ("codecs", "kernels"), "doctor": ("kernels", "nodes")}
#: Public functions with the name of the module that holds them: `from division import compress` gives the function.
VERBS = ("compress", "attach", "predict", "recompute")
#: Files that may read private names of torch, each with the prefixes it may read ("torch" is all of them).
PRIVATE_TORCH = {"private.py": ("torch",)}
MOST_LINES = 400


def layer_of(path: Path) -> str:
    """The layer a file of the package belongs to: its folder or its own name, directly under the package."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def package_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(top name under division, or "division" for the package itself; last name) of each import from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            dotted = [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in dotted:
            parts = name.split(".")
            if parts[0] != "division":
                continue
            from_package = isinstance(node, ast.ImportFrom) and node.module == "division"
            is_module = len(parts) > 1 and (parts[1] in LAYERS or len(parts) > 2)
            is_module = is_module and not (from_package and parts[1] in VERBS)
            yield (parts[1] if is_module else "division"), parts[-1]


def wrong_imports(layer: str, source: str) -> list[str]:
    """What a source of this layer imports from the package against the rules."""
    if layer in GATHER:
        return []
    if layer not in LAYERS:
        return [f"{layer} is in no layer: give it a place in LAYERS"]
    wrong = []
    for top, name in package_imports(ast.parse(source)):
        if layer in PUBLIC_ONLY or layer in INSIDE:
            if top not in (*PUBLIC, *INSIDE.get(layer, ())) or (
                name.startswith("_") and not name.startswith("__") and top != layer
            ):
                wrong.append(f"{layer} uses public names and its own parts only, not {top}: {name}")
        elif top == "division":
            wrong.append(f"{layer} imports the package itself, which imports it: {name}")
        if top in LAYERS and LAYERS.index(top) > LAYERS.index(layer):
            wrong.append(f"{layer} is below {top}: {name}")
    return wrong


def private_torch_names(source: str) -> set[str]:
    """Every dotted name of torch in a source with a part that begins with one underscore."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            bound |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names if alias.asname}
            bound |= {alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names if not alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        parts = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in bound:
            names.add(".".join([bound[inner.id], *reversed(parts)]))
    return {n for n in names if n.split(".")[0] == "torch" and re.search(r"\._(?!_)", n)}


def bans(layer: str, source: str) -> list[str]:
    """What a source holds that the project does without."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and re.search(r"(Manager|Helper|Engine)$", node.name):
            found.append(f"line {node.lineno}: class {node.name} is named for no thing it is")
        if isinstance(node, ast.Name) and node.id == "print" and layer not in PUBLIC_ONLY:
            found.append(f"line {node.lineno}: print in the library")
    found += [
        f"line {number}: an open end left in the source"
        for number, line in enumerate(source.splitlines(), 1)
        if re.search(r"#\s*(TODO|FIXME|XXX)\b", line)
    ]
    if (lines := source.count("\n")) > MOST_LINES:
        found.append(f"{lines} lines, more than {MOST_LINES}")
    return found


def named(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def test_the_sources_are_found() -> None:
    assert SRC / "__init__.py" in SOURCES


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_go_one_way(path: Path) -> None:
    assert wrong_imports(layer_of(path), path.read_text()) == []


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_private_names_of_torch_are_read_in_one_place(path: Path) -> None:
    allowed = PRIVATE_TORCH.get(named(path), ())
    names = private_torch_names(path.read_text())
    assert {name for name in names if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)} == set()


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_source_holds_nothing_banned(path: Path) -> None:
    assert path.name != "utils.py"
    assert bans(layer_of(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("layer", "source", "count"),
    [
        ("kernels", "import torch\nfrom division.kernels import ops", 0),
        ("kernels", "from division.codecs.dual import Dual", 1),
        ("kernels", "def f():\n    import division.saved", 1),
        ("codecs", "from division.kernels import noise\nfrom division.codecs.codec import Codec", 0),
        ("rules", "from division import nodes", 1),
        ("saved", "import division", 1),
        ("saved", "from division import compress", 1),
        ("train", "import division\nfrom division import attach, compress\nfrom division.methods import Division", 0),
        ("train", "from division.compress import compress", 1),
        ("train", "from division import nodes", 1),
        ("train", "from division.saved import Saved", 1),
        ("train", "from division.methods.division import _private", 1),
        ("train", "from division.cli import main", 1),
        ("cli", "from division.train.loop import train\nimport rich", 0),
        ("cli", "import division.nodes", 1),
        ("cli", "from division.kernels import ops", 1),
        ("cli", "from division import doctor\nfrom division.bench import rows", 0),
        ("bench", "from division.codecs import Dual\nfrom division.kernels.cpu import library\nimport division", 0),
        ("bench", "from division.kernels.ops import _library", 1),
        ("bench", "from division.scope import Scope", 1),
        ("bench", "from division import doctor", 1),
        ("train", "from division.bench.rows import provenance", 1),
        ("doctor", "from division.nodes import HAS_HOOK\nfrom division.bench.rows import provenance", 0),
        ("doctor", "from division.codecs import Dual", 1),
        ("__init__", "from division.cli import main", 0),
        ("odds_and_ends", "import torch", 1),
    ],
)
def test_wrong_imports_are_seen(layer: str, source: str, count: int) -> None:
    assert len(wrong_imports(layer, source)) == count


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch.nn.functional.relu(torch.ones(1))\nx = y._version", set()),
        ("import torch\ntorch._C._nope()", {"torch._C", "torch._C._nope"}),
        ("from torch._subclasses import FakeTensorMode", {"torch._subclasses.FakeTensorMode"}),
        ("from torch import _C as c", {"torch._C"}),
        ("import torch.utils._pytree as tree", {"torch.utils._pytree"}),
        ("from torch.utils import data\ndata._utils", {"torch.utils.data._utils"}),
        ("import torch\ntorch.Tensor.__torch_function__", set()),
    ],
)
def test_private_names_are_seen(source: str, names: set[str]) -> None:
    assert private_torch_names(source) == names


@pytest.mark.parametrize(
    ("layer", "source", "count"),
    [
        ("saved", "class Saved: ...", 0),
        ("saved", "class SavedManager: ...\nclass CodecHelper: ...\nclass Engine: ...", 3),
        ("saved", "print(1)", 1),
        ("cli", "print(1)", 0),
        ("saved", "x = 1  # TODO" + " later", 1),
        ("saved", "\n" * MOST_LINES, 0),
        ("saved", "\n" * (MOST_LINES + 1), 1),
    ],
)
def test_bans_are_seen(layer: str, source: str, count: int) -> None:
    assert len(bans(layer, source)) == count
