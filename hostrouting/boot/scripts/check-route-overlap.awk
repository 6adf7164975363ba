# A unicast route other than a default route. There may be a million of them, and no other line begins like this.
section == "kernel" && /^([0-9]+\.|[0-9a-f]*:[0-9a-f.]*:)/ {
  route[++routes] = $0
  next
}

$0 == "==kernel" && family == 6 && uplink_pattern == "" {
  read_ipv4()
  is_of_ipv4 = default_count > 0
  contest = contested()
  expect_its_devices()
}

@routes.awk@

@lookups.awk@

BEGIN {
  # The kernel's labels (net/ipv6/addrlabel.c), and site-local addresses.
  labels = borders = split("::/96 2001::/32 2001:10::/28 3ffe::/16 2002::/16 fec0::/10 fc00::/7", border, " ")
}

section == "kernel" {
  if (!/^[0-9]+:/)
    read_route()
  else if (/^[0-9]+:\t/)
    read_rule()
  else if (/^[0-9]+: +[^ ]+ +inet6? /) {
    has_address[$2] = 1
    border[++borders] = $4
    is_address[substr($4, 1, index($4 "/", "/") - 1)] = 1
  }
  else
    read_link()
}

section == "heard" { is_restless = is_restless || is_relevant($0) }

# Returns whether a change is relevant. A route in the other family isn't. An IPv4 route isn't if it is outside table
# local and overlaps no expected CIDR. When a dump of IPv6 routes continues, it skips as many routes as it has returned,
# and misses one if one of those was deleted (fib6_dump_table).
function is_relevant(line,    word, i) {
  sub(/^Deleted /, "", line)
  split(line, word, " ")
  to = word[1] in type_number ? word[2] : word[1]
  if (to !~ /^([0-9]+\.|[0-9a-f]*:[0-9a-f.]*:)/)
    return 1
  if (!index(to, ":") != (family == 4))
    return 0
  if (family == 6 || line ~ / table 255 /)
    return 1
  place(to)
  # When a dump continues within entries that have the same first address, it counts the previous ones.
  while (bits > 0 && end_of(first, bits - 1, ZEROS) == first)
    bits--
  last = end_of(first, bits, ONES)
  for (i = 1; i <= ranges && (range_last[i] < first || range_first[i] > last); i++)
    ;
  return i <= ranges
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
  own_pattern[ranges] = $5
  own_words[ranges] = $6
  next
}
# The patterns are regular expressions; "/" matches no interface name.
section == "config" { pattern_of[$1] = $2 }

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
  if (/^[0-9] [0-9a-f:.]+ .* table 255 / && ($1 == 2 || (family == 4 ? $1 == 3 : $1 == 4 && / proto 2 /)))
    is_own[$1 " " $2 "/" BITS] = 1
  if (!/^([0-9]+ )?default /)
    return
  parse($0)
  read_default()
  if (family == 4 && turn_of(class) != "")
    turn[turn_of(class), ++turns[turn_of(class)]] = $0
  if (elsewhere == "" && type_of[class] == 1 && table_of[class] != 254)
    elsewhere = "; another table has one: " in_words($0)
}

# For each lookup, the kernel chooses among default routes with the same table, metric and scope, by the state of their
# gateways. Returns these attributes, or "" if the kernel always uses this route.
function turn_of(c) {
  if (!(c in turns_of)) {
    take_apart(type_of[c], c)
    turns_of[c] = type_of[c] == 1 && hops == 1 && via[1] != "" && !is_dead[1] && !is_for_tos[c] ? table_of[c] " " metric_of[c] " " scope_of[c] : ""
  }
  return turns_of[c]
}

