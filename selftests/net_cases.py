#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""The kernel's own tools/testing/selftests/net, over TCP and over SMC: one line of TAP for each run, no plan.

Usage: net_cases.py [--long] [--count] [NAME...]
       net_cases.py --list
       net_cases.py --skipped
       net_cases.py --programs
       net_cases.py --decided FOLDER

The programs are not changed. Each run of net.d/programs gets a network namespace of its own and runs there over TCP, then
over SMC, for which the sockets of TCP become ones of SMC (net.smc.tcp2smc), as they do in all namespaces that the
programs make. Every result must be the same but for what a row of docs/differences.md explains, and tracepoints must have
seen that the sockets were ones of SMC. What differs is run again, twice at most, before it counts. A run that fails over
TCP is skipped.

Options:
  --long            those that take minutes as well
  --count           print the number of results and do nothing else
  --list            print the names of the runs
  --skipped         print what is not run, and why
  --programs        print which programs are to be built
  --decided FOLDER  say what of FOLDER, the kernel's, net.d/programs does not decide on, and what is there no more

Exit status: 0 all is well, 1 something is not, 2 wrong usage.
"""

import configparser
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from caserun import Skip

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "net.d" / "programs"
DIFFERENCES = HERE.parent / "docs" / "differences.md"
PROGRAMS = HERE.parent / "build" / "net"
TRACEFS = pathlib.Path("/sys/kernel/tracing")
NAMESPACE = "smctnet"
SLOW = int(os.environ.get("SMC_SLOW", "1"))
# What socket(2) makes of the protocol of a socket that becomes one of SMC.
CONVERTED = 257
# The states of a connection, as the tracepoint has them.
ACTIVE = 1
# What is counted: the event and the field by whose values it is.
EVENTS = {"opened": ("smct/opened", "protocol"), "states": ("smc/smc_conn_state", "newstate"),
          "fallbacks": ("smc/smc_switch_to_fallback", "fallback_rsn")}
PROBE = "r:smct/opened update_socket_protocol protocol=$retval:s32"
# Many of the programs give a few milliseconds to what a busy machine needs more for: what differs is looked at again.
LOOKS = 3
OVER = ("smcr", "fallback")
SEES = ("rdma", "fallback", "sockets")


class Run:
    """A program with its arguments: a section of the table."""

    def __init__(self, name, section):
        self.name = name
        self.command = section["command"]
        self.uses = section["uses"].split()
        self.says = re.compile(section.get("says", ""))
        self.over = section.get("over", "smcr").split()
        self.sees = section.get("sees", "rdma")
        self.limit = section.getint("limit", 60)
        self.long = section.getboolean("long", False)
        self.differs = []
        for line in section.get("differs", "").splitlines():
            row, flavour, regex = re.fullmatch(r"(\S+) (\S+): (.+)", line).groups()
            self.differs.append((row, flavour, re.compile(regex)))
        extra = set(section) - {"command", "uses", "says", "over", "sees", "limit", "long", "differs"}
        if extra or set(self.over) - set(OVER) or self.sees not in SEES:
            raise ValueError(f"{TABLE}: [{name}] is wrong")


def table():
    """The runs, and what is skipped: the reason by the name."""
    parser = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    parser.read_string(TABLE.read_text(encoding="utf-8"))
    runs, skipped = [], {}
    for name in parser.sections():
        if name.startswith("skip "):
            skipped.update((word, parser[name]["reason"]) for word in parser[name]["names"].split())
        else:
            runs.append(Run(name, parser[name]))
    return runs, skipped


def rows():
    """The names of the rows of differences."""
    return set(re.findall(r"^\| `([a-z-]+)` \|", DIFFERENCES.read_text(encoding="utf-8"), re.M))


def decided(folder):
    """Compares the table with the kernel's folder."""
    runs, skipped = table()
    used = set().union(*(run.uses for run in runs))
    known = used | set(skipped)
    there = {path.name + ("/" if path.is_dir() else "") for path in pathlib.Path(folder).iterdir()
             if path.is_dir() or path.suffix in (".c", ".sh", ".py") or path.name.startswith("run_")}
    for name in sorted(there - known):
        print(f"{name}: decide in selftests/net.d/programs whether it runs")
    for name in sorted(known - there):
        print(f"{name}: is in selftests/net.d/programs, but this kernel has none")
    for name in sorted(used & set(skipped)):
        print(f"{name}: is run and skipped in selftests/net.d/programs")
    return 1 if there ^ known or used & set(skipped) else 0


