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

# keep PATH: saves the current file. After a failure, it can be restored even if no space is left.
keep() {
  [[ " ${CHANGED[*]} " != *" $1 "* ]] || return 0
  [ -d "$OLD${1%/*}" ] || mkdir -p "$OLD${1%/*}"
  ! is_there "$1" || cp -aT "$1" "$OLD$1"
  [ -L "$1" ] || [ ! -f "$1" ] || sync "$OLD$1"
  CHANGED+=("$1")
}

# Small images lack cmp.
is_same() { [[ -f $2 && `sha256sum <"$1"` == `sha256sum <"$2"` ]]; }

# put MODE SOURCE PATH: installs a file with rename(2), so that readers see either the old file or the new one.
put() {
  local change=added new
  [ -L "$3" ] || [ -f "$3" ] || [ ! -e "$3" ] || die "can't write $3: it isn't a file"
  ! is_there "$3" || change=replaced
  new=`new_of "$3"`
  ! is_there "$new" || rm -f "$new" # of a killed restoration
  [ -L "$3" ] || ! is_same "$2" "$3" || [[ `stat -c '%04a %u' "$3"` != "$1 0" ]] || return 0
  keep "$3"
  [ -d "${3%/*}" ] || mkdir -p "${3%/*}"
  install -m "$1" "$2" "$new"
  sync "$new"
  mv -fT "$new" "$3"
  say "$change $3"
}

# Adds the folders that this run or an earlier one has created to the manifest.
fill_in_manifest() {
  local folder made=() list=''
  [ ! -e "$MANIFEST" ] || folders_of "$MANIFEST" >"$HERE/earlier"
  folders_of "$HERE$MANIFEST" >"$HERE/folders"
  while read -r folder; do
    [ -d "$folder" ] && ! grep -qsxF -- "$folder" "$HERE/earlier" || made+=("$folder")
  done <"$HERE/folders"
  [ "${#made[@]}" -eq 0 ] || printf -v list '"%s", ' "${made[@]}"
  printf -v FOLDERS '%s\n' "${made[@]}"
  sed "s|^  \"folders\": .*|  \"folders\": [${list%, }],|" "$HERE$MANIFEST" >"$HERE/manifest"
}

# Makes the list name copies of the new scripts until all scripts are installed, so that no start runs a mix of old and
# new ones. After a failure, the old scripts are restored in the same way, with the list that is kept for that.
stage() {
  local path
  mkdir -p "$STAGE"
  install -m 755 "$HERE"/etc/aks-flex-node/*.sh "$STAGE"
  for path in "$LIST" "$HERE"/etc/aks-flex-node/*.sh; do keep "${path#"$HERE"}"; done
  sed "s|^/etc/aks-flex-node/|$OLD/etc/aks-flex-node/|" "$LIST" >"$STAGE/old"
  sync "$STAGE"/*
  sed "s|^/etc/aks-flex-node/|$STAGE/|" "$HERE$LIST" >"$HERE/list"
  IS_STAGED=yes
  put 0644 "$HERE/list" "$LIST"
}

# Removes the Go package's symlinks with which units require or want ours, and verifies the result. With such a symlink,
# starting or stopping a oneshot stops the running machine.
take_links() {
  local link unit required
  for link in "$UNITS"/*.service.{requires,wants}/{static-routes,check-route-overlap}.service; do
    is_there "$link" || continue
    keep "$link"
    rm -f "$link"
    LINKS+=("$link")
    say "removed $link"
  done
  reload_if_changed
  for link in "${LINKS[@]}"; do
    unit=${link%/*} unit=${unit##*/}
    for unit in `instances "${unit%.*}"`; do
      required=`systemctl show --property=Requires --value -- "$unit"`
      [[ " $required " != *' static-routes.service '* && " $required " != *' check-route-overlap.service '* ]] ||
        die "$unit still requires $required after its links were removed; look at: systemctl cat $unit"
    done
  done
}

# Writes the routes of the Go package's script to a file, from which the first run of our script takes them over.
hand_over() {
  local fields
  is_running && [[ $FILES == *" $ROUTES"* ]] && is_of_go_package "$ROUTES" || return 0
  fields='s#^([0-9.]+/[0-9]+)\|([A-Za-z0-9_.-]+|@@AUTO_(DEV)@@)\|([0-9.]+|@@AUTO_(GW)@@)\|(0|[1-9][0-9]*)$#\1 \4 \2 \6#'
  HAS_HANDED_OVER=yes
  THEIRS=`their_routes`
  # As in a config, no route inside 0/8, 127/8, 224/4 or 240/4 becomes ours.
  sed -nE "$fields; t row; d; :row; s/@@AUTO_(DEV|GW)@@/*/g
    /^(0|127)\.[0-9.]+\/([89]|[12][0-9]|3[0-2]) /d; /^2(2[4-9]|[345][0-9])\.[0-9.]+\/([4-9]|[12][0-9]|3[0-2]) /d
    p" "$ROUTES" >"$ADOPTED"
}

their_routes() { ip -4 -N -o route show table main proto 3; }
# Prints our routes and rules.
ours() {
  local family
  for family in -4 -6; do
    [ "$family" = -4 ] || [ -e /proc/net/if_inet6 ] || continue
    ip "$family" -N -o route show table all proto 217
    ip "$family" -N -o rule show | grep ' proto 217 *$' || true # ip doesn't show those of a protocol only
  done
}

