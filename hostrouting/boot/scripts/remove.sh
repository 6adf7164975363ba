#!/bin/bash -p
false # what bash returns if it can't parse the group
{
# Takes back what install.sh, or an Ignition document of the same parts, has installed, as `hostrouting remove` does: a node
# that is held starts, what runs goes on. Rendered: edits are lost.

@bundle.sh@

# take FILE...: removes what is there of these, and says it.
take() {
  local path
  for path; do
    rm -f "$(new_of "$path")"
    is_there "$path" || continue
    rm -f "$path"
    say "removed $path"
    IS_CHANGED=yes
  done
}

# is_ours PATH: where no manifest tells it, another program's file of that name says nothing of us.
is_ours() {
  [ -e "$MANIFEST" ] || [[ $1 == *hostrouting* ]] || { [ -f "$1" ] && grep -q ' by hostrouting[;:]' "$1"; }
}

# The boot script that wants no routes.
IFS= read -r -d '' NO_ROUTES <<'SCRIPT' || true
@NO_ROUTES@
SCRIPT

IS_CHANGED='' FOLDERS=''
begin "$@"
[ ! -e "$MANIFEST" ] || FOLDERS=$(folders_of "$MANIFEST")
take "$LIST" "$UNITS/$CONSUMER.d"/{00,zz}-hostrouting.conf
# A reload skips what is left of the lists of a start that runs the gate: for 20 s at most, and one that begins now admits.
left=150
for unit in $(instances); do
  while [[ $(systemctl show --property=SubState -- "$unit") =~ =(condition|start-pre)$ ]] && [ $((left--)) -gt 0 ]; do
    sleep 0.1
  done
done
for unit in $(units); do
  is_ours "$UNITS/$unit" || continue
  [ "$unit" != hostrouting-watch.service ] || ! is_running || systemctl stop "$unit" || true
  take "$WANTS/$unit" "$UNITS/$unit"
done
# Also if a run that was killed has come as far as this.
if [ -n "$IS_CHANGED" ] || [ -e "$MANIFEST" ]; then reload; fi
# Before the routes: a script that waits would install them again, but ends if its file is gone.
for path in $(paths); do [ "$path" = "$MANIFEST" ] || ! is_ours "$path" || take "$path"; done
rm -rf "$STAGES"
if is_running; then
  [ ! -e "$RUN_DIR/trial.sh" ] || systemctl stop 'hostrouting-trial.*'
  said=$(bash -p -c "$NO_ROUTES" static-routes.sh) || die "can't remove the routes"
  [ "$said" = 'nothing to change' ] || { say "$said" && IS_CHANGED=yes; }
  rm -f "$RUN_DIR"/{trial.sh*,{static-routes,check-route-overlap}.sh.{batch,errors}*,route-overlap.[0-9]*}
  take "$RUN_DIR"/route-overlap.{ok,detected,json}
fi
# The manifest names the folders, and so goes behind them; then what it lies in.
take_folders
take "$MANIFEST"
take_folders
[ -n "$IS_CHANGED" ] || say 'nothing to change'
exit 0
}
