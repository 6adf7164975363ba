family == 6 && $0 == "==kernel" && uplink_pattern == "" {
  read_ipv4()
  expect_its_devices()
}

@routes.awk@

# DESTINATION GATEWAY DEV METRIC: a wanted route. A "*" is inherited from the default route.
section == "config" && !index($1, ":") == (family == 4) {
  wanted++
  wanted_to[wanted] = $1
  wanted_gateway[wanted] = $2
  wanted_dev[wanted] = $3
  wanted_metric[wanted] = $4
  next
}

# DESTINATION GATEWAY DEV METRIC: a route of the Go package's script, which becomes ours. A "*" stands for any.
section == "adopted" {
  is_adopted[$1, $4] = is_adopted[$1, $4, $2, $3] = 1
  next
}

section == "kernel" && /^[0-9]+: +[^ ]+ +inet6? / { sub(/\/.*/, "", $4); is_own[$4] = 1 }
section == "kernel" && /^[0-9]+: [^ ]+: </ { read_link() }
section == "kernel" && !/^[0-9]+: / { read_route() }

# ip lists the VRFs first, and then all links, so a name that appears twice is a VRF.
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

# near and in_main omit our existing routes, because only the wanted ones will remain.
function read_route(    id) {
  parse($0)
  if (table_of[class] == 255)
    cover(to, in_local)
  if (table_of[class] != 254)
    return
  read_default()
  if (type_of[class] == 1 && proto_of[class] == 2 && is_near(class))
    is_connected[to] = 1
  # The kernel would replace the first match.
  id = to " " metric_of[class]
  if (!is_apart(class) && !(id in there))
    there[id] = class
  else if (!is_apart(class) && proto_of[class] != 217)
    behind[id] = class
  entries_of[id] += !is_apart(class)
  if (to != ANYWHERE && proto_of[class] == 217) {
    our_to[++our_count] = to
    our_class[our_count] = class
    return
  }
  if (to != ANYWHERE && entries_of[id] == 1 && !is_apart(class) && is_of_go_package(to, class)) {
    adoptable[id] = to
    return
  }
  if (!is_apart(class) && !is_dead_of[class])
    cover(to, in_main)
  if (type_of[class] == 1 && is_near(class))
    near[to] = near[to] "/" devs_of[class] "/"
}

# Returns whether a route is as the Go package installs one of its rows: with "ip route replace", a gateway, and no other
# attributes. ip doesn't show the protocol of such routes.
function is_of_go_package(prefix, some,    id, word) {
  id = prefix SUBSEP metric_of[some]
  if (!(id in is_adopted) || some !~ /^ via [0-9.]+ dev [^ ]+( metric [0-9]+)?( (dead|linkdown))* *$/)
    return 0
  split(some, word, " ")
  return (id, word[2], word[4]) in is_adopted || (id, "*", word[4]) in is_adopted || \
    (id, word[2], "*") in is_adopted || (id, "*", "*") in is_adopted
}

# Makes such routes ours if they are the only ones with their key. An entry next to another one is the administrator's.
function adopt(    id) {
  for (id in adoptable)
    if (entries_of[id] == 1) {
      our_to[++our_count] = adoptable[id]
      # Without a protocol, ip would delete the first entry with these next hops.
      our_class[our_count] = there[id] " proto 3"
      classify(1, our_class[our_count])
      is_taken_over[id] = 1
    }
    else
      cover(adoptable[id], in_main)
}

function is_ours(some, id) {
  return proto_of[some] == 217 || id in is_taken_over
}

# Returns whether a route can reach gateways (fib_check_nh_v4_gw, ip6_route_check_nh).
function is_near(some) {
  return family == 4 ? scope_of[some] >= 253 : some !~ / via /
}

# Returns whether a route only applies to some packets.
function is_apart(some) {
  return is_for_tos[some] || some ~ / from /
}