# Reads a rule's prefixes. The kernel evaluates the rules itself, but doesn't report which rule discards a packet. Rules
# with unknown selectors are assumed not to match.
function read_rule(    line, i) {
  if (++rules == 1)
    asks_local_first = /^0:\tfrom all lookup 255 *$/
  has_source_ports = has_source_ports || / sport 1-65534/
  # A range with all ports that a client may use doesn't restrict the rule.
  has_all_ports += gsub(/ [sd]port 1-65534/, "")
  for (i = 2; i < NF; i++)
    if ($i ~ /^[sd]port$/)
      ports[++port_ranges] = $(i + 1)
  usual_rules += /^(0:\tfrom all lookup 255|32766:\tfrom all lookup 254|32767:\tfrom all lookup 253) *$/
  has_sources = has_sources || /from [0-9a-f]*[.:]/
  treats_tcp_apart = treats_tcp_apart || (/ ipproto / && !/ [sd]port /)
  if (match($0, / to [0-9a-f]*[.:][^ ]*/))
    rule_to[++rules_to] = substr($0, RSTART + 4, RLENGTH - 4)
  line = " " substr($0, index($0, "\t") + 1)
  gsub(/ (not|(from|to|tos|fwmark|iif|oif|uidrange|ipproto|sport|dport|suppress_prefixlength|suppress_ifgroup|realms|proto) [^ ]+| \[detached\])/, "", line)
  if (line ~ /^ lookup [0-9]+ *$/)
    is_asked[substr(line, 9) + 0] = 1
  else if (line ~ /^ [68] *$/)
    rule_discards[substr(line, 2) + 0] = 1
}

function print_verdict() {
  if (expected == "" && uplink_pattern != "" && !is_of_ipv4)
    print "unknown\nno-uplink: there is no interface " uplink_words ", which hostRouting.uplinks names"
  else if (expected == "")
    print "no-default-route\n" missing_default() elsewhere
  else if (contested() != "")
    print "unknown\ncontested-default: " contested()
  else
    check_all()
}

function check_all(    i) {
  find_places()
  look_up()
  devs_of["lo"] = "lo"
  type_of["shut"] = 3
  any_pattern = pattern_of["container"] "|" pattern_of["allowed"]
  for (i = 1; i <= questions && problem == ""; i++)
    if (i in failed)
      discarded_by[i] = discards_by(failed[i])
    else {
      # No route can change where a local or broadcast address in table local leads. The kernel reports table local as
      # main until a rule is added. Packets that match any other local route stay on this host.
      parse(text_of[i])
      if (encap_of[class] != "")
        problem = "what is sent to " address_at[place_of[i]] " is encapsulated as " encap_of[class] " (by " in_words(text_of[i]) "), and where that leaves is decided by other tables"
      class_of[i] = (type_of[class] " " to) in is_own ? "own" : type_of[class] == 2 || (type_of[class] == 4 && proto_of[class] == 2) ? "lo" : class
      # If unconnected datagrams are routed elsewhere, TCP can't connect to a broadcast address at all.
      if (class_of[i] == "own" && type_of[class] == 3 && class_of[first_at[place_of[i]]] != "own")
        class_of[i] = "shut"
      if (type_of[class] == 5 && is_last_of_tcp(i))
        is_refused[place_of[i]] = 1
    }
  # Datagrams use a multicast route, but TCP can't connect through it.
  for (i = 1; i <= questions; i++)
    if (type_of[class_of[i]] == 5 && !(place_of[i] in is_refused)) {
      devs_of["sent" class_of[i]] = devs_of[class_of[i]]
      class_of[i] = "sent" class_of[i]
    }
  for (i = 1; i <= ranges && problem == ""; i++)
    judge(i)
  if (problem == "again")
    print "again"
  else if (problem != "")
    print "unknown\ncheck-failed: " problem
  else {
    print (default_on("*") == "" ? "early-" : "") (findings ? "overlap" : "ok") (family == 4 ? pending_devs() : "")
    for (i = 1; i <= findings; i++)
      print message(finding[i])
    if (!findings)
      print "every expected CIDR leaves through " with_commas(expected)
  }
}

# Returns whether TCP uses this lookup: its second one if there is one, or else its first.
function is_last_of_tcp(i) {
  return is_of_tcp(i) && (source_of[i] != "" || !connects_at[place_of[i]])
}

