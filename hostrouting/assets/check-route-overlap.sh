#!/bin/bash
{
# Proves that every expected CIDR below leaves by the default route's interface, and leaves a marker that says so.
# Rendered by hostrouting: edits are lost.
#
#   check-route-overlap.sh         the oneshot at boot: waits for the network as long as the config says
#   check-route-overlap.sh gate    before the machine starts: waits 5 s at most, and looks again for 3 s before it fails
#
# STRICT fails if anything fails or nothing could be judged; WARN only says so. Needs bash, coreutils, flock, iproute2
# 5.15 and any POSIX awk. One ip asks the kernel for everything, one awk judges the answers. Everything stands in one
# group: bash runs none of a file that is cut off.

set -u
# TZ: for the time of the report, which is UTC.
export LC_ALL=C TZ=UTC0 PATH=/usr/sbin:/usr/bin:/sbin:/bin
# bash puts here-documents that are too long for a pipe into a file; /run is writable long before /tmp is.
export TMPDIR=/run
umask 022

readonly MODE=@MODE@
readonly COVERAGE=PROBE
readonly WAIT_SECONDS=@WAIT_SECONDS@
readonly SETTLE_SECONDS=@SETTLE_SECONDS@
readonly RUN_DIR=/run/aks-flex-node
readonly LOCK=$RUN_DIR/lock
readonly MARKER_OK=$RUN_DIR/route-overlap.ok
readonly MARKER_DETECTED=$RUN_DIR/route-overlap.detected
readonly REPORT=$RUN_DIR/route-overlap.json
readonly GATE_OFF=/etc/aks-flex-node/gate.off

# At the gate the long wait is over: it was the oneshot's.
readonly GATE_SECONDS=5
# systemd gives up for good after 5 starts in 10 s: a gate that holds this long is tried for ever.
readonly HOLD_SECONDS=3
# In WARN mode the gate opens after 20 s, come what may.
readonly WARN_SECONDS=18
# As long as a task waits for it.
readonly LOCK_SECONDS=60
# Some changes send no event (a sysctl, a nexthop group), so look now and then without one.
readonly LOOK_SECONDS=1
# Under constant churn two dumps of three are interrupted; this many in a row happen once in a million.
readonly ATTEMPTS=32

# --- what there is to say ------------------------------------------------------------------------------------------

say() { printf '%s\n' "$@"; }
complain() { printf '%s\n' "$@" >&2; }

finish() {
  local file
  end_children
  for file in "$REPORT.$$" "$MARKER_OK.$$" "$MARKER_DETECTED.$$"; do
    ! [ -e "$file" ] || rm -f "$file"
  done
  exit "$1"
}

# The monitor would live on in the control group of the machine.
end_children() {
  # shellcheck disable=SC2086 # several
  [ -z "$CHILDREN" ] || kill $CHILDREN 2>/dev/null
}

# Sets NOW, in hundredths of a second. /proc/uptime, as the clock may be set while this waits.
look_at_time() {
  local up
  read -r up _ </proc/uptime
  NOW=$((10#${up/./}))
}

# --- the kernel and awk --------------------------------------------------------------------------------------------

# ask [-force] <COMMANDS: the kernel's answer, a line each; then "==errors" and what ip said on stderr.
# The errors come last, whole: on one pipe with the answers they could fall into the middle of a line.
# -N: an rt_protos file may give 217 any name. -o: a multipath route is one line.
ask() {
  local errors
  { errors=$(ip -4 -N -o "$@" -batch - 2>&1 >&3 3>&-); } 3>&1
  printf '==errors\n%s\n' "$errors"
}

# think STEP <SECTIONS: all that needs arithmetic. The program and the config are here-documents, quoted: nothing
# in them is expanded.
#
#   addresses   what to ask the kernel about
#   judge       its answers -> a report; the JSON goes to a file beside REPORT, the rest to stdout
think() {
  awk -v step="$1" -v mode="$MODE" -v coverage="$COVERAGE" -v time="$TIME" -v json="$REPORT.$$" \
    -f /dev/fd/3 section=config /dev/fd/4 section=input -
} 3<<'AWK' 4<<'CONFIG'
# Portable awk: mawk prints integers from 2^31 on as 2.14748e+09 wherever it makes text of them, so addresses become
# text in parts, and numbers that only pass through stay text.

# --- routes as ip prints them --------------------------------------------------------------------------------------
# A route is kept as its line of `ip -N -o route show`; parse() takes one apart into the variables that it sets.

function name_numbers(list, name_of, number_of,    count, word, i) {
  count = split(list, word, " ")
  for (i = 1; i < count; i += 2) {
    name_of[word[i]] = word[i + 1]
    number_of[word[i]] = number_of[word[i + 1]] = word[i]
  }
}

BEGIN {
  name_numbers("1 unicast 2 local 3 broadcast 4 anycast 5 multicast 6 blackhole 7 unreachable 8 prohibit 9 throw", type_name, type_number)
  name_numbers("0 unspec 1 redirect 2 kernel 3 boot 4 static 9 ra 11 zebra 12 bird 16 dhcp 18 keepalived 186 bgp 188 ospf 217 hostrouting", proto_name)
  name_numbers("253 default 254 main 255 local", table_name)
  name_numbers("200 site 253 link 254 host 255 nowhere", scope_name)
  size[32] = 1
  for (i = 31; i >= 0; i--)
    size[i] = size[i + 1] * 2
}

function parse(line,    word, count, i, w, h, several) {
  count = split(line, word, " ")
  i = 1
  type = 1
  if (word[1] in type_number) {
    type = type_number[word[1]] + 0
    i = 2
  }
  destination = word[i]
  if (destination == "default")
    destination = "0.0.0.0/0"
  else if (!index(destination, "/"))
    destination = destination "/32"
  table = "254"
  proto = "3"
  scope = tos = metric = "0"
  source = mtu = nhid = ""
  h = 1
  several = 0
  clear_hop(1)
  while (++i <= count) {
    w = word[i]
    if (w == "dev")
      dev[h] = word[++i]
    else if (w == "via") {
      w = word[++i]
      via[h] = w == "inet6" || w == "inet" ? word[++i] : w
    }
    else if (w == "proto")
      proto = word[++i]
    else if (w == "scope")
      scope = word[++i]
    else if (w == "metric")
      metric = word[++i]
    else if (w == "src")
      source = word[++i]
    else if (w == "table")
      table = word[++i]
    else if (w == "nexthop") {
      h = several ? h + 1 : 1
      several = 1
      clear_hop(h)
    }
    else if (w == "weight")
      weight[h] = word[++i]
    else if (w == "onlink")
      onlink[h] = 1
    else if (w == "dead")
      dead[h] = 1
    else if (w == "linkdown")
      linkdown[h] = 1
    else if (w == "tos")
      tos = word[++i]
    else if (w == "nhid")
      nhid = word[++i]
    else if (w == "mtu") {
      if (word[++i] == "lock")
        i++
      mtu = word[i]
    }
    else if (w == "encap")
      while (i < count && word[i + 1] !~ /^(via|dev|table|proto|nexthop)$/)
        i++
    else if (w != "\\" && w !~ /^(pervasive|offload|trap|notify|unresolved|(rt_)?(offload|trap|offload_failed))$/)
      # Any other word has a value, as "advmss 1400".
      i += word[i + 1] == "lock" ? 2 : 1
  }
  hops = h
  # A blackhole of a nexthop object shows lo, which no packet sees.
  if (!several && (type >= 6 || (dev[1] == "" && via[1] == "")))
    hops = 0
}

function clear_hop(h) {
  via[h] = dev[h] = ""
  weight[h] = "1"
  onlink[h] = dead[h] = linkdown[h] = 0
}

function hop_words(h) {
  return (via[h] == "" ? "" : " via " (index(via[h], ":") ? "inet6 " : "") via[h]) (dev[h] == "" ? "" : " dev " dev[h])
}

function flag_words(h) {
  return (dead[h] ? " dead" : "") (onlink[h] ? " onlink" : "") (linkdown[h] ? " linkdown" : "")
}

function named(code, name_of) {
  return code in name_of ? name_of[code] : code
}

# The route as `ip route show` would print it with names, and nothing that doesn't matter here.
function words(line,    out, h) {
  parse(line)
  out = destination == "0.0.0.0/0" ? "default" : destination
  sub(/\/32$/, "", out)
  if (type != 1)
    out = named(type, type_name) " " out
  out = out (tos == "0" ? "" : " tos " tos) (nhid == "" ? "" : " nhid " nhid) (hops == 1 ? hop_words(1) : "")
  out = out (table == "254" ? "" : " table " named(table, table_name)) " proto " named(proto, proto_name)
  out = out (scope == "0" ? "" : " scope " named(scope, scope_name)) (source == "" ? "" : " src " source)
  out = out (metric == "0" ? "" : " metric " metric) (hops == 1 ? flag_words(1) : "") (mtu == "" ? "" : " mtu " mtu)
  if (hops > 1)
    for (h = 1; h <= hops; h++)
      out = out " nexthop" hop_words(h) " weight " weight[h] flag_words(h)
  return out
}

function as_number(address,    part) {
  split(address, part, ".")
  return ((part[1] * 256 + part[2]) * 256 + part[3]) * 256 + part[4]
}

function dotted(n) {
  return int(n / 16777216) "." (int(n / 65536) % 256) "." (int(n / 256) % 256) "." (n % 256)
}

function length_of(prefix) {
  return substr(prefix, index(prefix, "/") + 1) + 0
}

# --- the end of the part that both scripts share -------------------------------------------------------------------

# --- reading -------------------------------------------------------------------------------------------------------

section == "config" {
  if ($1 == "expect")
    cidr[++cidrs] = $2
  else if ($1 == "container")
    container[++containers] = $2
  else if ($1 == "allow")
    allowed[++alloweds] = $2
  next
}

/^==/ {
  section = substr($1, 3)
  next
}

section == "asked" {
  asked[++addresses] = $4
  next
}

section == "errors" {
  if (/Dump was interrupted/)
    interrupted = 1
  else if (/^Command failed /)
    failed[substr($0, index($0, ":") + 1) + 0] = last_error
  else if ($0 != "")
    last_error = $0
  next
}

# The links are listed behind all routes: what comes then are the answers.
$3 ~ /^</ && $1 ~ /:$/ {
  has_links = 1
  read_link()
  next
}

$3 == "inet" && $1 ~ /:$/ {
  has_address[$2] = 1
  next
}

$1 ~ /:$/ {
  rule[++rules] = $0
  next
}

has_links {
  answer[++answers] = $0
  next
}

{
  route[++routes] = $0
  if ($1 == "default" || $2 == "default")
    defaults[++default_count] = $0
}

function read_link(    name) {
  name = $2
  sub(/[@:].*/, "", name)
  # Without names (-N) the hardware type is its number in brackets.
  if (/ link\/(\[32\]|infiniband) /)
    infiniband[++infinibands] = name
}

# --- interfaces ----------------------------------------------------------------------------------------------------

# The interfaces of the hops that the kernel uses, of the route that parse() took apart last: sorted, with a space
# around each; " " if there are none.
function live_devs(    list, count, h, i, out) {
  count = 0
  out = " "
  for (h = 1; h <= hops; h++) {
    if (dead[h] || dev[h] == "" || index(out, " " dev[h] " "))
      continue
    out = out dev[h] " "
    for (i = ++count; i > 1 && (list[i - 1] "") > dev[h]; i--)
      list[i] = list[i - 1]
    list[i] = dev[h]
  }
  out = " "
  for (i = 1; i <= count; i++)
    out = out list[i] " "
  return out
}

# Those of devs that aren't among others.
function without(devs, others,    list, count, i, out) {
  count = split(devs, list, " ")
  out = " "
  for (i = 1; i <= count; i++)
    if (!index(others, " " list[i] " "))
      out = out list[i] " "
  return out
}

function joined(devs, separator,    list, count, i, out) {
  count = split(devs, list, " ")
  for (i = 1; i <= count; i++)
    out = out (i > 1 ? separator : "") list[i]
  return out
}

# Whether a name matches a shell pattern; written out, since the brackets of the three awks differ in their corners.
function is_match(name, pattern,    c, rest, end, i) {
  while (pattern != "") {
    c = substr(pattern, 1, 1)
    rest = substr(pattern, 2)
    if (c == "*") {
      while (substr(rest, 1, 1) == "*")
        rest = substr(rest, 2)
      for (i = 1; i <= length(name) + 1; i++)
        if (is_match(substr(name, i), rest))
          return 1
      return 0
    }
    if (name == "")
      return 0
    # A bracket that stands first in a set is one of it.
    end = c == "[" ? index(substr(rest, 2), "]") : 0
    if (end) {
      if (!is_in_set(substr(name, 1, 1), substr(rest, 1, end)))
        return 0
      rest = substr(rest, end + 2)
    }
    else if (c != "?" && c != substr(name, 1, 1))
      return 0
    name = substr(name, 2)
    pattern = rest
  }
  return name == ""
}

function is_in_set(c, set,    i) {
  for (i = 1; i <= length(set); i++)
    if (substr(set, i + 1, 1) == "-" && i + 2 <= length(set)) {
      if ((c "") >= (substr(set, i, 1) "") && (c "") <= (substr(set, i + 2, 1) ""))
        return 1
      i += 2
    }
    else if (c == substr(set, i, 1))
      return 1
  return 0
}

function is_container(name,    i) {
  if (!(name in container_memo)) {
    container_memo[name] = 0
    for (i = 1; i <= containers && !container_memo[name]; i++)
      container_memo[name] = is_match(name, container[i])
  }
  return container_memo[name]
}

function is_allowed(name,    i) {
  for (i = 1; i <= alloweds; i++)
    if (is_match(name, allowed[i]))
      return 1
  return is_container(name)
}

function are_all(what, devs,    list, count, i) {
  count = split(devs, list, " ")
  for (i = 1; i <= count; i++)
    if (what == "container" ? !is_container(list[i]) : !is_allowed(list[i]))
      return 0
  return 1
}

# The InfiniBand interfaces without an IPv4 address: their connected routes may still come.
function pending_devs(    i, j, out, list, count, name) {
  for (i = 1; i <= infinibands; i++) {
    name = infiniband[i]
    if (name in has_address || index(expected, " " name " "))
      continue
    for (j = ++count; j > 1 && (list[j - 1] "") > (name ""); j--)
      list[j] = list[j - 1]
    list[j] = name
  }
  out = " "
  for (i = 1; i <= count; i++)
    out = out list[i] " "
  return out
}

# --- rules ---------------------------------------------------------------------------------------------------------

# Takes a line of `ip -N rule` apart: preference, lookup (a table, or ""), does_match (it matches the packet that is
# asked about, to this address), and is_other (it doesn't, but may match another packet to the same address).
function parse_rule(text, address,    word, count, i, w, inverted, value) {
  count = split(text, word, " ")
  preference = substr(word[1], 1, length(word[1]) - 1)
  lookup = ""
  is_other = is_split = inverted = 0
  does_match = 1
  for (i = 2; i <= count; i++) {
    w = word[i]
    value = word[i + 1]
    if (w == "not") {
      inverted = 1
      continue
    }
    if (w ~ /^(\[detached\]|\[unresolved\]|nop)$/)
      continue
    i++
    if (w == "from") {
      if (value != "all") {
        is_other = 1
        does_match = does_match && value ~ /\/0$/
      }
    }
    else if (w == "to") {
      if (value != "all" && !is_inside(address, value))
        does_match = 0
    }
    else if (w == "fwmark") {
      is_other = 1
      does_match = does_match && !masked_mark(value)
    }
    else if (w == "uidrange") {
      is_other = 1
      does_match = does_match && value ~ /^0-/
    }
    else if (w == "iif") {
      if (value != "lo") {
        is_other = 1
        does_match = 0
      }
    }
    else if (w == "ipproto") {
      # It treats TCP and UDP differently, whichever it names; a look-up counts as UDP.
      is_split = 1
      does_match = does_match && value ~ /^(17|udp)$/
    }
    else if (w ~ /^(oif|tos|dsfield|dscp|sport|dport)$/) {
      is_other = 1
      does_match = 0
    }
    else if (w == "lookup")
      # Of a VRF's rule the table is the packet's own.
      lookup = value == "[l3mdev-table]" ? "254" : value
  }
  if (inverted)
    does_match = !does_match
  is_other = is_split || (is_other && !does_match)
}

function is_inside(address, prefix,    first) {
  if (!index(prefix, "/"))
    prefix = prefix "/32"
  first = as_number(prefix)
  return address >= first && address < first + size[length_of(prefix)]
}

# What a mark and its mask, 0x1f/0xff, have in common: 0 if an unmarked packet matches.
function masked_mark(text,    part, i, mark, mask, bit, common) {
  if (split(text, part, "/") < 2)
    return hexadecimal(part[1])
  mark = hexadecimal(part[1])
  mask = hexadecimal(part[2])
  common = 0
  for (i = 0; i < 32; i++) {
    if (mark % 2 && mask % 2)
      common = 1
    mark = int(mark / 2)
    mask = int(mask / 2)
  }
  return common
}

function hexadecimal(text,    i, value) {
  value = 0
  text = tolower(text)
  if (substr(text, 1, 2) != "0x")
    return text + 0
  for (i = 3; i <= length(text); i++)
    value = value * 16 + index("0123456789abcdef", substr(text, i, 1)) - 1
  return value
}

# --- discarding routes ---------------------------------------------------------------------------------------------

# Files every route under its table and prefix, the lowest metric first. Only needed where something is discarded.
function file_routes(    i, id, first, devs) {
  if (is_filed)
    return
  is_filed = 1
  for (i = 1; i <= routes; i++) {
    parse(route[i])
    first = as_number(destination)
    devs = without(live_devs(), expected)
    if (devs != " " && has_container(devs)) {
      pod_first[++pods] = first
      pod_length[pods] = length_of(destination)
      pod_table[pods] = table
    }
    if (tos != "0")
      continue
    id = table " " destination
    if (!(id in best) || metric + 0 < best_metric[id]) {
      best[id] = i
      best_metric[id] = metric + 0
    }
  }
}

function has_container(devs,    list, count, i) {
  count = split(devs, list, " ")
  for (i = 1; i <= count; i++)
    if (is_container(list[i]))
      return 1
  return 0
}

# The entry that discards packets to an address, which the kernel's answer doesn't show; "" if a rule does.
function discarding_route(address, wanted_type,    i, bits, id) {
  file_routes()
  for (i = 1; i <= rules; i++) {
    parse_rule(rule[i], address)
    if (lookup == "" || !does_match)
      continue
    for (bits = 32; bits >= 0; bits--) {
      id = lookup " " dotted(address - address % size[bits]) "/" bits
      if (id in best)
        break
    }
    if (bits < 0)
      continue
    parse(route[best[id]])
    if (type == wanted_type)
      return route[best[id]]
  }
  return ""
}

# CNIs blackhole their own block, with the routes to their pods inside it, in the same table; no default is a block.
function is_of_cni(discard,    first, bits, i) {
  parse(discard)
  if (length_of(destination) == 0)
    return 0
  if (proto == "12" || proto == "80")
    return 1
  first = as_number(destination)
  bits = length_of(destination)
  for (i = 1; i <= pods; i++)
    if (pod_table[i] == table && pod_length[i] >= bits && pod_first[i] >= first && pod_first[i] < first + size[bits])
      return 1
  return 0
}

# --- judging -------------------------------------------------------------------------------------------------------

# PROBE: network + 1 of the masked prefix (also for a /31); for a /32 the address itself.
function probe(prefix) {
  return length_of(prefix) == 32 ? as_number(prefix) : as_number(prefix) + 1
}

function find_default(    i, lowest) {
  expected = " "
  for (i = 1; i <= default_count; i++) {
    parse(defaults[i])
    if (type != 1 || table != "254" || tos != "0")
      continue
    if (live_devs() == " ") {
      if (dead_default == "")
        dead_default = defaults[i]
    }
    else if (lowest == "" || metric + 0 < lowest) {
      lowest = metric + 0
      expected = live_devs()
    }
  }
}

# What is missing: the default route, or a live one.
function missing_default(    text) {
  if (dead_default == "")
    return "the default route (table main has no unicast 0.0.0.0/0)"
  parse(dead_default)
  text = words(dead_default)
  if (!hops)
    return "the next hops of the default route (" text "), which the kernel doesn\047t show (set the sysctl net.ipv4.nexthop_compat_mode to 1)"
  return "a live default route (all hops are dead of " text ")"
}

function no_default_route(    i) {
  for (i = 1; i <= default_count; i++) {
    parse(defaults[i])
    if (hops && table != "254")
      return "; another table has one: " words(defaults[i])
  }
  return ""
}

# Sets kind ("" if all is well), message, devs and by for one CIDR, and whether it is a failure.
function judge_one(prefix, address, text, error,    n, foreign, via, asked, wanted_type) {
  kind = by = ""
  is_failure = 0
  asked = "expected CIDR " prefix " (probe " address ")"
  if (error != "") {
    devs = " "
    is_failure = 1
    sub(/^RTNETLINK answers: /, "", error)
    wanted_type = error == "Invalid argument" ? 6 : error ~ /^(No route to host|Host is unreachable)$/ ? 7 : error == "Permission denied" ? 8 : 0
    if (!wanted_type) {
      if (error !~ /^Network( is)? unreachable$/)
        trouble = "can\047t look up routes: " error
      kind = "NO-ROUTE"
      message = "NO-ROUTE: " asked " has no IPv4 route; expected via " joined(expected, ",")
      return
    }
    by = discarding_route(as_number(address), wanted_type)
    if (by != "" && is_of_cni(by)) {
      kind = "CNI-DISCARD"
      message = asked " is discarded by " words(by) ", a CNI\047s own block"
      is_failure = 0
      return
    }
    kind = "BLACKHOLE"
    message = "BLACKHOLE: " asked " is discarded by " type_name[wanted_type] "; expected via " joined(expected, ",") "; by " (by == "" ? "a policy rule" : words(by))
    return
  }
  parse(text)
  devs = live_devs()
  if (type == 2 || type == 3) {
    kind = type == 2 ? "LOCAL" : "BROADCAST"
    message = address " of " prefix " is " (type == 2 ? "an address of this host" : "a broadcast address") (devs == " " ? "" : " on " joined(devs, ",")) "; no route can change that"
    if (without(devs, expected "lo ") != " ")
      message = message ", so nothing in the cluster that has this address can be reached"
    return
  }
  foreign = without(devs, expected)
  if (devs != " " && foreign == " ")
    return
  via = asked " routes via " (devs == " " ? "no device" : joined(devs, ","))
  if (devs != " " && are_all("container", foreign)) {
    kind = "CONTAINER"
    message = via ", a container interface"
    devs = foreign
  }
  else if (devs != " " && are_all("allowed", foreign)) {
    kind = "ALLOWED"
    message = via ", an allowed interface"
    devs = foreign
  }
  else {
    kind = "OVERLAP"
    is_failure = 1
    by = text
    message = "OVERLAP: " via ", expected " joined(expected, ",") "; by " words(text)
  }
}

# Fills findings and notes, in the order of the config.
function judge_all(    i, given, text, others) {
  given = 0
  for (i = 1; i <= addresses; i++) {
    if ((dumps + i) in failed)
      judge_one(cidr[i], asked[i], "", failed[dumps + i])
    else {
      text = answer[++given]
      if (text in is_fine)
        continue
      judge_one(cidr[i], asked[i], text, "")
      if (kind == "")
        is_fine[text] = 1
    }
    if (kind != "")
      add_item(is_failure ? "finding" : "note", cidr[i], asked[i])
  }
  if (given != answers + 0)
    trouble = "can\047t look up routes: ip gave " (answers + 0) " answers instead of " given
  add_pending()
  for (i = 1; i <= rules; i++) {
    parse_rule(rule[i], first_of_rule(rule[i]))
    if (is_other)
      others = others (others == "" ? "" : ", ") preference
  }
  if (others != "") {
    kind = "RULE"
    devs = " "
    message = "policy rules on marks, sources, users, interfaces or ports weren\047t judged: preference " others
    add_item("note", "", "")
  }
}

# An address that a rule is about: the first of its destination.
function first_of_rule(text,    prefix) {
  if (!match(text, / to [0-9.\/]+/))
    return 0
  prefix = substr(text, RSTART + 4, RLENGTH - 4)
  return as_number(index(prefix, "/") ? prefix : prefix "/32")
}

function add_pending(    list, count, i) {
  count = split(pending, list, " ")
  for (i = 1; i <= count; i++) {
    kind = "PENDING"
    devs = " " list[i] " "
    message = list[i] " is an InfiniBand interface without an IPv4 address; once it has one, its subnet\047s route comes too"
    add_item("note", "", "")
  }
}

function add_item(what, prefix, address,    text) {
  if (what == "finding") {
    text = field("kind", quoted(kind)) field("cidr", quoted(prefix)) field("probe", quoted(address)) field("devs", array(devs)) field("expectedDevs", array(expected)) field("ranges", array(address "/32")) field("route", by == "" ? "null" : quoted(words(by))) field("fix", "[]")
    finding[++findings] = "    {" text "\n      \"message\": " quoted(message) "\n    }"
    finding_message[findings] = message
  }
  else {
    text = field("kind", quoted(kind)) field("message", quoted(message)) field("cidr", prefix == "" ? "null" : quoted(prefix)) field("devs", array(devs))
    note[++notes] = "    {" text "\n      \"ranges\": " array(address == "" ? "" : address "/32") "\n    }"
    note_message[notes] = kind ": " message
  }
}

# --- the report ----------------------------------------------------------------------------------------------------

function quoted(text,    out, i, c) {
  if (text !~ /["\\]|[^ -~]/)
    return "\"" text "\""
  for (i = 1; i <= length(text); i++) {
    c = substr(text, i, 1)
    out = out (c == "\"" || c == "\\" ? "\\" c : c ~ /[ -~]/ ? c : "?")
  }
  return "\"" out "\""
}

function field(name, value) {
  return "\n      \"" name "\": " value ","
}

function array(items,    list, count, i, out) {
  count = split(items, list, " ")
  for (i = 1; i <= count; i++)
    out = out (i > 1 ? "," : "") "\n        " quoted(list[i])
  return count ? "[" out "\n      ]" : "[]"
}

function print_list(name, list, count,    i) {
  if (!count) {
    print "  \"" name "\": []," >json
    return
  }
  print "  \"" name "\": [" >json
  for (i = 1; i <= count; i++)
    print list[i] (i < count ? "," : "") >json
  print "  ]," >json
}

function print_json(    list, count, i) {
  print "{\n  \"schema\": 1,\n  \"verdict\": \"" (findings ? "overlap" : "ok") "\",\n  \"mode\": \"" mode "\",\n  \"coverage\": \"" coverage "\"," >json
  count = split(expected, list, " ")
  for (i = 1; i <= count; i++)
    list[i] = "    " quoted(list[i])
  print_list("defaultDevs", list, count)
  print_list("findings", finding, findings)
  print_list("notes", note, notes)
  print "  \"reason\": null,\n  \"time\": \"" time "\"\n}" >json
}

# The first line: a verdict, the number of findings, and the interfaces that may still get an address.
# The reason of "unknown" is the second.
function print_report(    i) {
  if (interrupted) {
    print "again"
    return
  }
  dumps = 4
  for (i = 1; i <= dumps; i++)
    if (i in failed)
      trouble = "can\047t read the routes: " failed[i]
  # There is always a loopback interface: without any ip itself couldn't run.
  if (trouble == "" && !has_links)
    trouble = "can\047t read the routes: " (last_error == "" ? "ip gave no answer" : last_error)
  find_default()
  if (trouble == "" && expected == " ") {
    print "no-default-route 0"
    print "no-default-route: " (dead_default == "" ? "table main has no unicast 0.0.0.0/0 to compare with" : "missing is " missing_default()) no_default_route()
    return
  }
  pending = pending_devs()
  if (trouble == "")
    judge_all()
  if (trouble != "") {
    sub(/RTNETLINK answers: /, "", trouble)
    print "unknown 0"
    print "check-failed: " trouble
    return
  }
  print_json()
  print (findings ? "overlap" : "ok"), findings + 0, pending
  for (i = 1; i <= findings; i++)
    print finding_message[i]
  for (i = 1; i <= notes; i++)
    print note_message[i]
  if (!findings)
    print "every expected CIDR leaves by " joined(expected, ",")
}

END {
  if (step == "addresses") {
    # This line tells from an awk that failed.
    print "addresses"
    for (i = 1; i <= cidrs; i++)
      print "route get fibmatch " dotted(probe(cidr[i])) " uid 0"
  }
  else
    print_report()
}
AWK
@CONFIG@
CONFIG

# --- one look ------------------------------------------------------------------------------------------------------

# Waits for a run that writes to end. Never fails: a check without the lock is better than none.
take_lock() {
  local status
  if ! [ -d "$RUN_DIR" ] && ! mkdir -p "$RUN_DIR"; then
    return
  fi
  umask 077 # whoever can open it can hold it
  { exec 9>>"$LOCK"; } 2>/dev/null
  status=$?
  umask 022
  if [ "$status" -ne 0 ]; then
    complain "can't open the lock $LOCK; judging without it"
    return
  fi
  # In the background, for a signal would have to wait for the end of a command in the foreground.
  flock -w "$LOCK_LIMIT" 9 &
  CHILDREN="$MONITOR $!"
  wait "$!"
  status=$?
  CHILDREN=$MONITOR
  if [ "$status" -ne 0 ]; then
    complain "another run has held the lock $LOCK for $LOCK_LIMIT s; judging without it; see who with: fuser -v $LOCK"
    # Once is enough: whoever holds it that long won't let go.
    LOCK_LIMIT=0
  fi
}

# Asks the kernel and has the answers judged. Sets VERDICT, FINDINGS, PENDING and LINES.
look() {
  local text left lines
  printf -v TIME '%(%Y-%m-%dT%H:%M:%SZ)T' -1
  for ((left = ATTEMPTS; left; left--)); do
    text=$(
      {
        say '==asked' "$LOOKUPS" '==input'
        say 'route show table all' 'address show' 'rule show' 'link show' "$LOOKUPS" | ask -force
      } | think judge
    )
    [ "$text" = again ] || break
  done
  mapfile -t lines <<<"$text"
  read -r VERDICT FINDINGS PENDING <<<"${lines[0]}"
  LINES=("${lines[@]:1}")
  case $VERDICT in
    ok | overlap | unknown | no-default-route) ;;
    again)
      VERDICT=unknown PENDING=''
      LINES=("check-failed: can't list the routes: they changed while they were read, $ATTEMPTS times over; try again later")
      ;;
    *)
      VERDICT=unknown PENDING=''
      LINES=("check-failed: awk ended without an answer")
      ;;
  esac
}

# --- the marker ----------------------------------------------------------------------------------------------------

# Leaves the report and exactly one marker, each by rename. The stale one goes first: a reader never sees both, and
# none is never taken for "ok". Returns whether it could.
write_markers() {
  local marker=$MARKER_DETECTED other=$MARKER_OK
  case $VERDICT in
    ok)
      marker=$MARKER_OK other=$MARKER_DETECTED
      : >"$marker.$$"
      ;;
    overlap) say "${LINES[@]:0:FINDINGS}" >"$marker.$$" ;;
    no-default-route)
      say no-default-route >"$marker.$$" && write_unknown
      ;;
    *)
      say "${LINES[0]}" >"$marker.$$" && write_unknown
      ;;
  esac && mv -f "$REPORT.$$" "$REPORT" && { ! [ -e "$other" ] || rm -f "$other"; } && mv -f "$marker.$$" "$marker"
}

