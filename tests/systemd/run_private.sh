#!/usr/bin/env bash
# Boots Debian's systemd as the first process of namespaces of its own: its processes, mounts, control
# groups and network are not the machine's, and nothing of the machine is changed.
#
#   run_private.sh FOLDER     FOLDER is /srv in there, beside a copy of /etc; /tmp and /var are empty
#
#   run_private.sh --try      ends with 0 where that is possible: as root, with CAP_SYS_ADMIN
#
# Look into it with `nsenter --all --target PID` and the PID of its systemd. SIGTERM ends it; it also
# ends when this script is killed.
set -euo pipefail

units=(basic sysinit sockets shutdown multi-user network-online)
journal=(systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket)

outside() {
  local folder=$1 cgroups group
  cgroups=$(mktemp -d)
  mount -t cgroup2 cgroup2 "$cgroups"  # where the machine has it mounted differs, or it is not
  group=$cgroups$(sed -n 's/^0:://p' /proc/self/cgroup)/stoker-test-$$
  mkdir "$group"
  # What systemd finds as the root of all control groups is the group that it is born in.
  # shellcheck disable=SC2016
  setpriv --pdeathsig KILL bash -c 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"' - "$group" \
    unshare --fork --kill-child --pid --mount --cgroup --ipc --uts --net \
    bash "$0" --inside "$folder" &
  trap 'kill -KILL $! || true' TERM INT
  while kill -0 $! 2>/dev/null; do wait $! || true; done
  while grep -q "populated 1" "$group/cgroup.events"; do sleep 0.05; done
  find "$group" -depth -type d -exec rmdir {} +
  umount "$cgroups"
  rmdir "$cgroups"
}

# devtmpfs is one for the whole machine: what systemd does to it would be seen outside.
private_dev() {
  mkdir /run/dev
  mount -t tmpfs -o mode=755 tmpfs /run/dev
  mkdir /run/dev/pts /run/dev/shm
  for name in null zero full random urandom tty; do
    touch "/run/dev/$name"
    mount --bind "/dev/$name" "/run/dev/$name"
  done
  # Cards as their drivers name them; behind the names is what answers without one.
  mkdir /run/dev/dri
  for card in nvidia0 nvidiactl nvidia-uvm kfd dri/renderD128; do
    mknod -m 666 "/run/dev/$card" c 1 3
  done
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /run/dev/pts
  ln -s pts/ptmx /run/dev/ptmx
  ln -s /proc/self/fd /run/dev/fd
  mount -t tmpfs -o mode=1777 tmpfs /run/dev/shm
  mount --rbind /run/dev /dev
}

private_etc() {
  mkdir /run/etc
  cp -a /etc/. /run/etc/
  rm -rf /run/etc/systemd /run/etc/stoker /run/etc/fstab
  mkdir -p /run/etc/systemd/system/{sockets,sysinit}.target.wants
  for unit in "${units[@]/%/.target}" "${journal[@]}"; do
    cp "/lib/systemd/system/$unit" /run/etc/systemd/system
  done
  ln -s ../systemd-journald.service /run/etc/systemd/system/sysinit.target.wants
  for socket in "${journal[@]:1}"; do
    ln -s "../$socket" /run/etc/systemd/system/sockets.target.wants
  done
  mount --bind /run/etc /etc
}

inside() {
  mount --make-rprivate /
  mount --bind "$1" /srv
  mount -t tmpfs -o mode=755 tmpfs /run
  private_dev
  private_etc
  for folder in /var/lib /var/cache /var/log; do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
  done
  # Numbers of processes mean others in there: nothing that bears one is shared.
  mount -t tmpfs -o mode=1777 tmpfs /tmp
  mount -t tmpfs -o mode=1777 tmpfs /var/tmp
  mount -t proc proc /proc
  mount -t sysfs -o ro sysfs /sys
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mount --bind /proc/sys /proc/sys
  mount -o remount,bind,ro /proc/sys
  # Only what stands in this folder is a unit in there.
  exec env -i container=stoker SYSTEMD_UNIT_PATH=/etc/systemd/system PATH="$PATH" \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal-or-kmsg
}

# Every kind of mount that is made below, where it disturbs nobody.
try() {
  mount -t tmpfs tmpfs /mnt
  mkdir /mnt/{proc,sys,cgroup,pts}
  mount -t proc proc /mnt/proc
  mount -t sysfs -o ro sysfs /mnt/sys
  mount -t devpts -o newinstance devpts /mnt/pts
  mount -t cgroup2 cgroup2 /mnt/cgroup
  mkdir "/mnt/cgroup/stoker-try-$$"
  rmdir "/mnt/cgroup/stoker-try-$$"
}

case $1 in
  --inside) inside "$2" ;;
  --outside) outside "$2" ;;
  --inside-try) try ;;
  --try)
    exec unshare --fork --pid --mount --propagation private --cgroup --ipc --uts --net \
      bash "$0" --inside-try
    ;;
  *) exec unshare --mount --propagation private bash "$0" --outside "$1" ;;
esac
