#!/bin/bash
{
# Gives the kernel the static routes below, all of them or none. Rendered by hostrouting: edits are lost.
#
#   static-routes.sh         the oneshot at boot: waits for the network as long as the config says
#   static-routes.sh gate    before the machine starts: waits 5 s at most, and looks again for 3 s before it fails
#
# Needs bash, coreutils, flock, iproute2 5.15 and any POSIX awk. awk plans; one ip reads, another writes and proves:
# the number of processes doesn't depend on the number of routes. Everything stands in one group, since bash runs
# none of a group that is cut off.

set -u
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
# bash puts here-documents that are too long for a pipe into a file; /run is writable long before /tmp is.
export TMPDIR=/run
umask 022

readonly WAIT_SECONDS=@WAIT_SECONDS@
readonly RUN_DIR=/run/aks-flex-node
readonly LOCK=$RUN_DIR/lock
readonly GATE_OFF=/etc/aks-flex-node/gate.off

# At the gate the long wait is over: it was the oneshot's.
readonly GATE_SECONDS=5
# systemd gives up for good after 5 starts in 10 s: a gate that holds this long is tried for ever.
readonly HOLD_SECONDS=3
# As long as a task waits for it.
readonly LOCK_SECONDS=60
# Some changes send no event (a sysctl, a nexthop group), so look now and then without one.
readonly LOOK_SECONDS=1
# Under constant churn two dumps of three are interrupted; this many in a row happen once in a million.
readonly ATTEMPTS=32
# The first line of a plan, filled up with blanks: what comes behind it is found by its length.
readonly HEADER_BYTES=120

# --- what there is to say ------------------------------------------------------------------------------------------

say() { printf '%s\n' "$@"; }
complain() { printf '%s\n' "$@" >&2; }

finish() {
  end_children
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

# ask COMMANDS [-force]: the kernel's answers, a line each; then "==errors" and what ip said on stderr. The errors come
# last and whole: on one pipe with the answers they could fall into the middle of a line.
# -N: an rt_protos file may give 217 any name. -o: a multipath route is one line.
ask() {
  local commands=$1 errors
  shift
  { errors=$(exec ip -4 -N -o "$@" -batch - <<<"$commands" 2>&1 >&3 3>&-); } 3>&1
  printf '==errors\n%s\n' "$errors"
}

# The nexthop objects, where the kernel doesn't show the hops of routes by them. Not with -4: groups belong to no family.
tell_nexthops() {
  [ -n "$HAS_HIDDEN" ] || return 0
  say '==nexthops'
  ip -N -o nexthop show 2>/dev/null
}

# think STEP <SECTIONS: all that takes arithmetic; takes the place of the subshell that it is called in. The program
# and the routes are here-documents, quoted: nothing in them is expanded.
think() {
  exec awk -v step="$1" -v header_bytes="$HEADER_BYTES" -f /dev/fd/3 section=config /dev/fd/4 section=kernel -
} 3<<'AWK' 4<<'ROUTES'
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
  if (!hops && nhid != "" && type == 1)
    find_hops(nhid)
}

function clear_hop(h) {
  via[h] = dev[h] = ""
  weight[h] = "1"
  onlink[h] = dead[h] = linkdown[h] = 0
}

# The hops of a nexthop object, which the kernel doesn't show where the sysctl net.ipv4.nexthop_compat_mode is 0: from
# nexthop, the lines of `ip -N -o nexthop show` by number. Sets is_hidden if it isn't there.
function find_hops(id,    word, leg, part, count, i) {
  if (!(id in nexthop)) {
    is_hidden = 1
    return
  }
  split(nexthop[id], word, " ")
  if (word[3] != "group") {
    add_hop(id, "1")
    return
  }
  count = split(word[4], leg, "/")
  for (i = 1; i <= count; i++) {
    split(leg[i] ",1", part, ",")
    add_hop(part[1], part[2])
  }
  # Of a group of one the kernel shows no weight.
  if (hops == 1)
    weight[1] = "1"
}

function add_hop(id, share,    word, count, i) {
  count = id in nexthop ? split(nexthop[id], word, " ") : 0
  if (count < 3 || word[3] == "blackhole")
    return
  clear_hop(++hops)
  weight[hops] = share
  for (i = 3; i <= count; i++)
    if (word[i] == "dev")
      dev[hops] = word[++i]
    else if (word[i] == "via") {
      i += word[i + 1] ~ /^inet6?$/ ? 2 : 1
      via[hops] = word[i]
    }
    else if (word[i] == "onlink")
      onlink[hops] = 1
    else if (word[i] == "dead")
      dead[hops] = 1
    else if (word[i] == "linkdown")
      linkdown[hops] = 1
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

# What the kernel tells routes apart by (fib_find_alias), of the route that parse() took apart last.
function key() {
  return table " " destination " " tos " " metric
}

# The hops as asked for, without the state that the kernel reports; in their order, or sorted.
function paths(sorted,    path, h, i, out) {
  for (h = 1; h <= hops; h++) {
    out = dev[h] " " via[h] " " onlink[h] " " weight[h]
    for (i = h; sorted && i > 1 && (path[i - 1] "") > out; i--)
      path[i] = path[i - 1]
    path[i] = out
  }
  out = type
  for (h = 1; h <= hops; h++)
    out = out "|" path[h]
  return out
}

function same_next_hops(one, other,    found) {
  parse(one)
  found = paths(1)
  parse(other)
  return found == paths(1)
}

function substance(route) {
  parse(route)
  return paths(0) "|" scope "|" source "|" mtu "|" nhid
}

# A command for ip -batch that names all of a route: to the kernel a missing metric is any, and ip takes some types
# to be meant for table local.
function command(verb, route,    out, h, deletes) {
  parse(route)
  deletes = verb == "del"
  out = "route " verb " " (type == 1 || (deletes && nhid != "") ? "" : type_name[type] " ") destination
  out = out (tos == "0" ? "" : " tos " tos) (metric == "0" ? "" : " metric " metric) " table " table " proto " proto
  out = out " scope " (deletes ? "255" : scope)
  if (!deletes)
    out = out (source == "" ? "" : " src " source) (mtu == "" ? "" : " mtu " mtu)
  if (nhid != "")
    return out " nhid " nhid
  if (hops == 1 || (hops && deletes))
    return out hop_words(1) (onlink[1] && !deletes ? " onlink" : "")
  for (h = 1; h <= hops; h++)
    out = out " nexthop" hop_words(h) " weight " weight[h] (onlink[h] ? " onlink" : "")
  return out
}

# --- reading -------------------------------------------------------------------------------------------------------

section == "config" {
  if (!NF)
    next
  wanted++
  entries_max = 2 * wanted
  wanted_to[wanted] = $1
  wanted_gateway[wanted] = $2
  wanted_dev[wanted] = $3
  wanted_metric[wanted] = $4
  if ($2 == "onlink")
    onlinks[++onlink_count] = wanted
  next
}

/^==/ {
  section = substr($1, 3)
  # The errors that follow are of a batch that began behind this line of the whole.
  if (section == "offset")
    offset = $2
  next
}

section == "kernel" {
  if ($1 !~ /:$/)
    read_route()
  else if ($3 == "inet") {
    sub(/\/.*/, "", $4)
    own_address[$4] = 1
  }
  else if ($2 ~ /:$/)
    read_link()
  else
    rule[++rules] = $0
  next
}

section == "nexthops" {
  nexthop[$2] = $0
  next
}

section == "answers" {
  answer[++answers] = $0
  next
}

section == "expected" {
  expected[++expectations] = $0
  next
}

section == "others" {
  is_foretold[$0]++
  foretold++
  next
}

section == "errors" {
  if (/Dump was interrupted/)
    interrupted = 1
  else if (/^Command failed /)
    failed[offset + substr($0, index($0, ":") + 1)] = last_error
  else if ($0 != "" && !/^Warning: /)
    last_error = $0
  next
}

section == "header" {
  added = $2
  replaced = $3
  removed = $4
  lookups = $5
  is_provable = $10 > 0
  writes = added + replaced + removed
  next
}

section == "changes" {
  change[++changes] = $0
  next
}

section == "old" {
  old[++olds] = $0
  next
}

function read_link(    name, i) {
  name = $2
  sub(/[@:].*/, "", name)
  # Those of type vrf are listed by themselves, and then with all.
  if ($1 in is_listed)
    is_vrf[name] = 1
  is_listed[$1] = 1
  link_state[name] = $3 ~ /[<,]UP[,>]/ ? "up" : "down"
  for (i = 4; i < NF && $i != "\\"; i++)
    if ($i == "master")
      link_master[name] = $(i + 1)
}

# Thousands of routes differ in nothing but their destination, so what is behind it is taken apart once.
function read_route(    kind, to, n, id) {
  if (++entries <= entries_max)
    entry[entries] = trimmed($0)
  kind = $1 in type_number ? $0 : substr($0, length($1) + 2)
  if (!(kind in is_classified))
    classify(kind)
  if (!is_relevant[kind])
    return
  to = $1 in type_number ? $2 : $1
  if (to == "default")
    to = "0.0.0.0/0"
  else if (!index(to, "/"))
    to = to "/32"
  n = ++lines
  line[n] = trimmed($0)
  entry_of[n] = entries
  place[n] = to
  cover(to)
  is_main[n] = in_main[kind]
  if (!is_main[n])
    return
  id = to " " key_of[kind]
  if (!(id in at))
    at[id] = n
  if (is_marked[kind] && to != "0.0.0.0/0") {
    is_ours[n] = 1
    ours[++our_count] = n
    our_id[our_count] = id
  }
  if (is_connected[kind] && !(to in connected))
    connected[to] = n
  # Ours count only where they are wanted: what this run removes must not carry what it adds.
  if (is_near[kind] && !(n in is_ours)) {
    near_to[++nears] = to
    near_devs[nears] = devs_of[kind]
  }
  if (to == "0.0.0.0/0" && is_usual[kind])
    defaults[++default_count] = n
}

# As in the words of a plan: ip ends a route with a blank.
function trimmed(text) {
  return substr(text, length(text)) == " " ? substr(text, 1, length(text) - 1) : text
}

function classify(kind) {
  parse($0)
  is_classified[kind] = 1
  in_main[kind] = table == "254"
  is_relevant[kind] = table == "254" || table == "255"
  key_of[kind] = tos " " metric
  is_marked[kind] = proto == "217"
  is_usual[kind] = type == 1 && tos == "0"
  is_connected[kind] = type == 1 && proto == "2" && scope == "253"
  # The kernel's look-up of a gateway sees only these.
  is_near[kind] = type == 1 && scope >= 253
  devs_of[kind] = live_devs()
}

# The interfaces of the hops that the kernel uses, with a space around each.
function live_devs(    h, out) {
  out = " "
  for (h = 1; h <= hops; h++)
    if (!dead[h] && dev[h] != "" && !index(out, " " dev[h] " "))
      out = out dev[h] " "
  return out
}

# --- resolving: what is left open is filled in from the default route ----------------------------------------------

# The lowest-metric unicast default route of table main with a live hop on dev; any, if that is "*".
function default_for(dev_wanted,    i, best, best_metric, devs) {
  if (dev_wanted in default_of)
    return default_of[dev_wanted]
  best = ""
  for (i = 1; i <= default_count; i++) {
    parse(line[defaults[i]])
    devs = live_devs()
    if (devs == " " || (dev_wanted != "*" && !index(devs, " " dev_wanted " ")))
      continue
    if (best == "" || metric + 0 < best_metric) {
      best = line[defaults[i]]
      best_metric = metric + 0
    }
  }
  return default_of[dev_wanted] = best
}

# Why there is none, in words.
function missing_default(name,    i, h, on, is_there, dead_one) {
  on = name == "*" ? "" : " on " name
  for (i = 1; i <= default_count && dead_one == ""; i++) {
    parse(line[defaults[i]])
    is_there = name == "*"
    for (h = 1; h <= hops; h++)
      if (dev[h] == name)
        is_there = 1
    if (is_there)
      dead_one = line[defaults[i]]
  }
  if (dead_one == "")
    return "the default route" on " (table main has no unicast 0.0.0.0/0" on ")"
  parse(dead_one)
  return "a live default route" on " (all hops are dead of " words(dead_one) ")"
}

function static_words(i,    gateway) {
  gateway = wanted_gateway[i]
  return wanted_to[i] (gateway == "*" ? "" : gateway == "onlink" ? " onlink" : " via " gateway) \
    (wanted_dev[i] == "*" ? "" : " dev " wanted_dev[i]) (wanted_metric[i] == "0" ? "" : " metric " wanted_metric[i])
}

# Each of these sets refusal (it can't be, whatever comes) or lacking (it may still come), or neither.

function check_device(name) {
  if (!(name in link_state))
    lacking = "device " name " (there is no such interface)"
  else if (name in link_master && !(link_master[name] in is_vrf))
    refusal = name " is a port of " link_master[name] ", which takes its packets; name " link_master[name] " as dev"
  else if (link_state[name] != "up")
    lacking = "device " name " (it is down)"
}

# Whether the kernel's look-up of a gateway would succeed: it sees only routes of scope link or nearer.
function is_reachable(gateway, name,    n, i, static) {
  if ((gateway, name) in reachable)
    return reachable[gateway, name]
  n = as_number(gateway)
  for (i = 1; i <= nears; i++)
    if (index(near_devs[i], " " name " ") && is_inside(n, near_to[i]))
      return reachable[gateway, name] = 1
  for (i = 1; i <= onlink_count; i++) {
    static = onlinks[i]
    if ((wanted_dev[static] == name || (wanted_dev[static] == "*" && is_default_device(name))) && is_inside(n, wanted_to[static]))
      return reachable[gateway, name] = 1
  }
  return reachable[gateway, name] = 0
}

function is_default_device(name) {
  if (default_for("*") == "")
    return 0
  if (default_devs == "") {
    parse(default_for("*"))
    default_devs = live_devs()
  }
  return index(default_devs, " " name " ")
}

function is_inside(n, prefix,    first) {
  first = as_number(prefix)
  return n >= first && n < first + size[length_of(prefix)]
}

# Sets hop to the words of the hop that is named; inherited is the default route whose hops may have it onlink.
function named_hop(gateway, name, inherited,    h) {
  tail = ""
  if (gateway == "onlink") {
    hop = " dev " name
    is_onlink_hop = 1
    return
  }
  is_onlink_hop = 0
  hop = " via " gateway " dev " name
  if (gateway in own_address) {
    refusal = "the gateway " gateway " is an address of this host"
    return
  }
  if (inherited != "") {
    parse(inherited)
    for (h = 1; h <= hops; h++)
      if (!dead[h] && via[h] == gateway && dev[h] == name && onlink[h]) {
        tail = " onlink"
        return
      }
  }
  if (!is_reachable(gateway, name))
    lacking = "gateway " gateway " (no route of scope link reaches it on " name ")"
}

# The one interface of the default route that a route with a gateway, or with none, goes by.
function default_device(gateway, inherited,    list, count, i, name, left, rest) {
  parse(inherited)
  count = sorted_devs(list)
  rest = 0
  if (count > 1 && gateway != "onlink")
    for (i = 1; i <= count; i++)
      if (is_reachable(gateway, list[i]))
        left[++rest] = list[i]
  if (rest == 1)
    return left[1]
  if (count == 1)
    return list[1]
  name = ""
  for (i = 1; i <= (rest ? rest : count); i++)
    name = name (i > 1 ? " and " : "") (rest ? left[i] : list[i])
  refusal = "the default route leaves by " name "; name the one meant as dev"
  return ""
}

function sorted_devs(list,    count, part, i, j, name) {
  name = live_devs()
  count = split(name, part, " ")
  for (i = 1; i <= count; i++) {
    for (j = i; j > 1 && (list[j - 1] "") > (part[i] ""); j--)
      list[j] = list[j - 1]
    list[j] = part[i]
  }
  return count
}

# The words behind the destination, in two parts (the metric goes between them), for one gateway and one device.
function resolve(gateway, name,    inherited, h, live, chosen, attributes, legs, single, flags) {
  refusal = lacking = ""
  if (name != "*")
    check_device(name)
  if (refusal != "" || lacking != "")
    return
  if (name != "*" && gateway != "*") {
    named_hop(gateway, name, "")
    head = hop " proto 217" (is_onlink_hop ? " scope 253" : "")
    return
  }
  inherited = default_for(name)
  if (inherited == "") {
    lacking = missing_default(name)
    return
  }
  parse(inherited)
  live = 0
  legs = ""
  for (h = 1; h <= hops; h++)
    if (!dead[h] && (name == "*" || dev[h] == name)) {
      live++
      single = hop_words(h)
      flags = onlink[h] ? " onlink" : ""
      chosen = h
      legs = legs " nexthop" single " weight " weight[h] flags
      if (dev[h] ~ /["\047#\\]/)
        refusal = "the default route leaves by " dev[h] ", a name that ip -batch can't read; name another as dev"
    }
  attributes = source == "" ? "" : " src " source
  legs = (mtu == "" ? "" : " mtu " mtu) legs
  if (refusal != "")
    return
  if (gateway != "*") {
    name = default_device(gateway, inherited)
    if (refusal != "")
      return
    named_hop(gateway, name, inherited)
    parse(inherited)
    head = hop " proto 217" (is_onlink_hop ? " scope 253" : "") attributes
    tail = tail (mtu == "" ? "" : " mtu " mtu)
  }
  else if (live == 1) {
    head = single " proto 217" (via[chosen] == "" ? " scope 253" : "") attributes
    tail = flags (mtu == "" ? "" : " mtu " mtu)
  }
  else {
    head = " proto 217" attributes
    tail = legs
  }
}

function resolve_all(    i, id) {
  for (i = 1; i <= wanted; i++) {
    id = wanted_gateway[i] " " wanted_dev[i]
    if (!(id in is_resolved)) {
      head = tail = ""
      resolve(wanted_gateway[i], wanted_dev[i])
      is_resolved[id] = 1
      heads[id] = head
      tails[id] = tail
      refusal_of[id] = refusal
      lack_of[id] = lacking
      is_direct[id] = head ~ / scope 253/
    }
    if (refusal_of[id] != "")
      refusals[++refused] = "can\047t install " static_words(i) ": " refusal_of[id]
    else if (lack_of[id] != "") {
      if (!(lack_of[id] in is_named)) {
        is_named[lack_of[id]] = 1
        lacks[++missing] = lack_of[id] ", for " static_words(i)
      }
    }
    else {
      wanted_line[i] = as_shown(wanted_to[i]) heads[id] (wanted_metric[i] == "0" ? "" : " metric " wanted_metric[i]) tails[id]
      goes_first[i] = is_direct[id]
    }
  }
}

# A prefix as ip prints it.
function as_shown(prefix,    slash) {
  slash = index(prefix, "/32")
  return slash ? substr(prefix, 1, slash - 1) : prefix
}

# --- planning ------------------------------------------------------------------------------------------------------

function plan_all(    i, first) {
  # A gateway may be reachable only by another of these routes, which must then be there first.
  for (first = 1; first >= 0; first--)
    for (i = 1; i <= wanted; i++)
      if (goes_first[i] == first)
        plan_one(i)
  # And those that others need for their gateway go last, so that the way back puts them back first.
  for (first = 0; first <= 1; first++)
    for (i = 1; i <= our_count; i++)
      if (!(our_id[i] in is_wanted)) {
        parse(line[ours[i]])
        if ((scope == "253") == first)
          removals[++removed] = ours[i]
      }
}

function plan_one(i,    id, there) {
  id = wanted_to[i] " 0 " wanted_metric[i]
  is_wanted[id] = 1
  there = id in at ? at[id] : 0
  if (wanted_to[i] in connected)
    refuse_connected(wanted_to[i], line[connected[wanted_to[i]]])
  else if (!there)
    additions[++added] = i
  else if (there in is_ours) {
    if (line[there] == wanted_line[i] || substance(line[there]) == substance(wanted_line[i]))
      keeps[++kept] = there
    else {
      replacements[++replaced] = i
      replaced_lines[replaced] = there
    }
  }
  else if (same_next_hops(line[there], wanted_line[i]))
    others[++foreign] = there
  else
    refusals[++refused] = "can\047t install " words(wanted_line[i]) ": somebody else\047s route has its destination and metric (" words(line[there]) "); choose another metric or destination, or have its owner remove it"
}

function refuse_connected(to, there,    bits, first, advice, devs, list, count, i, route) {
  route = words(there)
  count = sorted_devs(list)
  for (i = 1; i <= count; i++)
    devs = devs (i > 1 ? "," : "") list[i]
  bits = length_of(to)
  first = as_number(to)
  advice = "leave it out"
  if (bits < 32)
    advice = "name its halves instead, " dotted(first) "/" (bits + 1) " and " dotted(first + size[bits + 1]) "/" (bits + 1) ", which win as the longer prefixes"
  refusals[++refused] = "can\047t install " to ": it is the connected network of " devs " (" route "); another route of that destination would cut the interface off or be ambiguous; " advice
}

# --- what proves that a route wins: one address that no longer prefix covers ---------------------------------------

function cover(prefix,    bits) {
  covers[prefix]++
  bits = substr(prefix, index(prefix, "/") + 1)
  has_length[bits] = 1
}

# Afterwards the table has what is wanted, and what is removed no more.
function cover_changes(    i, bits) {
  for (i = 1; i <= wanted; i++)
    cover(wanted_to[i])
  for (i = 1; i <= removed; i++)
    if (!--covers[place[removals[i]]])
      delete covers[place[removals[i]]]
  for (bits = 0; bits <= 32; bits++) {
    if (bits in has_length)
      lengths[++length_count] = bits
    longer_at[bits] = length_count + 1
  }
}

# The first address of a prefix that no longer one covers; "" if they cover it all.
function own_address_of(prefix,    slash, bits, i, base, address, end, network) {
  slash = index(prefix, "/")
  base = substr(prefix, 1, slash - 1)
  bits = substr(prefix, slash + 1) + 0
  for (i = longer_at[bits]; i <= length_count; i++)
    if ((base "/" lengths[i]) in covers)
      break
  if (i > length_count)
    return base
  address = as_number(base)
  end = address + size[bits]
  while (address < end) {
    for (i = longer_at[bits]; i <= length_count; i++) {
      network = address - address % size[lengths[i]]
      if ((dotted(network) "/" lengths[i]) in covers) {
        address = network + size[lengths[i]]
        break
      }
    }
    if (i > length_count)
      return dotted(address)
  }
  return ""
}

# times: as often is the prefix counted if the route is the only one to it.
function expect(prefix, route, times,    address) {
  if (covers[prefix] != times || route ~ / (dead|linkdown|nhid)( |$)/)
    is_unclear = 1
  address = own_address_of(prefix)
  if (address == "")
    expect_covered(prefix, route)
  else {
    lookup[++lookups] = "route get fibmatch " address " uid 0"
    expected[lookups] = address " " route
  }
}

# A route whose every address belongs to longer prefixes; fine as long as those are all ours.
function expect_covered(prefix, route,    main, i, bits) {
  bits = length_of(prefix)
  for (main = 1; main >= 0; main--)
    for (i = 1; i <= lines; i++)
      if (is_main[i] == main && !(i in is_ours) && length_of(place[i]) > bits && is_inside(as_number(place[i]), prefix)) {
        covered_route[++covered] = words(route) " is in the table but never wins: longer prefixes cover all of it, for example " words(line[i])
        return
      }
}

# --- what proves that all of them win: the rules, and a table that is as foretold ----------------------------------
# A look-up of each costs more than to list a table that holds little else. A route wins if it is the only one to its
# destination, has an address that no longer prefix covers, and the rules are the kernel's own: local, main, default.
# Where anything is out of the ordinary, each is looked up.

function can_prove(    n) {
  if (entries > entries_max || is_unclear || covered || !rules_are_usual(rule, rules))
    return 0
  # Once there was another rule, local is a table of its own and comes first: the length of a prefix there says nothing.
  for (n = 1; n <= lines; n++)
    if (!is_main[n] && length_of(place[n]) < 32 && place[n] != "127.0.0.0/8")
      return 0
  return 1
}

function rules_are_usual(list, count,    i, word) {
  for (i = 1; i <= count; i++) {
    split(list[i], word, " ")
    list[i] = word[1] " " word[2] " " word[3] " " word[4] " " word[5] (6 in word ? " and more" : "")
  }
  return count == 3 && list[1] == "0: from all lookup 255" && list[2] == "32766: from all lookup 254" && list[3] == "32767: from all lookup 253"
}

# Sets other: what the tables hold besides the routes that must win.
function foretell(    i) {
  for (i = 1; i <= replaced; i++)
    delete entry[entry_of[replaced_lines[i]]]
  for (i = 1; i <= removed; i++)
    delete entry[entry_of[removals[i]]]
  for (i = 1; i <= kept; i++)
    delete entry[entry_of[keeps[i]]]
  for (i = 1; i <= foreign; i++)
    delete entry[entry_of[others[i]]]
  for (i = 1; i <= entries; i++)
    if (i in entry)
      other[++other_count] = entry[i]
}

# Whether the rules and tables that ip has listed are as foretold.
function is_as_foretold(    i, list, count, text) {
  for (i = 1; i <= lookups; i++) {
    is_foretold[substr(expected[i], index(expected[i], " ") + 1)]++
    foretold++
  }
  count = 0
  for (i = 1; i <= answers && answer[i] ~ /^[0-9]+:/; i++)
    list[++count] = answer[i]
  if (interrupted || !rules_are_usual(list, count) || answers - count != foretold)
    return 0
  for (; i <= answers; i++) {
    text = trimmed(answer[i])
    if (is_foretold[text]-- <= 0)
      return 0
  }
  return 1
}

# --- the plan ------------------------------------------------------------------------------------------------------

# "again", with "hidden" if a route goes by a nexthop object that isn't known; "missing" or "refused" and why; or
# "plan" and its sections: what to write, what to look up, what that has to answer, what was there before, what to say.
function print_plan(    i) {
  if (interrupted) {
    print "again"
    return
  }
  if (is_hidden) {
    print "again hidden"
    return
  }
  if (last_error != "") {
    print_header("refused")
    print "can\047t list the routes: " reason_text(last_error)
    return
  }
  resolve_all()
  if (!refused && !missing)
    plan_all()
  if (refused) {
    print_header("refused")
    print_all(refusals, refused)
    return
  }
  if (missing) {
    print_header("missing")
    for (i = 1; i <= missing && i <= 3; i++)
      printf "%s", (i > 1 ? "; " : "") lacks[i]
    print (missing > 3 ? "; and " (missing - 3) " more" : "")
    return
  }
  cover_changes()
  for (i = 1; i <= added; i++) {
    change[i] = "route add " wanted_line[additions[i]]
    expect(wanted_to[additions[i]], wanted_line[additions[i]], 1)
  }
  for (i = 1; i <= replaced; i++) {
    change[added + i] = "route replace " wanted_line[replacements[i]]
    old[i] = line[replaced_lines[i]]
    expect(wanted_to[replacements[i]], wanted_line[replacements[i]], 2)
  }
  for (i = 1; i <= removed; i++) {
    change[added + replaced + i] = command("del", line[removals[i]])
    old[replaced + i] = line[removals[i]]
  }
  for (i = 1; i <= kept; i++)
    expect(place[keeps[i]], line[keeps[i]], 2)
  for (i = 1; i <= foreign; i++)
    expect(place[others[i]], line[others[i]], 2)
  for (i = 1; i <= covered; i++)
    expected[lookups + i] = covered_route[i]
  changes = added + replaced + removed
  expectations = lookups + covered
  olds = replaced + removed
  if (can_prove())
    foretell()
  print_header("plan " added + 0 " " replaced + 0 " " removed + 0 " " lookups + 0 " " bytes(change, changes) " " bytes(lookup, lookups) " " bytes(expected, expectations) " " bytes(old, olds) " " bytes(other, other_count))
  print_all(change, changes)
  print_all(lookup, lookups)
  print_all(expected, expectations)
  print_all(old, olds)
  print_all(other, other_count)
  print_summary()
}

function print_header(text) {
  printf "%-" (header_bytes - 1) "s\n", text
}

function bytes(list, count,    i, sum) {
  sum = 0
  for (i = 1; i <= count; i++)
    sum += length(list[i]) + 1
  return sum
}

function print_all(list, count,    i) {
  for (i = 1; i <= count; i++)
    print list[i]
}

function print_summary(    i) {
  for (i = 1; i <= added && i <= 50; i++)
    print "added     " words(wanted_line[additions[i]])
  print_rest(added, 50)
  for (i = 1; i <= replaced && i <= 50; i++)
    print "replaced  " words(wanted_line[replacements[i]]) "  was: " words(old[i])
  print_rest(replaced, 50)
  for (i = 1; i <= removed && i <= 50; i++)
    print "removed   " words(line[removals[i]])
  print_rest(removed, 50)
  for (i = 1; i <= foreign && i <= 50; i++)
    print "unchanged " words(line[others[i]]) "  (somebody else\047s, already there)"
  print_rest(foreign, 50)
  if (!changes)
    print "nothing to change"
}

function print_rest(count, limit) {
  if (count > limit)
    print "and " (count - limit) " more"
}

# --- judging what became of it -------------------------------------------------------------------------------------

function verb_of(k) {
  return k <= added ? "add" : k <= added + replaced ? "replace" : "remove"
}

# The route that a change was about; the command of a removal names only what identifies it.
function written(k,    text) {
  if (k > added + replaced)
    return old[k - added]
  text = change[k]
  sub(/^route [a-z]+ /, "", text)
  return text
}

# The last change of the same kind that is tried where one fails, so that the error names more than the first.
function bulk_end(k,    start, end, last) {
  start = k <= added ? 0 : k <= added + replaced ? added : added + replaced
  last = k <= added ? added : k <= added + replaced ? added + replaced : writes
  end = start + (int((k - start - 1) / 256) + 1) * 256
  return end < last ? end : last
}

# Whether somebody else removed what was to be removed.
function is_gone(k) {
  return verb_of(k) == "remove" && failed[k] ~ /No such process/
}

# "won"; "lost" and which routes; "failed", the number of the change that did, the end of its bulk and ip's words;
# "gone" and the number; "unreached" if a look-up failed, behind which ip asked no more, or if the tables prove nothing.
function judge(    k, first) {
  first = 0
  for (k in failed)
    if (!first || k + 0 < first)
      first = k + 0
  if (!first && !is_provable)
    judge_answers()
  else if (!first && is_as_foretold())
    print "won"
  else if (!first || first > writes)
    print "unreached"
  else if (is_gone(first))
    print "gone", first
  else
    print "failed", first, bulk_end(first), failed[first]
}

function judge_answers(    i, given, space, address, route, lost, winner, losers) {
  given = 0
  lost = 0
  for (i = 1; i <= lookups; i++) {
    parse(substr(expected[i], index(expected[i], " ") + 1))
    is_expected[key()] = 1
  }
  for (i = 1; i <= lookups; i++) {
    space = index(expected[i], " ")
    route = substr(expected[i], space + 1)
    if (i in failed)
      winner = "nowhere (" reason_text(failed[i]) ")"
    else {
      winner = answer[++given]
      if (winner == route " " || is_winner(route, winner) || stands_by(route, winner))
        continue
      winner = winner == "" ? "nobody knows where" : "by " words(winner)
    }
    losers[++lost] = words(route) " is in the table but doesn\047t win: packets to " substr(expected[i], 1, space - 1) " go " winner "; look at: ip -4 rule; ip -4 route show table all"
  }
  for (; i <= expectations; i++)
    losers[++lost] = expected[i]
  print (lost ? "lost" : "won")
  print_some(losers, lost)
}

function is_winner(route, winner,    id) {
  if (winner == "")
    return 0
  parse(route)
  id = key()
  parse(winner)
  return id == key() && same_next_hops(route, winner)
}

# Of several wanted metrics of a destination the lowest carries the packets; the others stand by.
function stands_by(route, winner,    id, to, lower) {
  if (winner == "")
    return 0
  parse(winner)
  id = key()
  to = destination
  lower = metric + 0
  parse(route)
  return (id in is_expected) && to == destination && lower < metric + 0
}

function print_some(list, count,    i) {
  for (i = 1; i <= count && i <= 5; i++)
    print list[i]
  print_rest(count, 5)
}

# ip's words for a refusal: with the kernel's own sentence (ext-ACK) ip hides the errno, which is then told from it.
function reason_text(error,    name) {
  if (sub(/^RTNETLINK answers: /, "", error))
    return error
  if (sub(/^Error: /, "", error)) {
    sub(/\.$/, "", error)
    return error
  }
  if (error ~ /^Cannot find device /) {
    split(error, name, "\"")
    return "no interface is named \047" name[2] "\047"
  }
  return error
}

function explain(verb, route, error,    text, reason, advice, shown) {
  shown = words(route)
  text = reason_text(error)
  if (text == "File exists") {
    reason = "another route has its destination and metric"
    advice = "look at: ip -4 route show " destination
  }
  else if (text == "Network is unreachable" || text ~ /invalid gateway/) {
    reason = "its gateway can\047t be reached"
    advice = "look at: ip -4 route get " (via[1] == "" ? "GATEWAY" : via[1])
  }
  else if (text == "No such device" || text ~ /^no interface is named /) {
    reason = "there is no such device"
    advice = "look at: ip link"
  }
  else if (text == "Network is down" || text ~ /(is not up|is down)$/) {
    reason = "its device is down"
    advice = "set it up: ip link set " (dev[1] == "" ? "None" : dev[1]) " up"
  }
  else if (text == "Operation not permitted") {
    reason = "not permitted"
    advice = "run as root (CAP_NET_ADMIN)"
  }
  else if (text == "No such process" || text == "FIB table does not exist") {
    reason = "there is no such route"
    advice = "look at: ip -4 route show " destination
  }
  else if (text == "Cannot allocate memory") {
    reason = "the kernel has no memory for it"
    advice = "free some and run again"
  }
  else if (text == "Invalid argument" || error ~ /^Error: /) {
    reason = "the kernel takes it to be invalid"
    advice = "check its gateway and source"
  }
  else {
    reason = tolower(text)
    advice = "look at: dmesg"
  }
  return "can\047t " verb " " shown ": " reason " (kernel: " text "); " advice
}

# The commands that put back what is not as before, by the table as it is now: nobody knows how far a writer came that
# was stopped. Behind them what went wrong.
function print_undo(    k, i, undone, undos, new, there, before, wrong, count) {
  if (interrupted) {
    print "again"
    return
  }
  count = undone = 0
  for (k = 1; k <= writes; k++)
    if (k in failed && !is_gone(k))
      wrong[++count] = explain(verb_of(k), written(k), failed[k])
  for (k = writes; k >= 1; k--) {
    new = written(k)
    parse(new)
    there = destination " " tos " " metric
    there = there in at ? at[there] : 0
    before = k > added ? old[k - added] : ""
    if (k <= added) {
      if (there in is_ours && same_next_hops(line[there], new))
        undos[++undone] = command("del", line[there])
    }
    else if (!there)
      undos[++undone] = command("add", before)
    else if (k <= added + replaced && there in is_ours && substance(line[there]) != substance(before))
      undos[++undone] = command("replace", before)
  }
  print "undo", undone
  print_all(undos, undone)
  print_some(wrong, count)
}

# What couldn't be put back.
function print_problems(    k, text, verb) {
  for (k = 1; k <= changes; k++)
    if (k in failed) {
      text = change[k]
      verb = text ~ /^route del / ? "take back" : "put back"
      sub(/^route [a-z]+ /, "", text)
      print "while putting things back: " explain(verb, text, failed[k])
    }
}

END {
  if (step == "plan")
    print_plan()
  else if (step == "judge")
    judge()
  else if (step == "judge-again")
    judge_answers()
  else if (step == "undo")
    print_undo()
  else
    print_problems()
}
AWK
@ROUTES@
ROUTES

# --- one attempt ---------------------------------------------------------------------------------------------------

take_lock() {
  local reason status
  if ! [ -d "$RUN_DIR" ] && ! reason=$(mkdir -p "$RUN_DIR" 2>&1); then
    MESSAGE="can't open the lock $LOCK: ${reason##*: }"
    return 1
  fi
  umask 077 # whoever can open it can hold it
  { exec 9>>"$LOCK"; } 2>/dev/null
  status=$?
  umask 022
  if [ "$status" -ne 0 ]; then
    reason=$({ : >>"$LOCK"; } 2>&1)
    MESSAGE="can't open the lock $LOCK: ${reason##*: }"
    return 1
  fi
  # In the background, for a signal would have to wait for the end of a command in the foreground.
  flock -w "$LOCK_LIMIT" 9 &
  CHILDREN="$MONITOR $!"
  wait "$!"
  status=$?
  CHILDREN=$MONITOR
  [ "$status" -eq 0 ] && return
  exec 9>&-
  MESSAGE="can't take the lock $LOCK: another run has held it for $LOCK_LIMIT s; see who with: fuser -v $LOCK"
  return 1
}

# Sets STATE and what belongs to it.
look() {
  local text='' left at=$HEADER_BYTES changes lookups expected old others
  for ((left = ATTEMPTS; left; left--)); do
    text=$(
      think plan < <(
        tell_nexthops
        [ -z "$HAS_HIDDEN" ] || say '==kernel'
        ask $'link show type vrf\nlink show\naddress show\nroute show table all\nrule show'
      )
    )
    case $text in
      'again hidden') HAS_HIDDEN=1 ;;
      again) ;;
      *) break ;;
    esac
  done
  HEADER=${text:0:HEADER_BYTES-1}
  read -r STATE ADDED REPLACED REMOVED _ changes lookups expected old others <<<"$HEADER"
  REST=${text:at}
  [ "$STATE" = plan ] || return
  CHANGE_LINES=${text:at:changes} at=$((at + changes))
  LOOKUP_LINES=${text:at:lookups} at=$((at + lookups))
  EXPECTED_LINES=${text:at:expected} at=$((at + expected))
  OLD_LINES=${text:at:old} at=$((at + old))
  OTHER_LINES=${text:at:others} at=$((at + others))
  REST=${text:at}
}

# Writes what the plan asks for and sees each route win, or puts back what was changed and sets MESSAGE.
commit() {
  local writes=$((ADDED + REPLACED + REMOVED)) from=0 proof=$LOOKUP_LINES commands lines
  local text verdict at end error
  [ -z "$OTHER_LINES" ] || proof=$'rule show\nroute show table all\n'
  commands=$CHANGE_LINES$proof
  while :; do
    text=$(
      # systemd sends its signals to all processes of a unit: half a batch would be worse than a late end.
      trap '' HUP INT TERM
      think judge < <(
        tell_nexthops
        printf '%s\n' ==header "$HEADER" ==expected "$EXPECTED_LINES==others" "$OTHER_LINES==offset $from" ==answers
        ask "$commands"
      )
    )
    read -r verdict at end error <<<"$text"
    # Somebody else has removed what was to be removed: on behind it.
    [ "$verdict" = gone ] || break
    from=$at
    mapfile -t lines <<<"$CHANGE_LINES$proof"
    printf -v commands '%s\n' "${lines[@]:from}"
  done
  if [ "$verdict" = unreached ]; then
    text=$(
      trap '' HUP INT TERM
      think judge-again < <(
        tell_nexthops
        printf '%s\n' ==header "$HEADER" ==expected "$EXPECTED_LINES==answers"
        ask "$LOOKUP_LINES" -force
      )
    )
    read -r verdict _ <<<"$text"
  fi
  [ "$verdict" != won ] || [ -n "$STOPPED" ] || return 0
  case $verdict in
    lost) MESSAGE=${text#*$'\n'} ;;
    failed) try_rest "$at" "$end" "$error" ;;
    won) ;;
    *) MESSAGE="can't install the static routes: ip or awk ended without an answer" ;;
  esac
  [ "$writes" -eq 0 ] || put_back
  return 1
}

