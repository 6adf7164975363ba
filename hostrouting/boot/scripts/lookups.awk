# --- the addresses to look up, and their lookups ----------------------------------------------------------------------

# Sets the places, in order. A place stands for all addresses up to the next place, because the kernel routes them
# alike.
function find_places(    i, end, head, covered, suspected) {
  sorter = "exec sort >\"$SCRATCH\""
  for (i = 1; i <= ranges; i++) {
    print range_first[i], "expected", range_last[i] | sorter
    # This CIDR doesn't expect the uplinks, or no default route catches the rest.
    if (own_pattern[i] != "" || default_on("*") == "")
      print_suspect(range_first[i], range_last[i])
  }
  # Custom rules may affect any address.
  if (rules != usual_rules || rules != (family == 6 ? 2 : 3))
    print_suspect("x" ZEROS, "x" ONES)
  for (i = 1; i <= rules_to; i++) {
    place(rule_to[i])
    print_suspect(first, last)
  }
  for (i = 1; i <= routes; i++) {
    # parse() would be too slow for a large table.
    class = substr(route[i], index(route[i], " "))
    if (is_plain[class] == 1)
      continue
    parse(route[i])
    if (is_for_tos[class])
      continue
    if (is_plain[class] == "")
      is_plain[class] = type_of[class] == 1 && encap_of[class] == "" && (src_of[class] == "" || (src_of[class] in is_address && src_of[class] !~ /^127[.]/)) && !unexpected_devs(class, expected, "/")
    if (!is_plain[class]) {
      place(to)
      print_suspect(first, last)
    }
  }
  # Routes through expected interfaces only matter near something suspect.
  for (i = 1; i <= routes; i++) {
    end = index(route[i], " ")
    # "10." or "fd00:", or "" for larger prefixes.
    head = substr(route[i], end - 2, 1) == "/" || (family == 6 && substr(route[i], end - 3, 2) == "/1") ? "" : substr(route[i], 1, match(route[i], /[.:]/))
    if (!is_near_to(head))
      continue
    parse(route[i])
    if (is_plain[class] == 1) {
      place(to)
      print_borders(first, last)
    }
  }
  if (family == 6 && has_sources)
    print_source_borders()
  if (close(sorter) != 0)
    problem = "again"
  covered = suspected = ""
  while ((getline <ENVIRON["SCRATCH"]) > 0) {
    if ($2 == "expected" && $3 > covered)
      covered = $3
    if ($2 == "suspect" && $3 > suspected)
      suspected = $3
    if ($1 <= covered && !($1 in place_at) && ($2 != "plain" || $1 <= suspected)) {
      place_at[$1] = ++places
      place_first[places] = $1
      place_last[places] = covered
      address_at[places] = dotted($1)
    }
  }
  close(ENVIRON["SCRATCH"])
}

function print_borders(begin, end) {
  print begin, "plain\n" after(end), "plain" | sorter
}

function print_suspect(begin, end) {
  print begin, "suspect", end "\n" after(end), "end" | sorter
  suspect_first[++suspects] = begin
  suspect_last[suspects] = end
}

# Returns whether a suspect range overlaps the addresses that begin with head.
function is_near_to(head,    begin, end, i) {
  if (!(head in is_near)) {
    begin = number(head (family == 6 ? ":" : "0.0.0"))
    end = end_of(begin, family == 6 ? 16 : 8, ONES)
    for (i = 1; i <= suspects && (suspect_last[i] < begin || suspect_first[i] > end); i++)
      ;
    is_near[head] = head == "" || i <= suspects
  }
  return is_near[head]
}

# Prints the borders between which a hop has only one source (ipv6_get_saddr_eval).
function print_source_borders(    i, length_) {
  for (i = 1; i <= borders; i++) {
    place(border[i])
    for (length_ = i > labels ? 1 : bits; length_ <= bits; length_++)
      print_borders(end_of(first, length_, ZEROS), end_of(first, length_, ONES))
  }
}

# Looks up all places. A lookup stands for UDP unless it says TCP. A second lookup has the first answer's source.
function look_up(    i, firsts) {
  with_ports = has_all_ports ? free_ports() : ""
  for (i = 1; i <= places; i++) {
    first_at[i] = add_question(i, "", "")
    if (treats_tcp_apart)
      add_question(i, "", " ipproto 6")
  }
  ask()
  add_turns(1)
  firsts = questions
  add_probes()
  if (questions > firsts) {
    ask()
    read_probes(firsts)
  }
  if (family == 6 && has_sources)
    add_unrouted()
  add_connections()
  if (questions > firsts)
    ask()
  for (i = firsts + 1; i <= questions; i++)
    if (family == 6 && !(i in failed))
      works[place_of[i], is_tcp[i]] = 1
  add_turns(firsts + 1)
}

