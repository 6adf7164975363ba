#!/bin/bash -p
{
# Holds a consumer back until the installed scripts succeed. Written by hostrouting: edits are lost.
#
#   gate.sh first    its ExecCondition=
#   gate.sh again    its ExecStartPre=, which has nothing to do where the first has just let it pass. A reload skips the
#                    rest of a list whose command has vanished while it ran, so there are two lists.
#
# gate.list names the scripts, in order, and whether a failure is forgiven. It is read anew before each step: after an update
# in the midst of a start the steps begin again. Its last line is "end": cut off anywhere it holds. This fails with 255 only, since ExecCondition= takes others to say: skip it, and keep quiet. -p: bash
# takes no functions and options from the environment of the consumer.

@COMMON@

readonly LIST=/etc/hostrouting/gate.list
readonly GATE_OFF=/etc/hostrouting/gate.off
readonly CHECK=/etc/aks-flex-node/check-route-overlap.sh
readonly PASSED=$RUN_DIR/gate.passed
readonly PASS_SECONDS=5
# With a second to end what hangs, and one to say so, 20.
readonly ALL_SECONDS=18

# tell WORDS: says nothing twice.
tell() {
  [ "$1" = "$TOLD" ] || complain "$1"
  TOLD=$1
}

# The last one only: if two start at once, one is looked at again.
has_just_passed() {
  local id when
  read -r id when <"$PASSED" && [ "$id" = "${INVOCATION_ID-}" ] && [ $((NOW - when)) -le $((PASS_SECONDS * 100)) ]
} 2>/dev/null

admit() {
  look_at_time
  [ -z "${INVOCATION_ID-}" ] || say "$INVOCATION_ID $NOW" >"$PASSED"
  IS_OPEN=yes
  exit 0
}

is_glass_broken() {
  local words
  WHY="the file $GATE_OFF is there"
  [ ! -e "$GATE_OFF" ] || return 0
  WHY='the kernel was started with hostrouting.gate=off'
  read -r words </proc/cmdline
  [[ " $words " == *' hostrouting.gate=off '* ]]
}

# leave_unjudged WORDS: has the check leave a marker that says why it has judged nothing.
leave_unjudged() {
  [ ! -x "$CHECK" ] || timeout -s KILL 1 "$CHECK" unjudged "$1" >/dev/null 2>&1
}

# Sets END and GRACE. In WARN the gate opens before the consumer's own time-out ends it.
set_end() {
  local shown seconds
  END=$((BEGAN + ALL_SECONDS * 100)) GRACE=1
  [[ $(<"$LIST") == *' forgiven'* && $(</proc/self/cgroup) =~ .*/([^/]+\.service) ]] 2>/dev/null || return 0
  shown=$(timeout 2 systemctl show --property=TimeoutStartUSec --value -- "${BASH_REMATCH[1]}" 2>/dev/null)
  [[ $shown =~ ^([0-9]+)(\.[0-9]+)?(s|ms|us)$ ]] || return 0 # a minute or more, or infinity
  seconds=${BASH_REMATCH[1]}
  [ "${BASH_REMATCH[3]}" = s ] || seconds=0
  [ "$seconds" -lt $((ALL_SECONDS + 2)) ] || return 0
  END=$((BEGAN + (seconds - 2) * 100))
  [ "$seconds" -ge 4 ] || END=$((BEGAN + seconds * 50 + 10)) GRACE=0.2
}

# Sets SCRIPT and HOW, the first step that isn't done; SCRIPT to nothing if there is none. A list that isn't whole is such a
# step itself, and so is one that is missing, unless the drop-in is gone with it.
find_step() {
  local steps='' path
  SCRIPT=$LIST HOW=required
  if [ -e "$LIST" ]; then
    steps=$(<"$LIST")
  else
    for path in /etc/systemd/system/*.d/zz-hostrouting.conf; do
      [[ $(<"$path") != *gate.sh* ]] || return
    done 2>/dev/null
    steps=end
  fi
  # Each row has the checksum of its script: another script makes another list.
  [ "$steps" = "$STEPS" ] || DONE=' ' STEPS=$steps
  [[ $'\n'$steps == *$'\nend' ]] || return
  while read -r SCRIPT HOW _; do
    [ "$SCRIPT" != end ] || break
    [[ $DONE == *" $SCRIPT "* ]] || return
  done <<<"$steps"
  SCRIPT=''
}

take_step() {
  local name=${SCRIPT##*/} left
  if [ -n "$ELSEWHERE" ] && [ "$name" != "${CHECK##*/}" ] && [ -e /proc/1/ns/net ]; then
    say "$ELSEWHERE: $name changed nothing"
    return
  elif [ -n "$ELSEWHERE" ]; then
    tell "$name: $ELSEWHERE"
    leave_unjudged "check-failed: $ELSEWHERE"
    return 1
  elif [ ! -x "$SCRIPT" ] || [ "$(tail -c 2 "$SCRIPT")" != '}' ]; then
    # An empty script, or one of a first line alone, would succeed.
    tell "$SCRIPT is missing, can't be run, or isn't whole; to write it anew: hostrouting apply"
    return 1
  fi
  look_at_time
  left=$((END > NOW ? END - NOW : 1))
  printf -v left '%d.%02d' $((left / 100)) $((left % 100))
  timeout -k "$GRACE" "$left" "$SCRIPT" gate
  case $? in
    0) return 0 ;;
    124 | 137) left="more than $(((END - BEGAN) / 100)) s" ;;
    *) return 1 ;;
  esac
  tell "$name took $left"
  [ "$name" != "${CHECK##*/}" ] || leave_unjudged "check-failed: it took $left"
  return 1
}

# Takes each step; one that fails is looked at again, whatever failed it, for HOLD_SECONDS.
take_steps() {
  local failed='' since=0
  while :; do
    find_step
    [ -n "$SCRIPT" ] || return 0
    look_at_time
    if [ "$SCRIPT" != "$failed" ]; then
      failed=$SCRIPT since=$NOW
    elif [ "$HOW" = forgiven ]; then
      DONE+="$SCRIPT "
      continue
    elif [ $((NOW - since)) -ge $((HOLD_SECONDS * 100)) ] || [ "$NOW" -ge "$END" ]; then
      return 1
    else
      sleep 1
    fi
    ! take_step || DONE+="$SCRIPT "
  done
}

IS_OPEN='' DONE=' ' STEPS='' TOLD='' ELSEWHERE='' SCRIPT='' HOW=''
# systemd takes a process of most services that ends by one of these for one that succeeds.
trap 'exit 255' HUP INT PIPE TERM
trap '[ -n "$IS_OPEN" ] || exit 255' EXIT
[[ $#:${1-} =~ ^1:(first|again)$ ]] || { complain "usage: ${0##*/} first | again" && exit 255; }
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
set_end
# Where there is one, a trial of routes ends here: only what is installed judges a start.
[ -n "$ELSEWHERE" ] || [ ! -e "$TRIAL" ] || timeout -k 1 8 bash -p "$RUN_DIR/trial.sh" gate
! take_steps || admit
exit 255
}
