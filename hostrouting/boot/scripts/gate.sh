#!/bin/bash -p
{
# Holds a consumer back until the installed scripts succeed. Written by hostrouting: edits are lost.
#
#   gate.sh first    its ExecCondition=
#   gate.sh again    its ExecStartPre=, which has nothing to do where the first has just let it pass. A reload skips the
#                    rest of a list whose command has vanished while it ran, so there are two lists.
#
# gate.list names the scripts, and whether a failure is forgiven. It is read anew before each step: an update in the midst
# of a start counts. This fails with 255 only, since ExecCondition= takes others to say: skip it, and keep quiet. -p: bash
# takes no functions and options from the environment of the consumer.

@COMMON@

# --- the gate -------------------------------------------------------------------------------------------------------

readonly FOLDER=/etc/aks-flex-node
readonly LIST=$FOLDER/gate.list
readonly GATE_OFF=$FOLDER/gate.off
readonly DROP_INS=/etc/systemd/system
readonly CHECK=check-route-overlap.sh
readonly PASSES=$RUN_DIR/gate.passed
readonly PASS_SECONDS=5
# With a second to end what hangs, and one to say so, 20.
readonly ALL_SECONDS=18

# systemd takes a process of most services that ends by one of these for one that succeeds.
trap 'exit 255' HUP INT PIPE TERM
trap '[ -n "$IS_OPEN" ] || exit 255' EXIT

# tell WORDS: says nothing twice.
tell() {
  [ "$1" = "$TOLD" ] || complain "$1"
  TOLD=$1
}

has_just_passed() {
  local id when
  while read -r id when; do
    [ "$id" != "${INVOCATION_ID-}" ] || [ $((NOW - when)) -gt $((PASS_SECONDS * 100)) ] || return 0
  done
  return 1
} 2>/dev/null <"$PASSES"

admit() {
  local passes=()
  mapfile -t passes 2>/dev/null <"$PASSES"
  [ "${#passes[@]}" -lt 100 ] || : >"$PASSES"
  look_at_time
  [ -z "${INVOCATION_ID-}" ] || say "$INVOCATION_ID $NOW" >>"$PASSES"
  IS_OPEN=yes
  exit 0
}

is_glass_broken() {
  local words
  read -r words </proc/cmdline
  WHY="the file $GATE_OFF is there"
  [ ! -e "$GATE_OFF" ] || return 0
  WHY='the kernel was started with hostrouting.gate=off'
  [[ " $words " == *' hostrouting.gate=off '* ]]
}

# leave_unjudged WORDS: has the check leave a marker that says why it has judged nothing.
leave_unjudged() {
  [ ! -x "$FOLDER/$CHECK" ] || timeout -s KILL 1 "$FOLDER/$CHECK" unjudged "$1" >/dev/null 2>&1
}

# In WARN the gate opens before the consumer's own time-out ends it. Sets END and GRACE.
set_end() {
  local groups shown seconds
  END=$((BEGAN + ALL_SECONDS * 100)) GRACE=1
  [[ $STEPS == *' forgiven'* ]] || return 0
  groups=$(</proc/self/cgroup)
  [[ $groups =~ .*/([^/]+\.service) ]] || return 0
  shown=$(timeout 2 systemctl show --property=TimeoutStartUSec --value -- "${BASH_REMATCH[1]}" 2>/dev/null)
  case $shown in
    *min* | *[!0-9.smu]* | '') return ;; # a minute or more, and infinity
    *[mu]s) seconds=0 ;;
    *) seconds=${shown%%[.s]*} ;;
  esac
  [ "$seconds" -lt $((ALL_SECONDS + 2)) ] || return 0
  END=$((BEGAN + (seconds - 2) * 100))
  [ "$seconds" -ge 4 ] || END=$((BEGAN + seconds * 50 + 10)) GRACE=0.2
}

# Sets STEPS; returns whether there are any.
read_list() {
  STEPS=''
  { read -r -d '' STEPS <"$LIST"; } 2>/dev/null
  [ -n "$STEPS" ]
}

# Whether the drop-in is gone with the list.
is_taken_back() {
  local path text
  for path in "$DROP_INS"/*.d/zz-hostrouting.conf; do
    [ -e "$path" ] || continue
    text=$(<"$path")
    [[ $text != *gate.sh* ]] || return 1
  done
}

# Sets NAME and HOW: the first step that isn't done.
find_step() {
  while read -r NAME HOW; do
    [[ $DONE == *" $NAME "* ]] || return 0
  done <<<"$STEPS"
  return 1
}

take_step() {
  local script=$FOLDER/$NAME left
  if [ -n "$ELSEWHERE" ]; then
    if [ "$NAME" != "$CHECK" ] && [ -e /proc/1/ns/net ]; then
      say "$ELSEWHERE: $NAME changed nothing"
      return
    fi
    tell "$NAME: $ELSEWHERE"
    leave_unjudged "check-failed: $ELSEWHERE"
    return 1
  fi
  # An empty script, or one of a first line alone, would succeed.
  if [ ! -x "$script" ] || [ "$(tail -c 2 "$script")" != '}' ]; then
    tell "$script is missing, can't be run, or isn't whole; to write it anew: hostrouting apply"
    return 1
  fi
  look_at_time
  left=$((END - NOW))
  if [ "$left" -gt 0 ]; then
    printf -v left '%d.%02d' $((left / 100)) $((left % 100))
    timeout -k "$GRACE" "$left" "$script" gate
    case $? in
      0) return 0 ;;
      124 | 137) ;;
      *) return 1 ;;
    esac
  fi
  tell "$NAME has no answer after $(((END - BEGAN) / 100)) s"
  [ "$NAME" != "$CHECK" ] || leave_unjudged "check-failed: it took more than $(((END - BEGAN) / 100)) s"
  return 1
}

# Takes each step; one that fails is looked at again, whatever failed it, for HOLD_SECONDS.
take_steps() {
  local failed='' since=0
  while :; do
    if read_list; then
      find_step || return 0
    else
      ! is_taken_back || return 0
      NAME=$LIST HOW=required
    fi
    look_at_time
    if [ "$NAME" != "$failed" ]; then
      failed=$NAME since=$NOW
    elif [ "$HOW" = forgiven ]; then
      DONE+="$NAME "
      continue
    elif [ $((NOW - since)) -ge $((HOLD_SECONDS * 100)) ] || [ "$NOW" -ge "$END" ]; then
      return 1
    else
      sleep 1
    fi
    if [ "$NAME" = "$LIST" ]; then
      tell "$LIST is missing; to write it anew: hostrouting apply"
    elif take_step; then
      DONE+="$NAME "
    fi
  done
}

IS_OPEN='' DONE=' ' TOLD='' ELSEWHERE='' STEPS='' NAME='' HOW=''
case $#:${1-} in
  1:first | 1:again) ;;
  *)
    complain "usage: ${0##*/} first | again"
    exit 255
    ;;
esac
look_at_time
BEGAN=$NOW
if [ "$1" = again ] && has_just_passed; then
  IS_OPEN=yes
  exit 0
fi
[ -d "$RUN_DIR" ] || mkdir -p "$RUN_DIR"
if is_glass_broken; then
  complain "GATE OFF: $WHY; the start is admitted and nothing was checked"
  leave_unjudged "gate-off: $WHY; the start was admitted and nothing was checked"
  admit
fi
is_on_host || ELSEWHERE=$WHY
read_list
set_end
! take_steps || admit
exit 255
}
