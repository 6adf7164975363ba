#!/bin/bash
# shellcheck disable=SC2034,SC2329 # some is for the part that the scripts share
{
# Gives the kernel the static routes below, all of them or none. Rendered by hostrouting: edits are lost.
#
#   static-routes.sh         the oneshot at boot: waits for the network as long as the config says
#   static-routes.sh gate    before the machine starts: waits 5 s at most, and looks again for 3 s before it fails
#
# One ip lists what there is, awk plans, one ip writes what is missing and asks which routes win, and awk compares. What
# was written is taken back if anything of that fails. It says in a line what failed; `hostrouting apply` says more.
# Needs bash, coreutils, flock, iproute2 5.15 and any POSIX awk. Everything stands in one group: bash runs none of a
# file that is cut off.

@COMMON@

# --- the routes -----------------------------------------------------------------------------------------------------

readonly WAIT_SECONDS=@WAIT_SECONDS@

# think STEP <SECTIONS: "plan" prints what is to be done, "prove" which route doesn't win. Takes the place of the
# subshell that it is called in. The program and the routes are here-documents, quoted: nothing in them is expanded.
think() {
  exec awk -v step="$1" -f /dev/fd/3 /dev/fd/4 -
} 3<<'AWK' 4<<'ROUTES'
@ROUTES_AWK@

# --- reading --------------------------------------------------------------------------------------------------------

# DESTINATION GATEWAY DEV METRIC of a wanted route; "*" is the default route's.
section == "config" {
  wanted++
  wanted_to[wanted] = $1
  wanted_gateway[wanted] = $2
  wanted_dev[wanted] = $3
  wanted_metric[wanted] = $4
}

section == "kernel" && /^[0-9]+: +[^ ]+ +inet / { sub(/\/.*/, "", $4); is_own[$4] = 1 }
section == "kernel" && /^[0-9]+: [^ ]+: </ { read_link() }
section == "kernel" && !/^[0-9]+:/ { read_route() }
section == "expected" { expected[++expectations] = $0 }
section == "answers" { answer[++answers] = $0 }

# Those of type vrf are listed by themselves, and then with all.
function read_link(    name, i) {
  name = $2
  sub(/[@:].*/, "", name)
  if (name in is_up)
    is_vrf[name] = 1
  is_up[name] = $3 ~ /[<,]UP[,>]/
  for (i = 4; i < NF; i++)
    if ($i == "master")
      master[name] = $(i + 1)
}

function read_route(    id, is_ours) {
  parse($0)
  if (table_of[class] == 255)
    cover(to, in_local)
  if (table_of[class] != 254)
    return
  is_ours = proto_of[class] == 217 && to != "0.0.0.0/0"
  if (is_ours) {
    our_count++
    our_to[our_count] = to
    our_class[our_count] = class
  }
  else if (type_of[class] == 1 && scope_of[class] >= 253)
    add_near(to, devs_of[class])
  # Of ours those that are wanted are there afterwards, and no others.
  if (!is_ours && !is_for_tos[class])
    cover(to, in_main)
  if (is_default())
    defaults[++default_count] = class
  if (proto_of[class] == 2 && type_of[class] == 1 && scope_of[class] == 253)
    is_connected[to] = 1
  # Of several the first is the one that would be replaced.
  id = to " " metric_of[class]
  if (!is_for_tos[class] && !(id in there))
    there[id] = class
}

# --- what a gateway can be reached by: the kernel looks it up among routes of scope link or nearer only ---------------

function add_near(prefix, devs) {
  near[prefix] = near[prefix] "," devs ","
  near_bits[substr(prefix, index(prefix, "/") + 1)] = 1
}

function is_reachable(via, name,    n, length_, prefix) {
  n = number(via)
  for (length_ in near_bits) {
    prefix = dotted(n - n % size[length_]) "/" length_
    if (prefix in near && index(near[prefix], "," name ","))
      return 1
  }
  return 0
}

# --- what is left open comes from the default route -------------------------------------------------------------------

# The default route that counts, or that does on some device.
function default_on(name,    i, best) {
  best = ""
  for (i = 1; i <= default_count; i++)
    if (name == "*" || index("," devs_of[defaults[i]] ",", "," name ","))
      if (best == "" || metric_of[defaults[i]] < metric_of[best])
        best = defaults[i]
  return best
}

# Sets words, all of a route behind its destination and metric; or lack, what may still come; or refusal.
function resolve(gateway, name,    best, h, count, legs, head) {
  words = lack = refusal = ""
  if (name != "*" && !check_device(name))
    return
  if (name != "*" && gateway != "*") {
    split("", onlink_to)
    words = named_hop(gateway, name)
    return
  }
  best = default_on(name)
  if (best == "") {
    lack = "the default route" (name == "*" ? "" : " on " name)
    return
  }
  take_apart(1, best)
  head = (field["src"] == "" ? "" : " src " field["src"]) (field["mtu"] == "" ? "" : " mtu " field["mtu"])
  count = 0
  split("", onlink_to)
  for (h = 1; h <= hops; h++)
    if (!is_dead[h] && (name == "*" || dev[h] == name)) {
      legs = legs " nexthop" hop[h]
      count++
      if (onlink[h] != "")
        onlink_to[via[h], dev[h]] = 1
    }
  if (gateway != "*")
    words = named_hop(gateway, name == "*" ? one_of(devs_of[best], gateway) : name)
  else if (count > 1)
    words = legs
  else {
    words = substr(legs, length(" nexthop") + 1)
    sub(/ weight [0-9]+/, "", words)
  }
  words = head words
}

function check_device(name) {
  if (!(name in is_up))
    lack = "device " name " (there is no such interface)"
  else if (name in master && !(master[name] in is_vrf))
    refusal = name " is a port of " master[name] ", which takes its packets; name " master[name] " as dev"
  else if (!is_up[name])
    lack = "device " name " (it is down)"
  return lack refusal == ""
}

function named_hop(gateway, name) {
  if (gateway == "onlink")
    return " dev " name
  if (gateway in is_own)
    refusal = "the gateway " gateway " is an address of this host"
  else if (!((gateway, name) in onlink_to) && !is_reachable(gateway, name))
    lack = "gateway " gateway " (no route of scope link reaches it on " name ")"
  return " via " gateway " dev " name ((gateway, name) in onlink_to ? " onlink" : "")
}

# The one interface of the default route that a route with a named gateway, or with none, goes by.
function one_of(devs, gateway,    list, count, i, reaching) {
  count = split(devs, list, ",")
  reaching = ""
  for (i = 1; i <= count && count > 1 && gateway != "onlink"; i++)
    if (is_reachable(gateway, list[i]))
      reaching = reaching (reaching == "" ? "" : ",") list[i]
  if (reaching != "")
    devs = reaching
  if (gsub(/,/, " and ", devs))
    refusal = "the default route leaves by " devs "; name the one meant as dev"
  return devs
}

# --- the plan -------------------------------------------------------------------------------------------------------

# Prints "refused" or "lacking" and why; or "planned", how many changes and how many questions, and then the changes,
# how each is taken back, the questions, and what is to be answered.
function print_plan(    i, id, is_near, carrier) {
  for (i = 1; i <= wanted; i++)
    if (wanted_gateway[i] == "onlink")
      add_near(wanted_to[i], wanted_dev[i] == "*" ? devs_of[default_on("*")] : wanted_dev[i])
  for (i = 1; i <= wanted; i++) {
    id = wanted_gateway[i] " " wanted_dev[i]
    if (!(id in words_of)) {
      resolve(wanted_gateway[i], wanted_dev[i])
      words_of[id] = words
      if (lack refusal != "")
        stop(lack != "" ? "lacking" : "refused", wanted_to[i], lack refusal)
    }
  }
  if (!("lacking" in reason)) {
    for (i = 1; i <= wanted; i++)
      plan_one(i)
    plan_removals()
    # Of several metrics of a destination the lowest carrier the packets.
    for (i = 1; i <= wanted; i++)
      if (!(wanted_to[i] in carrier) || wanted_metric[i] + 0 < wanted_metric[carrier[wanted_to[i]]] + 0)
        carrier[wanted_to[i]] = i
    for (i = 1; i <= wanted; i++)
      if (carrier[wanted_to[i]] == i)
        plan_proof(i)
  }
  if ("refused" in reason)
    print "refused", reason["refused"]
  else if ("lacking" in reason)
    print "lacking", reason["lacking"]
  else {
    print "planned", changes["add"] + changes["replace"] + changes["del"], questions + 0
    print_changes(forth)
    print_changes(back)
    for (i = 1; i <= questions; i++)
      print question[i]
    for (i = 1; i <= questions; i++)
      print to_answer[i]
  }
}

# Keeps the first reason.
function stop(how, destination, why) {
  if (!(how in reason))
    reason[how] = how == "lacking" ? why ", for " destination : "can\047t install " destination ": " why
}

function plan_one(i,    id, words, text, old) {
  words = words_of[wanted_gateway[i] " " wanted_dev[i]]
  id = wanted_to[i] " " wanted_metric[i]
  is_wanted[id] = 1
  cover(wanted_to[i], in_main)
  # As ip does by itself, but for a route that replaces another.
  text = wanted_to[i] " table 254 proto 217" (words ~ / (via|nexthop) / ? "" : " scope 253") " metric " wanted_metric[i] words
  parse(text)
  outcome[i] = id " 254 " ways_of[class]
  if (to in is_connected)
    stop("refused", to, "it is a connected network, which another route would cut off; name its halves instead")
  else if (!(id in there))
    change("add", scope_of[class] == 253, text, "del " text)
  else {
    old = there[id]
    if (proto_of[old] != 217 && ways_of[old] != ways_of[class])
      stop("refused", to, "somebody else\047s route has its destination and metric:" old)
    else if (proto_of[old] == 217 && substance(old) != substance(class))
      change("replace", scope_of[class] == 253, text, "replace " command(to, old))
  }
  if (!(id in there) || proto_of[there[id]] == 217)
    cover(wanted_to[i], mine)
}

function plan_removals(    i) {
  for (i = 1; i <= our_count; i++)
    if (is_for_tos[our_class[i]] || !((our_to[i] " " metric_of[our_class[i]]) in is_wanted))
      change("del", scope_of[our_class[i]] == 253, command(our_to[i], our_class[i]), "add " command(our_to[i], our_class[i]))
}

# Routes that a gateway may need are added first and removed last.
function change(verb, is_near, text, undo,    n) {
  n = ++changes[verb]
  is_first[verb, n] = verb == "del" ? !is_near : is_near
  forth[verb, n] = "route " verb " " text
  back[verb, n] = "route " undo
}

function print_changes(list,    step, verb, verbs, first_ones, i) {
  verbs = split("add replace del", verb, " ")
  for (step = 1; step <= verbs; step++)
    for (first_ones = 1; first_ones >= 0; first_ones--)
      for (i = 1; i <= changes[verb[step]]; i++)
        if (is_first[verb[step], i] == first_ones)
          print list[verb[step], i]
}

# A route to somewhere of some class, in words that ip takes.
function command(somewhere, some,    i, h, word, count) {
  if (!(some in command_of)) {
    take_apart(type_of[some], some)
    # ip takes some types to be meant for table local.
    command_of[some] = " table 254"
    count = split("tos proto scope metric src mtu nhid", word, " ")
    for (i = 1; i <= count; i++)
      if (field[word[i]] != "")
        command_of[some] = command_of[some] " " word[i] " " field[word[i]]
    for (h = 1; h <= hops && field["nhid"] == ""; h++)
      command_of[some] = command_of[some] (hops > 1 ? " nexthop" : "") hop[h]
  }
  return (type_of[some] == 1 || command_of[some] ~ / nhid / ? "" : type_name[type_of[some]] " ") somewhere command_of[some]
}

# All that would be lost if a route of ours weren't replaced.
function substance(some,    h) {
  if (!(some in substance_of)) {
    take_apart(type_of[some], some)
    substance_of[some] = type_of[some] " " scope_of[some] " " field["src"] " " field["mtu"] " " field["nhid"]
    for (h = 1; h <= hops; h++)
      substance_of[some] = substance_of[some] ";" hop[h]
  }
  return substance_of[some]
}

# --- what proves that a route wins: an address that no longer prefix covers -------------------------------------------

function cover(prefix, some) {
  some[prefix] = 1
  has_length[substr(prefix, index(prefix, "/") + 1) + 0] = 1
}

# The first address of a prefix that no longer one of these covers; "" if they cover it all.
function own_address_of(prefix, some, more,    address, n, end, longer, found) {
  place(prefix)
  address = substr(prefix, 1, index(prefix, "/") - 1)
  for (n = first; n < first + size[bits]; address = dotted(n += size[longer])) {
    for (longer = bits + 1; longer <= 32; longer++)
      if (longer in has_length && ((address "/" longer) in some || (address "/" longer) in more))
        break
    if (longer > 32)
      return address
  }
  return ""
}

# A route that longer ones cover is fine as long as some of them are ours, and the rest own addresses.
function plan_proof(i,    address) {
  address = own_address_of(wanted_to[i], in_main, in_local)
  if (address != "") {
    question[++questions] = "route get fibmatch " address " uid 0"
    to_answer[questions] = outcome[i]
  }
  else if (own_address_of(wanted_to[i], mine, in_local) != "" || own_address_of(wanted_to[i], in_local, in_local) == "")
    stop("refused", wanted_to[i], "longer prefixes cover all of it; look at: ip -4 route show root " wanted_to[i])
}

function print_proof(    i) {
  for (i = 1; i <= answers; i++) {
    parse(answer[i])
    if (to " " metric_of[class] " " table_of[class] " " ways_of[class] != expected[i]) {
      print substr(expected[i], 1, index(expected[i], " ") - 1) " doesn\047t win: packets to it go by " answer[i]
      return
    }
  }
  print answers == expectations ? "proven" : "ip gave " answers + 0 " answers to " expectations " questions"
}

END {
  # To 0.0.0.0 a host talks to itself, whatever its tables say.
  cover("0.0.0.0/32", in_local)
  if (step == "plan")
    print_plan()
  else
    print_proof()
}
AWK
==config
@ROUTES@
==kernel
ROUTES

# Returns whether the routes are as wanted. Sets MESSAGE, and MISSING to what may still come.
attempt() {
  local plan
  take_lock || return 1
  list $'link show type vrf\nlink show\naddress show\nroute show table all' || return 1
  plan=$(think plan <<<"$LISTED")
  MESSAGE="can't plan the static routes: awk ended without an answer"
  case $plan in
    planned\ [0-9]*) ;;
    lacking\ *)
      MISSING=${plan#lacking }
      MESSAGE="can't install the static routes: waited $LIMIT s and still missing is $MISSING"
      return "$MAY_COME"
      ;;
    refused\ *) MESSAGE=${plan#refused } && return 1 ;;
    *) return 1 ;;
  esac
  read -r _ CHANGES QUESTIONS <<<"$plan"
  mapfile -t PLAN <<<"$plan"
  [ "${#PLAN[@]}" -eq $((1 + 2 * CHANGES + 2 * QUESTIONS)) ] || return 1
  IS_WRITING=1
  commit
  if [ "$MESSAGE" != proven ] || [ -n "$STOPPED" ]; then
    put_back
  fi
  IS_WRITING=''
  [ -z "$STOPPED" ] || stop
  [ "$MESSAGE" = proven ]
}

