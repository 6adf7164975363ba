# --- shared by the boot scripts ---------------------------------------------------------------------------------
# shellcheck shell=bash disable=SC2034,SC2329,SC2006 # each uses some of it; for backquotes, see static-routes.sh
# The scripts need bash, coreutils, util-linux, iproute2 5.9, and any POSIX awk; install.sh and remove.sh also need grep
# and sed. Each script is a single brace group: if the file is truncated, bash runs nothing of the group.

set -u -o pipefail
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
# bash writes a long here-document to a temporary file. At boot, /run is writable long before /tmp.
export TMPDIR=/run
umask 022

readonly RUN_DIR=/run/aks-flex-node
LOCK=$RUN_DIR/lock
readonly CHECK=/etc/aks-flex-node/check-route-overlap.sh
# TRIAL exists while a trial of routes is in progress, CONFIRMED while a confirmed trial is being installed. If the
# confirming process is killed, a timer completes the installation.
readonly TRIAL=$RUN_DIR/trial.json
readonly CONFIRMED=$RUN_DIR/trial.confirmed.json
readonly GATE_OFF=/etc/hostrouting/gate.off
# The rows of the Go package's script while its routes are taken over. The file is in /run, because a reboot removes the
# routes, too.
readonly ADOPTED=$RUN_DIR/adopted
# This command names the manifest, because the default CONFIG may ask for something else.
readonly AGAIN='hostrouting apply /etc/hostrouting/installed.json'
readonly UNWRITABLE='no space is left, it is not writable, or no more files may be open'
# How long this script waits for the lock. Python waits as long.
readonly LOCK_SECONDS=60
# An interface's name may contain any bytes, such as those that control a terminal or end a line in UTF-8.
readonly STEERING=$'[^\t\n -~]'
say() { printf '%s\n' "${@//$STEERING/?}"; }
complain() { say "$@" >&2; }

# Sets NOW to the uptime in hundredths of a second. The system clock wouldn't do, because it may be set during a wait.
read_clock() {
  local up
  read -r up _ </proc/uptime
  NOW=$((10#${up/./}))
}

# Takes the lock that every run holds while it writes, or sets MESSAGE. The trial's script has it as descriptor 9, and
# the scripts that it starts inherit that.
take_lock() {
  MESSAGE="can't open the lock $LOCK: $UNWRITABLE"
  [ -d "$RUN_DIR" ] || mkdir -p "$RUN_DIR" 2>/dev/null || return
  umask 077 # any user who can open the lock can hold it
  [ /dev/fd/9 -ef "$LOCK" ] || { exec 9>>"$LOCK"; } 2>/dev/null || { umask 022 && return 1; }
  umask 022
  MESSAGE="another run has held the lock $LOCK for $LOCK_LIMIT s; to see which process: fuser -v $LOCK"
  flock -w "$LOCK_LIMIT" 9 2>/dev/null && return
  [ $? = 1 ] || MESSAGE="can't take the lock $LOCK: flock doesn't run, or there is no flock (package util-linux)"
  return 1
}

# Returns whether every start is let through unchecked; if so, sets WHY.
is_gate_off() {
  local words
  WHY="the file $GATE_OFF is there"
  [ ! -e "$GATE_OFF" ] || return 0
  WHY='the kernel was started with hostrouting.gate=off'
  read -r words </proc/cmdline
  [[ " $words " == *' hostrouting.gate=off '* ]]
}

is_present() { [ -e "$1" ] || [ -h "$1" ]; } # a symlink may dangle
has_trial() { is_present "$TRIAL" || is_present "$CONFIRMED"; }

MESSAGE='' NOW=0 LOCK_LIMIT=$LOCK_SECONDS
