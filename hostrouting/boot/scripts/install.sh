#!/bin/bash -p
false # what bash returns if it can't parse the group
# shellcheck disable=SC2006 # for backquotes, see static-routes.sh
{
# Installs the files in this folder like `hostrouting apply`, on a host without Python. Rendered: edits are lost.
#
#   ./install.sh     on the running system: files, units, gate, routes, and the check; in a chroot: files and units
#   ./remove.sh      uninstalls them
#
# It installs everything or nothing: after a failure or a signal, it restores what it has changed. It updates an earlier
# installation of the same parts atomically, so no start of the node is checked with a mixture of both.

@bundle.sh@

# keep PATH: saves the current file, so that it can be restored after a failure.
keep() {
  [[ " ${CHANGED[*]} " != *" $1 "* ]] || return 0
  mkdir -p "$OLD${1%/*}"
  ! is_there "$1" || cp -aT "$1" "$OLD$1"
  CHANGED+=("$1")
}

# Small images lack cmp.
is_same() { [[ -f $2 && `sha256sum <"$1"` == `sha256sum <"$2"` ]]; }

# put MODE SOURCE PATH: installs a file with rename(2), so that readers see either the old file or the new one.
put() {
  local change=added new
  [ -L "$3" ] || [ -f "$3" ] || [ ! -e "$3" ] || die "can't write $3: it isn't a file"
  ! is_there "$3" || change=replaced
  [ -L "$3" ] || ! is_same "$2" "$3" || [[ `stat -c '%04a %u' "$3"` != "$1 0" ]] || return 0
  keep "$3"
  mkdir -p "${3%/*}"
  new=`new_of "$3"`
  install -m "$1" "$2" "$new"
  sync "$new"
  mv -fT "$new" "$3"
  say "$change $3"
}

# Adds the folders that this run or an earlier one has created to the manifest.
fill_in_manifest() {
  local folder earlier='' made=() list=''
  [ ! -e "$MANIFEST" ] || earlier=`folders_of "$MANIFEST"`
  while read -r folder; do
    [ -d "$folder" ] && [[ $'\n'$earlier$'\n' != *$'\n'$folder$'\n'* ]] || made+=("$folder")
  done <<<"`folders_of "$HERE$MANIFEST"`"
  [ "${#made[@]}" -eq 0 ] || printf -v list '"%s", ' "${made[@]}"
  printf -v FOLDERS '%s\n' "${made[@]}"
  sed "s|^  \"folders\": .*|  \"folders\": [${list%, }],|" "$HERE$MANIFEST" >"$OLD/manifest"
}

# Makes the list name copies of the scripts until all scripts are installed, so that no start runs old and new ones.
stage() {
  mkdir -p "$STAGE"
  install -m 755 "$HERE"/etc/aks-flex-node/*.sh "$STAGE"
  sync "$STAGE"/*
  sed "s|^/etc/aks-flex-node/|$STAGE/|" "$HERE$LIST" >"$OLD/list"
  put 0644 "$OLD/list" "$LIST"
}

# run_own SCRIPT: runs a script if it is ours; another program may have one with the same name.
run_own() { [[ $FILES != *" $1"* ]] || "$1"; }

# Verifies that the consumer runs the gate; a drop-in may clear its lists.
verify_gate() {
  local unit shown
  for unit in `instances`; do
    shown=`systemctl show --property=LoadState,ExecConditionEx,ExecStartPreEx -- "$unit"`
    [[ $shown != *LoadState=not-found* ]] || complain "there is no unit $CONSUMER: until there is, nothing is held back"
    [[ $shown != *LoadState=loaded* || ($shown == *'gate.sh hold ;'* && $shown == *'gate.sh last ;'*) ]] ||
      die "the gate doesn't hold $unit: something overrides zz-hostrouting.conf; look at: systemctl cat $unit"
  done
}

# A reload restarts the timeout of each unit that is starting, so only reload if units have changed.
reload_if_changed() { [[ " ${CHANGED[*]} " != *" $UNITS/"* ]] || reload; }

# finish STATUS: restores all files unless the run is done, and exits. Signals call it rather than exit, because an exit
# for a second signal would end the restoration.
finish() {
  local i path new said='nothing was installed: all files are as they were'
  [ -z "$IS_ENDING" ] || return 0
  IS_ENDING=yes
  trap '' HUP INT TERM
  set +e
  if [ -z "$IS_DONE" ]; then
    for ((i = ${#CHANGED[@]} - 1; i >= 0; i--)); do
      path=${CHANGED[i]} new=$(new_of "${CHANGED[i]}")
      rm -f "$new"
      if is_there "$OLD$path"; then
        cp -aT "$OLD$path" "$new" && mv -fT "$new" "$path"
      else
        rm -f "$path"
      fi || said="not all files could be restored; fix that, and run $0 or the remove.sh next to it again"
    done
    rm -rf "$STAGE"
    take_folders
    reload_if_changed
    complain "${0##*/}: $said"
  fi
  rm -rf "$OLD"
  exit "$1"
}

HERE=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
CHANGED=() FOLDERS='' IS_DONE='' IS_ENDING='' OLD='' STAGE=''
begin "$@"
for link in "$UNITS"/*.service.{requires,wants}/{static-routes,check-route-overlap}.service; do
  ! is_there "$link" || die "$link is the Go package's: systemctl disable its units first, or run hostrouting apply"
done
while read -r _ sum path; do say "$sum  .$path"; done <<<"$FILES" |
  (cd "$HERE" && sha256sum --check --quiet --strict) >&2 ||
  die "the files next to it aren't the rendered ones"
trap 'finish $?' EXIT
trap 'finish 130' HUP INT TERM
OLD=`mktemp -d -p /tmp` # an image may have no /run
STAGE=$STAGES/${OLD##*/} # the list of a killed run may name another folder

fill_in_manifest
put 0644 "$OLD/manifest" "$MANIFEST"
[ ! -f "$LIST" ] || is_same "$HERE$LIST" "$LIST" || stage
while read -r mode _ path; do
  [ "$path" = "$MANIFEST" ] || put "$mode" "$HERE$path" "$path"
done <<<"$FILES"
for unit in `units`; do
  ! is_there "$WANTS/$unit" || continue
  keep "$WANTS/$unit"
  mkdir -p "$WANTS"
  ln -sT "$UNITS/$unit" "$WANTS/$unit"
  say "enabled $unit"
done
if is_running; then
  reload_if_changed
  # If a run was killed before its reload, systemd hasn't read the files. Otherwise, a drop-in overrides them.
  (verify_gate) 2>/dev/null || reload
  verify_gate
  # From here on, a signal must not restore the files, because the kernel already has the routes.
  trap : HUP INT TERM
  run_own /etc/aks-flex-node/static-routes.sh
fi
IS_DONE=yes
rm -rf "$STAGES"
[ "${#CHANGED[@]}" -gt 0 ] || say 'nothing to change'
is_running || exit 0
for unit in `units`; do
  ! systemctl is-active --quiet network-online.target || systemctl start --no-block "$unit"
done
run_own /etc/aks-flex-node/check-route-overlap.sh
exit 0
}
