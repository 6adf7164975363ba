#!/bin/bash -p
false # what bash returns if it can't parse the group
# shellcheck disable=SC2006 # for backquotes, see static-routes.sh
{
# Holds a consumer back until the installed scripts succeed. Written by hostrouting: edits are lost. The source explains
# each part.
#
#   gate.sh hold     its ExecCondition=: retries until the scripts succeed or the start times out
#   gate.sh again    its first ExecStartPre=: does nothing if this start has passed within the last minute
#   gate.sh last     the ExecStartPre= before the last one: does nothing if this start has passed within the last second
#
# If an ExecCondition= fails, even because of an error of systemd's own, systemd skips the unit silently and for good.
# With the "-" in its line, systemd ignores such a failure. The other commands retry for a few seconds and then fail.
# For a start that passes, this script creates a file, and without that file the last ExecStartPre= fails. If a reload
# removes the command that is running, systemd skips the rest of that list, so there are commands in two lists.
#
# gate.list names the scripts, in order, and says whether a failure is forgiven. It is read again before each step: if
# an update changes it during a start, the steps start over. If its last line "end" is missing, the start is held. With
# -p, bash ignores functions and options from the consumer's environment.

@common.sh@

readonly LIST=/etc/hostrouting/gate.list
# One file for each start that has passed, named after its invocation ID, with the time and the list.
readonly PASSED=$RUN_DIR/passed
readonly PASS_SECONDS=1
readonly KEPT_SECONDS=60
# The shortest time of a start that fails, because after 5 starts in 10 s, systemd gives up.
readonly HOLD_SECONDS=3
# A hold prints this many messages before it limits their rate.
readonly TELLS_MAX=20
# The timeout of all scripts together. Killing a script and reporting this take another second each: 20 s in total.
readonly ALL_SECONDS=18

# tell NAME WORDS: prints a message unless it repeats NAME's last one. If routes flap, prints one message per minute.
tell() {
  [ "${TOLD[$1]-}" != "$2" ] || return 0
  TOLD[$1]=$2
  [ $((++TELLS)) -le "$TELLS_MAX" ] || [ $((NOW - TOLD_AT)) -ge 6000 ] || return 0
  TOLD_AT=$NOW
  complain "$2"
}

# ask NAME COMMAND...: runs a command with the remaining time as its timeout, and prints its output. It doesn't use
# $(...), which also waits for background processes that inherit the output, and for those that can't be killed.
ask() {
  local name=$1 left grace limit said='' status=''
  shift
  read_clock
  left=$((END > NOW ? END - NOW : 1))
  printf -v limit '%d.%02d' $(((left + GRACE + 20) / 100)) $(((left + GRACE + 20) % 100))
  printf -v left '%d.%02d' $((left / 100)) $((left % 100))
  printf -v grace '%d.%02d' $((GRACE / 100)) $((GRACE % 100))
  exec 7< <(timeout -k "$grace" "$left" "$@" 2>&1; printf '\0%s\n' "$?")
  { IFS= read -r -d '' -t "$limit" said && read -r -t 1 status; } <&7
  exec 7<&-
  said=${said%$'\n'}
  [ -z "$said" ] || tell "$name" "$said"
  TOOK=''
  case $status in
    '' | 124 | 137) TOOK="more than $(((END - BEGAN) / 100)) s" ;;
    0) return ;;
  esac
  return 1
}

# Returns whether a file is known not to exist. After an I/O error, it isn't known.
is_absent() { [[ `stat "$1" 2>&1` == *': No such file or directory' ]]; }

