# --- rules and side tables -------------------------------------------------------------------------------------------
# An entry of the config's "rules" makes table main decide about a CIDR. It stands for a pair of rules: the first looks
# up table local, so that this host's own addresses stay its own wherever another program moves the rule for that table.
#
# An interface that "keep" matches has a side table with its networks and its gateway, and rules that look it up for
# packets from its addresses. Behind a gateway there are three for each address: the side table without its default
# route, table main without its default route, because this host's own pods are there, and then the gateway.
#
# A side table is found again by a rule that names it, because the kernel numbers a new interface with this name anew.
#
# Rules are compared by their words. Two rules with equal words are one here: ip can't add the second one, and the
# removal of either removes the first one.
#
# Proof. Addresses of a CIDR are asked about until the kernel's answer isn't this host itself: that must be of table
# main. An address of a kept interface must lead to its side table, within its networks and for an address elsewhere.

# rule CIDR PRIORITY
section == "config" && $1 == "rule" {
  if (!index($2, ":") == (family == 4)) {
    pair_to[++pairs] = plain($2)
    pair_priority[pairs] = $3
  }
  next
}

# keep PATTERN WORDS GATEWAY: interfaces by a regular expression and as the config names them. The gateway may be
# "onlink", or "*": that of the interface's own default route, if there is one.
section == "config" && $1 == "keep" {
  keep_pattern[++keeps] = $2
  keep_words[keeps] = $3
  keep_gateway[keeps] = $4
  next
}

# ip lists rules first.
/^[0-9]+:\t/ && (section == "now" || (section == "kernel" && !are_routes_read)) { read_rule(); next }

section == "kernel" && !are_addresses_read && /^[0-9]+: +[^ ]+ +inet / { read_kept_address() }

# 100:	not from 10.1.0.4 to 10.9.0.0/16 tos 0x10 fwmark 0x80/0xff iif lo oif eth0 lookup 254 ... proto 2
#
# Interfaces may be named like any of these words, so each word is read by its position.
function read_rule(    word, count, i, is_not, is_ours, is_special, text, end, table) {
  count = split($0, word, " ")
  is_ours = word[count - 1] == "proto" && word[count] == "217"
  is_not = word[2] == "not"
  i = 3 + is_not
  word[i] = plain(word[i])
  text = substr(word[1], 1, length(word[1]) - 1) (is_not ? " not" : "") " from " word[i]
  for (i++; i < count && word[i] !~ /^(lookup|goto|nop|[0-9]+)$/; i += 2) {
    if (word[i] == "to")
      end = word[i + 1] = plain(word[i + 1])
    # What is sent by root, without a mark, comes in by lo.
    else if (word[i] " " word[i + 1] !~ /^(iif lo|uidrange 0-[0-9]+)$/)
      is_special = 1
    text = text " " word[i] " " word[i + 1]
    if (word[i] ~ /^[io]if$/ && word[i + 2] == "[detached]")
      text = text " " word[++i + 1]
  }
  table = word[i] == "lookup" ? word[i + 1] : "none"
  for (; i <= count - 2 * is_ours; i++)
    text = text " " word[i]
  if (is_ours)
    hold_rule(section, as_read(text))
  if (section == "now")
    return
  is_looked_up[table] = 1
  if (!is_ours && text ~ /^[0-9]+ from all (iif lo )?lookup 255( proto [0-9]+)?$/ && word[1] + 0 < 2170)
    is_local_early = 1
  seen_text[++seen] = text
  sub(/ /, ": ", seen_text[seen])
  seen_table[seen] = table
  seen_from[seen] = word[3 + is_not]
  seen_to[seen] = end == "" ? "all" : end
  # Whether it matches if the addresses do, and if they don't.
  seen_matches[seen, 1] = is_not ? is_special : !is_special
  seen_matches[seen, 0] = is_not
  if (is_ours && text ~ /^217[02] from / && is_side(table)) {
    naming[++namings] = word[3]
    named_table[namings] = table
  }
}

# Writes a prefix as ip prints it in rules.
function plain(prefix) {
  if (prefix == "all")
    return prefix
  read_prefix(prefix)
  return dotted(first) (bits == BITS ? "" : "/" bits)
}

function is_side(table) {
  return table ~ /^217[0-9][0-9][0-9][0-9]$/
}

# Keeps rule "PREFERENCE WORDS" in a list.
function hold_rule(list, text) {
  rule[list, ++rules[list]] = text
  rules_like[list, text]++
  place_of[list, text] = rules[list]
}

