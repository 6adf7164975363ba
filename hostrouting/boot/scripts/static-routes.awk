# Makes our routes and rules of one family equal to lists. Ours have the protocol 217; the routes are in table main and
# in side tables. To install, the lists have what is wanted; to remove, nothing; to undo, what was there before.
# policy.awk has what concerns only rules and side tables.
#
# Input. It has these sections, in this order:
#    ==config   what is wanted
#    ==adopted  routes of the Go package
#    ==kernel   what ip listed at the start: rules, the routes of all tables, addresses and links
#    ==now      the rules and routes by now; only for task=undo
#
# Parts. Lists are compared part by part. In IPv4, a part is a whole route; in IPv6, it is one next hop. The kernel
# joins IPv6 routes with the same destination and metric, whichever program they belong to, and shows only the first
# one's protocol. To replace or delete such a route as a whole would remove another program's hops, too. So each of our
# hops is deleted alone, by a command that names our protocol and fails if the hop isn't ours. hold() sorts parts into
# the lists "config", "kernel" and "now".
#
# Resolving. resolve() completes each wanted row. What the row doesn't name is inherited from the default route. What
# may still appear is "lacking"; what can't be installed is "refused". Both are found before the first change, and so
# are conflicts with other programs' routes (want(), beware()).
#
# Planning. plan() compares two lists of parts, and sorts the changes into steps. In the order of these steps, no packet
# finds a gap, except in step 5. And no gateway is missing when the kernel checks it, which is when a route is added.
#    1  add routes without a gateway, which others' gateways may need
#    2  add the others
#    3  replace (IPv4), or add hops to a route that exists (IPv6)
#    4  delete hops of a route that stays
#    5  delete and add what can't be replaced: a hop with other attributes, which the kernel takes for the same hop, or
#       an IPv4 route behind another program's
#    6  add IPv6 routes that cover gateways: a gateway mustn't be behind another one (ip6_validate_gw)
#    7  delete such routes; 11: delete others; 12: delete routes without a gateway
# A side table is filled before a rule leads to it, and emptied when none does any more. So these steps come between 6
# and 7, in this order: side1, side2, side3 and side5, which are like 1 to 5; "add", which adds rules, and may remove
# some first; "del", which removes rules; side11 and side12.
#
# Writing. One ip process makes the changes up to "add", and stops at the first error. Another one makes the rest, and
# goes on after an error, because a route that is already gone needs no deletion. A task that only removes or undoes
# goes on, too.
#
# Proof. The same ip processes look up one address of each destination: the first one that no longer prefix covers. A
# route that doesn't win there is an error, and so is a rule that doesn't decide.
#
# Undoing. After an error or a signal, or if an awk or ip was killed, the script lists the rules and routes again, and
# this program plans from "now" to "kernel". So the program needs no record of what it did, and it sees what other
# programs did meanwhile. A route of theirs that took the place of ours stays, and is named. The script repeats this
# until nothing changes any more. If the rules and routes can't be listed, "config" stands for "now", because the run
# may have made all of its changes.

$0 == "==kernel" { take_verified() }
family == 6 && $0 == "==kernel" && uplink_pattern == "" {
  read_ipv4()
  expect_its_devices()
}

@common.awk@

@policy.awk@

# DESTINATION GATEWAY DEV METRIC: a wanted route. A "*" is inherited from the default route.
section == "config" && !index($1, ":") == (family == 4) {
  wanted_to[++wanted] = $1
  words_for[wanted] = $2 " " $3 " " $4
  wanted_id[wanted] = $1 " metric " $4
  is_wanted[wanted_id[wanted]] = 1
  prefix_of[wanted_id[wanted]] = $1
}

# DESTINATION GATEWAY DEV METRIC: a route of the Go package's script, which becomes ours. A "*" stands for any.
section == "adopted" { is_adopted[$1 " metric " $4, $2, $3] = 1 }

# ip lists rules, routes, addresses and links, in this order. An address's label and an interface's alias may contain
# line breaks, so no line behind an address or a link is a route, and no line behind a link is an address.
section == "kernel" && /^[0-9]+: / { are_routes_read = 1 }
section == "kernel" && /^[0-9]+: [^ ]+: </ { are_addresses_read = 1; read_link() }
section == "kernel" && !are_addresses_read && /^[0-9]+: +[^ ]+ +inet6? / { sub(/\/.*/, "", $4); is_local[$4] = 1 }
section == "now" || (section == "kernel" && !are_routes_read) { read_route() }

# ip lists the VRFs first, and then all links, so a number that appears twice is a VRF's. Its name may contain "@".
function read_link(    name, i) {
  name = $2
  sub(/[@:].*/, "", name)
  if (($1 + 0) in dev_of)
    name = dev_of[$1 + 0]
  if ($1 in is_listed)
    is_vrf[substr($2, 1, length($2) - 1)] = 1
  else if (!(name in is_up) && $3 !~ /[<,]LOOPBACK[,>]/)
    link[++links] = name
  is_listed[$1] = 1
  index_of[name] = $1 + 0
  has_carrier[name] = $3 ~ /[<,]LOWER_UP[,>]/
  is_up[name] = $3 ~ /[<,]UP[,>]/
  uplinks += is_uplink(name)
  # Before its state, ip prints pairs of a key and a value.
  for (i = 4; i < NF && $i != "state"; i += 2)
    if ($i == "master")
      master[name] = $(i + 1)
}

