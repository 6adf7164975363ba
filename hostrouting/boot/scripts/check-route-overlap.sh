#!/bin/bash
{
# Proves that every expected CIDR below leaves by the default route's interface, and leaves a marker that says so.
# Rendered by hostrouting: edits are lost.
#
#   check-route-overlap.sh         the oneshot at boot: waits for the network as long as the config says
#   check-route-overlap.sh gate    before the machine starts: waits 5 s at most, and looks again for 3 s before it fails
#
# STRICT fails if anything fails or nothing could be judged; WARN only says so. Needs bash, coreutils, flock, iproute2
# 5.15 and any POSIX awk. One ip lists what the kernel holds, one asks it about each range of addresses whose answer
# cannot change inside, and one awk has both do so and judges. Everything stands in one group: bash runs none of a file
# that is cut off.

set -u
# TZ: for the time of the report, which is UTC.
export LC_ALL=C TZ=UTC0 PATH=/usr/sbin:/usr/bin:/sbin:/bin
# bash puts here-documents that are too long for a pipe into a file; /run is writable long before /tmp is.
export TMPDIR=/run
umask 022

readonly MODE=@MODE@
readonly COVERAGE=@COVERAGE@
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

# think: all that needs arithmetic. The program and the config are here-documents, quoted: nothing in them is expanded.
# Two questions of the kernel pass through the file that becomes the report.
think() {
  awk -v mode="$MODE" -v coverage="$COVERAGE" -v time="$TIME" -v file="$REPORT.$$" -f /dev/fd/3 /dev/fd/4
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

# --- asking --------------------------------------------------------------------------------------------------------

$1 == "expect" { cidr[++cidrs] = $2 }
$1 == "foreseen" { foreseen[++foreseens] = $2 }
$1 == "container" { container[++containers] = $2 }
$1 == "allow" { allowed[++alloweds] = $2 }

# Has one ip answer the commands that were printed to file. get_line() reads the answers, read_errors() the rest.
# What ip says on stderr comes last, whole: on one pipe with the answers it could fall into the middle of a line.
# -N: an rt_protos file may give 217 any name. -o: a multipath route is one line.
function ask() {
  close(file)
  call("ip -4 -N -o -force -batch " file (nexthops ? "; " list_nexthops : ""))
}

function call(text) {
  if (index(text, ";"))
    text = "{ " text "; }"
  command = "{ errors=$(" text " 2>&1 >&3 3>&-); } 3>&1; printf \"==errors\\n%s\\n\" \"$errors\""
}

function get_line() {
  return (command | getline line) > 0 && line != "==errors"
}

# Fills failed: for the number of each command that failed why it did.
function read_errors() {
  split("", failed)
  while ((command | getline line) > 0)
    if (line ~ /Dump was interrupted/)
      interrupted = 1
    else if (line ~ /^Command failed /) {
      sub(/.*:/, "", line)
      failed[line + 0] = last_error
    }
    else if (line != "") {
      sub(/^RTNETLINK answers: /, "", line)
      last_error = line
    }
  close(command)
}

# Reads all tables, addresses, rules and links.
function read_host(    i) {
  print "route show table all\naddress show\nrule show\nlink show" >file
  ask()
  while (get_line())
    if (line !~ /^[0-9]+:/) {
      route[++routes] = line
      if (index(line, " nhid ") && line !~ / (via|dev) /)
        has_hidden = 1
      if (index(line, "default") && line ~ /^([0-9a-z]+ )?default /)
        defaults[++default_count] = line
    }
    else if (line ~ /^[0-9]+: [^ ]+ </)
      read_link()
    else if (line ~ /^[0-9]+: +[^ ]+ +inet /)
      read_address()
    else
      read_rule()
  read_errors()
  for (i = 1; i <= 4; i++)
    if (i in failed)
      trouble = "can\047t read the routes: " failed[i]
  # There is always a loopback interface: without any ip itself couldn't run.
  if (trouble == "" && !links)
    trouble = "can\047t read the routes: " (last_error == "" ? "ip gave no answer" : last_error)
  if (has_hidden && !interrupted && trouble == "")
    read_nexthops()
}

# The routes' hops, where the kernel doesn't show them. Not with -4: groups belong to no family.
function read_nexthops(    word) {
  list_nexthops = "ip -N -o nexthop show"
  call(list_nexthops)
  while (get_line()) {
    split(line, word, " ")
    nexthop[word[2]] = line
    nexthops++
  }
  read_errors()
}

function read_link(    word, name) {
  links++
  split(line, word, " ")
  name = word[2]
  sub(/[@:].*/, "", name)
  # Without names (-N) the hardware type is its number in brackets.
  if (line ~ / link\/(\[32\]|infiniband) /)
    infiniband[++infinibands] = name
}

function read_address(    word) {
  split(line, word, " ")
  sub(/@.*/, "", word[2])
  has_address[word[2]] = 1
  address_dev[++addresses] = word[2]
  address_network[addresses] = word[5] == "peer" ? word[6] : word[4]
}

# Asks about all questions: fills answer and error (of those without an answer). What was read before must still be so.
function look_up(    i, given, text, seen, left, has_link, word) {
  for (i = 1; i <= questions; i++)
    print "route get fibmatch " question_text[i] " uid 0" >file
  # The line of the link tells answers and tables apart.
  print "link show dev lo\nroute show table all\nrule show" >file
  ask()
  given = seen = has_link = 0
  left = nexthops
  while (get_line())
    if (nexthops && line ~ /^id /) {
      left--
      split(line, word, " ")
      if (!(word[2] in nexthop) || nexthop[word[2]] != line)
        interrupted = 1
    }
    else if (has_link) {
      seen++
      if (line != (seen <= routes ? route[seen] : rule[seen - routes]))
        interrupted = 1
    }
    else if (line ~ /^[0-9]+: /)
      has_link = 1
    else
      text[++given] = line
  read_errors()
  if (!has_link)
    trouble = "can\047t look up routes: " (last_error == "" ? "ip gave no answer" : last_error)
  else if (seen != routes + rules || left)
    interrupted = 1
  for (i = 1; i <= 3; i++)
    if ((questions + i) in failed)
      trouble = "can\047t read the routes: " failed[questions + i]
  seen = 0
  for (i = 1; i <= questions; i++)
    if (i in failed)
      error[i] = discard_of(failed[i])
    else
      answer[i] = text[++seen]
  if (seen != given && trouble == "")
    trouble = "can\047t look up routes: ip gave " given " answers instead of " seen
}

# The type of the route or rule that discards; 0: nothing matches.
function discard_of(text) {
  if (text == "Invalid argument")
    return 6
  if (text ~ /^(No route to host|Host is unreachable)$/)
    return 7
  if (text == "Permission denied")
    return 8
  if (text !~ /^Network( is)? unreachable$/)
    trouble = "can\047t look up routes: " text
  return 0
}

# --- classes of routes ---------------------------------------------------------------------------------------------

# The class of a route: routes mostly differ in their destinations, so what stands behind is taken apart once.
# Sets destination.
function classify(text,    space, rest) {
  text = text " "
  space = index(text, " ")
  destination = substr(text, 1, space - 1)
  rest = substr(text, space)
  if (destination in type_number) {
    text = destination
    space = index(substr(rest, 2), " ")
    destination = substr(rest, 2, space - 1)
    rest = text substr(rest, space + 1)
  }
  if (destination == "default")
    destination = "0.0.0.0/0"
  else if (!index(destination, "/"))
    destination = destination "/32"
  if (!(rest in class_of))
    class_of[rest] = new_class(rest)
  return class_of[rest]
}

function new_class(rest,    c, h, whole) {
  c = ++classes
  whole = destination
  if (substr(rest, 1, 1) == " ")
    parse("0.0.0.0/0" rest)
  else {
    h = index(rest, " ")
    parse(substr(rest, 1, h) "0.0.0.0/0" substr(rest, h))
  }
  destination = whole
  class_type[c] = type
  class_table[c] = table
  class_proto[c] = proto
  class_tos[c] = tos
  class_metric[c] = metric + 0
  class_devs[c] = live_devs()
  class_is_near[c] = tos == "0" && scope + 0 >= 253
  # One whose hops are all dead is passed over.
  class_is_dead[c] = hops && class_devs[c] == " "
  class_is_taken[c] = table == "254" && ((proto == "2" && type == 1 && scope == "253") || (tos == "0" && metric == "0"))
  class_is_plain[c] = is_plain(c)
  for (h = 1; h <= hops; h++)
    if (via[h] != "" && !index(via[h], ":")) {
      if (!class_is_plain[c])
        borders[via[h] "/32"] = 1
      if (dev[h] != "" && !index(expected, " " dev[h] " "))
        is_gateway[via[h], dev[h]] = 1
    }
  sort_class(c)
  return c
}

# Whether it does what is expected wherever it wins.
function is_plain(c) {
  return class_type[c] == 1 && class_devs[c] != " " && without(class_devs[c], expected) == " "
}

function classify_all(    i) {
  if (is_classified)
    return
  is_classified = 1
  for (i = 1; i <= routes; i++) {
    route_class[i] = classify(route[i])
    route_prefix[i] = destination
  }
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

function has_container(devs,    list, count, i) {
  count = split(devs, list, " ")
  for (i = 1; i <= count; i++)
    if (is_container(list[i]))
      return 1
  return 0
}

# --- rules ---------------------------------------------------------------------------------------------------------

# Takes a line of `ip -N rule` apart. rule_is_match: whether it matches the packet that is asked about, its
# destination and "not" aside; rule_is_other: whether it doesn't, but may match another packet to the same address.
# rule_finds_gateway: whether it matches the kernel's own look-up of a gateway, which is bound to rule_oif, if any is
# named, and of no transport protocol.
function read_rule(    word, count, i, w, r, value, is_other, is_split, is_udp, does_match) {
  r = ++rules
  rule[r] = line
  count = split(line, word, " ")
  rule_preference[r] = substr(word[1], 1, length(word[1]) - 1)
  if (!(rule_preference[r] in rule_at))
    rule_at[rule_preference[r]] = r
  rule_action[r] = "nop"
  rule_table[r] = rule_to[r] = rule_group[r] = rule_oif[r] = ""
  rule_shortest[r] = -1
  rule_is_inverted[r] = is_other = is_split = 0
  does_match = is_udp = 1
  for (i = 2; i <= count; i++) {
    w = word[i]
    value = word[i + 1]
    if (w == "not") {
      rule_is_inverted[r] = 1
      continue
    }
    if (w in type_number) {
      rule_action[r] = type_number[w] + 0
      continue
    }
    if (w ~ /^(\[detached\]|\[unresolved\]|nop)$/)
      continue
    i++
    if (w == "from") {
      if (value != "all") {
        is_other = 1
        # No source is chosen yet.
        does_match = does_match && as_number(masked(index(value, "/") ? value : value "/32")) == 0
      }
    }
    else if (w == "to") {
      if (value != "all")
        rule_to[r] = masked(index(value, "/") ? value : value "/32")
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
      # It treats TCP and UDP differently, whichever it names; a look-up counts as UDP, which is ipproto-17 with -N.
      is_split = 1
      is_udp = value ~ /^(ipproto-)?17$/
    }
    else if (w == "oif") {
      is_other = 1
      rule_oif[r] = value
    }
    else if (w ~ /^(tos|dsfield|dscp|sport|dport)$/) {
      is_other = 1
      does_match = 0
    }
    else if (w == "lookup") {
      rule_action[r] = "lookup"
      rule_table[r] = value
      # Of a VRF's rule the table is the packet's own.
      if (value == "[l3mdev-table]") {
        rule_table[r] = "254"
        does_match = 0
        has_vrf = 1
      }
    }
    else if (w == "goto") {
      rule_action[r] = "goto"
      rule_goto[r] = value
    }
    else if (w == "suppress_prefixlength")
      rule_shortest[r] = value + 0
    else if (w == "suppress_ifgroup")
      rule_group[r] = value
    else if (w == "proto")
      custom_rules++
  }
  rule_is_match[r] = does_match && is_udp && rule_oif[r] == ""
  rule_is_other[r] = is_split || (is_other && rule_is_match[r] == rule_is_inverted[r])
  rule_finds_gateway[r] = does_match && !is_split
}

function matches(r, n,    does_match) {
  does_match = gateway_dev == "" ? rule_is_match[r] : rule_finds_gateway[r] && (rule_oif[r] == "" || rule_oif[r] == gateway_dev)
  return (does_match && (rule_to[r] == "" || is_inside(n, rule_to[r]))) != rule_is_inverted[r]
}

function is_inside(n, prefix,    first) {
  first = as_number(prefix)
  return n >= first && n < first + size[length_of(prefix)]
}

# Whether an address that only plain routes reach is sure to get to the default route in table main. Rules for a
# destination are left out: their prefixes are looked into anyway.
function has_floor(    r) {
  for (r = 1; r <= rules; r++)
    if (rule_to[r] != "") {
      if (rule_is_inverted[r])
        return 0
    }
    else if (rule_action[r] != "nop" && matches(r, 0)) {
      if (rule_action[r] != "lookup")
        return 0
      if (rule_table[r] == "254" && rule_shortest[r] < 0 && rule_group[r] == "")
        return 1
    }
  return 0
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

# --- prefixes ------------------------------------------------------------------------------------------------------

function masked(prefix,    bits) {
  bits = length_of(prefix)
  return prefix_text(as_number(prefix), bits)
}

function prefix_text(n, bits) {
  return dotted(n - n % size[bits]) "/" bits
}

# Sorts numbers in list by their rank: merges runs, so what is nearly sorted costs little.
function sort(list, count, rank,    from, middle, to, i, j, k, merged) {
  do {
    from = 1
    for (to = 0; to < count; from = to + 1) {
      for (middle = from; middle < count && rank[list[middle]] <= rank[list[middle + 1]]; middle++)
        ;
      if (middle == count)
        break
      for (to = middle + 1; to < count && rank[list[to]] <= rank[list[to + 1]]; to++)
        ;
      for (i = from; i <= middle; i++)
        merged[i] = list[i]
      i = k = from
      j = middle + 1
      while (i <= middle)
        list[k++] = j <= to && rank[list[j]] < rank[merged[i]] ? list[j++] : merged[i++]
    }
  } while (from > 1)
}

# The greatest of some ascending numbers that isn't above n: its place, if it lies behind low; else low.
function place(numbers, low, count, n,    middle) {
  while (low < count) {
    middle = int((low + count + 1) / 2)
    if (numbers[middle] <= n)
      low = middle
    else
      count = middle - 1
  }
  return low
}

# Adjacent numbers of an ascending list of ranges become CIDRs: part[1..parts].
function start_parts() {
  parts = 0
  range_first = range_last = -1
}

function add_range(first, last) {
  if (first != range_last + 1 || range_first < 0) {
    end_parts()
    range_first = first
  }
  range_last = last
}

function end_parts(    bits) {
  while (range_first >= 0 && range_first <= range_last) {
    for (bits = 32; bits > 0 && range_first % size[bits - 1] == 0 && range_first + size[bits - 1] - 1 <= range_last; bits--)
      ;
    part[++parts] = dotted(range_first) "/" bits
    range_first += size[bits]
  }
}

# The first of part, without the /32 of a single address if bare, and how many there are besides.
function listed(separator, limit, bare,    i, out, text) {
  for (i = 1; i <= parts && i <= limit; i++) {
    text = part[i]
    if (bare)
      sub(/\/32$/, "", text)
    out = out (i > 1 ? separator : "") text
  }
  return out (parts > limit ? " and " (parts - limit) " more" : "")
}

function listed_all(    i, out) {
  for (i = 1; i <= parts; i++)
    out = out " " part[i]
  return out
}

# --- coverage ------------------------------------------------------------------------------------------------------
# Prefixes are nested or apart: all addresses whose innermost prefix is the same have the same answer. What only the
# routes by the default route's interfaces reach isn't cut by them.

# A prefix to cut at; its number.
function cut(prefix,    id) {
  if (prefix in cut_id)
    return cut_id[prefix]
  id = cut_id[prefix] = ++cuts
  cut_first[id] = as_number(prefix)
  cut_last[id] = cut_first[id] + size[length_of(prefix)] - 1
  # Sorted, a prefix comes right before those inside it.
  cut_rank[id] = cut_first[id] * 64 + length_of(prefix)
  return id
}

# The parts of the address space that some sorted cuts cover; how many.
function merge_spans(list, count, firsts, lasts,    i, found) {
  found = 0
  for (i = 1; i <= count; i++)
    if (!found || cut_first[list[i]] > lasts[found]) {
      firsts[++found] = cut_first[list[i]]
      lasts[found] = cut_last[list[i]]
    }
  return found
}

function is_in_span(first, last,    i) {
  i = place(span_first, 0, spans, first)
  return i && last <= span_last[i]
}

function is_in_shadow(first, last,    i) {
  i = place(shadow_first, 0, shadows, first)
  return i && last <= shadow_last[i]
}

function meets_span(first, last,    i) {
  i = place(span_first, 0, spans, last)
  return i && first <= span_last[i]
}

function suspect(prefix,    id) {
  id = cut(prefix)
  if (!(id in is_suspect)) {
    is_suspect[id] = 1
    suspects[++suspect_count] = id
  }
}

function add_inner(prefix,    first, last) {
  first = as_number(prefix)
  last = first + size[length_of(prefix)] - 1
  if (is_in_shadow(first, last) && is_in_span(first, last))
    tiled[++tiled_count] = cut(prefix)
}

# Lays the tiles of all CIDRs: tile_first, tile_last and tile_question, ascending; from_tile and to_tile for a CIDR.
function tile_exactly(    i, c, prefix, first) {
  classify_all()
  for (i = 1; i <= cidrs; i++)
    tiled[i] = cut(cidr[i])
  tiled_count = cidrs
  sort(tiled, cidrs, cut_rank)
  spans = merge_spans(tiled, cidrs, span_first, span_last)
  for (i = 1; i <= routes; i++) {
    c = route_class[i]
    if (class_is_plain[c] || class_tos[c] != "0")
      continue
    first = as_number(route_prefix[i])
    if (meets_span(first, first + size[length_of(route_prefix[i])] - 1))
      suspect(route_prefix[i])
  }
  for (i = 1; i <= rules; i++)
    if (rule_to[i] != "")
      suspect(rule_to[i])
  for (i = 1; i <= foreseens; i++)
    suspect(foreseen[i])
  if (!has_floor())
    suspect("0.0.0.0/0")
  sort(suspects, suspect_count, cut_rank)
  shadows = merge_spans(suspects, suspect_count, shadow_first, shadow_last)
  for (i = 1; i <= suspect_count; i++)
    if (is_in_span(cut_first[suspects[i]], cut_last[suspects[i]]))
      tiled[++tiled_count] = suspects[i]
  if (shadows) {
    for (i = 1; i <= routes; i++)
      if (class_is_plain[route_class[i]] && class_tos[route_class[i]] == "0")
        add_inner(route_prefix[i])
    for (prefix in borders)
      add_inner(prefix)
    for (i = 1; i <= subnets; i++)
      add_inner(subnet[i])
  }
  split("0.0.0.0/8 127.0.0.0/8 224.0.0.0/4 240.0.0.0/4", reserved, " ")
  for (i = 1; i <= 4; i++) {
    c = cut(reserved[i])
    is_reserved[c] = 1
    if (is_in_span(cut_first[c], cut_last[c]))
      tiled[++tiled_count] = c
  }
  sort(tiled, tiled_count, cut_rank)
  lay_tiles()
  for (i = 1; i <= cidrs; i++) {
    from_tile[i] = cut_from[cut(cidr[i])]
    to_tile[i] = cut_to[cut(cidr[i])]
  }
}

# Each address belongs to the innermost prefix around it.
function lay_tiles(    i, c, previous) {
  depth = position = previous = 0
  for (i = 1; i <= tiled_count; i++) {
    c = tiled[i]
    if (c == previous)
      continue
    previous = c
    while (depth && cut_last[open_[depth]] < cut_first[c])
      close_cut()
    if (depth)
      lay(cut_first[c] - 1)
    position = cut_first[c]
    open_is_reserved[depth + 1] = (depth && open_is_reserved[depth]) || (c in is_reserved)
    open_[++depth] = c
    open_question[depth] = 0
    cut_from[c] = tiles + 1
  }
  while (depth)
    close_cut()
}

function close_cut() {
  lay(cut_last[open_[depth]])
  cut_to[open_[depth]] = tiles
  depth--
}

# A tile of the innermost open prefix, from the current address on.
function lay(last) {
  if (position > last)
    return
  if (!open_is_reserved[depth]) {
    if (!open_question[depth])
      open_question[depth] = new_question(position)
    tile_first[++tiles] = position
    tile_last[tiles] = last
    tile_question[tiles] = open_question[depth]
  }
  position = last + 1
}

function new_question(n) {
  question[++questions] = n
  question_text[questions] = dotted(n)
  return questions
}

# PROBE: network + 1 of the masked prefix (also for a /31); for a /32 the address itself.
function tile_probes(    i, n, text, question_of) {
  for (i = 1; i <= cidrs; i++) {
    n = as_number(cidr[i]) + (length_of(cidr[i]) < 32)
    text = dotted(n)
    if (!(text in question_of))
      question_of[text] = new_question(n)
    tile_first[i] = tile_last[i] = n
    tile_question[i] = question_of[text]
    from_tile[i] = to_tile[i] = i
  }
  tiles = cidrs
}

# Covers the targets among some tiles with as few prefixes as possible. Of each tile piece_above < the length of a
# prefix that covers it <= piece_most. What is allowed to a prefix is allowed to its halves, but for piece_most: so
# the largest that are, are the fewest. Fills cover_first and cover_length, covers.
function fewest_prefixes(first, bits, from, to, is_for_routes,    i) {
  covers = 0
  targets[from - 1] = 0
  for (i = from; i <= to; i++)
    targets[i] = targets[i - 1] + piece_is_target[i]
  descend(first, bits, from, to, is_for_routes)
}

function descend(first, bits, from, to, is_for_routes,    last, i, covered) {
  last = first + size[bits] - 1
  i = place(tile_first, from - 1, to, first)
  if (i >= from)
    from = tile_last[i] < first ? i + 1 : i
  to = place(tile_first, from - 1, to, last)
  if (from > to || targets[to] == targets[from - 1])
    return
  covered = first
  for (i = from; i <= to && tile_first[i] <= covered && piece_above[i] < bits && bits <= piece_most[i]; i++)
    covered = tile_last[i] + 1
  if (i > to && covered > last && !(is_for_routes && (dotted(first) "/" bits) in is_taken)) {
    cover_first[++covers] = first
    cover_length[covers] = bits
  }
  else if (bits < 32) {
    descend(first, bits + 1, from, to, is_for_routes)
    descend(first + size[bits + 1], bits + 1, from, to, is_for_routes)
  }
}

# --- what the tables say -------------------------------------------------------------------------------------------
# The kernel answers every question. This model of it is for what no look-up shows: the entry that discards, and what
# a longer route in table main would change. net/ipv4/fib_trie.c, net/core/fib_rules.c.

# Files every route under its table and prefix, the lowest metric first.
function file_routes(    i, c, id, bits) {
  if (is_filed)
    return
  is_filed = 1
  classify_all()
  for (i = 1; i <= routes; i++) {
    c = route_class[i]
    if (class_is_taken[c])
      is_taken[route_prefix[i]] = 1
    if (class_has_container[c]) {
      pod_first[++pods] = as_number(route_prefix[i])
      pod_length[pods] = length_of(route_prefix[i])
      pod_table[pods] = class_table[c]
    }
    if (class_tos[c] != "0" || class_is_dead[c])
      continue
    id = class_table[c] " " route_prefix[i]
    if (!(id in best)) {
      best[id] = i
      has_length[class_table[c], length_of(route_prefix[i])] = 1
    }
    else if (class_metric[c] < class_metric[route_class[best[id]]])
      best[id] = i
  }
}

# The entry of a table with the longest prefix around an address, be it one that discards or throws; 0: none.
function longest_match(table, n,    i, bits, id) {
  if (gateway_dev != "")
    return nearest_match(table)
  if (!(table in lengths)) {
    lengths[table] = 0
    for (bits = 32; bits >= 0; bits--)
      if ((table, bits) in has_length)
        length_at[table, ++lengths[table]] = bits
  }
  for (i = 1; i <= lengths[table]; i++) {
    id = table " " prefix_text(n, length_at[table, i])
    if (id in best)
      return best[id]
  }
  return 0
}

# Tables local and main are one trie until the first custom rule (fib_unmerge).
function find(table, n,    local, main) {
  if ((table != "254" && table != "255") || custom_rules || rules != 3)
    return longest_match(table, n)
  local = longest_match("255", n)
  main = longest_match("254", n)
  if (!local || !main)
    return local + main
  # Of equals the one of table local comes first.
  return length_of(route_prefix[main]) > length_of(route_prefix[local]) ? main : local
}

# Whether no unicast route is long enough for a rule. Every device is in group 0 unless somebody has moved it.
function passes_over_all(r) {
  return rule_group[r] == "0" || rule_shortest[r] >= 32
}

function is_final(r, found,    code) {
  code = class_type[route_class[found]]
  if (code == 9)
    return 0
  # What discards is never suppressed (fib_rules_lookup asks only where there is a result).
  if (code >= 6)
    return 1
  return rule_group[r] != "0" && length_of(route_prefix[found]) > rule_shortest[r]
}

# The rules that a packet of this host to an address meets, up to the one that decides, each with the longest match in
# its table: asked_rule[1..asks], asked_entry.
function asked(n) {
  asks = 0
  ask_from(1, n)
}

function ask_from(r, n) {
  for (; r <= rules; r++) {
    if (rule_action[r] == "nop" || !matches(r, n))
      continue
    if (rule_action[r] == "goto") {
      # The target may be gone; then the rule does nothing.
      if (rule_goto[r] in rule_at)
        r = rule_at[rule_goto[r]] - 1
      continue
    }
    asked_rule[++asks] = r
    asked_entry[asks] = rule_action[r] == "lookup" ? find(rule_table[r], n) : 0
    if (rule_action[r] != "lookup" || (asked_entry[asks] && is_final(r, asked_entry[asks])))
      return
  }
}

# What asked() ends with: the entry, be it one that discards, in decided; why there is no route, as in error, in
# decided_error ("": there is one).
function decide(n,    r) {
  file_routes()
  asked(n)
  decided = decided_error = 0
  if (!asks)
    return
  r = asked_rule[asks]
  if (rule_action[r] != "lookup") {
    # An unreachable rule says that the network is.
    if (rule_action[r] != 7)
      decided_error = rule_action[r]
  }
  else if (asked_entry[asks] && is_final(r, asked_entry[asks])) {
    decided = asked_entry[asks]
    decided_error = class_type[route_class[decided]]
    if (decided_error < 6 || decided_error > 8)
      decided_error = ""
  }
}

# Whether the kernel would take a gateway on an interface: it looks it up by all rules, on that interface and among
# what is on a link only (fib_check_nh_v4_gw). What VRFs change isn't known here.
function finds_gateway(n, name,    i, c, found) {
  if (has_vrf)
    return 1
  file_routes()
  nears = 0
  for (i = 1; i <= routes; i++) {
    c = route_class[i]
    if (class_is_near[c] && !class_is_dead[c] && (class_devs[c] == " " || index(class_devs[c], " " name " ")) && is_inside(n, route_prefix[i]))
      near[++nears] = i
  }
  gateway_dev = name
  asked(n)
  gateway_dev = ""
  found = asks ? asked_entry[asks] : 0
  return found && is_final(asked_rule[asks], found) && class_type[route_class[found]] <= 2
}

# Of what is near the gateway the entry of a table with the longest prefix; of equals the lowest metric.
function nearest_match(table,    i, c, bits, found, length_) {
  found = 0
  for (i = 1; i <= nears; i++) {
    c = route_class[near[i]]
    bits = length_of(route_prefix[near[i]])
    if (class_table[c] != table || (found && bits < length_))
      continue
    if (!found || bits > length_ || class_metric[c] < class_metric[route_class[found]]) {
      found = near[i]
      length_ = bits
    }
  }
  return found
}

# CNIs blackhole their own block, with the routes to their pods inside it, in the same table; no default is a block.
function is_of_cni(found,    c, first, last, i) {
  if (found in cni_memo)
    return cni_memo[found]
  cni_memo[found] = 0
  c = route_class[found]
  first = as_number(route_prefix[found])
  last = first + size[length_of(route_prefix[found])] - 1
  if (length_of(route_prefix[found]) == 0)
    return 0
  if (class_proto[c] == "12" || class_proto[c] == "80")
    return cni_memo[found] = 1
  for (i = 1; i <= pods; i++)
    if (pod_table[i] == class_table[c] && pod_first[i] >= first && pod_first[i] <= last)
      if (pod_first[i] > first || pod_length[i] >= length_of(route_prefix[found]))
        return cni_memo[found] = 1
  return 0
}

# --- one answer ----------------------------------------------------------------------------------------------------

# What an answer with a route of a class means: class_kind ("": all is well), the interfaces to name, and of an own or
# a broadcast address whether it hides one of the cluster's.
function sort_class(c,    devs, foreign) {
  devs = class_devs[c]
  foreign = without(devs, expected)
  class_has_container[c] = foreign != " " && has_container(foreign)
  class_is_lost[c] = 0
  class_shown[c] = devs
  if (class_type[c] == 2 || class_type[c] == 3) {
    class_kind[c] = class_type[c] == 2 ? "LOCAL" : "BROADCAST"
    class_is_lost[c] = without(devs, expected "lo ") != " "
  }
  else if (devs != " " && foreign == " ")
    class_kind[c] = ""
  else {
    class_kind[c] = devs == " " ? "OVERLAP" : are_all("container", foreign) ? "CONTAINER" : are_all("allowed", foreign) ? "ALLOWED" : "OVERLAP"
    if (class_kind[c] != "OVERLAP")
      class_shown[c] = foreign
  }
}

# Of each question: kind ("": all is well), shown (interfaces), entry (the line of the route, or ""), fails, and group:
# what it is told of together with, of one CIDR.
function sort_answers(    q, c) {
  for (q = 1; q <= questions; q++) {
    fails[q] = 0
    if (q in error) {
      sort_discarded(q)
      continue
    }
    c = classify(answer[q])
    kind[q] = class_kind[c]
    if (kind[q] == "")
      continue
    shown[q] = class_shown[c]
    entry[q] = answer[q]
    is_lost[q] = class_is_lost[c]
    fails[q] = kind[q] == "OVERLAP"
    group[q] = kind[q] (fails[q] ? shown[q] : is_lost[q])
    failures += fails[q]
  }
}

function sort_discarded(q) {
  shown[q] = " "
  entry[q] = ""
  kind[q] = error[q] ? "BLACKHOLE" : "NO-ROUTE"
  fails[q] = 1
  group[q] = kind[q] " "
  if (error[q]) {
    decide(question[q])
    if (decided && class_type[route_class[decided]] == error[q]) {
      entry[q] = route[decided]
      if (is_of_cni(decided)) {
        kind[q] = "CNI-DISCARD"
        fails[q] = is_lost[q] = 0
        group[q] = kind[q] decided
      }
    }
  }
  failures += fails[q]
}

# --- what mends it -------------------------------------------------------------------------------------------------

BEGIN {
  owners = split("docker* br-* podman* virbr* tailscale* wg* tun* tap* ppp* zt* nebula*", owner, " ")
}

# What each answer asks of a route that covers its addresses: above < length <= most; whether it fails and a route can
# mend it, and whether it fails and none can.
function find_stakes(    q, i) {
  file_routes()
  for (q = 1; q <= questions; q++) {
    above[q] = -1
    most[q] = 32
    is_target[q] = is_left[q] = 0
    if (kind[q] == "LOCAL" || kind[q] == "BROADCAST") {
      # A longer route would change it only if table main is asked first and passes it on (suppressed, throw).
      asked(question[q])
      i = beaten(question[q])
      most[q] = i > 32 ? 32 : i
      continue
    }
    if (!fails[q])
      most[q] = -1
    else
      stake(q)
  }
}

function stake(q,    length_, list, count, i) {
  is_left[q] = 1
  decide(question[q])
  if (!is_as_decided(q)) {
    most[q] = -1
    return
  }
  length_ = beaten(question[q])
  count = split(shown[q], list, " ")
  for (i = 1; i <= count; i++)
    if (is_owned(list[i])) {
      most[q] = length_ > 32 ? -1 : length_
      return
    }
  if (length_ > 32)
    # An entry that covered it would be seen not to win there, and refused.
    most[q] = -1
  if (length_ >= 32)
    return
  for (i = 1; i <= count; i++)
    if ((question_text[q], list[i]) in is_gateway) {
      most[q] = -1
      return
    }
  i = subnet_of(question[q], 32)
  # An entry there has to name its interface, and no config takes the name.
  if (i && split(expected, list, " ") > 1 && subnet_dev[i] !~ /^[A-Za-z0-9_.-]+$/) {
    most[q] = -1
    return
  }
  if (!i && has_lost_gateway()) {
    most[q] = -1
    return
  }
  is_left[q] = 0
  is_target[q] = 1
  above[q] = length_
  if (i && length_of(subnet[i]) - 1 > length_)
    above[q] = length_of(subnet[i]) - 1
}

# Whether the kernel would refuse entries, as it doesn't find one of the gateways that they would have.
function has_lost_gateway(    h) {
  if (lost_gateways == "") {
    lost_gateways = 0
    parse(default_route)
    for (h = 1; h <= hops; h++)
      if (!dead[h] && !onlink[h] && via[h] != "" && !index(via[h], ":") && !finds_gateway(as_number(via[h]), dev[h]))
        lost_gateways++
  }
  return lost_gateways
}

# Whether the kernel's answer follows from its tables and rules.
function is_as_decided(q,    c) {
  if (q in error)
    return decided_error != "" && decided_error == error[q]
  if (decided_error != "")
    return 0
  c = classify(answer[q])
  return destination == route_prefix[decided] && class_metric[c] == class_metric[route_class[decided]]
}

# How long the entry is that a new one of table main must be longer than, of what asked() found; 33 where main isn't
# asked.
function beaten(n,    i, r, found, is_main, length_) {
  for (i = 1; i <= asks; i++) {
    r = asked_rule[i]
    found = asked_entry[i]
    # While local and main are one trie, local's turn is main's too.
    is_main = rule_table[r] == "254" || (found && class_table[route_class[found]] == "254")
    if (rule_action[r] == "lookup" && is_main && rule_group[r] == "" && rule_shortest[r] < 32) {
      length_ = found ? length_of(route_prefix[found]) : -1
      return length_ > rule_shortest[r] ? length_ : rule_shortest[r]
    }
    # It ends with what main discards; a route in its place would be passed over.
    if (i == asks && found && class_table[route_class[found]] == "254" && rule_action[r] == "lookup" && passes_over_all(r) && is_final(r, found))
      ask_from(r + 1, n)
  }
  return 33
}

function is_owned(name,    i) {
  if (!(name in owned_memo)) {
    owned_memo[name] = 0
    for (i = 1; i <= owners && !owned_memo[name]; i++)
      owned_memo[name] = !index(expected, " " name " ") && is_match(name, owner[i])
  }
  return owned_memo[name]
}

# The subnets of the default route's interfaces: none that is a single address.
function find_subnets(    i, prefix, id) {
  for (i = 1; i <= addresses; i++) {
    prefix = address_network[i]
    if (!index(expected, " " address_dev[i] " ") || !index(prefix, "/") || prefix ~ /\/32$/)
      continue
    prefix = masked(prefix)
    if (!(prefix in subnet_at)) {
      subnet[++subnets] = prefix
      subnet_at[prefix] = subnets
    }
    subnet_dev[subnet_at[prefix]] = address_dev[i]
  }
}

# The innermost of them that a prefix lies in; 0: none.
function subnet_of(first, bits,    i, found) {
  found = 0
  for (i = 1; i <= subnets; i++)
    if (length_of(subnet[i]) <= bits && is_inside(first, subnet[i]) && (!found || length_of(subnet[i]) > length_of(subnet[found])))
      found = i
  return found
}

# The entries that mend some tiles: entry_prefix[1..entries], entry_dev, entry_is_onlink. For a finding only what is
# of its group is a target.
function find_entries(first, bits, from, to, of_group,    t, q, i, list) {
  for (t = from; t <= to; t++) {
    q = tile_question[t]
    piece_is_target[t] = is_target[q]
    piece_above[t] = above[q]
    piece_most[t] = most[q]
    if (is_target[q] && of_group != "" && group[q] != of_group) {
      piece_is_target[t] = 0
      piece_most[t] = -1
    }
  }
  fewest_prefixes(first, bits, from, to, 1)
  for (entries = 1; entries <= covers; entries++) {
    i = subnet_of(cover_first[entries], cover_length[entries])
    entry_prefix[entries] = dotted(cover_first[entries]) "/" cover_length[entries]
    entry_is_onlink[entries] = i > 0
    entry_dev[entries] = i && split(expected, list, " ") > 1 ? subnet_dev[i] : ""
  }
  entries = covers
}

function entries_json(    i, out) {
  for (i = 1; i <= entries; i++) {
    out = out (i > 1 ? "," : "") "\n        {\n          \"destination\": " quoted(entry_prefix[i])
    if (entry_is_onlink[i])
      out = out ",\n          \"gateway\": \"onlink\""
    if (entry_dev[i] != "")
      out = out ",\n          \"dev\": " quoted(entry_dev[i])
    out = out "\n        }"
  }
  return entries ? "[" out "\n      ]" : "[]"
}

# Fills advice: the entries that mend all failures together, and what no route mends.
function add_advice(    i, t, q, out, first, k) {
  find_entries(0, 0, 1, tiles, "")
  for (i = 1; i <= entries && i <= 50; i++)
    out = out (i > 1 ? ", " : "") "{\"destination\": " quoted(entry_prefix[i]) (entry_is_onlink[i] ? ", \"gateway\": \"onlink\"" : "") (entry_dev[i] == "" ? "" : ", \"dev\": " quoted(entry_dev[i])) "}"
  if (entries > 50)
    out = out " and " (entries - 50) " more; hostrouting fix prints all"
  if (entries)
    advice[++advices] = "fix: add to hostRouting.staticRoutes.routes: " out
  start_parts()
  k = 1
  for (t = 1; t <= tiles; t++) {
    q = tile_question[t]
    if (is_left[q])
      add_range(tile_first[t], tile_last[t])
    else if (is_target[q]) {
      # A route that isn't used may have the very destination of an entry.
      first = tile_first[t]
      while (k <= covers && cover_first[k] + size[cover_length[k]] - 1 < first)
        k++
      for (i = k; i <= covers && cover_first[i] <= tile_last[t]; i++) {
        if (first < cover_first[i])
          add_range(first, cover_first[i] - 1)
        first = cover_first[i] + size[cover_length[i]]
      }
      if (first <= tile_last[t])
        add_range(first, tile_last[t])
    }
  }
  end_parts()
  if (parts)
    advice[++advices] = "no route mends " listed(" ", 16, 1) "; hostrouting fix says why"
}

# --- judging -------------------------------------------------------------------------------------------------------

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
      default_route = defaults[i]
    }
  }
}

# What is missing: the default route, or a live one.
function missing_default(    text) {
  if (dead_default == "")
    return "the default route (table main has no unicast 0.0.0.0/0)"
  parse(dead_default)
  text = words(dead_default)
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

# Fills findings and notes, in the order of the config, and advice.
function judge_all(    i, g, others) {
  sort_answers()
  if (failures && coverage == "EXACT")
    find_stakes()
  for (i = 1; i <= cidrs; i++) {
    find_groups(i)
    for (g = 1; g <= groups; g++)
      if (fails[tile_question[group_first[g]]])
        add_finding(i, g)
      else
        add_group_note(i, g)
    if (foreseens)
      add_foreseen(i)
  }
  if (failures && coverage == "EXACT")
    add_advice()
  add_pending()
  for (i = 1; i <= rules; i++)
    if (rule_is_other[i])
      others = others (others == "" ? "" : ", ") rule_preference[i]
  if (others != "")
    add_note("RULE", "policy rules on marks, sources, users, interfaces or ports weren\047t judged: preference " others, "", " ")
}

# The tiles of a CIDR that are told of together: from group_first[1..groups], each followed by next_tile.
function find_groups(i,    t, g, group_of) {
  groups = 0
  for (t = from_tile[i]; t <= to_tile[i]; t++) {
    if (kind[tile_question[t]] == "")
      continue
    g = group[tile_question[t]]
    if (!(g in group_of)) {
      group_of[g] = ++groups
      group_first[groups] = t
    }
    else
      next_tile[group_last[group_of[g]]] = t
    group_last[group_of[g]] = t
    next_tile[t] = 0
  }
}

# Sets part to the CIDRs that the tiles of a group are.
function find_parts(g,    t) {
  start_parts()
  for (t = group_first[g]; t; t = next_tile[t])
    add_range(tile_first[t], tile_last[t])
  end_parts()
}

# Sets part to where a failure is, in a few prefixes: own and broadcast addresses, which are noted, count as part of it.
function find_about(i, failing,    t, q) {
  parts = 1
  part[1] = cidr[i]
  if (coverage == "PROBE")
    return
  for (t = from_tile[i]; t <= to_tile[i]; t++) {
    q = tile_question[t]
    piece_is_target[t] = kind[q] != "" && group[q] == failing
    piece_above[t] = -1
    piece_most[t] = piece_is_target[t] || kind[q] == "LOCAL" || kind[q] == "BROADCAST" ? 32 : -1
  }
  fewest_prefixes(as_number(cidr[i]), length_of(cidr[i]), from_tile[i], to_tile[i], 0)
  for (parts = 1; parts <= covers; parts++)
    part[parts] = dotted(cover_first[parts]) "/" cover_length[parts]
  parts = covers
}

function add_finding(i, g,    q, message, probe, about, text, by) {
  q = tile_question[group_first[g]]
  probe = dotted(tile_first[group_first[g]])
  about = "expected CIDR " cidr[i] " (probe " probe ")"
  if (kind[q] == "OVERLAP")
    message = "OVERLAP: " about " routes via " (shown[q] == " " ? "no device" : joined(shown[q], ",")) ", expected " joined(expected, ",")
  else if (kind[q] == "NO-ROUTE")
    message = "NO-ROUTE: " about " has no IPv4 route; expected via " joined(expected, ",")
  else
    message = "BLACKHOLE: " about " is discarded by " discards(g) "; expected via " joined(expected, ",")
  find_about(i, group[q])
  if (parts > 1 || part[1] != cidr[i])
    message = message "; shadowed: " listed(" ", 16, 0)
  by = entry[q] == "" ? "" : told(entry[q])
  if (kind[q] != "NO-ROUTE")
    message = message "; by " (by == "" ? "a policy rule" : by)
  find_parts(g)
  text = field("kind", quoted(kind[q])) field("cidr", quoted(cidr[i])) field("probe", quoted(probe)) field("devs", array(shown[q])) field("expectedDevs", array(expected)) field("ranges", array(listed_all())) field("route", by == "" ? "null" : quoted(by))
  entries = 0
  if (coverage == "EXACT")
    find_entries(as_number(cidr[i]), length_of(cidr[i]), from_tile[i], to_tile[i], group[q])
  finding[++findings] = "    {" text field("fix", entries_json()) "\n      \"message\": " quoted(message) "\n    }"
  finding_message[findings] = message
}

# The words of a route: many are told of often.
function told(text) {
  if (!(text in words_memo))
    words_memo[text] = words(text)
  return words_memo[text]
}

# The discarding types of a group, in the order of the alphabet.
function discards(g,    t, has) {
  for (t = group_first[g]; t; t = next_tile[t])
    has[error[tile_question[t]]] = 1
  t = (6 in has ? ",blackhole" : "") (8 in has ? ",prohibit" : "") (7 in has ? ",unreachable" : "")
  return substr(t, 2)
}

function add_group_note(i, g,    q, t, kind_, all, by, is_one, about, whose, message, list) {
  q = tile_question[group_first[g]]
  kind_ = kind[q]
  all = " "
  for (t = group_first[g]; t; t = next_tile[t])
    if (!index(all, shown[tile_question[t]]))
      all = united(all, shown[tile_question[t]])
  by = some(all)
  find_parts(g)
  about = about_parts(i)
  is_one = parts == 1 && part[1] ~ /\/32$/
  if (kind_ == "LOCAL" || kind_ == "BROADCAST") {
    whose = kind_ == "LOCAL" ? is_one ? "is an address of this host" : "are addresses of this host" : is_one ? "is a broadcast address" : "are broadcast addresses"
    message = about " " whose (by == "" ? "" : " on " by) "; no route can change that"
    if (is_lost[q])
      message = message ", so nothing in the cluster that has " (is_one ? "this address" : "one of them") " can be reached"
  }
  else if (kind_ == "CNI-DISCARD")
    message = about " is discarded by " words(entry[q]) ", a CNI\047s own block"
  else {
    whose = kind_ == "CONTAINER" ? "container" : "allowed"
    message = about " routes via " by ", " (split(all, list, " ") == 1 ? (kind_ == "CONTAINER" ? "a " : "an ") whose " interface" : whose " interfaces")
  }
  add_note(kind_, message, cidr[i], all)
}

function about_parts(i) {
  if (parts == 1 && part[1] == cidr[i])
    return "expected CIDR " cidr[i]
  return listed(" ", 16, 1) " of " cidr[i]
}

# What connected routes to the foreseen prefixes would shadow: all that no longer route of main protects.
function add_foreseen(i,    f, first, last, t, low, high) {
  low = as_number(cidr[i])
  high = low + size[length_of(cidr[i])] - 1
  for (f = 1; f <= foreseens; f++) {
    first = as_number(foreseen[f])
    last = first + size[length_of(foreseen[f])] - 1
    if (last < low || first > high)
      continue
    start_parts()
    for (t = from_tile[i]; t <= to_tile[i]; t++)
      if (first <= tile_first[t] && tile_last[t] <= last && would_lose(tile_question[t], length_of(foreseen[f])))
        add_range(tile_first[t], tile_last[t])
    end_parts()
    if (parts)
      add_note("FORESEEN", about_parts(i) " would be shadowed by a route to " foreseen[f] ", which is foreseen", cidr[i], " ")
  }
}

function would_lose(q, bits,    c) {
  if (kind[q] != "")
    return 0
  c = classify(answer[q])
  return class_table[c] == "254" && length_of(destination) <= bits
}

function add_pending(    list, count, i) {
  parts = 0
  count = split(pending, list, " ")
  for (i = 1; i <= count; i++)
    add_note("PENDING", list[i] " is an InfiniBand interface without an IPv4 address; once it has one, its subnet\047s route comes too", "", " " list[i] " ")
  parts = 0
}

# A note on part, of a CIDR or of none.
function add_note(kind_, message, prefix, devs,    text) {
  text = field("kind", quoted(kind_)) field("message", quoted(message)) field("cidr", prefix == "" ? "null" : quoted(prefix)) field("devs", array(devs))
  note[++notes] = "    {" text "\n      \"ranges\": " array(listed_all()) "\n    }"
  note_message[notes] = kind_ ": " message
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

# Two lists of interfaces as one, sorted.
function united(devs, others,    list, count, i, j, name) {
  count = split(devs without(others, devs), list, " ")
  for (i = 2; i <= count; i++) {
    name = list[i]
    for (j = i; j > 1 && (list[j - 1] "") > (name ""); j--)
      list[j] = list[j - 1]
    list[j] = name
  }
  devs = " "
  for (i = 1; i <= count; i++)
    devs = devs list[i] " "
  return devs
}

# The first interfaces of some, for a person.
function some(devs,    list, count, i, out) {
  count = split(devs, list, " ")
  for (i = 1; i <= count && i <= 8; i++)
    out = out (i > 1 ? "," : "") list[i]
  return out (count > 8 ? " and " (count - 8) " more" : "")
}

function print_list(name, list, count,    i) {
  if (!count) {
    print "  \"" name "\": []," >file
    return
  }
  print "  \"" name "\": [" >file
  for (i = 1; i <= count; i++)
    print list[i] (i < count ? "," : "") >file
  print "  ]," >file
}

function print_json(    list, count, i) {
  print "{\n  \"schema\": 1,\n  \"verdict\": \"" (findings ? "overlap" : "ok") "\",\n  \"mode\": \"" mode "\",\n  \"coverage\": \"" coverage "\"," >file
  count = split(expected, list, " ")
  for (i = 1; i <= count; i++)
    list[i] = "    " quoted(list[i])
  print_list("defaultDevs", list, count)
  print_list("findings", finding, findings)
  print_list("notes", note, notes)
  print "  \"reason\": null,\n  \"time\": \"" time "\"\n}" >file
}

# The first line: a verdict, the numbers of findings and of lines of advice, and the interfaces that may still get an
# address. The reason of "unknown" is the second.
function print_report(    i) {
  if (!cidrs) {
    print "nothing 0 0"
    return
  }
  read_host()
  if (!interrupted && trouble == "") {
    find_default()
    if (expected == " " && !is_hidden) {
      print "no-default-route 0 0"
      print "no-default-route: " (dead_default == "" ? "table main has no unicast 0.0.0.0/0 to compare with" : "missing is " missing_default()) no_default_route()
      return
    }
    pending = pending_devs()
    find_subnets()
    if (coverage == "EXACT")
      tile_exactly()
    else
      tile_probes()
    look_up()
  }
  if (!interrupted && trouble == "")
    judge_all()
  # A route by a nexthop object that has come or gone meanwhile.
  if (interrupted || is_hidden) {
    print "again"
    return
  }
  if (trouble != "") {
    print "unknown 0 0"
    print "check-failed: " trouble
    return
  }
  print_json()
  print (findings ? "overlap" : "ok"), findings + 0, advices + 0, pending
  for (i = 1; i <= findings; i++)
    print finding_message[i]
  for (i = 1; i <= advices; i++)
    print advice[i]
  for (i = 1; i <= notes; i++)
    print note_message[i]
  if (!findings)
    print "every expected CIDR leaves by " joined(expected, ",")
}

END { print_report() }
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

# Asks the kernel and has the answers judged. Sets VERDICT, FINDINGS, ADVICES, PENDING and LINES.
look() {
  local text left lines
  printf -v TIME '%(%Y-%m-%dT%H:%M:%SZ)T' -1
  for ((left = ATTEMPTS; left; left--)); do
    text=$(think)
    [ "$text" = again ] || break
  done
  mapfile -t lines <<<"$text"
  read -r VERDICT FINDINGS ADVICES PENDING <<<"${lines[0]}"
  LINES=("${lines[@]:1}")
  case $VERDICT in
    ok | overlap | unknown | no-default-route | nothing) ;;
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
      FINDINGS=1 ADVICES=0 STATUS=1
      ;;
  esac
  print_some complain "${LINES[@]:0:FINDINGS}"
  print_some complain "${LINES[@]:FINDINGS:ADVICES}"
  print_some say "${LINES[@]:FINDINGS+ADVICES}"
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
  VERDICT=unknown FINDINGS=0 ADVICES=0 PENDING='' LINES=("$1")
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
look_at_time
WAIT_UNTIL=$((NOW + LIMIT * 100)) SETTLE_UNTIL=$((NOW + SETTLE_LIMIT * 100)) HOLD_UNTIL=''
while :; do
  take_lock
  look
  if [ "$VERDICT" = nothing ]; then
    rm -f "$MARKER_OK" "$MARKER_DETECTED" "$REPORT"
    say 'no CIDRs are expected: nothing to check'
    finish 0
  fi
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
