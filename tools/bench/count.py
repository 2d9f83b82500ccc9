#!/usr/bin/env python3
"""Count what one prompt and one decoded token cost by op, where the processor's own counters cannot be read.

    count.py MODEL.gguf --monel target/release/monel [--prompts 512,32] [--levels avx2,]

Instructions and memory come from valgrind's callgrind, which runs the program as it is, one thread, on a simulated
processor (so AVX2 is its highest level): instructions, and bytes that come from or go to beyond a second-level cache of
2 MB (simulated, without prefetching). Time comes from the program itself on this machine at each level ('' is the best one),
shared out to the ops by `perf`'s samples of its thread; the clock from a chain of multiplications. A decoded token is the
difference between generating 17 and one, divided by 16; loading, which a prompt's count is without, what remains of one
token. It takes some minutes.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import tempfile

# By the function's name; the first pattern that fits. Products clear their totals and copy results to their places.
OPS = [
    ("clearing, copying", r"mem(set|move|cpy)"),
    ("products", r"gemm|avx2::|avx512::|tiles_by_columns"),
    ("attention", r"attention|Rounded|words::"),
    ("unit", r"silu|gelu|gated"),
    ("quantizing", r"quantize"),
    ("norms, rope, rows", r"vectorized|norm|rope|rows|binary|dot_f32|f32_to_f16|kernel::|Kernel|tensor::|SetRows|scale"),
]
NAMES = [name for name, _ in OPS] + ["rest"]
CACHE = ["--cache-sim=yes", "--D1=49152,12,64", "--LL=2097152,16,64"]


def op_of(function):
    return next((name for name, pattern in OPS if re.search(pattern, function)), "rest")


def command(args, prompt, tokens, threads=1):
    ids = ",".join(str(1000 + i * 37 % 9973) for i in range(prompt))
    flags = ["--device", "cpu", "-t", str(threads), "-c", "2048", "--temp", "0", "--json"]
    return [args.monel, "run", args.model, "--ids", ids, "-n", str(tokens), *flags]


def callgrind(args, prompt, tokens):
    """Instructions and bytes of each op inside of the device's work."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out")
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=*SoftChunk*work*", *CACHE]
        subprocess.run(tool + command(args, prompt, tokens), check=True, capture_output=True,
                       env={**os.environ, "MONEL_CPU_FEATURES": "avx2"})
        counts = {name: [0, 0] for name in NAMES}
        names, events, function, called = {}, [], "", False
        for line in out.read_text().splitlines():
            if line.startswith("events:"):
                events = line.split()[1:]
            elif match := re.match(r"fn=\((\d+)\)(?: (.*))?", line):
                function = names.setdefault(match[1], match[2] or "")
            elif match := re.match(r"c?fn=\((\d+)\) (.*)", line):
                names[match[1]] = match[2]
            elif line.startswith("calls="):
                called = True
            elif re.match(r"[+\-*\d]", line):
                # what a call costs stands in the called function too
                if not called:
                    cost = dict(zip(events, map(int, line.split()[1:])))
                    entry = counts[op_of(function)]
                    entry[0] += cost.get("Ir", 0)
                    entry[1] += 64 * (cost.get("DLmr", 0) + cost.get("DLmw", 0))
                called = False
        return counts


def shares(args, level, bench):
    """Seconds of the test (one repetition, or one token) and each op's share of them."""
    env = {**os.environ, **({"MONEL_CPU_FEATURES": level} if level else {})}
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/perf"
        run = [args.monel, "bench", args.model, "--device", "cpu", "-t", "1", "--json", *bench]
        text = subprocess.run(["perf", "record", "-q", "-F", "4000", "-e", "cpu-clock", "-o", data, *run],
                              check=True, capture_output=True, text=True, env=env).stdout
        script = subprocess.run(["perf", "script", "-i", data, "-F", "comm,ip,sym"], check=True, capture_output=True, text=True).stdout
    found = collections.Counter(op_of(line) for line in script.splitlines() if "monel cpu" in line and not re.search("pack_tile|ceiling|clear_page", line))
    total = sum(found.values())
    row = json.loads(text[text.index("{"):])["results"][0]
    tokens = int(re.search(r"\d+", row["test"])[0]) if row["test"].startswith("pp") else 1
    return tokens / row["tps_median"], {name: found[name] / total for name in NAMES}


def clock():
    """Cycles a second: a multiplication waits three for the one before."""
    source = r"""#include <stdio.h>
#include <time.h>
int main(void) { struct timespec a, b; unsigned long x = 3; clock_gettime(CLOCK_MONOTONIC, &a);
for (long i = 0; i < 100000000; i++) __asm__ volatile("imul %0, %0" : "+r"(x));
clock_gettime(CLOCK_MONOTONIC, &b); printf("%f", 3e8 / ((b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec))); }"""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cc", "-O1", "-x", "c", "-", "-o", f"{folder}/clock"], input=source, text=True, check=True)
        return max(float(subprocess.run(f"{folder}/clock", capture_output=True, text=True, check=True).stdout) for _ in range(3))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("--monel", required=True)
    options.add_argument("--prompts", default="512,32")
    options.add_argument("--levels", default="avx2,", help="by commas; '' is the best one")
    args = options.parse_args()
    hertz = clock()
    print(f"clock {hertz / 1e9:.2f} GHz\n")
    levels = args.levels.split(",")
    print("| test | op | instructions, M | beyond 2 MB, MB |" + "".join(f" {l or 'best'}: ms, M cycles |" for l in levels)
          + " instructions a cycle (avx2) |")
    print("| --- | --- |" + " --: |" * (3 + len(levels)))
    few, many = callgrind(args, 1, 1), callgrind(args, 1, 17)
    token = {name: [(b - a) / 16 for a, b in zip(few[name], many[name])] for name in NAMES}
    for prompt in map(int, args.prompts.split(",")):
        whole = callgrind(args, prompt, 1)
        counts = {name: [w - f + t for w, f, t in zip(whole[name], few[name], token[name])] for name in NAMES}
        show(f"pp{prompt}", counts, levels, hertz,
             lambda level: shares(args, level, ["-p", str(prompt), "-n", "0", "-r", str(max(3, 4096 // prompt))]))
    show("tg128, a token", token, levels, hertz, lambda level: shares(args, level, ["-p", "0", "-n", "128", "-r", "5"]))


def show(test, counts, levels, hertz, measure):
    times = {level: measure(level) for level in levels}
    for name in [*NAMES, "all"]:
        instructions, memory = counts[name] if name != "all" else [sum(c[i] for c in counts.values()) for i in (0, 1)]
        seconds = {level: s * (share[name] if name != "all" else 1) for level, (s, share) in times.items()}
        cells = "".join(f" {1e3 * s:.2f}, {hertz * s / 1e6:.1f} |" for s in seconds.values())
        rate = f"{instructions / (hertz * seconds['avx2']):.2f}" if seconds.get("avx2") else ""
        print(f"| {test} | {name} | {instructions / 1e6:.1f} | {memory / 1e6:.1f} |{cells} {rate} |", flush=True)


if __name__ == "__main__":
    main()
