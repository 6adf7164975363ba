"""Check the expected CIDRs: prove that each leaves through the node's uplinks, or find a fix.

The theory of operation. The kernel knows by which route each packet leaves, so a check asks it, and
compares the results with the expected interfaces. These are the *uplinks* (``uplinks``), unless a
CIDR names its own. The uplinks are named by the config, or are those with which the check has
passed before, or else the interfaces of main's default route.

A check has five steps, each with a module: cut, ask, judge, group, fix. ``check`` runs them; the
first two are called by ``_read.read_once``, because all that is read and asked must be of one
moment. Between ask and judge, ``_local_delivery`` may end the check. A rule may bypass table local,
so that this host doesn't receive packets to one of its addresses. Then the verdict is
``unknown``.

What is known about addresses lies in one record, a *place*: addresses with the same results
(``_places``). Cut makes the places, and each later step fills in its fields. What is known about
the host is a ``State`` (``_state``), which no step changes. A ``Moment`` (``_read``) holds both::

    expected     172.16.0.0/16     |------------------------------------------|
    main         172.16.0.0/16     |------------------------------------------|  dev ib0
                 172.16.1.0/24          |---|                                    via 10.1.0.1, eth0
    local        172.16.3.10                     |                               dev ib0

    cut: places                    |  a |  b |  a |c|           a              |
    ask                            a: dev ib0, b: dev eth0, c: local
    judge, if eth0 is expected     a: OVERLAP, b: fine, c: LOCAL, a note
    group                          a finding: 172.16.0.0/16 routes via ib0, expected eth0
    fix          172.16.0.0/17     |--------------------|
                 172.16.128.0/17                        |---------------------|

Cut (``_cut``). Routes and rules match prefixes, so a result can only change where a prefix begins
or ends. All addresses with the same innermost prefix are one place, which may consist of several
spans. Only the place's first address (its probe) is looked up, once for each kind, because all its
addresses have the same results. A FIB may have 100,000 routes through the uplinks that are *plain*
(``kernel.selection``): they have tos 0, and all of their packets leave there. A place with notes
alone doesn't fail. Suspects are routes through other interfaces, and prefixes that a rule names.
Plain routes cut only inside a suspect. Outside of suspects, they aren't even read.

Ask (``_ask``). Three kinds of sockets send to a place, and all must leave as expected:

- *unconnected*: a datagram without a source. This lookup also selects a client's source.
- *client*: the lookup is made again, from that source. The result differs if a rule or route
  matches on sources, or the source is no longer this host's.
- *server*: a reply has the address at which the server was called, on an uplink or on lo.

TCP and UDP are asked about separately if a rule distinguishes them. Where the kernel alternates
between default routes (fib_select_default), every one of them counts.

Judge (``_judge``). This is done for each expected CIDR that contains the place, and for each lookup
that decides where packets go (``decides``). The first of these that applies is the result:

- Nothing carries the packet: NO-ROUTE or BLACKHOLE. A CNI's discard of its own free addresses is a
  note.
- Table local has an entry for this address alone: a note, or GATEWAY for the router's address.
- TCP can't connect, because the entry is for multicast or broadcast: BLACKHOLE.
- The packet leaves through expected interfaces only: fine, unless the interface is a port of a
  bridge (PORT), or the gateway is an address of this host (GATEWAY).
- It leaves through allowed interfaces or pods': a note, unless the CIDR names its own devs.
- Otherwise: OVERLAP.

A name such as ``cali1`` says who added a route, not that the cluster expects it. So the exemptions
are limited to the routes that a CNI adds on a healthy node (``_exemptions``). The kernel doesn't
report which entry discards a packet. A model of the tables does.

Group (``_group``). Spans of a CIDR that fail in the same way are one finding. ``_host_notes`` adds
notes on the host as a whole.

Fix (``_fix``). A static route in main fixes a place if main is asked, and the route wins there. A
route wins if it is longer than the place's present entry, or as long with a lower metric. A route
also covers other places. A route doesn't change such a place if its prefix is shorter than that of
the place's entry. So each place has a constraint (``_constraint``): ``NeedsRoute`` or
``MayBeCovered``. For each interface to which routes must lead, ``_fewest_prefixes`` finds the
smallest set of prefixes that satisfies all of them. Sometimes no route can fix a place, or the
traffic may be wanted where it is, such as on a second NIC (``_diversions``). Then the constraint is
``NoRoute``, with an obstacle: a reason with advice, or a question to the operator.
``_static_routes`` makes the config entry for each prefix. Then the routes are proven
(``_modelled_host``): the installation's planner accepts them, and a model of the host with these
routes is asked about the same places. The results are judged again. A route that an installation
would refuse is excluded, and the search runs again (``_routes``). If any other proof fails, no
route at all is proposed. Remaining failures, such as replies that no route can move, are reported
with a reason.

If another table decides before main, the obstacle is a rule. Then ``_rules`` finds the fewest rules
after which main decides, and the search for routes runs again on a model of the host with these
rules. Routes and rules must also take nothing away (``_losses``). Packets that work must go as
before, unless a caution names them (``_cautions``). Where no caution is enough (``is_refused``),
nothing is proposed: packets that come in are lost, or packets without a source that the fix isn't
meant to divert. The proof covers packets without a source, and packets from each kind of own
address (``_senders``) that the change may affect (``_affected``). ``_keep`` finds the interfaces
from whose addresses the routes divert packets. Some changes can only be made by an entry's owner.
``_advice`` says what such a change takes away. Last, ``_questions`` finds the answers to each
question, and tries each: it changes the config and runs the whole check again, on the model of the
host.

What the next owner must keep:

- *Ask the kernel instead of imitating it.* The model (``State.fib``) answers only where no lookup
  can: which entry discards a packet, whether packets arrive here, and what happens after a fix. If
  the model and the kernel disagree about a failing place, no route is proposed there. Lookups are
  RTM_GETROUTE with RTM_F_FIB_MATCH, for user 0, without an output interface: if a lookup names an
  output interface, nearly every address counts as reachable.
- *One moment is one moment.* Changes are noticed from the first read to the last lookup, and then
  all is read again. Even if the tables are equal before and after, they may have changed in
  between.
- *Everything that distinguishes addresses must cut.* Otherwise a place's probe wouldn't represent
  its other addresses. A new selector of the kernel must cut, too, or give the verdict ``unknown``.
- *Exemptions have bounds.* If something fails only because it exceeds a bound, no route is
  proposed. The existing route may be intended. ``allowedDevs`` has no bounds: it is the operator's
  word.
- *The fix is proven before it is proposed*, by the code that installs and judges.
- *The fewest prefixes.* They cover each place that a route can fix. An expected address that is
  fine keeps its route.
- *Unknown rather than guessed.* A verdict ``ok`` is a proof. If the check can't be certain, the
  verdict is ``unknown`` with a reason. STRICT mode then holds the node back.

The boot script ``boot/scripts/check-route-overlap.awk`` cuts, asks and judges, too; its places are
single spans. ``explanation`` traces a single address through rules and tables, ``difference``
compares two snapshots place by place, ``findings`` and ``proposals`` define the result, ``summary``
and ``markers`` format it. ``offers`` offers to keep a second NIC's packets on it, ``planned_host``
checks a host as it would be after a plan, ``_diverted`` tells what that plan takes away, and
``taken_networks`` finds networks that a cluster shouldn't use. ``node_ip`` compares the addresses
in a node's config with the host, and ``snapshots`` takes the snapshots that a check can use instead
of a host.
"""