# Makes the changes and has it proven that the routes win. Sets MADE, how many changes are to be put back if not.
commit() {
  local commands failed reason
  printf -v commands '%s\n' "${PLAN[@]:1:CHANGES}" "${PLAN[@]:1 + 2 * CHANGES:QUESTIONS}"
  MADE=$CHANGES
  if ask "$commands"; then
    printf -v commands '%s\n' ==expected "${PLAN[@]:1 + 2 * CHANGES + QUESTIONS}" ==answers "$ANSWERS"
    MESSAGE=$(think prove <<<"$NEXTHOPS$commands")
    return
  fi
  reason=${ERROR%%$'\n'*} reason=${reason#RTNETLINK answers: } reason=${reason#Error: }
  MESSAGE="can't install the static routes: ${reason:-ip was ended}"
  [[ $ERROR =~ 'Command failed -:'([0-9]+) ]] || return
  failed=${BASH_REMATCH[1]}
  if [ "$failed" -le "$CHANGES" ]; then
    MADE=$((failed - 1)) MESSAGE="can't do ip ${PLAN[failed]}: $reason"
  else
    MESSAGE="${PLAN[CHANGES + QUESTIONS + failed]%% *} doesn't win: packets to it go nowhere ($reason)"
  fi
}

# Takes back what was made, the last of it first. What somebody else has taken back meanwhile needs it no more.
put_back() {
  local commands='' i line
  for ((i = MADE; i; i--)); do
    commands+=${PLAN[CHANGES + i]}$'\n'
  done
  [ -n "$commands" ] && ! ask "$commands" -force || return
  while read -r line; do
    case $line in
      'Command failed '* | *': No such process' | *': File exists') ;;
      *) MESSAGE+="; and not all could be put back: $line" && break ;;
    esac
  done <<<"$ERROR"
}

