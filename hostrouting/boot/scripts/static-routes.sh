#!/bin/bash -p
{
# Gives the kernel the static routes below, all of them or none. Rendered by hostrouting: edits are lost.
#
#   static-routes.sh         the oneshot at boot: waits for the network as long as the config says
#   static-routes.sh gate    before the machine starts: waits 5 s at most
#
# One ip lists what there is, awk plans, and has one ip write what is missing and tell which routes win. What was written
# is taken back if anything of that fails. It says in a line what failed; `hostrouting apply` says more.

@COMMON@

readonly WAIT_SECONDS=@WAIT_SECONDS@

# think commit|undo: makes the changes, and takes them back if they don't win; or takes all of them back. Program and
# routes are here-documents, quoted: nothing in them is expanded. It ends the subshell that it is called in. systemd sends
# its signals to all processes of a unit: half of the changes would be worse than a late end. ip holds 5, so that a program that
# reads what this prints waits for the end of ip if awk is killed.
think() {
  trap '' HUP INT TERM
  exec awk -v task="$1" -f /dev/fd/3 /dev/fd/4 - <<<"$LISTED" 5>&1
} 3<<'AWK' 4<<'ROUTES'
@ROUTES_AWK@

# DESTINATION GATEWAY DEV METRIC of a wanted route; "*" is inherited from the default route.
section == "config" {
  wanted++
  wanted_to[wanted] = shown_to[wanted] = $1
  sub(/\/32$/, "", shown_to[wanted])
  wanted_gateway[wanted] = $2
  wanted_dev[wanted] = $3
  wanted_metric[wanted] = $4
  next
}

section == "kernel" && /^[0-9]+: +[^ ]+ +inet / { sub(/\/.*/, "", $4); is_own[$4] = 1 }
section == "kernel" && /^[0-9]+: [^ ]+: </ { read_link() }
section == "kernel" && !/^[0-9]+:/ { read_route() }

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

# What we have in main is left out of near and in_main: what is wanted is there afterwards, and no more.
function read_route(    id) {
  parse($0)
  if (table_of[class] == 255)
    cover(to, in_local)
  if (table_of[class] != 254)
    return
  read_default()
  if (type_of[class] == 1 && scope_of[class] == 253 && proto_of[class] == 2)
    is_connected[to] = 1
  # Of several the first is the one that would be replaced.
  id = to " " metric_of[class]
  if (!is_for_tos[class] && !(id in there))
    there[id] = class
  if (proto_of[class] == 217 && to != "0.0.0.0/0") {
    our_to[++our_count] = to
    our_class[our_count] = class
    return
  }
  if (!is_for_tos[class])
    cover(to, in_main)
  if (type_of[class] == 1 && scope_of[class] >= 253)
    near[to] = near[to] "/" devs_of[class] "/"
}

# All of a route behind its destination, in the order in which ip prints it.
function resolve(gateway, name, rank,    best, count, h, head, legs, source, mtu) {
  split("", onlink_by)
  if (name != "*" && !is_ready(name))
    return ""
  if (name != "*" && gateway != "*")
    return in_order(named_hop(gateway, name), "", rank, "")
  best = default_on(name)
  if (best == "") {
    fail("lacking", "the default route" (name == "*" ? on_uplinks() : " on " name))
    return ""
  }
  take_apart(1, best)
  for (h = 1; h <= hops; h++)
    if (!is_dead[h] && (name == "*" ? is_uplink(dev[h]) : dev[h] == name)) {
      count++
      head = way(h)
      onlink_by[head] = onlink[h]
      legs = legs " nexthop" hop[h]
    }
  source = field["src"] == "" ? "" : " src " field["src"]
  mtu = field["mtu"] == "" ? "" : " mtu " field["mtu"]
  if (gateway == "*")
    return count == 1 ? in_order(head, source, rank, onlink_by[head] mtu) : in_order("", source, rank, mtu legs)
  head = named_hop(gateway, name == "*" ? one_of(uplinks_of(best), gateway) : name)
  return in_order(head, source, rank, onlink_by[head] mtu)
}

function on_uplinks() {
  return uplink_words == "" ? "" : " on " uplink_words
}

function in_order(head, source, rank, tail) {
  return head " proto 217" (head ~ /^ dev / ? " scope 253" : "") source (rank == "0" ? "" : " metric " rank) tail
}

function is_ready(name) {
  if (!(name in is_up))
    fail("lacking", "device " name " (there is no such interface)")
  else if (name in master && !(master[name] in is_vrf))
    fail("refused", name " is a port of " master[name] ", which takes its packets; name " master[name] " as dev")
  else if (!is_up[name])
    fail("lacking", "device " name " (it is down)")
  else
    return 1
  return 0
}

# The one interface of several by which a gateway is reached; "" if there is no such one.
function one_of(devs, gateway,    list, count, i, reaching) {
  count = split(devs, list, "/")
  for (i = 1; i <= count && count > 1 && gateway != "onlink"; i++)
    if (is_reachable(gateway, list[i]))
      reaching = reaching (reaching == "" ? "" : "/") list[i]
  if (reaching != "")
    devs = reaching
  if (!gsub("/", " and ", devs))
    return devs
  fail("refused", "the default route leaves by " devs "; name the one meant as dev")
  return ""
}

function named_hop(gateway, name,    head) {
  head = (gateway == "onlink" ? "" : " via " gateway) " dev " name
  if (gateway in is_own)
    fail("refused", "the gateway " gateway " is an address of this host")
  else if (name != "" && gateway != "onlink" && onlink_by[head] == "" && !is_reachable(gateway, name))
    fail("lacking", "gateway " gateway " (no route of scope link reaches it on " name ")")
  return head
}

# The kernel looks a gateway up among routes of scope link or nearer only.
function is_reachable(gateway, name,    n, bits) {
  n = number(gateway)
  for (bits = 0; bits <= 32; bits++)
    if (index(near[dotted(n - n % size[bits]) "/" bits], "/" name "/"))
      return 1
  return 0
}

# Keeps the first reason why the route that is looked at can't be installed yet ("lacking"), or ever ("refused").
function fail(how, why) {
  if (!(how in reason))
    reason[how] = how == "lacking" ? why ", needed by " looked_at : "can\047t install " looked_at ": " why
}

function make_plan(    i, id, words_of, carrier) {
  for (i = 1; i <= wanted; i++)
    if (wanted_gateway[i] == "onlink")
      near[wanted_to[i]] = near[wanted_to[i]] "/" (wanted_dev[i] == "*" ? uplinks_of(default_on("*")) : wanted_dev[i]) "/"
  for (i = 1; i <= wanted; i++) {
    looked_at = wanted_to[i]
    id = wanted_gateway[i] " " wanted_dev[i] " " wanted_metric[i]
    if (!(id in words_of)) {
      words_of[id] = resolve(wanted_gateway[i], wanted_dev[i], wanted_metric[i])
      classify(1, words_of[id])
    }
    wanted_class[i] = words_of[id]
    # Of several metrics of a destination the lowest carries the packets.
    if (!(looked_at in carrier) || wanted_metric[i] + 0 < wanted_metric[carrier[looked_at]] + 0)
      carrier[looked_at] = i
  }
  if ("lacking" in reason || "refused" in reason)
    return
  for (i = 1; i <= wanted; i++)
    plan_one(i)
  for (i = 1; i <= our_count; i++)
    if (is_for_tos[our_class[i]] || !((our_to[i] " " metric_of[our_class[i]]) in is_wanted))
      change("del", command(our_to[i], our_class[i]), our_class[i], "add " command(our_to[i], our_class[i]))
  for (i = 1; i <= wanted; i++)
    if (carrier[wanted_to[i]] == i)
      plan_proof(i)
}

function plan_one(i,    id, text, old) {
  looked_at = wanted_to[i]
  id = looked_at " " wanted_metric[i]
  is_wanted[id] = 1
  cover(looked_at, in_main)
  class = wanted_class[i]
  text = shown_to[i] class
  answer_of[i] = text " "
  old = id in there ? there[id] : ""
  if (looked_at in is_connected)
    fail("refused", "it is a connected network, which another route would cut off; name its halves instead")
  else if (old == "")
    change("add", text, class)
  else if (proto_of[old] != 217 && ways_of[old] != ways_of[class])
    fail("refused", "another program\047s route has its destination and metric:" old)
  else if (proto_of[old] != 217 || command(looked_at, old) == command(looked_at, class))
    answer_of[i] = shown_to[i] old
  else
    change("replace", text, class, "replace " command(looked_at, old))
  if (old == "" || proto_of[old] == 217)
    in_ours[looked_at] = 1
}

# In six steps: those that a gateway may need are added first and removed last.
function change(verb, text, some, undoing,    step) {
  step = (verb == "add" ? 1 : verb == "replace" ? 3 : 5) + ((verb == "del") == (scope_of[some] == 253))
  made[step, ++lines[step]] = "route " verb " " text
  undone[step, lines[step]] = "route " (verb == "add" ? "del " text : undoing)
}

# Prints "done" and what; or "refused", "lacking", or "failed" with what couldn't be put back, and why.
function carry_out(    step, i) {
  step = "refused" in reason ? "refused" : "lacking"
  if (step in reason) {
    print step, reason[step]
    return
  }
  for (step = 1; step <= 6; step++)
    for (i = 1; i <= lines[step]; i++) {
      commands[++changes] = made[step, i]
      undoing[changes] = undone[step, i]
    }
  if (task == "undo")
    print put_back(changes)
  else
    commit()
}

# Changes, and asks which routes win.
function commit(    i, count, why) {
  for (i = 1; i <= questions; i++)
    commands[changes + i] = question[i]
  run(commands, changes + questions, "")
  count = changes
  if (status == 0)
    why = find_loser()
  else {
    sub(/^(RTNETLINK answers|Error): /, "", complaint)
    why = "can\047t install the static routes: " (complaint == "" ? "ip was ended" : complaint)
    count = has_run ? count : 0
    for (i in failed)
      if (i + 0 > changes)
        why = substr(right_answer[i - changes], 1, index(right_answer[i - changes], " ") - 1) " doesn\047t win: packets to it go nowhere (" complaint ")"
      else {
        count = i - 1
        why = "can\047t install the static routes: ip " commands[i] ": " complaint
      }
  }
  if (why != "") {
    print "failed", put_back(count)
    print why
    return
  }
  print "done"
  for (i = 1; i <= changes && i <= 50; i++)
    print commands[i]
  if (changes == 0 || changes > 50)
    print changes ? "and " changes - 50 " more" : "nothing to change"
}

# Takes back the first changes, the last of them first, and returns what couldn't be. What another program has taken back
# needs it no more.
function put_back(count,    i, list, known, left) {
  for (i = 1; i <= count; i++)
    list[i] = undoing[count + 1 - i]
  if (count == 0)
    return ""
  run(list, count, "-force")
  for (i = 1; i <= count && left == ""; i++)
    if (i in failed) {
      known++
      if (failed[i] !~ /: (No such process|File exists)$/)
        left = failed[i]
    }
  if (status != 0 && !known)
    left = complaint == "" ? "ip was ended" : complaint
  return left == "" ? "" : "not all could be put back: " left
}

function cover(prefix, some,    slash) {
  some[prefix] = 1
  slash = index(prefix, "/")
  starts[substr(prefix, 1, slash - 1)]++
  has_length[substr(prefix, slash + 1)] = 1
}

# The first address of a prefix that no longer one of these covers; "" if they cover it all.
function own_address_of(prefix, some, more,    slash, address, own_bits, n, end, longer) {
  slash = index(prefix, "/")
  address = substr(prefix, 1, slash - 1)
  if (starts[address] < 2)
    return address
  own_bits = substr(prefix, slash + 1) + 0
  n = number(address)
  for (end = n + size[own_bits]; n < end; address = dotted(n += size[longer])) {
    for (longer = own_bits + 1; longer <= 32; longer++)
      if (longer in has_length && ((address "/" longer) in some || (address "/" longer) in more))
        break
    if (longer > 32)
      return address
  }
  return ""
}

# A route that longer ones cover is fine as long as some of them are ours, and the rest own addresses.
function plan_proof(i,    address) {
  looked_at = wanted_to[i]
  address = own_address_of(looked_at, in_main, in_local)
  if (address != "") {
    question[++questions] = "route get fibmatch " address " uid 0"
    right_answer[questions] = answer_of[i]
  }
  else if (own_address_of(looked_at, in_ours, in_local) != "" || own_address_of(looked_at, in_local, in_local) == "")
    fail("refused", "longer prefixes cover all of it; look at: ip -4 route show root " looked_at)
}

# Which route doesn't win, and what does; "" if all do. As a rule the answers are right word by word.
function find_loser(    i, right) {
  for (i = 1; i <= questions && i <= answers; i++)
    if (answer[i] != right_answer[i]) {
      right = outcome(right_answer[i])
      if (outcome(answer[i]) != right)
        return substr(right, 1, index(right, " ") - 1) " doesn\047t win: packets to it go by " answer[i]
    }
  return answers == questions ? "" : "ip gave " answers " answers to " questions + 0 " questions"
}

function outcome(line) {
  parse(line)
  return to " " metric_of[class] " " table_of[class] " " ways_of[class]
}

END {
  # To 0.0.0.0 a host talks to itself, whatever its tables say.
  cover("0.0.0.0/32", in_local)
  make_plan()
  carry_out()
}
AWK
==config
@ROUTES@
==kernel
ROUTES

# Returns whether the routes are as wanted. Sets MESSAGE, and MISSING to what may still come.
attempt() {
  local status=1
  ! is_overdue || bash -p "$RUN_DIR/trial.sh" gate
  take_lock || return 1
  give_way
  if [ -e "$TRIAL" ] && [ "${ARGUMENTS[0]-}" != gate ]; then
    DONE=$'\nnothing is changed while a trial of routes stands'
    return
  fi
  list $'link show type vrf\nlink show\naddress show\nroute show table all' || return 1
  : >"$SCRATCH"
  IS_WRITING=1
  DONE=$(think commit)
  case $DONE in
    $'done\n'*)
      status=0
      [ -z "$STOPPED" ] || put_back
      ;;
    lacking\ *)
      status=$MAY_COME MISSING=${DONE#lacking }
      MESSAGE="can't install the static routes: waited $LIMIT s in vain for $MISSING"
      ;;
    refused\ *) MESSAGE=${DONE#refused } ;;
    failed\ *)
      MESSAGE=${DONE#*$'\n'} LEFT=${DONE%%$'\n'*} LEFT=${LEFT#failed }
      MESSAGE+=${LEFT:+; $LEFT}
      ;;
    *)
      MESSAGE="can't plan the static routes: awk ended without an answer"
      [ ! -s "$SCRATCH" ] || put_back
      ;;
  esac
  IS_WRITING=''
  [ -z "$STOPPED" ] || stop
  return "$status"
}

# Takes back all that may have been changed.
put_back() {
  LEFT=$(think undo) || LEFT='not all could be put back: awk ended without an answer'
  MESSAGE+=${LEFT:+; $LEFT}
}

# A change is put back first, then the run ends.
on_signal() {
  STOPPED=$1
  [ -n "$IS_WRITING" ] || stop
}

stop() {
  complain "stopped: $STOPPED; ${LEFT:-nothing is left half-done}"
  exit 1
}

DONE='' STOPPED='' IS_WRITING='' LEFT='' LIMIT=$WAIT_SECONDS
case $#:${1-} in
  0:) ;;
  1:gate | 2:gate) be_the_gate ;;
  *) explain_usage '[gate [told]]' ;;
esac
trap 'on_signal SIGHUP' HUP
trap 'on_signal SIGINT' INT
trap 'on_signal SIGTERM' TERM
keep_trying || { complain "$MESSAGE"; exit 1; }
say "${DONE#*$'\n'}"
exit 0
}