function add_question(p, from, as_tcp) {
  place_of[++questions] = p
  source_of[questions] = from
  is_tcp[questions] = as_tcp
  lookups_at[p] = lookups_at[p] " " questions
  question[questions] = "route get fibmatch " address_at[p] (from == "" ? "" : " from " from) " uid 0" protocol(as_tcp) with_ports
  return questions
}

function protocol(as_tcp) {
  return family == 6 && as_tcp == "" ? " ipproto 17" : as_tcp
}

# The kernel may choose any default route of a turn, so each counts as an answer. Starts with question i.
function add_turns(i,    count, k, t, n) {
  count = questions
  for (; i <= count; i++) {
    if (i in failed)
      continue
    parse(text_of[i])
    t = to == ANYWHERE ? turn_of(class) : ""
    for (k = 1; t != "" && turns[t] > 1 && k <= turns[t]; k++) {
      n = add_question(place_of[i], source_of[i], is_tcp[i])
      text_of[n] = turn_text[n] = turn[t, k]
    }
  }
}

# Returns ports that no rule selects, so that they stand for any port.
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

# Asks for the kernel's sources where routes name none, once for each class, or in IPv6 for each address.
function add_probes(    i, ids, id, asked_by, firsts, is_local) {
  firsts = questions
  for (i = 1; i <= firsts; i++) {
    if (i in failed)
      continue
    parse(text_of[i])
    # A rule for a source may also catch local addresses if it precedes table local, or in IPv6 table main.
    is_local = type_of[class] == 2 && asks_local_first && (family == 4 || table_of[class] != 254)
    # Without such a rule, a second lookup only differs if a route names a source that this host doesn't have.
    if (is_local || !(has_sources || (family == 4 && src_of[class] != "" && !(src_of[class] in is_address))))
      continue
    way_of[i] = family == 4 ? class is_tcp[i] : i
    if (!(way_of[i] in asked_by))
      id[++ids] = way_of[i]
    asked_by[way_of[i]] = asked_by[way_of[i]] " " i
  }
  for (i = 1; i <= ids; i++)
    add_probes_of(id[i], asked_by[id[i]])
}

# A lookup only shows one hop's source. The kernel selects the hop by a hash of the address, or of address and port.
function add_probes_of(id, asked_by,    list, count, flows, h, share, least, k, n, p, from_port) {
  count = split(asked_by, list, " ")
  parse(text_of[list[1]])
  if (src_of[class] != "" || family == 6) {
    sources_of[id] = src_of[class]
    if (src_of[class] == "")
      add_probes_by_devs(id)
    return
  }
  take_apart(type_of[class], class)
  for (h = 1; h <= hops; h++) {
    share = weight[h] == "" ? 1 : substr(weight[h], 9) + 0
    least = h == 1 || share < least ? share : least
    flows += share
  }
  # With this many flows, the chance that all miss a hop is e^-16.
  flows = hops < 2 ? 1 : 16 * int((flows + least - 1) / least)
  from_port = with_ports
  sub(/ dport .*/, "", from_port)
  for (h = 0; h < flows && h < 4096;)
    for (k = 1; k <= count && h < flows && h < 4096; k++) {
      p = place_of[list[k]]
      for (n = place_first[p]; n <= place_last[p] && (p == places || n < place_first[p + 1]) && h < flows && h < 4096; n = after(n)) {
        add_probe(id, dotted(n) " uid 0" is_tcp[list[k]] (flows > 1 ? from_port " dport " 50000 + h : with_ports))
        h++
      }
    }
}

# An IPv6 source depends on the hop's interface.
function add_probes_by_devs(i,    k, list, count) {
  count = split(devs_of[class], list, "/")
  for (k = 1; k <= count; k++)
    add_probe(i, address_at[place_of[i]] " uid 0" protocol(is_tcp[i]) with_ports (count > 1 ? " oif " list[k] : ""))
}

function add_probe(id, words) {
  question[++questions] = "route get " words
  probed_by[questions] = id
}

