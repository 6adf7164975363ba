"""Measure how much a reader has to hold in mind.

``./run lines`` prints a row for each package: lines of code, tokens a line, and how many functions
have many decisions. ``./run lint`` passes ``--check``, which fails if a function has more than 15.

A decision is a place where a reader keeps two cases in mind: an ``if``, an ``elif``, a conditional
expression, a loop, each ``for`` and ``if`` of a comprehension, each further operand of ``and`` and
``or``, an ``except`` clause, and a case of a ``match``. ruff's C901 doesn't count those inside
expressions. The function itself counts as one. A nested function counts for itself; a lambda and a
comprehension count for the function around them.

Docstrings, comments and imports aren't code. Of scripts and units, only lines of code are counted;
those in awk are also shown separately.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple, TypeGuard

import attrs

__all__ = ["Density", "complaints", "decisions", "main", "measure", "script_lines"]

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("hostrouting", "phases")

_DECISIONS_MAX = 15

# Functions that have more. The list may only shrink: flatten a function, and remove its name.
_EXCEPTIONS: set[str] = set()

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """A function's qualified name, and its number of decisions."""

    name: str
    decisions: int


@attrs.frozen
class Density:
    """The figures of a module, or the sums of several."""

    lines: int = 0
    tokens: int = 0
    functions: tuple[Function, ...] = ()

    def __add__(self, other: Density) -> Density:
        """Return the sums of both."""
        return Density(
            self.lines + other.lines,
            self.tokens + other.tokens,
            self.functions + other.functions,
        )

    def row(self) -> str:
        """Return the columns of a row in the table."""
        counts = [function.decisions for function in self.functions]
        a_line = self.tokens / max(self.lines, 1)
        above_10 = sum(count > 10 for count in counts)
        above_15 = sum(count > 15 for count in counts)
        figures = f"{self.lines:8,}{self.tokens:9,}{a_line:8.1f}{len(counts):11,}"
        return f"{figures}{above_10:6}{above_15:6}{max(counts, default=0):6}"


def decisions(function: _Definition) -> int:
    """Return the number of a function's decisions, without those of functions defined in it."""
    count = 1
    unread = list(ast.iter_child_nodes(function))
    while unread:
        node = unread.pop()
        if isinstance(node, _Definition | ast.ClassDef):
            continue
        if isinstance(node, _BRANCHES):
            count += 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        unread.extend(ast.iter_child_nodes(node))
    return count


def measure(source: str, module: str) -> Density:
    """Return the figures of a module, whose name begins the names of its functions."""
    tree = ast.parse(source)
    skipped = _lines_without_code(tree)
    lines = set[int]()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE and token.start[0] not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
            tokens += 1
    return Density(len(lines), tokens, tuple(_functions(tree, module)))


def _lines_without_code(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines with docstrings and imports."""
    found = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _functions(node: ast.AST, path: str) -> Iterator[Function]:
    """Yield each function below a node, whose own qualified name is the path."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Definition | ast.ClassDef):
            yield from _functions(child, path)
            continue
        name = f"{path}.{child.name}"
        if isinstance(child, _Definition):
            yield Function(name, decisions(child))
        yield from _functions(child, name)


def complaints(functions: Sequence[Function], exceptions: AbstractSet[str]) -> list[str]:
    """Return a line for each function above the limit, and for each outdated exception."""
    above = {function for function in functions if function.decisions > _DECISIONS_MAX}
    too_many = [
        f"{name} has {count} decisions, and may have {_DECISIONS_MAX}: flatten it, or split it"
        for name, count in sorted(above)
        if name not in exceptions
    ]
    outdated = exceptions - {function.name for function in above}
    too_many += [
        f"{name} has at most {_DECISIONS_MAX} decisions: remove it from the exceptions"
        for name in sorted(outdated)
    ]
    return too_many


def script_lines(text: str) -> int:
    """Return the number of a script's lines that aren't blank or a comment."""
    return sum(not line.lstrip().startswith("#") for line in text.splitlines() if line.strip())


def _package(path: Path) -> str:
    """Return the row for a file, for example ``hostrouting/boot`` for a file in that package."""
    package, *inner = path.relative_to(_ROOT).parts[:-1]
    return "/".join((package, *inner[:1]))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")


def _measure_all() -> dict[str, Density]:
    """Return the figures of each package."""
    found: dict[str, Density] = {}
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            row = _package(path)
            found[row] = found.get(row, Density()) + measure(path.read_text(), _module(path))
    return found


def _count_scripts() -> tuple[Counter[str], Counter[str]]:
    """Return each package's lines of scripts, and those in awk."""
    scripts, awk = Counter[str](), Counter[str]()
    for path in (_ROOT / "hostrouting").rglob("scripts/*.*"):
        count = script_lines(path.read_text())
        scripts[_package(path)] += count
        if path.suffix == ".awk":
            awk[_package(path)] += count
    return scripts, awk


def _table(packages: Mapping[str, Density]) -> str:
    scripts, awk = _count_scripts()
    columns = (
        f"{'code':>8}{'tokens':>9}{'a line':>8}{'functions':>11}{'>10':>6}{'>15':>6}{'most':>6}"
    )
    rows = [f"{'':22}{columns}{'scripts':>9}{'awk':>7}"]
    for name, density in sorted(packages.items()):
        rows.append(
            f"{name:22}{density.row()}{scripts[name] or '':>9}{awk[name] or '':>7}".rstrip()
        )
    total = sum(packages.values(), Density())
    rows.append(f"{'':22}{total.row()}{scripts.total():9,}{awk.total():7,}")
    return "\n".join(rows)


def main() -> int:
    """Print the table, or the complaints; return 1 if there are complaints."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a function has too many")
    options = parser.parse_args()
    packages = _measure_all()
    if not options.check:
        sys.stdout.write(f"{_table(packages)}\n")
        return 0
    found = complaints(sum(packages.values(), Density()).functions, _EXCEPTIONS)
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
