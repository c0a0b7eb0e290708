# SPDX-License-Identifier: GPL-2.0
"""One end of what is measured: starts programs, reads counters.

A Node works where it is made: in a machine, or in a network namespace of one.
serve() lets another process use one over a pair of streams, a JSON object a
line; Remote is the other end of that.
"""

import json
import os
import re
import shutil
import subprocess
import threading
import time

# Also within a namespace, where /sys is another mount.
SYS = "/proc/1/root/sys"
# Where perf writes samples.
PERF = "/tmp/perf.data"


class Failure(Exception):
    """A measurement, or a step towards one, did not work."""


class Program:
    """A running program and what it has printed."""

    def __init__(self, argv, env):
        self.argv = argv
        self.text = ""
        self.news = threading.Condition()
        self.over = False
        self.process = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while data := os.read(self.process.stdout.fileno(), 65536):
            with self.news:
                self.text += data.decode("utf-8", "replace")
                self.news.notify_all()
        with self.news:
            self.over = True
            self.news.notify_all()

    def name(self):
        return os.path.basename(self.argv[0])

    def expect(self, pattern, begin, limit):
        """Waits until the text after `begin` matches."""
        end = time.monotonic() + limit
        with self.news:
            while not re.search(pattern, self.text[begin:], re.M):
                left = end - time.monotonic()
                if self.over or left <= 0:
                    why = "ended" if self.over else f"took more than {limit:.0f} s"
                    raise Failure(f"{self.name()} {why} before it said {pattern!r}: {self.tail()}")
                self.news.wait(left)

    def tail(self):
        return " / ".join(self.text.strip().splitlines()[-4:]) or "(it said nothing)"

    def wait(self, limit):
        try:
            status = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.stop()
            raise Failure(f"{self.name()} took more than {limit:.0f} s: {self.tail()}") from None
        with self.news:
            self.news.wait_for(lambda: self.over, 5)
        if status:
            raise Failure(f"{self.name()} ended with status {status}: {self.tail()}")
        return self.text

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Node:
    """What can be asked of one end."""

    def __init__(self):
        self.programs = {}
        self.last = 0
        self.profiler = None

    def start(self, argv, env=None, ready=None, limit=120):
        """Starts a program; with `ready`, waits until it prints that. Returns its number."""
        self.last += 1
        program = self.programs[self.last] = Program(argv, env or {})
        if ready:
            try:
                program.expect(ready, 0, limit)
            except Failure:
                self.stop(self.last)
                raise
        return self.last

    def start_server(self, argv, env, port, limit=120):
        """Starts a program, and waits until somebody listens at the port. Returns its number."""
        number = self.start(argv, env)
        program = self.programs[number]
        end = time.monotonic() + limit
        while not listens(port):
            if program.over or time.monotonic() > end:
                self.stop(number)
                raise Failure(f"{program.name()} does not listen at port {port}: {program.tail()}")
            time.sleep(0.05)
        return number

    def tell(self, number, line, pattern, limit):
        """Gives a program a line, and waits for its answer."""
        program = self.programs[number]
        begin = len(program.text)
        program.process.stdin.write(line.encode() + b"\n")
        program.process.stdin.flush()
        program.expect(pattern, begin, limit)

    def wait(self, number, limit):
        """Waits for a program's end. Returns all it printed."""
        return self.programs.pop(number).wait(limit)

    def stop(self, number):
        """Ends a program, if it has not ended."""
        program = self.programs.pop(number, None)
        if program:
            program.stop()

    def stop_all(self):
        """Ends what still runs."""
        for number in list(self.programs):
            self.stop(number)

    def run(self, argv, env=None, limit=120):
        """Runs a program to its end. Returns all it printed."""
        return self.wait(self.start(argv, env), limit)

    def write(self, path, text):
        """Writes a file."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as f:
            f.write(text)

    def make_file(self, path, size):
        """Makes a file of random bytes."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(os.urandom(size))

    def lacks(self, programs):
        """Those of the programs that are not installed."""
        return [p for p in programs if not shutil.which(p)]

    def counters(self, device):
        """Busy seconds of all processors, switches between tasks, packets by TCP and by the RDMA device, its bytes."""
        with open("/proc/stat", encoding="ascii") as f:
            lines = dict(line.split(" ", 1) for line in f)
        ticks = [int(v) for v in lines["cpu"].split()[:8]]
        # Without idle and iowait.
        busy = sum(ticks) - ticks[3] - ticks[4]
        with open("/proc/self/net/snmp", encoding="ascii") as f:
            names, values = [line.split() for line in f if line.startswith("Tcp:")]
        tcp = dict(zip(names, values))
        out = {
            "busy": busy / os.sysconf("SC_CLK_TCK"),
            "switches": int(lines["ctxt"]),
            "tcp": int(tcp["OutSegs"]) + int(tcp["RetransSegs"]),
        }
        for key, name in (("rdma", "sent_pkts"), ("rdma_bytes", "sent_bytes")):
            try:
                with open(f"{SYS}/class/infiniband/{device}/ports/1/hw_counters/{name}",
                          encoding="ascii") as f:
                    out[key] = int(f.read())
            except OSError:
                out[key] = 0
        return out

    def free_memory(self):
        """KiB of free memory, caches dropped."""
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("3\n")
        time.sleep(0.3)
        with open("/proc/meminfo", encoding="ascii") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("MemFree:"))

    def profile_prepare(self):
        """Starts perf, which samples nothing yet."""
        for name in ("do", "done"):
            if os.path.exists(f"{PERF}.{name}"):
                os.unlink(f"{PERF}.{name}")
            os.mkfifo(f"{PERF}.{name}")
        self.profiler = self.start(
            ["perf", "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", "499", "-D", "-1", "-o", PERF,
             "--control", f"fifo:{PERF}.do,{PERF}.done"])
        # perf answers as soon as it can.
        self.profile_tell("disable")

    def profile_tell(self, command):
        """Has perf do something, and waits until it has: enable or disable sampling, stop."""
        with open(f"{PERF}.do", "w", encoding="ascii") as f:
            f.write(f"{command}\n")
        with open(f"{PERF}.done", "rb", buffering=0) as f:
            f.read(4)

    def profile_report(self):
        """Ends perf; what it says, by function and by chain of callers."""
        self.profile_tell("stop")
        self.wait(self.profiler, 120)
        report = ["perf", "report", "-i", PERF, "--stdio", "--percent-limit", "0.4"]
        common = [*report, "--no-children"]
        return {
            "total": self.run([*report, "--children", "-g", "none", "--sort", "sym"], limit=600),
            "functions": self.run([*common, "-g", "none", "--sort", "sym"], limit=600),
            "tasks": self.run([*common, "-g", "none", "--sort", "comm"], limit=600),
            "callers": self.run([*common, "-g", "caller", "--sort", "sym"], limit=600),
        }

    def add_device(self, device, netdev):
        """Makes an rxe device, and waits until it is up."""
        self.run(["rdma", "link", "add", device, "type", "rxe", "netdev", netdev])
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with open(f"{SYS}/class/infiniband/{device}/ports/1/state", encoding="ascii") as f:
                if "ACTIVE" in f.read():
                    return
            time.sleep(0.1)
        raise Failure(f"{device} does not come up")

    def delete_device(self, device):
        """Takes an rxe device away, if it is there."""
        if os.path.exists(f"{SYS}/class/infiniband/{device}"):
            self.run(["rdma", "link", "delete", device], limit=60)

    def load(self, module):
        """Loads a kernel module, by its file's path or by its name."""
        if os.sep not in module:
            self.run(["modprobe", module])
            return
        needs = self.run(["modinfo", "-F", "depends", module]).strip()
        if needs:
            self.run(["modprobe", "-a", *needs.split(",")])
        self.run(["insmod", module])

    def unload(self, module, limit=60):
        """Takes a module out of the kernel as soon as nothing uses it."""
        end = time.monotonic() + limit
        while os.path.isdir(f"/sys/module/{module}"):
            try:
                self.run(["rmmod", module], limit=limit)
            except Failure as why:
                if time.monotonic() > end:
                    raise Failure(f"{module} cannot be unloaded: {why}") from None
                time.sleep(0.2)


