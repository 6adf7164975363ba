# The theory of operation. The kernel knows by which route each packet leaves, so this program asks it, and compares the
# answers with the interfaces that the config expects.
#
# Cut. Routes and rules match prefixes, so the kernel's answer can only change where a prefix begins or ends.
# find_places() cuts the expected CIDRs there. One lookup of the first address of each part, a "place", stands for the
# whole part. In a large table, most routes lead through an expected interface. Where the answer only changes from one
# of these to another, nothing fails, so routes cut only if they are "suspect", or lie within a suspect one.
#
# Ask. look_up() asks as a socket does: first without a source; then, for a TCP client, with the source that the kernel
# has chosen for the first answer, and for a server, with the address at which it was called. These answers can only
# differ if rules or routes distinguish sources, so other hosts get no second lookup. TCP and UDP are asked about
# separately only if a rule treats them apart.
#
# Compare. judge() passes each answer that decides where a socket sends through the exemptions: interfaces that the
# config allows, this host's addresses, and a CNI's own blocks.
#
# Whatever this program can't be certain about gives the verdict "unknown" with a reason (can_not()). Python, where it
# is installed, can judge more of these states.

# A unicast route other than a default route. There may be a million of them, and no other line begins like this.
section == "kernel" && /^([0-9]+\.|[0-9a-f]*:[0-9a-f.]*:)/ {
  route[++routes] = $0
  next
}

$0 == "==kernel" && family == 6 && uplink_pattern == "" {
  read_ipv4()
  is_of_ipv4 = default_count > 0
  is_contested = contested()
  expect_its_devices()
}

@routes.awk@

section == "kernel" {
  if (!/^[0-9]+:/)
    read_route()
  else if (/^[0-9]+:\t/)
    read_rule()
  else if (/^[0-9]+: +[^ ]+ +inet6? /) {
    has_address[$2]++
    address_prefix[++addresses] = $4
    address_dev[addresses] = $2
    subnet[addresses] = $5 == "peer" ? $6 : $4
    address[addresses] = substr($4, 1, index($4 "/", "/") - 1)
    is_address[address[addresses]] = 1
    is_global[addresses] = / scope 0 /
    if ($4 ~ /^::ffff:[0-9]+[.]/ && !/ tentative /)
      mapped = address[addresses] ", an address of " $2
    is_usable[addresses] = !/ tentative / && $4 !~ /^(fe[89ab]|169[.]254[.])/
  }
  else
    read_link()
}

section == "heard" {
  kind = relevance($0)
  if (kind > restlessness)
    restlessness = kind
}

# expect FIRST LAST CIDR [PATTERN WORDS]: a range of an expected CIDR outside reserved blocks, in either family.
# PATTERN: the only interfaces that may carry it. WORDS: their names in the config.
section == "config" && $1 == "expect" {
  if (length($2) != length("x" ZEROS))
    next
  ranges++
  range_first[ranges] = $2
  range_last[ranges] = $3
  expected_cidr[ranges] = $4
  devs_pattern[ranges] = $5
  devs_words[ranges] = $6
  needs_uplinks = needs_uplinks || $5 == ""
  next
}
# The patterns are regular expressions; "/" matches no interface name.
section == "config" { pattern_of[$1] = $2 }

# --- reading ---------------------------------------------------------------------------------------------------------

function read_link(    name) {
  name = $2
  sub(/[@:].*/, "", name)
  if (/ link\/(\[32\]|infiniband) / && $3 ~ pattern_of["awaited"])
    infiniband[++infinibands] = name
  if (uplink_pattern != "" && is_uplink(name) && name != "lo")
    uplink[++uplinks] = name
}

function read_route() {
  route[++routes] = $0
  # No route can change where this host's own and broadcast addresses lead.
  if (/^[0-9] [0-9a-f:.]+ .* table 255 / && ($1 == 2 || (family == 4 ? $1 == 3 : $1 == 4 && / proto 2 /)))
    is_of_host[$1 " " $2 "/" BITS] = 1
  if (!/^([0-9]+ )?default /)
    return
  parse($0)
  read_default()
  if (to == ANYWHERE && type_of[class] == 1 && table_of[class] == 254 && !is_for_tos[class] && class !~ / from /)
    has_gateways[class] = 1
  if (is_by_turns())
    turn[turn_of_class(), ++turns[turn_of_class()]] = $0
  if (elsewhere == "" && type_of[class] == 1 && table_of[class] != 254)
    elsewhere = "; another table has one: " in_words($0)
}

# For each lookup, the kernel chooses among default routes with the same table, metric and scope, by the state of their
# gateways. Returns whether it does so for the route that parse() has read last.
function is_by_turns() {
  return family == 4 && to == ANYWHERE && type_of[class] == 1 && !is_for_tos[class] && \
    class ~ / via / && class !~ / (nexthop|dead) /
}

function turn_of_class() {
  return table_of[class] " " metric_of[class] " " scope_of[class]
}

