"""The command line: `main` is the console script."""

from trimtab.cli.root import main

__all__ = ["main"]
