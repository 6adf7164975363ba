#!/bin/bash
{
# Has the IPv6 health probes of Azure's load balancer rewritten, so that pods can answer them, and pins the route that
# the answers take. Rendered by hostrouting: edits are lost.
#
#   load-balancer-probe.sh         the oneshot at boot: waits for a device as long as it says below
#   load-balancer-probe.sh gate    before the machine starts: waits 5 s at most; where the rules are required it looks
#                                  again for 3 s before it fails
#   load-balancer-probe.sh rules   after somebody has flushed the ruleset: the rules alone, and no wait
#
# Needs bash, coreutils, flock, unshare, nft and iproute2. Rules that are in force as they should be stay as they are,
# and keep their counters. Everything stands in one group, since bash runs none of a group that is cut off.

set -u
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
# bash may put here-documents into files; /run is writable long before /tmp is.
export TMPDIR=/run
umask 022

readonly REQUIRED=@REQUIRED@
readonly WAIT_SECONDS=@WAIT_SECONDS@
readonly RUN_DIR=/run/aks-flex-node
readonly LOCK=$RUN_DIR/lock
readonly GATE_OFF=/etc/aks-flex-node/gate.off
readonly RULES=/etc/aks-flex-node/load-balancer-probe.nft
readonly TABLE=azure_slb_probe
readonly PROBE_SOURCE=fe80::1234:5678:9abc
readonly REWRITTEN_SOURCE=2603:1062:0:1:fe80:1234:5678:9abc
readonly PROTOCOL=217
# The lowest that IPv6 knows: no other route to this one address is better.
readonly METRIC=1

# At the gate the long wait is over: it was the oneshot's.
readonly GATE_SECONDS=5
# systemd gives up for good after 5 starts in 10 s: a gate that holds this long is tried for ever.
readonly HOLD_SECONDS=3
# As long as a task waits for it.
readonly LOCK_SECONDS=60
# Loading rules is one transaction, so somebody's flush is made good with or without the lock.
readonly RULES_LOCK_SECONDS=2
# nft and ip answer in milliseconds.
readonly ANSWER_SECONDS=5
# Where the rules aren't required the gate opens after 20 s, come what may.
readonly OPTIONAL_SECONDS=18
# A device that comes or gets an address is seen in a tenth of a second; all else not later than this.
readonly LOOK_SECONDS=1

# No device has so long a name, so none ends the list.
mapfile -t DEVICES <<'END_OF_THE_DEVICES'
@DEVICES@
END_OF_THE_DEVICES
readonly DEVICES

# --- what there is to say ------------------------------------------------------------------------------------------

say() { printf '%s\n' "$@"; }
complain() { printf '%s\n' "$@" >&2; }

# Sets NOW, in hundredths of a second. /proc/uptime, as the clock may be set while this waits.
look_at_time() {
  local up
  read -r up _ </proc/uptime
  NOW=$((10#${up/./}))
}

# ask COMMAND...: sets ANSWER, what it says, and returns its exit code. One that hangs is ended; the lock isn't its.
ask() {
  local status
  # SIGKILL, to all that it has started: whatever is left of it would hold this pipe open.
  ANSWER=$(exec timeout -s KILL "$ANSWER_SECONDS" "$@" 2>&1 9>&-)
  status=$?
  case $status in
    124 | 137) ANSWER="$1 gave no answer in $ANSWER_SECONDS s" ;;
  esac
  return "$status"
}

# fail WORDS: why the probes aren't rewritten.
fail() {
  MESSAGE="can't rewrite the load balancer's probes: $1"
  return 1
}

# The first line says it: those below it show where in the text.
first_line() { printf '%s' "${1%%$'\n'*}"; }

# --- the rules -----------------------------------------------------------------------------------------------------

# Sees that the rules are in force. Sets CHANGES.
load_rules() {
  local wanted=''
  command -v nft >/dev/null || fail "there is no nft in $PATH; install the package nftables" || return
  [ -r "$RULES" ] || fail "$RULES can't be read; to write it: hostrouting lb-probe apply" || return
  foresee || return
  # Neither rules of others among ours nor a reload that would be for nothing, which sets the counters to zero.
  if ask nft -s list table ip6 "$TABLE" && [ -n "$wanted" ] && [ "$ANSWER" = "$wanted" ]; then
    return
  fi
  ask nft -f "$RULES" || fail "nft doesn't load $RULES: $(first_line "$ANSWER")" || return
  ask nft -s list table ip6 "$TABLE" || fail "what was loaded isn't there: $(first_line "$ANSWER")" || return
  if [ -n "$wanted" ] && [ "$ANSWER" != "$wanted" ]; then
    fail "table ip6 $TABLE isn't what was loaded: something else changes it; look at: nft list table ip6 $TABLE"
    return
  fi
  is_whole "$ANSWER" || return
  CHANGES+=("loaded    table ip6 $TABLE")
}

# Sets wanted: how this nft lists the rules, tried in a network namespace that nobody sees. Empty where none can be made.
foresee() {
  # shellcheck disable=SC2016 # expanded by the other bash
  if ask unshare --net -- bash -c 'echo tried; nft -f "$1" && exec nft -s list table ip6 "$2"' bash "$RULES" "$TABLE"; then
    wanted=${ANSWER#tried$'\n'}
    is_whole "$wanted"
  elif [[ $ANSWER == tried* ]]; then
    fail "nft doesn't understand $RULES: $(first_line "${ANSWER#tried$'\n'}"); to write it anew: hostrouting lb-probe apply"
  elif [[ $ANSWER == *' gave no answer in '* ]]; then
    fail "$ANSWER"
  fi
}

# A file that is cut off at the right place is good nft.
is_whole() {
  [[ $1 == *'comment "answer out"'* ]] ||
    fail "$RULES isn't whole; to write it anew: hostrouting lb-probe apply"
}

# --- the route -----------------------------------------------------------------------------------------------------

# Sets DEV, the first device that can carry the route, or returns 1 with MISSING or MESSAGE.
find_device() {
  local dev link master ports='' reason=''
  for dev in "${DEVICES[@]}"; do
    if ! ask ip -o -d link show dev "$dev"; then
      [[ $ANSWER == *'does not exist'* ]] || fail "ip doesn't list $dev: $(first_line "$ANSWER")" || return
      reason+="${reason:+ or }device $dev (there is no such device)"
      continue
    fi
    # The alias comes last, and may say anything.
    link=${ANSWER%%'\    alias '*}
    if [[ $link =~ \ master\ ([^ ]+) ]] && [[ $link != *' vrf_slave '* ]]; then
      master=${BASH_REMATCH[1]}
      ports+="${ports:+, }$dev is a port of $master"
      continue
    fi
    if ! [[ $link =~ \<([^>]*,)?UP[,\>] ]]; then
      reason="device $dev (it is down)"
      break
    fi
    DEV=$dev
    return
  done
  [ -z "$reason" ] || MISSING=$reason${ports:+; $ports}
  [ -n "$reason" ] || fail "$ports, so routes go by the master: name that one in loadBalancerProbe.devices"
  return 1
}

# Whether the device speaks IPv6 at all.
has_ipv6() {
  local off=''
  # Gone, or of an MTU below 1280.
  { read -r off <"/proc/sys/net/ipv6/conf/$DEV/disable_ipv6"; } 2>/dev/null
  case $off in
    0) ;;
    '') fail "$DEV has no IPv6; is its MTU below 1280? look at: ip link show dev $DEV" ;;
    *)
      fail "IPv6 is disabled on $DEV, so no probe comes in by it; sysctl net/ipv6/conf/$DEV/disable_ipv6=0, or name another in loadBalancerProbe.devices"
      ;;
  esac
}

# take_apart LINE: a route as ip -N -o prints it. Sets WAY, PROTO and RANK; a WAY that is no single hop is no way, and
# that of a nexthop object isn't shown where the sysctl net.ipv4.nexthop_compat_mode is 0.
take_apart() {
  local -a word
  local i via='' dev=''
  read -ra word <<<"$1"
  WAY='' PROTO='' RANK=''
  for ((i = 1; i < ${#word[@]}; i++)); do
    case ${word[i]} in
      via) via=${word[i += 1]} ;;
      dev) dev=${word[i += 1]} ;;
      proto) PROTO=${word[i += 1]} ;;
      metric) RANK=${word[i += 1]} ;;
      nexthop) return ;;
    esac
  done
  # Behind the type of a blackhole and its like comes the destination.
  [ "${word[0]}" != "$REWRITTEN_SOURCE" ] || WAY="${dev:+${via:+via $via }dev }${dev:-hidden}"
}