# 2: ib0    inet 172.16.0.10/16 metric 100 brd 172.16.255.255 scope 0 ib0\ ...
# 3: wg0    inet 10.0.0.1 peer 10.0.0.2/32 scope 0 wg0\ ...
function read_kept_address(    i, address) {
  dev_of[$1 + 0] = $2
  address = $4
  sub(/\/.*/, "", address)
  holders[address] = holders[address] "/" $2
  for (i = 5; i < NF && $i != "scope"; i += 2)
    ;
  if ($(i + 1) != 0)
    return
  own[++owns] = address
  own_dev[owns] = $2
  own_net[owns] = $5 == "peer" ? $6 : $4
}

# Resolves the config's rules and kept interfaces.
function resolve_policy(    i, k, name, list, count, entry, is_met) {
  for (i = 1; i <= pairs; i++) {
    hold_rule("config", pair_priority[i] " from all to " pair_to[i] " lookup 255")
    hold_rule("config", pair_priority[i] " from all to " pair_to[i] " lookup 254")
    ask_about(i)
  }
  if (family != 4)
    return
  for (i = 1; i <= links && keeps; i++) {
    name = link[i]
    for (k = 1; k <= keeps; k++)
      if (name ~ ("^(" keep_pattern[k] ")$")) {
        is_met[k] = 1
        if (!(name in entry)) {
          entry[name] = k
          list[++count] = name
        }
      }
  }
  for (k = 1; k <= keeps; k++)
    if (!(k in is_met))
      leave_out(keep_words[k], "lo" ~ ("^(" keep_pattern[k] ")$") ? \
        "lo never is, and there is no other such interface" : "there is no such interface")
  sort_by_index(list, count)
  for (i = 1; i <= count; i++)
    keep(list[i], keep_gateway[entry[list[i]]])
}

function sort_by_index(list, count,    i, j, name) {
  for (i = 2; i <= count; i++) {
    name = list[i]
    for (j = i; j > 1 && index_of[list[j - 1]] > index_of[name]; j--)
      list[j] = list[j - 1]
    list[j] = name
  }
}

# Adds the routes and rules that keep an interface, or a note that says why it isn't kept.
function keep(name, gateway,    i, a, hop, table) {
  addresses = 0
  if (uplink_pattern != "" ? is_uplink(name) : index("/" devs_of[default_on("*")] "/", "/" name "/"))
    leave_out(name, "it is an uplink")
  else if (name in master && !(master[name] in is_vrf))
    leave_out(name, "it is a port of " master[name])
  else if (!is_up[name])
    tell_pending(name " (it is down)")
  else if (!read_addresses_of(name)) {
    tell_pending(name " (it has no address)")
    awaited = awaited (awaited == "" ? "" : ", ") name " (it has no address)"
  }
  if (!addresses)
    return
  hop = gateway == "*" ? own_hop(name) : given_hop(name, gateway)
  if (!nets && hop == "") {
    leave_out(name, "it has neither a connected network nor a gateway")
    return
  }
  # Hosts with VRFs often have that rule at 32765. Packets between this host's own addresses would then leave it.
  if (!is_local_early) {
    leave_out(name, "no rule before 2170 looks up table local")
    return
  }
  table = side_table(name)
  for (i = 1; i <= nets; i++) {
    hold_side(net[i], " dev " name " table " table " proto 217 scope 253 src " net_source[i])
    beware_of_pairs(name, net[i])
  }
  if (hop != "")
    hold_side(ANYWHERE, hop " table " table " proto 217" (has_via(hop) ? "" : " scope 253"))
  for (a = 1; a <= addresses; a++) {
    hold_rule("config", "2170 from " address[a] " lookup " table (hop == "" ? "" : " suppress_prefixlength 0"))
    if (hop != "") {
      hold_rule("config", "2171 from " address[a] " lookup 254 suppress_prefixlength 0")
      hold_rule("config", "2172 from " address[a] " lookup " table)
    }
    # The kernel may skip the routes of an interface without a carrier.
    if (!has_carrier[name])
      continue
    for (i = 1; i <= nets; i++)
      ask_in(net[i], address[a], name, table)
    if (hop != "") {
      ask("198.51.100.1", address[a], name, table)
      is_far[probes] = 1
    }
  }
}

function leave_out(what, why) {
  note[++notes] = what " isn\047t kept: " why
}

function tell_pending(what) {
  if (++pendings <= 8)
    told_pending = told_pending (told_pending == "" ? "" : ", ") what
  else
    sub(/( and [0-9]+ more)?$/, " and " pendings - 8 " more", told_pending)
}

