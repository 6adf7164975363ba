# How this program judges a host. The kernel knows by which route each packet leaves, so the program doesn't compute it:
# it asks the kernel, and compares the interfaces of the results with the expected ones, the uplinks.
#
# Cut. Routes and rules match prefixes, so the kernel's result can only change where a prefix begins or ends. cut()
# collects these borders, and find_places() keeps those in expected CIDRs. A "place" reaches from one border to the next
# one. All its addresses have the same result, so its first one, the "probe", stands for all.
#
# Ask. look_up() asks for the route to each place's probe. First, it asks without a source, as for a datagram. If rules
# match on sources, it also asks with this host's addresses, except those that every rule treats like a packet without a
# source. Thus, the results include those for the source that the kernel chooses for a connection, and for each address
# from which a server may reply.
#
# Judge. why_wrong() returns what is wrong with a result, or "" if nothing is. A packet may leave through an uplink. It
# may also end in what every node has: an address of this host (table local), a pod's interface (is_beyond_pods() has
# the bounds), or a blackhole that a CNI adds for its own pods (is_block()).
#
# Like the library, this program judges packets that root sends without a mark. Packets of other users, and packets with
# a mark, may leave otherwise.
#
# This program never says "ok" where `hostrouting check` doesn't, but it can't judge every host. It knows some shapes of
# rules (read_rule()), results (why_wrong()) and discards (why_discarded()). If it meets any other shape, can_not()
# makes the verdict "unknown", and Python judges the host, if it is there. If Python might not report a failure, the
# verdict is "unknown", too.
#
# Interfaces may be named like any word that ip prints: "via", "from", "lookup". So lines aren't searched for words.
# Each word is read by its position, or as the value of the key before it (take_apart(), read_rule()).

$0 == "==kernel" { take_verified() }
# The IPv4 default routes are known before the first line of IPv6's.
$0 == "==kernel" && family == 6 && uplink_pattern == "" { expect_ipv4_uplinks() }

@common.awk@

# --- the config ------------------------------------------------------------------------------------------------------

# expect FIRST LAST CIDR [PATTERN WORDS]: a range of an expected CIDR outside reserved blocks, in either family.
# PATTERN: the only interfaces that may carry it. WORDS: their names in the config.
section == "config" && $1 == "expect" && length($2) == length("x" ZEROS) {
  range_first[++ranges] = $2
  range_last[ranges] = $3
  expected_cidr[ranges] = $4
  devs_pattern[ranges] = $5
  devs_words[ranges] = $6
  needs_uplinks = needs_uplinks || $5 == ""
  names_devs = names_devs || $5 != ""
}

# The patterns are regular expressions; "/" matches no interface name.
section == "config" { pattern_of[$1] = $2 }

function is_like(name, pattern) {
  return name ~ ("^(" pattern ")$")
}

function is_uplink(name) {
  return uplink_pattern != "" ? name != "lo" && is_like(name, uplink_pattern) : is_among(name, expected)
}

# Returns whether a list such as "eth0/eth1" contains a name. No name contains "/".
function is_among(name, list) {
  return index("/" list "/", "/" name "/") > 0
}

function with_name(list, name) {
  return is_among(name, list) ? list : list (list == "" ? "" : "/") name
}

# Keeps the first reason why there is no verdict.
function can_not(reason) {
  if (problem == "")
    problem = "check-failed: " reason
}

# --- reading what ip lists -------------------------------------------------------------------------------------------

# ip lists addresses, rules, routes and links, in this order. An address's label, a peer's namespace and an interface's
# alias may contain line breaks, but a label is too short for a rule. So a line is only a route behind a rule and before
# all links, and whatever follows a link is a link.
section == "kernel" && /^[0-9]+: [^ ]+: </ { is_at_links = 1 }
section == "kernel" && is_at_links { read_link(); next }
section == "kernel" && /^[0-9]+:\t/ { rules++; read_rule(); next }
section == "kernel" && /^[0-9]+: / { read_address(); next }
section == "kernel" && rules { has_ours = has_ours || / proto 217 / && !/ table /; read_route(); next }
section == "kernel" { can_not("the address with a label that ends in " in_words($0)) }
section == "heard" && relevance($0) > restlessness { restlessness = relevance($0) }

