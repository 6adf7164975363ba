# Comes before static-routes.awk, and makes it add no route and remove only ours that aren't as listed. This is what is
# left to do at a trial's end if the listed routes can't be installed. If it is unknown where a listed route should lead,
# for example without a default route, ours stays as it is. Other IPv6 hops in a route may be another program's.
END {
  for (i = 1; i <= wanted; i++) {
    id = wanted_gateway[i] " " wanted_dev[i] " " wanted_metric[i]
    if (!(id in right_ways)) {
      split("", reason)
      class = resolve(wanted_gateway[i], wanted_dev[i], wanted_metric[i])
      classify(1, class)
      right_ways[id] = "lacking" in reason || "refused" in reason ? "" : ways_of[class]
    }
    listed[wanted_to[i] " " wanted_metric[i]] = right_ways[id]
  }
  for (i = 1; i <= our_count; i++)
    if (!is_as_listed(our_class[i], our_to[i] " " metric_of[our_class[i]])) {
      our_to[++unlisted] = our_to[i]
      our_class[unlisted] = our_class[i]
    }
  our_count = unlisted + 0
  wanted = 0
  split("", reason)
  split("", adoptable)
}

function is_as_listed(some, id) {
  return id in listed && !is_apart(some) && \
    (listed[id] == "" || listed[id] == ways_of[some] || family == 6 && hops_of(some) > 1)
}