# Restores the routes, because a start of the node may already have run our new script. First, adds the Go package's
# routes that the new script has taken over. Then runs the old script, or ours with an empty list, as at the end of a
# trial.
restore_routes() {
  local route words
  [ -z "$HAS_HANDED_OVER" ] || rm -f "$ADOPTED"
  is_running && [[ " ${CHANGED[*]} " == *" $ROUTES "* ]] || return 0
  (
    exec 9>&- && LOCK=$RUN_DIR/lock LOCK_LIMIT=$LOCK_SECONDS && take_lock || exit
    while read -r route; do
      route="$route " route=${route// dead / }
      read -r -a words <<<"${route// linkdown / }"
      [ "${#words[@]}" -eq 0 ] || ip -4 route replace "${words[@]}" || exit
    done <<<"$(grep -vxF "$(their_routes)" <<<"$THEIRS")"
  ) || return
  if is_there "$ROUTES" && ! is_of_go_package "$ROUTES"; then
    "$ROUTES" trial >/dev/null
  elif [ -z "$OURS" ]; then
    bash -p -c "$(sed '/^==config$/,/^==adopted$/{//!d}' "$HERE$ROUTES")" "${ROUTES##*/}" trial >/dev/null
  fi
}

# run_ours SCRIPT: runs a script if it is ours; another program may have one with the same name.
run_ours() { [[ $FILES != *" $1"* ]] || "$1"; }

# Verifies that the consumer runs the gate, because another drop-in may empty its lists of commands.
verify_gate() {
  local unit shown
  for unit in `instances "$CONSUMER"`; do
    shown=`systemctl show --property=LoadState,ExecConditionEx,ExecStartPreEx -- "$unit"`
    [[ $shown != *LoadState=not-found* ]] || complain "there is no unit $CONSUMER: until there is, nothing is held back"
    [[ $shown != *LoadState=loaded* || ($shown == *'gate.sh hold ;'* && $shown == *'gate.sh last ;'*) ]] ||
      die "the gate doesn't hold $unit: something overrides zz-hostrouting.conf; look at: systemctl cat $unit"
  done
}

# Reloads systemd only if units have changed, because a reload restarts the timeout of each unit that is starting.
reload_if_changed() { [[ " ${CHANGED[*]} " != *" $UNITS/"* ]] || reload; }

# finish STATUS: restores all files unless the run is done, and exits. A signal's trap calls this instead of exit: with
# exit, a second signal would end the restoration.
finish() {
  local i path new said='nothing was installed: all files and routes are as they were'
  [ -z "$IS_ENDING" ] || return 0
  IS_ENDING=yes
  trap '' HUP INT PIPE QUIT TERM
  set +e
  if [ -z "$IS_DONE" ]; then
    [ -z "$IS_STAGED" ] || mv -fT "$STAGE/old" "$LIST" || said=''
    for ((i = ${#CHANGED[@]} - 1; i >= 0; i--)); do
      path=${CHANGED[i]} new=$(new_of "${CHANGED[i]}")
      rm -f "$new"
      if is_there "$OLD$path"; then
        { ln -fT "$OLD$path" "$new" || cp -aT "$OLD$path" "$new"; } && mv -fT "$new" "$path"
      else
        rm -f "$path"
      fi || said=''
    done
    # The list may still name what is in this folder.
    [ -z "$said" ] || rm -rf "${OLD%/*}"
    take_folders
    reload_if_changed
    if [ -z "$said" ]; then
      said="not all files could be restored; fix that, and run $0 or the remove.sh next to it again"
    else
      restore_routes || said="not all routes could be restored; run $0 or the remove.sh next to it again"
    fi
    complain "${0##*/}: $said"
  fi
  rm -rf "$HERE"
  exit "$1"
}

SOURCE=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
CHANGED=() LINKS=() FOLDERS='' HERE='' OLD='' STAGE='' THEIRS='' OURS=''
IS_DONE='' IS_ENDING='' IS_STAGED='' HAS_HANDED_OVER=''
begin "$@"
trap 'finish $?' EXIT
trap 'finish 130' HUP INT TERM
HERE=`mktemp -d -p /tmp` # an image may have no /run
STAGE=$STAGES/${HERE##*/}/new OLD=$STAGES/${HERE##*/}/old # the list of a killed run may name another folder
cp -r "$SOURCE/etc" "$HERE" # what is verified must not change any more
while read -r _ sum path; do say "$sum  .$path"; done <<<"$FILES" |
  (cd "$HERE" && sha256sum --check --quiet --strict) >&2 ||
  die "the files next to it aren't the rendered ones"

fill_in_manifest
take_links
! is_running || OURS=`ours`
hand_over
put 0644 "$HERE/manifest" "$MANIFEST"
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
  # Either a run was killed before its reload, so that systemd hasn't read the files, or a drop-in overrides them.
  (verify_gate) 2>/dev/null || reload
  verify_gate
  # From here on, a signal must not restore the files, because the kernel may already have the routes.
  trap : HUP INT TERM
  run_ours "$ROUTES"
fi
IS_DONE=yes
for link in "${LINKS[@]}"; do
  [ ! -d "${link%/*}" ] || rmdir --ignore-fail-on-non-empty "${link%/*}"
done
rm -rf "$STAGES"
if [ "${#CHANGED[@]}" -eq 0 ]; then
  say 'nothing to change'
elif ! is_running; then
  say 'systemd is not running: set up from the first boot on'
fi
is_running || exit 0
for unit in `units`; do
  ! systemctl is-active --quiet network-online.target || systemctl start --no-block "$unit"
done
run_ours /etc/aks-flex-node/check-route-overlap.sh
exit 0
}
