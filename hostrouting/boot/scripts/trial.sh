#!/bin/bash -p
false # what bash returns if it can't parse the group
{
# Restores our routes as they were before `hostrouting apply --try`, unless the trial has ended. Rendered: edits are
# lost.
#
#   trial.sh         run by a systemd timer when the time is over, even if the process that began the trial is gone
#   trial.sh gate    run before the consumer starts, because only the installed routes count for a start
#
# The trial is in progress as long as its file exists. Whatever ends it removes the file while holding the lock.

@common.sh@

readonly UNTIL=@UNTIL@
readonly FAMILIES=@FAMILIES@
readonly RUN_LOCK=$RUN_DIR/run.lock
readonly PYTHON=@PYTHON@

# Prints "done", the changes, and ip's errors. Like ip, it ignores signals that are sent to all processes of a unit.
think() {
  trap '' HUP INT TERM
  exec awk -v family="$FAMILY" -f /dev/fd/3 /dev/fd/4 - <<<"$LISTED"
} 3<<'AWK' 4<<'ROUTES'
@routes.awk@

@hops.awk@

section == "saved" && !index(($1 in type_number) ? $2 : $1, ":") == (family == 4) {
  parse($0)
  saved[++saves] = key()
  before[key()] = class
}

section == "kernel" {
  parse($0)
  if (proto_of[class] == 217 && to != ANYWHERE)
    now[key()] = class
}

function key() {
  return to " " metric_of[class] (is_for_tos[class] || class ~ / from / ? class : "")
}

function change(step, words, words_back) {
  commands[++changes] = "route " words
}

# In IPv4, a route that differs is deleted and added: replace would overwrite another program's route that took its
# place.
function put_back(some, present) {
  if (family == 6 && type_of[some] < 6 && type_of[present] + 0 < 6)
    exchange(present, some)
  else if (command(looked_at, present) != command(looked_at, some)) {
    if (present != "")
      remove(0, looked_at, present)
    change(0, "add " command(looked_at, some))
  }
}

END {
  for (i = 1; i <= saves; i++) {
    looked_at = substr(saved[i], 1, index(saved[i], " ") - 1)
    put_back(before[saved[i]], saved[i] in now ? now[saved[i]] : "")
  }
  for (i in now)
    if (!(i in before))
      remove(0, substr(i, 1, index(i, " ") - 1), now[i])
  # In IPv4, an existing route is another program's.
  left = make_all(commands, changes + 0, family == 4 ? "No such process$" : MOOT)
  if (was_ended) {
    print left
    exit
  }
  print "done"
  for (i = 1; i <= changes; i++)
    if (is_made[commands[i]])
      print "ip " commands[i]
  if (left != "")
    print "failed: " left
}
AWK
==saved
@ROUTES@
==kernel
ROUTES

# Restores the routes, or fails and sets MESSAGE if it has to be retried.
attempt() {
  local answer outcome='they are as before'
  take_lock || return
  [[ $(<"$TRIAL") == *"\"$UNTIL\""* ]] 2>/dev/null || return 0
  make_files || return
  DONE=''
  for FAMILY in $FAMILIES; do
    list 'route show table main' || return
    MESSAGE='awk ended without an answer'
    answer=$(think) || return
    MESSAGE=$answer
    [[ $answer == done* ]] || return
    DONE+=${DONE:+${answer#done}} DONE=${DONE:-$answer}
  done
  rm -f "$TRIAL"
  [[ $DONE != *$'\nfailed: '* ]] || outcome='not all are as before'
  say "the trial of routes until $UNTIL has ended; $outcome" "${DONE#done}"
}

# A confirming process holds the other lock until it ends. If that lock is free, it was killed, and its trial resumes.
take_back_confirm() {
  [ -e "$CONFIRMED" ] || return 0
  MESSAGE="hostrouting confirm, which holds $RUN_LOCK, hasn't ended within $LOCK_LIMIT s"
  { exec 8>>"$RUN_LOCK" && flock ${IS_GATE:+-w "$LOCK_LIMIT"} 8; } || return
  [ ! -e "$CONFIRMED" ] || mv -f "$CONFIRMED" "$TRIAL"
  exec 8>&-
}

end_trial() {
  until { [ -z "$IS_GATE" ] || take_back_confirm; } && attempt; do
    complain "can't end the trial of routes: $MESSAGE"
    exec 9>&-
    [ -z "$IS_GATE" ] || exit 1
    sleep 1
  done
  exec 9>&-
}

DONE=''
read_arguments "$@"
end_trial
if [ -z "$IS_GATE" ] && [ -e "$CONFIRMED" ]; then
  # If the confirming process was killed, finish what it began. If that fails, end the trial.
  take_back_confirm
  [ -e "$TRIAL" ] || exit 0
  "$PYTHON" -I -m hostrouting confirm
  end_trial
fi
# The marker may describe the routes of the trial.
[[ -n $IS_GATE || $DONE != done* || ! -x $CHECK ]] || "$CHECK" gate
[[ $DONE != *$'\nfailed: '* ]]
exit
}
