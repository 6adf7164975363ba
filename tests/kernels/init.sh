#!/bin/bash
# The first process in User-Mode Linux: runs $SHARED/command and writes its exit code to $SHARED/code.
#
# The kernel passes its own arguments NAME=VALUE as the environment: MODULES, SHARED and CHECKOUT are directories of the
# machine. Its files are the root, read-only. An overlay of them doesn't work: Linux 5.10 can't start programs there.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/run

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mkdir /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
ln -sf pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t tmpfs -o mode=1777,size=70% tmpfs /dev/shm
for folder in /tmp /var/tmp; do
  mount -t tmpfs -o mode=1777 tmpfs "$folder"
done
mount -t tmpfs -o mode=755 tmpfs /run
# Tests mount an overlay of /etc, in which Linux 5.10 could not read the machine's files.
cp -a /etc /run/etc
mount --bind /run/etc /etc

release=/run/modules/lib/modules/$(uname -r)
mkdir -p "$release" /run/shared "$CHECKOUT"
mount -t hostfs -o "ro,$MODULES" hostfs "$release"
mount -t hostfs -o "$SHARED" hostfs /run/shared
mount -t hostfs -o "ro,$CHECKOUT" hostfs "$CHECKOUT"
printf '#!/bin/sh\nexec modprobe -d /run/modules "$@"\n' >/run/modprobe
chmod +x /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe
/run/modprobe tun
# If IPv6 is a module, nothing else loads it.
[ -e /proc/sys/net/ipv6 ] || /run/modprobe ipv6

ip link set lo up
ulimit -n 65536
export PYTHONPYCACHEPREFIX=/run/pycache HYPOTHESIS_STORAGE_DIRECTORY=/run/hypothesis
cd "$CHECKOUT"
code=0
bash /run/shared/command </dev/null || code=$?
echo "$code" >/run/shared/code
busybox poweroff -f
