family == 6 && $0 == "==kernel" && uplink_pattern == "" {
  read_ipv4()
  expect_its_devices()
}

@routes.awk@

# DESTINATION GATEWAY DEV METRIC: a wanted route. A "*" is inherited from the default route.
section == "config" && !index($1, ":") == (family == 4) {
  wanted_to[++wanted] = $1
  wanted_gateway[wanted] = $2
  wanted_dev[wanted] = $3
  wanted_metric[wanted] = $4
  is_wanted[$1 " metric " $4] = 1
  next
}

# DESTINATION GATEWAY DEV METRIC: a route of the Go package's script, which becomes ours. A "*" stands for any.
section == "adopted" {
  is_adopted[$1, $4, $2, $3] = 1
  next
}

section == "kernel" && /^[0-9]+: +[^ ]+ +inet6? / { sub(/\/.*/, "", $4); is_own[$4] = 1 }
section == "kernel" && /^[0-9]+: [^ ]+: </ { read_link() }
section ~ /^(kernel|after)$/ && !/^[0-9]+: / { read_route() }

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
  id = key(to, class)
  entries[section, id]++
  if (section == "kernel") {
    read_default()
    if (type_of[class] == 1 && proto_of[class] == 2 && is_near(class))
      is_connected[to] = 1
    if (!(id in there))
      there[id] = class
  }
  if (to != ANYWHERE && proto_of[class] == 217)
    hold(section, to, class)
  else if (to != ANYWHERE && entries[section, id] == 1 && is_of_go_package(class))
    adoptable[section, id] = class
  else
    read_theirs(id)
}

function read_theirs(id,    h) {
  theirs[id] = class
  # The kernel shows only the first hop's protocol, so a hop of ours behind another program's wouldn't be found again.
  if (section == "after" && family == 6 && (id in is_wanted || ("kernel", id) in is_ours))
    for (h = hops_of(class); h > 1; h--)
      change(12, "del " removal(id SUBSEP way(h)))
  if (section == "kernel" && !is_apart(class) && !is_dead_of[class])
    cover(to, in_main)
  if (type_of[class] == 1 && is_near(class))
    near[to] = near[to] "/" devs_of[class] "/"
}

# Returns whether a route is as the Go package installs one of its rows: with "ip route replace", a gateway, and no other
# attributes. ip doesn't show the protocol of such routes.
function is_of_go_package(some,    m, word) {
  if (some !~ /^ via [0-9.]+ dev [^ ]+( metric [0-9]+)?( (dead|linkdown))* *$/)
    return 0
  m = metric_of[some] + 0
  split(some, word, " ")
  return (to, m, word[2], word[4]) in is_adopted || (to, m, "*", word[4]) in is_adopted || \
    (to, m, word[2], "*") in is_adopted || (to, m, "*", "*") in is_adopted
}

# Makes such routes ours if they are the only ones with their key. An entry next to another one is the administrator's.
function adopt(    i, at, prefix) {
  for (i in adoptable) {
    split(i, at, SUBSEP)
    prefix = substr(at[2], 1, index(at[2], " ") - 1)
    if (entries[i] == 1) {
      # Without a protocol, ip would delete the first entry with these next hops.
      classify(1, adoptable[i] " proto 3")
      hold(at[1], prefix, there[at[2]] = adoptable[i] " proto 3")
    }
    else
      cover(prefix, in_main)
  }
}

function key(prefix, some) {
  return prefix " metric " metric_of[some] (is_apart(some) && match(some, / (from|tos) [^ ]+/) ? substr(some, RSTART, RLENGTH) : "")
}

# Returns whether a route can reach gateways (fib_check_nh_v4_gw, ip6_route_check_nh).
function is_near(words) {
  return family == 4 ? words ~ / scope 25[3-5]/ : words !~ / via /
}

# Returns whether a route only applies to some packets.
function is_apart(some) {
  return is_for_tos[some] || some ~ / from /
}