# Reads what a rule distinguishes. The kernel evaluates the rules itself, but doesn't tell which one discards a packet.
function read_rule(    line) {
  if (++rules == 1)
    asks_local_first = /^0:\tfrom all lookup 255 *$/
  usual_rules += /^(0:\tfrom all lookup 255|32766:\tfrom all lookup 254|32767:\tfrom all lookup 253) *$/
  # A rule for all ports matches each packet, so then the lookups have port 1. Without such a rule, they have none.
  if (/ [sd]port 1-65534 /)
    ports = " sport 1 dport 1"
  has_any_source_port = has_any_source_port || / sport 1-65534 /
  line = $0
  gsub(/ [sd]port 1-65534/, "", line)
  is_port_1_special = is_port_1_special || line ~ / [sd]port 1(-[0-9]+)? /
  has_sources = has_sources || /from [0-9a-f]*[.:]/
  if (match($0, /from [0-9a-f]*[.:][^ ]*/))
    rule_from[++rules_from] = substr($0, RSTART + 5, RLENGTH - 5)
  treats_tcp_apart = treats_tcp_apart || (/ ipproto / && (!/ [sd]port / || / [sd]port 1-65534 /))
  if (match($0, / to [0-9a-f]*[.:][^ ]*/))
    rule_to[++rules_to] = substr($0, RSTART + 4, RLENGTH - 4)
  # What may discard a packet, in the kernel's order: a table or a rule. A rule's action may be followed by its
  # protocol.
  line = $0
  sub(/ (proto [^ ]+)? *$/, "", line)
  if (match($0, / lookup [0-9]+/)) {
    action_table[++actions] = substr($0, RSTART + 8, RLENGTH - 8) + 0
    is_asked[action_table[actions]] = 1
    # Only what is found can be suppressed, and packets have no mark.
    sub(/ suppress_prefixlength [0-9]+$/, "", line)
    is_unconditional[actions] = line ~ /^[0-9]+:\t(from all|not from all fwmark 0x[1-9a-f][0-9a-f]*) lookup [0-9]+$/
  }
  else if (line ~ / [68]$/)
    action_type[++actions] = substr(line, length(line)) + 0
}

# Returns how much a recorded change matters: 2 if it may change the verdict, 1 if it may only spoil a dump, 0 if it
# does neither. IPv4 routes outside table local that overlap no expected CIDR don't matter. When a dump of IPv6 routes
# continues, it skips as many routes as it has returned, and misses one if one of those was deleted (fib6_dump_table).
function relevance(line,    word, i) {
  sub(/^Deleted /, "", line)
  split(line, word, " ")
  to = word[1] in type_number ? word[2] : word[1]
  if (to !~ /^([0-9]+\.|[0-9a-f]*:[0-9a-f.]*:)/ || (line ~ / table 255 / && !index(to, ":") == (family == 4)))
    return 2
  if (!index(to, ":") != (family == 4))
    return 0
  place(to)
  # When a dump continues within entries that have the same first address, it counts the previous ones.
  while (bits > 0 && end_of(first, bits - 1, ZEROS) == first)
    bits--
  last = end_of(first, bits, ONES)
  for (i = 1; i <= ranges && (range_last[i] < first || range_first[i] > last); i++)
    ;
  return i <= ranges ? 2 : family == 6
}

# --- the verdict -----------------------------------------------------------------------------------------------------

END {
  if (uplink_pattern == "" || (is_of_ipv4 && !is_contested && default_on("*") == ""))
    expected = devs_of[default_on("*")]
  else
    expected = sorted(uplink, uplinks, "/")
  if (section == "heard")
    print restlessness + 0
  else {
    print_verdict()
    print "end"
  }
}

function print_verdict(    i, deaf) {
  if (expected == "" && uplink_pattern != "" && !is_of_ipv4)
    print "unknown\nno-uplink: there is no interface " uplink_words ", which hostRouting.uplinks names"
  else if (expected == "" && needs_uplinks)
    print "no-default-route\n" missing_default() elsewhere
  else if (is_contested || contested())
    print "unknown\ncontested-default: several interfaces have a default route, and the kernel may choose another one" \
      " for each packet, or takes a container\047s; name the node\047s uplinks (hostRouting.uplinks)"
  else if (mapped == "" && !asks_local_first && (deaf = why_not_received()) != "")
    print "unknown\nno-local-table: what is sent " deaf " isn\047t delivered: table local isn\047t asked first about it"
  else {
    if (ports != "" && is_port_1_special)
      can_not("policy rules match all ports, and port 1")
    if (mapped != "")
      can_not("IPv6 sockets can\047t send from " mapped " that the kernel may choose")
    find_places()
    look_up()
    for (i = 1; i <= ranges && problem == ""; i++)
      judge(i)
    print_findings()
  }
}

function print_findings(    i, is_early) {
  if (problem == "again")
    print "again"
  else if (problem != "")
    print "unknown\ncheck-failed: " problem
  else {
    is_early = default_on("*") == "" && (needs_uplinks || uplink_pattern != "")
    print (is_early ? "early-" : "") (findings ? "overlap" : "ok") (family == 4 ? pending_devs() : "")
    for (i = 1; i <= findings; i++)
      print message(finding[i])
    if (!findings)
      print "every expected CIDR leaves " (expected == "" ? "as expected" : "through " with_commas(expected))
  }
}

# Keeps the first reason why there is no verdict. "again" is one that another attempt may resolve.
function can_not(reason) {
  if (problem == "")
    problem = reason
}

# The marker omits the text after the tab.
function missing_default() {
  if (family == 4)
    return "no-default-route\t: table main has no unicast 0.0.0.0/0 to compare with"
  return "no-default-route: IPv6\t has no unicast ::/0 in table main" \
    (is_of_ipv4 ? " through " uplink_words : "") " to compare with"
}