# Sets address[1..addresses], net[1..nets] and the source of each net for an interface. Returns whether it has any
# address.
function read_addresses_of(name,    i, other, has_any) {
  addresses = nets = 0
  split("", is_among)
  for (i = 1; i <= owns; i++) {
    if (own_dev[i] != name)
      continue
    has_any = 1
    other = other_holder(own[i], name)
    if (other != "") {
      leave_out(own[i] " of " name, other " has this address, too")
      continue
    }
    if (!(own[i] in is_among))
      address[++addresses] = own[i]
    is_among[own[i]] = 1
    read_prefix(own_net[i])
    # For neither a single address nor one in 0.0.0.0/8, the kernel adds a connected route.
    if (own_net[i] == own[i] "/" BITS || first ~ /^x00/ || (dotted(first) "/" bits) in is_among)
      continue
    net[++nets] = dotted(first) "/" bits
    net_source[nets] = own[i]
    is_among[net[nets]] = 1
  }
  return has_any
}

function other_holder(address, name,    part, count, i) {
  count = split(substr(holders[address], 2), part, "/")
  for (i = 1; i <= count && part[i] "" == name ""; i++)
    ;
  return i <= count ? part[i] : ""
}

# Returns the next hop of the interface's own default route in the format of ip, or "".
function own_hop(name,    best, h) {
  best = default_on(name)
  if (best == "")
    return ""
  for (h = hops_of(best); h > 1 && (dev[h] != name || is_dead[h]); h--)
    ;
  return way(h) onlink[h]
}

function given_hop(name, gateway,    i, n, is_near_net) {
  if (gateway == "onlink")
    return " dev " name
  n = number(gateway)
  for (i = 1; i <= nets; i++) {
    read_prefix(net[i])
    is_near_net = is_near_net || (first <= n && n <= last)
  }
  return " via " gateway " dev " name (is_near_net ? "" : " onlink")
}

# Returns the table that an interface's rule names, or else the first free one.
function side_table(name,    i, found) {
  for (i = 1; i <= namings && found == ""; i++)
    if (naming[i] in is_among && !(named_table[i] in is_taken))
      found = named_table[i]
  if (found == "")
    for (found = 2170000; found in is_taken || found in is_looked_up || found in is_of_others; found++)
      ;
  else if (found in is_of_others)
    refuse("can\047t keep " name ": another program has a route in its table " found " (" is_of_others[found] ")")
  if (!is_side(found))
    refuse("there is no free table from 2170000 to 2179999")
  is_taken[found] = 1
  return found
}

# Keeps the first reason why the config can't be installed.
function refuse(why) {
  if (!("refused" in reason))
    reason["refused"] = why
}

# A rule of the config before the kept interface's would lead its packets away.
function beware_of_pairs(name, prefix,    i, low, high) {
  read_prefix(prefix)
  low = first
  high = last
  for (i = 1; i <= pairs; i++) {
    read_prefix(pair_to[i])
    if (pair_priority[i] < 2170 && first <= high && low <= last)
      refuse("can\047t install the rule to " pair_to[i] " priority " pair_priority[i] ": it would take packets off " \
        name ", which is kept, as it comes before 2170 and meets its network " prefix)
  }
}

# Another program's route keeps an interface from taking the table.
function read_side_route(    id) {
  id = key()
  if (proto_of[class] == 217) {
    hold(section, id, class)
    return
  }
  theirs[section, id] = class
  if (!((section, id) in whole_of))
    leads[section, id] = 1
  is_of_others[table_of[class]] = to class
  sub(/ +$/, "", is_of_others[table_of[class]])
}

# Adds a route of a side table to the wanted ones.
function hold_side(prefix, words) {
  to = prefix
  class = words
  if (!(class in type_of))
    classify(1, class)
  hold("config", key(), class)
}

# --- changes of rules ------------------------------------------------------------------------------------------------

# Plans the changes that make our rules those in a list. To unlist, none is added.
function plan_rules(list, there,    i, n, text, is_moved) {
  for (i = 1; i <= rules[list] && task != "unlist"; i++) {
    text = rule[list, i]
    if (place_of[list, text] != i)
      continue
    is_moved[text] = must_move(list, there, text)
    for (n = rules_like[there, text]; n > 0 && is_moved[text]; n--)
      change("add", "del pref " text " proto 217")
    if (!((there, text) in place_of) || is_moved[text])
      change("add", "add pref " text " proto 217")
  }
  for (i = 1; i <= rules[there]; i++) {
    text = rule[there, i]
    if (!((list, text) in place_of) || (place_of[there, text] != i && task != "undo" && !is_moved[text]))
      change("del", "del pref " text " proto 217")
  }
}