# The report of a verdict "unknown": the reason is the first of LINES, and NETNS what else is to be noted.
write_unknown() {
  local reason note=''
  reason=${LINES[0]//\\/\\\\}
  reason=${reason//\"/\\\"}
  if [ -n "$NETNS" ]; then
    note='
    {
      "kind": "NETNS",
      "message": "'$NETNS'",
      "cidr": null,
      "devs": [],
      "ranges": []
    }
  '
  fi
  say '{' '  "schema": 1,' '  "verdict": "unknown",' "  \"mode\": \"$MODE\"," "  \"coverage\": \"$COVERAGE\"," \
    '  "defaultDevs": [],' '  "findings": [],' "  \"notes\": [$note]," "  \"reason\": \"$reason\"," \
    "  \"time\": \"$TIME\"" '}' >"$REPORT.$$"
}

# Says what was found. Sets STATUS.
report() {
  STATUS=0
  if ! write_markers; then
    complain "can't write the markers in $RUN_DIR"
    STATUS=1
  fi
  case $VERDICT in
    ok) ;;
    overlap) STATUS=1 ;;
    *)
      LINES[0]="the check couldn't judge anything: ${LINES[0]}"
      FINDINGS=1 STATUS=1
      ;;
  esac
  print_some complain "${LINES[@]:0:FINDINGS}"
  print_some say "${LINES[@]:FINDINGS}"
  [ "$MODE" = STRICT ] || STATUS=0
}

