"""`python -m division.train DIRECTORY`: starts or goes on with the run that DIRECTORY/config.json describes."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from division.train import run, settings
from division.train.errors import RecipeError

if __name__ == "__main__":
    try:
        folder = Path(sys.argv[1])
        run.resume(settings.read(folder / run.CONFIG), folder, Console(stderr=True))
    except RecipeError as error:
        sys.exit(f"division: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
