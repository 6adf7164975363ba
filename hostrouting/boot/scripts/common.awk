# --- shared by the awk programs --------------------------------------------------------------------------------------
# Each program is called with family=4 or family=6. An address is written as "x" and its hexadecimal digits, because
# awk's numbers have only 53 bits. Such words sort like the numbers.

BEGIN {
  # Without this, mawk would print 3232235521 as 3.23224e+09.
  CONVFMT = OFMT = "%.0f"
  DIGITS = "0123456789abcdef"
  for (i = 0; i < 256; i++) {
    hex_of[i] = sprintf("%02x", i)
    octet_of[hex_of[i]] = i
    if (i < 16)
      value_of[substr(DIGITS, i + 1, 1)] = i
  }
  THEN = "then: hostrouting apply"
  UNWRITABLE = "can\047t write a scratch file: is there room left in /run?"
  BITS = family == 6 ? 128 : 32
  ANYWHERE = family == 6 ? "::/0" : "0.0.0.0/0"
  ZEROS = ONES = sprintf("%0" BITS / 4 "d", 0)
  gsub(/0/, "f", ONES)
  count = split("unicast local broadcast anycast multicast blackhole unreachable prohibit throw", type_name, " ")
  for (i = 1; i <= count; i++)
    type_number[type_name[i]] = type_number[i ""] = i
}

# "==NAME" starts a section of the input; the config comes first.
/^==/ { section = substr($1, 3) }
/^(==|$)/ { next }

# uplinks PATTERN WORDS: the interfaces through which the cluster may be reached, if the config names them.
section == "config" && $1 == "uplinks" {
  uplink_pattern = $2
  uplink_words = $3
  next
}

# Takes the verified uplinks, unless the config names others.
function take_verified(    name, i) {
  is_configured = uplink_pattern != ""
  if (is_configured)
    return
  uplink_words = uplink_pattern = ENVIRON["VERIFIED"]
  gsub(/[.]/, "[.]", uplink_pattern)
  gsub(/,/, "|", uplink_pattern)
  gone = ENVIRON["GONE"]
  for (i = split(gone, name, ","); i > 0; i--)
    is_nic_gone = is_nic_gone || !is_of_vpn(name[i])
  if (ENVIRON["AWAITED"] != "")
    awaited_uplink = "interface " ENVIRON["AWAITED"] ", with which the check passed"
}

function is_of_vpn(names) {
  return names ~ /(^|\/)(wg|tun|tap|tailscale|zt|nebula)/
}

# Returns why a name in the config isn't that of the interface with which the check has passed, or "". By now, that is
# present[1..presents], and another interface has its former name. places_of() names other places than "uplinks".
function find_swap(    line, i, k, word, is_named, places) {
  for (i = split(ENVIRON["RENAMED"], line, "\n"); i > 0; i--) {
    presents = split(line[i], word, " ") - 2
    is_named = presents > 0 && is_configured && is_uplink(word[1])
    for (k = 1; k <= presents; k++) {
      present[k] = word[k + 2]
      is_named = is_named && !is_uplink(present[k])
    }
    if (is_named && word[2] == "port")
      return "no-uplink: " word[1] " is a port of " word[3] ": name " word[3] " in hostRouting.uplinks; " THEN
    places = presents < 1 || word[2] == "port" ? "" : places_of(word[1], is_named)
    if (is_named || places != "")
      return "swapped: " word[1] ", with which the check passed, is " word[3] " now: " \
        (is_named ? "in hostRouting.uplinks name " word[3] "; " : "") places \
        (is_configured ? "" : setting(word[3]) ", or this alone if the names are right; ") THEN
  }
}

