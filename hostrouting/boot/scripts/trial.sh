#!/bin/bash -p
false # what bash returns if it can't parse the group
{
# Ends the trial of routes that `hostrouting apply --try` has begun, unless it has ended. Rendered: edits are lost.
#
#   trial.sh         run by a systemd timer when the time is over, even if the process that began the trial is gone
#   trial.sh gate    run before the consumer starts, because only the installed routes count for a start, and by the
#                    oneshot once the time is over
#
# A trial changes nothing but the kernel's routes, so the installed routes script knows which routes should be there
# after it. This script takes the lock that every run holds while it writes, and runs the routes script, which inherits
# the lock. The routes script installs its routes, and removes those of ours that it doesn't list. If it can't install
# them, it still removes the others. If no routes script is installed, or only a part of one, a script without routes
# runs instead, and removes all of ours.
#
# The trial is in progress as long as its file exists. The process that ends it removes the file while it holds the
# lock: here, the routes script does that when the tried routes are gone. As long as the file is there, this script
# tries again, whatever has failed or was killed. In the gate, it fails, and the gate tries again.
#
# A process that confirms the trial renames the file first, so the trial can't end meanwhile. It holds another lock
# until it has installed everything. If the file has the other name but that lock is free, the process was killed. Then
# the timer finishes what the process began, and the gate ends the trial.

@common.sh@

@network.sh@

readonly UNTIL=@UNTIL@
readonly ROUTES=/etc/aks-flex-node/static-routes.sh
readonly RUN_LOCK=$RUN_DIR/run.lock
readonly PYTHON=@PYTHON@

IFS= read -r -d '' NO_ROUTES <<'SCRIPT' || true
@NO_ROUTES@
SCRIPT

# Ends this trial. If it has to be tried again, fails and sets MESSAGE. Sets STATUS to 0 if all routes are as installed.
attempt() {
  local text
  take_lock || return
  is_present "$TRIAL" || return 0
  # The timer may be that of an earlier trial, so compare. If the file is damaged, it names no trial; end it, because it
  # would hold the consumer for ever.
  { text=$(<"$TRIAL"); } 2>/dev/null
  [[ $text == *"\"$UNTIL\""* || $text != *\"until\"* ]] || return 0
  # If the script is cut off, bash can't parse it. If it is empty or has a single line, it does nothing.
  if [[ $(tail -c 2 "$ROUTES") == '}' ]] 2>/dev/null && bash -pn "$ROUTES" 2>/dev/null; then
    bash -p "$ROUTES" trial
    STATUS=$?
  else
    bash -p -c "$NO_ROUTES" "${ROUTES##*/}" trial
    STATUS=$?
    if [ -e "$ROUTES" ]; then
      STATUS=1
      complain "$ROUTES can't be read or is truncated, so all our routes go; to write it again: $AGAIN"
    fi
  fi
  MESSAGE="${ROUTES##*/} hasn't ended it"
  ! is_present "$TRIAL" || return
  say "the trial of routes until $UNTIL has ended"
}

# A process that confirms holds the other lock until it ends. If that lock is free, the process was killed, and its
# trial goes on.
take_back_confirm() {
  is_present "$CONFIRMED" || return 0
  LOCK=$RUN_LOCK take_lock || return
  MESSAGE="can't rename $CONFIRMED"
  ! is_present "$CONFIRMED" || mv -f "$CONFIRMED" "$TRIAL" || return
  exec 9>&-
}

# Repeats a function until it succeeds, except in the gate, which tries again itself.
insist() {
  until "$1"; do
    complain "can't end the trial of routes: $MESSAGE"
    exec 9>&-
    [ -z "$IS_GATE" ] || exit 1
    sleep 1
  done
  exec 9>&-
}

STATUS=''
read_arguments "$@"
[ -z "$IS_GATE" ] || insist take_back_confirm
insist attempt
if [ -z "$IS_GATE" ] && is_present "$CONFIRMED"; then
  # If the confirming process was killed, finish what it began. If that fails, end the trial.
  insist take_back_confirm
  is_present "$TRIAL" || exit 0
  "$PYTHON" -I -m hostrouting confirm
  insist attempt
fi
# The marker may describe the routes of the trial.
[[ -n $IS_GATE || -z $STATUS || ! -x $CHECK ]] || "$CHECK" gate
exit "${STATUS:-0}"
}
