"""Write the pages of the commands and the config, and the tables of public names:  ./run docs.

Their only sources are ``--help`` and docstrings. Sphinx turns them into pages of the site and into
the man pages hostrouting(1) and hostrouting-config(5).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs

import hostrouting
from hostrouting import (
    Config,
    ExpectedCidr,
    Keep,
    RouteOverlap,
    StaticRoute,
    StaticRoutes,
    StaticRule,
    cli,
)
from hostrouting.azure import HostNetworking, StaleAzureVnet
from hostrouting.config.validation import Section, key_fields
from hostrouting.model.jsonable import json_key

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent / "reference"
WIDE = "120"

COMMANDS = """\
<!-- Made by docs/make_reference.py from --help; edits are lost. -->

# The command line

## Synopsis

`hostrouting` \\[`-v`\\] *COMMAND* \\[*ARGUMENT* …\\]

## Description

{description}

Each command explains itself with `--help`, in the words of this page. `python -m hostrouting` is
the same program.

## Commands

{commands}

## Exit status

0
: the command did what was asked.

1
: the command failed; `check`, `judge` or `explain` found a failure; `fix` found one that no route
fixes; `fix` or `judge` found that `apply` would fail; `diff` found a difference; `doctor` found
something broken, or couldn't examine it.

2
: `check`, `fix`, `explain`, `judge` and `diff` reached no verdict; `plan`, `lb-probe plan` and
`azure-vnet plan` found something to change.

3
: `check --output nagios` has no verdict. It exits with 1 on a failure in WARN mode, on the
note `MOVED`, if a start would be held or the gate is off, and with 2 on a failure in STRICT mode.

64
: the arguments are wrong.

74
: the command did its work, but could not write its output.

77
: the user may not do this: run the command as root.

78
: the config is missing or wrong.

## Environment

`NO_COLOR`, `FORCE_COLOR`
: switch colours off or on; without either a terminal gets colours and a pipe gets none.

`COLUMNS`
: the width of help, where it isn't the terminal's.

## Files

`/etc/aks-flex-node/config.json`
: the config, see hostrouting-config(5).

`/etc/hostrouting/installed.json`
: the manifest: what is installed, and the config that it was made of.

`/etc/hostrouting/gate.off`
: while this file exists, the gate lets every start through.

`/run/aks-flex-node/route-overlap.ok`, `/run/aks-flex-node/route-overlap.detected`
: the verdict of the last check; exactly one of the two exists after a check.

`/run/aks-flex-node/route-overlap.json`
: the report of the last check that failed.

## See also

hostrouting-config(5), ip-route(8), ip-rule(8), systemd-nspawn(1)
"""

CONFIG = """\
<!-- Made by docs/make_reference.py from the config's classes; edits are lost. -->

# The config

## Description

hostrouting reads the keys `hostRouting` and `hostNetworking` of `/etc/aks-flex-node/config.json`,
or of the file that the command line names. Other keys at the top of the document belong to other
components, and hostrouting ignores them; only `check` compares `node.kubelet.nodeIP` and
`networking.dnsServiceIP` with the host, and notes a difference. Inside its two keys an unknown or a
duplicate key is an error. So is a key at the top that is probably a misspelt `hostRouting`.
hostrouting reports all problems of a config at once, each with its path. A key whose value is
`null` counts as missing, as does an empty `gateway`, `dev` or `mode`.

## Example

```json
{example}
```

## Keys

{sections}
## See also

hostrouting(1)
"""

EXAMPLE = """\
{"hostRouting": {
  "waitSeconds": 30,
  "staticRoutes": {"enabled": true,
    "routes": [
      {"destination": "172.16.1.0/24"},
      {"destination": "172.16.2.0/24", "gateway": "10.1.0.1",
       "dev": "eth0", "metric": 0}],
    "rules": [{"to": "10.244.0.0/16", "priority": 5269}],
    "keep": ["ib*", {"dev": "eth1", "gateway": "10.2.0.1"}]},
  "routeOverlap": {
    "expectedCidrs": ["172.16.1.0/24", "10.96.0.0/12"],
    "mode": "STRICT"}},
 "hostNetworking": {
  "loadBalancerProbe": {"enabled": true},
  "staleAzureVnet": {"cidrs": ["10.241.0.0/16"]}}}"""


# --- commands -------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return the text of hostrouting(1)."""
    told = _help()
    return COMMANDS.format(
        description=_prose(told["description"]),
        commands="\n\n".join(_command(word) for word in _listed(told)),
    )


