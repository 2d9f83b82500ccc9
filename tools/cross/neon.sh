#!/usr/bin/env bash
# Runs the tests of the CPU kernels as AArch64 code under qemu, for each kind of processor that the dispatch knows.
# Prints a line that begins with "skipped:" and ends well where the tools or the documentation component are missing.
# What passes here is right; speed under emulation means nothing, and weak memory order does not show.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=aarch64-unknown-linux-gnu
sysroot=${SYSROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/monel-build/aarch64-sysroot}

skip() {
    [ "${MONEL_REQUIRE_NEON:-0}" = 1 ] && { echo "MONEL_REQUIRE_NEON is set, and the NEON tests need $1" >&2; exit 1; }
    echo "skipped: the NEON tests need $1"
    exit 0
}
command -v qemu-aarch64 >/dev/null || skip "qemu-aarch64 (package qemu-user)"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "aarch64-linux-gnu-gcc (packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
mkdir -p "$sysroot"
python3 tools/cross/aarch64-sysroot.py "$sysroot" || skip "a standard library made from the rust-docs component (see above)"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot=$sysroot"
for cpu in ${QEMU_CPUS:-max neoverse-n1 cortex-a53}; do
    echo "-- $cpu"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu $cpu"
    cargo test -p monel --no-default-features --lib --target $target --target-dir target/cross -- device::software::simd quant::
done
