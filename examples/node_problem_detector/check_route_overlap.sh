#!/bin/sh
# A custom plugin for node-problem-detector: the verdict of hostrouting's last check, from its marker.
#
#   check_route_overlap.sh [FOLDER]     FOLDER is where /run/aks-flex-node of the node is to be found
#
# Exits with 0 if every expected CIDR leaves by the default route's interface, with 1 if one doesn't, with 2 if nothing
# could be judged; one line of at most 80 bytes. Needs a shell and nothing else, neither Python nor another program, as
# the detector runs in a container of its own; so it can't judge by itself. The marker is as fresh as the last check:
# that of the last boot or start of the machine, or, where `hostrouting watch` runs, that of the last change.

LC_ALL=C
folder=${1:-/run/aks-flex-node}

finish() {
  printf '%.80s\n' "$2"
  exit "$1"
}

# hostrouting removes the marker that is stale before it writes the other: both are never there.
if [ -e "$folder/route-overlap.detected" ]; then
  count=0 first=
  while IFS= read -r line || [ -n "$line" ]; do
    count=$((count + 1))
    [ "$count" -gt 1 ] || first=$line
  done 2>/dev/null <"$folder/route-overlap.detected"
  case $first in
    OVERLAP:* | NO-ROUTE:* | BLACKHOLE:*) ;;
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
[ -e "$folder/route-overlap.ok" ] && finish 0 "every expected CIDR leaves by the default route's interface"
finish 2 "not judged: no marker in $folder"
