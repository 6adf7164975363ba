# --- shared by the boot scripts that ask the kernel ----------------------------------------------------------------
# shellcheck shell=bash disable=SC2034,SC2329,SC2006 # each uses some of it; for backquotes, see static-routes.sh

# The uplinks with which the check has passed, a line "NAME MAC" each.
readonly RECORD=/etc/hostrouting/uplink
readonly RECORD_LINES=64
readonly ANOTHER="if another uplink is wanted now: set hostRouting's \"uplinks\": [\"NAME\"], then: hostrouting apply"
readonly NAME='([A-Za-z0-9_.-]{1,15})'
# Files with the commands that awk passes to ip, with ip's output and errors, with the errors of a listing, and with the
# changes that a listener records. make_files() opens them. A pipe for ip's output would wake awk for each line.
export SCRATCH='' ANSWERS='' ERRORS='' LISTING_ERRORS='' HEARD=''

# How long the gate waits. This is short, because the oneshot has already waited for long.
readonly GATE_SECONDS=5
# How often a list or a check is repeated. If routes change all the time, two of three dumps are interrupted, and 32 in
# a row twice in a million.
readonly ATTEMPTS=32
# attempt() returns this if MISSING may still appear.
readonly MAY_COME=75

ask_kernel() {
  [ $# -eq 1 ] || exec > >("$2")
  exec ip "-$FAMILY" -N -o -batch - <<<"$1" 2>"$LISTING_ERRORS"
}

# list COMMANDS [READER]: sets LISTED to the output of ip, one object per line. ip prints numbers instead of names,
# because an rt_protos file may give 217 any name. If there is a READER, it reads this output, and LISTED is what READER
# prints: bash itself takes seconds for a million lines. If list fails, it sets MESSAGE, and LISTED must not be used.
list() {
  local left status error=''
  for ((left = ATTEMPTS; left; left--)); do
    LISTED=`ask_kernel "$@"`
    status=$?
    read -r -d '' error <"$LISTING_ERRORS"
    [[ $error != *'Dump was interrupted'* ]] || continue
    error=${error%%$'\n'*}
    MESSAGE="can't list the routes: ${error:-ip was ended}"
    return "$status"
  done
  MESSAGE="can't list the routes: they changed while they were read, $ATTEMPTS times over; try again later"
  return 1
}

# list_family COMMANDS [READER]: does the same for a family. The IPv4 default routes, if any, determine IPv6's uplinks.
list_family() {
  [ "$FAMILY" = 4 ] || { FAMILY=4 list 'route show table main default' && export IPV4_DEFAULTS=$LISTED; } || return
  list "$@"
}

# Prints each link's name, MAC address, kind and master, or "/" for one that it lacks. Reads what ip -d prints, where an
# interface's alias may contain line breaks. A name may contain what separates parts.
read_links() {
  exec awk '/^[0-9]+: [A-Za-z0-9_.-]+(@[^ ]*)?: </ {
    sub(/@[^ ]*: </, ": <")
    split($0, part, /\\/)
    split(part[1], word, /:? +/)
    master = match(part[1], / master [^ ]+/) ? substr(part[1], RSTART + 8, RLENGTH - 8) : "/"
    mac = kind = "/"
    if (split(part[2], found, " ") > 1 && found[1] ~ /^link\/(\[1]|\[32]|ether|infiniband)$/)
      mac = found[2]
    if (split(part[3], found, " "))
      kind = found[1]
    if (length(word[2]) < 16)
      print word[2], mac, kind, master
  }'
}

