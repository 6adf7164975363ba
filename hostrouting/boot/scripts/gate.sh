#!/bin/bash -p
false # what bash returns if it can't parse the group
# shellcheck disable=SC2006 # for backquotes, see static-routes.sh
{
# Holds a consumer back until the installed scripts succeed. Written by hostrouting: edits are lost.
#
#   gate.sh hold     its ExecCondition=: looks again and again, until the scripts succeed or the start's time-out ends it
#   gate.sh again    its first ExecStartPre=, with nothing to do if this start has passed
#   gate.sh last     its last but one, with nothing to do if this start has passed within the last second
#
# systemd skips a unit for good and in silence for what an ExecCondition= fails with, its own errors included, so it is told
# to ignore the first (the "-" of the line). The others refuse: they look for a few seconds, and fail. A pass leaves a file,
# which the last line of all wants to see. A reload skips the rest of a list whose command has vanished while it ran, so
# there are two lists.
#
# gate.list names the scripts, in order, and whether a failure is forgiven. It is read anew before each step: after an update
# in the midst of a start the steps begin again. Its last line is "end": cut off anywhere it holds. -p: bash takes no
# functions and options from the environment of the consumer.

@common.sh@

readonly LIST=/etc/hostrouting/gate.list
# A file for each start that has passed, named after its invocation: when, and the list as it was.
readonly PASSED=$RUN_DIR/passed
readonly PASS_SECONDS=1
readonly KEPT_SECONDS=60
# systemd gives up for good after 5 starts in 10 s: a gate that looks this long is tried for ever.
readonly HOLD_SECONDS=3
# A hold prints this many messages at once.
readonly TELLS_MAX=20
# A look, with a second to end what hangs and one to say so: 20.
readonly ALL_SECONDS=18

# tell NAME WORDS: prints a message unless it repeats the last one of NAME. Routes that flap get a message a minute.
tell() {
  [ "${TOLD[$1]-}" != "$2" ] || return 0
  TOLD[$1]=$2
  [ $((++TELLS)) -le "$TELLS_MAX" ] || [ $((NOW - TOLD_AT)) -ge 6000 ] || return 0
  TOLD_AT=$NOW
  complain "$2"
}

# ask NAME COMMAND...: runs it for as long as the look may take, and tells what it says. Not by $(...), which would wait for
# whatever else has its output: what it has left behind, or can't be killed.
ask() {
  local name=$1 left grace limit said='' status=''
  shift
  look_at_time
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

# Sets STEPS to what the list holds; to nothing where it is missing, unless the drop-ins are gone with it.
read_list() {
  local path
  STEPS=''
  if [ -e "$LIST" ]; then
    STEPS=`<"$LIST"`
    return
  fi
  for path in /etc/systemd/system/*.d/{00,zz}-hostrouting.conf; do
    [[ `<"$path"` != *gate.sh* ]] || return
  done 2>/dev/null
  STEPS=end
}

# has_passed SECONDS: whether this very start has passed with the list as it is now, that long ago at most.
has_passed() {
  local when='' steps=''
  { read -r when && IFS= read -r -d '' steps; } 2>/dev/null <"$PASSED/${INVOCATION_ID-}"
  read_list
  [ -n "$when" ] && [ "$steps" = "$STEPS"$'\n' ] && [ $((NOW - when)) -le $(($1 * 100)) ]
} 2>/dev/null

leave_open() {
  IS_OPEN=yes
  exit 0
}

# Leaves the file of this start, and those of starts long ago go. Fails if it can't: the last line of all would.
admit() {
  local path when old=()
  look_at_time
  [ -n "${INVOCATION_ID-}" ] || leave_open
  if ! { { [ -d "$PASSED" ] || mkdir -p "$PASSED"; } && say "$NOW" "$STEPS" >"$PASSED/$INVOCATION_ID"; } 2>/dev/null; then
    [ ! -e "$GATE_OFF" ] || leave_open
    tell pass "can't write the pass in $PASSED: $UNWRITABLE; until then no start gets through"
    return 1
  fi
  for path in "$PASSED"/*; do
    read -r when <"$path" && [[ $when =~ ^[0-9]+$ && $((NOW - when)) -gt $((KEPT_SECONDS * 100)) ]] && old+=("$path")
  done 2>/dev/null
  [ "${#old[@]}" -eq 0 ] || rm -f "${old[@]}"
  leave_open
}

# leave_unjudged WORDS: has the check leave a marker that says why it has judged nothing.
leave_unjudged() {
  [ ! -x "$CHECK" ] || timeout -s KILL 1 "$CHECK" unjudged "$1" >/dev/null 2>&1
}

# Sets END and GRACE. In WARN the gate opens before the consumer's own time-out ends it; one that isn't known may be short.
set_end() {
  local seconds=0 span
  END=$((BEGAN + ALL_SECONDS * 100)) GRACE=100
  [[ `<"$LIST"` == *' forgiven'* && `</proc/self/cgroup` =~ .*/([^/]+\.service) ]] 2>/dev/null || return 0
  [ -n "$TIMEOUT" ] ||
    TIMEOUT=`timeout 1 systemctl show --property=TimeoutStartUSec --value -- "${BASH_REMATCH[1]}" 2>/dev/null`
  span=${TIMEOUT:-4s}
  case $span in
    *min* | *h* | *d* | *w* | *y*) return ;; # "infinity" too
    *ms | *us) ;;
    *) seconds=${span%%[.s]*} ;;
  esac
  [ "$seconds" -lt $((ALL_SECONDS + 2)) ] || return 0
  END=$((BEGAN + (seconds - 2) * 100))
  [ "$seconds" -ge 4 ] || END=$((BEGAN + seconds * 50 + 10)) GRACE=20
}

