#!/bin/bash -p
{
# Loads the rules that rewrite the IPv6 health probes of Azure's load balancer, so that pods can answer them, and pins
# the route that the answers take. Rendered by hostrouting: edits are lost.
#
#   load-balancer-probe.sh         the oneshot at boot: waits for the device as long as it says below
#   load-balancer-probe.sh gate    before the machine starts: waits 5 s at most; where the rules are required it looks
#                                  again for 3 s before it fails
#   load-balancer-probe.sh rules   after somebody has flushed the ruleset: the rules alone, and no wait
#
# Rules that are in force as they should be stay as they are, and keep their counters. It needs nft besides.

@COMMON@

readonly REQUIRED=@REQUIRED@
readonly WAIT_SECONDS=@WAIT_SECONDS@
readonly DEVICE=@DEVICE@
readonly RULES=/etc/aks-flex-node/load-balancer-probe.nft
readonly TABLE=azure_slb_probe
readonly PROBE_SOURCE=fe80::1234:5678:9abc
readonly REWRITTEN_SOURCE=2603:1062:0:1:fe80:1234:5678:9abc
readonly PROTOCOL=217
# The lowest that IPv6 knows: no other route to this one address is better.
readonly METRIC=1
# Loading rules is one transaction, so somebody's flush is made good with or without the lock.
readonly RULES_LOCK_SECONDS=2
# nft and ip answer in milliseconds.
readonly ANSWER_SECONDS=5

attempt() {
  if [ "$MODE" = rules ]; then
    take_lock || complain "$MESSAGE; going on without it"
    load_rules
  else
    take_lock || return
    give_way
    load_rules && find_device && pin_route
  fi
}

# Sees that the rules are in force, none of others among them. A reload for nothing would set their counters to zero.
load_rules() {
  local wanted
  command -v nft >/dev/null || fail "there is no nft in $PATH; install the package nftables" || return
  # How this nft lists the rules is tried in a network namespace that nobody sees.
  # shellcheck disable=SC2016 # expanded by the other bash
  try unshare --net -- bash -c 'nft -f "$1" && exec nft -s list table ip6 "$2"' bash "$RULES" "$TABLE" ||
    fail "can't try out $RULES: $ANSWER; to write it anew: hostrouting lb-probe apply" || return
  wanted=$ANSWER
  # A file that is cut off at the right place is good nft.
  [[ $wanted == *'comment "answer out"'* ]] ||
    fail "$RULES isn't whole; to write it anew: hostrouting lb-probe apply" || return
  ! is_in_force || return 0
  try nft -f "$RULES" || fail "nft doesn't load $RULES: $ANSWER" || return
  CHANGES+=("loaded    table ip6 $TABLE")
  is_in_force ||
    fail "table ip6 $TABLE isn't what was loaded: something else changes it; look at: nft list table ip6 $TABLE"
}

is_in_force() { try nft -s list table ip6 "$TABLE" && [ "$ANSWER" = "$wanted" ]; }

# Whether the device can carry the route; if that may still come, says what is missing.
find_device() {
  if ! try ip -o -d link show dev "$DEVICE"; then
    [[ $ANSWER == *'does not exist'* ]] || fail "ip doesn't list $DEVICE: $ANSWER" || return
    MISSING="device $DEVICE (there is no such device)"
    return "$MAY_COME"
  fi
  # The alias comes last, and may say anything.
  ANSWER=${ANSWER%%'\    alias '*}
  if [[ $ANSWER =~ \ master\ ([^ ]+) && $ANSWER != *' vrf_slave '* ]]; then
    fail "$DEVICE is a port of ${BASH_REMATCH[1]}, so routes go by the master: name that one in loadBalancerProbe.devices"
    return
  fi
  [[ $ANSWER != *[\<,]UP[,\>]* ]] || return 0
  MISSING="device $DEVICE (it is down)"
  return "$MAY_COME"
}

# Has answers go back where probes come from, also where there is no default route, or it leads elsewhere.
pin_route() {
  local verb=add
  local -a way=(via "$PROBE_SOURCE" dev "$DEVICE")
  ! is_pinned || return 0
  # Ours by another way gives its place. "add" takes nobody else's; then the way is another than wanted still.
  [[ $ANSWER != "$REWRITTEN_SOURCE "*" proto $PROTOCOL "* ]] || verb=replace
  try ip -6 route "$verb" "$REWRITTEN_SOURCE" "${way[@]}" proto "$PROTOCOL" metric "$METRIC" table main ||
    [[ $ANSWER == *'File exists'* ]] || fail "can't pin the route $REWRITTEN_SOURCE ${way[*]}: $ANSWER" || return
  is_pinned ||
    fail "answers don't go ${way[*]}: somebody else's route or rule comes first: $ANSWER; look at: ip -6 rule; ip -6 route show table all $REWRITTEN_SOURCE" ||
    return
  CHANGES+=("pinned    $REWRITTEN_SOURCE ${way[*]}")
}

# A default route by the same router has another prefix, and goes when the router does.
is_pinned() {
  try ip -6 -N -o route get fibmatch "$REWRITTEN_SOURCE" &&
    [[ "$ANSWER " == "$REWRITTEN_SOURCE "*"${way[*]} "*"metric $METRIC "* ]]
}

# try COMMAND...: sets ANSWER to what it says, of an error the first line. One that hangs is ended; the lock isn't its.
try() {
  local status
  # SIGKILL, to all that it has started: whatever is left of it would hold this pipe open.
  ANSWER=$(exec timeout -s KILL "$ANSWER_SECONDS" "$@" 2>&1 9>&-)
  status=$?
  [ "$status" -eq 0 ] || ANSWER=${ANSWER%%$'\n'*}
  [ "$status" -ne 137 ] || ANSWER="$1 gave no answer in $ANSWER_SECONDS s"
  return "$status"
}

# fail WORDS: why the probes aren't rewritten.
fail() {
  MESSAGE="can't rewrite the load balancer's probes: $1"
  return 1
}

CHANGES=() MODE=${1-} LIMIT=$WAIT_SECONDS
case $#:$MODE in
  0: | 1:gate) ;;
  1:rules) is_on_host || { say "$WHY: nothing was changed" && exit 0; } ;;
  *) explain_usage '[gate | rules]' ;;
esac
[ -d /proc/sys/net/ipv6 ] || { say 'this kernel has no IPv6: there are no probes to rewrite' && exit 0; }
case $MODE:$REQUIRED in
  gate:no) be_the_gate && HOLD=0 ;;
  gate:yes) be_the_gate ;;
  rules:*) LOCK_LIMIT=$RULES_LOCK_SECONDS ;;
esac
keep_trying
case $? in
  0) say "${CHANGES[@]:-nothing to change}" && exit 0 ;;
  "$MAY_COME") fail "waited $LIMIT s in vain for $MISSING; bring it up, or name another in loadBalancerProbe.devices" ;;
esac
complain "$MESSAGE"
exit 1
}
