"""``python -m benchmarks``: go where scripts can run without harm, and measure there.

The boot scripts write to /run, so a mount namespace of its own has a fresh one; they call awk by its name, so there it
is mawk, which is Debian's. Both end with this process, and neither costs what is measured anything.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_ENTER = r"""
set -eu
mount -t tmpfs none /run
mkdir "$SCRATCH"
if [ -n "$MAWK" ]; then
  mount --bind "$MAWK" "$(readlink -f "$(command -v awk)")"
fi
unset SCRATCH MAWK
exec "$@"
"""


def main() -> None:
    """Take this process's place."""
    from benchmarks.options import parse
    from benchmarks.worlds import SCRATCH

    parse(sys.argv[1:])
    mawk = shutil.which("mawk")
    # Modules are compiled once, as pip does when it installs them; where nobody says to where, that goes with the rest.
    prefix = os.environ.get("PYTHONPYCACHEPREFIX") or str(SCRATCH / "pycache")
    compiled = {"PYTHONPYCACHEPREFIX": prefix, "PYTHONDONTWRITEBYTECODE": ""}
    places = {"SCRATCH": str(SCRATCH), "MAWK": os.path.realpath(mawk) if mawk else ""}
    environment = os.environ | compiled | places
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    inside = [sys.executable, "-m", "benchmarks.inside", *sys.argv[1:]]
    words = ["unshare", "--mount", "--net", *as_root, "--", "bash", "-c", _ENTER, "bash", *inside]
    os.chdir(Path(__file__).parent.parent)
    os.execvpe("unshare", words, environment)


if __name__ == "__main__":
    main()