function read_route(    id) {
  parse($0)
  if (table_of[class] == 255)
    cover(to, in_local)
  # There are none of IPv6.
  if (is_side(table_of[class]) && family == 4) {
    read_side_route()
    return
  }
  if (table_of[class] != 254)
    return
  id = key()
  if (section == "kernel") {
    read_default()
    if (type_of[class] == 1 && proto_of[class] == 2 && is_near(class))
      is_connected[to] = 1
    # The kernel would replace the first match.
    if (!(id in there))
      there[id] = class
  }
  entries[section, id]++
  if (to != ANYWHERE && proto_of[class] == 217) {
    if (section == "kernel" || may_be_new(id))
      hold(section, id, class)
  }
  else if (to != ANYWHERE && entries[section, id] == 1 && is_of_go_package(id))
    adoptable[section, id] = class
  else
    read_theirs(id)
}

# near and in_main omit our existing routes, because only the wanted ones will remain.
function read_theirs(id,    h) {
  if (!((section, id) in theirs))
    theirs[section, id] = class
  if (entries[section, id] == 1)
    leads[section, id] = 1
  if (is_asked(class) && !is_dead_of[class])
    cover(to, in_main)
  if (type_of[class] == 1 && is_near(class))
    near[to] = near[to] "/" devs_of[class] "/"
  # The kernel shows only the first hop's protocol, so a hop of ours behind another program's wouldn't be found again.
  if (family == 6 && section == "now" && may_be_new(id))
    for (h = hops_of(class); h > 1; h--)
      change(12, "del " removal(id, h))
}

# Returns whether this run may have added routes with this key. Another program's change may reveal others of ours.
function may_be_new(id) {
  return id in is_wanted || ("kernel", id) in whole_of
}

# Returns whether a route is as the Go package installs one of its rows: with "ip route replace", a gateway, and no
# other attributes. ip doesn't show the protocol of such routes.
function is_of_go_package(id,    word) {
  if (class !~ /^ via [0-9.]+ dev [^ ]+( metric [0-9]+)?( (dead|linkdown))* *$/)
    return 0
  split(class, word, " ")
  return (id, word[2], word[4]) in is_adopted || (id, "*", word[4]) in is_adopted || \
    (id, word[2], "*") in is_adopted || (id, "*", "*") in is_adopted
}

# Makes such routes ours if they are the only ones with their key. An entry next to another one is the administrator's.
function adopt(    i, at) {
  for (i in adoptable) {
    split(i, at, SUBSEP)
    if (entries[i] == 1) {
      # Without a protocol, ip would delete the first entry with these next hops.
      classify(1, there[at[2]] = adoptable[i] " proto 3")
      hold(at[1], at[2], there[at[2]])
    }
    else {
      theirs[i] = adoptable[i]
      leads[i] = 1
      cover(prefix_of[at[2]], in_main)
    }
  }
}

# Returns whether a route can reach gateways (fib_check_nh_v4_gw, ip6_route_check_nh).
function is_near(words) {
  return family == 4 ? words ~ / scope 25[3-5]/ : !has_via(words)
}

# Returns whether words name a gateway. An interface may be named "via", but no address follows it.
function has_via(words) {
  return words ~ / via (inet6 )?[0-9a-f.]*[.:]/
}

# Returns whether packets without a tos or source may match a route. IPv6 packets without a source have the address ::.
function is_asked(some) {
  return !is_for_tos[some] && from_of[some] ~ /^(::(\/.*)?)?$/
}

# Returns the words that distinguish the route that parse() last split from others.
function key(    id) {
  id = to " metric " metric_of[class] apart_of[class] (is_side(table_of[class]) ? " table " table_of[class] : "")
  prefix_of[id] = to == ANYWHERE ? "default" : to
  return id
}

# Adds the parts of a route to a list.
function hold(list, id, some,    h, how) {
  whole_of[list, id] = command(prefix_of[id], some)
  if (family == 4) {
    put(list, id, "", whole_of[list, id], whole_of[list, id])
    return
  }
  hops_of(some)
  if (type_of[some] >= 6)
    put(list, id, "", whole_of[list, id], removal(id, 1))
  how = id " proto 217" (field["src"] == "" ? "" : " src " field["src"])
  how = how (field["mtu"] == "" ? "" : " mtu " field["mtu"])
  for (h = 1; h <= hops; h++) {
    if (via[h] != "")
      gateways[number(via[h])] = 1
    # The kernel gives a single hop weight 1, which ip shows as soon as another program adds a hop.
    put(list, id, way(h), how (weight[h] ~ /^( weight 1)?$/ ? way(h) onlink[h] : " nexthop" hop[h]), removal(id, h))
  }
}