# Sets STEPS to the list's contents. If the list is missing, sets STEPS to "". If the drop-ins are gone, too, sets it to
# "end".
read_list() {
  local folder path text
  STEPS=`<"$LIST"`
  is_absent "$LIST" && ls /etc/systemd/system >/dev/null || return 0
  for folder in /etc/systemd/system/*.d; do
    for path in "$folder"/{00,zz}-hostrouting.conf; do
      is_absent "$path" || { text=`cat "$path"` && [[ $text != *gate.sh* ]]; } || return 0
    done
  done
  STEPS=end
} 2>/dev/null

# has_passed SECONDS: returns whether this start has passed with the current list, at most SECONDS ago.
has_passed() {
  local when='' steps=''
  { read -r when && IFS= read -r -d '' steps; } <"$PASSED/${INVOCATION_ID-}"
  read_list
  [ -n "$when" ] && [ "$steps" = "$STEPS"$'\n' ] && [ $((NOW - when)) -le $(($1 * 100)) ]
} 2>/dev/null

open_gate() {
  IS_OPEN=yes
  exit 0
}

# Writes this start's file, and removes those of old starts. If it can't write, it fails: the last ExecStartPre= would
# fail anyway.
admit() {
  local path when old=()
  read_clock
  [ -n "${INVOCATION_ID-}" ] || open_gate
  [ -d "$PASSED" ] || mkdir -p "$PASSED" 2>/dev/null
  if ! { say "$NOW" "$STEPS" >"$PASSED/$INVOCATION_ID"; } 2>/dev/null; then
    ! is_gate_off || open_gate
    tell pass "can't write the pass in $PASSED: $UNWRITABLE; until then no start gets through"
    return 1
  fi
  for path in "$PASSED"/*; do
    read -r when <"$path" && [[ $when =~ ^[0-9]+$ && $((NOW - when)) -gt $((KEPT_SECONDS * 100)) ]] && old+=("$path")
  done 2>/dev/null
  [ "${#old[@]}" -eq 0 ] || rm -f "${old[@]}"
  open_gate
}

# write_unjudged WORDS: makes the check write a marker with the reason why there is no verdict.
write_unjudged() {
  [ ! -x "$CHECK" ] || timeout -s KILL 1 "$CHECK" unjudged "$1" >/dev/null 2>&1
}

# Sets END and GRACE. In WARN mode, the gate opens before the consumer's start times out. If the timeout isn't known, it
# may be short.
set_end() {
  local seconds=0 span
  END=$((BEGAN + ALL_SECONDS * 100)) GRACE=100
  [[ `<"$LIST"` == *' forgiven'* && `</proc/self/cgroup` =~ .*/([^/]+\.service) ]] 2>/dev/null || return 0
  [ -n "$TIMEOUT" ] ||
    TIMEOUT=`timeout 1 systemctl show --property=TimeoutStartUSec --value -- "${BASH_REMATCH[1]}" 2>/dev/null`
  span=${TIMEOUT:-4s}
  [[ $span != *@(min|[hdwy])* ]] || return 0 # "infinity" too
  [[ ! $span =~ ^([0-9]+)(\.[0-9]+)?s ]] || seconds=${BASH_REMATCH[1]}
  [ "$seconds" -lt $((ALL_SECONDS + 2)) ] || return 0
  END=$((BEGAN + (seconds - 2) * 100))
  [ "$seconds" -ge 4 ] || END=$((BEGAN + seconds * 50 + 10)) GRACE=20
}