# Returns a route without its destination, in the format of ip.
function resolve(gateway, name, rank,    best, count, h, head, legs, source, mtu) {
  split("", onlink_by)
  if (name != "*" && !is_ready(name))
    return ""
  if (name != "*" && gateway != "*")
    return in_order(named_hop(gateway, name), "", rank, "")
  best = default_on(name)
  if (best == "") {
    name = name == "*" ? uplink_words : name
    fail("lacking", "the default route" (name == "" ? "" : " on " name))
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

function in_order(head, source, rank, tail) {
  return head " proto 217" (family == 4 && head ~ /^ dev / ? " scope 253" : "") source (rank == "0" ? "" : " metric " rank) tail
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

# Returns the only one of the interfaces that reaches a gateway, or "".
function one_of(devs, gateway,    list, count, i, reaching) {
  count = split(devs, list, "/")
  for (i = 1; i <= count && count > 1 && gateway != "onlink"; i++)
    if (is_reachable(gateway, list[i]))
      reaching = reaching (reaching == "" ? "" : "/") list[i]
  if (reaching != "")
    devs = reaching
  if (!gsub("/", " and ", devs))
    return devs
  fail("refused", "the default route leaves through " devs "; set dev to one of them")
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

# The kernel looks up gateways only in routes with scope link or narrower.
function is_reachable(gateway, name,    n, bits) {
  n = number(gateway)
  if (family == 6 && n ~ /^xfe[89ab]/)
    return 1
  for (bits = 0; bits <= BITS; bits++)
    if (index(near[dotted(end_of(n, bits, ZEROS)) "/" bits], "/" name "/"))
      return 1
  return 0
}

# Keeps the first reason why a route can't be installed yet ("lacking") or ever ("refused").
function fail(how, why) {
  if (!(how in reason))
    reason[how] = how == "lacking" ? why ", needed by " looked_at : "can\047t install " looked_at ": " why
}

function make_plan(    i, id, words_of, carrier) {
  adopt()
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
    is_wanted[looked_at " " wanted_metric[i]] = 1
    # The lowest metric for a destination carries the packets.
    if (!(looked_at in carrier) || wanted_metric[i] + 0 < wanted_metric[carrier[looked_at]] + 0)
      carrier[looked_at] = i
  }
  if ("lacking" in reason || "refused" in reason)
    return
  if (family == 6)
    find_gateways()
  for (i = 1; i <= wanted; i++)
    plan_one(i)
  for (i = 1; i <= our_count; i++) {
    id = our_to[i] " " metric_of[our_class[i]]
    if (is_apart(our_class[i]) || !(id in is_wanted)) {
      remove(is_near(our_class[i]) ? 8 : our_to[i] in has_gateway ? 6 : 7, our_to[i], our_class[i])
      asks_early = asks_early || family == 6 && (hops_of(our_class[i]) > 1 || id in behind)
      if (family == 6 && !is_apart(our_class[i]))
        refuse_outlasted(carrier[our_to[i]], our_class[i], id)
    }
  }
  for (i = 1; i <= wanted; i++)
    if (carrier[wanted_to[i]] == i)
      plan_proof(i)
}

# Another program's hop beside our old route stays when ours goes, which couldn't be put back before it.
function refuse_outlasted(i, old, id) {
  if (i == "" || wanted_metric[i] + 0 < metric_of[old] || !(id in behind || hops_of(old) > 1 && ways_of[old] != ways_of[wanted_class[i]]))
    return
  looked_at = wanted_to[i]
  fail("refused", "another program\047s hop next to our old route would win because of its metric:" (id in behind ? behind[id] : old))
}

# Fills has_gateway with the prefixes of wanted routes and of ours that contain gateways of such routes.
function find_gateways(    i, h, prefix, some, is_known, lengths, gateways) {
  for (i = 1; i <= wanted + our_count; i++) {
    prefix = i <= wanted ? wanted_to[i] : our_to[i - wanted]
    some = i <= wanted ? wanted_class[i] : our_class[i - wanted]
    lengths[substr(prefix, index(prefix, "/") + 1)] = 1
    if (!(some in is_known))
      for (h = hops_of(some); h >= 1; h--)
        if (via[h] != "")
          gateways[number(via[h])] = 1
    is_known[some] = 1
  }
  for (i in gateways)
    for (h in lengths)
      has_gateway[dotted(end_of(i, h, ZEROS)) "/" h] = 1
}

function plan_one(i,    id, old) {
  looked_at = wanted_to[i]
  id = looked_at " " wanted_metric[i]
  cover(looked_at, in_main)
  class = wanted_class[i]
  carried_by[i] = class
  old = id in there ? there[id] : ""
  if (looked_at in is_connected)
    fail("refused", "it is a connected network, which another route would cut off; name its halves instead")
  else if (old == "")
    add(class)
  else if (!is_ours(old, id) && (ways_of[old] != ways_of[class] || old ~ / expires /))
    fail("refused", "another program\047s route has its destination and metric:" old)
  else if (!is_ours(old, id) || is_same(old, class))
    carried_by[i] = old
  else if (family == 6 && id in behind)
    fail("refused", "another program\047s route has its destination and metric:" behind[id])
  else if (family == 4)
    change(3 + is_near(class), "replace " looked_at class, "replace " command(looked_at, old))
  else {
    if (type_of[old] >= 6)
      remove(3, looked_at, old)
    exchange(old, class)
  }
  if (old == "" || is_ours(old, id))
    in_ours[looked_at] = 1
}

function is_same(old, new) {
  return family == 4 ? command(looked_at, old) == command(looked_at, new) : ways_of[old] src_of[old] "," mtu_of[old] == ways_of[new] src_of[new] "," mtu_of[new]
}

# There are eight steps, because routes that gateways may need are added first and removed last. Those that cover IPv6
# gateways are added or put back last, because gateways must not be behind other gateways (ip6_validate_gw).
function change(step, words, words_back) {
  made[step, ++lines[step]] = "route " words
  undone[step, lines[step]] = "route " words_back
}

function add(some,    h, words, back) {
  words = back = command(looked_at, some)
  if (family == 6) {
    hops_of(some)
    back = looked_at identity()
    for (h = 1; h <= hops; h++)
      back = back " nexthop" exact(h)
  }
  change(is_near(some) ? 1 : looked_at in has_gateway ? 5 : 2, "add " words, "del " back)
}

@hops.awk@

# Prints "done" and the changes, "refused" or "lacking" and the reason, or "failed", what couldn't be put back, and the
# reason.
function carry_out(    step, i) {
  step = "refused" in reason ? "refused" : "lacking"
  if (step in reason) {
    print step, reason[step]
    return
  }
  if (task == "plan") {
    print "done"
    return
  }
  changes = 0 # busybox takes a variable without a value for unequal to 0 if it is passed to a function
  for (step = 1; step <= 8; step++)
    for (i = 1; i <= lines[step]; i++) {
      commands[++changes] = made[step, i]
      undoing[changes] = undone[step, i]
    }
  if (task == "undo")
    print put_back(changes)
  else
    commit()
}

# Makes the changes, and asks which routes win. A route or an IPv6 hop that is no longer there, or ours, needs no
# removal. A hop that is removed from beside another program's can't be put back before it, so ask before the removals,
# too, if others' hops may be beside ours.
function commit(    i, firm, shown, why) {
  firm = changes - lines[6] - lines[7] - lines[8]
  why = why_not(1, firm, firm == changes || asks_early ? questions : 0, "")
  if (why == "" && firm < changes && asks_early)
    why = find_loser(1)
  if (why == "" && firm < changes)
    why = why_not(firm + 1, changes, questions, "-force")
  if (why == "")
    why = find_loser(0)
  if (why != "") {
    print "failed", put_back(reached)
    print why
    return
  }
  print "done"
  for (i = 1; i <= changes; i++)
    if (commands[i] != "" && ++shown <= 50)
      print commands[i]
  if (shown > 50)
    print "and " shown - 50 " more"
}

# Has ip run some commands and answer questions. Sets reached to the number of commands that may have succeeded.
function why_not(from, until, asked, options,    i, count, list, is_gone) {
  count = until - from + 1
  for (i = 1; i <= count; i++)
    list[i] = commands[from + i - 1]
  for (i = 1; i <= asked; i++)
    list[count + i] = question[i]
  run(list, count + asked, options)
  reached = has_run ? until : from - 1
  for (i = 1; i <= count + asked && status != 0; i++)
    if (i in failed) {
      if (i > count)
        return wanted_to[asked_for[i - count]] " doesn\047t win: packets to it go nowhere (" failed[i] ")"
      if (options == "")
        reached = from + i - 2
      else if (failed[i] ~ /^(No such process$|Cannot find device)/) {
        is_gone = 1
        commands[from + i - 1] = undoing[from + i - 1] = ""
        continue
      }
      return "can\047t change the static routes: ip " list[i] ": " failed[i]
    }
  return status == 0 || is_gone ? "" : "can\047t change the static routes: " (complaint == "" ? "ip was ended" : complaint)
}

# Undoes the first changes in reverse order, and returns what failed. A change that another program has undone isn't a
# failure.
function put_back(count,    i, list, left) {
  for (i = 1; i <= count; i++)
    list[i] = undoing[count + 1 - i]
  left = make_all(list, count, MOOT)
  return left == "" ? "" : "not all could be put back: " left
}

function cover(prefix, some,    slash) {
  some[prefix] = 1
  slash = index(prefix, "/")
  starts[substr(prefix, 1, slash - 1)]++
  has_length[substr(prefix, slash + 1)] = 1
}

# Returns the first address of a prefix that no longer prefix covers, or "".
function own_address_of(prefix, some, more,    slash, address, own_bits, n, end, longer) {
  slash = index(prefix, "/")
  address = substr(prefix, 1, slash - 1)
  if (starts[address] < 2)
    return address
  own_bits = substr(prefix, slash + 1) + 0
  n = number(address)
  for (end = end_of(n, own_bits, ONES); n <= end; address = dotted(n = after(end_of(n, longer, ONES)))) {
    for (longer = own_bits + 1; longer <= BITS; longer++)
      if (longer in has_length && ((address "/" longer) in some || (address "/" longer) in more))
        break
    if (longer > BITS)
      return address
  }
  return ""
}

# Longer routes may cover a route if some of them are ours and the rest are this host's addresses.
function plan_proof(i,    address) {
  looked_at = wanted_to[i]
  address = own_address_of(looked_at, in_main, in_local)
  if (address != "") {
    question[++questions] = "route get fibmatch " address " uid 0" (family == 4 ? "" : " ipproto 17")
    asked_for[questions] = i
  }
  else if (own_address_of(looked_at, in_ours, in_local) != "" || own_address_of(looked_at, in_local, in_local) == "")
    fail("refused", "longer prefixes cover all of it; look at: ip -" family " route show root " looked_at)
}

# Returns which route doesn't win, and what does, or "". Our old routes may win while they are there.
function find_loser(has_old,    i, right, prefix) {
  for (i = 1; i <= questions && i <= answers; i++) {
    prefix = wanted_to[asked_for[i]]
    right = carried_by[asked_for[i]]
    if (answer[i] == prefix right " ") # usually
      continue
    parse(answer[i])
    if (outcome(to, class) != outcome(prefix, right) && !(has_old && proto_of[class] == 217))
      return prefix " doesn\047t win: packets to it go by " answer[i]
  }
  return answers == questions ? "" : "ip gave " answers " answers to " questions + 0 " questions"
}

function outcome(prefix, some) {
  return prefix " " metric_of[some] " " table_of[some] " " ways_of[some]
}

END {
  # Packets to 0.0.0.0, :: and ::1 stay on the host, regardless of the tables.
  cover(family == 4 ? "0.0.0.0/32" : "::/127", in_local)
  make_plan()
  carry_out()
}