# Tries the routes of the bulk behind one that failed, so that the error names all that is wrong with it.
try_rest() {
  local at=$1 end=$2 error=$3 lines commands
  mapfile -t lines <<<"$CHANGE_LINES"
  printf -v commands '%s\n' "${lines[@]:at:end-at}"
  ERRORS=$(
    trap '' HUP INT TERM
    printf '%s\n' "==offset $((at - 1))" ==errors "$error" "Command failed -:1" "==offset $at"
    ask "$commands" -force
  )
}

# Puts back what isn't as before. Adds to MESSAGE what failed and what can't be put back.
put_back() {
  local text='' left count commands lines
  trap '' HUP INT TERM
  for ((left = ATTEMPTS; left; left--)); do
    text=$(
      think undo < <(
        tell_nexthops
        printf '%s\n' ==header "$HEADER" ==changes "$CHANGE_LINES==old" "$OLD_LINES$ERRORS" ==kernel
        ask 'route show table all'
      )
    )
    [ "$text" = again ] || break
  done
  mapfile -t lines <<<"$text"
  read -r _ count <<<"$text"
  add_message "${lines[@]:1+count}"
  if [ "${count:-0}" -gt 0 ]; then
    printf -v commands '%s\n' "${lines[@]:1:count}"
    add_message "$(think problems < <(
      tell_nexthops
      printf '%s\n' ==changes "$commands==answers"
      ask "$commands" -force
    ))"
  fi
  watch_signals
}