function put(list, id, hop, words, words_back,    name) {
  name = id SUBSEP hop
  if ((list, name) in words_of)
    name = name SUBSEP words
  part[list, ++parts[list]] = name
  id_of[name] = id
  words_of[list, name] = words
  removal_of[list, name] = words_back
}

# Returns words that delete a hop. With a gateway ("::" if there is none), the kernel deletes a single hop, and only if
# it is ours (ip6_route_del).
function removal(id, h) {
  return id (via[h] == "" ? " via ::" : "") way(h) " proto 217"
}

# Returns a route without its destination, in the format of ip.
function resolve(gateway, name, rank,    best, count, h, head, legs, source, tail) {
  split("", onlink_by)
  if (name != "*")
    await(name)
  if (name == "*" || gateway == "*") {
    best = default_on(name)
    if (best == "") {
      if (name == "*" && !uplinks)
        await(uplink_words)
      if (name == "*")
        name = uplink_words (is_configured || uplink_words == "" ? "" : ", with which the check passed")
      fail("lacking", "the default route" (name == "" ? "" : " on " name))
      return ""
    }
    if (name == "*" && is_nic_gone && is_of_vpn(devs_of[best])) {
      name = devs_of[best]
      gsub("/", ",", name)
      fail("lacking", "an uplink other than the VPN " name ", since " gone ", with which the check passed, is gone")
      way_out = how_to_name(other_than_vpns())
      return ""
    }
    if (name == "*" && uplink_pattern == "" && default_count > 1 && devs_of[best] !~ "/" && is_of_vpn(devs_of[best]))
      vpn = devs_of[best]
    take_apart(1, best)
    for (h = 1; h <= hops; h++)
      if (!is_dead[h] && (name == "*" ? is_uplink(dev[h]) : dev[h] == name)) {
        count++
        head = way(h)
        onlink_by[head] = onlink[h]
        legs = legs " nexthop" hop[h]
      }
    source = field["src"] == "" ? "" : " src " field["src"]
    tail = field["mtu"] == "" ? "" : " mtu " field["mtu"]
  }
  if (gateway != "*")
    head = named_hop(gateway, name == "*" ? one_of(uplinks_of(best), gateway) : name)
  else if (count > 1)
    head = ""
  tail = onlink_by[head] tail (head == "" ? legs : "")
  source = (family == 4 && head ~ /^ dev / ? " scope 253" : "") source
  return head " proto 217" source (rank == "0" ? "" : " metric " rank) tail
}

# Returns the interfaces with a default route that isn't a VPN's.
function other_than_vpns(    i, name) {
  for (i = 1; i <= default_count; i++)
    if (!is_of_vpn(devs_of[defaults[i]]) && devs_of[defaults[i]] != name)
      name = (name == "" ? "" : "/") devs_of[defaults[i]]
  return name
}

# Returns how to name an uplink, which isn't known if there are several or none.
function how_to_name(name) {
  return "; name the node\047s uplinks: " setting(name) ", " THEN
}

# Returns the VPN whose default route wins beside another interface's, or "".
function vpn_beside(    best) {
  best = devs_of[default_on("*")]
  return is_of_vpn(best) && other_than_vpns() != "" ? best : ""
}

# Returns the interface from which our routes would move to that VPN, although nothing says that it is an uplink, or "".
function moved_from(    i, word, old) {
  for (i = contested_vpn == "" || ENVIRON["IS_STRICT"] == "" ? 0 : wanted; i > 0; i--) {
    split(words_for[i], word, " ")
    old = there[wanted_id[i]]
    if (word[2] == "*" && proto_of[old] == 217 && devs_of[old] != "" && devs_of[old] != contested_vpn)
      return devs_of[old]
  }
}

function await(name) {
  if (!(name in is_up))
    fail("lacking", "device " name " (there is no such interface)")
  else if (name in master && !(master[name] in is_vrf))
    fail("refused", name " is a port of " master[name] ", which takes its packets; name " master[name] " as dev")
  else if (!is_up[name])
    fail("lacking", "device " name " (it is down)")
}

# Returns the only one of the interfaces that reaches a gateway.
function one_of(devs, gateway,    list, i, reaching) {
  for (i = split(devs, list, "/"); i >= 1 && gateway != "onlink"; i--)
    if (is_reachable(gateway, list[i]))
      reaching = list[i] (reaching == "" ? "" : "/") reaching
  if (reaching != "")
    devs = reaching
  if (gsub("/", " and ", devs))
    fail("refused", "the default route leaves through " devs "; set dev to one of them")
  return devs
}

