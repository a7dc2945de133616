"""`python -m division`: the command line."""

from __future__ import annotations

from division.cli import main

if __name__ == "__main__":
    main()