print_some() {
  local with=$1
  shift
  [ $# -eq 0 ] || "$with" "${@:1:50}"
  [ $# -le 50 ] || "$with" "and $(($# - 50)) more; all are in $REPORT"
}

# --- waiting -------------------------------------------------------------------------------------------------------

# Returns at the next change of links, addresses or routes, and after some time at the latest.
nap() {
  local hundredths=$1 events=0 limit
  [ "$hundredths" -lt $((LOOK_SECONDS * 100)) ] || hundredths=$((LOOK_SECONDS * 100))
  if [ -z "$MONITOR" ]; then
    exec 8< <(exec ip -4 monitor link address route 2>/dev/null 9>&-)
    MONITOR=$!
    CHILDREN=$MONITOR
    # It says nothing when it begins to listen; what happened until then is seen by looking again soon.
    hundredths=5
  fi
  printf -v limit '%d.%02d' $((hundredths / 100)) $((hundredths % 100))
  if read -r -t "$limit" -u 8 _; then
    # One look for a burst. A bound, so that a flood that never ends can't keep this from looking.
    while [ $((events += 1)) -le 10000 ] && read -r -t 0 -u 8 && read -r -t 1 -u 8 _; do :; done
  elif [ $? -le 128 ]; then
    pause "$limit" # the monitor is gone
  fi
}

pause() {
  sleep "$1" &
  CHILDREN="$MONITOR $!"
  wait "$!"
  CHILDREN=$MONITOR
}

watch_signals() {
  local signal
  for signal in HUP INT TERM; do
    # shellcheck disable=SC2064 # which signal it is is known now
    trap "on_signal SIG$signal" "$signal"
  done
}

# shellcheck disable=SC2317,SC2329 # called by a trap
on_signal() {
  complain "stopped: $1; the marker is that of an earlier run"
  finish 1
}

# --- the gate ------------------------------------------------------------------------------------------------------

# Whether somebody has broken the glass; sets WHY.
is_gate_off() {
  local words
  if [ -e "$GATE_OFF" ]; then
    WHY="the file $GATE_OFF is there"
    return
  fi
  read -r words </proc/cmdline
  WHY='the kernel was started with hostrouting.gate=off'
  [[ " $words " == *' hostrouting.gate=off '* ]]
}

# Ends the run where there is nothing to judge.
prepare_gate() {
  if is_gate_off; then
    complain "GATE OFF: $WHY; the start is admitted and nothing was checked"
    give_up "gate-off: $WHY; the start was admitted and nothing was checked"
    finish 0
  fi
  # In WARN mode a file that can't be read is no reason either.
  if ! [ -e /proc/1/ns/net ] && [ "$MODE" = STRICT ]; then
    give_up "check-failed: can't tell whether this is the host's network namespace: /proc/1/ns/net can't be read; run as root"
    report
    finish "$STATUS"
  fi
  if [ -e /proc/1/ns/net ] && ! [ /proc/self/ns/net -ef /proc/1/ns/net ]; then
    NETNS='this unit has a network namespace of its own; the host is not seen from there'
    give_up "check-failed: $NETNS"
    say "NETNS: $NETNS"
    report
    finish "$STATUS"
  fi
}

give_up() {
  VERDICT=unknown FINDINGS=0 PENDING='' LINES=("$1")
  printf -v TIME '%(%Y-%m-%dT%H:%M:%SZ)T' -1
  [ -d "$RUN_DIR" ] || mkdir -p "$RUN_DIR"
  write_markers || complain "can't write the markers in $RUN_DIR"
}

# In WARN mode the check holds nothing back, not even where something hangs.
run_bounded() {
  timeout -k 1 "$WARN_SECONDS" "$0" bounded
  case $? in
    124 | 137)
      complain "the check was stopped: it took more than $WARN_SECONDS s"
      give_up "check-failed: it took more than $WARN_SECONDS s"
      ;;
  esac
  finish 0
}

# --- the run -------------------------------------------------------------------------------------------------------

MONITOR='' CHILDREN='' REPORTED='' NETNS='' WHY='' TIME='' STATUS=0 HOLD=0
LIMIT=$WAIT_SECONDS SETTLE_LIMIT=$SETTLE_SECONDS LOCK_LIMIT=$LOCK_SECONDS
[ "$LIMIT" -ge "$SETTLE_LIMIT" ] || LIMIT=$SETTLE_LIMIT
case $#:${1-} in
  0:) ;;
  1:gate | 1:bounded)
    [ "$1" = bounded ] || prepare_gate
    [ "$1:$MODE" != gate:WARN ] || run_bounded
    [ "$LIMIT" -le "$GATE_SECONDS" ] || LIMIT=$GATE_SECONDS
    [ "$SETTLE_LIMIT" -le "$GATE_SECONDS" ] || SETTLE_LIMIT=$GATE_SECONDS
    LOCK_LIMIT=$GATE_SECONDS
    [ "$MODE" != STRICT ] || HOLD=$HOLD_SECONDS
    ;;
  *)
    complain "usage: ${0##*/} [gate]"
    exit 64
    ;;
