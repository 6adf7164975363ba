BEGIN { MOOT = "(No such process|File exists)$" }

# Makes ip apply all changes that it can, and returns the failures, or "". An error that matches moot means that another
# program has already made the change. Sets was_ended if ip didn't reach its last command, which lists at least one
# link.
function make_all(list, count, moot,    i, again, left, why, hidden) {
  if (!count)
    return ""
  force(list, count)
  for (i = 1; i <= count; i++)
    if (i in failed && failed[i] !~ moot)
      again[++left] = list[i]
  # A changed route may have covered the gateway of another one.
  if (left && !was_ended)
    force(again, left)
  if (was_ended)
    return complaint == "" ? "ip was ended" : complaint
  for (i = left; i >= 1; i--)
    if (i in failed)
      why = "ip " again[i] ": " failed[i]
  hidden = family == 6 ? take_hidden(list, count) : ""
  return why (why == "" || hidden == "" ? "" : "; ") hidden
}

function force(list, count,    i) {
  list[count + 1] = "link show"
  run(list, count + 1, "-force")
  for (i = 1; i <= count; i++)
    is_made[list[i]] = !(i in failed)
  was_ended = !answers
}

# Adds new hops before it removes old ones. Only a hop whose source, MTU or weight changes is missing for a moment.
function exchange(old, new,    h, had, wanted) {
  for (h = hops_of(old); h >= 1; h--)
    had[way(h)] = single(looked_at, h)
  hops_of(new)
  for (h = 1; h <= hops; h++) {
    wanted[way(h)] = single(looked_at, h)
    if (!(way(h) in had))
      change(3, wanted[way(h)], deletion(looked_at, h))
  }
  for (h = hops_of(old); h >= 1; h--)
    if (!(way(h) in wanted))
      change(3, deletion(looked_at, h), had[way(h)])
  for (h = hops; h >= 1; h--)
    if (way(h) in wanted && wanted[way(h)] != had[way(h)]) {
      change(3, deletion(looked_at, h), had[way(h)])
      change(3, wanted[way(h)], deletion(looked_at, h))
    }
}

# Deleting or replacing a whole IPv6 route would also remove other programs' hops. Other programs' hops come last, so
# try those first. A discard's only hop is lo.
function remove(step, prefix, some,    h) {
  if (family == 4)
    change(step, "del " command(prefix, some), "add " command(prefix, some))
  else {
    for (h = hops_of(some); h >= 1; h--)
      change(step, deletion(prefix, h), single(prefix, h))
    if (type_of[some] >= 6)
      change(step, deletion(prefix, 1), "add " command(prefix, some))
  }
}

# Returns the command that adds hop h of the class that take_apart() last parsed. The kernel gives a single hop weight
# 1, which ip shows as soon as another program adds a hop.
function single(prefix, h,    text) {
  text = identity() (field["src"] == "" ? "" : " src " field["src"]) (field["mtu"] == "" ? "" : " mtu " field["mtu"])
  return "append " prefix (weight[h] == "" || weight[h] == " weight 1" ? way(h) onlink[h] text : text " nexthop" hop[h])
}

# Returns the command that deletes this hop. With a gateway ("::" if there is none), the kernel deletes a single hop,
# and only ours (ip6_route_del).
function deletion(prefix, h) {
  return "del " prefix exact(h) identity()
}

function exact(h) {
  return " via " (via[h] == "" ? "::" : via[h]) (dev[h] == "" ? "" : " dev " dev[h])
}

# Returns the words that distinguish a route from others with its prefix.
function identity() {
  return " proto " field["proto"] " metric " field["metric"] (field["from"] == "" ? "" : " from " field["from"])
}

# The kernel shows only the first hop's protocol, so a hop of ours behind another program's wouldn't be found again.
# Deletes those in routes that commands have changed, and returns a reason, or "".
function take_hidden(changed, count,    i, h, list, word, is_changed, why, tries) {
  for (i = 1; i <= count; i++) {
    split(changed[i], word, " ")
    is_changed[word[3]] = 1
  }
  list[1] = "route show table main"
  # Under constant churn two listings of three are interrupted.
  for (tries = 32; tries; tries--) {
    was_interrupted = 0
    run(list, 1, "")
    if (!was_interrupted)
      break
  }
  if (status != 0 || was_interrupted)
    return "can\047t list the routes: " (complaint == "" ? "ip was ended" : complaint)
  count = 0
  for (i = 1; i <= answers; i++) {
    parse(answer[i])
    for (h = to in is_changed && proto_of[class] != 217 ? hops_of(class) : 0; h > 1; h--) {
      field["proto"] = 217
      list[++count] = "route " deletion(to, h)
    }
  }
  if (count)
    run(list, count, "-force")
  for (i = 1; i <= count; i++)
    if (!(i in failed))
      why = "another program\047s hop has taken the place (ip " list[i] ")"
  return why
}
