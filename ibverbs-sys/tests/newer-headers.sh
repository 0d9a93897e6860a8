#!/bin/sh
# Builds ibverbs-sys against the headers of other Debian releases, and runs its tests that need no device.
#
#   ibverbs-sys/tests/newer-headers.sh [SUITE...]        without a suite: trixie sid
#
# Only headers are taken from there: nothing is installed, and programs link with this machine's libraries. Takes apt and
# dpkg-deb, on a Debian machine; MIRROR overrides its mirror. Everything is kept in target/newer-headers.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$root/target/newer-headers
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' | head -n 1)}
key=/usr/share/keyrings/debian-archive-keyring.gpg
[ $# -gt 0 ] || set -- trixie sid

for suite; do
    tree=$work/$suite
    rm -rf "$tree"
    mkdir -p "$tree/apt/lists/partial" "$tree/apt/archives/partial" "$tree/lib"
    echo "deb [signed-by=$key] $mirror $suite main" >"$tree/apt/sources.list"
    cat >"$tree/apt/apt.conf" <<CONF
Dir::State "$tree/apt";
Dir::State::status "/dev/null";
Dir::Cache "$tree/apt";
Dir::Etc::sourcelist "$tree/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Sandbox::User "$(id -un)";
CONF
    export APT_CONFIG="$tree/apt/apt.conf"
    apt-get -qq update
    (cd "$tree" && apt-get -qq download libibverbs-dev librdmacm-dev)
    for package in "$tree"/*.deb; do
        dpkg-deb -x "$package" "$tree/package"
    done
    mv "$tree/package/usr/include" "$tree/include"
    mv "$tree"/package/usr/lib/*/pkgconfig "$tree/lib/pkgconfig"

    echo "== $suite: libibverbs $(sed -n 's/^Version: *//p' "$tree/lib/pkgconfig/libibverbs.pc")"
    cd "$root"
    IBVERBS_SYS_PREFIX=$tree CARGO_TARGET_DIR=$work/target \
        cargo test --quiet --package ibverbs-sys --test coverage --test growth --example device_list -- --show-output
done