# Returns whether the kernel chooses among several interfaces with equal right, or takes one that may be a container's.
# networkd merges all routers' default routes into one.
function contested(    i, best, others) {
  best = default_on("*")
  for (i = 1; i <= default_count && needs_uplinks && uplink_pattern == "" && is_of_pods(devs_of[best]); i++)
    others += !is_of_pods(devs_of[defaults[i]])
  for (i = 1; i <= default_count && needs_uplinks && uplink_pattern == ""; i++)
    if (metric_of[defaults[i]] == metric_of[best])
      others += devs_of[defaults[i]] != devs_of[best] || \
        (proto_of[defaults[i]] == 9 && index(devs_of[defaults[i]], "/"))
  return others > 0
}

# Returns whether all interfaces may be a container's. A bridge with such a name may be the node's own (azure0).
function is_of_pods(devs,    list, count, i, found) {
  count = split(devs, list, "/")
  for (i = 1; i <= count; i++)
    found += list[i] ~ ("^(" pattern_of["container"] ")$") && !is_bridge(list[i])
  return count && found == count
}

function is_bridge(name,    line, word) {
  while (!has_read_bridges && ("exec ip -o link show type bridge" | getline line) > 0) {
    split(line, word, /[ :@]+/)
    bridge[word[2]] = 1
  }
  has_read_bridges = 1
  return name in bridge
}

# Returns the InfiniBand interfaces without an address, as " ib0, ib1"; their connected routes may still be added.
function pending_devs(    list, count, i) {
  for (i = 1; i <= infinibands; i++)
    if (!(infiniband[i] in has_address) && !index("/" expected "/", "/" infiniband[i] "/"))
      list[++count] = infiniband[i]
  return count ? " " sorted(list, count, ", ") : ""
}

# Returns what doesn't reach this host although it is sent to one of its addresses: the kernel delivers a packet if the
# lookup of its destination returns a local route. The lookup of what comes in also fails for other reasons (rp_filter).
function why_not_received(    i, k, given, text, is_received, was_received, deaf) {
  if (has_sources)
    find_clients()
  for (i = 1; i <= addresses; i++) {
    if (!is_usable[i] || !(is_expected(address_dev[i]) || address[i] ~ /^(127[.]|::1$)/))
      continue
    for (k = 0; k <= clients && is_expected(address_dev[i]); k++)
      add_delivery(i, (k ? client[k] : sender(i)), k ? " from " client[k] : "")
    add_delivery(i, "", "")
  }
  if (deliveries)
    run(delivery, deliveries, "-force")
  for (i = 1; i <= deliveries; i++) {
    text = i in failed ? failed[i] : answer[++given]
    # An address may also be the broadcast address of another subnet.
    is_received = text ~ /^[23] /
    # Of two lookups that differ only in the source port, the second one has none.
    if (has_any_source_port && i % 2 == 0 && is_received != was_received) {
      can_not("whether this host receives what is sent " about[i] " isn\047t known: a policy rule matches source ports")
      return ""
    }
    was_received = is_received
    if (is_received || deaf != "")
      continue
    if (!(i in failed) || is_by_host[i] || text !~ /^Invalid/)
      deaf = about[i]
    else
      can_not("whether this host receives what is sent " about[i] " isn\047t known: " text)
  }
  return deaf
}

# Adds the lookups of a packet to address i, from a sender that an uplink leads to, or from this host.
function add_delivery(i, from, words,    k, twice) {
  twice = 1 + has_any_source_port
  for (k = 0; k < (1 + treats_tcp_apart) * twice; k++) {
    # A packet that comes in counts as root's, but without "uid" the kernel looks up for no user (inet6_rtm_getroute).
    delivery[++deliveries] = "route get " address[i] (from == "" ? "" : " from " from " iif " address_dev[i]) " uid 0" \
      protocol(k >= twice ? " ipproto 6" : "")
    # TCP's first lookup has no source port.
    if (k % twice)
      sub(/ sport 1/, "", delivery[deliveries])
    is_by_host[deliveries] = from == ""
    about[deliveries] = from == "" ? "by this host to " address[i] ", its own address," : \
      "to " address[i] words " through " address_dev[i]
  }
}

# Finds an address of each part of the expected CIDRs that rules for sources tell apart: what it sends may be led away.
# No client has an address of this host.
function find_clients(    r, i) {
  for (r = 1; r <= ranges; r++) {
    add_client(r, range_first[r])
    for (i = 1; i <= rules_from; i++) {
      place(rule_from[i])
      add_client(r, first)
      add_client(r, after(last))
    }
    for (i = 1; i <= addresses; i++)
      add_client(r, after(number(address[i])))
  }
}

function add_client(r, n) {
  if (is_between(range_first[r], n, range_last[r]) && !(dotted(n) in is_address))
    client[++clients] = dotted(n)
}

# Returns the gateway on an address's interface, or else the next address.
function sender(i,    c, list, k, count, part) {
  for (c in has_gateways) {
    count = split(gateways_of[c], list, " ")
    for (k = 1; k <= count; k++) {
      split(list[k], part, "/")
      if (part[2] == address_dev[i] && !index(part[1], ":") == (family == 4))
        return part[1]
    }
  }
  return dotted(after(number(address[i])))
}

# --- cut -------------------------------------------------------------------------------------------------------------