function named_hop(gateway, name,    head) {
  head = (gateway == "onlink" ? "" : " via " (index(gateway, ":") ? "inet6 " : "") gateway) " dev " name
  if (gateway in is_local)
    fail("refused", "the gateway " gateway " is an address of this host")
  else if (gateway != "onlink" && onlink_by[head] == "" && !is_reachable(gateway, name))
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

# Resolves the wanted routes. Routes with the same words share a class.
function resolve_all(    i, word, class_for) {
  for (i = 1; i <= wanted; i++)
    if (split(words_for[i], word, " ") && word[1] == "onlink")
      near[wanted_to[i]] = near[wanted_to[i]] "/" (word[2] == "*" ? uplinks_of(default_on("*")) : word[2]) "/"
  for (i = 1; i <= wanted; i++) {
    looked_at = wanted_to[i]
    if (!(words_for[i] in class_for)) {
      split(words_for[i], word, " ")
      classify(1, class_for[words_for[i]] = resolve(word[1], word[2], word[3]))
    }
    wanted_class[i] = class_for[words_for[i]]
    # The lowest metric for a destination carries the packets.
    if (!(looked_at in carrier) || metric_of[wanted_class[i]] < metric_of[wanted_class[carrier[looked_at]]])
      carrier[looked_at] = i
  }
}

# Refuses a wanted route, finds it there, or adds it to the list.
function want(i,    id, old, is_foreign) {
  looked_at = wanted_to[i]
  id = wanted_id[i]
  class = wanted_class[i]
  old = there[id]
  is_foreign = old != "" && proto_of[old] !~ /^(217|3)$/ # adopt() has written the 3
  carried_by[i] = is_foreign ? old : class
  cover(looked_at, in_main)
  if (!is_foreign) {
    in_ours[looked_at] = 1
    hold("config", id, class)
  }
  if (looked_at in is_connected)
    fail("refused", "it is a connected network, which another route would cut off; name its halves instead")
  # A new hop of ours would come after another program's separate IPv6 entry. parse() has removed lifetimes that aren't
  # over.
  else if (is_foreign ? ways_of[old] != ways_of[class] || old ~ / expires (0|-)/ : \
    family == 6 && ("kernel", id) in theirs && effect(old) != effect(class))
    fail("refused", "another program\047s route has its destination and metric:" theirs["kernel", id])
}

function effect(some) {
  return ways_of[some] src_of[some] "," mtu_of[some]
}

# Another program's hop beside our old IPv6 route stays when ours goes, and ours couldn't be put back before it.
function beware(id,    old, new, is_shared) {
  old = there[id]
  is_shared = ("kernel", id) in theirs
  if (id in is_wanted || !is_shared && hops_of(old) < 2)
    return
  asks_early = 1
  looked_at = prefix_of[id]
  new = looked_at in carrier && apart_of[old] == "" ? wanted_class[carrier[looked_at]] : ""
  if (new != "" && metric_of[new] >= metric_of[old] && (is_shared || ways_of[old] != ways_of[new]))
    fail("refused", "another program\047s hop next to our old route would win because of its metric:" old)
}

# Plans the changes that make the parts in a table those in a list.
function plan(list, table,    i, n, name, id, side, words, is_there, is_new, count, step) {
  for (i in gateways)
    for (n = 0; n <= BITS; n++)
      has_gateway[dotted(end_of(i, n, ZEROS)) "/" n] = 1
  for (i = 1; i <= parts[list]; i++) {
    name = part[list, i]
    id = id_of[name]
    words = words_of[list, name]
    side = side_of(id)
    is_there = (table, name) in words_of
    if (is_there && words == words_of[table, name] || family == 6 && id in is_new)
      continue
    # The kernel would replace the first route with this key.
    if (is_there && family == 4 && !((table, id) in leads))
      change(side 3, "replace " words)
    else if ((table, id) in whole_of || id in is_new) {
      if (is_there)
        change(side 5, "del " removal_of[table, name])
      n = is_there ? 5 : 3
      change(side n, "append " words)
    }
    else if ((table, id) in theirs)
      taken = "another program\047s route has taken the place of " words
    else {
      is_new[id] = 1
      change(side step_of(id, words), "add " (family == 4 ? words : whole_of[list, id]))
    }
  }
  for (i = 1; i <= parts[table]; i++) {
    # Other programs' hops come last, so begin at the end.
    name = part[table, family == 4 ? i : parts[table] + 1 - i]
    id = id_of[name]
    n = (list, id) in whole_of && side_of(id) == "" ? 4 : 13 - step_of(id, words_of[table, name])
    if (!((list, name) in words_of) && (family == 6 || n != 4))
      change(side_of(id) n, "del " removal_of[table, name])
  }
  plan_rules(list, table)
  count = split("1 2 3 4 5 6 side1 side2 side3 side5 add del side11 side12 7 11 12", step, " ")
  for (n = 1; n <= count; n++)
    for (i = 1; i <= lines[step[n]]; i++)
      if (n <= 11 && task != "unlist" || task == "undo")
        early[++earlies] = made[step[n], i]
      else
        late[++lates] = made[step[n], i]
}

function step_of(id, words) {
  return is_near(words) ? 1 : prefix_of[id] in has_gateway ? 6 : 2
}

function side_of(id) {
  return id ~ / table [0-9]+$/ ? "side" : ""
}

function change(step, words) {
  made[step, ++lines[step]] = (step ~ /^(add|del)$/ ? "rule " : "route ") words
}

# Makes the changes, and asks which routes win. A hop that is removed from beside another program's can't be put back
# before it, so ask before the removals, too, if others' hops may be next to ours.
#
# A question about a rule may have no answer, behind which ip only goes on if it is forced to. So it is asked at the
# end.
function commit(    why, has_more, i) {
  has_more = lates || probes
  if (earlies || asks_early || !has_more)
    why = write(early, earlies + 0, has_more && !asks_early ? 0 : questions + 0, "")
  if (why == "" && has_more)
    why = write(late, lates + 0, questions + probes, "-force")
  print (why == "" ? "done" told : "failed " why)
  if (why == "" && shown > 50)
    print "and " shown - 50 " more"
  if (pendings)
    note[++notes] = "not kept yet: " told_pending "; the watcher or the next run does it"
  if (vpn != "")
    note[++notes] = "routes follow the default route of a VPN, " vpn "; name another interface in hostRouting.uplinks"
  for (i = 1; i <= notes && why == ""; i++)
    print "note: " note[i]
}

# Makes ip run commands and answer questions. Returns why that failed, or "". A route or hop that is no longer there, or
# isn't ours, needs no removal. Sets shown to the number of commands so far that didn't fail. The last line of output
# tells that ip wasn't killed.
function write(list, count, asked, options,    i, why, is_whole, unanswered) {
  for (i = 1; i <= asked; i++)
    list[count + i] = i <= questions ? question[i] : probe[i - questions]
  list[count + asked + 1] = "link show dev lo"
  run(list, count + asked + 1, options)
  is_whole = has_run && answer[answers] ~ /^[0-9]+: lo: /
  answers -= is_whole
  for (i = 1; i <= count + asked; i++)
    if (!(i in failed)) {
      if (i <= count && ++shown <= 50)
        told = told "\n" list[i]
    }
    else if (i > count) {
      unanswered++
      if (i - count <= questions)
        why = wanted_to[asked_for[i - count]] " doesn\047t win: packets to it go nowhere (" failed[i] ")"
    }
    else if (!(is_blind && failed[i] ~ /^File exists$/) && (options == "" || !is_gone(list[i], failed[i])))
      why = "can\047t change the static routes: ip " list[i] ": " failed[i]
  if (why == "" && !is_whole)
    why = "can\047t change the static routes: " (complaint == "" ? "ip was ended" : complaint)
  if (why == "" && asked && answers != asked - unanswered)
    why = "ip gave " answers " answers to " asked - unanswered " questions"
  if (why == "" && asked)
    why = find_loser(options == "" && lates)
  return why == "" && asked > questions ? find_beaten(count) : why
}

# Returns whether a deletion has failed because there is nothing to delete.
function is_gone(words, error) {
  return words ~ /^rule del / ? error == "No such file or directory" : \
    words ~ /^route del / && error ~ /^(No such process$|Cannot find device|ipv4: FIB table does not exist)/
}

# Prints what couldn't be put back, or "". Exits with 1 if anything has changed, because that may help what failed.
function undo(    left, i) {
  if (section != "now") {
    is_blind = 1
    resolve_all()
    for (i = 1; i <= wanted; i++)
      want(i)
    resolve_policy()
  }
  plan("kernel", is_blind ? "config" : "now")
  if (earlies)
    left = write(early, earlies, 0, "-force")
  sub(/^can\047t change the static routes: /, "", left)
  if (left == "" && taken == "" && shown && !is_blind)
    taken = "the routes changed each time"
  print (left == "" ? taken : left)
  exit shown > 0 && !is_blind
}

# Removes our routes that aren't as listed, which is what is left to do at a trial's end if the listed ones can't be
# installed. If it is unknown where a listed route should lead, for example without a default route, ours stays unless
# its row names another gateway or interface.
function unlist(    i, word, words, name, id, row_of) {
  for (i = 1; i <= wanted; i++) {
    split("", reason)
    split(words_for[i], word, " ")
    words = resolve(word[1], word[2], word[3])
    if ("lacking" in reason || "refused" in reason || mover != "")
      row_of[wanted_id[i]] = words_for[i]
    else {
      classify(1, words)
      hold("config", wanted_id[i], words)
    }
  }
  for (i = 1; i <= parts["kernel"]; i++) {
    name = part["kernel", i]
    id = id_of[name]
    if (id in row_of && agrees(row_of[id], words_of["kernel", name] " ") || \
      words_of["config", name] == words_of["kernel", name]) {
      part["kept", ++parts["kept"]] = name
      words_of["kept", name] = words_of["kernel", name]
      whole_of["kept", id] = whole_of["kernel", id]
    }
  }
  for (i = 1; i <= rules["config"]; i++)
    hold_rule("kept", rule["config", i])
  probes = 0
  plan("kept", "kernel")
  commit()
  exit
}

# Returns whether a route has the gateway and the interface that a row names.
function agrees(row, words,    word) {
  split(row, word, " ")
  sub(/ via inet6 /, " via ", words)
  if (word[2] != "*" && !index(words, " dev " word[2] " "))
    return 0
  return word[1] == "*" || (word[1] == "onlink" ? !has_via(words) : index(words, " via " word[1] " "))
}

# --- routes as ip prints them ----------------------------------------------------------------------------------------
# Interfaces may be named like any word that ip prints, so words are read as the values of keys.

# Splits a route that ip printed into to, its destination, and class, the rest. Thousands of routes may share a class,
# so each class is parsed only once, into the arrays named ..._of.
function parse(line,    kind, end, part) {
  # The lifetime changes every second.
  if (family == 6)
    sub(/ expires [1-9][0-9]*sec/, "", line)
  end = index(line, " ")
  to = substr(line, 1, end - 1)
  kind = ""
  if (to in type_number) {
    kind = to
    line = substr(line, end + 1)
    end = index(line, " ")
    to = substr(line, 1, end - 1)
  }
  class = kind substr(line, end)
  if (!(class in type_of))
    classify(kind == "" ? 1 : type_number[kind], class)
  # ip prints ::1.2.3.0/120.
  if (family == 6 && index(to, ".")) {
    split(to "/" BITS, part, "/")
    to = dotted(number(part[1])) "/" part[2]
  }
  if (to == "default")
    to = ANYWHERE
  else if (!index(to, "/"))
    to = to "/" BITS
}

function classify(type, text,    h, live, list) {
  take_apart(type, text)
  for (h = 1; h <= hops; h++) {
    if (!is_dead[h] && dev[h] != "" && !((text, dev[h]) in is_by)) {
      is_by[text, dev[h]] = 1
      list[++live] = dev[h]
    }
  }
  type_of[text] = type
  table_of[text] = "table" in field ? field["table"] + 0 : 254
  metric_of[text] = field["metric"] + 0
  proto_of[text] = field["proto"]
  src_of[text] = field["src"]
  mtu_of[text] = field["mtu"]
  # Packets without a tos never use a route that has one.
  is_for_tos[text] = "tos" in field
  # An IPv6 route that only applies to some sources.
  apart_of[text] = ("from" in field ? " from " field["from"] : "") ("tos" in field ? " tos " field["tos"] : "")
  from_of[text] = field["from"]
  # The interfaces of the usable hops, such as "eth0/eth1". No interface name contains "/".
  devs_of[text] = sorted(list, live, "/")
  is_dead_of[text] = hops && !live
  # What the route does to packets.
  ways_of[text] = type sorted(hop, hops, ";")
}

# Parses a class. Sets field by name, and hop[1..hops] to words that ip accepts, always in the same order. Also sets
# via, dev, onlink and is_dead for each hop.
function take_apart(type, text,    word, count, i, w, h, legs, live, tunnel_tos) {
  count = split(with_hops(text), word, " ")
  split("", field)
  clear_hop(1)
  h = 1
  for (i = type == 1 ? 1 : 2; i <= count; i++) {
    w = word[i]
    if (w == "nexthop")
      clear_hop(h = ++legs)
    else if (w == "via")
      via[h] = word[i += word[i + 1] ~ /^inet6?$/ ? 2 : 1]
    else if (w == "dev")
      dev[h] = word[++i]
    else if (w == "weight")
      weight[h] = " weight " word[++i]
    else if (w == "onlink")
      onlink[h] = " onlink"
    else if (w == "dead")
      is_dead[h] = 1
    else if (w == "linkdown")
      has_no_carrier[h] = 1
    else if (w == "encap") {
      # The first tos after "encap ip" belongs to the tunnel. Any other tos belongs to the route.
      tunnel_tos = word[i + 1] == "ip"
      for (; i < count && word[i + 1] !~ /^(via|dev|table|proto|nexthop|weight)$/; i++)
        if (word[i] == "tos" && !tunnel_tos--)
          field["tos"] = word[i + 1]
    }
    else if (w !~ /^(\\|pervasive|offload|trap|notify|unresolved|rt_offload|rt_trap|rt_offload_failed)$/)
      # Any other word has a value, such as "mtu lock 1400".
      field[w] = word[i += word[i + 1] == "lock" ? 2 : 1]
  }
  # A blackhole nexthop object shows lo, but no packet reaches lo.
  hops = type >= 6 ? 0 : legs ? legs : via[1] dev[1] != ""
  for (h = 1; h <= hops; h++) {
    hop[h] = way(h) weight[h] onlink[h]
    live += !is_dead[h]
  }
  for (h = 1; h <= hops && field["expires"] ~ /^(0|-)/; h++)
    live = !(is_dead[h] = 1)
  # A leg that is dead only because of a sysctl still gets packets as long as another leg is alive. A member of a
  # nexthop object doesn't.
  for (h = 1; h <= legs && live && !("nhid" in field); h++)
    if (is_dead[h] && has_no_carrier[h] && lacks_carrier(dev[h]))
      is_dead[h] = 0
}

# Returns whether an interface with an address is up without a carrier. Otherwise, a leg is dead for another reason.
function lacks_carrier(name,    line, word) {
  while (!has_read_links && ("exec ip -br -" family " addr show up" | getline line) > 0) {
    split(line, word, " ")
    # ip prints "eth0 UP 10.1.0.4/24" or "eth0@peer LOWERLAYERDOWN 10.1.0.4/24".
    sub(/@.*/, "", word[1])
    is_without_carrier[word[1]] = word[2] !~ /^U/
  }
  has_read_links = 1
  return is_without_carrier[name]
}

function clear_hop(h) {
  via[h] = dev[h] = weight[h] = onlink[h] = ""
  is_dead[h] = has_no_carrier[h] = 0
}

function way(h) {
  return (via[h] == "" ? "" : " via " (index(via[h], ":") ? "inet6 " : "") via[h]) (dev[h] == "" ? "" : " dev " dev[h])
}

# Adds a nexthop object's hops to a route if the kernel doesn't show them. A blackhole object has no hops. The scope and
# protocol of an object aren't the route's.
function with_hops(text,    id, leg, share, legs, i, line, word) {
  if (!match(text, / nhid [0-9]+/) || text ~ / (via|dev) /)
    return text
  id = substr(text, RSTART + 6, RLENGTH - 6)
  while (!has_read_nexthops && ("exec ip -N -o nexthop show 2>/dev/null" | getline line) > 0) {
    sub(/ scope [0-9]+/, "", line)
    sub(/ proto [0-9]+/, "", line)
    split(line, word, " ")
    nexthop[word[2]] = word[3] == "blackhole" ? "" : " " substr(line, index(line, word[3]))
  }
  has_read_nexthops = 1
  if (!match(nexthop[id], /^ group [^ ]+/))
    return text nexthop[id]
  legs = split(substr(nexthop[id], 8, RLENGTH - 7), leg, "/")
  for (i = 1; i <= legs; i++) {
    split(leg[i] ",1", share, ",")
    text = text (legs > 1 ? " nexthop" : "") nexthop[share[1]] (legs > 1 ? " weight " share[2] : "")
  }
  return text
}

# Reads the IPv4 default routes, if any. They determine the uplinks, because any router can advertise an IPv6 default
# route.
function read_ipv4(    line, count, i) {
  count = split(ENVIRON["IPV4_DEFAULTS"], line, "\n")
  for (i = 1; i <= count; i++) {
    parse(line[i])
    read_default()
  }
}

function expect_its_devices() {
  contested_vpn = vpn_beside()
  uplink_pattern = uplink_words = devs_of[default_on("*")]
  gsub("/", ",", uplink_words)
  gsub(/[^A-Za-z0-9_\/-]/, "[&]", uplink_pattern)
  gsub("/", "|", uplink_pattern)
  default_count = 0
}

# Formats a route for ip, from a destination and a class.
function command(somewhere, some,    i, h, word, count) {
  if (!(some in command_of)) {
    take_apart(type_of[some], some)
    # For some types, ip would use table local by default.
    command_of[some] = (hops == 1 && field["nhid"] == "" ? hop[1] : "") \
      (type_of[some] == 1 && table_of[some] == 254 ? "" : " table " table_of[some])
    count = split("tos from proto scope metric src mtu nhid", word, " ")
    for (i = 1; i <= count; i++)
      if (field[word[i]] != "")
        command_of[some] = command_of[some] " " word[i] " " field[word[i]]
    for (h = 1; h <= hops && hops > 1 && field["nhid"] == ""; h++)
      command_of[some] = command_of[some] " nexthop" hop[h]
  }
  return (type_of[some] == 1 || command_of[some] ~ / nhid / ? "" : type_name[type_of[some]] " ") \
    somewhere command_of[some]
}

function hops_of(some) {
  take_apart(type_of[some], some)
  return hops
}

# Sorts and joins words.
function sorted(words, count, separator,    list, i, j, out) {
  for (i = 1; i <= count; i++) {
    for (j = i; j > 1 && (list[j - 1] "") > (words[i] ""); j--)
      list[j] = list[j - 1]
    list[j] = words[i]
  }
  for (i = 1; i <= count; i++)
    out = out (i > 1 ? separator : "") list[i]
  return out
}

# Keeps the route that parse() last split if it is a usable default route.
function read_default() {
  if (to == ANYWHERE && type_of[class] == 1 && table_of[class] == 254 && devs_of[class] !~ /^(lo)?$/ && \
    apart_of[class] == "")
    defaults[++default_count] = class
}

function is_uplink(name) {
  return uplink_pattern == "" || name ~ ("^(" uplink_pattern ")$")
}

# Returns the uplinks of a class, such as "eth0/eth1".
function uplinks_of(c,    list, count, i, out) {
  count = split(devs_of[c], list, "/")
  for (i = 1; i <= count; i++)
    if (is_uplink(list[i]))
      out = out (out == "" ? "" : "/") list[i]
  return out
}

# Returns the preferred default route with a live hop on this device, or for "*" on any uplink.
function default_on(name,    i, best) {
  for (i = 1; i <= default_count; i++)
    if (name == "*" ? uplinks_of(defaults[i]) != "" : index("/" devs_of[defaults[i]] "/", "/" name "/"))
      if (best == "" || metric_of[defaults[i]] < metric_of[best])
        best = defaults[i]
  return best
}

# --- proof -----------------------------------------------------------------------------------------------------------

function cover(prefix, some) {
  some[prefix] = 1
  starts[substr(prefix, 1, index(prefix, "/") - 1)]++
  has_length[substr(prefix, index(prefix, "/") + 1)] = 1
}

# Returns the first address of a prefix that no longer prefix covers, or "".
function uncovered_address_of(prefix, some, more,    address, n, end, longer, outer_bits) {
  address = substr(prefix, 1, index(prefix, "/") - 1)
  if (starts[address] < 2)
    return address
  read_prefix(prefix)
  end = last
  outer_bits = bits
  for (n = first; n <= end; n = after(end_of(n, longer, ONES))) {
    address = dotted(n)
    for (longer = outer_bits + 1; longer <= BITS; longer++)
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
  address = uncovered_address_of(looked_at, in_main, in_local)
  if (address != "") {
    question[++questions] = "route get fibmatch " address " uid 0" (family == 4 ? "" : " ipproto 17")
    asked_for[questions] = i
  }
  else if (uncovered_address_of(looked_at, in_ours, in_local) != "" || \
    uncovered_address_of(looked_at, in_local, in_local) == "")
    fail("refused", "longer prefixes cover all of it; look at: ip -" family " route show root " looked_at)
}

# Returns which route doesn't win, and what does, or "". Our old routes may win while they are there.
function find_loser(has_old,    i, right, prefix) {
  for (i = 1; i <= questions; i++) {
    prefix = wanted_to[asked_for[i]]
    right = carried_by[asked_for[i]]
    parse(answer[i])
    if ((to != prefix || metric_of[class] != metric_of[right] || table_of[class] != table_of[right] || \
      ways_of[class] != ways_of[right]) && !(has_old && proto_of[class] == 217))
      return prefix " doesn\047t win: packets to it go by " answer[i]
  }
  return ""
}

# Returns what to name in routes and "keep" that mean another interface, unless the owner has edited "uplinks", or a
# network of the interface has the gateways.
function places_of(was, is_named,    i, word, out, is_sure, is_lost, means, k) {
  if (!(was in is_up) || (is_configured && !is_uplink(was)))
    return ""
  is_sure = is_named
  for (i = 1; i <= wanted; i++) {
    split(words_for[i], word, " ")
    means = ""
    for (k = 1; k <= presents; k++)
      if (word[2] == present[k])
        means = "other"
    if (word[2] == was)
      means = means == "" ? "uplink" : ""
    is_lost = "lacking" in reason || word[1] ~ /^([*]|onlink)$/
    if (means == "" || (means == "uplink" && !is_named && !is_lost))
      continue
    is_sure = is_sure || is_lost
    if (length(out) < 200)
      out = out "in dev of the static route to " wanted_to[i] " name " (means == "other" ? was : present[1]) "; "
  }
  for (i = 1; i <= keeps; i++)
    if (meaning(keep_pattern[i], was) == "other") {
      is_sure = 1
      out = out "in keep, for " keep_words[i] ", name " was "; "
    }
  return is_sure ? out : ""
}

END {
  # Packets to 0.0.0.0, :: and ::1 stay on the host, regardless of the tables.
  cover(family == 4 ? "0.0.0.0/32" : "::/127", in_local)
  adopt()
  if (task == "undo")
    undo()
  resolve_all()
  resolve_policy()
  if (!is_configured && uplink_pattern == "")
    contested_vpn = vpn_beside()
  mover = moved_from()
  if (task == "unlist")
    unlist()
  if (find_swap() != "")
    reason["refused"] = "can\047t install the static routes: " find_swap()
  else if (mover != "")
    reason["refused"] = "can\047t install the static routes: contested-default: the default route is that of the" \
      " VPN " contested_vpn ", and our routes leave through " mover how_to_name(mover)
  if (!("lacking" in reason || "refused" in reason)) {
    for (i = 1; i <= wanted; i++)
      want(i)
    for (i = 1; i <= parts["kernel"] && family == 6; i++)
      beware(id_of[part["kernel", i]])
    for (i = 1; i <= wanted; i++)
      if (carrier[wanted_to[i]] == i)
        plan_proof(i)
  }
  kind = "refused" in reason ? "refused" : "lacking"
  if (wanted && awaited_uplink != "" && !("refused" in reason))
    print "lacking", awaited_uplink
  else if (kind in reason)
    print kind, reason[kind] (kind == "lacking" ? way_out : "")
  else if (awaited != "" && !is_settled)
    print "pending", awaited
  else if (task == "plan")
    print "done"
  else {
    plan("config", "kernel")
    commit()
  }
}
