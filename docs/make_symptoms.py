"""Write the pages of symptoms and of incidents from ``tests/incidents``:  ./run docs.

The tests run each case and compare it with its expectation, so the page says what the tool did.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
INCIDENTS = Path(__file__).parents[1] / "tests/incidents"

FIXES = {
    "route": "the routes that it prints",
    "rule": "the rules that it prints",
    "keep": "an interface that `hostrouting fix` offers to keep",
    "command": "an ip command that it prints",
    "answer": "an answer to its question",
    "owner": "the change that it advises",
}

SYMPTOMS = """\
<!-- Made by docs/make_symptoms.py from tests/incidents; edits are lost. -->

# Your symptom

Find what you see, and run the command below it. To see what hostrouting says of your host, name the
addresses that you can't reach. This changes nothing:

```console
$ hostrouting check --cidr 172.16.0.0/16
```

The {all} [public incidents](../reference/incidents.md) of these kinds are rebuilt in the tests.
hostrouting finds {found} of them, and what it says fixes {fixed}. [What it can't
see](../reference/incidents.md#what-it-cant-see) is listed, too.

{contents}
"""

INCIDENTS_HEAD = """\
<!-- Made by docs/make_symptoms.py from tests/incidents; edits are lost. -->

# Public incidents

People have described these {all} incidents in public. Each is rebuilt in the tests, on the real
kernel: `hostrouting check` judges the host, each fix that it prints is applied to a copy of it, and
sockets show where packets leave before and after. **It finds {found} of {all}, and {fixed} of these
are fixed** by what it says:

{fixes}

{noted} more are only mentioned in a note, and {unseen} [aren't seen](#what-it-cant-see). For
{offered} of these, `hostrouting fix` offers to keep an interface, so that it answers its own
callers, and that helps. In {worse} of the incidents, what it prints takes away packets that worked
before, from this host, its pods or other hosts, without naming them. On {healthy} healthy hosts
with several NICs, {harmed} of the printed fixes, or answers to its questions, moves working
traffic.
"""

UNSEEN = """\
## What it can't see

The check asks where the kernel sends packets of this host to the expected CIDRs, and compares the
interface. In these incidents, that was right, or isn't known:

"""


def load(folder: str) -> list[dict[str, Any]]:
    """Return the cases in a folder."""
    return [json.loads(path.read_text()) for path in sorted((INCIDENTS / folder).glob("*.json"))]


def symptoms() -> str:
    """Return the page of symptoms as Markdown."""
    cases, classes = load("cases"), _classes()
    found = [case for case in cases if "why" not in case]
    titles = [about["title"] for about in classes.values()]
    head = SYMPTOMS.format(
        all=len(cases),
        found=len(found),
        fixed=_fixes(found).total(),
        contents="\n".join(f"- [{title}](#{_anchor(title)})" for title in titles),
    )
    return "\n".join([head, *map(_symptom, classes.values())])


def incidents() -> str:
    """Return the page of incidents as Markdown."""
    cases, healthy, classes = load("cases"), load("healthy"), _classes()
    found = [case for case in cases if "why" not in case]
    noted = [case for case in cases if "why" in case and case["expect"]["says"]]
    fixes = _fixes(found)
    harmed = sum(len(case["expect"].get("breaks", ())) for case in healthy)
    head = INCIDENTS_HEAD.format(
        all=len(cases),
        found=len(found),
        fixed=fixes.total(),
        fixes="\n".join(
            f"- {fixes[name]} by {words}" for name, words in FIXES.items() if fixes[name]
        ),
        noted=len(noted),
        offered=sum(case["expect"].get("fixes") == ["keep"] for case in cases if "why" in case),
        unseen=len(cases) - len(found) - len(noted),
        healthy=len(healthy),
        worse=sum("breaks" in case["expect"] for case in cases) or "none",
        harmed=harmed or "none",
    )
    sections = [
        _section(about["title"], [case for case in cases if case["class"] == name])
        for name, about in classes.items()
    ]
    reasons = json.loads((INCIDENTS / "reasons.json").read_text())
    whys = "\n".join(_why(reason["why"], name, cases) for name, reason in reasons.items())
    return "\n".join([head, *sections, UNSEEN + whys + "\n"])


def _classes() -> dict[str, dict[str, str]]:
    classes: dict[str, dict[str, str]] = json.loads((INCIDENTS / "classes.json").read_text())
    return classes


def _fixes(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(case["expect"]["fixes"][0] for case in found if "fixes" in case["expect"])


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _symptom(about: dict[str, str]) -> str:
    where = f"../reference/incidents.md#{_anchor(about['title'])}"
    return "\n".join(
        [
            f"## {about['title']}\n",
            f"```text\n{about['look']}\n```\n",
            f"{about['fix']} [Incidents]({where})\n",
        ]
    )


def _section(title: str, cases: list[dict[str, Any]]) -> str:
    table = [
        "| what people saw | what the check says | what fixes it |",
        "|---|---|---|",
        *map(_row, cases),
    ]
    return "\n".join([f"## {title}\n", *table, ""])


def _row(case: dict[str, Any]) -> str:
    expect = case["expect"]
    says = ", ".join(f"`{each}`" for each in expect["says"]) or "nothing"
    fixed = "; ".join(FIXES[name] for name in expect.get("fixes", ()))
    return f"| {case['symptom']} ({_link(case)}) | {says} | {fixed or case['people']} |"


def _link(case: dict[str, Any]) -> str:
    name, _, number = case["source"].partition("#")
    if not number:
        return f"[{name.split('/')[2]}]({name})"
    return f"[{name}#{number}](https://github.com/{name}/issues/{number})"


def _why(why: str, name: str, cases: list[dict[str, Any]]) -> str:
    return f"- {why} ({', '.join(_link(case) for case in cases if case.get('why') == name)})"


def main(folder: Path = DOCS) -> None:
    """Write the pages."""
    for name, text in (("howto/your-symptom", symptoms()), ("reference/incidents", incidents())):
        path = folder / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
