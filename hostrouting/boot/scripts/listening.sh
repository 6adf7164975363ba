# --- whether the routes change while the check looks ----------------------------------------------------------------
# shellcheck shell=bash disable=SC2034,SC2154 # a part of check-route-overlap.sh

# The netlink groups that every listener joins: links, nexthop objects, and IPv4's addresses, routes and rules.
readonly GROUPS_HEARD=$((16#800000d1))
readonly HEAR_SECONDS=5

# Starts LISTENER, which records changes. Or fails and sets MESSAGE.
listen() {
  make_files && discard_changes || return
  # Set this first, because a signal may arrive right after the start.
  trap 'end_child "${!-}"; end_child "${NEWS_PID-}"' EXIT
  ip "${MONITORED[@]}" -N -o monitor link address route rule nexthop netconf \
    </dev/null >>"$HEARD" 2>&1 8<&- 9>&- &
  LISTENER=$! IS_LISTENING=''
  disown 2>/dev/null || true # it may have ended already
}

# Returns whether LISTENER has its socket, which is found by its inode, because other processes may listen to the same
# groups. A user may have thousands of sockets, so this reads them all only once in a look.
is_listening() {
  local rows=() socket
  mapfile -d '' rows </proc/self/net/netlink
  for socket in $(exec readlink "/proc/$LISTENER/fd/"* 2>/dev/null); do
    [[ $socket =~ ^socket:.([0-9]+).$ ]] || continue
    [[ ${rows[*]} =~ \ ([0-9a-f]{8})\ [^$'\n']*\ ${BASH_REMATCH[1]}\ *$'\n' ]] || continue
    [ $((16#${BASH_REMATCH[1]} & GROUPS_HEARD)) -ne "$GROUPS_HEARD" ] || return 0
  done
  return 1
}

# Waits until LISTENER sleeps. Then it has recorded all changes, because a message in its queue would wake it. Or fails
# and sets MESSAGE.
drain_listener() {
  local until state
  read_clock
  until=$((NOW + HEAR_SECONDS * 100))
  while [ "$NOW" -lt "$until" ]; do
    if ! { read -r _ _ state _ <"/proc/$LISTENER/stat"; } 2>/dev/null; then
      MESSAGE=''
      { read -r _ && IFS= read -r MESSAGE; } 2>/dev/null <"$HEARD"
      MESSAGE="can't listen for changes: ip monitor has ended: $MESSAGE"
      return 1
    fi
    # Until it listens, it may also sleep.
    if [ "$state" = S ] && { [ -n "$IS_LISTENING" ] || is_listening; }; then
      IS_LISTENING=yes
      return 0
    fi
    read_clock
  done
  MESSAGE="can't listen for changes: /proc/net/netlink shows no idle ip monitor in $HEAR_SECONDS s"
  return 1
}

# Discards the recorded changes, or fails and sets MESSAGE. Writing the line detects a full file system, which ip
# wouldn't report.
discard_changes() {
  MESSAGE="can't write to $RUN_DIR: $UNWRITABLE"
  say '==heard' >"$HEARD"
} 2>/dev/null

# Sets CHANGE to how much the recorded changes matter, as think says; to 2 if awk was killed.
weigh_changes() {
  local level
  CHANGE=0
  [ "$(<"$HEARD")" != ==heard ] || return 0
  for FAMILY in $FAMILIES; do
    level=$(think <"$HEARD")
    [ "${level:-2}" -le "$CHANGE" ] || CHANGE=${level:-2}
  done
}

# Runs the check, and repeats it if a change that matters happened in the meantime, even if it was undone. If the only
# effect may be an incomplete dump, two checks in a row must say the same. Or fails and sets MESSAGE.
check_consistently() {
  local left earlier=''
  listen || return
  for ((left = ATTEMPTS; left; left--)); do
    drain_listener && discard_changes && judge && drain_listener || return
    weigh_changes
    [ "$CHANGE" -ne 0 ] && [ "$CHANGE$VERDICT$LINES" != "1$earlier" ] || return 0
    [ "$CHANGE" -eq 1 ] && earlier=$VERDICT$LINES || earlier=''
  done
  MESSAGE='the routes changed each time that they were read; try again later'
  return 1
}
