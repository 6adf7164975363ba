#!/bin/bash -p
false # what bash returns if it can't parse the group
{
# Checks whether every expected CIDR below leaves through the node's uplinks, and writes the verdict to a marker.
# Rendered by hostrouting: edits are lost. The source explains each part.
#
#   check-route-overlap.sh         the oneshot at boot: waits for the network as configured
#   check-route-overlap.sh gate    before the consumer starts: waits for at most 5 s
#   check-route-overlap.sh gate told    the same, but it doesn't repeat a failure that the marker already has
#   check-route-overlap.sh unjudged WHY    writes a marker without a verdict, if the gate couldn't run the check
#
# In STRICT mode, it exits with 1 if anything fails or there is no verdict; in WARN mode, it only reports this.
#
# attempt() takes the lock, so that no other run changes our routes meanwhile; if it can't, it goes on without the lock.
# Then it looks: ip lists the tables, and awk judges them by asking the kernel, as the awk program explains. During a
# look, an ip monitor records all changes. If one of them may have mattered, the look is repeated. The default route, or
# the address of an InfiniBand interface, may still come. As long as it is missing, keep_trying() gives up the lock,
# waits, and attempts again.
#
# awk knows the shapes of ordinary hosts. If awk has no verdict, Python judges the host, if Python still exists, and
# Python's verdict counts. If awk has found a failure, Python only explains it. At the end, report() leaves one marker.
# A run that is killed leaves no marker that says more than the run knew.

@common.sh@

@network.sh@

readonly MODE=@MODE@
readonly WAIT_SECONDS=@WAIT_SECONDS@
readonly SETTLE_SECONDS=@SETTLE_SECONDS@
readonly FAMILIES=@FAMILIES@
IS_NAMED=@IS_NAMED@
readonly MARKER_OK=$RUN_DIR/route-overlap.ok
readonly MARKER_DETECTED=$RUN_DIR/route-overlap.detected
readonly REPORT=$RUN_DIR/route-overlap.json
# The Python that judges what awk can't, and explains failures, if it still exists; may be empty. Its verdict names the
# checksum of the config that it has read.
readonly PYTHON=@PYTHON@
readonly CONFIG_SUM=@CONFIG_SUM@
readonly JUDGE_SECONDS=8
readonly EXPLAIN_SECONDS=5
readonly GATE_EXPLAIN_SECONDS=3
readonly SAID_BYTES=1000000
readonly SHOWN_LINES=50
readonly TABLES=$'address show\nrule show\nroute show table all\nlink show'

# think: reads a family's state as ip lists it, and prints a verdict. If the input has changes after "==heard", prints
# how much they matter: 2 if the verdict may be wrong, 1 if a dump may be incomplete, else 0. The program and the config
# are quoted here-documents, so nothing in them is expanded. It replaces the calling subshell.
think() {
  exec awk -v family="$FAMILY" -f /dev/fd/3 /dev/fd/4 -
} 3<<'AWK' 4<<'CONFIG'
@check-route-overlap.awk@
AWK
==config
@CONFIG@
==kernel
CONFIG

# Checks each family. Sets VERDICT to the worst verdict, LINES to all messages, beginning with those of families without
# a verdict, LACKING and PENDING to what may still come. Or fails and sets MESSAGE.
judge() {
  local said failures='' fine=''
  VERDICT=ok LACKING='' PENDING=''
  read_verified || return
  for FAMILY in $FAMILIES; do
    list_family "$TABLES" think || return
    # If awk was killed, its output is incomplete.
    MESSAGE='awk ended without an answer'
    [[ $LISTED =~ ^(ok|overlap|unknown)$'\n' && $LISTED = *$'\nend' ]] || return
    said=${LISTED#*$'\n'} said=${said%$'\nend'}
    LACKING=${LACKING:-${said%%$'\n'*}} said=${said#*$'\n'}
    PENDING+=${said%%$'\n'*} said=${said#*$'\n'}
    case ${BASH_REMATCH[1]} in
      ok) fine=$said ;;
      overlap) [ "$VERDICT" = unknown ] || VERDICT=overlap; failures+=${failures:+$'\n'}$said ;;
      unknown) VERDICT=unknown; [ "$failures" = "$said" ] || failures=$said${failures:+$'\n'}$failures ;;
    esac
  done
  LINES=${failures:-$fine} LINES=${LINES//$STEERING/?}
}

@listening.sh@

look() {
  check_consistently || VERDICT=unknown PENDING='' LACKING='' LINES="check-failed: $MESSAGE"
  end_child "$LISTENER"
}

attempt() {
  LIMIT=$NETWORK_LIMIT
  # A process that holds the lock that long won't release it, so don't wait again.
  if [ "$LOCK_LIMIT" -gt 0 ] && ! take_lock; then
    complain "$MESSAGE; judging without it"
    LOCK_LIMIT=0
  fi
  run_replacement
  # Without the lock, a trial may have begun in the meantime.
  is_on_trial || look
  if is_on_trial; then
    VERDICT=unknown LINES='check-failed: a trial of routes is in progress; to end it: hostrouting revert'
    MISSING='the end of the trial of routes'
    return "$MAY_COME"
  fi
  MISSING=$LACKING
  [[ -z $PENDING || ( -n $MISSING && $SETTLE_LIMIT -le $LIMIT ) ]] ||
    MISSING="an address on $PENDING" LIMIT=$SETTLE_LIMIT
  [ -z "$MISSING" ] || return "$MAY_COME"
  [ "$VERDICT" = ok ]
}

# ask_python SECONDS: makes Python judge this host with this script's config, print the shadowed prefixes, the fix and
# the notes, and write the report. Sets JUDGED to its verdict, if it has one, and SAID to its messages. With -I, the
# consumer's environment and working directory don't determine which modules root loads.
#
# An exit code or a word proves nothing: other programs, and other versions of this one, exit with 0 or print "ok" as
# well. Only what has read this config and judged it can name the config's checksum together with a verdict. Another
# verdict than "ok" has reasons. Processes that Python leaves behind may keep its output open.
ask_python() {
  local status head
  [ -x "$PYTHON" ] || return
  SAID=$(timeout -k 1 "$1" "$PYTHON" -I -m hostrouting check --at-boot "$VERDICT" <&4 9>&- |
    timeout "$(($1 + 1))" head -c "$SAID_BYTES" 9>&-)
  status=$?
  [ "${#SAID}" -lt "$SAID_BYTES" ] || SAID=''
  head=${SAID%%$'\n'*} SAID=${SAID#"${SAID%%$'\n'*}"} SAID=${SAID#$'\n'}
  case "$status ${SAID:0:1} $head" in
    "0  ok on "*" for config $CONFIG_SUM") JUDGED=ok ;;
    "1 "[A-Z]" overlap on "*" for config $CONFIG_SUM") JUDGED=overlap ;;
    "2 "[a-z]" unknown on "*" for config $CONFIG_SUM") JUDGED=unknown ;;
  esac
  [ -n "$JUDGED" ] || complain "$PYTHON gives no verdict (exit code $status)"
} 4<<'JSON'
@CONFIG_JSON@
JSON

