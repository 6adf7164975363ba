"""Print the number of lines, and of lines of code, in each package: ./run lines.

Of scripts and units, only lines of code are counted. Those in awk are also shown separately.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

__all__ = ["code_lines", "main", "script_lines"]

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("hostrouting", "phases")
_EMPTY = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Return the number of lines that aren't blank, a comment or part of a docstring."""
    words = set[int]()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in _EMPTY
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - words)


def script_lines(text: str) -> int:
    """Return the number of a script's lines that aren't blank or a comment."""
    return sum(not line.lstrip().startswith("#") for line in text.splitlines() if line.strip())


def _room(path: Path) -> str:
    """Return the row for a file, for example ``hostrouting/boot`` for a file in that package."""
    package, *inner = path.relative_to(_ROOT).parts[:-1]
    return "/".join((package, *inner[:1]))


def main() -> None:
    """Print the table."""
    lines, code, scripts, awk = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix == ".py":
                source = path.read_text()
                lines[_room(path)] += len(source.splitlines())
                code[_room(path)] += code_lines(source)
            elif path.parent.name == "scripts":
                scripts[_room(path)] += script_lines(path.read_text())
                awk[_room(path)] += script_lines(path.read_text()) if path.suffix == ".awk" else 0
    rows = [f"{'':22}{'Python':>8}{'code':>8}{'scripts':>9}{'awk':>7}"]
    rows += [
        f"{room:22}{lines[room]:8,}{code[room]:8,}{scripts[room] or '':>9}{awk[room] or '':>7}"
        for room in sorted(lines)
    ]
    rows += [f"{'':22}{lines.total():8,}{code.total():8,}{scripts.total():9,}{awk.total():7,}"]
    sys.stdout.write("\n".join((*rows, "")))


if __name__ == "__main__":
    main()