# 2: ib0: <BROADCAST,UP> mtu 2044 qdisc mq master vrf1 state UP ... \    link/infiniband 00:01 ...
#
# "@" and a parent's name may follow the name. Either may contain "@", but only the name may have an address. A line of
# an alias may look like a link that exists, and must not hide what is wrong with that one.
function read_link(    name) {
  name = substr($2, 1, length($2) - 1)
  while (!(name in has_address) && sub(/@[^@]*$/, "", name))
    ;
  if (/ link\/(\[32\]|infiniband) / && $3 ~ pattern_of["awaited"] && !(name in has_address))
    infiniband[++infinibands] = name
  is_down[name] = $3 !~ /[<,]UP[,>]/ && (!(name in is_down) || is_down[name])
  is_port[name] = is_port[name] || / master /
  if (are_ports_led && is_port[name])
    can_not("table local isn\047t asked first")
}

# 2: eth0    inet 10.1.0.4/24 metric 100 brd 10.1.0.255 scope 0 eth0\ ...
function read_address(    i) {
  own[++owns] = substr($4, 1, index($4 "/", "/") - 1)
  own_number[owns] = number(own[owns])
  own_dev[owns] = $2
  own_net[owns] = $5 == "peer" ? $6 : $4
  for (i = 5; i < NF && $i != "scope"; i += 2)
    ;
  is_global[owns] = $(i + 1) == 0
  is_tentative[owns] = / (tentative|dadfailed) /
  discards_elsewhere = discards_elsewhere || (own[owns] ~ /^127[.]/ && ($2 != "lo" || $(i + 1) != 254))
  has_address[$2] = 1
  is_own[own[owns]]++
  if ($4 ~ /^::ffff:/)
    can_not("IPv6 sockets can\047t send from " own[owns])
}

# 100:    not from 10.1.0.4 to 10.9.0.0/16 tos 0x10 fwmark 0x80/0xff iif lo oif eth0 uidrange 0-9 lookup 254 ... proto 2
#
# The kernel evaluates the rules in each lookup, so it suffices to know what they distinguish. Only these shapes are
# known: with a rule for a protocol, a port or a tunnel, one lookup couldn't stand for all packets.
function read_rule(    word, count, i, value, is_not, action) {
  count = split($0, word, " ")
  is_not = word[2] == "not"
  value["from"] = word[3 + is_not]
  for (i = 4 + is_not; word[i] ~ /^(to|tos|fwmark|iif|oif|uidrange)$/; i += 2) {
    value[word[i]] = word[i + 1]
    if (word[i] ~ /^[io]if$/ && word[i + 2] == "[detached]")
      i++
  }
  action = word[i++]
  if (action ~ /^(lookup|goto)$/)
    action = action " " word[i++]
  while (word[i] ~ /^(suppress_prefixlength|proto)$/)
    i += 2
  if (i <= count || action !~ /^(lookup ([0-9]+|\[l3mdev-table\])|goto [0-9]+|nop|[678])$/)
    can_not("the policy rule " in_words($0))
  if ("to" in value)
    cut(value["to"])
  # Beside main, such a table may have the host's default route.
  if ($0 ~ /^[0-9]+:\tfrom all lookup [0-9]+( proto [0-9]+)? *$/)
    is_for_all[word[5]] = 1
  if (value["from"] != "all")
    add_sources(value["from"])
  discards_elsewhere = discards_elsewhere || action == "6"
  if (!is_local_asked && action != "lookup 255" && (is_not || !is_for_marked(value["fwmark"])))
    see_delivered(action, is_not || !("to" in value) ? ANYWHERE : value["to"])
  is_local_asked = is_local_asked || $0 ~ /^[0-9]+:\tfrom all lookup 255( proto [0-9]+)? *$/
  # Our rules to a CIDR begin with such a one.
  if ($0 ~ /^[0-9]+:\tfrom all to [^ ]+ lookup 255( proto [0-9]+)? *$/)
    keep_delivered(value["to"])
}

# Keeps which addresses of this host a prefix holds, for which table local has been asked.
function keep_delivered(to,    i) {
  read_prefix(to)
  for (i = 0; i <= owns; i++)
    if (is_between(first, own_number[i], last))
      is_delivered[i] = 1
}

# Returns whether a mark and its mask, such as 0x80000/0xff0000, certainly exclude packets without a mark: the mask
# holds the first digit of the mark.
function is_for_marked(text,    part, mask) {
  split(text, part, "/")
  mask = part[2] == "" ? "0xffffffff" : part[2]
  return part[1] ~ /^0x[1-9a-f]/ && \
    substr(mask, length(mask) - length(part[1]) + 3, 1) ~ ("^[f" substr(part[1], 3, 1) "]$")
}