# Sets the places, in order: address_at, and place_at by address. A place reaches up to the next one.
function find_places(    i, covered, suspected) {
  sorter = "exec sort >\"$SCRATCH\""
  for (i = 1; i <= ranges; i++) {
    cut(range_first[i], range_last[i], "expected")
    # This CIDR doesn't expect the uplinks, or no default route catches the rest.
    if (devs_pattern[i] != "" || default_on("*") == "")
      cut(range_first[i], range_last[i], "suspect")
  }
  # Custom rules may affect any address.
  if (rules != usual_rules || rules != (family == 6 ? 2 : 3))
    cut("x" ZEROS, "x" ONES, "suspect")
  for (i = 1; i <= rules_to; i++) {
    place(rule_to[i])
    cut(first, last, "suspect")
  }
  if (family == 4) {
    place("169.254.0.0/16")
    cut(first, last, "plain")
  }
  cut_by_routes("suspect")
  cut_by_routes("plain")
  if (family == 6 && has_sources)
    add_source_borders()
  if (close(sorter) != 0)
    can_not(UNWRITABLE)
  covered = suspected = ""
  while ((getline <ENVIRON["SCRATCH"]) > 0) {
    if ($2 == "expected" && $3 > covered)
      covered = $3
    if ($2 == "suspect" && $3 > suspected)
      suspected = $3
    if ($1 <= covered && !($1 in place_at) && ($2 != "plain" || $1 <= suspected)) {
      place_at[$1] = ++places
      place_first[places] = $1
      address_at[places] = dotted($1)
    }
  }
  close(ENVIRON["SCRATCH"])
}

# Adds the borders of the suspect routes, or those of the plain ones near a suspect range. Routes with the same
# attributes share a class, so that only the first one has to be parsed.
function cut_by_routes(kind,    i) {
  for (i = 1; i <= routes; i++) {
    if (kind == "plain" ? !is_near_suspect(route[i]) : is_plain[substr(route[i], index(route[i], " "))])
      continue
    parse(route[i])
    if (is_plain[class] == "")
      is_plain[class] = type_of[class] == 1 && encap_of[class] == "" && !strays(class, expected, "/") && \
        has_usable_source(class) && local_gateway(class) == ""
    if (!is_for_tos[class] && is_plain[class] == (kind == "plain")) {
      place(to)
      cut(first, last, kind)
    }
  }
}

# Returns whether a route names no source, or one that packets may leave this host with.
function has_usable_source(c) {
  return src_of[c] == "" || (src_of[c] in is_address && src_of[c] !~ /^127[.]/)
}

# Returns a class's gateway that is also an address of this host on another interface, in words. An IPv6 link-local
# address counts on the class's interface only.
function local_gateway(c,    k, count, list, hop_, i) {
  count = split(gateways_of[c], list, " ")
  for (k = 1; k <= count; k++) {
    split(list[k], hop_, "/")
    for (i = 1; i <= addresses && hop_[1] in is_address; i++)
      if (address[i] == hop_[1] && (address_dev[i] == hop_[2]) == (hop_[1] ~ /^fe[89ab]/))
        return hop_[1] ", which is also an address of this host (" address_dev[i] ")"
  }
  return ""
}

# Adds the borders of a range to the addresses that may become places.
function cut(begin, end, kind) {
  print begin, kind, end "\n" after(end), kind | sorter
  if (kind == "suspect") {
    suspect_first[++suspects] = begin
    suspect_last[suspects] = end
  }
}

# Returns whether a suspect range overlaps the addresses that begin like a route's.
function is_near_suspect(line,    head, begin, end, i) {
  # "10." or "fd00:", or "" for prefixes shorter than that.
  head = line ~ (family == 4 ? "^[^ ]*/. " : "^[^ ]*/1?. ") ? "" : substr(line, 1, match(line, /[.:]/))
  if (!(head in is_near)) {
    begin = number(head (family == 6 ? ":" : "0.0.0"))
    end = end_of(begin, family == 6 ? 16 : 8, ONES)
    for (i = 1; i <= suspects && (suspect_last[i] < begin || suspect_first[i] > end); i++)
      ;
    is_near[head] = head == "" || i <= suspects
  }
  return is_near[head]
}

# Adds the borders between which the kernel chooses one source (ipv6_get_saddr_eval): those of labels, ORCHIDs and
# site-local addresses, and each leading part of an address's prefix.
function add_source_borders(    i, length_, border, borders, line, word) {
  borders = split("2001:10::/28 fec0::/10", border, " ")
  while (("exec ip addrlabel" | getline line) > 0) {
    split(line, word, " ")
    # Those with dots are for addresses that aren't judged.
    if (word[1] == "prefix" && word[2] !~ /[.]/)
      border[++borders] = word[2]
  }
  if (close("exec ip addrlabel") != 0)
    can_not("ip doesn\047t list the labels of addresses")
  for (i = 1; i <= borders + addresses; i++) {
    place(i <= borders ? border[i] : address_prefix[i - borders])
    for (length_ = i <= borders ? bits : 1; length_ <= bits; length_++)
      cut(end_of(first, length_, ZEROS), end_of(first, length_, ONES), "plain")
  }
}

# --- ask -------------------------------------------------------------------------------------------------------------