# For a failed lookup, the kernel chooses a source among all addresses and tries again. Only a socket shows that source.
# Connecting it sends no packets.
function add_unrouted(    i, file, line, word, source_to) {
  file = ENVIRON["SCRATCH"]
  printf "" >file
  for (i = 1; i <= questions; i++)
    if (i in failed) {
      if (!(first_at[place_of[i]] in failed))
        undetermined(i, "a UDP lookup succeeds, so no socket shows the source of TCP\047s second lookup")
      print place_of[i], address_at[place_of[i]], toupper(swapped(substr(number(address_at[place_of[i]]), 2))) >file
    }
  close(file)
  for (file = "exec bash -p -c \"$CONNECT\" <\"$SCRATCH\" 2>/dev/null"; (file | getline line) > 0;) {
    split(line, word, " ")
    source_to[word[1]] = dotted("x" swapped(tolower(word[2])))
  }
  for (i = 1; i <= questions; i++)
    if (i in failed && place_of[i] in source_to) {
      way_of[i] = i
      sources_of[i] = source_to[place_of[i]]
    }
}

# Converts from or to /proc, which reverses each group of four bytes.
function swapped(digits,    i, out) {
  for (i = 0; i < 32; i += 2)
    out = out substr(digits, i - 2 * (i % 8) + 7, 2)
  return out
}

# Returns whether a lookup decides where a socket sends. In IPv4, TCP's first one only chooses the source if there is a
# second one. In IPv6, a socket repeats one that fails.
function sends(i) {
  if (source_of[i] != "")
    return 1
  return family == 4 ? is_tcp[i] == "" || !connects_at[place_of[i]] : !(i in failed) || !((place_of[i], is_tcp[i]) in works)
}

# Returns whether TCP makes a lookup. Unless it has its own ones, it makes the same as UDP.
function is_of_tcp(i) {
  return is_tcp[i] != "" || !treats_tcp_apart
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

# Adds the second lookups, sorted by source.
function add_connections(    i, k, list, count, n, from, sources_asked, asked_by, name_of, p) {
  for (i = 1; i <= questions; i++) {
    if (!(i in way_of))
      continue
    count = split(sources_of[way_of[i]], list, " ")
    for (k = 1; k <= count; k++) {
      n = number(list[k])
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
      add_question(p, name_of[from[i]], is_tcp[list[k]])
      connects_at[p] += is_of_tcp(list[k])
    }
  }
}

function undetermined(i, reason) {
  if (problem == "")
    problem = "can\047t determine how TCP to " address_at[place_of[i]] " is routed: " reason
}

# Asks all questions. TCP looks up without a source port first, and later with one.
function ask(    i, bare, bare_outcome) {
  if (has_source_ports) {
    for (i = 1; i <= questions; i++) {
      bare[i] = question[i]
      if (bare[i] ~ / fibmatch /)
        sub(/ sport [0-9]+/, "", bare[i])
    }
    read_answers(bare)
    for (i = 1; i <= questions; i++)
      bare_outcome[i] = outcome(i)
  }
  read_answers(question)
  for (i = 1; has_source_ports && i <= questions; i++)
    if (question[i] ~ / fibmatch / && bare_outcome[i] != outcome(i))
      undetermined(i, "a policy rule matches source ports, and TCP\047s first lookup has none")
}

# Asks for all answers at once. The kernel announces a change before it releases its lock. Lookups don't take this lock,
# but the last line does. So all changes that the answers reflect have been announced by then. An answer may show an
# expired hop, which the kernel still uses beside one that hasn't expired (fib6_select_path).
function read_answers(list,    i, given) {
  list[questions + 1] = "link show dev lo"
  run(list, questions + 1, "-force")
  for (i = 1; i <= questions; i++) {
    if (!(i in failed))
      text_of[i] = i in turn_text ? turn_text[i] : without_lifetime(answer[given + 1])
    given += !(i in failed)
  }
  if (was_interrupted || answers != given + !((questions + 1) in failed))
    problem = "again"
  delete failed[questions + 1]
}

function without_lifetime(text) {
  sub(/ expires -?[0-9]+sec/, "", text)
  return text
}

# Reduces an answer to its error or its route, regardless of the selected hop.
function outcome(i) {
  if (i in failed)
    return failed[i]
  parse(text_of[i])
  return to " " table_of[class] " " metric_of[class] " " ways_of[class]
}