# Has answers go back where probes come from, also where there is no default route, or it leads elsewhere.
pin_route() {
  local line pin="via $PROBE_SOURCE dev $DEV" is_there='' verb=add
  local -a stale=()
  ask ip -6 -N -o route show table main "$REWRITTEN_SOURCE" || fail "ip doesn't list routes: $(first_line "$ANSWER")" || return
  while read -r line; do
    take_apart "$line"
    if [ "$RANK" = "$METRIC" ] && [[ $WAY == "$pin" || $WAY == hidden ]]; then
      is_there=yes # as far as the proof below finds it so
    elif [ "$PROTO" = "$PROTOCOL" ] && [ -n "$WAY" ]; then
      stale+=("$WAY proto $PROTOCOL metric $RANK")
      [ "$RANK" != "$METRIC" ] || verb=replace
    elif [ "$RANK" = "$METRIC" ]; then
      fail "somebody else's route is in the way of $REWRITTEN_SOURCE $pin: $line; have its owner remove it"
      return
    fi
  done < <([ -z "$ANSWER" ] || say "$ANSWER")
  if [ -z "$is_there" ]; then
    # "add" finds a route of this metric in its place, whoever's; of ours the better way takes the place at once.
    # shellcheck disable=SC2086 # several words
    ask ip -6 route "$verb" "$REWRITTEN_SOURCE" $pin proto "$PROTOCOL" metric "$METRIC" table main ||
      fail "the route $REWRITTEN_SOURCE $pin isn't taken: $(first_line "$ANSWER"); look at: ip -6 route show $REWRITTEN_SOURCE" ||
      return
    CHANGES+=("pinned    $REWRITTEN_SOURCE $pin")
  fi
  remove_stale "${stale[@]}" || return
  prove_route "$pin"
}

