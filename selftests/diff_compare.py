#!/usr/bin/env -S python3 -u
# SPDX-License-Identifier: GPL-2.0
"""Runs the same socket calls over TCP and over SMC, and compares what each call returned.

Usage: diff_compare.py [options] [CASE...]

The cases are scripts for smc_diff in diff.d/ (see diff.c for their language).
A line "each STEP" of a case with the tag each=1-5,9 stands for that step with
{} replaced by every number.  The tag "any" says that the connection may be TCP
where SMC-R is expected, "slow" that the case is not part of the fast run.
Further cases are made at random, from a seed; the
one of seed N has the name random_N.

Every call over SMC must return what it returns over TCP, but for what the
table in docs/differences.md allows (a random case is compared up to the first
step that a row allows); a row of the table that nothing needed
fails, when all cases were run.  A case that differs is run again with more
patience before it counts.  Cases that are named run alone, whatever --fast and
--random say.

Options:
  --list             print the names of the cases
  --flavours LIST    compare these with TCP (default: fallback,smcr; "all")
  --random COUNT     make COUNT cases at random (default 0)
  --seed SEED        from this seed (default: the time; it is printed)
  --steps COUNT      of this many steps (default 14)
  --fast             every second one that is not slow; over other flavours than
                     smcr half of these
  --jobs N           so many cases at once (default 6)
  --looks N          so many looks, with more patience each, before a difference counts
  --quiet-ms MS      how long nothing must change after a step (default 12, times
                     $SMC_SLOW)
  --show             print what every case returned over TCP
  --table FILE       the table of allowed differences
  --count            print the number of results and do nothing else
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINE = os.path.join(HERE, "smc_diff")
TABLE = os.path.join(HERE, "..", "docs", "differences.md")
# What is compared, and with what.
REFERENCE = {"fallback": "tcp-near", "fallback-client": "tcp", "fallback-server": "tcp", "smcr": "tcp", "tcp": "tcp"}
ALL_FLAVOURS = ["fallback", "fallback-client", "fallback-server", "smcr"]
# Patience of the second and the last look at a case that differs, in milliseconds.
AGAIN = [80, 300, 1000]


class Case:
    """A script: its name, tags and steps."""

    def __init__(self, name, tags, lines):
        self.name = name
        self.raw = "raw" in tags
        self.any_mode = "any" in tags
        self.slow = "slow" in tags
        self.lines = lines

    def text(self):
        """The script in the engine's language."""
        head = f"== {self.name}" + (" raw" if self.raw else "")
        return "\n".join([head] + self.lines) + "\n"


def numbers(text):
    """The numbers of a list like 1-5,0x10."""
    out = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        out += range(int(first, 0), int(last or first, 0) + 1)
    return out


def read_cases(path):
    """The cases of a file."""
    cases = []
    each = []
    pending = []

    def flush():
        if pending:
            cases[-1].lines += [line.replace("{}", str(n)) for n in each for line in pending]
            pending.clear()

    with open(path, encoding="ascii") as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line.startswith("== "):
                if cases:
                    flush()
                name, *tags = line[3:].split()
                each = [n for t in tags if t.startswith("each=") for n in numbers(t[5:])]
                cases.append(Case(name, tags, []))
            elif line.startswith("each "):
                pending.append(line[5:])
            elif line:
                flush()
                cases[-1].lines.append(line)
    flush()
    return cases


def random_case(seed, steps):
    """A script of calls on both ends, from a seed."""
    rng = random.Random(seed)
    lines = ["c qset sock SNDTIMEO t80; s qset sock SNDTIMEO t80",
             "c qset sock RCVTIMEO t80; s qset sock RCVTIMEO t80"]
    alive = ["c", "s"]
    for _ in range(steps):
        end = rng.choice(alive)
        length = rng.choice([0, 1, 2, 3, 5, 10, 100, 1000, 4000])
        room = rng.choice([1, 2, 4, 7, 50, 500, 9000])
        flag = rng.choice(["", "", "", "dontwait", "peek", "waitall", "trunc", "peek waitall", "waitall dontwait"])
        step = rng.choices(
            [f"{end} send {length}", f"{end} send {length} {rng.choice(['more', 'nosignal', 'dontwait'])}",
             f"{end} recv {room} {flag}", f"{end} recvmsg {room} 3 / dontwait", f"{end} readv {room} 1",
             f"{end} writev 1 {length} 2", f"{end} drain", f"{end} ioctl inq",
             f"{end} shutdown {rng.choice(['rd', 'wr', 'rdwr'])}", f"{end} close",
             f"{end} set sock LINGER l1,0", f"{end} get sock ERROR",
             f"{end} set tcp {rng.choice(['NODELAY', 'CORK'])} {rng.choice([0, 1])}",
             f"{end} set sock RCVLOWAT {rng.choice([1, 1, 3, 20])}",
             f"{end} fcntl nonblock {rng.choice(['on', 'off'])}", f"{end} spliceout {max(1, length)}",
             f"{end} splicein {room} nonblock", f"{end} sendfile {length}", f"{end} recv 1 oob",
             f"{end} ioctl atmark", f"{end} getpeername",
             f"{end} poll", f"{end} set sock OOBINLINE {rng.choice([0, 1])}"],
            [14, 5, 14, 4, 2, 3, 3, 2, 3, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])[0]
        lines.append(step.strip())
        if step.endswith(" close"):
            alive.remove(end)
            if not alive:
                break
    return Case(f"random_{seed}", [], lines)