# Looks up all places. A question stands for UDP unless it says TCP, and for both unless a rule treats them apart.
function look_up(    i, firsts) {
  for (i = 1; i <= places; i++) {
    first_at[i] = questions + 1
    add_question(i, "", "")
    if (treats_tcp_apart)
      add_question(i, "", " ipproto 6")
  }
  ask()
  add_turns(1)
  find_sources()
  firsts = questions
  add_connections(firsts)
  ask()
  for (i = firsts + 1; i <= questions; i++)
    if (family == 6 && !(i in error_of) && !(i in is_reply))
      works[place_of[i], is_tcp[i]] = 1
  add_turns(firsts + 1)
}

function add_question(p, from, as_tcp) {
  place_of[++questions] = p
  source_of[questions] = from
  is_tcp[questions] = as_tcp
  lookups_at[p] = lookups_at[p] " " questions
  question[questions] = "route get fibmatch " address_at[p] (from == "" ? "" : " from " from) " uid 0" protocol(as_tcp)
}

function protocol(as_tcp) {
  return (family == 6 && as_tcp == "" ? " ipproto 17" : as_tcp) ports
}

# Any default route of a turn counts as an answer. Starts with question i.
function add_turns(i,    count, k, t) {
  count = questions
  for (; i <= count; i++) {
    parse(text_of[i])
    t = !(i in error_of) && is_by_turns() ? turn_of_class() : ""
    for (k = 1; t != "" && turns[t] > 1 && k <= turns[t]; k++) {
      add_question(place_of[i], source_of[i], is_tcp[i])
      text_of[questions] = turn[t, k]
    }
  }
  asked = questions
}

# Finds the sources that the kernel chooses for connections: sources_of[i], for each question i that leads to a second
# lookup. A route's own source needs no question. For others, a lookup without fibmatch shows the source, with oif that
# of each hop's interface.
function find_sources(    i, k, list, count, firsts) {
  firsts = questions
  for (i = 1; i <= firsts; i++) {
    may_have_source[i] = 1
    if (i in error_of)
      continue
    parse(text_of[i])
    # A rule for a source may also catch local addresses if it precedes table local, or in IPv6 table main; in IPv4, who
    # sends to such an address of another table has that address as the source, but replies have others.
    if (type_of[class] == 2 && asks_local_first && (family == 4 || table_of[class] != 254)) {
      may_have_source[i] = table_of[class] != 255
      continue
    }
    # Without such a rule, a second lookup only differs if a route names a source that this host doesn't have.
    if (!has_sources && (family == 6 || src_of[class] == "" || src_of[class] in is_address))
      continue
    sources_of[i] = src_of[class]
    count = src_of[class] == "" ? split(devs_of[class], list, "/") : 0
    for (k = 1; k <= count; k++) {
      # In IPv4, the source also depends on the gateway, and no lookup is for a gateway.
      if (family == 4 && hops_by[class, list[k]] > 1 && has_address[list[k]] > 1)
        can_not("what is sent to " address_at[place_of[i]] " depends on the next hop: " list[k] " has several")
      question[++questions] = "route get " address_at[place_of[i]] " uid 0" protocol(is_tcp[i]) \
        (count > 1 ? " oif " list[k] : "")
      asked_for[questions] = i
    }
  }
  ask()
  for (i = firsts + 1; i <= questions; i++) {
    if (i in error_of)
      discarder_of(error_of[i])
    else if (sub(/.* src /, "", text_of[i]))  # an encapsulation has a src, too, which comes before
      sources_of[asked_for[i]] = sources_of[asked_for[i]] " " substr(text_of[i], 1, index(text_of[i] " ", " ") - 1)
  }
  if (family == 6 && has_sources)
    find_sources_without_route(firsts)
}

# For a failed lookup in IPv6, the kernel chooses a source among all addresses and tries again. Only a socket shows that
# source. Connecting it sends no packets.
function find_sources_without_route(firsts,    i, file, line, word) {
  file = ENVIRON["SCRATCH"]
  printf "" >file
  for (i = 1; i <= firsts; i++)
    if (i in error_of) {
      if (is_tcp[i] != "" && !((i - 1) in error_of))
        can_not("no socket shows TCP\047s source to " address_at[place_of[i]] ", because UDP needs none")
      print i, address_at[place_of[i]], toupper(swapped(substr(place_first[place_of[i]], 2))) >file
    }
  close(file)
  for (file = "exec bash -p -c \"$CONNECT\" <\"$SCRATCH\" 2>/dev/null"; (file | getline line) > 0;) {
    split(line, word, " ")
    sources_of[word[1]] = dotted("x" swapped(tolower(word[2])))
  }
  close(file)
}

# Converts from or to /proc, which reverses each group of four bytes.
function swapped(digits,    i, out) {
  for (i = 0; i < 32; i += 2)
    out = out substr(digits, i - 2 * (i % 8) + 7, 2)
  return out
}

# Adds the lookups with a source: those of connections, sorted by source, and then those of replies, which have the
# address at which a server was called. Each source is asked about at a place once.
function add_connections(firsts,    i, k, list, count, p) {
  for (i = 1; i <= firsts; i++) {
    count = i in sources_of ? split(sources_of[i], list, " ") : 0
    for (k = 1; k <= count; k++) {
      if (!(list[k] in number_of))
        number_of[list[k]] = number(list[k])
      add_link("connection", number_of[list[k]], list[k], i)
    }
  }
  for (k = 1; k <= addresses; k++)
    if (is_told_apart(k))
      for (i = 1; i <= firsts; i++)
        if (may_have_source[i])
          add_link("reply", number(address[k]), address[k], i)
  split(sorted(chain, chains, " "), chain, " ")
  for (i = 1; i <= chains; i++)
    for (k = first_link[chain[i]]; k; k = next_link[k]) {
      p = place_of[linked[k]]
      add_question(p, name_of[chain[i]], is_tcp[linked[k]])
      if (chain[i] ~ /^r/)
        is_reply[questions] = 1
      else
        connects_at[p] += is_tcp[linked[k]] != "" || !treats_tcp_apart
    }
}