# Gives up if a rule before that for table local may lead away what is sent to this host: the kernel delivers what table
# local matches. The rules of VRFs concern only their ports.
function see_delivered(action, to,    i) {
  read_prefix(to)
  for (i = 0; i <= owns && (i in is_delivered || !is_between(first, own_number[i], last)); i++)
    ;
  if (i <= owns && action == "lookup [l3mdev-table]")
    are_ports_led = 1
  else if (i <= owns)
    can_not("table local isn\047t asked first")
}

# Keeps the addresses that a prefix in a rule's "from" treats unlike a packet without a source.
# For IPv4, such a packet has 0.0.0.0; for IPv6, only a rule from everywhere matches it (fib6_rule_match).
function add_sources(prefix,    i, is_met) {
  read_prefix(prefix)
  is_met = family == 4 && first == "x" ZEROS
  for (i = 1; i <= owns; i++)
    if (is_between(first, own_number[i], last) != is_met && !(own[i] in is_named)) {
      is_named[own[i]] = 1
      named[++nameds] = i
    }
}

function is_between(low, n, high) {
  return low <= n && n <= high
}

# Takes apart a route as ip prints it: its type unless that is unicast, its destination, and then keys, most of them
# with a value, for the route or for each next hop:
#
#   default proto 16 metric 100 \	nexthop via 10.1.0.1 dev eth0 weight 1 \	nexthop via inet6 fe80::1 dev eth1 weight 1
#
# The values of other keys are numbers, or words that are no keys here.
function take_apart(line,    word, count, i, key, gateway) {
  count = split(line, word, " ")
  split("", field)
  i = 1
  type = word[1] ~ /^[0-9]+$/ ? word[i++] + 0 : 1
  to = word[i++]
  devs = gateways = gateway = ""
  hops = is_dead = 0
  for (; i <= count; i++) {
    key = word[i]
    if (key == "dev") {
      devs = with_name(devs, word[++i])
      gateways = gateways gateway (gateway == "" ? "" : "/" word[i])
      gateway = ""
      hops++
    }
    else if (key == "via")
      gateway = " " word[i += word[i + 1] ~ /^inet6?$/ ? 2 : 1]
    else if (key ~ /^(table|metric|proto|scope|src|tos|from|encap|expires|nhid)$/)
      field[key] = word[++i]
    else if (key == "dead")
      is_dead = 1
  }
  table = "table" in field ? field["table"] + 0 : 254
  metric = field["metric"] + 0
  is_dead = is_dead || field["expires"] ~ /^(0|-)/
}

# Keeps the borders of a route's prefix, and what the judgement needs: the addresses of this host, which no other route
# can lead away; the default routes; and the discards in table main, with what tells a CNI's blocks from others.
function read_route(    is_single, is_of_cni, is_telling) {
  take_apart($0)
  # What follows an encapsulation's type are its own keys.
  if ("from" in field || / encap (ip6?|mpls|seg6|seg6local|ila|bpf|rpl|ioam6|xfrm) /)
    can_not("the route " in_words($0))
  if ("tos" in field)
    return
  # The kernel uses default routes with one metric by turns, and such IPv6 routes to any destination.
  if (type == 1 && (family == 6 || to == "default")) {
    tied_devs[to, table, metric] = tied_devs[to, table, metric] "/" devs
    tied_gateways[to, table, metric] = tied_gateways[to, table, metric] gateways
  }
  if (to == "default")
    read_default($0)
  cut(to)
  is_single = to != "default" && !index(to, "/")
  if (table == 255 && is_single && (type == 2 || (family == 4 ? type == 3 : type == 4 && field["proto"] == 2)))
    is_of_host[type, to] = 1
  else if (table == 255 && is_single && type != 3 && type != 4)
    is_hidden[to] = 1
  # A nexthop object may be a blackhole; ip shows it without an interface, or with lo. A source in 127.0.0.0/8 that a
  # route names, or chooses because of its scope, is refused with the error of a blackhole (__mkroute_output).
  discards_elsewhere = discards_elsewhere || (type == 6 && table != 254) || ("nhid" in field && devs ~ /^(lo)?$/) || \
    (type != 2 && devs != "lo" && (field["src"] ~ /^127[.]/ || field["scope"] == 254))
  is_of_cni = type == 1 && field["proto"] ~ /^(12|80)$/
  is_telling = type < 6 && !is_dead && (is_of_cni || (table == 254 && may_be_of_pods(devs)))
  if (!is_telling && !(type >= 6 && table == 254))
    return
  kept_first[++kept] = first
  kept_last[kept] = last
  kept_bits[kept] = bits
  kept_type[kept] = type
  kept_proto[kept] = field["proto"]
  kept_devs[kept] = table == 254 ? devs : ""
  kept_text[kept] = $0
}