class Row:
    """A row of the table of allowed differences."""

    def __init__(self, name, where, tcp, smc):
        self.name = name
        flavours, cases, steps = [part.strip() for part in where.split(":", 2)]
        self.flavours = re.compile(flavours)
        self.cases = re.compile(cases)
        self.steps = re.compile(steps)
        self.tcp = re.compile(tcp)
        self.smc = re.compile(smc)
        self.hits = 0

    def allows(self, flavour, case, step, tcp, smc):
        """Whether this difference is the row's."""
        return (self.flavours.fullmatch(flavour) and self.cases.fullmatch(case) and self.steps.fullmatch(step) and
                self.tcp.fullmatch(tcp) and self.smc.fullmatch(smc)) is not None


def read_table(path):
    """The rows of the tables whose first cells are names in code quotes and that have patterns."""
    rows = []
    with open(path, encoding="ascii") as file:
        for number, line in enumerate(file, 1):
            if not line.startswith("| `"):
                continue
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
            if len(cells) != 6 or not all(cells):
                sys.exit(f"{path}:{number}: a row has six cells: name, where, TCP, SMC, meaning, reason")
            name, where, tcp, smc = (cell.strip("`").replace("\\|", "|") for cell in cells[:4])
            rows.append(Row(name, where, tcp, smc))
    return rows


class Result:
    """What one run of a case said."""

    def __init__(self):
        self.steps = []
        self.modes = []
        self.whole = False


def run(flavour, cases, quiet, jobs):
    """Runs cases and gives back what each said."""
    results = {}
    with tempfile.NamedTemporaryFile("w", suffix=".cases") as file:
        file.write("".join(case.text() for case in cases))
        file.flush()
        with subprocess.Popen([ENGINE, "-j", str(jobs), "-q", str(quiet), flavour, file.name],
                              stdout=subprocess.PIPE, encoding="ascii", errors="replace") as engine:
            read_results(engine.stdout, flavour, results)
    if engine.returncode:
        print(f"# smc_diff ended with status {engine.returncode} for {flavour}")
    return results


def read_results(lines, flavour, results):
    """Takes in what the engine prints, while it does so."""
    now = None
    name = ""
    for line in lines:
        line = line.rstrip("\n")
        if line.startswith("case "):
            name = line[5:]
            now = results[name] = Result()
        elif line.startswith("mode "):
            now.modes.append(line[5:])
        elif line == "end":
            now.whole = True
        elif line.startswith("note "):
            print(f"# {line[5:]}")
        elif line in ("killed", "stuck"):
            print(f"# {flavour}: {name} is {line} after {now.steps[-1][0] if now.steps else 'nothing'}")
            now.steps.append((line, f"{line} in {flavour}" if line == "stuck" else line))
        elif "\t" in line:
            _, step, result = line.split("\t")
            now.steps.append((step, result))


def differences(case, flavour, tcp, smc, rows):
    """Lines that tell what is not allowed, and the rows that allowed the rest."""
    bad = []
    used = []
    wanted = "smcr" if flavour == "smcr" else "tcp"
    for mode in smc.modes:
        if not case.any_mode and not mode.startswith(wanted + " "):
            bad.append(f"the connection is not {wanted}: {mode}")
    for at in range(max(len(tcp.steps), len(smc.steps))):
        step, want = tcp.steps[at] if at < len(tcp.steps) else ("nothing", "nothing")
        other, got = smc.steps[at] if at < len(smc.steps) else ("nothing", "nothing")
        if (step, want) == (other, got):
            continue
        row = next((row for row in rows if row.allows(flavour, case.name, step, want, got)), None)
        if row:
            used.append(row)
            if case.name.startswith("random_"):
                # Two connections that have gone different ways cannot be compared.
                break
        else:
            bad.append(f"{step}: TCP says {want}; {flavour} says {got}")
    return bad, used