# Adds question i to the chain of a kind and source n, unless source n has it already. There are chains because
# appending to a string takes quadratic time.
function add_link(kind, n, name, i) {
  if ((n, place_of[i], is_tcp[i]) in is_linked)
    return
  is_linked[n, place_of[i], is_tcp[i]] = 1
  linked[++links] = i
  kind = kind n
  if (kind in last_link)
    next_link[last_link[kind]] = links
  else {
    chain[++chains] = kind
    name_of[kind] = name
    first_link[kind] = links
  }
  last_link[kind] = links
}

# Returns whether a server may be called at an address, and rules or IPv6 routes may tell its replies apart.
function is_told_apart(k,    i, n, found) {
  if (!has_sources || !is_global[k] || !is_usable[k] || !(is_expected(address_dev[k]) || address_dev[k] == "lo"))
    return 0
  # TCP's lookup without a source may be without effect, but not for a server whose address no rule names.
  found = family == 6 || treats_tcp_apart
  n = number(address[k])
  for (i = 1; i <= rules_from && !found; i++) {
    place(rule_from[i])
    found = (first == "x" ZEROS) != is_between(first, n, last)
  }
  return found
}

# Asks all questions that haven't been asked. The kernel announces a change before it releases its lock. Lookups don't
# take this lock, but the last line does. So all changes that the answers reflect have been announced by then. An answer
# may show an expired hop, which the kernel still uses beside one that hasn't expired (fib6_select_path).
function ask(    i, k, n, list, count, given, text, word, words, earlier, depends_on_port) {
  if (asked == questions)
    return
  for (i = asked + 1; i <= questions; i++) {
    list[++count] = question[i]
    # TCP's first lookup has no source port.
    if (has_any_source_port) {
      list[++count] = question[i]
      sub(/ sport 1/, "", list[count])
    }
  }
  list[count + 1] = "link show dev lo"
  run(list, count + 1, "-force")
  for (k = 1; k <= count; k++) {
    i = asked + (has_any_source_port ? int((k + 1) / 2) : k)
    text = k in failed ? failed[k] : answer[++given]
    sub(/ expires -?[0-9]+sec/, "", text)
    if (has_any_source_port && question[i] ~ / fibmatch /) {
      # The kernel shows first the hop that a packet with these ports takes.
      n = split(text, word, " ")
      words = sorted(word, n, " ")
      depends_on_port = depends_on_port || (k % 2 == 0 && words != earlier)
      earlier = words
    }
    if (k in failed)
      error_of[i] = text
    else
      text_of[i] = text
  }
  if (was_interrupted)
    can_not("again")
  else if (answers != given + !((count + 1) in failed))
    can_not("ip didn\047t give all answers: is there room left in /run?")
  else if (depends_on_port)
    can_not("a policy rule matches source ports, and TCP\047s first lookup has none")
  asked = questions
}

# --- compare ---------------------------------------------------------------------------------------------------------

# Judges a range, beginning with its first address.
function judge(r,    p, k, list, count, is_said) {
  p = place_at[range_first[r]]
  if (!p)
    can_not("again")
  for (; p && p <= places && place_first[p] <= range_last[r]; p++) {
    split("", is_said)
    count = split(lookups_at[p], list, " ")
    for (k = 1; k <= count; k++)
      if (sends(list[k]))
        report_failure(r, list[k], is_said)
  }
}

# Returns whether a lookup decides where a socket sends. In IPv4, TCP's first one only chooses the source if there is a
# second one. In IPv6, a socket repeats one that fails.
function sends(i) {
  if (source_of[i] != "")
    return 1
  if (family == 6)
    return !(i in error_of && (place_of[i], is_tcp[i]) in works)
  return is_tcp[i] == "" || !connects_at[place_of[i]]
}

# Reports a failing lookup. A lookup with a source is only reported if the one without a source has a different result.
# Failures that differ only in the route are reported once, with the first address.
function report_failure(r, i, is_said,    what, id) {
  what = i in error_of ? failure_of_discard(r, i) : failure_of_answer(r, i)
  if (what == "" || what in is_said || (what, source_of[i]) in is_said)
    return
  if (source_of[i] == "")
    is_said[what] = 1
  is_said[what, source_of[i]] = 1
  id = expected_cidr[r] SUBSEP devs_words[r] SUBSEP what SUBSEP source_of[i] SUBSEP (i in is_reply)
  if (!(id in told_at)) {
    finding[++findings] = id
    told_at[id] = address_at[place_of[i]]
    told_by[id] = i in error_of ? discarder : text_of[i]
  }
  if (what ~ /^B/ && !index("," discards_at[id] ",", "," discarding_type ","))
    discards_at[id] = discards_at[id] (discards_at[id] == "" ? "" : ",") discarding_type
}