# Returns whether an interface may be a pod's. Those of Services and DNS caches aren't.
function may_be_of_pods(names,    part, i) {
  if (!(names in is_for_pods)) {
    is_for_pods[names] = 0
    for (i = split(names, part, "/"); i > 0; i--)
      if (is_like(part[i], pattern_of["container"]) && part[i] !~ /^(kube-ipvs0|kube-dummy-if|nodelocaldns|localdns)$/)
        is_for_pods[names] = 1
  }
  return is_for_pods[names]
}

# --- the uplinks -----------------------------------------------------------------------------------------------------

# Keeps a default route. One through lo leads nowhere. If the uplinks are known, only those through them are default
# routes; another one that wins is judged like any route.
function read_default(text) {
  if (type == 1 && table != 254 && elsewhere == "")
    elsewhere = "; another table has one: " in_words(text)
  if (type == 1 && table != 254 && table in is_for_all && gateways != "" && !is_dead && \
    ((uplink_pattern == "" && expected == "") || has_uplink(devs)))
    has_default_beside_main = 1
  if (type != 1 || table != 254 || "tos" in field || devs == "lo")
    return
  default_gateways = default_gateways gateways
  has_dead_default = has_dead_default || is_dead
  if ((uplink_pattern != "" || expected != "") && !has_uplink(devs))
    return
  default_text[++defaults] = text
  default_devs[defaults] = devs
  default_metric[defaults] = metric
  default_proto[defaults] = field["proto"]
  is_odd[defaults] = devs == "" || is_dead
}

function has_uplink(names,    part, i) {
  for (i = split(names, part, "/"); i > 0 && !is_uplink(part[i]); i--)
    ;
  return i > 0
}

# Reads the IPv4 default routes, which determine the uplinks of IPv6: any router can advertise an IPv6 default route.
function expect_ipv4_uplinks(    line, count, i) {
  count = split(ENVIRON["IPV4_DEFAULTS"], line, "\n")
  for (i = 1; i <= count; i++) {
    take_apart(line[i])
    read_default(line[i])
  }
  expect_defaults()
  defaults = 0
}

# Sets the uplinks to the interfaces of the best default route, unless another one has an equal right.
function expect_defaults(    i, best, is_contested, is_doubtful) {
  for (i = 1; i <= defaults; i++)
    if (!best || default_metric[i] < default_metric[best])
      best = i
  is_doubtful = gone != "" || may_be_of_pods(default_devs[best]) || is_of_vpn(default_devs[best])
  for (i = 1; i <= defaults; i++) {
    if (is_odd[i])
      can_not("the default route " in_words(default_text[i]))
    if (default_devs[i] != default_devs[best])
      is_contested = is_contested || is_doubtful || default_metric[i] == default_metric[best]
    # networkd merges all routers' default routes into one.
    else if (default_proto[i] == 9 && index(default_devs[i], "/"))
      is_contested = 1
  }
  expected = default_devs[best]
  if (is_nic_gone && is_of_vpn(expected) && needs_uplinks && problem == "")
    problem = "contested-default: " gone ", with which the check passed, is gone, and the default route is that of a" \
      " VPN, " with_commas(expected) "; bring " gone " back, or name the node\047s uplinks (hostRouting.uplinks), " \
      THEN
  if (is_contested && needs_uplinks && problem == "")
    problem = "contested-default: several interfaces have a default route, and the kernel may choose another one" \
      " for each packet, or takes a container\047s or a VPN\047s;" \
      " name the node\047s uplinks (hostRouting.uplinks), " THEN
}

# Sets the uplinks to the interfaces that the config names. No name contains ":".
function expect_named(    line, part, name) {
  while ((getline line <"/proc/self/net/dev") > 0)
    if (split(line, part, ":") > 1 && split(part[1], name, " ") && is_uplink(name[1]))
      expected = with_name(expected, name[1])
}

# --- cut -------------------------------------------------------------------------------------------------------------

# Sets first, last and bits, and adds the prefix's borders.
function cut(prefix) {
  read_prefix(prefix)
  print first "\n" after(last) | SORTER
}

