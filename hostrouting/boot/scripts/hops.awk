# Adds new hops before it removes old ones. Only a hop whose source, MTU or weight changes is missing for a moment.
function exchange(old, new,    h, count, had, wanted, text, rest) {
  rest = src_of[old] "," mtu_of[old] != src_of[new] "," mtu_of[new]
  for (h = hops_of(old); h >= 1; h--)
    had[way(h)] = 1
  count = hops_of(new)
  for (h = 1; h <= count; h++) {
    wanted[way(h)] = hop[h]
    text[way(h)] = single(looked_at, h)
    if (!(way(h) in had))
      change(3, text[way(h)], "del " looked_at exact(h) identity())
  }
  for (h = hops_of(old); h >= 1; h--)
    if (!(way(h) in wanted))
      remove_hop(3, looked_at, h)
  for (h = hops; h >= 1; h--)
    if (way(h) in wanted && (rest || wanted[way(h)] != hop[h])) {
      remove_hop(3, looked_at, h)
      change(3, text[way(h)], "del " looked_at exact(h) identity())
    }
}

function remove_hop(step, prefix, h) {
  change(step, "del " prefix exact(h) identity(), single(prefix, h))
}

# Returns the command that adds hop h of the class that take_apart() last parsed.
function single(prefix, h,    text) {
  text = identity() (field["src"] == "" ? "" : " src " field["src"]) (field["mtu"] == "" ? "" : " mtu " field["mtu"])
  return "append " prefix (weight[h] == "" ? way(h) onlink[h] text : text " nexthop" hop[h])
}