def listens(port):
    """Whether there is a TCP listener at the port, be it that of an SMC socket."""
    for name in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{name}", encoding="ascii") as f:
            next(f)
            # Local address and port, remote ones, state: 0A is that of a listener.
            if any(w[1].endswith(f":{port:04X}") and w[3] == "0A" for w in map(str.split, f)):
                return True
    return False


def serve(reader, writer):
    """Does what comes in, until the stream ends."""
    node = Node()
    for line in reader:
        name, args, kwargs = json.loads(line)
        try:
            answer = {"value": getattr(node, name)(*args, **kwargs)}
        except (Failure, OSError, KeyError, ValueError) as error:
            answer = {"failure": str(error) or repr(error)}
        writer.write((json.dumps(answer) + "\n").encode())
        writer.flush()
    node.stop_all()


class Remote:
    """A Node in another process."""

    def __init__(self, name, reader, writer):
        self.name = name
        self.reader = reader
        self.writer = writer

    def __getattr__(self, method):
        def call(*args, **kwargs):
            self.writer.write((json.dumps([method, args, kwargs]) + "\n").encode())
            self.writer.flush()
            line = self.reader.readline()
            if not line:
                raise EOFError(f"the other end, {self.name}, has gone")
            answer = json.loads(line)
            if "failure" in answer:
                raise Failure(f"{self.name}: {answer['failure']}")
            return answer["value"]
        return call
