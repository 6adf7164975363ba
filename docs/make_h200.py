"""Write docs/howto/h200.md and its pictures:  ./run python docs/make_h200.py [DIR].

Each variant is a node that can be built in any kernel. tests/kernel/test_h200.py fixes all of them
on Linux.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import sys
import tempfile
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import phases
from hostrouting import Config, Configure, Host, Layout, cli
from hostrouting.backend import Write, read_routes
from hostrouting.cli.output import say
from hostrouting.cli.report import overlap_picture, overlap_text
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, Table
from hostrouting.overlap.check import check_overlap
from hostrouting.testing import FakeKernel, FakeSystemd

if TYPE_CHECKING:
    from hostrouting.kernel.port import Kernel

FOLDER = Path(__file__).parent / "howto"
TIME = datetime.datetime(2026, 11, 20, 9, 0, tzinfo=datetime.timezone.utc).timestamp()
COLUMNS = 84  # the width of a code block on the site

INFINIBAND = [IPv4Interface(f"172.16.0.{10 + number}/16") for number in range(8)]
DNS_SERVER = "172.16.1.53"
METRIC = 100


@attrs.frozen
class Variant:
    """A node whose InfiniBand interfaces shadow the expected addresses of the cluster.

    Args:
        name: the name of the picture.
        title: the title of the section.
        story: a description of the node, in Markdown.
        expected: the expected CIDR.
        eth0: the address of eth0, which has the default route.
        gateway: the gateway of the default route.
        behind: a destination with a gateway on ib0, if there is such a route.
        after: the text that follows the fix, in Markdown.
    """

    name: str
    title: str
    story: str
    expected: str = "172.16.0.0/16"
    eth0: str = "10.1.0.4/24"
    gateway: str = "10.1.0.1"
    behind: tuple[str, str] | None = None
    after: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """Return a config document that expects the CIDR."""
        return {
            "hostRouting": {"routeOverlap": {"expectedCidrs": [self.expected], "mode": "STRICT"}}
        }

    def build(self, kernel: Kernel) -> None:
        """Add the interfaces, addresses and routes of this node to a kernel with only ``lo``."""
        kernel.add_link("eth0")
        # networkd sets the metric of a connected route to the DHCP metric of its interface.
        kernel.add_address("eth0", self.eth0, metric=METRIC)
        for number, address in enumerate(INFINIBAND):
            kernel.add_link(f"ib{number}")
            kernel.add_address(f"ib{number}", str(address))
        hop = NextHop("eth0", IPv4Address(self.gateway))
        own = IPv4Interface(self.eth0).ip
        routes = [
            Route(DEFAULT_DESTINATION, (hop,), protocol=Protocol.DHCP, metric=METRIC, source=own)
        ]
        if self.behind is not None:
            destination, gateway = self.behind
            hop = NextHop("ib0", IPv4Address(gateway))
            routes.append(Route(IPv4Network(destination), (hop,), protocol=Protocol.STATIC))
        assert kernel.write(Write.ADD, routes) == ()


VARIANTS = (
    Variant(
        "equal",
        "The cluster's network is 172.16.0.0/16",
        """\
You can't replace the route to 172.16.0.0/16 itself: it is the InfiniBand interfaces' connected
route, and without it, they can't reach their own network. Routes to its two halves win, because
their prefixes are longer.""",
        after="""\
The eight InfiniBand addresses still belong to this host, and the broadcast address is still a
broadcast address: no route can change that. If a pod or a Service gets one of these addresses, this
node can't reach it. Exclude 172.16.0.10 to 172.16.0.17 from the cluster's address pools.""",
    ),
    Variant(
        "inside",
        "The cluster's network is inside it, 172.16.1.0/24",
        """\
The API server, or a subnet of nodes, is somewhere inside InfiniBand's /16. One route to that
network is enough, and the rest of the /16 still leaves through InfiniBand.""",
        expected="172.16.1.0/24",
    ),
    Variant(
        "around",
        "The cluster's network contains it, 172.16.0.0/12",
        """\
Only a sixteenth of the expected network is shadowed. Here, a lookup of a single address,
172.16.0.1, would detect it. If InfiniBand used 172.20.0.0/16, it wouldn't. The check therefore
covers every address.""",
        expected="172.16.0.0/12",
    ),
    Variant(
        "same-subnet",
        "eth0 is in 172.16.0.0/16 itself",
        """\
eth0 also has a connected /16 route, but with metric 100, which networkd has set. InfiniBand's
routes have metric 0 and win, so the kernel looks for eth0's neighbours on ib0. Neighbours need no
gateway, so the routes to the halves have none.""",
        eth0="172.16.0.4/16",
        gateway="172.16.0.1",
    ),
    Variant(
        "own-subnet",
        "eth0 is in a subnet of it, 172.16.4.0/24",
        """\
The virtual network is 172.16.0.0/16, and the node is in one of its subnets. That /24 is longer than
InfiniBand's /16, so the node's neighbours are fine. With the fix, they still are, because the /24
is also longer than the two halves.""",
        eth0="172.16.4.4/24",
        gateway="172.16.4.1",
    ),
    Variant(
        "gateway",
        "Unfixable by routes: a gateway on the InfiniBand side",
        """\