# Returns why neither the config nor the default routes determine the expected interface, or "".
function contested(    i, h, best, count, others, text, is_ipv6) {
  for (i = 1; i <= ranges && own_pattern[i] != ""; i++)
    ;
  if (i > ranges || uplink_pattern != "")
    return contest
  best = default_on("*")
  for (i = 1; i <= default_count; i++)
    if (metric_of[defaults[i]] == metric_of[best]) {
      # networkd merges all routers' default routes.
      if (proto_of[defaults[i]] == 9)
        for (h = hops_of(defaults[i]); h >= 1; h--)
          count += !is_dead[h]
      else
        count++
      others += devs_of[defaults[i]] != devs_of[best] || (proto_of[defaults[i]] == 9 && index(devs_of[defaults[i]], "/"))
      text = text "; " in_words("default" defaults[i])
    }
  if (!others)
    return ""
  is_ipv6 = family == 6 && !is_of_ipv4
  return "table main has " count (is_ipv6 ? " IPv6" : "") " default routes with metric " metric_of[best] " through several interfaces, and the kernel may choose another one for each packet: " substr(text, 3) "; " (is_ipv6 ? "" : "give one of them a lower metric, or ") "name the node\047s uplinks (hostRouting.uplinks)"
}

# Returns the type of the route or rule that discards the packet, or 0 if nothing matches.
function discards_by(text) {
  if (text !~ /^(Invalid argument|No route to host|Host is unreachable|Permission denied|Network( is)? unreachable)$/)
    problem = "can\047t look up routes: " text
  return text ~ /^I/ ? 6 : text ~ /^(No|H)/ ? 7 : text ~ /^P/ ? 8 : 0
}

# Checks a range, beginning with its first address.
function judge(r,    p, k, list, count, is_said) {
  p = place_at[range_first[r]]
  if (!p)
    problem = "again"
  for (; p && p <= places && place_first[p] <= range_last[r]; p++) {
    split("", is_said)
    count = split(lookups_at[p], list, " ")
    for (k = 1; k <= count; k++)
      if (sends(list[k]))
        report_failure(r, list[k], is_said)
  }
}

# Reports a failing lookup. A lookup with a source is only reported if the one without a source has a different result.
# Failures that differ only in the route are reported once, with the first address.
function report_failure(r, i, is_said,    what, id, c, pattern, kind) {
  pattern = own_pattern[r]
  if (!(i in failed)) {
    c = class_of[i]
    what = failure_of(c, pattern)
  }
  else if (!discarded_by[i])
    what = "NO-ROUTE has no IPv" family " route; expected via"
  else if (!find_discarder(number(address_at[place_of[i]]), discarded_by[i]) || pattern != "")
    what = "BLACKHOLE is discarded by"
  if (what == "" || what in is_said)
    return
  if (source_of[i] == "")
    is_said[what] = 1
  id = expected_cidr[r] SUBSEP own_words[r] SUBSEP what SUBSEP source_of[i]
  if (!(id in told_at)) {
    finding[++findings] = id
    told_at[id] = address_at[place_of[i]]
    told_by[id] = i in failed ? discarder : text_of[i]
  }
  kind = type_name[i in failed ? discarded_by[i] : type_of[c]]
  if (what ~ /^B/ && !index("," discards[id] ",", "," kind ","))
    discards[id] = discards[id] (discards[id] == "" ? "" : ",") kind
}

# Returns the kind of a class's failure and the beginning of its message, or "".
function failure_of(c, pattern) {
  # TCP can't connect through routes of types broadcast and multicast.
  if (c == "shut" || (type_of[c] ~ /^[35]$/ && !(pattern == "" ? unexpected_devs(c, expected, "/") : unexpected_devs(c, "", pattern))))
    return "BLACKHOLE is discarded by"
  if (c == "own" || !(pattern == "" ? unexpected_devs(c, expected, any_pattern) : unexpected_devs(c, "", pattern)))
    return ""
  return "OVERLAP routes via " (devs_of[c] == "" ? "no device" : with_commas(devs_of[c])) ", expected"
}

function with_commas(devs) {
  gsub("/", ",", devs)
  return devs
}

# Returns how many interfaces of a class are neither in devs nor match the pattern, or 1 if it has no interface.
function unexpected_devs(c, devs, pattern,    list, count, i, found) {
  count = split(devs_of[c], list, "/")
  found = !count
  for (i = 1; i <= count; i++)
    found += !index("/" devs "/", "/" list[i] "/") && list[i] !~ ("^(" pattern ")$")
  return found
}

