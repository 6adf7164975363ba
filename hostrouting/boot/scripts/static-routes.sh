#!/bin/bash -p
false # what bash returns if it can't parse the group
# shellcheck disable=SC2006 # bash 5.2 parses $(...) anew when it runs it, and loses a signal trapped meanwhile
{
# Installs the static routes, rules and kept interfaces below, all of them or none. Rendered by hostrouting: edits are
# lost. The source explains each part.
#
#   static-routes.sh         the oneshot at boot: waits for the network as configured
#   static-routes.sh gate [told]    before the consumer starts: waits for at most 5 s
#   static-routes.sh trial   called by trial.sh, which holds the lock, to end a trial of routes: doesn't wait
#
# One ip process lists the current state. awk plans the changes that make our routes and rules equal to the wanted ones,
# and runs other ip processes, which make the changes. Then awk asks the kernel whether the routes win and the rules
# decide. After a failure, ip lists the state again, and awk restores our routes and rules as they were before. The
# script prints one line about the error; `hostrouting apply` prints more.
#
# An interface to keep may get its address late. The script waits for it, too, but installs the rest without it.

@common.sh@

@network.sh@

readonly WAIT_SECONDS=@WAIT_SECONDS@
readonly SETTLE_SECONDS=@SETTLE_SECONDS@
readonly UNDO_ATTEMPTS=8
FAMILIES=@FAMILIES@
IS_NAMED=@IS_NAMED@

# Runs awk for a family, in place of the calling subshell:
#
#   think plan      prints what prevents the changes
#   think commit    makes the changes, and prints them or what failed
#   think undo      restores our routes and rules as they were before
#   think unlist    removes those of ours that aren't as listed
#
# The program and what is wanted are quoted here-documents, so nothing in them is expanded. awk ignores the signals that
# systemd sends to all processes of a unit, because finishing late is better than leaving half of the changes. ip
# inherits descriptor 5, so that the reader of the output waits for ip even if awk is killed.
think() {
  trap '' HUP INT QUIT TERM
  exec awk -v family="$FAMILY" -v task="$1" -v is_settled="$IS_SETTLED" -f /dev/fd/3 /dev/fd/4 - <<<"$LISTED" 5>&1
} 3<<'AWK' 4<<'ROUTES'
@static-routes.awk@
AWK
==config
@ROUTES@
==adopted
ROUTES

# Returns whether a trial should have ended, and no process is confirming it: its timer is lost after a soft reboot.
is_overdue() {
  local text=''
  read -r -d '' text 2>/dev/null <"$TRIAL" || [ -n "$text" ] || return
  read_clock
  ! is_present "$CONFIRMED" && [[ $text =~ \"uptime\":\ ([0-9]{1,12}) ]] && [ "$NOW" -gt "${BASH_REMATCH[1]}00" ]
}

# Returns 0 if the routes are as configured, or if a trial forbids the oneshot to change them; MAY_COME if MISSING may
# still appear, or else 1, and sets MESSAGE.
attempt() {
  local status=1 rows=''
  LIMIT=$NETWORK_LIMIT PENDING=''
  [ -n "$IS_END" ] || ! is_overdue || bash -p "$RUN_DIR/trial.sh" gate
  take_lock && make_files || return 1
  run_replacement
  # A trial's end takes nothing over.
  [ -n "$IS_END" ] || [ ! -f "$ADOPTED" ] || read -r -d '' rows <"$ADOPTED"
  if is_present "$TRIAL" && [ -z "$IS_GATE$IS_END" ]; then
    DONE=$'\nnothing is changed while a trial of routes is in progress'
    return
  fi
  read_verified || return 1
  [ -z "$IS_RESIGNED" ] || AWAITED=''
  for FAMILY in $FAMILIES; do
    list_family "${TABLES[FAMILY]}"$'\naddress show\nlink show type vrf\nlink show' || return 1
    LISTINGS[FAMILY]=$rows$'\n==kernel\n'$LISTED
  done
  IS_WRITING=1 DONE='' NOTES='' BEGUN=''
  # A problem in one family prevents changes in both, so plan both first.
  for TASK in $TASKS; do
    for FAMILY in $FAMILIES; do
      [ "$TASK $FAMILIES" != 'plan 4' ] || continue
      carry_out
      status=$?
      [ "$status$STOPPED" = 0 ] || break 2
    done
  done
  if [ "$status$STOPPED" = 0 ]; then
    [ -n "$IS_END" ] || [ ! -e "$ADOPTED" ] || rm -f "$ADOPTED" # from here on, only a trial's end heeds signals
    return 0
  fi
  put_back
  IS_WRITING=''
  [ -z "$STOPPED" ] || { [ "$status" -ne 1 ] || complain "$MESSAGE"; stop; }
  return "$status"
}

carry_out() {
  local answer
  LISTED=${LISTINGS[FAMILY]}
  answer=`think "$TASK"`
  [[ $TASK == plan || $answer =~ ^(lacking|pending|refused) ]] || BEGUN="$FAMILY $BEGUN"
  case $answer in
    done*)
      answer=${answer#done}
      DONE+=${answer%%$'\nnote: '*}
      NOTES+=${answer#"${answer%%$'\nnote: '*}"}
      return
      ;;
    pending\ *)
      PENDING=yes MISSING=${answer#pending } LIMIT=$SETTLE_LIMIT
      return "$MAY_COME"
      ;;
    lacking\ *)
      MISSING=${answer#lacking }
      MESSAGE="can't install the static routes: timed out after $LIMIT s waiting for $MISSING"
      return "$MAY_COME"
      ;;
  esac
  MESSAGE=${answer#refused } MESSAGE=${MESSAGE#failed }
  MESSAGE=${MESSAGE:-can\'t plan the static routes: awk ended without an answer}
  return 1
}

# Makes our routes what they were, in each family that may have been changed. What one attempt puts back, such as the
# route to a gateway, may be what the next one needs. If the table can't be listed, it undoes what it may have done.
put_back() {
  local left tries why=$MESSAGE
  trap '' HUP INT QUIT TERM # another signal could end ip, or think before it ignores signals itself
  for FAMILY in $BEGUN; do
    for ((tries = UNDO_ATTEMPTS; tries; tries--)); do
      if list "${TABLES[FAMILY]}"; then
        LISTED=${LISTINGS[FAMILY]}$'\n==now\n'$LISTED
      else
        LISTED=${LISTINGS[FAMILY]} tries=1
      fi
      left=`think undo` && break
      left=${left:-awk ended without an answer}
    done
    LEFT+=${left:+${LEFT:+; }not all could be put back: $left}
  done
  MESSAGE=$why${LEFT:+; $LEFT}
  heed_signals
}

# Waits for the network, and then for kept interfaces. In the end, it goes on without these, or without a verified
# uplink that is gone.
install() {
  local status why
  keep_trying
  status=$?
  if [ "$status" -eq "$MAY_COME" ] && [ -n "${AWAITED-}" ]; then
    why="timed out after $LIMIT s waiting for $MISSING; the default route tells the uplink now"
    IS_RESIGNED=yes
    keep_trying
    status=$?
    [ "$status" -ne 0 ] || complain "$why"
  fi
  [ -n "$PENDING" ] || return "$status"
  IS_SETTLED=1
  keep_trying
}

heed_signals() {
  trap 'on_signal SIGHUP' HUP
  trap 'on_signal SIGINT' INT
  trap 'on_signal SIGTERM' TERM
}

# If changes are in progress, they are undone before the run ends.
on_signal() {
  STOPPED=$1
  [ -n "$IS_WRITING" ] || stop
}

stop() {
  complain "stopped: $STOPPED; ${LEFT:-nothing is left half-done}"
  exit 1
}

# Makes our routes as listed. If that fails, it removes ours that aren't as listed, which may have been in the way, and
# tries once more. The trial is over unless not even the removal succeeds; then, and after a signal, its file stays.
end_trial() {
  local status=0
  # The trial may have added routes of a family that isn't listed.
  [ ! -e /proc/net/if_inet6 ] || FAMILIES='4 6'
  if ! attempt; then
    TASKS=unlist
    attempt || return
    IS_WRITING='' LEFT=''
    [ -z "$STOPPED" ] || stop
    [ -z "$DONE" ] || say "${DONE#$'\n'}"
    TASKS='plan commit'
    attempt
    status=$?
  fi
  [ -z "$STOPPED" ] || stop
  rm -f "$TRIAL"
  return "$status"
}

LISTINGS=() TASKS='plan commit' DONE='' STOPPED='' IS_WRITING='' IS_END='' IS_GATE='' IS_TOLD='' LEFT='' PENDING=''
IS_RESIGNED='' NOTES='' IS_SETTLED=0 LIMIT=$WAIT_SECONDS SETTLE_LIMIT=$SETTLE_SECONDS
TABLES=([4]=$'rule show\nroute show table all' [6]=$'rule show\nroute show table all')
# A kernel without IPv6 has no answer about its rules.
[ -e /proc/net/if_inet6 ] || TABLES[6]='route show table all'
if [ "$*" = trial ]; then IS_END=yes LIMIT=0 IS_SETTLED=1 IS_RESIGNED=yes; else read_arguments "$@"; fi
if [ -n "$IS_GATE" ]; then
  SETTLE_LIMIT=$((SETTLE_SECONDS < GATE_SECONDS ? SETTLE_SECONDS : GATE_SECONDS))
  # A hold only waits once.
  [ -z "$IS_TOLD" ] || SETTLE_LIMIT=0
fi
[ "$SETTLE_LIMIT" -gt 0 ] || IS_SETTLED=1
NETWORK_LIMIT=$LIMIT
heed_signals
if [ -n "$IS_END" ]; then end_trial; else install; fi || {
  [[ -z ${VERIFIED-}${GONE-} || $MESSAGE != *' passed, '* || $MESSAGE = *'then: hostrouting apply'* ]] ||
    MESSAGE+="; `since`$ANOTHER"
  complain "$MESSAGE"
  exit 1
}
DONE=${DONE#$'\n'}
say "${DONE:-nothing to change}$NOTES"
exit 0
}
