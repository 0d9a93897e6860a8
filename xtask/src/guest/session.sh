# Second part of the guest's first process, run by the host's shell on the host's files: brings up
# the network and the Soft-RoCE links, runs the command, and reports.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/null >/dev/console 2>&1
. /run/guest/config

fail() {
    echo "guest: $*"
    echo o >/proc/sysrq-trigger
    sleep 60
}

# Tries COMMAND for five seconds. `wait_for WHAT COMMAND...`
wait_for() {
    what=$1
    shift
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || fail "no $what after 5 s"
        sleep 0.05
    done
}

# Whether the device has a GID made from an IPv4 address.
has_gid() {
    for gid in /sys/class/infiniband/"$1"/ports/1/gids/[0-3]; do
        read -r value <"$gid" 2>/dev/null || continue
        case $value in 0000:0000:0000:0000:0000:ffff:*) return 0 ;; esac
    done
    return 1
}

# Duplicate address detection would keep the link-local addresses unusable for two seconds.
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo rdma-guest >/proc/sys/kernel/hostname

case $links in
none)
    ip link set lo up || fail "cannot bring lo up"
    ;;
dummy)
    # Loading the module has made dummy0.
    ip -batch - <<END || fail "cannot configure dummy0"
link set lo up
link set dummy0 mtu $mtu up
addr add 10.77.0.1/24 dev dummy0
END
    rdma link add rxe_0 type rxe netdev dummy0 || fail "cannot add rxe_0 on dummy0"
    wait_for "IPv4 GID on rxe_0" has_gid rxe_0
    ;;
veth)
    # Both ends are in one namespace: each must accept packets that come from a local address.
    for conf in all default; do
        echo 1 >/proc/sys/net/ipv4/conf/$conf/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/$conf/rp_filter
        echo 1 >/proc/sys/net/ipv4/conf/$conf/arp_ignore
        echo 2 >/proc/sys/net/ipv4/conf/$conf/arp_announce
    done
    ip -batch - <<END || fail "cannot configure the veth pair"
link set lo up
link add veth0 mtu $mtu type veth peer name veth1 mtu $mtu
link set veth0 up
link set veth1 up
addr add 10.77.0.1/24 dev veth0
addr add 10.77.0.2/24 dev veth1
END
    rdma link add rxe_0 type rxe netdev veth0 || fail "cannot add rxe_0 on veth0"
    rdma link add rxe_1 type rxe netdev veth1 || fail "cannot add rxe_1 on veth1"
    wait_for "IPv4 GID on rxe_0" has_gid rxe_0
    wait_for "IPv4 GID on rxe_1" has_gid rxe_1
    ;;
esac
[ "$links" = none ] || chmod 666 /dev/infiniband/*

ulimit -l unlimited
ulimit -n 65536

wait_for "port to the host" test -c /dev/vport0p3
exec 5>/dev/vport0p1
# Pipes, so that the command may reopen its outputs by name; a port opens only once.
mkfifo /run/guest/stdout /run/guest/stderr
cat </run/guest/stdout >/dev/vport0p2 &
cat </run/guest/stderr >/dev/vport0p3 &
exec 3>/run/guest/stdout 4>/run/guest/stderr

read -r uptime _ </proc/uptime
echo "ready $uptime" >&5
/bin/sh /run/guest/command >&3 2>&4 3>&- 4>&- 5>&-
status=$?
sync
printf %s "$mark" >&3
printf %s "$mark" >&4
echo "exit $status" >&5
while :; do sleep 3600; done