# remove_stale ROUTE...: ours of earlier runs. One that was replaced is gone already.
remove_stale() {
  local route
  for route in "$@"; do
    # shellcheck disable=SC2086 # several words
    if ask ip -6 route del "$REWRITTEN_SOURCE" $route table main; then
      CHANGES+=("removed   $REWRITTEN_SOURCE $route")
    elif [[ $ANSWER != *'No such process'* ]]; then
      fail "the route $REWRITTEN_SOURCE $route can't be removed: $(first_line "$ANSWER")"
      return
    fi
  done
}

# prove_route WAY: a rule may lead past table main.
prove_route() {
  ask ip -6 -o route get "$REWRITTEN_SOURCE" || fail "the kernel knows no way back to the balancer: $(first_line "$ANSWER")" || return
  [[ "$ANSWER " == *" $1 "* ]] ||
    fail "the pinned route doesn't win: answers would go $(first_line "$ANSWER"); look at: ip -6 rule; ip -6 route show table all $REWRITTEN_SOURCE"
}

# --- one attempt ---------------------------------------------------------------------------------------------------

take_lock() {
  local reason status
  if ! [ -d "$RUN_DIR" ] && ! reason=$(mkdir -p "$RUN_DIR" 2>&1); then
    MESSAGE="can't open the lock $LOCK: ${reason##*: }"
    return 1
  fi
  umask 077 # whoever can open it can hold it
  { exec 9>>"$LOCK"; } 2>/dev/null
  status=$?
  umask 022
  if [ "$status" -ne 0 ]; then
    reason=$({ : >>"$LOCK"; } 2>&1)
    MESSAGE="can't open the lock $LOCK: ${reason##*: }"
    return 1
  fi
  flock -w "$LOCK_LIMIT" 9 && return
  exec 9>&-
  MESSAGE="can't take the lock $LOCK: another run has held it for $LOCK_LIMIT s; see who with: fuser -v $LOCK"
  return 1
}

# Sets OUTCOME: settled, missing, failed or locked; and MESSAGE or MISSING.
attempt() {
  OUTCOME=failed MESSAGE='' MISSING='' DEV=''
  list_devices
  SEEN=$THERE
  if ! take_lock; then
    if [ "$MODE" != rules ]; then
      OUTCOME=locked
      return
    fi
    complain "$MESSAGE; going on without it"
  fi
  if load_rules; then
    if [ "$MODE" = rules ]; then
      OUTCOME=settled
    elif ! find_device; then
      [ -z "$MISSING" ] || OUTCOME=missing
    elif has_ipv6 && pin_route; then
      OUTCOME=settled
    fi
  fi
  { exec 9>&-; } 2>/dev/null
}

# --- waiting -------------------------------------------------------------------------------------------------------

# Returns when a device has come or gone or addresses have changed since the last look, and after some time at the latest.
nap() {
  local tenths
  # Nobody ever writes into it.
  [ -n "$SILENCE" ] || exec {SILENCE}<> <(:)
  for ((tenths = LOOK_SECONDS * 10; tenths; tenths--)); do
    read -r -t 0.1 -u "$SILENCE" _
    list_devices
    [ "$THERE" = "$SEEN" ] || return
  done
}

