#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Makes a table, bench.json and a picture of what was measured.

Usage: report.py DIR [KEY=VALUE...]; the values are the conditions of the run.
"""

import collections
import json
import statistics
import sys

from rows import C, IMPLEMENTATIONS, NAMES, OURS, ROWS, TCP, VERBS

SETUPS = {"two": "two machines", "one": "one machine, two namespaces"}
RIVALS = [C, TCP, VERBS]


def spread(values):
    """Median and quartiles."""
    if len(values) == 1:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def advantage(ours, theirs, more_is_better):
    """How many times better ours is: above 1 is better, whatever the unit."""
    return ours / theirs if more_is_better else theirs / ours


def evaluate(records):
    """The rows of each setup, with all values, medians, and comparisons within repetitions."""
    values = collections.defaultdict(dict)
    for record in records:
        for row, value in record.get("values", {}).items():
            key = record["setup"], row, record["implementation"]
            values[key][record["repetition"]] = value
    setups = {}
    for setup in SETUPS:
        rows = {}
        for row, (measurement, title, unit, more_is_better) in ROWS.items():
            found = {i: values[setup, row, i] for i in IMPLEMENTATIONS if (setup, row, i) in values}
            if not found:
                continue
            entry = {"measurement": measurement, "title": title, "unit": unit,
                     "more_is_better": more_is_better, "values": {}, "advantage": {}}
            for name, by_repetition in found.items():
                entry["values"][name] = {
                    "all": [by_repetition[r] for r in sorted(by_repetition)],
                    **spread(list(by_repetition.values()))}
            for rival in RIVALS:
                both = found.get(OURS, {}).keys() & found.get(rival, {}).keys()
                ratios = [advantage(found[OURS][r], found[rival][r], more_is_better)
                          for r in sorted(both) if found[OURS][r] > 0 and found[rival][r] > 0]
                if ratios:
                    entry["advantage"][rival] = {"all": ratios, **spread(ratios)}
            rows[row] = entry
        if rows:
            setups[setup] = rows
    return setups


def number(value):
    """Three digits that count."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(stats):
    if stats is None:
        return "-"
    return f"{number(stats['median'])} ({number(stats['q1'])}-{number(stats['q3'])})"


def table(setups, conditions):
    """The text that is printed."""
    lines = [", ".join(f"{k} {v}" for k, v in conditions.items()),
             "Medians (quartiles). xC, xTCP, xverbs: how many times better smc-rs is; above 1 it is ahead."]
    for setup, rows in setups.items():
        lines.append("")
        head = f"{SETUPS[setup]:42}" + "".join(f"{NAMES[i]:>23}" for i in IMPLEMENTATIONS)
        lines.append(head + f"{'xC':>8}{'xTCP':>8}{'xverbs':>8}")
        for entry in rows.values():
            line = f"{entry['title']}, {entry['unit']}".ljust(42)
            for name in IMPLEMENTATIONS:
                line += f"{cell(entry['values'].get(name)):>23}"
            for rival in RIVALS:
                ratio = entry["advantage"].get(rival)
                line += (f"{ratio['median']:.2f}" if ratio else "-").rjust(8)
            lines.append(line)
    return "\n".join(lines)


def picture(setups, conditions, path):
    """One panel for each setup, a line for each row: right of the middle is better."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    marks = {C: ("o", "#1b6ca8", 8), TCP: ("D", "#8a8a8a", 5), VERBS: ("|", "#c05a00", 12)}
    height = max(len(rows) for rows in setups.values()) * 0.36 + 2.2
    figure, panels = plt.subplots(1, len(setups), figsize=(10.5 * len(setups), height), squeeze=False)
    for panel, (setup, rows) in zip(panels[0], setups.items()):
        entries = list(rows.values())[::-1]
        everything = [s[k] for e in entries for s in e["advantage"].values() for k in ("q1", "q3")]
        low, high = min(everything + [0.5]) / 1.3, max(everything + [2]) * 1.3
        panel.axvspan(1, high, color="#e6f4e6", zorder=0)
        panel.axvspan(low, 1, color="#fbe9e7", zorder=0)
        panel.axvline(1, color="#444444", linewidth=1, zorder=1)
        for y, entry in enumerate(entries):
            for rival in reversed(RIVALS):
                ratio = entry["advantage"].get(rival)
                if not ratio:
                    continue
                mark, colour, size = marks[rival]
                panel.plot([ratio["q1"], ratio["q3"]], [y, y], color=colour, linewidth=2, zorder=2)
                panel.plot(ratio["median"], y, mark, color=colour, markersize=size,
                           markeredgewidth=2 if mark == "|" else 1, zorder=3)
            parts = [number(entry["values"][i]["median"]) if i in entry["values"] else "–"
                     for i in (OURS, C, TCP)]
            panel.text(1.01, y, " / ".join(parts) + f"  {entry['unit']}", fontsize=8,
                       va="center", transform=panel.get_yaxis_transform())
        panel.set_xscale("log", base=2)
        panel.set_xlim(low, high)
        panel.set_ylim(-0.6, len(entries) - 0.4)
        panel.set_yticks(range(len(entries)), [e["title"] for e in entries], fontsize=9)
        panel.xaxis.set_major_formatter(
            lambda value, _: f"{value:g}×" if value >= 1 else f"1/{1 / value:.0f}×")
        panel.set_xlabel("← smc-rs is behind      how many times better      smc-rs is ahead →")
        panel.set_title(SETUPS[setup], fontweight="bold")
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.text(1.01, len(entries) - 0.35, "smc-rs / C / TCP", fontsize=8, fontweight="bold",
                   transform=panel.get_yaxis_transform())
    handles = [plt.Line2D([], [], linestyle="", marker=marks[r][0], color=marks[r][1],
                          markersize=marks[r][2], label=f"against {NAMES[r]}") for r in RIVALS
               if any(r in e["advantage"] for rows in setups.values() for e in rows.values())]
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False,
                      bbox_to_anchor=(0.5, 0.015))
    figure.suptitle("smc-rs beside C SMC-R, TCP and raw verbs on the same devices: medians, lines are quartiles")
    figure.text(0.01, 0.01, ", ".join(f"{k} {v}" for k, v in conditions.items()), fontsize=7)
    figure.tight_layout(rect=(0, 0.045, 1, 0.98))
    for kind in ("svg", "png"):
        figure.savefig(f"{path}.{kind}", dpi=110)


def main():
    directory = sys.argv[1]
    conditions = dict(text.split("=", 1) for text in sys.argv[2:])
    with open(f"{directory}/measured", encoding="utf-8") as f:
        records = [json.loads(line) for line in f]
    setups = evaluate(records)
    conditions["repetitions"] = 1 + max(r["repetition"] for r in records)
    failures = [r for r in records if "failure" in r]
    with open(f"{directory}/bench.json", "w", encoding="utf-8") as f:
        json.dump({"conditions": conditions, "setups": setups, "failures": failures}, f, indent=1)
    print(table(setups, conditions))
    if setups:
        picture(setups, conditions, f"{directory}/bench")
        print(f"\nwritten: {directory}/bench.json, bench.svg, bench.png")
    for r in failures:
        print(f"FAILED: {r['setup']} {r['measurement']} {r['implementation']}, "
              f"repetition {r['repetition'] + 1}: {r['failure']}")
    return 1 if failures or not setups else 0


if __name__ == "__main__":
    sys.exit(main())