def write(text, *path):
    # Python's own files go to the end of what is to be appended to, which this one does not have.
    fd = os.open(TRACEFS.joinpath(*path), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


@contextlib.contextmanager
def counting():
    """Counts the events, in all namespaces; gives a function that returns how often there was which value of each."""
    for event, field in EVENTS.values():
        write(f"hist:keys={field}", "events", event, "trigger")

    def counts():
        found = {}
        for name, (event, _) in EVENTS.items():
            text = TRACEFS.joinpath("events", event, "hist").read_text(encoding="ascii")
            found[name] = {int(value): int(hits)
                           for value, hits in re.findall(r"\{ \w+: +(-?\d+) \} hitcount: +(\d+)", text)}
        return found

    try:
        yield counts
    finally:
        for event, field in EVENTS.values():
            write(f"!hist:keys={field}", "events", event, "trigger")


def namespaces():
    """The names of those that there are."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


@contextlib.contextmanager
def namespace(environment):
    """One to run in. When it goes, so do those that the program left, and all RDMA devices in them; not those that were
    there before.
    """
    others = namespaces()
    subprocess.run(["ip", "netns", "add", NAMESPACE], env=environment, check=True)
    try:
        yield
    finally:
        for left in namespaces() - others:
            pids = subprocess.run(["ip", "netns", "pids", left], check=True, stdout=subprocess.PIPE, text=True).stdout
            for pid in map(int, pids.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", left], check=True)
        end = time.monotonic() + 60 * SLOW
        while list(pathlib.Path("/sys/class/infiniband").glob("smct*")):
            if time.monotonic() > end:
                raise TimeoutError("the RDMA device of a namespace that has gone stays")
            time.sleep(0.1)


class Outcome:
    """What came of a command."""

    def __init__(self, status, output, says):
        self.output = output
        self.results = {}
        names = re.findall(r"^(?:# +)?(ok|not ok) \d+ (.*?)(?: +# (\w+).*)?$", output, re.M)
        lines = [(name, "skipped" if word == "SKIP" else result) for result, name, word in names]
        lines += [(name, "ok" if word == "OK" else "not ok")
                  for name, word in re.findall(r"^ *TEST: (.*?) *\[ *(OK|FAIL) *\]", output, re.M)]
        for name, result in lines:
            same = sum(1 for known in self.results if known.split(" #")[0] == name)
            self.results[f"{name} #{same + 1}" if same else name] = result
        # The tests within it; when one of them fails the status follows.
        self.tests = list(self.results)
        self.results["exit status"] = "0" if status in (0, 4) else str(status)
        if says.pattern:
            self.results[f"says '{says.pattern}'"] = "ok" if says.search(output) else "not ok"

    def failed(self):
        return [name for name, result in self.results.items() if result not in ("ok", "skipped", "0")]

    def useless(self):
        """Nothing can be compared with it."""
        return bool(self.failed()) and all(self.results[name] == "not ok" for name in self.tests)

    def differences(self, tcp):
        """Each in words."""
        names = list(tcp.results) + [name for name in self.results if name not in tcp.results]
        found = [f"{name}: {tcp.results.get(name, 'absent')} over TCP, {self.results.get(name, 'absent')} over SMC"
                 for name in names if tcp.results.get(name) != self.results.get(name)]
        tests = [text for text in found if not text.startswith("exit status:")]
        return tests if tests and self.tests else found

    def show(self, lines=30):
        for line in self.output.splitlines()[-lines:]:
            print("#   " + line[:300])


def execute(run, flavour):
    """Runs it once: what came of it, what was counted, how long it took."""
    environment = dict(os.environ, LC_ALL="C", KSFT_MACHINE_SLOW="yes", SMC_NET_KIND=flavour,
                       SMC_NET_HOOK=str(HERE / "net.d" / "namespace"), LD_PRELOAD=str(PROGRAMS.parent / "newnet.so"))
    began = time.monotonic()
    with counting() as counts, namespace(environment), tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(["ip", "netns", "exec", NAMESPACE, "bash", "-c", run.command],  # pylint: disable=consider-using-with
                                   stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=PROGRAMS,
                                   env=environment, start_new_session=True)
        try:
            status = process.wait(run.limit * SLOW)
        except subprocess.TimeoutExpired:
            status = "ended after its time"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        counted = counts()
        said.seek(0)
        outcome = Outcome(status, said.read(), run.says)
    return outcome, counted, time.monotonic() - began


def missing(run, flavour, counted):
    """What should have been seen and was not."""
    opened = counted["opened"].get(CONVERTED, 0)
    connections = counted["states"].get(ACTIVE, 0)
    fallbacks = sum(counted["fallbacks"].values())
    if flavour == "tcp":
        return f"{opened} sockets were ones of SMC" if opened or connections or fallbacks else ""
    if not opened:
        return "no socket became one of SMC"
    if flavour == "smcr" and run.sees == "rdma" and not connections:
        return "no connection went by RDMA"
    if flavour == "fallback" and connections:
        return f"{connections} connections went by RDMA, without a device"
    if run.sees != "sockets" and not fallbacks and (flavour == "fallback" or run.sees == "fallback"):
        return "no connection fell back"
    return ""


def report(run, flavour, counted, seconds):
    """The line from which scripts/net-selftests makes its table."""
    reasons = "/".join(f"0x{reason & 0xffffffff:08x}:{hits}" for reason, hits in sorted(counted["fallbacks"].items()))
    print(f"# net_{run.name} over={flavour} seconds={seconds:.0f} sockets={counted['opened'].get(CONVERTED, 0)}",
          f"rdma={counted['states'].get(ACTIVE, 0)} fallbacks={sum(counted['fallbacks'].values())}",
          f"reasons={reasons or '-'}", flush=True)


def judge(run, flavour, outcome, tcp, needed):
    """What is wrong with the results, in words; notes which rows were needed."""
    wrong = []
    for text in outcome.differences(tcp):
        allowed = [entry for entry in run.differs if entry[1] == flavour and entry[2].fullmatch(text)]
        needed.update(entry[:2] for entry in allowed)
        if allowed:
            print(f"# net_{run.name}: {text}: row {allowed[0][0]} of docs/differences.md")
        else:
            wrong.append(text)
    return wrong


def one(run):
    """All of a run."""
    tcp, counted, seconds = execute(run, "tcp")
    report(run, "tcp", counted, seconds)
    if missing(run, "tcp", counted):
        raise AssertionError("over TCP: " + missing(run, "tcp", counted))
    failed = ", ".join(f"{name}: {tcp.results[name]}" for name in tcp.failed()[:20])
    if tcp.useless():
        tcp.show(80)
        raise Skip(f"over TCP as well: {failed}")
    if failed:
        print(f"# net_{run.name}: over TCP as well: {failed}")
    needed = set()
    wrong = []
    for flavour in run.over:
        for look in range(LOOKS):
            outcome, counted, seconds = execute(run, flavour)
            report(run, flavour, counted, seconds)
            differ = judge(run, flavour, outcome, tcp, needed)
            lack = missing(run, flavour, counted)
            if not differ and not lack:
                break
            outcome.show()
            print(f"# net_{run.name}: look {look + 1} of {LOOKS} over {flavour}: {'; '.join(differ + [lack])[:600]}")
        else:
            wrong += [f"{flavour}: {text}" for text in differ + ([lack] if lack else [])]
    wrong += [f"{flavour}: row {row} is not needed" for row, flavour, _ in run.differs if (row, flavour) not in needed]
    wrong += [f"docs/differences.md has no row {row}" for row, _, _ in run.differs if row not in rows()]
    if wrong:
        raise AssertionError("; ".join(wrong[:20]))


def case(run):
    """One line of TAP."""
    try:
        one(run)
        print("ok 1", f"net_{run.name}", flush=True)
        return True
    except Skip as why:
        print("ok 1", f"net_{run.name}", "# SKIP", why, flush=True)
        return True
    except Exception as error:  # pylint: disable=broad-except
        print(f"# net_{run.name}: {type(error).__name__}: {error}")
        print("not ok 1", f"net_{run.name}", flush=True)
        return False


def main(words):
    options = {word for word in words if word.startswith("-")}
    names = [word for word in words if not word.startswith("-")]
    if options & {"-h", "--help"}:
        print(__doc__)
        return 0
    runs, skipped = table()
    if words == ["--list"]:
        print("\n".join(run.name for run in runs))
        return 0
    if words == ["--skipped"]:
        for reason in dict.fromkeys(skipped.values()):
            print(f"{reason}:\n  " + " ".join(name for name, why in skipped.items() if why == reason))
        return 0
    if words == ["--programs"]:
        print("\n".join(sorted({name[:-2] for run in runs for name in run.uses if name.endswith(".c")})))
        return 0
    if len(words) == 2 and words[0] == "--decided":
        return decided(words[1])
    if options - {"--long", "--count"} or set(names) - {run.name for run in runs}:
        print(__doc__, file=sys.stderr)
        return 2
    chosen = [run for run in runs if (run.name in names if names else "--long" in options or not run.long)]
    if "--count" in options:
        print(len(chosen))
        return 0
    write(PROBE, "kprobe_events")
    try:
        return 0 if all([case(run) for run in chosen]) else 1
    finally:
        write("-:smct/opened", "kprobe_events")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