def _command(*words: str) -> str:
    told = _help(*words)
    prose, separator, examples = told["description"].partition("\n\n  hostrouting ")
    if prose.endswith(":"):  # it introduces the examples
        prose, separator = told["description"], ""
    parts = [f"### {' '.join(words)}", f"```text\n{_usage(told['usage'])}\n```", _prose(prose)]
    rows = [*_rows(told.get("positional arguments", "")), *_rows(told["options"])]
    known = [(name, said) for name, said in rows if name not in ("-h, --help", "-v, --verbose")]
    if known:
        parts += ["Arguments:", *(f"`{name}`\n: {_marked(said)}" for name, said in known)]
    if separator:
        parts += ["Examples:", _prose(separator.lstrip("\n") + examples)]
    return "\n\n".join([*parts, *(_command(*words, below) for below in _listed(told))])


def _marked(text: str) -> str:
    """Return a text with its options as code, which browsers don't break at a hyphen."""
    return re.sub(
        r"(?<![\w`-])--[a-z][a-z-]*(?: (?:json|nagios|preflight|[A-Z]+)\b)?", r"`\g<0>`", text
    )


def _help(*words: str) -> dict[str, str]:
    """Return the sections of a command's help, by their headings."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, COLUMNS=WIDE):
        assert cli.main([*words, "--help"]) == 0
    usage, _, rest = out.getvalue().partition("\n\n")
    headings = r"\n\n(positional arguments|options|commands|Exit codes):"
    description, *parts = re.split(headings, "\n\n" + rest)
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    return told | {"usage": usage.removeprefix("usage: "), "description": description.strip("\n")}


def _listed(told: dict[str, str]) -> list[str]:
    return [name for name, _ in _rows(told.get("commands", "")) if name != "COMMAND"]


def _rows(part: str) -> Iterator[tuple[str, str]]:
    # If a name is too wide for its column, argparse puts the description on the next line.
    for line in re.sub(r"\n {20,}", "  ", part).splitlines():
        name, _, said = line.strip().partition("  ")
        if name:
            yield name, " ".join(said.split())


def _usage(usage: str) -> str:
    """Wrap a usage line to at most 70 columns, with breaks only between arguments."""
    words = re.findall(r"\[[^]]*\](?:\])?|\S+", re.sub(r" ?\[-[hv]\]", "", usage))
    lines = [""]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > 70:
            lines.append("       ")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)


def _prose(text: str) -> str:
    """Return paragraphs, indented examples with descriptions and verbatim parts as Markdown."""
    parts = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(("  hostrouting ", "  journalctl ")):
            parts += _examples(paragraph)
        elif paragraph.startswith("  "):
            language = "sh" if paragraph.startswith("  { ") else "text"
            parts.append(f"```{language}\n{textwrap.dedent(paragraph)}\n```")
        else:
            parts.append(_marked(paragraph))
    return "\n\n".join(parts)


def _examples(paragraph: str) -> list[str]:
    found: list[list[str]] = []
    for line in paragraph.splitlines():
        if line.startswith(" " * 6):  # the description of a command that fills the line above
            found[-1].append(line.strip())
        else:
            found.append(re.split(r" {2,}", line.strip()))
    return [
        f"`{command}`\n: {_marked(' '.join(said))}" if said else f"```text\n{command}\n```"
        for command, *said in found
    ]


# --- config ---------------------------------------------------------------------------------------


def config_page() -> str:
    """Return the text of hostrouting-config(5)."""
    sections = "".join(
        _section(path, cls)
        for path, cls in (("hostRouting", Config), ("hostNetworking", HostNetworking))
    )
    return re.sub(r"\n{3,}", "\n\n", CONFIG.format(example=EXAMPLE, sections=sections))


# The classes of the items of lists and of optional values. Other sections are the default values of
# their fields.
WITHIN: dict[tuple[type[Section], str], type[Section]] = {
    (StaticRoutes, "routes"): StaticRoute,
    (StaticRoutes, "rules"): StaticRule,
    (StaticRoutes, "keep"): Keep,
    (RouteOverlap, "expected_cidrs"): ExpectedCidr,
    (HostNetworking, "stale_azure_vnet"): StaleAzureVnet,
}


def _section(path: str, cls: type[Section]) -> str:
    said = {json_key(name): words for name, words in arguments(cls).items()}
    keys, below = [], []
    for field in key_fields(cls):
        key = json_key(field.name)
        within = WITHIN.get((cls, field.name)) or (
            type(field.default) if isinstance(field.default, Section) else None
        )
        if key == "consumer" and cls is HostNetworking:  # hostRouting documents it
            continue
        if within is not None:
            below.append(
                _section(f"{path}.{key}{'[]' if isinstance(field.default, tuple) else ''}", within)
            )
        if not isinstance(field.default, Section):
            if key not in said:
                raise SystemExit(f"document {field.name} in {cls.__name__}'s docstring")
            keys.append(f"`{key}` ({_default(field)})\n: {said[key]}")
    heading = f"### {path}\n\n{(inspect.getdoc(cls) or '').partition(chr(10))[0]}\n"
    return "\n".join([heading, *(f"{key}\n" for key in keys), *below, ""])


def arguments(cls: type) -> dict[str, str]:
    """Return the description of each field from the docstring of a class."""
    part = (inspect.getdoc(cls) or "").partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (\w+): ", part, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(said.split()).replace("``", "`")
        for name, said in zip(entries[::2], entries[1::2], strict=True)
    }


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return "required"
    if field.default in ((), None):
        return "default: none"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    if isinstance(value, list):
        return f"default: `{' '.join(value)}`"
    printed = value if isinstance(value, str) and value else json.dumps(value)
    return f"default: `{printed}`"


# --- library --------------------------------------------------------------------------------------

# Sphinx directives, and the table above them, which is for those who read the page in a clone.
_DIRECTIVES = re.compile(
    r"(?:^\| name \|.*\n(?:^\|.*\n)*\n)?^```{eval-rst}\n((?:(?!```).*\n)*)```$", re.MULTILINE
)
# The purposes of public names that have no docstring.
_PURPOSES = {
    "hostrouting.report.CHECKS": "The doctor's checks, in the order in which `examine` runs them.",
    "hostrouting.azure.CHECKS": "The doctor's checks for Azure.",
    "hostrouting.backend.DEFAULT_DESTINATION": "The network 0.0.0.0/0.",
    "hostrouting.backend.EVERYTHING": "The `Selection` of all entries.",
    "hostrouting.backend.Group": "A template, and the prefixes of entries that otherwise equal it.",
    "hostrouting.backend.IpAddress": "An IPv4 or IPv6 address.",
    "hostrouting.backend.IpNetwork": "An IPv4 or IPv6 network.",
    "hostrouting.backend.Prefix": "A network as two numbers: its first address and its length.",
    "hostrouting.backend.Router": "A device and a gateway, each of which may be None.",
    "hostrouting.backend.Sent": "An entry that `lookup` returned, and addresses that it matches.",
}
_DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+).*\n((?:   .*\n)*)", re.MULTILINE)


def library_page() -> str:
    """Return the text of the library's page, with a table above each group of directives."""

    def with_table(found: re.Match[str]) -> str:
        rows = "".join(f"| `{name}` | {summary} |\n" for name, summary in _summaries(found[1]))
        return f"| name | purpose |\n|---|---|\n{rows}\n```{{eval-rst}}\n{found[1]}```"

    return _DIRECTIVES.sub(with_table, (FOLDER / "api.md").read_text(encoding="utf-8"))


def _summaries(directives: str) -> Iterator[tuple[str, str]]:
    """Yield public names and their purposes: those above, or the docstrings' first sentences."""
    for kind, name, options in _DIRECTIVE.findall(directives):
        if kind != "module":
            yield name, _first_sentence(getattr(hostrouting, name))
            continue
        module = importlib.import_module(name)
        told = dict(re.findall(r":([\w-]+): *(.*)", options))
        for each in module.__all__:
            value = getattr(module, each)
            is_told = each not in told.get("exclude-members", "").split(
                ", "
            ) and not each.startswith("_")
            if is_told:
                yield each, _PURPOSES.get(f"{name}.{each}") or _first_sentence(value)


def _first_sentence(value: object) -> str:
    paragraph = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    sentence = re.match(r".*?\.(?= |$)", paragraph)
    return (sentence[0] if sentence else paragraph).replace("``", "`").replace("|", "\\|")


def main(folder: Path = FOLDER) -> None:
    """Write the pages."""
    (folder / "api.md").write_text(library_page(), encoding="utf-8")
    (folder / "commands.md").write_text(commands_page(), encoding="utf-8")
    (folder / "config.md").write_text(config_page(), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