# A change is put back first, then the run ends.
on_signal() {
  STOPPED=$1
  [ -n "$IS_WRITING" ] || stop
}

stop() {
  complain "stopped: $STOPPED; nothing is left half-done"
  exit 1
}

# --- the run --------------------------------------------------------------------------------------------------------

PLAN=() CHANGES=0 QUESTIONS=0 MADE=0 STOPPED='' IS_WRITING='' LIMIT=$WAIT_SECONDS
case $#:${1-} in
  0:) ;;
  1:gate)
    look_at_gate
    case $GATE in
      off) complain "GATE OFF: $WHY; the start is admitted and no static route was looked at" && exit 0 ;;
      other) say "$WHY: nothing was changed" && exit 0 ;;
      unknown) complain "$WHY" && exit 1 ;;
    esac
    be_the_gate
    ;;
  *)
    complain "usage: ${0##*/} [gate]"
    exit 64
    ;;
esac
for SIGNAL in HUP INT TERM; do
  # shellcheck disable=SC2064 # which signal it is is known now
  trap "on_signal SIG$SIGNAL" "$SIGNAL"
done
if ! keep_trying; then
  complain "$MESSAGE"
  exit 1
fi
if [ "$CHANGES" -eq 0 ]; then
  say 'nothing to change'
  exit 0
fi
say "${PLAN[@]:1:CHANGES < 50 ? CHANGES : 50}"
[ "$CHANGES" -le 50 ] || say "and $((CHANGES - 50)) more"
exit 0
}