# Sets the places, in order: probe[1..places], and place_at[probe].
function find_places(    i, covered, line, word) {
  if (family == 4) { # clouds have addresses there
    cut("169.254.0.0/16")
    cut("168.63.129.16")
  }
  for (i = 1; i <= ranges; i++)
    print range_first[i] "\n" after(range_last[i]) "\n" range_first[i], range_last[i] | SORTER
  if (close(SORTER) != 0)
    can_not(UNWRITABLE)
  while ((getline line <ENVIRON["SCRATCH"]) > 0) {
    split(line, word, " ")
    if (word[2] > covered)
      covered = word[2]
    if (word[1] <= covered && word[1] != probe[places]) {
      probe[++places] = word[1]
      place_at[word[1]] = places
    }
  }
  close(ENVIRON["SCRATCH"])
}

# --- ask -------------------------------------------------------------------------------------------------------------

# Looks up each place's probe without a source and from each of the named addresses. If there are any, it also finds out
# which source the kernel chooses for a connection: a lookup without "fibmatch" shows it.
#
# Sets text_of[i] or failed[i] for each lookup. Those of place p begin after (p - 1) * lookups_each; the one without a
# source is the first. The last command takes the lock under which the kernel announces changes: all changes that the
# results reflect have been announced by then.
function look_up(    p, k, i, line, list, count, given) {
  find_places()
  lookups_each = 1 + nameds + (nameds > 0)
  for (p = 1; p <= places; p++) {
    line = "route get fibmatch " dotted(probe[p]) " uid 0" (family == 6 ? " ipproto 17" : "")
    list[++count] = line
    for (k = 1; k <= nameds; k++)
      list[++count] = line " from " own[named[k]]
    if (nameds) {
      sub(/ fibmatch/, "", line)
      list[++count] = line
    }
  }
  list[count + 1] = "link show dev lo"
  run(list, count + 1, "-force")
  for (i = 1; i <= count; i++)
    if (!(i in failed))
      text_of[i] = answer[++given]
  if (answers != given + 1)
    can_not("ip didn\047t give all answers: is there room left in /run?")
  for (p = 1; p <= places && nameds; p++)
    chosen_at[p] = chosen_source(text_of[(p - 1) * lookups_each + 1], text_of[p * lookups_each])
}

# Returns the source that the kernel chooses for a connection, or "*" if it may be any: several next hops, or routes by
# turns, may have several sources, and in IPv6 it depends on more than the next hop.
function chosen_source(text, text_with_source) {
  take_apart(text)
  if (hops > 1 || family == 6 || ((to, table, metric) in tied_devs && tied_devs[to, table, metric] != "/" devs))
    return "*"
  take_apart(text_with_source)
  return field["src"]
}

# Returns whether anything is sent to a place from an address: a connection, or what a server answers.
function is_sender(p, i) {
  return chosen_at[p] == "*" || chosen_at[p] == own[i] || \
    (is_global[i] && (own_dev[i] == "lo" || is_uplink(own_dev[i])))
}

# --- judge -----------------------------------------------------------------------------------------------------------

function judge(r,    p, k, i) {
  if (!(range_first[r] in place_at))
    can_not(UNWRITABLE)
  for (p = place_at[range_first[r]]; p && p <= places && probe[p] <= range_last[r]; p++) {
    i = (p - 1) * lookups_each + 1
    judge_lookup(r, p, i, "")
    for (k = 1; k <= nameds; k++)
      if (is_sender(p, named[k]))
        judge_lookup(r, p, i + k, own[named[k]])
  }
}

# Judges lookup i of place p for a range. It isn't certain that a failure with a source, or one that IPv6 sockets look
# up again with a source, is a failure for the library, too.
function judge_lookup(r, p, i, from,    what, kind, line) {
  by = text_of[i]
  what = i in failed ? why_discarded(r, p, failed[i]) : why_wrong(r, p, text_of[i])
  if (what == "")
    return
  kind = substr(what, 1, index(what, " ") - 1)
  line = kind ": expected CIDR " expected_cidr[r] " (probe " dotted(probe[p]) ")" substr(what, length(kind) + 1) " " \
    (devs_words[r] == "" ? with_commas(expected) : devs_words[r])
  if (from != "" || (family == 6 && nameds && i in failed))
    can_not("without Python, it isn\047t certain: " line (from == "" ? "" : ", from " from))
  else if (!((expected_cidr[r], devs_words[r], what) in is_told)) {
    is_told[expected_cidr[r], devs_words[r], what] = 1
    finding[++findings] = line (by == "" ? "" : "; by " in_words(by))
  }
}

