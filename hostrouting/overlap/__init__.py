"""Check the expected CIDRs: prove that each leaves through the node's uplinks, or find a fix.

The theory of operation. The kernel knows by which route each packet leaves, so a check asks the
kernel, and compares the results with the expected interfaces. The expected interfaces are the
*uplinks* (``uplinks``), unless a CIDR names its own. The config may name the uplinks. Otherwise,
they are the uplinks with which the check passed before. Before it has ever passed, they are the
interfaces of main's default route.

A check has five steps, each with a module: cut, ask, judge, group, fix. ``check`` runs them for
each address family. The report has the findings of both families, and the worse of their verdicts.
The worst is ``unknown``.

``_read.read_once`` runs cut and ask, because all reads and lookups must be of one moment. For the
same reason, it also asks ``_local_delivery`` whether this host receives packets to its own
addresses. The host may miss some if a rule bypasses table local. The check then ends with the
verdict ``unknown``.

A *place* (``_places``) is a record of addresses for which all lookups have the same results. Cut
makes the places, and each later step fills in some of their fields. A ``State`` (``_state``) holds
the host's routes, rules, links and addresses, and no step changes it. A ``Moment`` (``_read``)
holds the state and the places::

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
spans. Only the place's first address (its *probe*) is looked up, once for each kind of socket. A
FIB may have 100,000 *plain* routes (``kernel.selection``): routes with tos 0 that send all of their
packets through uplinks. The destinations of all other routes are *suspects*, and so are the
prefixes that a rule names. Plain routes cut only inside a suspect. Elsewhere, plain routes are
usually not even read (``_read._with_routes`` has the exceptions).

Ask (``_ask``). Three kinds of sockets send to a place, and all must leave as expected:

- *unconnected*: a datagram without a source. This lookup also selects a client's source.
- *client*: the lookup is repeated with that source. Its result may differ from the first one: a
  rule or route may match on sources, or the source may no longer be this host's.
- *server*: a reply is sent from the address at which the server was called, on an uplink or on lo.

TCP and UDP are looked up separately if a rule distinguishes them. If the kernel alternates between
default routes (fib_select_default), each of these routes is judged.

Judge (``_judge``). Each lookup is judged for each expected CIDR that contains the place. Lookups
that only select a source aren't judged (``sends_packets``). The first line that applies is the
judgement, but TCP can still make it BLACKHOLE:

- No route carries the packet: NO-ROUTE or BLACKHOLE. If a CNI's blackhole route for its own block
  of pod addresses discards the packet: a note.
- Table local has an entry for this address alone: the host's own address, or a subnet's broadcast
  address. This is a note. If the default route's gateway has the address, too: GATEWAY.
- The packet leaves through expected interfaces only: fine. If an interface is a port of a bridge or
  bond: PORT. If the gateway is an address of this host: GATEWAY.
- The packet leaves through allowed interfaces or pods' interfaces: a note. This line doesn't apply
  to a CIDR that names its own devs.
- Otherwise: OVERLAP.

TCP can't connect if the packet's entry is for IPv4 multicast or broadcast. So a place that is fine,
or has a note for allowed or pods' interfaces, is BLACKHOLE instead. With a broadcast entry, a place
that is PORT or GATEWAY is BLACKHOLE, too.

A name such as ``cali1`` says who added a route, not that the cluster expects the route. So packets
to pods' interfaces are exempt only if their route is one that a CNI adds on a healthy node
(``_exemptions``). The kernel doesn't report which entry discards a packet, so a model of the tables
is asked.

Group (``_group``). Spans of a CIDR that fail in the same way are one finding. With any finding, the
verdict is ``overlap``, and otherwise ``ok``. Notes are no findings: a CIDR with notes alone passes.
``_host_notes`` adds notes on the host as a whole.

Fix (``_fix``). It is searched for only on demand (``check.Checked.with_fix``). A static route in
main fixes a place if a rule looks up main, and the route wins there: it is longer than the place's
present entry in main, or as long with a lower metric. The route may also cover other places. In a
place whose present entry is longer, the route changes nothing.

Each place has one of three constraints (``_constraint``). ``NeedsRoute``: a route must fix it.
``Unchanged``: no route may change it. ``NoRouteFixes``: no route can fix it, or the traffic may be
wanted where it is, such as on a second NIC (``_diversions``). The last has an obstacle: a reason
with advice, or a question to the operator. If the place fails for several nested CIDRs, the last of
these in config order determines the constraint. For each interface to which routes must lead,
``_fewest_prefixes`` finds the smallest set of prefixes that satisfies all constraints.
``_static_routes`` makes the config entry for each prefix.

Then the routes are proven (``_modelled_host``). The installation's planner must accept them. A
model of the host with these routes is asked about the same places, and its results are judged like
the kernel's. A route that an installation would refuse is excluded, and the search runs again
(``_routes``). If any other proof fails, no route at all is proposed. Failures that remain are
reported with a reason. For example, no route can move some replies.

If another table decides before main, the obstacle is a rule. Then ``_rules`` finds the fewest new
rules with which main decides, and the search for routes runs again on a model of the host with
these rules. Routes and rules must also take nothing away (``_losses``): packets that work now must
leave as before, unless a caution names them (``_cautions``). Two kinds of losses exclude a fix
(``is_forbidden``): packets that come in, and packets without a source to addresses that don't fail.
So cautions only name packets from own addresses, and packets without a source to failing addresses.
The proof covers packets without a source, and packets from each kind of own address (``_senders``)
that the fix may affect (``_affected``). If the routes would move the traffic of an interface's own
addresses to another interface, ``_keep`` adds or offers a ``keep`` entry for it. Some changes can
only be made by an entry's owner. ``_advice`` says what such a change takes away. Last,
``_questions`` finds possible answers to each question. To try an answer, it changes the config and
runs the whole check again, on the model of the host.

What the next owner must keep:

- *Ask the kernel instead of imitating it.* The model (``State.fib``) answers only where no lookup
  can: which entry discards a packet, whether packets arrive here, and what happens after a fix. If
  the model and the kernel disagree about a failing place, no route is proposed there. Lookups are
  RTM_GETROUTE with RTM_F_FIB_MATCH, for user 0. They name no output interface: with one, nearly
  every address would count as reachable.
- *One moment is one moment.* If the host changes between the first read and the last lookup, all is
  read again. The kernel's notifications show changes. Comparing the tables before and after isn't
  enough, because a change may have been undone.
- *Everything that distinguishes addresses must cut.* Otherwise a place's probe wouldn't represent
  its other addresses. A new kernel may have rules or routes with another selector. Then the
  selector must cut, too, or the verdict must be ``unknown``.
- *Exemptions have bounds.* Some packets fail for no other reason than that their route exceeds a
  bound. The route may still be intended, so no other route is proposed. ``allowedDevs`` has no
  bounds: it is the operator's word.
- *The fix is proven before it is proposed*, by the code that installs and judges.
- *The fewest prefixes* cover each place that a route can fix. An expected address that doesn't fail
  keeps its route.
- *Unknown rather than guessed.* A verdict ``ok`` is a proof. If the check can't be certain, the
  verdict is ``unknown`` with a reason. STRICT mode then holds the node back.

The boot script ``boot/scripts/check-route-overlap.awk`` cuts, asks and judges, too; its places are
single spans. ``explanation`` traces a single address through rules and tables, and ``difference``
compares two snapshots place by place. ``findings`` and ``proposals`` define the result, ``summary``
and ``markers`` format it. ``offers`` offers to keep a second NIC's packets on that NIC.
``planned_host`` models a host after a plan, ``_diverted`` tells what the plan takes away, and
``unapplied`` reports on hosts that lack entries of their config. ``taken_networks`` finds networks
that a cluster shouldn't use. ``node_ip`` compares the addresses in a node's config with the host.
``snapshots`` takes the snapshots that a check can use instead of a host.
"""
