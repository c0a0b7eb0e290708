#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Measures, in the machines that scripts/bench boots.

With --serve this is the machine with the servers, and only does what it is
told over a TCP connection.  Else it is where the clients run and everything is
decided; in the setup "one", both ends are network namespaces of this machine.
Writes a JSON object for each measurement to --out, and says on stdout how it
goes.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time

from node import Failure, Node, Remote, serve
from rows import C, GROUPS, MEASUREMENTS, OURS, PROGRAMS, TCP, VERBS, VERBS_MEASUREMENTS

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "bench")
BENCH = f"{BUILD}/smc_bench"
PRELOAD = {"LD_PRELOAD": f"{BUILD}/as_smc.so"}
CONTROL_PORT = 5000
PORT = 6000
# One user EID makes the C implementation speak version 2.
EID = "SMC-RS.DEFAULT"
RING = 65536
SITE = "/tmp/site"
IDLE = [100, 1000]
FIRST_CONTACTS = 3


def say(text):
    print(text, flush=True)


class End:
    """The server's or the client's end."""

    def __init__(self, name, node, machine, address, device, netdev):
        self.name = name
        # Works in the end's namespace, and in the machine it is on.
        self.node = node
        self.machine = machine
        self.address = address
        self.device = device
        self.netdev = netdev


def connect_control(address):
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, CONTROL_PORT), timeout=900)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def serve_machine():
    """The machine of the servers in the setup "two"."""
    with socket.create_server(("", CONTROL_PORT)) as listener:
        stream, _ = listener.accept()
    serve(stream.makefile("rb"), stream.makefile("wb"))


def two_machines():
    stream = connect_control("10.88.0.1")
    far = Remote("server", stream.makefile("rb"), stream.makefile("wb"))
    near = Node()
    return (End("server", far, far, "10.88.0.1", "rxe0", "eth0"),
            End("client", near, near, "10.88.0.2", "rxe0", "eth0"))


def one_machine(mtu):
    machine = Node()
    ends = []
    for name in ("server", "client"):
        machine.run(["ip", "netns", "add", name])
    machine.run(["ip", "link", "add", "veth0", "mtu", str(mtu), "netns", "server", "type", "veth",
                 "peer", "name", "veth0", "mtu", str(mtu), "netns", "client"])
    for number, name in enumerate(("server", "client"), 1):
        address = f"10.77.0.{number}"
        for command in (f"addr add {address}/24 dev veth0", "link set lo up", "link set veth0 up"):
            machine.run(["ip", "-n", name, *command.split()])
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, os.path.abspath(__file__), "--serve-pipe"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        node = Remote(name, process.stdout, process.stdin)
        ends.append(End(name, node, machine, address, f"rxe-{name}", "veth0"))
    return ends


