#!/bin/bash -p
{
# Puts our routes back as they were before `hostrouting apply --try`, unless the trial has ended. Rendered: edits are lost.
#
#   trial.sh         when the time is over: a timer of systemd runs it, whatever has become of who began the trial
#   trial.sh gate    before a machine starts: only what is installed judges it
#
# The trial stands as long as its file is there. Who ends it takes the file away, with the lock.

@COMMON@

readonly UNTIL=@UNTIL@
readonly RUN_LOCK=$RUN_DIR/run.lock
readonly PYTHON=@PYTHON@

# Prints "done", what it changes, and what ip refuses. A signal to all processes of a unit ends it as little as ip.
think() {
  trap '' HUP INT TERM
  exec awk -f /dev/fd/3 /dev/fd/4 - <<<"$LISTED"
} 3<<'AWK' 4<<'ROUTES'
@ROUTES_AWK@

section == "saved" {
  parse($0)
  saved[++saves] = key()
  before[key()] = command(to, class)
}

section == "kernel" {
  parse($0)
  if (proto_of[class] == 217 && to != "0.0.0.0/0") {
    there[++theres] = key()
    now[key()] = command(to, class)
  }
}

function key() {
  return to " " metric_of[class] (is_for_tos[class] ? class : "")
}

# One that differs goes and comes at once: replace would take what another program has put in its place.
END {
  for (i = 1; i <= saves; i++)
    if (!(saved[i] in now))
      commands[++changes] = "route add " before[saved[i]]
    else if (now[saved[i]] != before[saved[i]]) {
      commands[++changes] = "route del " now[saved[i]]
      commands[++changes] = "route add " before[saved[i]]
    }
  for (i = 1; i <= theres; i++)
    if (!(there[i] in before))
      commands[++changes] = "route del " now[there[i]]
  if (changes)
    run(commands, changes, "-force")
  if (changes && !has_run)
    exit 1
  print "done"
  for (i = 1; i <= changes; i++)
    print "ip " commands[i] (i in failed ? ": failed: " failed[i] : "")
}
AWK
==saved
@ROUTES@
==kernel
ROUTES

# Fails and sets MESSAGE where it has to be tried again.
attempt() {
  take_lock || return
  [[ $(<"$TRIAL") == *"\"$UNTIL\""* ]] 2>/dev/null || return 0
  list 'route show table main' || return
  MESSAGE='awk ended without an answer'
  DONE=$(think) && [[ $DONE == done* ]] || return
  rm -f "$TRIAL"
  say "the trial of routes until $UNTIL has ended; they are as before" "${DONE#done}"
}

# Who confirms a trial holds the other lock all the while. If that is free, it was killed: what it began is a trial again.
take_back_confirm() {
  MESSAGE="hostrouting confirm, which holds $RUN_LOCK, hasn't ended within $LOCK_LIMIT s"
  [ ! -e "$CONFIRMED" ] || { exec 8>>"$RUN_LOCK" && flock -w "$LOCK_LIMIT" 8; } || return
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

DONE='' IS_GATE=''
case $#:${1-} in
  0:) ;;
  1:gate) IS_GATE=yes LOCK_LIMIT=$GATE_SECONDS ;;
  *) explain_usage '[gate]' ;;
esac
end_trial
if [ -z "$IS_GATE" ] && [ -e "$CONFIRMED" ]; then
  # Who confirms it holds this other lock. If that one was killed, what was begun is done; or else undone.
  exec 8>>"$RUN_LOCK" && flock 8
  [ -e "$CONFIRMED" ] || exit 0
  mv -f "$CONFIRMED" "$TRIAL"
  exec 8>&-
  "$PYTHON" -I -m hostrouting confirm
  end_trial
fi
# The marker may tell of the routes that were tried.
[[ -n $IS_GATE || $DONE != done* || ! -x $CHECK ]] || "$CHECK" gate
[[ $DONE != *': failed: '* ]]
exit
}
