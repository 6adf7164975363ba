"""The two ways to open the gate: a file or a kernel argument."""

from __future__ import annotations

from hostrouting.boot.files import exists, read_text
from hostrouting.boot.layout import Layout

ARGUMENT = "hostrouting.gate=off"


def why_open(layout: Layout) -> str | None:
    """Return why the gate admits every start unchecked; None if it checks the starts."""
    if exists(layout.gate_off):
        return f"the file {layout.relative(layout.gate_off)} is there"
    if ARGUMENT in (read_text(layout.of("/proc/cmdline")) or "").split():
        return f"the kernel was started with {ARGUMENT}"
    return None
