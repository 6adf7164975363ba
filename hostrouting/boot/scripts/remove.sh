#!/bin/bash -p
false # what bash returns if it can't parse the group
{
# Uninstalls what install.sh has installed, or an Ignition document with the same parts, like `hostrouting remove`. A
# start that is held continues, and a running node isn't stopped. Rendered: edits are lost.

@bundle.sh@

# take FILE...: removes the existing files and prints their names.
take() {
  local path new
  for path; do
    new=$(new_of "$path")
    ! is_there "$new" || rm -f "$new"
    is_there "$path" || continue
    rm -f "$path"
    say "removed $path" || true # its reader may be gone
    IS_CHANGED=yes
  done
}

# is_ours PATH: returns whether a file is ours. Without a manifest, it is ours if it names hostrouting: a killed
# installation may have left the Go package's script, which doesn't.
is_ours() {
  ! is_of_go_package "$1" || return
  [ -e "$MANIFEST" ] || [[ $1 == *hostrouting* ]] || { [ -f "$1" ] && grep -q ' by hostrouting[;:]' "$1"; }
}

# The boot script with an empty list of routes.
IFS= read -r -d '' NO_ROUTES <<'SCRIPT' || true
@NO_ROUTES@
SCRIPT

readonly SNAPSHOTS=/var/lib/hostrouting
IS_CHANGED='' FOLDERS=''
begin "$@"
trap '' HUP INT PIPE QUIT TERM # half a removal would hold every start
[ ! -e "$MANIFEST" ] || FOLDERS=$(folders_of "$MANIFEST")
take "$LIST" "$UNITS/$CONSUMER.d"/{00,zz}-hostrouting.conf
# Wait for starts that are running the gate, because a reload would make systemd skip their other commands. New starts
# pass, because the list is gone.
left=150
for unit in $(instances "$CONSUMER"); do
  while [[ $(systemctl show --property=SubState -- "$unit") =~ =(condition|start-pre)$ ]] && [ $((left--)) -gt 0 ]; do
    sleep 0.1
  done
done
for unit in $(units); do
  is_ours "$UNITS/$unit" || continue
  [ "$unit" != hostrouting-watch.service ] || ! is_running || systemctl stop "$unit" || true
  take "$WANTS/$unit" "$UNITS/$unit"
done
# Reload even if nothing was removed, because an earlier run may have been killed before it did.
if [ -n "$IS_CHANGED" ] || [ -e "$MANIFEST" ]; then reload; fi
# Remove the scripts before the routes. A script that is waiting exits if its file is gone. If it weren't, the script
# would install the routes again.
for path in $(paths); do [ "$path" = "$MANIFEST" ] || ! is_ours "$path" || take "$path"; done
rm -rf "$STAGES"
take "$SNAPSHOTS"/{good,bad}.json
rm -f "$SNAPSHOTS"/.{good,bad}.json.hostrouting-*
FOLDERS+=$'\n'$SNAPSHOTS
if is_running; then
  ! is_of_go_package "$ROUTES" || rm -f "$ADOPTED"
  [ ! -e "$RUN_DIR/trial.sh" ] || systemctl stop 'hostrouting-trial.*'
  said=$(bash -p -c "$NO_ROUTES" static-routes.sh) || die "can't remove the routes"
  [ "$said" = 'nothing to change' ] || { say "$said" && IS_CHANGED=yes; }
  rm -f "$RUN_DIR"/{trial.sh*,{static-routes,check-route-overlap}.sh.[0-9]*,route-overlap.[0-9]*,watch-failures}
  take "$RUN_DIR"/route-overlap.{ok,detected,json}
fi
# Remove the manifest after the folders that it lists, and then its own folder.
take_folders
take "$MANIFEST" /etc/hostrouting/uplink
rm -f /etc/hostrouting/.uplink.hostrouting-*
take_folders
[ -n "$IS_CHANGED" ] || say 'nothing to change'
exit 0
}