# Takes Python's verdict if awk has none. Whatever prevents Python's, awk's stays. Without the lock, a trial may have
# begun meanwhile.
judge_by_python() {
  [ "$VERDICT" = unknown ] && ! is_on_trial || return
  # What the gate has told isn't told again.
  if [ -n "$IS_TOLD" ]; then ask_python "$JUDGE_SECONDS" 2>/dev/null; else ask_python "$JUDGE_SECONDS"; fi
  ! is_on_trial || JUDGED=''
  [ -n "$JUDGED" ] || return
  [ "$JUDGED" != ok ] || SAID="every expected CIDR leaves as expected, says $PYTHON; without it: $LINES"
  VERDICT=$JUDGED LINES=${SAID//$STEERING/?}
}

# Only the installed routes count for a start.
is_on_trial() { [ -n "$IS_GATE" ] && has_trial; }

# Writes exactly one marker, atomically. Removes the stale one first, because a missing marker never means "ok". If
# another run that has no lock, either, writes the other marker meanwhile, the later run's stays.
write_marker() {
  local own=$MARKER_DETECTED other=$MARKER_OK text='' new=$RUN_DIR/route-overlap.$$ line
  is_gate_off || WHY=''
  [ "$VERDICT$WHY" != ok ] || own=$MARKER_OK other=$MARKER_DETECTED
  [ -d "$RUN_DIR" ] || mkdir -p "$RUN_DIR"
  [ ! -e "$other" ] || rm -f "$other" || return
  # Python has written the report of the failures that it has found.
  [[ $VERDICT = "$JUDGED" && $VERDICT != ok ]] || [ ! -e "$REPORT" ] || rm -f "$REPORT" || return
  if [ "$own" = "$MARKER_OK" ]; then
    [ ! -L "$own" ] || rm -f "$own" || return
    : >"$own" # an empty file needs no rename
  else
    [ "$VERDICT" = ok ] || while IFS= read -r line; do text+=${line%%$'\t'*}$'\n'; done <<<"$LINES" || return
    [[ -z $WHY || $text = gate-off:* ]] || text+="gate-off: $WHY; every start is admitted unchecked"$'\n'
    (trap '' HUP INT TERM && { printf '%s' "$text" >"$new" && mv -f "$new" "$own" || ! rm -f "$new"; })
  fi || return
  { [ ! -e "$other" ] && [ -e "$own" ]; } || write_marker
}

# Prints the verdict and writes the marker. Returns whether the consumer may start.
report() {
  local is_left=1 shown what
  write_marker 2>/dev/null || { complain "can't write the markers in $RUN_DIR: $UNWRITABLE"; is_left=''; }
  case $VERDICT in
    ok)
      say "$LINES"
      # If another interface has the name, only `hostrouting check` tells it: Ignition documents have no room for more.
      what="is gone; the default route's interface counts as the uplink now, and apply records it"
      [ -z "${GONE-}" ] || say "note: $GONE, with which the check passed, $what" ;;
    overlap)
      mapfile -t shown <<<"$LINES"
      complain "${shown[@]:0:SHOWN_LINES}"
      [ "${#shown[@]}" -le "$SHOWN_LINES" ] ||
        complain "and $((${#shown[@]} - SHOWN_LINES)) more; all are in $MARKER_DETECTED"
      complain 'fix: hostrouting fix prints what fixes it, or why no route does; then: hostrouting apply' \
        "  if hostrouting isn't installed here, take a snapshot, and run elsewhere: hostrouting fix --snapshot FILE"
      [[ -z ${VERIFIED-} || $LINES != *'; by default '* ]] || complain \
        "to keep $VERIFIED, with which the check passed: ${LACKING:-hostrouting fix --in-place && hostrouting apply}" \
        "$(since)$ANOTHER" ;;
    *)
      [ "$FAMILIES" = 4 ] && what=anything || what=everything
      complain "the check couldn't judge $what: ${LINES//$'\t'/}" ;;
  esac
  [[ $MODE = WARN || ( $VERDICT = ok && -n $is_left ) ]]
}