# Adds a route to a list of ours: in IPv6, each next hop, because another program's may be beside it.
function hold(list, prefix, some,    id, h, how) {
  id = key(prefix, some)
  is_ours[list, id] = 1
  if (family == 4) {
    put(list, id, command(prefix, some))
    return
  }
  lengths[substr(prefix, index(prefix, "/") + 1)] = 1
  if (type_of[some] >= 6)
    put(list, id SUBSEP " dev lo", command(prefix, some))
  hops_of(some)
  how = id " proto 217" (src_of[some] == "" ? "" : " src " src_of[some]) (mtu_of[some] == "" ? "" : " mtu " mtu_of[some])
  for (h = 1; h <= hops; h++) {
    if (via[h] != "")
      gateways[number(via[h])] = 1
    # The kernel gives a single hop weight 1, which ip shows as soon as another program adds a hop.
    put(list, id SUBSEP way(h), how (weight[h] ~ /^( weight 1)?$/ ? way(h) onlink[h] : " nexthop" hop[h]))
  }
}

function put(list, name, words) {
  if ((list, name) in words_of)
    name = name SUBSEP words
  part[list, ++parts[list]] = name
  words_of[list, name] = words
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

function resolve_all(    i, id, known) {
  for (i = 1; i <= wanted; i++)
    if (wanted_gateway[i] == "onlink")
      near[wanted_to[i]] = near[wanted_to[i]] "/" (wanted_dev[i] == "*" ? uplinks_of(default_on("*")) : wanted_dev[i]) "/"
  for (i = 1; i <= wanted; i++) {
    looked_at = wanted_to[i]
    id = wanted_gateway[i] " " wanted_dev[i] " " wanted_metric[i]
    if (!(id in known)) {
      known[id] = resolve(wanted_gateway[i], wanted_dev[i], wanted_metric[i])
      classify(1, known[id])
    }
    wanted_class[i] = known[id]
    # The lowest metric for a destination carries the packets.
    if (!(looked_at in carrier) || wanted_metric[i] + 0 < wanted_metric[carrier[looked_at]] + 0)
      carrier[looked_at] = i
  }
  return !("lacking" in reason || "refused" in reason)
}

# Refuses a wanted route, finds it there, or adds it to the list.
function want(i,    id, old) {
  looked_at = wanted_to[i]
  id = looked_at " metric " wanted_metric[i]
  cover(looked_at, in_main)
  class = carried_by[i] = wanted_class[i]
  old = id in there ? there[id] : ""
  if (looked_at in is_connected)
    fail("refused", "it is a connected network, which another route would cut off; name its halves instead")
  else if (old != "" && proto_of[old] !~ /^(217|3)$/)
    if (ways_of[old] != ways_of[class] || old ~ / expires /)
      fail("refused", "another program\047s route has its destination and metric:" old)
    else
      carried_by[i] = old
  else {
    hold("config", looked_at, class)
    in_ours[looked_at] = 1
    if (family == 6 && id in theirs && effect(old) != effect(class))
      fail("refused", "another program\047s route has its destination and metric:" theirs[id])
  }
}

# Another program's hop beside our old route stays when ours goes, and ours couldn't be put back before it.
function beware(i,    id, old, to, new) {
  id = key_of(part["kernel", i])
  old = there[id]
  if (id in is_wanted || !(id in theirs) && hops_of(old) < 2)
    return
  asks_early = 1
  to = prefix_of(id)
  new = to in carrier && !is_apart(old) ? wanted_class[carrier[to]] : ""
  if (new == "" || metric_of[new] < metric_of[old] || !(id in theirs) && ways_of[old] == ways_of[new])
    return
  looked_at = to
  fail("refused", "another program\047s hop next to our old route would win because of its metric:" old)
}

function effect(some) {
  return ways_of[some] src_of[some] "," mtu_of[some]
}

function key_of(name) {
  return index(name, SUBSEP) ? substr(name, 1, index(name, SUBSEP) - 1) : name
}

function prefix_of(id) {
  return substr(id, 1, index(id, " ") - 1)
}

# Plans the changes that make the routes in one list those in another one.
function plan(goal, present,    i, n, name, id, here, at, is_kept) {
  changes = 0 # busybox takes a variable without a value for unequal to 0 if it is passed to a function
  for (i in gateways)
    for (n in lengths)
      has_gateway[dotted(end_of(i, n, ZEROS)) "/" n] = 1
  for (i = 1; i <= parts[present]; i++)
    here[key_of(part[present, i])]++
  for (i = 1; i <= parts[goal]; i++) {
    name = part[goal, i]
    id = key_of(name)
    is_kept[id] = 1
    if (!((present, name) in words_of)) {
      if (!(id in at))
        at[id] = here[id] ? 3 : step_of(id, words_of[goal, name])
      if (!here[id] && id in theirs)
        taken = "another program\047s route has taken the place of " words_of[goal, name]
      else
        change(at[id], (here[id]++ ? "append " : "add ") words_of[goal, name])
    }
    else if (words_of[goal, name] != words_of[present, name]) {
      if (family == 4)
        change(3, "replace " words_of[goal, name])
      else {
        change(5, "del " removal(name))
        change(5, "append " words_of[goal, name])
      }
    }
  }
  # Other programs' hops come last, so try those first.
  for (i = 1; i <= parts[present]; i++) {
    name = part[present, family == 4 ? i : parts[present] + 1 - i]
    id = key_of(name)
    if (!((goal, name) in words_of) && (family == 6 || !(id in is_kept)))
      change(id in is_kept ? 4 : 13 - step_of(id, words_of[present, name]), "del " (family == 4 ? words_of[present, name] : removal(name)))
  }
  for (n = 1; n <= 12; n++) {
    if (n == 7)
      firm = changes
    for (i = 1; i <= lines[n]; i++)
      commands[++changes] = made[n, i]
  }
}

function step_of(id, words) {
  return is_near(words) ? 1 : prefix_of(id) in has_gateway ? 6 : 2
}

function change(step, words) {
  made[step, ++lines[step]] = "route " words
}

# Returns words that delete a hop. With a gateway ("::" if there is none), the kernel deletes a single one, and only
# ours (ip6_route_del).
function removal(name,    hop) {
  hop = substr(name, index(name, SUBSEP) + 1)
  return key_of(name) (hop ~ / via / ? "" : " via ::") hop " proto 217"
}

# Makes the changes, and asks which routes win. A hop that is removed from beside another program's can't be put back
# before it, so ask before the removals, too, if others' hops may be beside ours.
function commit(    i, why, shown) {
  why = write(1, firm, firm == changes || asks_early ? questions + 0 : 0, "")
  if (why == "" && firm < changes && asks_early)
    why = find_loser(1)
  if (why == "" && firm < changes)
    why = write(firm + 1, changes, questions + 0, "-force")
  if (why == "")
    why = find_loser(0)
  if (why != "") {
    print "refused", why
    return
  }
  print "done"
  for (i = 1; i <= changes; i++)
    if (commands[i] != "" && ++shown <= 50)
      print commands[i]
  if (shown > 50)
    print "and " shown - 50 " more"
}

# Has ip run some commands and answer questions. Returns why that failed, or "". A route or hop that is no longer there,
# or isn't ours, needs no removal.
function write(from, until, asked, options,    i, count, list, is_gone) {
  count = until - from + 1
  for (i = 1; i <= count; i++)
    list[i] = commands[from + i - 1]
  for (i = 1; i <= asked; i++)
    list[count + i] = question[i]
  run(list, count + asked, options)
  for (i = 1; i <= count + asked; i++) {
    if (!(i in failed))
      continue
    if (i > count)
      return wanted_to[asked_for[i - count]] " doesn\047t win: packets to it go nowhere (" failed[i] ")"
    if (options == "" || list[i] !~ /^route del / || failed[i] !~ /^(No such process$|Cannot find device)/)
      return "can\047t change the static routes: ip " list[i] ": " failed[i]
    is_gone = 1
    commands[from + i - 1] = ""
  }
  return status == 0 || is_gone ? "" : "can\047t change the static routes: " (complaint == "" ? "ip was ended" : complaint)
}

# Prints what couldn't be put back, or "". Exits with 1 if anything has changed, because that may help what failed.
function undo(    i, left, has_changed) {
  plan("kernel", "after")
  if (changes)
    left = write(1, changes, 0, "-force")
  for (i = 1; i <= changes; i++)
    has_changed = has_changed || !(i in failed)
  sub(/^can\047t change the static routes: /, "", left)
  print left == "" ? taken : left
  exit has_changed
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
  adopt()
  if (task == "undo")
    undo()
  if (resolve_all()) {
    for (i = 1; i <= wanted; i++)
      want(i)
    for (i = 1; i <= parts["kernel"] && family == 6; i++)
      beware(i)
    for (i = 1; i <= wanted; i++)
      if (carrier[wanted_to[i]] == i)
        plan_proof(i)
  }
  kind = "refused" in reason ? "refused" : "lacking"
  if (kind in reason)
    print kind, reason[kind]
  else if (task == "plan")
    print "done"
  else {
    plan("config", "kernel")
    commit()
  }
}