# Sets THERE, without a process: the kernel shows this network namespace as files. One that is set up gets an address.
list_devices() {
  local dev
  local -a addresses=()
  { mapfile -t addresses </proc/net/if_inet6; } 2>/dev/null
  THERE=" ${addresses[*]} "
  for dev in "${DEVICES[@]}"; do
    ! [ -d "/proc/sys/net/ipv6/conf/$dev" ] || THERE+="$dev "
  done
}

# --- the gate ------------------------------------------------------------------------------------------------------

# Whether somebody has broken the glass; sets WHY.
is_gate_off() {
  local words
  if [ -e "$GATE_OFF" ]; then
    WHY="the file $GATE_OFF is there"
    return
  fi
  read -r words </proc/cmdline
  WHY='the kernel was started with hostrouting.gate=off'
  [[ " $words " == *' hostrouting.gate=off '* ]]
}

prepare_gate() {
  if is_gate_off; then
    complain "GATE OFF: $WHY; the start is admitted and the load balancer's probes were not looked at"
    exit 0
  fi
}

# Where the rules aren't required nothing is held back, not even where something hangs: systemd forgives a failure of
# this line, and no time-out.
run_bounded() {
  timeout -k 1 "$OPTIONAL_SECONDS" "$0" bounded
  case $? in
    0) exit 0 ;;
    124 | 137) complain "stopped rewriting the load balancer's probes: it took more than $OPTIONAL_SECONDS s" ;;
  esac
  exit 1
}

# Ends the run where the rules would be those of somebody's own network namespace.
see_host() {
  if ! [ -e /proc/1/ns/net ]; then
    complain "can't tell whether this is the host's network namespace: /proc/1/ns/net can't be read; run as root"
    exit 1
  fi
  if ! [ /proc/self/ns/net -ef /proc/1/ns/net ]; then
    say "this unit has a network namespace of its own; the load balancer's probes come to the host: nothing was changed"
    exit 0
  fi
}

# --- the run -------------------------------------------------------------------------------------------------------

ANSWER='' MESSAGE='' MISSING='' REPORTED='' DEV='' THERE='' SEEN='' SILENCE='' WHY='' CHANGES=()
MODE=${1-} LIMIT=$WAIT_SECONDS LOCK_LIMIT=$LOCK_SECONDS HOLD=0
case $#:$MODE in
  0:) ;;
  1:gate | 1:bounded)
    if [ "$MODE" = gate ]; then
      prepare_gate
      see_host
      [ "$REQUIRED" = yes ] || run_bounded
    fi
    [ "$LIMIT" -le "$GATE_SECONDS" ] || LIMIT=$GATE_SECONDS
    LOCK_LIMIT=$GATE_SECONDS
    [ "$REQUIRED" = no ] || HOLD=$HOLD_SECONDS
    [ "$LIMIT" -ge "$HOLD" ] || LIMIT=$HOLD
    ;;
  1:rules)
    see_host
    LOCK_LIMIT=$RULES_LOCK_SECONDS
    ;;
  *)
    complain "usage: ${0##*/} [gate | rules]"
    exit 64
    ;;
esac
if ! [ -d /proc/sys/net/ipv6 ]; then
  say 'this kernel has no IPv6: there are no probes to rewrite'
  exit 0
fi
look_at_time
WAIT_UNTIL=$((NOW + LIMIT * 100)) HOLD_UNTIL=''
while :; do
  attempt
  look_at_time
  case $OUTCOME in
    settled)
      [ "${#CHANGES[@]}" -gt 0 ] || CHANGES=('nothing to change')
      say "${CHANGES[@]}"
      exit 0
      ;;
    missing)
      [ "$NOW" -lt "$WAIT_UNTIL" ] || break
      [ "$MISSING" = "$REPORTED" ] || say "waiting up to $LIMIT s for $MISSING"
      REPORTED=$MISSING
      ;;
    failed)
      : "${HOLD_UNTIL:=$((NOW + HOLD * 100))}"
      [ "$NOW" -lt "$HOLD_UNTIL" ] || break
      ;;
    locked) break ;;
  esac
  nap
done
if [ "$OUTCOME" = missing ]; then
  MESSAGE="can't pin the route of the load balancer's probes: waited $LIMIT s and still missing is $MISSING; bring it up, or name another in loadBalancerProbe.devices"
fi
complain "$MESSAGE"
exit 1
}