VERDICT='' PENDING='' LINES='' LACKING='' LISTENER='' IS_LISTENING='' CHANGE=0 JUDGED='' SAID='' IS_TOLD=''
[ "$#:${1-}" != 2:unjudged ] || { VERDICT=unknown LINES=$2; report; exit; }
LIMIT=$WAIT_SECONDS SETTLE_LIMIT=$SETTLE_SECONDS EXPLAIN_LIMIT=$EXPLAIN_SECONDS
read_arguments "$@"
if [ -n "$IS_GATE" ]; then
  EXPLAIN_LIMIT=$GATE_EXPLAIN_SECONDS
  SETTLE_LIMIT=$((SETTLE_SECONDS < GATE_SECONDS ? SETTLE_SECONDS : GATE_SECONDS))
  # A hold only waits once, and lets the start through as soon as the failure is fixed.
  [ -z "$IS_TOLD" ] || SETTLE_LIMIT=0
fi
NETWORK_LIMIT=$LIMIT
keep_trying
judge_by_python
# The gate has already reported this failure, and the marker exists.
if [[ $IS_TOLD && $VERDICT =~ ^(overlap|unknown)$ && $(<"$MARKER_DETECTED") == "$LINES" ]] 2>/dev/null; then
  [ "$MODE" = WARN ]
  exit
fi
report
STATUS=$?
exec 9>&-
[ "$VERDICT" != overlap ] || [ -n "$JUDGED" ] || ask_python "$EXPLAIN_LIMIT" >/dev/null
exit "$STATUS"
}
