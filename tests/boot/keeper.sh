#!/bin/sh
# Creates the environment of a machine and keeps it until standard input ends. Then every process, mount, cgroup and
# network in it is gone, even if the test was killed.
#
#   keeper.sh outside SELF TREE CGROUP [SOURCE TARGET]...     runs in a separate, private mount namespace
#   keeper.sh inside TREE [SOURCE TARGET]...                  runs as the first process of a PID namespace
#
# Prints 'keeper PID' (a pid in the caller's /proc) and 'fabric PID' (a pid in its own) once everything is ready.
#
# The root of the keeper is the Debian tree, which is read-only. The machine's own root is /mnt/root, an overlay of the
# tree and of /mnt/upper on a tmpfs. The host's file system can't be seen from here.
set -eu

outside() {
  self=$1 tree=$2 name=$3
  shift 3
  # All namespaces share one cgroup tree (v2). It gets a branch for the machine, which is removed at the end.
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  branch=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/$name
  mkdir "$branch"
  status=0
  (
    echo 0 >"$branch/cgroup.procs"
    exec unshare --mount --propagation private --cgroup --net --uts --ipc --pid --fork --kill-child \
      sh "$self" inside "$tree" "$@"
  ) || status=$?
  find "$branch" -depth -type d -exec rmdir {} +
  exit "$status"
}

inside() {
  tree=$1
  shift
  read -r pid _ </proc/self/stat # /proc is still the caller's
  mount --bind "$tree" "$tree"
  mount -o remount,bind,ro "$tree"
  cd "$tree"
  mount -t tmpfs -o mode=755 tmpfs mnt
  mkdir mnt/upper mnt/work mnt/root mnt/host
  mount -t overlay -o lowerdir=.,upperdir=mnt/upper,workdir=mnt/work overlay mnt/root
  while [ $# -gt 0 ]; do
    mkdir -p "mnt/root$2"
    mount --bind "$1" "mnt/root$2"
    mount -o remount,bind,ro "mnt/root$2"
    shift 2
  done
  mount -t proc proc proc
  mount -t sysfs -o ro sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=755 tmpfs run
  mount -t tmpfs -o mode=1777 tmpfs tmp
  pivot_root . mnt/host
  cd /
  umount -l /mnt/host
  ip link set lo up
  # The far ends of the machine's cables are in a separate network.
  # shellcheck disable=SC2016
  unshare --net sh -euc 'ip link set lo up; echo "fabric $$"; exec sleep infinity >/dev/null' &
  echo "keeper $pid"
  exec cat >/dev/null
}

"$@"
