#!/bin/bash -p
{
# Says whether every expected CIDR below leaves by the node's uplinks, and leaves a marker that says so.
# Rendered by hostrouting: edits are lost.
#
#   check-route-overlap.sh         the oneshot at boot: waits for the network as long as the config says
#   check-route-overlap.sh gate    before the machine starts: waits 5 s at most
#   check-route-overlap.sh unjudged WHY    leaves the marker of a gate that didn't get as far as that
#
# STRICT fails if anything fails or nothing could be judged; WARN only says so. This is the verdict alone: what else is
# worth a note, all that is shadowed and what fixes it are told by `hostrouting check`.
#
# Routes and rules look at prefixes, so the kernel's answer changes only where a prefix begins or ends. The kernel is
# asked about one address between two such places: all of each CIDR is judged, and by the kernel itself.

@COMMON@

readonly MODE=@MODE@
readonly WAIT_SECONDS=@WAIT_SECONDS@
readonly SETTLE_SECONDS=@SETTLE_SECONDS@
readonly MARKER_OK=$RUN_DIR/route-overlap.ok
readonly MARKER_DETECTED=$RUN_DIR/route-overlap.detected
readonly REPORT=$RUN_DIR/route-overlap.json
# What explains a failing verdict, if it is still there; may be empty.
readonly PYTHON=@PYTHON@
readonly EXPLAIN_SECONDS=5
readonly GATE_EXPLAIN_SECONDS=3
readonly SHOWN_LINES=50
# The groups of netlink that tell of links, addresses, routes, rules and nexthop objects.
readonly GROUPS_HEARD=$((16#800000d1))
readonly HEAR_SECONDS=5
readonly TABLES=$'rule show\nroute show table all\naddress show\nlink show'

# think: reads what ip lists and prints a verdict, or what stands behind "==heard" and prints whether any of these changes
# matters. Program and config are here-documents, quoted: nothing in them is expanded. It ends the subshell that it is called in.
think() {
  exec awk -f /dev/fd/3 /dev/fd/4 -
} 3<<'AWK' 4<<'CONFIG'
# A unicast route but a default one, of which there may be a million: no other line begins so.
section == "kernel" && /^[0-9]+\./ {
  route[++routes] = $0
  next
}

@ROUTES_AWK@

section == "kernel" {
  if (!/^[0-9]+:/)
    read_route()
  else if (/^[0-9]+:\t/)
    read_rule()
  else if (/^[0-9]+: +[^ ]+ +inet /) {
    has_address[$2] = 1
    is_address[substr($4, 1, index($4 "/", "/") - 1)] = 1
  }
  else
    read_link()
}

section == "heard" { is_restless = is_restless || matters($0) }

# What changes matters, but a route that has no address in an expected CIDR and isn't in table local.
function matters(line,    i) {
  sub(/^Deleted /, "", line)
  if (line !~ /^([0-9]+ )?(default|[0-9.]+(\/[0-9]+)?) / || line ~ / table 255 /)
    return 1
  parse(line)
  place(to)
  # A dump that goes on in the midst of the entries with one first address counts those before.
  while (bits > 0 && first % size[bits - 1] == 0)
    bits--
  for (i = 1; i <= ranges && (range_last[i] < first || range_first[i] >= first + size[bits]); i++)
    ;
  return i <= ranges
}

# expect FIRST LAST CIDR [PATTERN WORDS]: a part of an expected CIDR that is judged, as numbers: what lies in 0/8, 127/8,
# 224/4 and 240/4 isn't. PATTERN: the interfaces that alone may carry it, and WORDS how the config calls them.
section == "config" && $1 == "expect" {
  ranges++
  range_first[ranges] = $2
  range_last[ranges] = $3 + 0
  expected_cidr[ranges] = $4
  own_pattern[ranges] = $5
  own_words[ranges] = $6
  next
}
# The patterns are regular expressions; "/", which is in no name, for none.
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
  if (/^[23] [0-9.]+ .* table 255 /)
    is_own[$1 " " $2 "/32"] = 1
  if (!/^([0-9]+ )?default /)
    return
  parse($0)
  read_default()
  if (turn_of(class) != "")
    turn[turn_of(class), ++turns[turn_of(class)]] = $0
  if (elsewhere == "" && type_of[class] == 1 && table_of[class] != 254)
    elsewhere = "; another table has one: " in_words($0)
}

# What default routes share among which the kernel chooses by the state of their gateways, anew for each lookup: table,
# metric and scope; "" if it always takes this one.
function turn_of(c) {
  if (!(c in turns_of)) {
    take_apart(type_of[c], c)
    turns_of[c] = type_of[c] == 1 && hops == 1 && via[1] != "" && !is_dead[1] && !is_for_tos[c] ? table_of[c] " " metric_of[c] " " scope_of[c] : ""
  }
  return turns_of[c]
}

# Of the rules this program needs the prefixes. What they do is the kernel's business, but where a rule discards an
# address, which it doesn't name. A rule with words that aren't known here is thought not to match.
function read_rule(    line, i) {
  if (++rules == 1)
    asks_local_first = /^0:\tfrom all lookup 255 *$/
  has_source_ports = has_source_ports || / sport 1-65534/
  # What holds all ports that a client may use asks for none.
  has_all_ports += gsub(/ [sd]port 1-65534/, "")
  for (i = 2; i < NF; i++)
    if ($i ~ /^[sd]port$/)
      ports[++port_ranges] = $(i + 1)
  usual_rules += /^(0:\tfrom all lookup 255|32766:\tfrom all lookup 254|32767:\tfrom all lookup 253) *$/
  has_sources = has_sources || /from [0-9]/
  treats_tcp_apart = treats_tcp_apart || (/ ipproto / && !/ [sd]port /)
  if (match($0, / to [0-9][^ ]*/))
    rule_to[++rules_to] = substr($0, RSTART + 4, RLENGTH - 4)
  line = " " substr($0, index($0, "\t") + 1)
  gsub(/ (not|(from|to|tos|fwmark|iif|oif|uidrange|ipproto|sport|dport|suppress_prefixlength|suppress_ifgroup|realms|proto) [^ ]+| \[detached\])/, "", line)
  if (line ~ /^ lookup [0-9]+ *$/)
    is_asked[substr(line, 9) + 0] = 1
  else if (line ~ /^ [68] *$/)
    rule_discards[substr(line, 2) + 0] = 1
}

# Sets the places, in order: each stands for the addresses up to the next, to which the kernel's answers are the same.
function find_places(    i, g, end, is_short, group, groups, octet_of, covered, suspected) {
  sorter = "exec sort -n >\"$SCRATCH\""
  for (i = 1; i <= ranges; i++) {
    print range_first[i], "expected", range_last[i] | sorter
    # By the uplinks this CIDR isn't as expected, or nothing takes what they don't.
    if (own_pattern[i] != "" || default_on("*") == "")
      print_suspect(range_first[i], range_last[i])
  }
  # With rules that aren't the kernel's anything may decide anywhere.
  if (rules != 3 || usual_rules != 3)
    print_suspect(0, size[0] - 1)
  for (i = 1; i <= rules_to; i++) {
    place(rule_to[i])
    print_suspect(first, last)
  }
  for (i = 1; i <= routes; i++) {
    # As parse() has it, which takes too long for those of which there are many.
    end = index(route[i], " ")
    class = substr(route[i], end)
    if (is_plain[class] != 1) {
      parse(route[i])
      if (is_for_tos[class])
        continue
      if (is_plain[class] == "")
        is_plain[class] = type_of[class] == 1 && encap_of[class] == "" && (src_of[class] == "" || src_of[class] in is_address) && !strangers(class, expected, "/")
      if (!is_plain[class]) {
        place(to)
        print_suspect(first, last)
        continue
      }
    }
    is_short = substr(route[i], end - 2, 1) == "/"
    if (!groups || is_short || int(route[i]) != octet_of[groups]) {
      group[++groups] = i
      octet_of[groups] = is_short ? "any" : int(route[i])
    }
  }
  group[groups + 1] = routes + 1
  # Routes by the expected interfaces alone change nothing where nothing suspect reaches.
  for (g = 1; g <= groups; g++)
    for (i = group[g]; i < group[g + 1] && (octet_of[g] == "any" || octet_of[g] in is_near); i++) {
      parse(route[i])
      if (is_plain[class] != 1 || is_for_tos[class])
        continue
      place(to)
      print first, "plain\n" last + 1, "plain" | sorter
    }
  if (close(sorter) != 0)
    problem = "again"
  covered = suspected = -1
  while ((getline <ENVIRON["SCRATCH"]) > 0) {
    if ($2 == "expected" && $3 > covered)
      covered = $3
    if ($2 == "suspect" && $3 > suspected)
      suspected = $3
    if ($1 <= covered && !($1 in place_at) && ($2 != "plain" || $1 <= suspected)) {
      if (places && place_last[places] >= $1)
        place_last[places] = $1 - 1
      place_at[$1] = ++places
      place_first[places] = $1 + 0
      place_last[places] = covered
      address_at[places] = dotted($1)
    }
  }
  close(ENVIRON["SCRATCH"])
}

# Near is what begins with the same octet.
function print_suspect(begin, end,    octet) {
  print begin, "suspect", end "\n" end + 1, "end" | sorter
  for (octet = int(begin / size[8]); octet <= int(end / size[8]); octet++)
    is_near[octet] = 1
}

# A lookup counts as one of UDP. Whatever connects is looked up again, with the source that the first answer gave it.
function look_up(    i, firsts) {
  with_ports = has_all_ports ? free_ports() : ""
  for (i = 1; i <= places; i++) {
    first_at[i] = add_question(i, "", "")
    if (treats_tcp_apart)
      tcp_at[i] = add_question(i, "", " ipproto tcp")
  }
  firsts = questions
  # Where no rule asks for a source, a second lookup can only differ if the one that a route names is no address of this host.
  for (i in src_of)
    if (src_of[i] != "" && !has_sources && !is_named[src_of[i]]++)
      question[add_question(1, src_of[i], "")] = "route get fibmatch " src_of[i] " from " src_of[i] " uid 0"
  ask()
  for (i = firsts + 1; i <= questions; i++)
    if (i in failed) {
      is_suspect[source_of[i]] = 1
      delete failed[i]
    }
  questions = firsts
  add_turns(1)
  firsts = questions
  add_probes()
  if (questions > firsts) {
    ask()
    read_probes(firsts)
  }
  add_connections()
  if (questions > firsts)
    ask()
  add_turns(firsts + 1)
}

function add_question(p, from, as_tcp) {
  place_of[++questions] = p
  source_of[questions] = from
  is_tcp[questions] = as_tcp
  question[questions] = "route get fibmatch " address_at[p] (from == "" ? "" : " from " from) " uid 0" as_tcp with_ports
  return questions
}

# Where one of several default routes answers one of the questions from some number on, each of them does.
function add_turns(i,    count, k, t, n) {
  count = questions
  for (; i <= count; i++) {
    if (i in failed)
      continue
    parse(text_of[i])
    t = to == "0.0.0.0/0" ? turn_of(class) : ""
    for (k = 1; t != "" && turns[t] > 1 && k <= turns[t]; k++) {
      n = add_question(place_of[i], source_of[i], is_tcp[i])
      text_of[n] = turn_text[n] = turn[t, k]
      if (source_of[i] == "")
        turns_at[place_of[i]] = turns_at[place_of[i]] " " n
      else
        second_at[place_of[i]] = second_at[place_of[i]] " " n
    }
  }
}

# Ports that stand for any: a rule for some ports alone asks for none of them.
function free_ports(    port, i, range) {
  for (port = 1; port < 65534; port++) {
    for (i = 1; i <= port_ranges; i++) {
      split(ports[i] "-" ports[i], range, "-")
      if (range[1] <= port && port <= range[2])
        break
    }
    if (i > port_ranges)
      break
  }
  return " sport " port " dport " port
}

# Asks for the sources that the kernel gives where routes name none, once for each class.
function add_probes(    i, ids, id, asked_by, firsts) {
  firsts = questions
  for (i = 1; i <= firsts; i++) {
    if (i in failed)
      continue
    parse(text_of[i])
    # A rule for a source may take what is this host's own, too, if it is asked first.
    if ((type_of[class] == 2 && asks_local_first) || !(has_sources || src_of[class] in is_suspect))
      continue
    way_of[i] = class is_tcp[i]
    if (!(way_of[i] in asked_by))
      id[++ids] = way_of[i]
    asked_by[way_of[i]] = asked_by[way_of[i]] " " i
  }
  for (i = 1; i <= ids; i++)
    add_probes_of(id[i], asked_by[id[i]])
}

# A lookup tells the source of the hop that it takes, by a hash of the address or also of the port.
function add_probes_of(id, asked_by,    list, count, flows, h, share, least, k, n, p, from_port) {
  count = split(asked_by, list, " ")
  parse(text_of[list[1]])
  if (src_of[class] != "") {
    sources_of[id] = src_of[class]
    return
  }
  take_apart(type_of[class], class)
  for (h = 1; h <= hops; h++) {
    share = weight[h] == "" ? 1 : substr(weight[h], 9) + 0
    least = h == 1 || share < least ? share : least
    flows += share
  }
  # A hop that has its share of so many flows is taken by none of them once in e^16 times.
  flows = hops < 2 ? 1 : 16 * int((flows + least - 1) / least)
  from_port = with_ports
  sub(/ dport .*/, "", from_port)
  for (h = 0; h < flows && h < 4096;)
    for (k = 1; k <= count && h < flows && h < 4096; k++) {
      p = place_of[list[k]]
      for (n = place_first[p]; n <= place_last[p] && h < flows && h < 4096; n++) {
        probed_by[add_question(p, "", is_tcp[list[k]])] = id
        question[questions] = "route get " dotted(n) " uid 0" is_tcp[list[k]] (flows > 1 ? from_port " dport " 50000 + h : with_ports)
        h++
      }
    }
}

function read_probes(firsts,    i) {
  for (i = firsts + 1; i <= questions; i++) {
    if (i in failed)
      discards_by(failed[i])
    else {
      parse(text_of[i])
      if (!index(sources_of[probed_by[i]] " ", " " src_of[class] " "))
        sources_of[probed_by[i]] = sources_of[probed_by[i]] " " src_of[class]
    }
  }
  questions = firsts
}

# By their sources, in order as numbers: busybox would take one that begins with 0 for octal, so none is made of words.
function add_connections(    i, k, list, count, n, from, sources_asked, asked_by, name_of, p) {
  for (i = 1; i <= questions; i++) {
    if (i in failed || !(i in way_of))
      continue
    count = split(sources_of[way_of[i]], list, " ")
    for (k = 1; k <= count; k++) {
      n = sprintf("%010.0f", number(list[k]))
      if (!(n in asked_by))
        from[++sources_asked] = n
      name_of[n] = list[k]
      asked_by[n] = asked_by[n] " " i
    }
  }
  split(sorted(from, sources_asked, " "), from, " ")
  for (i = 1; i <= sources_asked; i++) {
    count = split(asked_by[from[i]], list, " ")
    for (k = 1; k <= count; k++) {
      p = place_of[list[k]]
      second_at[p] = second_at[p] " " add_question(p, name_of[from[i]], is_tcp[list[k]])
      connects_at[p] += is_tcp[list[k]] != ""
    }
  }
}

# Asks all questions at once. The kernel tells of a change right after it is made, before it releases its lock, which no
# lookup takes and the last line does: so whatever has been seen is told by then.
function ask(    i, given) {
  question[questions + 1] = "link show dev lo"
  run(question, questions + 1, "-force")
  for (i = 1; i <= questions; i++)
    if (!(i in failed)) {
      text_of[i] = answer[++given]
      if (i in turn_text)
        text_of[i] = turn_text[i]
    }
  if (was_interrupted || answers != given + !((questions + 1) in failed))
    problem = "again"
  delete failed[questions + 1]
  if (has_source_ports && problem == "")
    ask_without_source_ports()
}

# TCP asks without a source port first, and once more with one.
function ask_without_source_ports(    i, count, given, without, said, was_failed) {
  for (i = 1; i <= questions; i++)
    if (question[i] ~ / fibmatch / && !(i in turn_text)) {
      without[++count] = question[i]
      sub(/ sport [0-9]+/, "", without[count])
      said[count] = i in failed ? failed[i] : text_of[i]
    }
  for (i in failed)
    was_failed[i] = failed[i]
  run(without, count, "-force")
  for (i = 1; i <= count; i++)
    if ((i in failed ? failed[i] : answer[++given]) != said[i])
      problem = "a policy rule selects by source port, and TCP is looked up before it has one"
  split("", failed)
  for (i in was_failed)
    failed[i] = was_failed[i]
}

function print_verdict(    i) {
  if (!ranges)
    print "nothing"
  else if (expected == "" && uplink_pattern != "")
    print "unknown\nno-uplink: there is no interface " uplink_words ", which hostRouting.uplinks names"
  else if (expected == "")
    print "no-default-route\nno-default-route: table main has no unicast 0.0.0.0/0 to compare with" elsewhere
  if (!ranges || expected == "")
    return
  if ((i = contested()) != "") {
    print "unknown\ncontested-default: " i
    return
  }
  find_places()
  look_up()
  devs_of["lo"] = "lo"
  type_of["shut"] = 3
  any_pattern = pattern_of["container"] "|" pattern_of["allowed"]
  for (i = 1; i <= questions && problem == ""; i++)
    if (i in failed)
      discarded_by[i] = discards_by(failed[i])
    else {
      # No route changes an own or a broadcast address, if it is one by table local, which the kernel calls main until
      # a rule is added. What else is local stays here.
      parse(text_of[i])
      if (encap_of[class] != "")
        problem = "what is sent to " address_at[place_of[i]] " is encapsulated as " encap_of[class] " (by " in_words(text_of[i]) "), and where that leaves is decided by other tables"
      class_of[i] = (type_of[class] " " to) in is_own ? "own" : type_of[class] == 2 ? "lo" : class
      # Where datagrams that aren't connected go elsewhere, TCP doesn't connect to a broadcast address at all.
      if (class_of[i] == "own" && type_of[class] == 3 && class_of[first_at[place_of[i]]] != "own")
        class_of[i] = "shut"
      if (type_of[class] == 5 && is_last_of_tcp(i))
        is_refused[place_of[i]] = 1
    }
  # A datagram leaves by a multicast route; TCP doesn't connect.
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
    print (default_on("*") == "" ? "early-" : "") (findings ? "overlap" : "ok") pending_devs()
    for (i = 1; i <= findings; i++)
      print message(finding[i])
    if (!findings)
      print "every expected CIDR leaves by " with_commas(expected)
  }
}

# Whether TCP sends by an answer: by its own, and of these by the second where there is one.
function is_last_of_tcp(i,    p) {
  p = place_of[i]
  if (treats_tcp_apart)
    return is_tcp[i] != "" && (source_of[i] != "" || !connects_at[p])
  return source_of[i] != "" || second_at[p] == ""
}

# Why the default routes don't tell which interface is expected; "" if they do, or the config does.
function contested(    i, best, count, others, text) {
  for (i = 1; i <= ranges && own_pattern[i] != ""; i++)
    ;
  if (i > ranges || uplink_pattern != "")
    return ""
  best = default_on("*")
  for (i = 1; i <= default_count; i++)
    if (metric_of[defaults[i]] == metric_of[best]) {
      count++
      others += devs_of[defaults[i]] != devs_of[best]
      text = text "; " in_words("default" defaults[i])
    }
  if (!others)
    return ""
  return "table main has " count " default routes of metric " metric_of[best] " by several interfaces, and which the kernel takes may change with each packet: " substr(text, 3) "; give one of them a lower metric, or name the node\047s uplinks (hostRouting.uplinks)"
}

# The type of what discards; 0: nothing matches.
function discards_by(text) {
  sub(/^RTNETLINK answers: /, "", text)
  if (text !~ /^(Invalid argument|No route to host|Host is unreachable|Permission denied|Network( is)? unreachable)$/)
    problem = "can\047t look up routes: " text
  return text ~ /^I/ ? 6 : text ~ /^(No|H)/ ? 7 : text ~ /^P/ ? 8 : 0
}

# Judges a range, from its first address on.
function judge(r,    p, k, said, said_of_tcp, also_said, list, count) {
  p = place_at[range_first[r]]
  if (!p)
    problem = "again"
  for (; p && p <= places && place_first[p] <= range_last[r]; p++) {
    said = consider(r, first_at[p])
    # TCP sends nothing by a lookup that only chooses the source of a second one.
    said_of_tcp = p in tcp_at && !connects_at[p] ? consider(r, tcp_at[p], said) : ""
    count = split(turns_at[p], list, " ")
    for (k = 1; k <= count; k++) {
      also_said = is_tcp[list[k]] == "" || !connects_at[p] ? consider(r, list[k], said, said_of_tcp) : ""
      said = said == "" ? also_said : said
    }
    # A second one that fails as a first did says nothing new.
    count = split(second_at[p], list, " ")
    for (k = 1; k <= count; k++)
      consider(r, list[k], said, said_of_tcp)
  }
}

# Returns what is wrong with the answer to a question, and tells of it unless one of two has said that already. What is
# alike but for the route is reported once, at its first address.
function consider(r, i, said, also_said,    what, id, c, pattern, kind) {
  pattern = own_pattern[r]
  if (!(i in failed)) {
    c = class_of[i]
    if (!((c, pattern) in fault_of))
      fault_of[c, pattern] = fault(c, pattern)
    what = fault_of[c, pattern]
  }
  else if (!discarded_by[i])
    what = "NO-ROUTE has no IPv4 route; expected via"
  else if (!find_discarder(number(address_at[place_of[i]]), discarded_by[i]) || pattern != "")
    what = "BLACKHOLE is discarded by"
  if (what == "" || what == said || what == also_said)
    return what
  id = expected_cidr[r] SUBSEP own_words[r] SUBSEP what SUBSEP source_of[i]
  if (!(id in told_at)) {
    finding[++findings] = id
    told_at[id] = address_at[place_of[i]]
    told_by[id] = i in failed ? discarder : text_of[i]
  }
  kind = type_name[i in failed ? discarded_by[i] : type_of[c]]
  if (what ~ /^B/ && !index("," discards[id] ",", "," kind ","))
    discards[id] = discards[id] (discards[id] == "" ? "" : ",") kind
  return what
}

# What is wrong with a class, a kind and the words of its message; "" if nothing is.
function fault(c, pattern) {
  # TCP connects to nothing of types broadcast and multicast.
  if (c == "shut" || (type_of[c] ~ /^[35]$/ && !(pattern == "" ? strangers(c, expected, "/") : strangers(c, "", pattern))))
    return "BLACKHOLE is discarded by"
  if (c == "own" || !(pattern == "" ? strangers(c, expected, any_pattern) : strangers(c, "", pattern)))
    return ""
  return "OVERLAP routes via " (devs_of[c] == "" ? "no device" : with_commas(devs_of[c])) ", expected"
}

function with_commas(devs) {
  gsub("/", ",", devs)
  return devs
}

# How many interfaces of a class are neither among some nor like a pattern; 1 if it has none at all.
function strangers(c, devs, pattern,    list, count, i, found) {
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

# A route in the words of `ip route show`, from those of `ip -N -o`.
function in_words(text,    word, count, i) {
  text = text " "
  gsub(/[ \t\\]+/, " ", text)
  if (match(text, /^[0-9]+ /))
    text = type_name[substr(text, 1, RLENGTH - 1)] substr(text, RLENGTH)
  count = split("proto 2,proto kernel,proto 3,proto boot,proto 4,proto static,proto 12,proto bird,proto 16,proto dhcp,proto 217,proto hostrouting,scope 253,scope link,scope 254,scope host,table 253,table default,table 255,table local", word, ",")
  for (i = 1; i < count; i += 2)
    sub(" " word[i] " ", " " word[i + 1] " ", text)
  return substr(text, 1, length(text) - 1)
}

# The InfiniBand interfaces without an address, " ib0, ib1": their connected routes may still come.
function pending_devs(    list, count, i) {
  for (i = 1; i <= infinibands; i++)
    if (!(infiniband[i] in has_address) && !index("/" expected "/", "/" infiniband[i] "/"))
      list[++count] = infiniband[i]
  return count ? " " sorted(list, count, ", ") : ""
}

# Sets discarder, and returns whether it is a CNI's own block: CNIs blackhole it, with the routes to their pods inside it,
# in the same table; no default is one. The kernel doesn't say which entry it was: it is the longest match of one of the
# tables that rules ask. If several discard alike, or a rule may, each has to be a CNI's.
function find_discarder(n, type,    table, bits, entry, is_block, is_of_cni) {
  read_entries()
  discarder = ""
  is_of_cni = !(type in rule_discards)
  for (table in is_asked) {
    for (bits = 32; bits >= 0 && !((entry = key(table, n, bits)) in entry_class); bits--)
      ;
    if (bits < 0 || type_of[entry_class[entry]] != type)
      continue
    is_block = bits > 0 && (entry in holds_pods || proto_of[entry_class[entry]] ~ /^(12|80)$/)
    if (discarder == "" || !is_block)
      discarder = entry_text[entry]
    is_of_cni = is_of_cni && is_block
  }
  is_of_cni = is_of_cni && discarder != ""
  discarder = discarder == "" ? "a policy rule" : discarder
  return is_of_cni
}

# The entries that the kernel may choose, of one prefix the first: that with the lowest metric.
function read_entries(    i, entry) {
  for (i = 1; i <= routes && !has_read_entries; i++) {
    parse(route[i])
    if (is_for_tos[class] || is_dead_of[class])
      continue
    place(to)
    entry = key(table_of[class], first, bits)
    if (!(entry in entry_class)) {
      entry_class[entry] = class
      entry_text[entry] = route[i]
    }
    if (strangers(class, expected, "/") > strangers(class, expected, pattern_of["container"]))
      for (; bits > 0 && !((entry = key(table_of[class], first, bits)) in holds_pods); bits--)
        holds_pods[entry] = 1
  }
  has_read_entries = 1
}

function key(table, n, bits) {
  return table SUBSEP (n - n % size[bits]) SUBSEP bits
}

END {
  expected = uplink_pattern == "" ? devs_of[default_on("*")] : sorted(uplink, uplinks, "/")
  if (section == "heard")
    print is_restless ? "restless" : "calm"
  else {
    print_verdict()
    print "end"
  }
}
AWK
==config
@CONFIG@
==kernel
CONFIG

# Starts LISTENER, which writes down what changes.
listen() {
  local inode
  KNOWN=' '
  while read -r _ _ _ _ _ _ _ _ _ inode; do
    KNOWN+="$inode "
  done </proc/self/net/netlink
  # First, since a signal may come right after.
  trap 'kill ${!-} $MONITOR 2>/dev/null' EXIT
  ip -4 -N -o monitor link address route rule nexthop netconf </dev/null >>"$SCRATCH.heard" 2>&1 8<&- 9>&- &
  LISTENER=$!
  disown
}

# Waits until LISTENER has written down all that the kernel told it: its socket holds nothing, and then it sleeps. Which
# socket that is isn't known, so none may hold anything that is new and of these groups. Or fails and sets MESSAGE.
hear_out() {
  local until groups bytes inode state is_open is_heard
  MESSAGE="can't listen for changes: /proc/net/netlink shows no idle ip monitor in $HEAR_SECONDS s"
  look_at_time
  until=$((NOW + HEAR_SECONDS * 100))
  while [ "$NOW" -lt "$until" ]; do
    is_open='' is_heard=yes
    while read -r _ _ _ groups bytes _ _ _ _ inode; do
      [[ $groups != Groups && $KNOWN != *" $inode "* ]] || continue
      [ $((16#$groups & GROUPS_HEARD)) -eq "$GROUPS_HEARD" ] || continue
      is_open=yes
      [ "$bytes" -eq 0 ] || is_heard=''
    done </proc/self/net/netlink
    if ! { read -r _ _ state _ <"/proc/$LISTENER/stat"; } 2>/dev/null; then
      { IFS= read -r MESSAGE <"$SCRATCH.heard"; } 2>/dev/null
      MESSAGE="can't listen for changes: ip monitor has ended: $MESSAGE"
      return 1
    fi
    [[ -z $is_open || -z $is_heard || $state != S ]] || return 0
    look_at_time
  done
  return 1
}

# Forgets what was heard, or fails and sets MESSAGE. The line takes the room that others need, as ip wouldn't say that there
# is none.
forget() {
  MESSAGE="can't write $SCRATCH.heard: is there room left?"
  say '==heard' >"$SCRATCH.heard"
} 2>/dev/null

# Whether nothing that matters has been heard.
is_calm() {
  local heard
  IFS= read -r -d '' heard <"$SCRATCH.heard"
  [ "$heard" = $'==heard\n' ] || [ "$(think <<<"$heard")" = calm ]
}

# Asks the kernel and has the answers judged; anew if anything that matters has changed meanwhile, even to and fro. Sets
# VERDICT, LACKS_DEFAULT, PENDING and LINES.
look() {
  local left text
  VERDICT=again
  listen
  for ((left = ATTEMPTS; left; left--)); do
    PENDING='' LINES=''
    if ! hear_out || ! forget || ! list "$TABLES" think; then
      VERDICT=unknown LINES="check-failed: $MESSAGE"
      break
    fi
    { hear_out && is_calm; } || continue
    # What awk prints before something ends it is no verdict.
    [[ $LISTED = *$'\nend' ]] || LISTED=''
    LISTED=${LISTED%$'\nend'}
    LINES=${LISTED#*$'\n'} text=${LISTED%%$'\n'*}
    VERDICT=${text%% *} PENDING=${text#"${text%% *}"}
    [ "$VERDICT" = again ] || break
  done
  kill "$LISTENER" 2>/dev/null
  trap 'kill $MONITOR 2>/dev/null' EXIT
  LACKS_DEFAULT=''
  [[ $VERDICT != early-* ]] || LACKS_DEFAULT=yes VERDICT=${VERDICT#early-}
  case $VERDICT in
    ok | overlap | unknown | nothing | no-default-route) ;;
    again) VERDICT=unknown LINES='check-failed: the routes changed each time that they were read; try again later' ;;
    *) VERDICT=unknown PENDING='' LINES='check-failed: awk ended without an answer' ;;
  esac
}

attempt() {
  LIMIT=$NETWORK_LIMIT
  # A process that holds the lock that long won't let go: once is enough.
  if [ "$LOCK_LIMIT" -gt 0 ] && ! take_lock; then
    complain "$MESSAGE; judging without it"
    LOCK_LIMIT=0 SCRATCH+=.unlocked ERRORS+=.unlocked
  fi
  give_way
  # Only what is installed judges a start; without the lock a trial may have begun meanwhile.
  { [ -n "$IS_GATE" ] && has_trial; } || look
  if [ -n "$IS_GATE" ] && has_trial; then
    VERDICT=unknown LINES='check-failed: a trial of routes stands; to end it: hostrouting apply' MISSING='the end of the trial of routes'
    return "$MAY_COME"
  fi
  if [[ -n $LACKS_DEFAULT || $LINES = no-uplink:* ]]; then
    MISSING='the default route on an uplink'
    [[ -z $PENDING || $SETTLE_LIMIT -le $LIMIT ]] || MISSING="an address on$PENDING" LIMIT=$SETTLE_LIMIT
    return "$MAY_COME"
  fi
  case $VERDICT in
    ok | overlap | nothing) ;;
    no-default-route) MISSING='the default route' && return "$MAY_COME" ;;
    *) return 1 ;;
  esac
  if [ -n "$PENDING" ]; then
    MISSING="an address on$PENDING" LIMIT=$SETTLE_LIMIT
    return "$MAY_COME"
  fi
  [ "$VERDICT" != overlap ]
}

# Whether the gate has told this failure already, and its marker is there.
is_told() {
  [[ $IS_TOLD && $VERDICT =~ ^(overlap|unknown)$ && $(<"$MARKER_DETECTED") == "$LINES" ]] 2>/dev/null
}

# Leaves exactly one marker, by rename. The stale one goes first: none is never taken for "ok".
leave_marker() {
  local marker=$MARKER_DETECTED other=$MARKER_OK text=$LINES$'\n' new=$RUN_DIR/route-overlap.$$ stale
  case $VERDICT in
    ok) marker=$MARKER_OK other=$MARKER_DETECTED text='' ;;
    no-default-route) text=$'no-default-route\n' ;;
  esac
  if is_glass_broken && [[ $text != gate-off:* ]]; then
    marker=$MARKER_DETECTED other=$MARKER_OK text+="gate-off: $WHY; every start is admitted unchecked"$'\n'
  fi
  [ -d "$RUN_DIR" ] || mkdir -p "$RUN_DIR"
  printf '%s' "$text" >"$new" || return
  for stale in "$other" "$REPORT"; do
    [ ! -e "$stale" ] || rm -f "$stale" || return
  done
  mv -f "$new" "$marker"
}

