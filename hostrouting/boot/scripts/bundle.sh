# --- shared by install.sh and remove.sh ----------------------------------------------------------------------------
# shellcheck shell=bash disable=SC2034,SC2154,SC2329 # each uses some of it

@common.sh@

set -e
readonly UNITS=/etc/systemd/system
readonly WANTS=$UNITS/multi-user.target.wants
readonly MANIFEST=/etc/hostrouting/installed.json
readonly LIST=/etc/hostrouting/gate.list
readonly STAGES=/etc/hostrouting/stages
LOCK=$RUN_DIR/run.lock LOCK_LIMIT=660
readonly CONSUMER=@CONSUMER@
# MODE SHA256 PATH of each file, in writing order. The drop-ins come last, because they close the gate.
FILES=$(cat <<'FILES'
@FILES@
FILES
)

die() { complain "${0##*/}: $1" && exit "${2:-1}"; }
# Prints the temporary path for a new file. If a run is killed, the next run removes it.
new_of() { say "${1%/*}/.${1##*/}.hostrouting-new"; }
is_there() { [ -e "$1" ] || [ -L "$1" ]; }
# As sd_booted(3), but false in a chroot, even with the /run of this machine. A chroot installs for a later boot.
is_running() { [ -d /run/systemd/system ] && [ /proc/1/root -ef / ]; }
reload() { ! is_running || systemctl daemon-reload; }

paths() { cut -d ' ' -f 3 <<<"$FILES"; }
units() { paths | sed -n "s|^$UNITS/\([^/]*\.service\)$|\1|p"; }
# The files of the installed parts, and those of ours. The gate's own files don't belong to any part.
installed_files() { sed -n 's/^  "parts": //p' "$1" | grep -o '"/etc/[^"]*"' | tr -d '"' | sort -u; }
rendered_files() { paths | sed '\|^/etc/hostrouting/|d; \|/..-hostrouting\.conf$|d' | sort -u; }
folders_of() { sed -n 's/^  "folders": //p' "$1" | grep -o '/[^"]*' || true; }
# Removes the empty ones among FOLDERS and our own. Doesn't hide errors, because a chroot may lack /dev/null.
take_folders() {
  local folder
  while read -r folder; do
    [ ! -d "$folder" ] || [ -L "$folder" ] || rmdir --ignore-fail-on-non-empty "$folder" || true
  done <<<"$(sort -r <<<"$FOLDERS"$'\n/etc/hostrouting\n'"$STAGES")"
}

# instances CONSUMER: prints the consumer's units that systemd may start. For a template, adds a fictitious instance to
# show its settings.
instances() {
  is_running || return 0
  say "${1/@./@hostrouting-probe.}"
  [[ $1 == *@.* ]] || return 0
  systemctl list-units --all --full --plain --no-legend --no-pager -- "${1/@./@*.}" | cut -d ' ' -f 1
}

# Acquires the lock of a whole run, and checks that this script may change the installation.
begin() {
  [ $# -eq 0 ] || die "usage: ${0##*/}" 64
  [ "$EUID" -eq 0 ] || die "only root may do this" 77
  [ ! -d /run/systemd/system ] || [ ! -d /proc/1 ] || [ -e /proc/1/root ] ||
    die "can't see whether this is a chroot: root may not look at /proc/1/root" 77
  if is_running; then
    take_lock || die "$MESSAGE"
    ! has_trial || die "a trial of routes is in progress: hostrouting confirm keeps it, hostrouting revert ends it"
  fi
  [ -e "$MANIFEST" ] || return 0
  if [ "$(installed_files "$MANIFEST")" != "$(rendered_files)" ] ||
    ! grep -qxF "  \"consumer\": \"$CONSUMER\"," "$MANIFEST" || ! grep -qxF '  "former": [],' "$MANIFEST"; then
    complain "${0##*/}: $MANIFEST names other parts, or another consumer, than were rendered here"
    die "take those back first, by their own remove.sh or hostrouting remove; if the file is damaged, remove it"
  fi
}