# Returns whether a rule has to go behind the others with its preference: one of a pair, if the other one isn't before
# it but should be; or a rule with a limit that comes before one without. The kernel would take the former for the
# latter when that is removed, because it compares only what is given.
function must_move(list, there, text,    other) {
  if (!((there, text) in place_of))
    return 0
  other = text
  if (sub(/ lookup 254$/, " lookup 255", other) || sub(/ lookup 255$/, " lookup 254", other))
    return is_before(list, other, text) && !is_before(there, other, text)
  return sub(/ suppress_prefixlength 0$/, "", other) && !((list, other) in place_of) && is_before(there, text, other)
}

function is_before(list, one, other) {
  return (list, one) in place_of && (list, other) in place_of && place_of[list, one] < place_of[list, other]
}

# --- proof of rules --------------------------------------------------------------------------------------------------

# Adds a question about an address, from a source if that isn't "".
function ask(end, source, name, table) {
  probe[++probes] = "route get fibmatch " end (source == "" ? "" : " from " source) " uid 0" \
    (family == 4 ? "" : " ipproto 17")
  probe_to[probes] = end
  probe_from[probes] = source
  probe_dev[probes] = name
  probe_table[probes] = table
}

# Asks about the first addresses of a pair's CIDR.
function ask_about(pair,    n, left) {
  read_prefix(pair_to[pair])
  n = first
  for (left = 4; left && n <= last; left--) {
    ask(dotted(n), "", "", 254)
    pair_of[probes] = pair
    n = after(n)
  }
}

# Asks about the first address of a network that isn't this host's.
function ask_in(prefix, source, name, table,    n, left) {
  read_prefix(prefix)
  n = bits == BITS ? first : after(first)
  for (left = 4; left && n <= last && dotted(n) in holders; left--)
    n = after(n)
  if (left && n <= last)
    ask(dotted(n), source, name, table)
}

# Returns which rule doesn't decide, and what does, or "". The other questions' answers come first.
function find_beaten(commands,    i, given, error, is_right, is_decided, why) {
  given = questions
  for (i = 1; i <= probes; i++) {
    error = (commands + questions + i) in failed ? failed[commands + questions + i] : ""
    if (error == "")
      parse(answer[++given])
    if (i in pair_of) {
      # Whatever decides about this host's own addresses, it isn't a rule of the config.
      if (pair_of[i] in is_decided || (error == "" && type_of[class] ~ /^[234]$/))
        continue
      is_decided[pair_of[i]] = 1
      is_right = error != "" || table_of[class] == 254
    }
    else if (error != "")
      is_right = !(i in is_far)
    else
      is_right = table_of[class] == probe_table[i] || table_of[class] == 255 || \
        (i in is_far && table_of[class] == 254 && to != ANYWHERE)
    if (is_right)
      continue
    why = i in pair_of ? "the rule to " pair_to[pair_of[i]] " priority " pair_priority[pair_of[i]] " has no effect" : \
      "can\047t keep " probe_from[i] " on " probe_dev[i]
    why = why ": packets to " probe_to[i] (i in pair_of ? "" : " from " probe_from[i]) \
      (error == "" ? " go by " answer[given] : " go nowhere (" error ")")
    sub(/ +$/, "", why)
    return why decider(i, error == "" ? table_of[class] : "none")
  }
  return ""
}

# Returns a rule in words that ip reads. It can't read all that it prints.
function as_read(text) {
  gsub(/ \[detached\]/, "", text)
  sub(/ lookup \[l3mdev-table\]/, " l3mdev", text)
  sub(/ ipproto ipproto-/, " ipproto ", text)
  sub(/ 6$/, " blackhole", text)
  sub(/ 7$/, " unreachable", text)
  sub(/ 8$/, " prohibit", text)
  return text
}

# Returns words that name the first rule that may have made the kernel look up a table, or discard packets.
function decider(i, table,    k, source, is_met, ours, target) {
  ours = i in pair_of ? pair_priority[pair_of[i]] : i in is_far ? 2171 : 2170
  source = probe_from[i] == "" ? "x" ZEROS : number(probe_from[i])
  for (k = 1; k <= seen; k++) {
    target = seen_text[k]
    target = sub(/^.* goto /, "", target) ? target + 0 : 0
    if ((!target && seen_table[k] != table) || seen_text[k] ~ / nop$/)
      continue
    is_met = is_inside(source, seen_from[k]) && is_inside(number(probe_to[i]), seen_to[k])
    if (target && seen_matches[k, is_met] && seen_text[k] + 0 < ours && ours < target)
      return ", because the rule " seen_text[k] " jumps over ours"
    if (!target && seen_matches[k, is_met])
      return ", because of the rule " seen_text[k]
  }
  return ""
}

function is_inside(n, prefix) {
  read_prefix(prefix == "all" ? ANYWHERE : prefix)
  return first <= n && n <= last
}