esac
watch_signals
LOOKUPS=$(think addresses </dev/null)
if [ "$LOOKUPS" = addresses ]; then
  rm -f "$MARKER_OK" "$MARKER_DETECTED" "$REPORT"
  say 'no CIDRs are expected: nothing to check'
  finish 0
fi
LOOKUPS=${LOOKUPS#addresses$'\n'}
look_at_time
WAIT_UNTIL=$((NOW + LIMIT * 100)) SETTLE_UNTIL=$((NOW + SETTLE_LIMIT * 100)) HOLD_UNTIL=''
while :; do
  take_lock
  look
  look_at_time
  MISSING='' UNTIL=$WAIT_UNTIL
  if [ "$VERDICT" = no-default-route ]; then
    MISSING='the default route'
  elif [ -n "$PENDING" ] && [ "$NOW" -lt "$SETTLE_UNTIL" ]; then
    MISSING="an address on ${PENDING// /, }"
  fi
  if [ -z "$MISSING" ] || [ "$NOW" -ge "$WAIT_UNTIL" ]; then
    MISSING=''
    [ "$VERDICT" != ok ] || break
    : "${HOLD_UNTIL:=$((NOW + HOLD * 100))}"
    [ "$NOW" -lt "$HOLD_UNTIL" ] || break
    UNTIL=$HOLD_UNTIL
  elif [ "$MISSING" != "$REPORTED" ]; then
    say "waiting up to $LIMIT s for $MISSING"
    REPORTED=$MISSING
  fi
  { exec 9>&-; } 2>/dev/null
  nap $((UNTIL - NOW))
done
report
end_children
exit "$STATUS"
}