# Sets IS_STRICT if the installed check is STRICT, and VERIFIED to the names that the recorded uplinks have by now. If
# none is there, sets GONE to the recorded names, and AWAITED to those that may still appear. All stay empty if the
# config names the uplinks. Sets RENAMED to each recorded name, "port" if that link is a port of another one or else
# "-", and the links that it is by now. Or fails and sets MESSAGE. model/verified_uplinks.py has the same rules.
read_verified() {
  local text='' line i name mac same how master kind depth names=() lines=()
  local -A macs=() kinds=() masters=() tops=()
  export VERIFIED='' GONE='' AWAITED='' RENAMED='' IS_STRICT=''
  { text=`<"$CHECK"`; } 2>/dev/null
  [[ $text != *$'\nreadonly MODE=STRICT\n'* ]] || IS_STRICT=yes
  is_present "$RECORD" && [[ ! -f $RECORD || -s $RECORD ]] || return 0
  is_present "$CHECK" || return 0
  FAMILY=d list 'link show' read_links || return # ip -d, for the kinds
  while read -r name mac kind master; do
    MESSAGE="can't list the links: ip shows $name twice, or an interface's alias looks like it; to see it: ip link"
    [ -z "${macs[$name]-}" ] || return
    names+=("$name") macs[$name]=$mac kinds[$name]=$kind masters[$name]=$master
  done <<<"$LISTED"
  # What takes a link's place: itself, or the topmost bridge or bond, or nothing if it is a port of anything else.
  for name in "${names[@]}"; do
    i=$name
    for ((depth = 0; depth < 9; depth++)); do # the kernel's limit is 8
      master=${masters[$i]} kind=${kinds[$master]-}
      [[ $kind =~ ^(bond|bridge|team)$ ]] || break
      i=$master
    done
    [[ $master != / && $kind != vrf ]] || tops[$name]=$i
  done
  MESSAGE="can't read $RECORD: it has no line NAME MAC; to record the default's interface: rm -r $RECORD && $AGAIN"
  [ -f "$RECORD" ] && mapfile -t -n "$RECORD_LINES" lines <"$RECORD" || return
  for line in "${lines[@]}"; do
    line=${line#$'\xef\xbb\xbf'}
    [[ ${line%$'\r'} =~ ^$NAME(\ ([0-9A-Fa-f:]+))?$ ]] || continue
    name=${BASH_REMATCH[1]} mac=${BASH_REMATCH[3],,} mac=${mac:-none} same='' how=-
    GONE+=${GONE:+,}$name
    for i in "${names[@]}"; do
      [[ ${macs[$i]} != "$mac" || ( ${kinds[$i]} =~ ^(macsec|vlan|(ip|mac)v(lan|tap))$ && $i != "$name" ) ]] ||
        same+=\ ${tops[$i]-}
    done
    # By its name if nothing has the address, or if a bond with ports has the name.
    [[ -z ${same// } || "$same " == *" ${tops[$name]:-/} "* ||
      ( ${kinds[$name]-} =~ ^(bond|team)$ && " ${masters[*]} " == *" $name "* ) ]] && same=${tops[$name]-}
    for i in $same; do
      [[ ,$VERIFIED, == *",$i,"* ]] || VERIFIED+=${VERIFIED:+,}$i
      [[ $i = "$name" || $i != "${tops[$name]-}" ]] || how=port
    done
    RENAMED+=${same:+$name $how $same$'\n'}
    [[ " ${names[*]} " == *" $name "* || " ${macs[*]} " == *" $mac "* ]] || AWAITED+=${AWAITED:+,}$name
  done
  [ -n "$GONE" ] || return
  [ -z "$VERIFIED$IS_NAMED" ] || GONE='' AWAITED=''
  [ -z "$IS_NAMED" ] || VERIFIED=''
}

# Prints since when there is the record.
since() { date -u -r "$RECORD" +'the uplink since %FT%TZ; ' 2>/dev/null; }

# Opens this run's own files, and removes their names: no other run can share them, and a killed run leaves none. If a
# file can't be opened, sets MESSAGE, because the errors of awk and ip wouldn't help an operator.
make_files() {
  local name path paths=() fd status=0
  [ -z "$SCRATCH" ] || return 0
  MESSAGE="can't write to $RUN_DIR: $UNWRITABLE"
  set -o noclobber # another run's file isn't opened
  for name in SCRATCH ANSWERS ERRORS LISTING_ERRORS HEARD; do
    path=$RUN_DIR/${0##*/}.$$.$RANDOM.$name
    paths+=("$path")
    { exec {fd}>"$path"; } 2>/dev/null || { status=1 && break; }
    printf -v "$name" '/proc/self/fd/%d' "$fd"
  done
  set +o noclobber
  rm -f "${paths[@]}"
  [ "$status" -eq 0 ] || SCRATCH=''
  return "$status"
}

# Kills a child, unless it has ended: another process may have its PID by now. It doesn't use read, which may get the
# rest of what another read has buffered, if a signal has interrupted that one.
end_child() {
  local state
  { state=`<"/proc/${1:-none}/stat"`; } 2>/dev/null
  [[ $state != *") "?" $$ "* ]] || kill -9 "$1" 2>/dev/null
}

# Returns at the next change of links, addresses or routes, or after a second, because the kernel doesn't report all
# changes.
wait_for_change() {
  local limit=1
  if [ -z "$HAS_MONITOR" ]; then
    # Without this, ip would go on in the consumer's control group. bash forgets the PID of a process that has ended.
    trap 'end_child "${NEWS_PID-}"' EXIT
    coproc NEWS { exec ip "${MONITORED[@]}" -o monitor link address route 2>/dev/null 9>&-; }
    HAS_MONITOR=yes
    exec 8<&"${NEWS[0]:-0}" # unset once ip has ended
    # ip doesn't report when it begins to listen. So return soon, and the next attempt sees what changed before.
    limit=0.05
  fi
  read -r -t "$limit" -u 8 _
  case $? in
    0) read -r -d '' -t 0.02 -u 8 _ ;; # treat a burst as one change, but don't wait for the end of a flood
    1) sleep 1 ;; # the monitor is gone
  esac
}

# Runs attempt() until it succeeds or fails. Gives up if MISSING hasn't appeared after LIMIT seconds, or if the gate is
# switched off, because a start may be waiting for this run. Releases the lock while it waits. The last attempt keeps
# the lock until the end of the run.
keep_trying() {
  local status reported=''
  read_clock
  START=${START:-$NOW}
  while :; do
    attempt
    status=$?
    read_clock
    [ "$status" -eq "$MAY_COME" ] && [ "$NOW" -lt $((START + LIMIT * 100)) ] && ! is_gate_off || return "$status"
    [ "$MISSING" = "$reported" ] || say "waiting up to $LIMIT s for $MISSING"
    reported=$MISSING
    exec 9>&-
    wait_for_change
  done
}

# If this script was replaced while it waited for the lock, runs its replacement. bash keeps its script open as 255.
run_replacement() {
  [ -e /dev/fd/255 ] && [ ! "$0" -ef /dev/fd/255 ] || return 0
  kill "${NEWS_PID-}" 2>/dev/null
  [ -e "$0" ] || { complain "$0 isn't installed any more"; exit 1; }
  say "another $0 has been installed; it takes over"
  exec "$0" "${ARGUMENTS[@]}"
}

# Parses the arguments. In the gate, timeouts are short, because the gate retries failures.
read_arguments() {
  [[ $* =~ ^(gate( told)?)?$ ]] || { complain "usage: ${0##*/} [gate [told]]"; exit 64; }
  IS_GATE=${1-} IS_TOLD=${2-}
  [ -z "$IS_GATE" ] || LOCK_LIMIT=$GATE_SECONDS LIMIT=$((LIMIT < GATE_SECONDS ? LIMIT : GATE_SECONDS))
  [ "${FAMILIES-4}" = 4 ] || MONITORED=()
}

unset NEWS NEWS_PID IP_LIB_DIR # of the environment
FAMILY=4 MONITORED=(-4) ARGUMENTS=("$@") HAS_MONITOR='' MISSING='' START='' LIMIT=0 IS_NAMED=''
