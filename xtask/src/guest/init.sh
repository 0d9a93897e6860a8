#!/bin/sh
# First process of the guest, run by busybox from the initramfs: loads the modules and puts the
# host's files, with a writable layer of memory over them, in place of the initramfs.

fail() {
    echo "guest: $*" >/dev/console
    echo o >/proc/sysrq-trigger
    sleep 60
}

mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
. /job/config

while read -r module; do
    insmod "/modules/$module.ko" || fail "module $module does not load"
done </modules/order

plan9=trans=virtio,version=9p2000.L
mkdir /host /memory
mount -t 9p -o "$plan9,ro,msize=1048576,cache=loose" host /host || fail "cannot mount the host's root"
mount -t tmpfs -o mode=755 memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root ||
    fail "cannot lay memory over the host's root"

for tree in dev proc sys; do
    mount --move "/$tree" "/root/$tree" || fail "cannot move /$tree"
done
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts -o ptmxmode=666 pts /root/dev/pts
mount -t tmpfs -o mode=1777 shm /root/dev/shm
mount -t tmpfs -o mode=755 run /root/run
ln -s /proc/self/fd /root/dev/fd
ln -s /proc/self/fd/0 /root/dev/stdin
ln -s /proc/self/fd/1 /root/dev/stdout
ln -s /proc/self/fd/2 /root/dev/stderr

# With the module tree in its usual place, modprobe works in the guest.
mkdir -p /root/lib/modules
mount --bind "/host$module_tree" /root/lib/modules || fail "cannot bind $module_tree"

share() {
    mkdir -p "/root$2"
    mount -t 9p -o "$plan9,msize=1048576,cache=mmap" "$1" "/root$2" || fail "cannot share $2"
}
. /job/shares

cp -r /job /root/run/guest
exec switch_root /root /bin/sh /run/guest/session
