#!/usr/bin/env bash
# Runs what depends on the processor's features on processors that this machine is not, under qemu: the tests of the CPU
# kernels, the check of all ops on small shapes, and tiny models against their f64 forward pass. On x86-64 also the program's
# own `monel check`; compiling the program for AArch64 would take longer than everything else here.
#
# QEMU_X86_CPUS (default: Nehalem, an x86-64 without AVX2) and QEMU_ARM_CPUS (default: one each with the 8-bit matrix
# instructions, with dot products only, and with neither) choose the processors; "" leaves an architecture out.
# For each one a line says what was emulated: "emulated cpu paths: CPU: PATHS". Where a tool is missing, a line begins with
# "skipped:" and the script goes on; with MONEL_REQUIRE_EMULATION=1 it ends with an error instead.
# What passes here is right; speed under emulation means nothing, and weak memory order does not show.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    [ "${MONEL_REQUIRE_EMULATION:-0}" = 1 ] && { echo "MONEL_REQUIRE_EMULATION is set, and $1 needs $2" >&2; exit 1; }
    echo "skipped: $1 needs $2"
    return 1
}

# usage: on CPU RUNNER ENVIRONMENT-NAME; flags of cargo in the arrays `test` and (if it runs, too) `program`
on() {
    local cpu=$1 began=$SECONDS log
    log=$(mktemp)
    export "CARGO_TARGET_$3_RUNNER=$2"
    echo "-- $cpu"
    cargo test "${test[@]}" --lib -- --show-output device::software::simd quant:: check::compare check::tests::small 2>&1 | tee "$log"
    cargo test "${test[@]}" --test tiny_model -- --show-output 2>&1
    [ ${#program[@]} = 0 ] || cargo run "${program[@]}" --bin monel -- check --device cpu -t 2 --max-values 400 2>&1
    echo "emulated cpu paths: $cpu: $(sed -n 's/^cpu paths: //p' "$log") ($((SECONDS - began)) s)"
    rm "$log"
}

x86() {
    local cpu test=(--workspace) program=(--release) # as everywhere else, so nothing is compiled for this alone
    [ "$(uname -m)" = x86_64 ] || return 0
    command -v qemu-x86_64 >/dev/null || skip "x86-64 without AVX2" "qemu-x86_64 (package qemu-user)" || return 0
    for cpu in ${QEMU_X86_CPUS-Nehalem}; do
        on "$cpu" "qemu-x86_64 -cpu $cpu" X86_64_UNKNOWN_LINUX_GNU
    done
}

arm() {
    local cpu target=aarch64-unknown-linux-gnu cpus=${QEMU_ARM_CPUS-max neoverse-n1 cortex-a53}
    local sysroot=${SYSROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/monel-build/aarch64-sysroot}
    [ -n "$cpus" ] || return 0
    command -v qemu-aarch64 >/dev/null || skip NEON "qemu-aarch64 (package qemu-user)" || return 0
    command -v aarch64-linux-gnu-gcc >/dev/null ||
        skip NEON "aarch64-linux-gnu-gcc (packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross)" || return 0
    mkdir -p "$sysroot"
    python3 tools/cross/aarch64-sysroot.py "$sysroot" ||
        skip NEON "a standard library made from the rust-docs component (see above)" || return 0
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot=$sysroot --cfg emulated"
    # Compiling is most of the time: little optimisation, no Vulkan, nothing for benchmarks.
    export CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_TEST_DEBUG=0
    local test=(-p monel -p monel-llm --no-default-features --target $target) program=()
    for cpu in $cpus; do
        on "$cpu" "qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu $cpu" AARCH64_UNKNOWN_LINUX_GNU
    done
}

x86
arm