# Sets SCRIPT and HOW to the first remaining step. If none remains, sets SCRIPT to "". An incomplete or invalid list is
# a step that fails.
find_step() {
  local rest step='(/[^[:space:]]+) (required|forgiven)' more=$'( [^[:space:]]+)?\n'
  read_list
  # Each line contains its script's checksum, so the list changes with the scripts.
  [ "$STEPS" = "$SEEN" ] || DONE=' ' SEEN=$STEPS
  rest=$STEPS SCRIPT=$LIST HOW=required
  [[ $STEPS =~ ^($step$more)*end$ ]] || return 0
  # This isn't a here-document: if bash couldn't write or read it, that would look like the end of the list.
  while [[ $rest =~ ^$step ]]; do
    SCRIPT=${BASH_REMATCH[1]} HOW=${BASH_REMATCH[2]} rest=${rest#*$'\n'}
    [[ $DONE == *" $SCRIPT "* ]] || return 0
  done
  SCRIPT=''
}

take_step() {
  local name=${SCRIPT##*/}
  if [ ! -x "$SCRIPT" ] || [[ `tail -c 2 "$SCRIPT"` != '}' ]]; then
    # An empty script, or one with only the first line, would succeed.
    tell "$name" "$SCRIPT is missing, can't be run, or is truncated; to write it again: $AGAIN"
    return 1
  elif [ -n "$ELSEWHERE" ] && [ "$name" != "${CHECK##*/}" ] && [ -e /proc/1/ns/net ]; then
    tell "$name" "$ELSEWHERE: $name changed nothing"
    return
  elif [ -n "$ELSEWHERE" ]; then
    tell "$name" "$name: $ELSEWHERE"
    write_unjudged "check-failed: $ELSEWHERE"
    return 1
  elif has_trial && ! ask trial bash -p "$RUN_DIR/trial.sh" gate; then
    # Only the installed routes count for a start, so end a trial. If they can't be installed, trial.sh says why.
    ! has_trial ||
      tell "$name" "$name wasn't run: a trial of routes is in progress, and can't be ended; to end it: $AGAIN"
    return 1
  fi
  # Don't explain the same failure again.
  ask "$name" "$SCRIPT" gate ${TOLD[$name]:+told} && return
  [ -n "$TOOK" ] || return
  tell "$name took" "$name took $TOOK"
  [ "$name" != "${CHECK##*/}" ] || write_unjudged "check-failed: it took $TOOK"
  return 1
}

# Runs the remaining steps, and returns whether the consumer may start.
look() {
  SEEN='' DONE=' '
  read_clock
  [ "$WORD" != hold ] || BEGAN=$NOW
  if is_gate_off; then
    complain "GATE OFF: $WHY; the start is admitted and nothing was checked"
    write_unjudged "gate-off: $WHY; the start was admitted and nothing was checked"
    STEPS=$WHY
    return
  fi
  set_end
  while find_step; [ -n "$SCRIPT" ]; do
    if ! take_step && [ "$HOW" != forgiven ]; then
      read_list
      [ "$STEPS" = "$SEEN" ] || continue
      # An earlier check may have left an "ok" marker.
      [ "${SCRIPT##*/}" = "${CHECK##*/}" ] || [ -n "$HELD_BY" ] ||
        write_unjudged "check-failed: ${SCRIPT##*/} holds the start"
      HELD_BY=$SCRIPT
      return 1
    fi
    DONE+="$SCRIPT "
  done
}

IS_OPEN='' STEPS='' SEEN='' SCRIPT='' HOW='' ELSEWHERE='' TIMEOUT='' FAILED='' TOOK='' HELD_BY=''
declare -A TOLD=()
TELLS=0 TOLD_AT=0
# For most services, systemd treats an exit by one of these signals, except SIGQUIT, as a success.
trap 'exit 255' HUP INT PIPE QUIT TERM
trap '[ -n "$IS_OPEN" ] || exit 255' EXIT
[[ $#:${1-} =~ ^1:(hold|again|last)$ ]] || { complain "usage: ${0##*/} hold | again | last" && exit 255; }
WORD=$1
# It names a file that root reads and writes, and the consumer's EnvironmentFile= may set it.
[[ ${INVOCATION_ID-} =~ ^([0-9a-f]{32})?$ ]] || {
  complain "INVOCATION_ID is not systemd's: it counts as unset"
  INVOCATION_ID=''
}
read_clock
BEGAN=$NOW
case $WORD in
  again) ! has_passed "$KEPT_SECONDS" || open_gate ;;
  last) ! has_passed "$PASS_SECONDS" || open_gate ;;
esac
if [ ! /proc/self/ns/net -ef /proc/1/ns/net ]; then
  ELSEWHERE='this unit has a network namespace of its own; the host is not seen from there'
  [ -e /proc/1/ns/net ] || ELSEWHERE="can't tell whether this is the host's network namespace; run as root"
fi
until look && admit; do
  read_clock
  : "${FAILED:=$NOW}"
  [ "$WORD" != hold ] || tell held "the start is held: hostrouting doctor; to let it through unchecked: touch $GATE_OFF"
  [ "$WORD" = hold ] || { [ $((NOW - FAILED)) -lt $((HOLD_SECONDS * 100)) ] && [ "$NOW" -lt "$END" ]; } || exit 255
  sleep 1
done
}