add_message() {
  local line
  for line in "$@"; do
    [ -z "$line" ] || MESSAGE=${MESSAGE:+$MESSAGE$'\n'}$line
  done
}

# Sets OUTCOME: installed, missing, failed or locked; and MESSAGE.
attempt() {
  OUTCOME=failed MESSAGE='' ERRORS=''
  if ! take_lock; then
    OUTCOME=locked
    return
  fi
  look
  case $STATE in
    plan)
      IN_COMMIT=1
      commit && OUTCOME=installed
      IN_COMMIT=''
      [ -z "$STOPPED" ] || stop
      ;;
    missing) OUTCOME=missing MESSAGE=$REST ;;
    refused) MESSAGE=$REST ;;
    again) MESSAGE="can't list the routes: they changed while they were read, $ATTEMPTS times over; try again later" ;;
    *) MESSAGE="can't plan the static routes: awk ended without an answer" ;;
  esac
  exec 9>&-
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

# A change is put back first, then the run ends.
# shellcheck disable=SC2317,SC2329 # called by a trap
on_signal() {
  STOPPED=$1
  [ -n "$IN_COMMIT" ] || stop
}

stop() {
  [ -z "$MESSAGE" ] || complain "$MESSAGE"
  complain "stopped: $STOPPED; nothing is left half-done"
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

prepare_gate() {
  if is_gate_off; then
    complain "GATE OFF: $WHY; the start is admitted and no static route was looked at"
    finish 0
  fi
  if ! [ -e /proc/1/ns/net ]; then
    complain "can't tell whether this is the host's network namespace: /proc/1/ns/net can't be read; run as root"
    finish 1
  fi
  if ! [ /proc/self/ns/net -ef /proc/1/ns/net ]; then
    say "this unit has a network namespace of its own; the static routes are the host's: nothing was changed"
    finish 0
  fi
}

# --- the run -------------------------------------------------------------------------------------------------------

STOPPED='' IN_COMMIT='' MONITOR='' CHILDREN='' MESSAGE='' REPORTED='' HAS_HIDDEN=''
LIMIT=$WAIT_SECONDS LOCK_LIMIT=$LOCK_SECONDS HOLD=0
case $#:${1-} in
  0:) ;;
  1:gate)
    prepare_gate
    [ "$LIMIT" -le "$GATE_SECONDS" ] || LIMIT=$GATE_SECONDS
    [ "$LIMIT" -ge "$HOLD_SECONDS" ] || LIMIT=$HOLD_SECONDS
    LOCK_LIMIT=$GATE_SECONDS HOLD=$HOLD_SECONDS
    ;;
  *)
    complain "usage: ${0##*/} [gate]"
    exit 64
    ;;
esac
watch_signals
look_at_time
WAIT_UNTIL=$((NOW + LIMIT * 100)) HOLD_UNTIL=''
while :; do
  attempt
  look_at_time
  case $OUTCOME in
    installed)
      say "$REST"
      finish 0
      ;;
    missing)
      [ "$NOW" -lt "$WAIT_UNTIL" ] || break
      [ "$MESSAGE" = "$REPORTED" ] || say "waiting up to $LIMIT s for $MESSAGE"
      REPORTED=$MESSAGE
      nap $((WAIT_UNTIL - NOW))
      ;;
    failed)
      : "${HOLD_UNTIL:=$((NOW + HOLD * 100))}"
      [ "$NOW" -lt "$HOLD_UNTIL" ] || break
      # Not by events: what was written and put back makes some.
      pause "$LOOK_SECONDS"
      ;;
    locked) break ;;
  esac
done
if [ "$OUTCOME" = missing ]; then
  MESSAGE="can't install the static routes: waited $LIMIT s and still missing is $MESSAGE; bring it up, name another gateway or dev, or raise waitSeconds"
fi
complain "$MESSAGE"
end_children
exit 1
}