# Returns the kind of failure of a lookup that the kernel rejects, and the beginning of its message, or "". The kernel
# doesn't tell which route discards the packet, so the blackholes of table main must be the only ones.
function why_discarded(r, p, error,    discarded, i, longest) {
  if (error ~ /^Network( is)? unreachable$/)
    return "NO-ROUTE has no IPv" family " route; expected via"
  discarded = error == "Invalid argument" ? 6 : error == "Permission denied" ? 8 : 7
  if (discarded == 7 && error !~ /^(No route to host|Host is unreachable)$/)
    can_not("can\047t look up routes: " error)
  for (i = 1; i <= kept; i++)
    if (kept_type[i] == discarded && is_between(kept_first[i], probe[p], kept_last[i]) && \
      (!longest || kept_bits[i] > kept_bits[longest]))
      longest = i
  if (discarded == 6 && (discards_elsewhere || !longest))
    can_not("several routes or rules may discard what is sent to " dotted(probe[p]))
  if (longest && devs_pattern[r] == "" && is_block(longest, r))
    return ""
  by = kept_text[longest]
  return "BLACKHOLE is discarded by " type_name[discarded] "; expected via"
}

# Returns whether a discard is for a CNI's own pods: a blackhole that is longer than the expected CIDR, and holds a
# route to a pod or an address of one. A block without pods is known by the CNI's routes to other nodes in the CIDR.
function is_block(block, r,    i, found) {
  if ((block, expected_cidr[r]) in known_block)
    return known_block[block, expected_cidr[r]]
  read_prefix(expected_cidr[r])
  found = 0
  if (kept_type[block] == 6 && kept_bits[block] > bits) {
    for (i = 1; i <= owns; i++)
      found = found || (has_pods(own_dev[i]) && is_between(kept_first[block], own_number[i], kept_last[block]))
    for (i = 1; i <= kept; i++)
      found = found || (is_inside(i, kept_first[block], kept_last[block]) && has_pods(kept_devs[i])) || \
        (is_inside(i, first, last) && kept_type[i] == 1 && kept_proto[i] == kept_proto[block] && \
        kept_proto[i] ~ /^(12|80)$/)
  }
  known_block[block, expected_cidr[r]] = found
  return found
}

function is_inside(i, low, high) {
  return low <= kept_first[i] && kept_last[i] <= high
}

# Returns whether an interface is a pod's, and no uplink.
function has_pods(names,    part, i) {
  for (i = split(names, part, "/"); i > 0 && (is_uplink(part[i]) || !may_be_of_pods(part[i])); i--)
    ;
  return i > 0
}

# Returns the kind of failure of a result, and the beginning of its message, or "". It is uncertain which of the routes
# that the kernel uses by turns, or of the hops that may be dead, carries a packet, so all must be right.
function why_wrong(r, p, text,    what) {
  take_apart(text)
  if ((type, to) in is_of_host) {
    if (type == 3 && text != text_of[(p - 1) * lookups_each + 1])
      can_not("what is sent to " dotted(probe[p]) " depends on its source")
    return type == 2 ? why_router_lost() : ""
  }
  # Packets that match a wider local route stay on this host.
  if (type == 2)
    devs = "lo"
  else if (type != 1 || devs == "" || "encap" in field || \
    (field["src"] != "" && (field["src"] ~ /^127[.]/ || !(field["src"] in is_own))))
    can_not("the route " in_words(text))
  what = failure_of(r, p)
  if (what == "" && type == 1 && (to, table, metric) in tied_devs) {
    is_dead = 1
    devs = substr(tied_devs[to, table, metric], 2)
    gateways = tied_gateways[to, table, metric]
    what = failure_of(r, p)
  }
  if (what != "" && is_dead)
    can_not("what is sent to " dotted(probe[p]) " may go by turns, or by a dead next hop: " in_words(text))
  return what
}

# Returns the same for the interfaces and gateways alone.
function failure_of(r, p,    part, i, is_foreign, is_by_pods, has_others) {
  for (i = split(devs, part, "/"); i > 0; i--) {
    if (devs_pattern[r] != "" ? is_like(part[i], devs_pattern[r]) : is_uplink(part[i])) {
      if (is_port[part[i]])
        can_not(part[i] " is a port of another interface")
      continue
    }
    has_others = 1
    is_foreign = is_foreign || devs_pattern[r] != "" || \
      !is_like(part[i], pattern_of["allowed"] "|" pattern_of["container"])
    is_by_pods = is_by_pods || !is_like(part[i], pattern_of["allowed"])
  }
  if (devs_pattern[r] != "")
    led_instead[r, devs] = 1
  if (is_foreign || (is_by_pods && is_beyond_pods(p)))
    return "OVERLAP routes via " with_commas(devs) ", expected"
  return has_others ? "" : why_local(gateways)
}