# Returns the kind of failure of a lookup that the kernel rejects, and the beginning of its message, or "". Sets
# discarding_type.
function failure_of_discard(r, i,    type) {
  type = discarder_of(error_of[i])
  if (!type)
    return "NO-ROUTE has no IPv" family " route; expected via"
  discarding_type = type_name[type]
  return is_discarded_by_cni(r, place_first[place_of[i]], type) && devs_pattern[r] == "" ? "" : \
    "BLACKHOLE is discarded by"
}

# Returns the type of the route or rule that discards the packet, or 0 if nothing matches.
function discarder_of(text) {
  if (text !~ /^(Invalid argument|No route to host|Host is unreachable|Permission denied|Network( is)? unreachable)$/)
    can_not("can\047t look up routes: " text)
  return text ~ /^I/ ? 6 : text ~ /^(No|H)/ ? 7 : text ~ /^P/ ? 8 : 0
}

# Returns the kind of failure of an answer, and the beginning of its message, or "". Sets discarding_type.
function failure_of_answer(r, i,    pattern, devs, is_local, is_for_many) {
  parse(text_of[i])
  if (encap_of[class] != "")
    can_not("what is sent to " address_at[place_of[i]] " is encapsulated as " encap_of[class])
  devs = devs_pattern[r] == "" ? expected : ""
  pattern = devs_pattern[r] == "" ? pattern_of["container"] "|" pattern_of["allowed"] : devs_pattern[r]
  is_local = (type_of[class] " " to) in is_of_host
  # In IPv4, TCP can't connect by broadcast and multicast routes. Where it is looked up differently, don't tell it from
  # UDP.
  is_for_many = family == 4 && type_of[class] ~ /^[35]$/
  if (is_for_many)
    if (is_local ? text_of[first_at[place_of[i]]] != text_of[i] : treats_tcp_apart || connects_at[place_of[i]])
      can_not("what is sent to " address_at[place_of[i]] " depends on the kind of socket: " in_words(text_of[i]))
  if (is_local)
    return ""
  # Packets that match any other local route stay on this host.
  if (type_of[class] == 2 || (type_of[class] == 4 && proto_of[class] == 2))
    devs_of[class] = "lo"
  discarding_type = type_name[type_of[class]]
  if (type_of[class] == 1 && !strays(class, devs, devs_pattern[r] == "" ? "/" : pattern) && local_gateway(class) != "")
    return "GATEWAY " devs_of[class]
  if (!strays(class, devs, pattern) && (devs_pattern[r] != "" || !strays(class, devs, pattern_of["allowed"]) || \
    !is_beyond_pods(to, place_first[place_of[i]])))
    return is_for_many ? "BLACKHOLE is discarded by" : ""
  return "OVERLAP routes via " (devs_of[class] == "" ? "no device" : with_commas(devs_of[class])) ", expected"
}

function with_commas(devs) {
  gsub("/", ",", devs)
  return devs
}

# Returns how many interfaces of a class are neither in devs nor match the pattern, or 1 if it has no interface.
function strays(c, devs, pattern,    list, count, i, found) {
  count = split(devs_of[c], list, "/")
  found = !count
  for (i = 1; i <= count; i++)
    found += !index("/" devs "/", "/" list[i] "/") && list[i] !~ ("^(" pattern ")$")
  return found
}

# Returns whether a route through a pod's interface can't be a network of pods: it is too wide, holds an uplink's
# address or gateway, or lies in an uplink's subnet, unless that is so wide that pods may have a part of it.
function is_beyond_pods(prefix, n,    i, c, h, low, high, length_) {
  if (family == 4 && n ~ /^xa9fe/)
    return 1
  if (prefix in beyond_pods)
    return beyond_pods[prefix] > 0
  place(prefix)
  low = first
  high = last
  length_ = bits
  beyond_pods[prefix] = length_ < (family == 6 ? 16 : 8)
  for (c in has_gateways) {
    take_apart(1, c)
    for (h = 1; h <= hops; h++)
      if (is_expected(dev[h]) && !index(via[h], ":") == (family == 4))
        beyond_pods[prefix] += via[h] != "" && is_between(low, number(via[h]), high)
  }
  for (i = 1; i <= addresses; i++)
    if (is_expected(address_dev[i])) {
      beyond_pods[prefix] += is_between(low, number(address[i]), high)
      place(subnet[i])
      if (bits > (family == 6 ? 64 : 11) && bits <= length_ && length_ < BITS)
        beyond_pods[prefix] += is_between(first, low, last)
    }
  return beyond_pods[prefix] > 0
}

function is_between(low, n, high) {
  return low <= n && n <= high
}

function is_expected(name) {
  return index("/" expected "/", "/" name "/") > 0
}

# Sets discarder, and returns whether it is a CNI's own block (is_block). The kernel doesn't tell the entry: it is the
# longest match in one of the tables that rules look up, the first one unless a rule has conditions.
function is_discarded_by_cni(r, n, type,    i, table, best, blocks, others, is_certain) {
  read_entries()
  discarder = ""
  for (i = 1; i <= entries; i++) {
    table = entry_table[i]
    # Of entries with the same prefix, the first one has the lowest metric.
    if (entry_first[i] <= n && n <= entry_last[i] && entry_bits[i] > (table in best ? entry_bits[best[table]] : -1))
      best[table] = i
  }
  for (i = 1; i <= actions && !is_certain; i++) {
    table = action_table[i]
    if (table == "" && action_type[i] == type) {
      others++
      discarder = "a policy rule"
    }
    else if (table in best && entry_type[best[table]] == type) {
      if (is_block(best[table], r))
        blocks++
      else
        others++
      discarder = entry_text[best[table]]
      is_certain = is_unconditional[i]
    }
    else if (table in best && is_refused[best[table]]) {
      others++
      if (discarder == "")
        discarder = entry_text[best[table]]
    }
  }
  if (blocks && others)
    can_not("several routes or rules, one of them a CNI\047s own block, may discard what is sent to " dotted(n))
  return blocks > 0
}