This node reaches 192.168.100.0/24 through a router on ib0, 172.16.0.1. If a route sent packets for
172.16.0.1 through eth0, that network would become unreachable. `fix` therefore excludes this
address, reports it, and exits with 1.""",
        behind=("192.168.100.0/24", "172.16.0.1"),
        after="""\
In STRICT mode, the node doesn't start until you solve this as well: renumber the router, remove the
route through it, or exclude its address from the expected CIDRs.""",
    ),
)


@attrs.frozen
class Told:
    """The output of the commands for a node.

    Args:
        routes: the routes of table main, one on each line.
        check: the text output of the check.
        picture: the SVG output of the check.
        fix: the document that ``fix --cidr`` prints.
        commands: the fix, as ``ip`` commands.
        remarks: the other lines that ``fix`` prints.
        code: the exit code of ``fix``.
        after: the text output of the check after the fix.
    """

    routes: str
    check: str
    picture: str
    fix: str
    commands: str
    remarks: tuple[str, ...]
    code: int
    after: str


def tell(variant: Variant) -> Told:
    """Build a node in memory, check it, and fix it."""
    kernel = FakeKernel()
    variant.build(kernel)
    with tempfile.TemporaryDirectory() as root:
        host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
        host.layout.resolv_conf.parent.mkdir(parents=True)
        host.layout.resolv_conf.write_text(f"nameserver {DNS_SERVER}\n")
        host.layout.config.parent.mkdir(parents=True)
        host.layout.config.write_text(json.dumps(variant.config))
        routes = "\n".join(map(str, read_routes(kernel, Table.MAIN)))
        check, picture = _check(variant, host)
        code, fix, remarks = _run(host, "fix", "--cidr", variant.expected)
        _, commands, _ = _run(host, "fix", "--cidr", variant.expected, "--format", "ip")
        _, merged, _ = _run(host, "fix")
        fixed = Config.from_mapping(
            json.loads(merged) if code == 0 else _as_warning(json.loads(merged))
        )
        phases.run(Configure(fixed, host=host))
        after, _ = _check(variant, host)
    return Told(routes, check, picture, fix, commands, tuple(remarks.splitlines()), code, after)


def _as_warning(document: dict[str, Any]) -> dict[str, Any]:
    document["hostRouting"]["routeOverlap"]["mode"] = "WARN"
    return document


def _check(variant: Variant, host: Host) -> tuple[str, str]:
    # Like check --cidr, without a file.
    config = Config(route_overlap={"expectedCidrs": [variant.expected]})
    result = attrs.evolve(check_overlap(config, host.routes, phases.CancelScope()), host="node-7")
    result = attrs.evolve(result, time=rfc_3339(TIME))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        say(overlap_text(result, width=COLUMNS))
    return out.getvalue().rstrip("\n"), overlap_picture(result)


def _run(host: Host, *words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words, host=host)
    return code, out.getvalue().rstrip("\n"), err.getvalue().rstrip("\n")


HEAD = f"""\
<!-- Made by docs/make_h200.py from the tool's own output; edits are lost. -->

# Six sick H200s: find yours

The node is `Ready` and the kubelet looks healthy, but its pods get no answer from the API server,
from DNS or from other nodes. `ip route get` for one of those addresses prints `dev ib0` instead of
`dev eth0`.

On Azure's H200 machines, `ib0` to `ib7` have addresses in 172.16.0.0/16. For each address, the
kernel adds a connected route to 172.16.0.0/16, which overlaps the cluster's network. Find the case
that matches your node:

{{contents}}

For each case, this page shows the problem and the fix. If hostrouting is installed on your node,
you can run these two commands, which change nothing:

```console
$ hostrouting check --cidr 172.16.0.0/16   # shows the CIDRs that a route shadows, and the route
$ hostrouting fix --cidr 172.16.0.0/16     # shows what fixes them
```

Otherwise, [take a snapshot with a shell and `ip`](snapshots.md), and pass it to both commands with
`--snapshot`. To install the fix now and at every boot, list the expected CIDRs in a config,
`config.json`:

```json
{{config}}
```

