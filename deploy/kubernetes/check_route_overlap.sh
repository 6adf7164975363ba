#!/bin/sh
# The verdict of hostrouting's last check, read from its marker, for monitoring from outside.
#
#   check_route_overlap.sh [FOLDER]     a custom plugin of node-problem-detector: exits with 0 if every expected CIDR leaves
#                                       through the node's uplinks, with 1 if one doesn't, with 2 if there is no verdict
#   /etc/nhc/scripts/route_overlap.nhc  the same file as a check of Node Health Check; in nhc.conf:  * || check_routes_overlap
#
# FOLDER, or HOSTROUTING_RUN_DIR, is the path of the node's /run/aks-flex-node. The script prints one line of at most 80
# bytes, and needs only a shell, neither Python nor another program: it runs in containers of other projects. The marker
# shows the result of the last check: at the last boot or start of the node or, if `hostrouting watch` runs, after the
# last change.

# The argument is the folder.
read_route_overlap() (
  LC_ALL=C
  finish() {
    printf '%.80s\n' "$2"
    exit "$1"
  }
  # hostrouting removes the stale marker before it writes the other one: there are never both.
  if [ -e "$1/route-overlap.detected" ] || [ -L "$1/route-overlap.detected" ]; then
    [ -f "$1/route-overlap.detected" ] || finish 2 "not judged: the marker isn't a file"
    count=0 first=
    while IFS= read -r line || [ -n "$line" ]; do
      count=$((count + 1))
      [ "$count" -gt 1 ] || first=$line
    done 2>/dev/null <"$1/route-overlap.detected"
    case $first in
      OVERLAP:* | NO-ROUTE:* | BLACKHOLE:* | GATEWAY:* | PORT:*) ;;
      *) finish 2 "not judged: ${first:-the marker is empty}" ;;
    esac
    # OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.1) routes via ib0, expected eth0; shadowed: ...
    kind=${first%%:*}
    cidr=${first#*expected CIDR }
    what=${cidr#*) }
    rest=
    [ "$count" -eq 1 ] || rest=" (+$((count - 1)))"
    finish 1 "$kind: ${cidr%% *} ${what%%;*}$rest"
  fi
  [ ! -e "$1/route-overlap.ok" ] || finish 0 "every expected CIDR leaves through the node's uplinks"
  finish 2 "not judged: no marker in $1"
)

# Fails unless every expected CIDR leaves through the node's uplinks, also without a verdict. NHC provides `die`.
check_routes_overlap() {
  SAID=$(read_route_overlap "${HOSTROUTING_RUN_DIR:-/run/aks-flex-node}") && unset SAID && return 0
  die 1 "check_routes_overlap:  $SAID"
  unset SAID
  return 1
}

# $0 is this file if a shell runs it, under any name; NHC sources it, and then $0 is NHC's own script.
if (read -r line && read -r line && [ "${line%%,*}" = "# The verdict of hostrouting's last check" ]) 2>/dev/null <"$0"; then
  read_route_overlap "${1:-${HOSTROUTING_RUN_DIR:-/run/aks-flex-node}}"
fi
