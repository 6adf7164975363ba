"""Random hosts with rare features, as commands.

The kernel's behaviour on these can only be tested with sockets.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from node import nics

from worlds import Question
from worlds.hosts import Host, commands, section

_AWAY = "ip route add default dev ib0 table 104"

Steps = Mapping[str, Sequence[str]]


def _read(text: str) -> Iterator[tuple[str, Steps]]:
    """Parse each feature's name and commands.

    The markers ``<`` and ``~`` determine when commands run.
    """
    name, steps = "", dict[str, list[str]]()
    for line in text.splitlines():
        if not line.startswith(" "):
            name, steps = line, {"<": [], "": [], "~": []}
            yield name, steps
        elif line.startswith(("    < ", "    ~ ")):
            steps[line[4]].append(line[6:])
        else:
            steps[""].append(line[4:])


SEEN_FEATURES = dict(
    _read(Path(__file__).with_name("features.txt").read_text().partition("\n\n")[2])
)
"""The features of hosts that only sockets can judge."""

# Harmless routes that make table dumps slower.
_MANY = (
    "ip rule add pref 4 to PREFIX lookup 200",
    # Some of these routes may already exist.
    (
        "for i in $(seq 100); do echo route add BASE.$((i + 100)) dev eth0; done "
        "| ip -batch - -force || true"
    ),
)


def with_features(question: Question, chance: random.Random) -> Host:
    """Return a host with one or two additional features, or one that changes continuously.

    Args:
        question: the original host; its interfaces are replaced.
        chance: the random number generator.
    """
    world = question.world if chance.random() < 0.5 else attrs.evolve(question.world, rules=())
    expected = tuple({each.cidr: each for each in question.expected}.values())
    prefix = chance.choice((str(expected[0].cidr), "10.0.1.0/24", "10.0.0.128/25"))
    words = {
        "PREFIX": prefix,
        "BASE": prefix.rpartition(".")[0],
        "DEV": chance.choice(("eth1", "ib0")),
        "NAME": chance.choice(("eth0,eth0", "eth0,tap9", "*", "eth?", "-n")),
    }

    def chosen(templates: Sequence[str]) -> list[str]:
        return [
            step for step in (_chosen(chance, template, words) for template in templates) if step
        ]

    steps = [step for step in commands(world) if not step.startswith("ip link ")]
    cycle: list[str] = []
    if chance.random() < 0.15:
        names = [chance.choice([name for name, more in SEEN_FEATURES.items() if more["~"]])]
        steps += chosen((*_MANY, *SEEN_FEATURES[names[0]][""]))
        cycle = chosen(SEEN_FEATURES[names[0]]["~"])
    else:
        lasting = [name for name, more in SEEN_FEATURES.items() if not more["~"]]
        names = chance.sample(lasting, chance.choice((1, 1, 2)))
        for more in map(SEEN_FEATURES.__getitem__, names):
            steps = [*chosen(more["<"]), *steps, *chosen(more[""])]
        steps += _caught(chance, steps)
    # The interfaces aren't always in the order of their indexes.
    numbers = chance.choice(((21, 22, 23, 24), (50, 60, 40, 70), (70, 40, 60, 50)))
    devs = chance.sample(("eth0", "eth1", "ib0", "tap9"), 4)
    links = nics(*(f"{dev} index {number}" for number, dev in zip(numbers, devs, strict=True)))
    steps = [*links.splitlines(), *steps]
    steps += [
        f"sysctl -qw net.ipv4.conf.{dev}.rp_filter={chance.choice((0, 1, 2))}"
        for dev in ("all", "eth0", "eth1", "ib0")
    ]
    hostrouting = section(expected, question.allowed)
    return Host(tuple(steps), hostrouting, cycle=tuple(cycle), is_seen=True, names=tuple(names))


def _chosen(chance: random.Random, template: str, words: dict[str, str]) -> str:
    while choice := re.search(r"\[([^][]*\|[^][]*)\]", template):
        template = template.replace(choice[0], chance.choice(choice[1].split("|")), 1)
    return re.sub("|".join(words), lambda word: words[word[0]], template)


def _caught(chance: random.Random, steps: list[str]) -> list[str]:
    """Return commands for rules that redirect connections from certain source addresses."""
    sources = sorted({*re.findall(r"^ip address add ([\d.]+)/", "\n".join(steps), re.MULTILINE)})
    some = chance.sample(sources, chance.choice([n for n in (0, 0, 1, 1, 2) if n <= len(sources)]))
    rules = [f"ip rule add pref {60 + n} from {source} lookup 104" for n, source in enumerate(some)]
    return [_AWAY, *rules] if rules else []