class Conductor:
    """Both ends and what is known about them."""

    def __init__(self, options):
        self.options = options
        self.server, self.client = (
            two_machines() if options.setup == "two" else one_machine(options.mtu))
        self.ends = [self.server, self.client]
        self.machines = list({id(e.machine): e.machine for e in self.ends}.values())
        self.loaded = None
        self.family = "tcp"
        self.preload = {}
        # Requests that a redis-benchmark of the wanted length takes.
        self.requests = {}
        self.failures = 0
        # What is being measured, and with what.
        self.now = ()
        self.port = PORT

    # The machines -------------------------------------------------------------

    def prepare(self, measurements):
        programs = sorted({"rdma", "ip"}.union(*(PROGRAMS.get(m, []) for m in measurements)))
        for end in self.ends:
            missing = end.machine.lacks(programs)
            if missing:
                raise Failure(f"the {end.name} has no {', '.join(missing)}")
        for machine in self.machines:
            machine.load("rdma_rxe")
        for end in self.ends:
            # Thousands of connections leave as many in TIME-WAIT.
            end.node.write("/proc/sys/net/ipv4/tcp_tw_reuse", "1")
            end.node.write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65000")
            end.node.add_device(end.device, end.netdev)
        if any(m.startswith("nginx") for m in measurements):
            self.prepare_site()
        if self.options.profile:
            for machine in self.machines:
                # Names of kernel functions.
                machine.write("/proc/sys/kernel/kptr_restrict", "0")

    def prepare_site(self):
        node = self.server.machine
        node.make_file(f"{SITE}/small", 1024)
        node.make_file(f"{SITE}/large", 128 * 1024)
        node.write(f"{SITE}/nginx.conf", f"""
            user root;
            worker_processes 1;
            daemon off;
            pid {SITE}/pid;
            error_log stderr;
            events {{ worker_connections 512; }}
            http {{
                access_log off;
                sendfile on;
                tcp_nopush on;
                keepalive_requests 100000000;
                server {{ listen {self.server.address}:8080; root {SITE}; }}
            }}
        """)

    def switch(self, implementation):
        """Loads what the implementation needs and nothing else."""
        module = {C: "smc", OURS: "smc_rs"}.get(implementation)
        if self.loaded == module:
            return
        self.unload()
        if module:
            for machine in self.machines:
                machine.load(self.options.ko if implementation == OURS else module)
            self.loaded = module
            for end in self.ends:
                end.node.write("/proc/sys/net/smc/wmem", str(RING))
                end.node.write("/proc/sys/net/smc/rmem", str(RING))
            if implementation == C:
                for machine in self.machines:
                    machine.run([f"{BUILD}/smc_peer", "ueid", "add", EID])
        self.family = "smc" if module else "tcp"
        self.preload = PRELOAD if module else {}
        if module:
            self.warm_up(implementation)

    def unload(self):
        """Takes out whichever implementation there is: any program that asks for an SMC socket loads the C one."""
        for machine in self.machines:
            for module in ("smc_rs", "smc_diag", "smc"):
                machine.unload(module)
        self.loaded = None

    def warm_up(self, implementation):
        """Connects until it goes by RDMA: a device takes a moment to become known."""
        for _ in range(20):
            if self.connect_once()[1]:
                return
            time.sleep(0.3)
        raise Failure(f"{implementation} connections do not go by RDMA")

    # Counting -----------------------------------------------------------------

    def counters(self):
        return [end.node.counters(end.device) for end in self.ends]

    def spent(self, before, after):
        """What both ends together took between two looks at the counters."""
        out = {key: sum(a[key] - b[key] for b, a in zip(before, after)) for key in before[0]}
        if len(self.machines) == 1:
            # Both ends read the same processors.
            out["busy"] /= 2
            out["switches"] /= 2
        return out

    def watch(self, argv, ready):
        """Runs a program at the client's end, and looks at the counters before, in its midst, and after."""
        sampled = self.machines if self.options.profile else []
        for machine in sampled:
            machine.profile_prepare()
        looks = [self.counters()]
        number = self.client.node.start(argv, self.preload, ready)
        time.sleep(0.2)
        looks.append(self.counters())
        for machine in sampled:
            machine.profile_tell("enable")
        time.sleep(max(self.options.seconds - 0.6, 0.2))
        for machine in sampled:
            machine.profile_tell("disable")
        looks.append(self.counters())
        text = self.client.node.wait(number, self.options.seconds + 120)
        looks.append(self.counters())
        if sampled:
            self.write_profiles()
        return text, looks

    def write_profiles(self):
        """Ends sampling; to profile.MEASUREMENT.IMPLEMENTATION.NUMBER."""
        for index, machine in enumerate(self.machines):
            for kind, text in machine.profile_report().items():
                with open(f"{os.path.dirname(self.options.out)}/profile.{'.'.join(self.now)}.{index}.{kind}",
                          "w", encoding="utf-8") as f:
                    f.write(text)

    def each(self, looks, work, least):
        """What a unit of work took in processor time, task switches and packets; so much work was done in all.

        Time and switches are those of the program's midst, without its start and end; how much of the work fell
        into it is told by the packets. At least so many packets must have been sent for all of it.
        """
        everything = self.spent(looks[0], looks[3])
        midst = self.spent(looks[1], looks[2])
        self.check_way(everything, least)
        packets, some = (s["tcp"] + s["rdma"] for s in (everything, midst))
        if not some:
            raise Failure("nothing was sent in the midst of it")
        part = work * some / packets
        return {"cpu": midst["busy"] / part, "switches": midst["switches"] / part, "packets": packets / work}

    def check_way(self, spent, least):
        """SMC must have used RDMA, TCP must not."""
        if self.loaded and spent["rdma"] < least:
            raise Failure(f"it fell back to TCP: {spent['rdma']} packets by RDMA, {spent['tcp']} by TCP")
        if not self.loaded and spent["rdma_bytes"] > 100000:
            raise Failure("RDMA was used by what should be TCP")

    # Measuring ------------------------------------------------------------------

    def next_port(self):
        self.port += 1
        return self.port

    def bench(self, mode, port, *rest):
        return [BENCH, mode, self.server.address, str(port), self.family, *rest]

    def pair(self, server_mode, *client):
        """smc_bench at both ends. Returns its result line as a table, and the looks at the counters."""
        port = self.next_port()
        server = self.server.node.start(self.bench(server_mode, port), ready="^ready")
        try:
            text, looks = self.watch(self.bench(client[0], port, *client[1:]), "^running")
        finally:
            self.server.node.stop(server)
        result = dict(re.findall(r"(\w+)=(\S+)", re.search(r"^result (.*)", text, re.M)[1]))
        if self.loaded == "smc_rs" and result["mode"] != "smcr":
            raise Failure(f"it fell back: the mode is {result['mode']}")
        return result, looks

    def connect_once(self):
        """One connection. Returns the microseconds that connect() took, and the packets by RDMA."""
        port = self.next_port()
        server = self.server.node.start(self.bench("echo", port), ready="^ready")
        try:
            before = self.counters()
            text = self.client.node.run(self.bench("connect", port, "0"))
            spent = self.spent(before, self.counters())
        finally:
            self.server.node.stop(server)
        return float(re.search(r"mean=([\d.]+)", text)[1]), spent["rdma"]

    def bulk(self, name, streams):
        port = self.next_port()
        seconds = self.options.seconds
        server = self.server.node.start_server(
            ["iperf3", "-s", "-1", "-B", self.server.address, "-p", str(port)], self.preload, port)
        try:
            text, looks = self.watch(
                ["iperf3", "-c", self.server.address, "-p", str(port), "-t", str(seconds),
                 "-P", str(streams), "--forceflush"], "connected to")
        finally:
            self.server.node.stop(server)
        found = re.findall(r"([\d.]+) ([KMG])Bytes +([\d.]+) ([KMG])bits/sec +receiver", text)
        if not found:
            raise Failure(f"iperf3 reports no result: {text[-200:]}")
        amount, amount_unit, rate, rate_unit = found[-1]
        mib = float(amount) * {"K": 2**-10, "M": 1, "G": 2**10}[amount_unit]
        each = self.each(looks, mib, mib * 100)
        out = {name: float(rate) * {"K": 1e-3, "M": 1, "G": 1e3}[rate_unit]}
        if streams == 1:
            out[f"{name}.cpu"] = each["cpu"] * 1e3
            out[f"{name}.switches"] = each["switches"]
            out[f"{name}.packets"] = each["packets"]
        return out

    def ping(self, name, size):
        result, looks = self.pair("echo", "ping", str(size), str(self.options.seconds))
        out = {f"{name}.{key}": float(result[key]) for key in ("mean", "p50", "p99")}
        count = float(result["count"])
        each = self.each(looks, 2 * count, 2 * count)
        return {**out, f"{name}.cpu": each["cpu"] * 1e6, f"{name}.switches": each["switches"],
                f"{name}.packets": each["packets"]}

    def connects(self):
        result, looks = self.pair("echo", "connect", str(self.options.seconds))
        count = float(result["count"])
        each = self.each(looks, count, count)
        return {"connect.rate": count / float(result["seconds"]), "connect.p50": float(result["p50"]),
                "connect.cpu": each["cpu"] * 1e6, "connect.switches": each["switches"],
                "connect.packets": each["packets"]}

    def first_contacts(self):
        """A link group goes with its device; the next connection has to make one."""
        times = []
        for _ in range(3 * FIRST_CONTACTS):
            for end in self.ends:
                end.machine.delete_device(end.device)
            for end in self.ends:
                end.node.add_device(end.device, end.netdev)
            time.sleep(0.5)
            took, packets = self.connect_once()
            # A device that is not yet known leads to TCP, and leaves no group.
            if packets:
                times.append(took)
                if len(times) == FIRST_CONTACTS:
                    return {"first.p50": sorted(times)[FIRST_CONTACTS // 2]}
        raise Failure("first contacts fall back to TCP")

    def redis(self, name, command):
        server = self.server.node.start_server(
            ["redis-server", "--bind", self.server.address, "--port", "6379", "--save", "",
             "--appendonly", "no", "--protected-mode", "no"], self.preload, 6379)
        try:
            key = (name, self.loaded)
            if key not in self.requests:
                rate = self.redis_rate(command, 300)
                self.requests[key] = max(300, round(rate * self.options.seconds))
            before = self.counters()
            rate = self.redis_rate(command, self.requests[key])
            self.check_way(self.spent(before, self.counters()), self.requests[key] / 5)
        finally:
            self.server.node.stop(server)
        return {name: rate}

    def redis_rate(self, command, requests):
        text = self.client.node.run(
            ["redis-benchmark", "-h", self.server.address, "-c", "10", "-n", str(requests), "-t",
             command, "--csv"], self.preload, 120)
        found = re.search(rf'^"{command.upper()}","([\d.]+)"', text, re.M)
        if not found:
            raise Failure(f"redis-benchmark reports no result: {text[-200:]}")
        return float(found[1])

    def nginx(self, name, path, *options):
        server = self.server.node.start_server(
            ["nginx", "-c", f"{SITE}/nginx.conf", "-e", "stderr"], self.preload, 8080)
        try:
            before = self.counters()
            text = self.client.node.run(
                ["wrk", "-t1", "-c4", f"-d{self.options.seconds}", *options,
                 f"http://{self.server.address}:8080/{path}"], self.preload,
                self.options.seconds + 60)
            spent = self.spent(before, self.counters())
        finally:
            self.server.node.stop(server)
        found = re.search(r"^Requests/sec:\s+([\d.]+)", text, re.M)
        count = re.search(r"(\d+) requests in", text)
        if not found or not count or float(found[1]) == 0:
            raise Failure(f"wrk reports no result: {text[-200:]}")
        if "Non-2xx" in text or re.search(r"Socket errors: .*(connect|write) [1-9]", text):
            raise Failure(f"wrk reports errors: {text[-200:]}")
        self.check_way(spent, float(count[1]))
        return {name: float(found[1])}

    def memory(self):
        port = self.next_port()
        server = self.server.node.start(self.bench("hold", port), ready="^ready")
        number = None
        try:
            before = sum(machine.free_memory() for machine in self.machines)
            looked = self.counters()
            number = self.client.node.start(
                self.bench("idle", port, *map(str, IDLE)), None,
                f"^open {IDLE[0]}$", 120)
            out = {}
            for index, count in enumerate(IDLE):
                if index:
                    self.client.node.tell(number, "", f"^open {count}$", 300)
                used = before - sum(machine.free_memory() for machine in self.machines)
                out[f"memory.{count}"] = used / count / 2
            self.check_way(self.spent(looked, self.counters()), 4 * IDLE[-1])
            self.client.node.tell(number, "", "^closed$", 120)
            self.client.node.wait(number, 60)
            number = None
        finally:
            if number:
                self.client.node.stop(number)
            self.server.node.stop(server)
        return out

    def verbs(self, name):
        bulk = name.startswith("bulk")
        if bulk:
            # About as long as the others: as many writes as a slow device does in that time.
            argv = ["ib_write_bw", "-s", "65536", "-q", name[4:], "-n",
                    str(100 * self.options.seconds), "--report_gbits"]
        else:
            argv = ["ib_send_lat", "-s", {"rr64": "64", "rr1k": "1024"}[name], "-n",
                    str(400 * self.options.seconds)]
        port = self.next_port()
        argv += ["-F", "-p", str(port)]
        server = self.server.node.start_server([*argv, "-d", self.server.device], {}, port)
        try:
            text = self.client.node.run([*argv, "-d", self.client.device, self.server.address], limit=120)
        finally:
            self.server.node.stop(server)
        lines = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s+[\d.]+", line)]
        if not lines:
            raise Failure(f"{argv[0]} reports no result: {text[-300:]}")
        if bulk:
            return {name: float(lines[-1][3]) * 1000}
        # min, max, typical, average, deviation, 99 %: of one way.
        _, _, _, _, typical, average, _, p99 = map(float, lines[-1][:8])
        return {f"{name}.mean": 2 * average, f"{name}.p50": 2 * typical, f"{name}.p99": 2 * p99}

    def measure(self, name, implementation):
        if implementation == VERBS:
            return self.verbs(name)
        if name.startswith("bulk"):
            return self.bulk(name, int(name[4:]))
        if name.startswith("rr"):
            return self.ping(name, {"rr64": 64, "rr1k": 1024}[name])
        if name.startswith("redis"):
            return self.redis(name, name[6:])
        if name == "nginx-each":
            return self.nginx(name, "small", "-H", "Connection: close")
        if name.startswith("nginx"):
            return self.nginx(name, name[6:])
        return {"connect": self.connects, "first": self.first_contacts, "memory": self.memory}[name]()

    # The run --------------------------------------------------------------------

    def turns(self, group):
        """Who measures what, in which order; the order changes with each repetition."""
        for repetition in range(self.options.repetitions):
            shift = repetition % len(self.options.implementations)
            order = self.options.implementations[shift:] + self.options.implementations[:shift]
            for implementation in order:
                for name in group:
                    if implementation == VERBS and name not in VERBS_MEASUREMENTS:
                        continue
                    if implementation == TCP and name == "first":
                        continue
                    yield repetition, implementation, name

    def run(self, out):
        wanted = self.options.only
        self.prepare(wanted)
        for group in GROUPS:
            for repetition, implementation, name in self.turns([m for m in group if m in wanted]):
                record = {"setup": self.options.setup, "repetition": repetition, "measurement": name,
                          "implementation": implementation}
                self.now = name, implementation
                try:
                    if name == "memory":
                        # Rings that are kept for the next connection would not be seen.
                        self.unload()
                    self.switch(implementation)
                    record["values"] = self.measure(name, implementation)
                    text = " ".join(f"{k}={v:.1f}" for k, v in record["values"].items())
                except Failure as why:
                    self.failures += 1
                    record["failure"] = str(why)
                    text = f"FAILED: {why}"
                    for end in self.ends:
                        end.node.stop_all()
                say(f"[{repetition + 1}/{self.options.repetitions}] {implementation} {name}: {text}")
                out.write(json.dumps(record) + "\n")
                out.flush()
        self.unload()
        for end in self.ends:
            end.machine.delete_device(end.device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--serve-pipe", action="store_true")
    parser.add_argument("--setup", choices=["one", "two"], default="two")
    parser.add_argument("--only", type=lambda text: text.split(","), default=MEASUREMENTS)
    parser.add_argument("--implementations", type=lambda text: text.split(","),
                        default=[TCP, C, OURS, VERBS])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--ko")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.serve:
        serve_machine()
        return 0
    if options.serve_pipe:
        serve(sys.stdin.buffer, sys.stdout.buffer)
        return 0
    try:
        with open(options.out, "a", encoding="utf-8") as out:
            conductor = Conductor(options)
            conductor.run(out)
    except (Failure, EOFError) as why:
        say(f"FAILED: {why}")
        return 1
    return 1 if conductor.failures else 0


if __name__ == "__main__":
    sys.exit(main())