# Returns whether the route that take_apart() has read can't be to a network of pods: it is too wide, holds an uplink's
# address or gateway, or lies in an uplink's subnet, unless that is so wide that pods may have a part of it.
function is_beyond_pods(p,    i, part, hop, low, high, length_) {
  read_prefix(to)
  low = first
  high = last
  length_ = bits
  if (length_ < (family == 6 ? 16 : 8))
    return 1
  # EKS gives addresses in 169.254.172.0/22 to pods.
  if (family == 4 && probe[p] ~ /^x(a9fe|a83f8110)/ && !(length_ == 32 && probe[p] ~ /^xa9fea[c-f]/))
    return 1
  for (i = split(default_gateways, part, " "); i > 0; i--)
    if (split(part[i], hop, "/") && is_uplink(hop[2]) && !index(hop[1], ":") == (family == 4) && \
      is_between(low, number(hop[1]), high))
      return 1
  for (i = 1; i <= owns; i++) {
    read_prefix(own_net[i])
    if (is_uplink(own_dev[i]) && (is_between(low, own_number[i], high) || \
      (bits > (family == 6 ? 64 : 11) && bits <= length_ && length_ < BITS && is_between(first, low, last))))
      return 1
  }
  return 0
}

# Returns the same if a gateway is also an address of this host on another interface. This host doesn't answer the
# router's ARP requests then. An IPv6 link-local address counts on the gateway's own interface only.
function why_local(list,    part, hop, i, k) {
  for (i = split(list, part, " "); i > 0; i--) {
    split(part[i], hop, "/")
    for (k = 1; k <= owns && hop[1] in is_own; k++)
      if (own[k] == hop[1] && (own_dev[k] "" == hop[2] "") == (hop[1] ~ /^fe[89ab]/))
        return "GATEWAY leaves for " hop[1] ", which is also an address of this host (" own_dev[k] "); expected via"
  }
  return ""
}

# Returns the same if the address of this host that take_apart() has read is the gateway of an uplink's default route.
function why_router_lost(    part, hop, i, list, what) {
  for (i = split(default_gateways, part, " "); i > 0; i--)
    if (split(part[i], hop, "/") && hop[1] == to && is_uplink(hop[2]))
      list = list " " part[i]
  what = why_local(list)
  if (what != "" && has_dead_default)
    can_not("a default route has a dead next hop")
  return what
}

# Returns what to name in the devs of CIDRs that mean another interface, or the uplink by its former name. Unless such a
# former name or "uplinks" shows that the config is as it was, another is meant only where packets leave through that.
function places_of(was, is_named,    r, means, is_old, out) {
  is_old = is_named
  for (r = 1; r <= ranges; r++) {
    means[r] = devs_pattern[r] == "" ? "" : meaning(devs_pattern[r], was)
    is_old = is_old || (means[r] == "uplink" && !is_configured)
  }
  for (r = 1; r <= ranges; r++)
    if (means[r] != "" && !index(out, " " expected_cidr[r] " ") && \
      (is_old || (means[r] == "other" && (r, was) in led_instead)))
      out = out "in devs of " expected_cidr[r] " name " (means[r] == "other" ? was : present[1]) "; "
  return out (is_named ? "see static-routes\047 line; " : "")
}

# --- the verdict -----------------------------------------------------------------------------------------------------

BEGIN {
  SORTER = "exec sort -u >\"$SCRATCH\""
  own_number[0] = number(family == 6 ? "::1" : "127.0.0.1")
}

END {
  if (section == "heard") {
    print restlessness + 0
    exit
  }
  find_problem()
  if (problem == "")
    look_up()
  for (i = 1; i <= ranges && problem == ""; i++)
    judge(i)
  if (problem == "")
    problem = find_swap()
  print_verdict(problem != "" ? "unknown" : findings ? "overlap" : "ok")
}