# Sets SCRIPT and HOW to the first step that isn't done, SCRIPT to nothing if there is none. A list that isn't whole, or holds
# anything else, is such a step itself.
find_step() {
  local form=$'^(/[^[:space:]]+ (required|forgiven)( [^[:space:]]+)?\n)*end$'
  read_list
  # Each row has the checksum of its script: another script makes another list.
  [ "$STEPS" = "$SEEN" ] || DONE=' ' SEEN=$STEPS
  SCRIPT=$LIST HOW=required
  [[ $STEPS =~ $form ]] || return 0
  while read -r SCRIPT HOW _; do
    [ "$SCRIPT" != end ] || break
    [[ $DONE == *" $SCRIPT "* ]] || return 0
  done <<<"$STEPS"
  SCRIPT=''
}

take_step() {
  local name=${SCRIPT##*/}
  if [ -n "$ELSEWHERE" ] && [ "$name" != "${CHECK##*/}" ] && [ -e /proc/1/ns/net ]; then
    tell "$name" "$ELSEWHERE: $name changed nothing"
    return
  elif [ -n "$ELSEWHERE" ]; then
    tell "$name" "$name: $ELSEWHERE"
    leave_unjudged "check-failed: $ELSEWHERE"
    return 1
  elif [ ! -x "$SCRIPT" ] || [[ `tail -c 2 "$SCRIPT"` != '}' ]]; then
    # An empty script, or one of a first line alone, would succeed.
    tell "$name" "$SCRIPT is missing, can't be run, or is truncated; to write it again: hostrouting apply"
    return 1
  elif has_trial && ! ask trial bash -p "$RUN_DIR/trial.sh" gate; then
    # Only what is installed judges a start.
    tell "$name" "$name wasn't run: a trial of routes is in progress, and can't be ended; to end it: hostrouting apply"
    return 1
  fi
  # What it has said before needs no explanation again.
  ask "$name" "$SCRIPT" gate ${TOLD[$name]:+told} && return
  [ -n "$TOOK" ] || return
  tell "$name took" "$name took $TOOK"
  [ "$name" != "${CHECK##*/}" ] || leave_unjudged "check-failed: it took $TOOK"
  return 1
}

# Takes each step, and returns whether the machine may start.
look() {
  SEEN='' DONE=' '
  look_at_time
  [ "$WORD" != hold ] || BEGAN=$NOW
  if is_glass_broken; then
    complain "GATE OFF: $WHY; the start is admitted and nothing was checked"
    leave_unjudged "gate-off: $WHY; the start was admitted and nothing was checked"
    STEPS=$WHY
    return
  fi
  set_end
  while find_step; [ -n "$SCRIPT" ]; do
    if ! take_step && [ "$HOW" != forgiven ]; then
      read_list
      [ "$STEPS" = "$SEEN" ] || continue
      # The marker of an earlier check may say that all is well.
      [ "${SCRIPT##*/}" = "${CHECK##*/}" ] || [ -n "$HELD_BY" ] || leave_unjudged "check-failed: ${SCRIPT##*/} holds the start"
      HELD_BY=$SCRIPT
      return 1
    fi
    DONE+="$SCRIPT "
  done
}

IS_OPEN='' STEPS='' SEEN='' SCRIPT='' HOW='' ELSEWHERE='' TIMEOUT='' FAILED='' TOOK='' HELD_BY=''
declare -A TOLD=()
TELLS=0 TOLD_AT=0
# systemd takes a process of most services that ends by one of these for one that succeeds. SIGINT is lost to a bash that
# waits for what $(...) runs, so it is to all of it.
trap 'exit 255' HUP PIPE TERM
trap '' INT
trap '[ -n "$IS_OPEN" ] || exit 255' EXIT
[[ $#:${1-} =~ ^1:(hold|again|last)$ ]] || { complain "usage: ${0##*/} hold | again | last" && exit 255; }
WORD=$1
look_at_time
BEGAN=$NOW
case $WORD in
  again) ! has_passed "$KEPT_SECONDS" || leave_open ;;
  last) ! has_passed "$PASS_SECONDS" || leave_open ;;
esac
if [ ! /proc/self/ns/net -ef /proc/1/ns/net ]; then
  ELSEWHERE='this unit has a network namespace of its own; the host is not seen from there'
  [ -e /proc/1/ns/net ] || ELSEWHERE="can't tell whether this is the host's network namespace; run as root"
fi
until look && admit; do
  look_at_time
  : "${FAILED:=$NOW}"
  [ "$WORD" != hold ] || tell held "the start is held until that is fixed; to let it through unchecked: touch $GATE_OFF"
  [ "$WORD" = hold ] || { [ $((NOW - FAILED)) -lt $((HOLD_SECONDS * 100)) ] && [ "$NOW" -lt "$END" ]; } || exit 255
  sleep 1
done
}