function message(id,    part, list, count, kind, text) {
  split(id, part, SUBSEP)
  kind = substr(part[3], 1, index(part[3], " ") - 1)
  text = kind ": expected CIDR " part[1] " (probe " told_at[id] ")" substr(part[3], length(kind) + 1)
  if (kind == "BLACKHOLE") {
    count = split(discards[id], list, ",")
    text = text " " sorted(list, count, ",") "; expected via"
  }
  text = text " " (part[2] == "" ? with_commas(expected) : part[2])
  if (part[4] != "")
    text = text " for connections from " part[4]
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
  count = split("proto 2,proto kernel,proto 9,proto ra,proto 3,proto boot,proto 4,proto static,proto 12,proto bird,proto 16,proto dhcp,proto 217,proto hostrouting,scope 253,scope link,scope 254,scope host,table 253,table default,table 255,table local", word, ",")
  for (i = 1; i < count; i += 2)
    sub(" " word[i] " ", " " word[i + 1] " ", text)
  return substr(text, 1, length(text) - 1)
}

# Returns the InfiniBand interfaces without an address, as " ib0, ib1"; their connected routes may still be added.
function pending_devs(    list, count, i) {
  for (i = 1; i <= infinibands; i++)
    if (!(infiniband[i] in has_address) && !index("/" expected "/", "/" infiniband[i] "/"))
      list[++count] = infiniband[i]
  return count ? " " sorted(list, count, ", ") : ""
}

# Sets discarder, and returns whether it is a CNI's own block: a discarding route, not a default one, that has a CNI's
# protocol or routes to pods inside it in the same table. The kernel doesn't report the entry: it is the longest match
# in one of the tables that rules look up. If several entries, or a rule, may have discarded the packet, all of them
# must be a CNI's. If there is none, the kernel has rejected a unicast route whose source is a loopback address.
function find_discarder(n, type,    table, bits, entry, is_block, is_of_cni, unicast) {
  read_entries()
  discarder = ""
  is_of_cni = !(type in rule_discards)
  for (table in is_asked) {
    for (bits = BITS; bits >= 0 && !((entry = key(table, n, bits)) in entry_class); bits--)
      ;
    if (bits >= 0 && type_of[entry_class[entry]] == 1)
      unicast = entry_text[entry]
    if (bits < 0 || type_of[entry_class[entry]] != type)
      continue
    is_block = bits > 0 && (entry in holds_pods || proto_of[entry_class[entry]] ~ /^(12|80)$/)
    if (discarder == "" || !is_block)
      discarder = entry_text[entry]
    is_of_cni = is_of_cni && is_block
  }
  is_of_cni = is_of_cni && discarder != ""
  if (discarder == "")
    discarder = type in rule_discards || unicast == "" ? "a policy rule" : unicast
  return is_of_cni
}

# Reads the entries that the kernel may choose; for each prefix the first one, which has the lowest metric.
function read_entries(    i, entry) {
  for (i = 1; i <= routes && !has_read_entries; i++) {
    parse(route[i])
    if (is_for_tos[class] || is_dead_of[class])
      continue
    place(to)
    entry = key(table_of[class], first, bits)
    if (!(entry in entry_class) && class !~ / from /) {
      entry_class[entry] = class
      entry_text[entry] = route[i]
    }
    if (unexpected_devs(class, expected, "/") > unexpected_devs(class, expected, pattern_of["container"]))
      for (; bits > 0 && !((entry = key(table_of[class], first, bits)) in holds_pods); bits--)
        holds_pods[entry] = 1
  }
  has_read_entries = 1
}

function key(table, n, bits) {
  return table SUBSEP end_of(n, bits, ZEROS) SUBSEP bits
}

# The marker omits the text after the tab.
function missing_default() {
  if (family == 4)
    return "no-default-route\t: table main has no unicast 0.0.0.0/0 to compare with"
  if (!is_of_ipv4)
    return "no-default-route: IPv6\t has no unicast ::/0 in table main to compare with"
  return "no-default-route: IPv6\t has no default route by " uplink_words (default_count ? "; " with_commas(devs_of[defaults[1]]) " has one (" in_words("default" defaults[1]) ")" : "")
}

END {
  expected = uplink_pattern == "" || (is_of_ipv4 && contest == "" && default_on("*") == "") ? devs_of[default_on("*")] : sorted(uplink, uplinks, "/")
  if (section == "heard")
    print is_restless ? "restless" : "calm"
  else {
    print_verdict()
    print "end"
  }
}