# Says the verdict and leaves it. Returns whether the machine may start.
report() {
  local is_left=1 shown
  if [ "$VERDICT" = nothing ]; then
    rm -f "$MARKER_OK" "$MARKER_DETECTED" "$REPORT"
    say 'no CIDRs are expected: nothing to check'
    return
  fi
  leave_marker || { complain "can't write the markers in $RUN_DIR"; is_left=''; }
  case $VERDICT in
    ok) say "$LINES" ;;
    overlap)
      mapfile -t shown <<<"$LINES"
      complain "${shown[@]:0:SHOWN_LINES}"
      [ "${#shown[@]}" -le "$SHOWN_LINES" ] || complain "and $((${#shown[@]} - SHOWN_LINES)) more; all are in $MARKER_DETECTED"
      complain 'fix: hostrouting fix prints what fixes it; without it here, record this host and judge it elsewhere:' \
        '  hostrouting fix --snapshot FILE' ;;
    *) complain "the check couldn't judge anything: $LINES" ;;
  esac
  [[ $MODE = WARN || ( $VERDICT = ok && -n $is_left ) ]]
}

# Has Python tell what is shadowed, what fixes it and what else is worth a note, and leave the report. Whatever becomes of
# it changes nothing of the verdict. -I: the consumer's environment and folder don't say which modules root loads.
explain() {
  [[ $VERDICT = ok || $VERDICT = nothing || ! -x $PYTHON ]] ||
    timeout -k 1 "$EXPLAIN_LIMIT" "$PYTHON" -I -m hostrouting check --report >&2
}

VERDICT='' PENDING='' LINES='' LACKS_DEFAULT='' LISTENER='' KNOWN='' EXPLAIN_LIMIT=$EXPLAIN_SECONDS IS_GATE='' IS_TOLD=''
LIMIT=$WAIT_SECONDS SETTLE_LIMIT=$SETTLE_SECONDS
case $#:${1-} in
  0:) ;;
  2:unjudged) VERDICT=unknown LINES=$2; report; exit ;;
  1:gate | 2:gate)
    be_the_gate
    IS_GATE=yes IS_TOLD=${2-} EXPLAIN_LIMIT=$GATE_EXPLAIN_SECONDS
    SETTLE_LIMIT=$((SETTLE_SECONDS < GATE_SECONDS ? SETTLE_SECONDS : GATE_SECONDS))
    # A hold has waited once, and lets the start through as soon as what holds it is fixed.
    [ -z "$IS_TOLD" ] || SETTLE_LIMIT=0
    ;;
  *) explain_usage '[gate [told]]' ;;
esac
NETWORK_LIMIT=$LIMIT
keep_trying
if is_told; then
  [ "$MODE" = WARN ]
  exit
fi
report
STATUS=$?
exec 9>&-
explain
exit "$STATUS"
}
