#!/usr/bin/env python3
"""Run monel and its peers in turn on the same models and keep what they reach in a JSON file.

    compare.py --monel target/release/monel --llama LIBDIR --ik PYTHON MODEL.gguf ... [--out docs/data/cpu.json]

LIBDIR has llama.cpp's libraries (`npm pack @node-llama-cpp/linux-x64@3.22.1`, unpacked: package/bins/linux-x64); PYTHON is an
interpreter with ik_llama.cpp (`pip install ik-llama-cpp-python==0.1.5`). A peer that is not named is left out. Every round runs
every program once, one after the other; a figure is the median of all rounds' repetitions. Results of earlier calls stay in the
file unless they are measured again, so that a long table can be made in pieces. The machine has to be quiet: a program that
spins falls to a fraction when something else takes a core.

    --tests SET     `figure` (prompts of 32 to 2048, depths to 4096), `table`, or tests by commas: pp512,tg32@2048
    --avx2          monel and llama.cpp limited to AVX2 as well (ik_llama.cpp is an AVX2 build already)
    --start         start to first token, and peak memory
    --busy          decoding while another process spins on one core
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
SETS = {
    "figure": ["pp32", "pp64", "pp128", "pp256", "pp512", "pp1024", "pp2048"]
    + ["tg32", "tg32@512", "tg32@1024", "tg32@2048", "tg32@4096"],
    "table": ["pp512", "pp32", "tg128", "tg32@2048"],
}
# Eight ordinary tokens of every vocabulary, and a prompt that nearly fills a context of 2048.
SHORT = ",".join(map(str, range(1000, 1008)))
LONG = ",".join(str(1000 + i % 997) for i in range(1984))


def parse(test):
    """`pp512` or `tg32@2048` as kind, tokens, depth."""
    match = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:@(\d+))?", test)
    if not match:
        sys.exit(f"a test is pp or tg, a number of tokens and perhaps @DEPTH, found {test!r}")
    return match[1], int(match[2]), int(match[3] or 0)


def run(command, env=None):
    """A command's standard output, or None after saying why it failed."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode:
        print(f"{command[0]} failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return None
    return done.stdout


class Monel:
    """The program itself; `--features` of the peers is an environment variable here."""

    def __init__(self, path, cpu):
        self.path, self.name = path, "monel" if not cpu else f"monel {cpu}"
        self.env = {"MONEL_CPU_FEATURES": cpu} if cpu else {}

    def measure(self, model, tests, threads, repetitions):
        """Results of the tests. One call measures all combinations of its flags, so tests of one kind share it."""
        calls = {}
        for kind, count, depth in map(parse, tests):
            key = (kind, depth) if kind == "pp" else (kind, count)
            calls.setdefault(key, []).append(count if kind == "pp" else depth)
        for (kind, fixed), values in calls.items():
            values = ",".join(map(str, values))
            flags = ["-p", values, "-n", "0", "-d", str(fixed)] if kind == "pp" else ["-p", "0", "-n", str(fixed), "-d", values]
            command = [self.path, "bench", model, "--device", "cpu", "-t", str(threads), "-r", str(repetitions), "--json"]
            text = run(command + flags, self.env)
            for row in json.loads(text)["results"] if text else []:
                row["test"] = row["test"].replace(" @ d", "@")
                ceiling = {key: row[key] for key in ("ceiling_of", "ceiling_path") if row.get(key)}
                ceiling |= {key: [row[key]] for key in ("ceiling", "ceiling_share") if row.get(key)}
                yield {"test": row["test"], "tps": row["tps"], **ceiling}

    def start(self, model, ids, count, threads):
        command = [self.path, "run", model, "--device", "cpu", "--ids", ids, "-n", str(count), "-c", "2048", "--temp", "0"]
        return first_output(command + ["-t", str(threads)], self.env)


class Peer:
    """A program that prints one JSON object for each test."""

    def __init__(self, name, command, flags):
        self.name, self.command, self.flags = name, command, flags

    def measure(self, model, tests, threads, repetitions):
        command = [*self.command, model, "--tests", ",".join(tests), "-t", str(threads), "-r", str(repetitions), *self.flags]
        text = run(command)
        yield from map(json.loads, text.splitlines() if text else [])

    def start(self, model, ids, count, threads):
        flags = ["--ids", ids, "-n", str(count), "-c", "2048", "-t", str(threads)]
        result = first_output([*self.command, model, *flags, *self.flags])
        # The interpreter that drives the library is no part of it.
        bare = [self.command[0], "-c", "import argparse, ctypes, glob, json, os, random, sys, time; print(1, flush=True)"]
        empty = min((first_output(bare) for _ in range(3)), key=lambda r: r["first_ms"])
        return {**result, "driver_ms": empty["first_ms"], "driver_peak": empty["peak"]}


def first_output(command, env=None):
    """Milliseconds from starting a command to the first byte on its standard output, and its peak memory in bytes."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})})
    first = os.read(child.stdout.fileno(), 1)
    first_ms = 1e3 * (time.perf_counter() - began)
    child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not first:
        sys.exit(f"{command[0]} ended with {child.returncode} and {'no' if not first else 'some'} output")
    return {"first_ms": first_ms, "peak": usage.ru_maxrss * 1024}


def programs(args):
    """What takes part, in the order of a round."""
    levels = ["avx2"] if args.only_avx2 else [None, "avx2"] if args.avx2 else [None]
    llama_builds = {None: [], "avx2": ["--cpu", "haswell"]}
    for cpu in levels:
        suffix = f" {cpu}" if cpu else ""
        if args.monel:
            yield Monel(args.monel, cpu)
        if args.llama:
            driver = [sys.executable, str(HERE / "peer_llama.py"), args.llama]
            yield Peer("llama.cpp" + suffix, driver, llama_builds[cpu])
    if args.ik:
        driver = [args.ik, str(HERE / "peer_ik.py")]
        yield Peer("ik_llama.cpp repacked", driver, ["--repack"])
        if args.ik_plain:
            yield Peer("ik_llama.cpp", driver, [])


def machine():
    """The processor, its instruction sets that matter here, and how many cores this system sees."""
    facts = {"cores": os.cpu_count(), "system": os.uname().sysname, "architecture": os.uname().machine}
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return facts
    found = {key: match[1] for key, match in
             ((key, re.search(rf"^{key}\s*: (.*)$", text, re.M)) for key in ("model name", "cpu family", "flags")) if match}
    wanted = ["avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"]
    flags = found.get("flags", "").split()
    facts["processor"] = f"{found.get('model name', '?')} (family {found.get('cpu family', '?')})"
    facts["features"] = [flag for flag in wanted if flag in flags]
    return facts


class Results:
    """The JSON file: a list of rows, each known by its keys."""

    KEYS = ("program", "model", "test", "threads")
    # What grows with every round: speeds, times, and the ceiling and its share as measured beside each round.
    LISTS = ("tps", "first_ms", "ceiling", "ceiling_share")

    def __init__(self, path, add):
        self.path = pathlib.Path(path)
        self.rows = json.loads(self.path.read_text())["results"] if self.path.exists() else []
        self.fresh = set(map(self.key, self.rows)) if add else set()

    def key(self, row):
        return tuple(row[k] for k in self.KEYS)

    def add(self, row):
        """Adds a measurement: to those of this call, in place of those of an earlier one (without `--add`)."""
        key = self.key(row)
        old = next((r for r in self.rows if self.key(r) == key), None)
        if old is not None and key in self.fresh:
            for name in self.LISTS:
                if name in row and name in old:
                    row[name] = old[name] + row[name]
        if old is not None:
            self.rows.remove(old)
        self.fresh.add(key)
        row["date"] = datetime.date.today().isoformat()
        self.rows.append({k: v for k, v in row.items() if v is not None})

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows.sort(key=lambda r: (r["model"], r["threads"], r["program"], r["test"][:2], len(r["test"]), r["test"]))
        rows = ",\n".join("  " + json.dumps(rounded(row)) for row in self.rows)
        self.path.write_text(f'{{"machine": {json.dumps(machine())},\n "results": [\n{rows}\n ]}}\n')


def rounded(value):
    """Four digits are more than the machine repeats."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return value


def speeds(program, model, tests, threads, args, results, suffix=""):
    for row in program.measure(model, tests, threads, args.repetitions):
        row = {"program": program.name, "model": pathlib.Path(model).stem, "threads": threads, **row}
        row["test"] += suffix
        print(f"{row['program']:22} {row['model']:36} {threads} threads {row['test']:16} {statistics.median(row['tps']):9.1f}", flush=True)
        results.add(row)


def starts(program, model, threads, args, results):
    for test, ids, count in (("start", SHORT, 1), ("memory, short", SHORT, 32), ("memory, full", LONG, 32)):
        if not hasattr(program, "start") or "ik" in program.name:
            return
        for _ in range(args.repetitions if test == "start" else 1):
            row = program.start(model, ids, count, threads)
            row["first_ms"] = [row["first_ms"]]
            results.add({"program": program.name, "model": pathlib.Path(model).stem, "threads": threads, "test": test, **row})
        last = results.rows[-1]
        print(f"{program.name:22} {last['model']:36} {test:14} first token {statistics.median(last['first_ms']):7.1f} ms, "
              f"peak {last['peak'] / 1e6:6.1f} MB, driver {last.get('driver_ms', 0):.0f} ms {last.get('driver_peak', 0) / 1e6:.1f} MB", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="+", metavar="MODEL")
    options.add_argument("--monel", help="the program, built with --release")
    options.add_argument("--llama", help="the folder of llama.cpp's libraries")
    options.add_argument("--ik", help="a Python interpreter that has ik_llama.cpp")
    options.add_argument("--ik-plain", action="store_true", help="ik_llama.cpp also without repacking")
    options.add_argument("--avx2", action="store_true")
    options.add_argument("--only-avx2", action="store_true")
    options.add_argument("--tests", default="figure")
    options.add_argument("--start", action="store_true")
    options.add_argument("--busy", action="store_true")
    options.add_argument("-t", "--threads", default="2", help="by commas")
    options.add_argument("-r", "--repetitions", type=int, default=3)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--add", action="store_true", help="keep the repetitions of earlier calls beside new ones")
    options.add_argument("--out", default=str(HERE.parent.parent / "docs/data/cpu.json"))
    args = options.parse_args()
    taking_part = list(programs(args))
    if not taking_part:
        options.error("name at least one program: --monel, --llama, --ik")
    results = Results(args.out, args.add)
    tests = SETS.get(args.tests) or args.tests.split(",")
    for threads in map(int, args.threads.split(",")):
        for model in args.models:
            for _ in range(args.rounds):
                for program in taking_part:
                    if args.start:
                        starts(program, model, threads, args, results)
                    elif args.busy:
                        speeds(program, model, ["tg64"], threads, args, results)
                        spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                        try:
                            speeds(program, model, ["tg64"], threads, args, results, ", one core busy")
                        finally:
                            spin.kill()
                            spin.wait()
                    else:
                        speeds(program, model, tests, threads, args, results)
                    results.write()


if __name__ == "__main__":
    main()