Then let `fix` add the routes to it, and what [keeps InfiniBand's own traffic on
InfiniBand](#what-happens-to-infinibands-own-traffic), and apply it:

```console
$ hostrouting fix --in-place config.json     # adds both to your config
$ hostrouting plan config.json   # shows what would change
$ hostrouting apply config.json
$ hostrouting config set /etc/aks-flex-node/config.json --from config.json   # the default CONFIG
```

In STRICT mode, [the gate](../explanation/gate.md) then holds the node back whenever an expected
CIDR is shadowed. By default, "the node" is every instance of `systemd-nspawn@.service`; if the
kubelet runs directly on the host, add `"consumer": "kubelet.service"`.

The interface with which the check first passes in STRICT mode stays the node's uplink, whatever
default routes come later, until
[`uplinks`](../explanation/verdict.md#the-verified-uplink) names another.

Azure's agent may assign the InfiniBand addresses only after the node has booted. In STRICT mode,
the check at boot and the check in `apply` therefore wait up to 60 s until all InfiniBand interfaces
that are up have addresses. If your agent takes longer, or only brings the interfaces up when it
assigns the addresses, set `settleSeconds` in `routeOverlap`: the check then waits up to that long,
also for interfaces that are down. What comes later is kept by [the
watcher](../reference/watch.md), or by the next run: enable the watcher in WARN mode, in which
nothing waits.

The rest of this page shows hostrouting's output. The nodes have `nameserver {DNS_SERVER}` in
resolv.conf. `check` exits with 1 as long as there is a failure; `LOCAL` and `BROADCAST` are only
notes. For programs, `--output json` prints [the same information](../reference/report.md).
"""


TAIL = """\
## What happens to InfiniBand's own traffic

The routes lead the expected CIDRs through eth0, and with them InfiniBand's neighbours. So each fix
above also has `"keep": ["ib*"]`, which [keeps on each
interface](../explanation/policy-routing.md#kept-interfaces) what is sent from its address:

| traffic | routes alone | routes and `keep` |
|---|---|---|
| between the node and the cluster | works | works |
| a neighbour calls a server at ib3's address | lost: eth0 sends the answers | works |
| a client bound to ib3's address calls a neighbour | lost: it uses eth0 | works, through ib3 |
| a client bound to ib3 itself calls a neighbour | works if `rp_filter` isn't 1 | works |
| a client that is bound to nothing calls a neighbour | lost: it uses eth0 | lost: it uses eth0 |
| RDMA verbs between connected queue pairs | need no route | need no route |

All rows but the last were measured by TCP: with 4 and 8 interfaces in one /16, with `rp_filter` 0,
1 and 2, after `apply`, after a reboot, after a link went down and up, and after `remove`. Network
namespaces stood in for the hosts, and virtual Ethernet for InfiniBand: **no InfiniBand hardware was
used**.

`librdmacm` wasn't run, either. By Linux's source (`drivers/infiniband/core/addr.c`), it looks up a
route as a client that is bound to the interface if it has a source address, and else as one that is
bound to nothing.

**NCCL** begins its bootstrap with interfaces whose names begin with `ib`, unless you set
`NCCL_SOCKET_IFNAME` (`ncclFindInterfaces` in its source). On the host's network, it then connects
to other nodes' InfiniBand addresses with sockets that are bound to nothing, which `keep` doesn't
help. Set `NCCL_SOCKET_IFNAME=eth0`: the bootstrap then uses the cluster's network, and the data
still go through InfiniBand. Or expect only the CIDRs that your cluster uses, if the InfiniBand
addresses aren't among them (case 2). NCCL itself wasn't run.
"""


def page(told: dict[str, Told]) -> str:
    """Return the page as Markdown."""
    contents = "\n".join(
        f"{number}. [{variant.title}](#{_anchor(number, variant)})"
        for number, variant in enumerate(VARIANTS, 1)
    )
    head = HEAD.format(contents=contents, config=json.dumps(VARIANTS[0].config))
    return "\n".join(
        [
            head,
            *(_section(number, each, told[each.name]) for number, each in enumerate(VARIANTS, 1)),
            TAIL,
        ]
    )


def _heading(number: int, variant: Variant) -> str:
    return f"{number}. {variant.title}"


def _anchor(number: int, variant: Variant) -> str:
    kept = "".join(c for c in _heading(number, variant).lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _section(number: int, variant: Variant, told: Told) -> str:
    left = [line.removeprefix("caution: ") for line in told.remarks]
    parts = [
        f"## {_heading(number, variant)}",
        variant.story,
        _console("ip route show", told.routes),
        _console(f"hostrouting check --cidr {variant.expected}", told.check),
        (
            f"![Where packets to {variant.expected} leave, "
            f"and the routes that fix them](h200-{variant.name}.svg)"
        ),
    ]
    if number == 1:
        parts += [
            "As config:",
            _console(f"hostrouting fix --cidr {variant.expected}", told.fix),
            (
                "As commands, which last until the next boot (for a permanent fix, "
                "use `--format netplan` or `networkd`):"
            ),
            _console(f"hostrouting fix --cidr {variant.expected} --format ip", told.commands),
        ]
    parts += ["Side effects:", _list(left)] if left else []
    parts += [
        "After the fix is applied:",
        _console(f"hostrouting check --cidr {variant.expected}", told.after),
    ]
    parts += [variant.after] if variant.after else []
    return "\n\n".join(parts) + "\n"


def _console(command: str, output: str) -> str:
    # An unpaired apostrophe isn't valid in a shell.
    language = "text" if "'" in output else "console"
    return f"```{language}\n$ {command}\n{output}\n```"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def main(folder: Path = FOLDER) -> None:
    """Write the page and its pictures."""
    told = {variant.name: tell(variant) for variant in VARIANTS}
    (folder / "h200.md").write_text(page(told), encoding="utf-8")
    for name, each in told.items():
        (folder / f"h200-{name}.svg").write_text(each.picture, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