def look(flavour, cases, reference, rows, args):
    """Runs cases and compares them with the reference: what is wrong with each."""
    got = run(flavour, cases, args.quiet_ms, args.jobs)
    bad = {}
    for case in cases:
        found, used = differences(case, flavour, reference.get(case.name, Result()),
                                  got.get(case.name, Result()), rows)
        bad[case.name] = found
        if not found:
            for row in used:
                row.hits += 1
    return bad


def chosen(cases, flavour, args):
    """The cases that are run over a flavour."""
    return cases[::2] if args.fast and flavour != "smcr" else cases


def main():
    parser = argparse.ArgumentParser(add_help=False, usage="diff_compare.py [options] [CASE...] (see --help)")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--flavours", default="fallback,smcr")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--looks", type=int, default=1 + len(AGAIN))
    parser.add_argument("--quiet-ms", type=int, default=12 * int(os.environ.get("SMC_SLOW") or 1))
    parser.add_argument("--table", default=TABLE)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    if args.help:
        print(__doc__.strip())
        return 0
    flavours = ALL_FLAVOURS if args.flavours == "all" else args.flavours.split(",")

    cases = []
    folder = os.path.join(HERE, "diff.d")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".cases"):
            cases += read_cases(os.path.join(folder, name))
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"two cases of one name: {' '.join(sorted(twice))}")
    if args.fast and not args.cases:
        cases = [case for case in cases if not case.slow][::2]
    everything = not args.cases and not args.fast and flavours == ALL_FLAVOURS
    if args.cases:
        cases = [case for case in cases if case.name in args.cases]
        cases += [random_case(int(name[7:]), args.steps) for name in args.cases if name.startswith("random_")]
    seed = args.seed if args.seed is not None else int(time.time())
    if args.random and not args.cases:
        cases += [random_case(seed + i, args.steps) for i in range(args.random)]
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0
    rows = read_table(args.table)
    if args.count:
        print(len(cases) + 1)
        return 0

    print(f"# {len(cases)} cases, {args.random} of them from seed {seed}; {len(rows)} allowed differences")
    references = {}
    for name in sorted({REFERENCE[flavour] for flavour in flavours}):
        began = time.time()
        wanted = [flavour for flavour in flavours if REFERENCE[flavour] == name]
        mine = max((chosen(cases, flavour, args) for flavour in wanted), key=len)
        references[name] = run(name, mine, args.quiet_ms, args.jobs)
        print(f"# {name} took {time.time() - began:.0f} s")
    bad = {case.name: [] for case in cases}
    for flavour in flavours:
        began = time.time()
        found = look(flavour, chosen(cases, flavour, args), references[REFERENCE[flavour]], rows, args)
        looks = 1
        while looks < args.looks:
            # Who hangs does so however long one waits, or because a step before it was not waited for.
            again = [case for case in cases
                     if found.get(case.name) and (looks == 1 or "killed" not in found[case.name][-1])]
            if not again:
                break
            args.quiet_ms, args.jobs, was = AGAIN[looks - 1], 4, (args.quiet_ms, args.jobs)
            found.update(look(flavour, again, run(REFERENCE[flavour], again, args.quiet_ms, args.jobs), rows, args))
            args.quiet_ms, args.jobs = was
            looks += 1
        for name, lines in found.items():
            bad[name] += lines
            for line in lines[:12]:
                print(f"# {name}: {line}")
        print(f"# {flavour} took {time.time() - began:.0f} s, {looks} looks")

    failed = False
    for number, case in enumerate(cases, 1):
        found = bad[case.name]
        if args.show:
            for step, result in references[REFERENCE[flavours[0]]].get(case.name, Result()).steps:
                print(f"#   {step} -> {result}")
        if found and case.name.startswith("random_"):
            print(f"# {case.name}: diff_compare.py --steps {args.steps} {case.name}: "
                  + "; ".join(case.lines))
        print(f"{'not ok' if found else 'ok'} {number} {case.name}")
        failed |= bool(found)
    unused = [row.name for row in rows if not row.hits] if everything else []
    for name in unused:
        print(f"# nothing needs the row {name} of the table")
    told = "" if everything else " # SKIP not all cases were run over all flavours"
    print(f"{'not ok' if unused else 'ok'} {len(cases) + 1} table_of_{len(rows)}_allowed_differences_is_needed{told}")
    return 1 if failed or unused else 0


if __name__ == "__main__":
    sys.exit(main())
