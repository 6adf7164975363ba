# --- what the scripts at boot share ---------------------------------------------------------------------------------
# shellcheck shell=bash disable=SC2034,SC2329,SC2006 # each uses some of it; for backquotes, see static-routes.sh
# They need bash, coreutils, util-linux, iproute2 5.15, and any POSIX awk. Each stands in one group, since bash runs none of
# a group that is cut off.

set -u -o pipefail
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
# bash puts here-documents that are too long for a pipe into a file; /run is writable long before /tmp is.
export TMPDIR=/run
umask 022

readonly RUN_DIR=/run/aks-flex-node
LOCK=$RUN_DIR/lock
readonly CHECK=/etc/aks-flex-node/check-route-overlap.sh
# The first exists while a trial of routes is in progress, the second while a confirmed trial is being installed. If the confirm is
# killed, a timer completes it.
readonly TRIAL=$RUN_DIR/trial.json
readonly CONFIRMED=$RUN_DIR/trial.confirmed.json
readonly GATE_OFF=/etc/hostrouting/gate.off
readonly UNWRITABLE='no space is left, or it is not writable'
# What awk has ip do, the answers (.out: a pipe would wake awk up for each), ip's stderr. A writer holds the lock.
SCRATCH=$RUN_DIR/${0##*/}.batch ERRORS=$RUN_DIR/${0##*/}.errors
export SCRATCH ERRORS

# At the gate the long wait is over: it was the oneshot's.
readonly GATE_SECONDS=5
# As long as a task waits for it.
readonly LOCK_SECONDS=60
# Under constant churn two dumps of three are interrupted; this many in a row happen once in a million.
readonly ATTEMPTS=32
# What attempt() returns if something is missing that may still come: MISSING says what.
readonly MAY_COME=75

say() { printf '%s\n' "$@"; }
complain() { printf '%s\n' "$@" >&2; }

# Sets NOW, in hundredths of a second. /proc/uptime, as the clock may be set while this waits.
look_at_time() {
  local up
  read -r up _ </proc/uptime
  NOW=$((10#${up/./}))
}

ask_kernel() {
  [ $# -eq 1 ] || exec > >("$2")
  exec ip "-$FAMILY" -N -o -batch - <<<"$1" 2>"$ERRORS.listing"
}

# list COMMANDS [READER]: sets LISTED to all that the kernel answers, a line each and with numbers for names (an rt_protos
# file may give 217 any name), or to what a reader prints of that: bash takes seconds for a million lines. Or fails and sets
# MESSAGE; what the reader has printed then counts for nothing.
list() {
  local left status error=''
  for ((left = ATTEMPTS; left; left--)); do
    LISTED=`ask_kernel "$@"`
    status=$?
    read -r -d '' error <"$ERRORS.listing"
    [[ $error != *'Dump was interrupted'* ]] || continue
    error=${error%%$'\n'*}
    MESSAGE="can't list the routes: ${error:-ip was ended}"
    return "$status"
  done
  MESSAGE="can't list the routes: they changed while they were read, $ATTEMPTS times over; try again later"
  return 1
}

# Creates the files that this run and ip exchange, or sets MESSAGE: the errors of awk and ip wouldn't help an operator.
make_files() {
  local file
  for file in "$SCRATCH"{,.out} "$ERRORS"{,.listing}; do
    MESSAGE="can't write $file: $UNWRITABLE"
    : 2>/dev/null >"$file" || return
  done
}

# Takes the lock that every run which writes holds; or sets MESSAGE.
take_lock() {
  MESSAGE="can't open the lock $LOCK: $UNWRITABLE"
  [ -d "$RUN_DIR" ] || mkdir -p "$RUN_DIR" 2>/dev/null || return
  umask 077 # who can open it can hold it
  { exec 9>>"$LOCK"; } 2>/dev/null || { umask 022 && return 1; }
  umask 022
  MESSAGE="another run has held the lock $LOCK for $LOCK_LIMIT s; to see which process: fuser -v $LOCK"
  command -v flock >/dev/null || MESSAGE="can't take the lock $LOCK: there is no flock; install the package util-linux"
  flock -w "$LOCK_LIMIT" 9 2>/dev/null
}

# Returns at the next change of links, addresses or routes, and after a second at the latest: some send no event.
nap() {
  local limit=1
  if [ -z "$MONITOR" ]; then
    coproc NEWS { exec ip "${MONITORED[@]}" -o monitor link address route 2>/dev/null 9>&-; }
    MONITOR=$!
    exec 8<&"${NEWS[0]:-0}" # unset once ip has ended
    # It would live on in the control group of the machine.
    trap 'kill "$MONITOR" 2>/dev/null' EXIT
    # It says nothing when it begins to listen; what happened until then is seen by looking again soon.
    limit=0.05
  fi
  read -r -t "$limit" -u 8 _
  case $? in
    0) read -r -d '' -t 0.02 -u 8 _ ;; # one look for a burst, and no wait for the end of a flood
    1) sleep 1 ;; # the monitor is gone
  esac
}

# Runs attempt() until it succeeds or fails, or what is missing hasn't come in LIMIT seconds, or the gate is open: a start may
# be waiting for this run. No process waits with the lock; the last attempt leaves it to the end of the run.
keep_trying() {
  local status start reported=''
  look_at_time
  start=$NOW
  while :; do
    attempt
    status=$?
    look_at_time
    [ "$status" -eq "$MAY_COME" ] && [ "$NOW" -lt $((start + LIMIT * 100)) ] && ! is_glass_broken || return "$status"
    [ "$MISSING" = "$reported" ] || say "waiting up to $LIMIT s for $MISSING"
    reported=$MISSING
    exec 9>&-
    nap
  done
}

# Whether every start is let through unchecked; if so, sets WHY.
is_glass_broken() {
  local words
  WHY="the file $GATE_OFF is there"
  [ ! -e "$GATE_OFF" ] || return 0
  WHY='the kernel was started with hostrouting.gate=off'
  read -r words </proc/cmdline
  [[ " $words " == *' hostrouting.gate=off '* ]]
}

# What was installed while this waited has the last word; with the lock. bash has the file of a script open as 255.
give_way() {
  [ -e /dev/fd/255 ] && [ ! "$0" -ef /dev/fd/255 ] || return 0
  [ -z "$MONITOR" ] || kill "$MONITOR"
  [ -e "$0" ] || { complain "$0 isn't installed any more"; exit 1; }
  say "another $0 has been installed; it takes over"
  exec "$0" "${ARGUMENTS[@]}"
}

# Reads the arguments. At the gate waits are short: it looks again at what fails.
read_arguments() {
  [[ $#:${1-} =~ ^(0:|[12]:gate)$ ]] || { complain "usage: ${0##*/} [gate [told]]"; exit 64; }
  IS_GATE=${1-} IS_TOLD=${2-}
  [ -z "$IS_GATE" ] || LOCK_LIMIT=$GATE_SECONDS LIMIT=$((LIMIT < GATE_SECONDS ? LIMIT : GATE_SECONDS))
  [ "$FAMILIES" = 4 ] || MONITORED=()
}

has_trial() { [ -e "$TRIAL" ] || [ -e "$CONFIRMED" ]; }

FAMILY=4 MONITORED=(-4) ARGUMENTS=("$@") MONITOR='' MESSAGE='' MISSING='' NOW=0 LOCK_LIMIT=$LOCK_SECONDS LIMIT=0
