#!/usr/bin/env python3
"""Draw tokens per second by prompt length and by depth, as one SVG, from the JSON that tools/bench/compare.py writes.

    speed.py [docs/data/cpu.json] [docs/speed-cpu.svg]

A row of panels for each model: prompts on the left, decoding on the right; both axes are logarithmic except the depth, which
starts at zero. Every line ends in its program's name, so that no legend has to be looked up. Standard library only.
"""
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
THREADS = 2
WIDTH, HEIGHT, TOP = 960, 268, 80
PANELS = {"pp": (64, 330), "tg": (530, 310)}
PLOT_HEIGHT = 170
# Colours that stay apart for people who see few, and in grey.
PROGRAMS = {"monel": ("#0b5394", "monel"), "ik_llama.cpp": ("#b45f06", "ik_llama.cpp"), "llama.cpp": ("#6a6a6a", "llama.cpp")}
NAMES = {"SmolLM2-135M-Instruct.Q4_1": "SmolLM2 135M, Q4_1", "gemma-3-270m-q4_k_m": "Gemma 3 270M, Q4_K_M",
         "qwen2.5-coder-0.5b-instruct-q4_k_m": "Qwen2.5-Coder 0.5B, Q4_K_M"}


def curves(rows, model, kind):
    """Points (tokens, speed) of each program: by prompt length, or by depth for the shortest generation."""
    found = {}
    for row in rows:
        program = row["program"].removesuffix(" repacked")
        name, _, depth = row["test"].partition("@")
        if row["model"] != model or row["threads"] != THREADS or program not in PROGRAMS or "tps" not in row:
            continue
        wanted = name.startswith("pp") and not depth if kind == "pp" else name == "tg32"
        if not wanted or "," in row["test"]:
            continue
        x = int(name[2:]) if kind == "pp" else int(depth or 0)
        speed = statistics.median(row["tps"])
        points = found.setdefault(program, {})
        # A program with several settings counts with its best one.
        points[x] = max(points.get(x, 0), speed)
    return {program: sorted(points.items()) for program, points in found.items()}


def ticks(low, high):
    """1, 2, 3 and 5 times powers of ten between two numbers."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10 ** e for e in decades for m in (1, 2, 3, 5) if low <= m * 10 ** e <= high]


class Svg:
    def __init__(self):
        self.parts = []

    def text(self, x, y, text, anchor="start", size=12, colour="#333", weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}" '
                          f'font-weight="{weight}">{text}</text>')

    def line(self, x1, y1, x2, y2, colour="#ddd"):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>')

    def curve(self, points, colour):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]

    def write(self, path, height):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
                'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n')
        path.write_text(head + "\n".join(self.parts) + "\n</svg>\n")


def panel(svg, kind, top, lines):
    """Axes and curves of one panel."""
    left, width = PANELS[kind]
    bottom = top + PLOT_HEIGHT
    speeds = [speed for points in lines.values() for _, speed in points]
    xs = sorted({x for points in lines.values() for x, _ in points})
    low, high = min(speeds) / 1.15, max(speeds) * 1.15
    span = math.log(high / low)

    def y(speed):
        return bottom - PLOT_HEIGHT * math.log(speed / low) / span

    def x(tokens):
        if kind == "tg":
            return left + width * tokens / max(xs[-1], 1)
        return left + width * math.log(tokens / xs[0]) / math.log(xs[-1] / xs[0]) if xs[-1] > xs[0] else left

    for speed in ticks(low, high):
        svg.line(left, y(speed), left + width, y(speed))
        svg.text(left - 8, y(speed) + 4, f"{speed:,.0f}", "end", 11)
    for tokens in xs:
        svg.line(x(tokens), bottom, x(tokens), bottom + 4, "#999")
        svg.text(x(tokens), bottom + 17, f"{tokens}", "middle", 11)
    svg.line(left, bottom, left + width, bottom, "#999")
    ends = []
    for program, points in sorted(lines.items(), key=lambda line: line[1][-1][1]):
        colour, name = PROGRAMS[program]
        svg.curve([(x(tokens), y(speed)) for tokens, speed in points], colour)
        # Names never closer than a line of text.
        at = y(points[-1][1]) + 4
        at = min(at, ends[-1] - 13) if ends else at
        ends.append(at)
        svg.text(left + width + 8, at, name, colour=colour, weight="bold")


def main():
    source = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/data/cpu.json")
    target = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs/speed-cpu.svg")
    data = json.loads(source.read_text())
    rows, machine = data["results"], data["machine"]
    models = [m for m in NAMES if any(row["model"] == m for row in rows)]
    models += sorted({row["model"] for row in rows} - set(models))
    svg = Svg()
    where = f'{machine.get("processor", machine["architecture"])}, {THREADS} threads'
    best = [f for f in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if f in machine.get("features", [])]
    dates = sorted({row["date"] for row in rows})
    svg.text(24, 26, "Tokens per second on the CPU", size=17, weight="bold")
    svg.text(24, 46, f"{where}{', ' + best[-1].replace('_', ' ') if best else ''}; {dates[-1]}", colour="#666")
    for index, model in enumerate(models):
        top = TOP + index * HEIGHT + 30
        svg.text(24, top - 30, NAMES.get(model, model), size=14, weight="bold")
        for kind, title in (("pp", "prompt, by its length in tokens"), ("tg", "decoding, by tokens in the context")):
            lines = curves(rows, model, kind)
            if lines:
                left, width = PANELS[kind]
                svg.text(left, top - 10, title, colour="#666")
                panel(svg, kind, top, lines)
    svg.write(target, TOP + len(models) * HEIGHT + 10)


if __name__ == "__main__":
    main()