function setting(name) {
  return "set hostRouting\047s \"uplinks\": [\"" (name ~ /^$|\// ? "NAME" : name) "\"]"
}

# Returns what a pattern means: "other" if it contains a present name of the interface, but not its former one, "uplink"
# if it contains only the former one, or else "".
function meaning(pattern, was,    k) {
  for (k = presents; k > 0 && present[k] !~ ("^(" pattern ")$"); k--)
    ;
  if (was ~ ("^(" pattern ")$"))
    return k > 0 ? "" : "uplink"
  return k > 0 ? "other" : ""
}

# Makes ip run commands from a file. Sets answer[1..answers], and complaint to the first line on stderr. Sets
# failed[N] to the error of command N. Sets has_run to 0 if the file couldn't hold all commands.
function run(commands, count, options,    i, file, line, last_line) {
  file = ENVIRON["SCRATCH"]
  printf "" >file # may hold the other family's commands
  for (i = 1; i <= count; i++)
    print commands[i] >file
  close(file)
  split("", failed)
  answers = 0
  # Some versions of awk ignore a full disk, so read the file back.
  for (i = 1; (getline line <file) > 0 && line == commands[i]; i++)
    ;
  close(file)
  has_run = i > count
  if (!has_run) {
    complaint = UNWRITABLE
    return
  }
  system("exec ip -" family " -N -o " options " -batch - <\"$SCRATCH\" >\"$ANSWERS\" 2>\"$ERRORS\"")
  file = ENVIRON["ANSWERS"]
  while ((getline line <file) > 0)
    answer[++answers] = line
  close(file)
  complaint = ""
  file = ENVIRON["ERRORS"]
  for (; (getline line <file) > 0; last_line = line) {
    sub(/^(RTNETLINK answers|Error): /, "", line)
    if (line ~ /^Command failed /)
      failed[substr(line, index(line, ":") + 1)] = last_line
    if (complaint == "")
      complaint = line
  }
  close(file)
}

function number(address,    half, left, right) {
  split(address, half, "::")
  left = digits_of(half[1])
  right = digits_of(half[2])
  return "x" left substr(ZEROS, length(left right) + 1) right
}

# Returns the hexadecimal digits of an address's groups. The last group, or the only one, may be an IPv4 address.
function digits_of(groups,    group, octet, count, i, digits) {
  count = split(groups, group, ":")
  for (i = 1; i <= count; i++)
    if (split(group[i], octet, ".") == 4)
      digits = digits hex_of[octet[1]] hex_of[octet[2]] hex_of[octet[3]] hex_of[octet[4]]
    else
      digits = digits substr("0000" group[i], length(group[i]) + 1)
  return digits
}

# Formats an address like Python, which follows RFC 5952 for IPv6.
function dotted(digits,    i, group, text, zeros) {
  if (family == 4)
    return octet_of[substr(digits, 2, 2)] "." octet_of[substr(digits, 4, 2)] "." \
      octet_of[substr(digits, 6, 2)] "." octet_of[substr(digits, 8)]
  for (i = 2; i < 33; i += 4) {
    group = substr(digits, i, 4)
    sub(/^0+/, "", group)
    text = text ":" (group == "" ? 0 : group)
  }
  for (zeros = ":0:0:0:0:0:0:0:0"; length(zeros) > 2; zeros = substr(zeros, 3))
    if ((i = index(text ":", zeros ":")) > 0)
      return substr(text, 2, i - 2) "::" substr(text, i + length(zeros) + 1)
  return substr(text, 2)
}

# Sets first, last and bits of a prefix. ip prints a rule's host bits, but the kernel ignores them.
function read_prefix(prefix,    slash, digits) {
  if (prefix == "default")
    prefix = ANYWHERE
  slash = index(prefix "/", "/")
  bits = slash > length(prefix) ? BITS : substr(prefix, slash + 1) + 0
  digits = number(substr(prefix, 1, slash - 1))
  first = end_of(digits, bits, ZEROS)
  last = end_of(digits, bits, ONES)
}

# Returns the first or last address with the same leading bits.
function end_of(digits, same, filling,    whole, digit, step) {
  whole = int(same / 4) + 1
  if (same % 4 == 0)
    return substr(digits, 1, whole) substr(filling, whole)
  digit = value_of[substr(digits, whole + 1, 1)]
  step = same % 4 == 1 ? 8 : same % 4 == 2 ? 4 : 2
  digit -= digit % step
  return substr(digits, 1, whole) substr(DIGITS, digit + (filling == ZEROS ? 1 : step), 1) substr(filling, whole + 1)
}

# Returns the next address, or "y", which sorts after all addresses.
function after(digits,    i) {
  i = match(digits, /f*$/) - 1
  return i == 1 ? "y" : substr(digits, 1, i - 1) substr(DIGITS, value_of[substr(digits, i, 1)] + 2, 1) substr(ZEROS, i)
}