# Reads the entries from which the kernel may choose, those of pods, and those of a CNI to other nodes. The interfaces
# of Services and DNS caches aren't pods'.
function read_entries(    i, may_win, others) {
  others = expected "/kube-ipvs0/kube-dummy-if/nodelocaldns/localdns"
  for (i = 1; i <= addresses && !has_read_entries; i++)
    if (!index("/" others "/", "/" address_dev[i] "/") && address_dev[i] ~ ("^(" pattern_of["container"] ")$"))
      pod_address[++pods] = number(address[i])
  for (i = 1; i <= routes && !has_read_entries; i++) {
    parse(route[i])
    may_win = !is_for_tos[class] && !is_dead_of[class] && class !~ / from / && table_of[class] in is_asked
    # For IPv6, the kernel skips a route whose router is silent.
    if (family == 6 && type_of[class] == 1)
      may_win = 0
    is_pod_entry[++entries] = strays(class, others, "/") > strays(class, others, pattern_of["container"])
    if (proto_of[class] ~ /^(12|80)$/ && type_of[class] == 1) {
      place(to)
      peer_first[++peers] = first
      peer_bits[peers] = bits
      peer_proto[peers] = proto_of[class]
    }
    if (!may_win && !is_pod_entry[entries]) {
      entries--
      continue
    }
    place(to)
    entry_first[entries] = first
    entry_last[entries] = last
    entry_bits[entries] = may_win ? bits : -1
    entry_table[entries] = table_of[class]
    entry_type[entries] = type_of[class]
    entry_text[entries] = route[i]
    # The kernel refuses to send with such a source.
    is_refused[entries] = type_of[class] == 1 && !has_usable_source(class)
    entry_proto[entries] = proto_of[class] ~ /^(12|80)$/ ? proto_of[class] : "none"
  }
  has_read_entries = 1
}

# Returns whether a CNI added a discarding route for its own block: a blackhole longer than the expected CIDR that holds
# a pod's route in the same table or an address of a pod's interface, or, without pods, has the protocol of routes in
# the CIDR to other nodes.
function is_block(e, r,    i) {
  if ((e, r) in known_block)
    return known_block[e, r]
  place(expected_cidr[r])
  known_block[e, r] = 0
  if (entry_type[e] != 6 || entry_bits[e] <= bits)
    return 0
  for (i = 1; i <= peers && !known_block[e, r]; i++)
    known_block[e, r] = peer_proto[i] == entry_proto[e] && peer_bits[i] >= bits && \
      is_between(first, peer_first[i], last)
  for (i = 1; i <= pods && !known_block[e, r]; i++)
    known_block[e, r] = is_between(entry_first[e], pod_address[i], entry_last[e])
  for (i = 1; i <= entries && !known_block[e, r]; i++)
    known_block[e, r] = is_pod_entry[i] && entry_table[i] == entry_table[e] && \
      is_between(entry_first[e], entry_first[i], entry_last[e]) && entry_last[i] <= entry_last[e]
  return known_block[e, r]
}

# --- words -----------------------------------------------------------------------------------------------------------

function message(id,    part, list, count, kind, text) {
  split(id, part, SUBSEP)
  kind = substr(part[3], 1, index(part[3], " ") - 1)
  text = kind ": expected CIDR " part[1] " (probe " told_at[id] ")" substr(part[3], length(kind) + 1)
  if (kind == "BLACKHOLE") {
    count = split(discards_at[id], list, ",")
    text = text " " sorted(list, count, ",") "; expected via"
  }
  if (kind == "GATEWAY") {
    parse(told_by[id])
    text = substr(text, 1, index(text, ")")) " leaves for " local_gateway(class) "; expected via"
  }
  text = text " " (part[2] == "" ? with_commas(expected) : part[2])
  if (part[4] != "")
    text = text " for " (part[5] ? "replies" : "connections") " from " part[4]
  return text (kind == "NO-ROUTE" ? "" : "; by " in_words(told_by[id]))
}

# Converts a route from the format of `ip -N -o` to that of `ip route show`.
function in_words(text,    word, count, i) {
  text = text " "
  gsub(/[ \t\\]+/, " ", text)
  if (family == 6)
    gsub(/ (pref medium|(error|expires|hoplimit) -?[0-9]+[a-z]*)/, "", text)
  if (match(text, /^[0-9]+ /))
    text = type_name[substr(text, 1, RLENGTH - 1)] substr(text, RLENGTH)
  count = split("proto 2,proto kernel,proto 9,proto ra,proto 3,proto boot,proto 4,proto static,proto 12,proto bird," \
    "proto 16,proto dhcp,proto 217,proto hostrouting,scope 253,scope link,scope 254,scope host," \
    "table 253,table default,table 255,table local", word, ",")
  for (i = 1; i < count; i += 2)
    sub(" " word[i] " ", " " word[i + 1] " ", text)
  return substr(text, 1, length(text) - 1)
}