function find_problem() {
  if (uplink_pattern != "")
    expect_named()
  else if (expected == "")
    expect_defaults()
  if (find_swap()) {
    problem = find_swap()
    return
  }
  if (uplink_pattern != "" && expected == "")
    problem = "no-uplink: " (!is_like("lo", uplink_pattern) ? \
      "there is no interface " uplink_words ", which hostRouting.uplinks names" : \
      "hostRouting.uplinks (" uplink_words ") matches only lo, which can\047t be an uplink")
  else if (uplink_pattern == "" && needs_uplinks && !defaults)
    problem = "no-default-route" (family == 6 ? ": IPv6" : "") "\t: table main has none that is unicast" elsewhere \
      "; if this node needs none there, name its uplinks (hostRouting.uplinks)"
  else if (!is_local_asked)
    can_not("no policy rule asks table local about everything")
  find_undelivered()
}

# Gives up if table local lacks an address at which this host must be reached, or has an entry that leads elsewhere: one
# of an uplink, or an expected one.
function find_undelivered(    i, r) {
  for (i = 1; i <= owns; i++) {
    if (((2, own[i]) in is_of_host && !(own[i] in is_hidden)) || is_tentative[i] || \
        own[i] ~ /^fe[89ab]/ || is_down[own_dev[i]])
      continue
    for (r = 1; r <= ranges && !is_between(range_first[r], own_number[i], range_last[r]); r++)
      ;
    if (r <= ranges || is_uplink(own_dev[i]))
      can_not("table local may not deliver " own[i])
  }
}

# Prints the verdict; the default route that may still come, or an empty line; the InfiniBand interfaces whose address
# may still come, or an empty line; and the messages, of which the marker omits what follows a tab.
function print_verdict(verdict,    i, lacking, pending) {
  # The routes script doesn't wait for a name that is another NIC's by now, either.
  if ((uplink_pattern == "" ? problem ~ /^no-default/ : !defaults && !find_swap()) && !has_default_beside_main)
    lacking = "the default route" (uplink_pattern == "" ? "" : " on an uplink")
  for (i = 1; i <= infinibands; i++)
    if (family == 4 && problem !~ /^no-/ && !is_uplink(infiniband[i]))
      pending = pending (pending == "" ? "" : ", ") infiniband[i]
  # Our routes only exist if the routes script has waited for the uplink already.
  if (awaited_uplink != "" && !has_ours)
    lacking = awaited_uplink
  print verdict "\n" lacking "\n" pending
  if (verdict == "unknown")
    print problem
  else if (verdict == "ok")
    print "every expected CIDR leaves through " (needs_uplinks ? with_commas(expected) : "") \
      (needs_uplinks && names_devs ? ", or " : "") (names_devs ? "the devs that it names" : "")
  for (i = 1; i <= findings && verdict == "overlap"; i++)
    print finding[i]
  print "end"
}

# Returns how much a recorded change matters: 2 if it may change the verdict, 1 if it may only spoil a dump, 0 if it
# does neither. IPv4 routes outside table local that overlap no expected CIDR don't matter. When a dump of IPv6 routes
# continues, it skips as many routes as it has returned, and misses one if one of those was deleted (fib6_dump_table).
function relevance(line,    i) {
  sub(/^Deleted /, "", line)
  if (line ~ /^[0-9]+:[ \t]/ || line !~ /^([0-9]+ )?[0-9a-f]*[.:]/)
    return 2
  take_apart(line)
  if (!index(to, ":") != (family == 4))
    return 0
  read_prefix(to)
  # When a dump continues within entries that have the same first address, it counts the previous ones.
  while (bits > 0 && end_of(first, bits - 1, ZEROS) == first)
    bits--
  last = end_of(first, bits, ONES)
  for (i = 1; i <= ranges && (range_last[i] < first || range_first[i] > last); i++)
    ;
  return table == 255 || i <= ranges ? 2 : family == 6
}

# --- words -----------------------------------------------------------------------------------------------------------

function with_commas(list) {
  gsub("/", ",", list)
  return list
}

# Converts a route from the format of `ip -N -o` to that of `ip route show`.
function in_words(text,    word, count, i) {
  text = text " "
  gsub(/[ \t\\]+/, " ", text)
  if (match(text, /^[0-9]+ /))
    text = type_name[substr(text, 1, RLENGTH - 1)] substr(text, RLENGTH)
  count = split("proto 2,proto kernel,proto 9,proto ra,proto 3,proto boot,proto 4,proto static,proto 12,proto bird," \
    "proto 16,proto dhcp,proto 217,proto hostrouting,scope 253,scope link,scope 254,scope host", word, ",")
  for (i = 1; i < count; i += 2)
    sub(" " word[i] " ", " " word[i + 1] " ", text)
  return substr(text, 1, length(text) - 1)
}
