#!/usr/bin/env python3
"""Print the tables of docs/performance.md from the JSON that compare.py writes.

    table.py [docs/data/cpu.json]               a table for each number of threads and set of instructions
    table.py --compact docs/data/cpu-xeon.json  all of them in one, and the goals

A program with several settings (weights repacked at load or not) counts with the better one in each row.
"""
import json
import pathlib
import statistics
import sys

NAMES = {"SmolLM2-135M-Instruct.Q4_1": "SmolLM2 135M Q4_1", "gemma-3-270m-q4_k_m": "Gemma 3 270M Q4_K_M",
         "qwen2.5-coder-0.5b-instruct-q4_k_m": "Qwen2.5-Coder 0.5B Q4_K_M"}
TESTS = ["pp512", "pp32", "tg128", "tg64", "tg32@2048"]


# Ratios to the better peer: SmolLM2, Gemma, Qwen; with AVX-512 and above, and with AVX2.
GOALS = {"pp512": [(2.0, 2.0, 1.8)] * 2, "pp32": [(1.8, 2.0, 1.6)] * 2,
         "tg128": [(1.3, 1.1, 1.05), (1.3, 1.4, 1.2)], "tg32@2048": [(1.5, 1.15, 1.2), (2.5, 1.6, 1.6)]}
SETTINGS = [("", 2), ("", 1), (" avx2", 2), (" avx2", 1)]
HEADINGS = ["two threads", "one thread", "AVX2, two threads", "AVX2, one thread"]


class Data:
    def __init__(self, path):
        self.rows = json.loads(pathlib.Path(path).read_text())["results"]

    def find(self, program, model, test, threads):
        """The row of a program's best setting; None where it was not measured."""
        settings = [program, program + " repacked"]
        rows = [r for r in self.rows if r["program"] in settings and (r["model"], r["test"], r["threads"]) == (model, test, threads)]
        return max(rows, key=middle, default=None)

    def models(self):
        return [m for m in NAMES if any(r["model"] == m for r in self.rows)]


def middle(row):
    """The median of a row's speeds, or of the times that stand in their place."""
    return statistics.median(row.get("tps") or row["first_ms"])


def speeds(data, threads, suffix):
    programs = ["monel" + suffix, "llama.cpp" + suffix, "ik_llama.cpp"]
    print(f"\n### {threads} threads{', limited to' + suffix.upper() if suffix else ''}\n")
    print("| model | test | monel | of ceiling | llama.cpp | ik_llama.cpp | monel / llama.cpp | monel / ik |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    for model in data.models():
        name = NAMES[model]
        for test in TESTS:
            rows = [data.find(program, model, test, threads) for program in programs]
            if not rows[0] or not rows[1]:
                continue
            share = rows[0].get("ceiling_share")
            values = [f"{middle(row):.0f}" if row else "-" for row in rows]
            ratios = [f"{middle(rows[0]) / middle(row):.1f}" if row else "-" for row in rows[1:]]
            share = f"{statistics.median(share):.0%}".replace("%", " %") if share else "-"
            print(f"| {name} | {test.replace('@', ' @ d')} | {values[0]} | {share} | {values[1]} | {values[2]} | {ratios[0]} | {ratios[1]} |")
            name = ""


def starts(data):
    print("\n### Start and memory\n")
    print("| model | first token, ms: monel | llama.cpp | peak MB, short: monel | llama.cpp | peak MB, full: monel | llama.cpp |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for model in data.models():
        cells = []
        for test, kind in (("start", "first_ms"), ("memory, short", "peak"), ("memory, full", "peak")):
            for program in ("monel", "llama.cpp"):
                row = data.find(program, model, test, 2)
                if not row:
                    cells.append("-")
                elif kind == "peak":
                    cells.append(f"{(row['peak'] - row.get('driver_peak', 0)) / 1e6:.0f}")
                else:
                    cells.append(f"{middle(row) - row.get('driver_ms', 0):.0f}")
        print(f"| {NAMES[model]} | " + " | ".join(cells) + " |")


def busy(data):
    print("\n### One core busy\n\n| model | monel: idle | busy | share | llama.cpp: idle | busy | share |\n| --- | --: | --: | --: | --: | --: | --: |")
    for model in data.models():
        cells = []
        for program in ("monel", "llama.cpp"):
            rows = [data.find(program, model, test, 2) for test in ("tg64", "tg64, one core busy")]
            if all(rows):
                idle, loaded = map(middle, rows)
                cells += [f"{idle:.0f}", f"{loaded:.0f}", f"{loaded / idle:.0%}".replace("%", " %")]
            else:
                cells += ["-"] * 3
        print(f"| {NAMES[model]} | " + " | ".join(cells) + " |")


def row_of(data, model, test, suffix, threads):
    """The rows of monel, llama.cpp and ik_llama.cpp, None where one is missing."""
    return [data.find(name, model, test, threads) for name in ("monel" + suffix, "llama.cpp" + suffix, "ik_llama.cpp")]


def compact(data):
    print("| model | test | " + " | ".join(HEADINGS) + " |\n| --- | --- " + "| --: " * len(HEADINGS) + "|")
    for model in data.models():
        name = NAMES[model]
        for test in GOALS:
            cells = []
            for setting in SETTINGS:
                rows = row_of(data, model, test, *setting)
                cells.append(" / ".join(f"{middle(row):.0f}" if row else "-" for row in rows))
            print(f"| {name} | {test.replace('@', ' @ d')} | " + " | ".join(cells) + " |")
            name = ""
    print("\n| ratio to the better peer (goal) | test | SmolLM2 | Gemma 3 | Qwen2.5-Coder |\n| --- | --- | --: | --: | --: |")
    for (suffix, threads), heading in zip(SETTINGS, HEADINGS):
        for test, goals in GOALS.items():
            cells = []
            for model, goal in zip(NAMES, goals[bool(suffix)]):
                rows = row_of(data, model, test, suffix, threads)
                if not rows[0] or not any(rows[1:]):
                    cells.append("-")
                    continue
                ratio = middle(rows[0]) / max(middle(row) for row in rows[1:] if row)
                cells.append(f"{ratio:.2f} ({goal})" if ratio >= goal else f"**{ratio:.2f}** ({goal})")
            print(f"| {heading} | {test.replace('@', ' @ d')} | " + " | ".join(cells) + " |")
            heading = ""
    spreads = sorted((max(r["tps"]) - min(r["tps"])) / middle(r) for r in data.rows if len(r.get("tps", [])) > 1)
    if spreads:
        print(f"\nspread of a row's repetitions: median {spreads[len(spreads) // 2]:.1%}, nine in ten below {spreads[len(spreads) * 9 // 10]:.1%}")


def main():
    here = pathlib.Path(__file__).parent.parent.parent
    paths = [argument for argument in sys.argv[1:] if argument != "--compact"]
    data = Data(paths[0] if paths else here / "docs/data/cpu.json")
    if "--compact" in sys.argv:
        compact(data)
        starts(data)
        busy(data)
        return
    for suffix in ("", " avx2"):
        for threads in (2, 1):
            speeds(data, threads, suffix)
    starts(data)
    busy(data)


if __name__ == "__main__":
    main()
