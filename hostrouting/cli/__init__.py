"""The command line."""

from hostrouting.cli.entry import main

__all__ = ["main"]
