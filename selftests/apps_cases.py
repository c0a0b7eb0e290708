#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""Programs that others wrote, across two machines: one line of TAP for each, no plan.

Usage: apps_cases.py a|b [--fast] [--count] [NAME...]
       apps_cases.py --list

Runs on both machines at the same time: the servers are on a, 10.88.0.1, what uses them is on b, 10.88.0.2, the wire is
eth0 and has the RDMA device rxe0. "vm-barrier NAME" waits until the other machine has come to NAME as well. --fast runs
the few that every check runs, with less data; --count prints how many there are; names choose by their beginning.

The programs are not changed: their sockets become SMC sockets by net.smc.tcp2smc, or, where SMC_PRELOAD names a library,
by that one. Counters outside of the module say of each that RDMA carried what it moved: those of the device, and
nftables for TCP, which may carry no more than a handshake for each connection.
"""

import asyncio
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from caserun import Skip

SERVER = "10.88.0.1"
MIB = 1 << 20
HANDSHAKE = 4096
SLOW = int(os.environ.get("SMC_SLOW", "1"))
PRELOAD = os.environ.get("SMC_PRELOAD")
HERE = pathlib.Path(__file__).resolve().parent
PLAIN = HERE.parent / "build" / "plain"
RULES = """
table inet smcapps {
    counter tcp_bytes { }
    counter begun { }
    chain in {
        type filter hook input priority 0;
        iifname eth0 meta l4proto tcp counter name tcp_bytes
        iifname eth0 tcp flags & (syn | ack) == syn counter name begun
    }
    chain out {
        type filter hook output priority 0;
        oifname eth0 meta l4proto tcp counter name tcp_bytes
        oifname eth0 tcp flags & (syn | ack) == syn counter name begun
    }
}
"""


def environment():
    """That of the programs under test."""
    return dict(os.environ, LC_ALL="C", **({"LD_PRELOAD": PRELOAD} if PRELOAD else {}))


def run(*command, limit=150, text=None, status=(0,)):
    """What a program prints; its end with another status than these is an error that shows what it said."""
    done = subprocess.run([str(word) for word in command], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=limit * SLOW, env=environment(), check=False)
    if done.returncode not in status:
        said = (done.stdout[-600:] + done.stderr[-600:]).decode(errors="replace")
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {said}")
    return done.stdout


def counters():
    """Bytes that the RDMA device sent and received, bytes of TCP, connections that were begun."""
    device = pathlib.Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")
    found = json.loads(subprocess.run(["nft", "-j", "list", "counters", "table", "inet", "smcapps"], check=True,
                                      stdout=subprocess.PIPE).stdout)
    by_name = {c["counter"]["name"]: c["counter"] for c in found["nftables"] if "counter" in c}
    return (int((device / "sent_bytes").read_text()), int((device / "rcvd_bytes").read_text()),
            by_name["tcp_bytes"]["bytes"], by_name["begun"]["packets"])


def content(size, seed=1):
    """The same bytes on both machines."""
    return random.Random(seed).randbytes(size)


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: {len(got)} bytes with hash {hashlib.sha256(got).hexdigest()[:16]}, expected "
                             f"{len(want)} with {hashlib.sha256(want).hexdigest()[:16]}")


def fetch(url):
    with urllib.request.urlopen(url, timeout=100 * SLOW) as answer:
        return answer.read()


def barrier(name):
    # It talks through descriptors that it has from whoever started us.
    subprocess.run(["vm-barrier", name], check=True, close_fds=False)


class Program:
    """A server on a, and what b does with it."""

    needs = ()
    port = 0

    def __init__(self, fast, folder):
        self.fast = fast
        self.folder = pathlib.Path(folder)
        self.processes = []

    def start(self, *command, user=None, cwd=None):
        """Starts a server, which is ended after the case."""
        log = open(self.folder / "server.log", "ab")  # pylint: disable=consider-using-with
        self.processes.append(subprocess.Popen(  # pylint: disable=consider-using-with
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(),
            user=user, group=user, extra_groups=[] if user else None, cwd=cwd or self.folder))

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20 * SLOW)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait_listening(self):
        end = time.monotonic() + 100 * SLOW
        while time.monotonic() < end:
            if subprocess.run(["ss", "-Htln", f"sport = :{self.port}"], check=True,
                              stdout=subprocess.PIPE).stdout.strip():
                return
            for process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with {process.returncode}: {self.said()}")
            time.sleep(0.2)
        raise TimeoutError(f"nothing listens on port {self.port}: {self.said()}")

    def said(self):
        log = self.folder / "server.log"
        return log.read_bytes()[-800:].decode(errors="replace") if log.exists() else "(nothing)"

    def serve(self):
        """On a."""
        raise NotImplementedError

    def use(self):
        """On b. Returns the least number of bytes that must have gone to a, and from there to b."""
        raise NotImplementedError


class Iperf3(Program):
    """One stream and eight, back, and both ways at once."""

    needs = ("iperf3",)
    port = 5201

    def serve(self):
        self.start("iperf3", "-s")

    def use(self):
        size = 2 * MIB if self.fast else 16 * MIB
        there = back = 0
        runs = [("-P1",), ("-R",)] if self.fast else [("-P1",), ("-P8",), ("-R",), ("-P8", "-R"), ("--bidir",)]
        for options in runs:
            end = self.measure("-n", size, *options)["end"]
            sums = [end["sum_received"]] + ([end["sum_received_bidir_reverse"]] if "--bidir" in options else [])
            moved = [s["bytes"] for s in sums]
            if moved[0] < size * 0.9:
                raise AssertionError(f"{options}: {moved} bytes arrived of {size}")
            if "-R" in options:
                back += moved[0]
            else:
                there += moved[0]
                back += sum(moved[1:])
        return there, back

    @staticmethod
    def measure(*options):
        """Between two tests the server closes what it listens to, and resets who comes then: it is asked again."""
        for _ in range(10):
            result = json.loads(run("iperf3", "-c", SERVER, "-J", *options, status=(0, 1)))
            error = result.get("error", "")
            if not re.search("control message|unable to connect|server is busy", error):
                break
            time.sleep(0.5)
        if error:
            raise AssertionError(f"{options}: {error}")
        return result


class Netperf(Program):
    """A stream, requests and responses, and connections for one request each."""

    needs = ("netperf", "netserver")
    port = 12865

    def serve(self):
        self.start("netserver", "-D", "-4", "-p", self.port)

    def use(self):
        def measure(test, *options):
            text = run("netperf", "-4", "-H", SERVER, "-p", self.port, "-l", 3, "-t", test, "-P", 0, *options).decode()
            rate = float(text.split("\n")[0].split()[-1])
            if rate <= 0:
                raise AssertionError(f"{test}: {text}")
            return rate

        stream = measure("TCP_STREAM")
        trips = measure("TCP_RR", "--", "-r", "1000,1000")
        measure("TCP_CRR", "--", "-r", "1000,1000")
        # Megabits a second, and two times as much for the noise of a short run; then so many round trips a second.
        return int(stream * 1e6 / 8 * 3 / 2), int(trips * 1000 * 3 / 2)


class Redis(Program):
    """The benchmark, and a value that comes back as it went."""

    needs = ("redis-server", "redis-benchmark", "redis-cli")
    port = 6379

    def serve(self):
        self.start("redis-server", "--port", self.port, "--bind", SERVER, "--protected-mode", "no", "--save", "",
                   "--dir", self.folder)

    def use(self):
        requests, size = (1000, 256) if self.fast else (10000, 1024)
        text = run("redis-benchmark", "-h", SERVER, "-t", "set,get", "-n", requests, "-d", size, "-c", 10, "--csv")
        rates = [float(line.split(b'","')[1].strip(b'"')) for line in text.splitlines()[1:]]
        if len(rates) != 2 or min(rates) <= 0:
            raise AssertionError(text.decode())
        value = content(MIB // 2).hex().encode()
        run("redis-cli", "-h", SERVER, "-x", "set", "value", text=value)
        same(run("redis-cli", "-h", SERVER, "get", "value").rstrip(b"\n"), value, "the value")
        return requests * size + len(value), requests * size + len(value)


class Nginx(Program):
    """Small files to wrk, and a large one to curl by sendfile."""

    needs = ("nginx", "wrk", "curl")
    port = 8080
    small = 1000

    def size(self):
        return 4 * MIB if self.fast else 100 * MIB

    def serve(self):
        root = self.folder / "root"
        root.mkdir()
        (root / "small").write_bytes(content(self.small))
        (root / "large").write_bytes(content(self.size()))
        (self.folder / "nginx.conf").write_text(f"""
            user root; daemon off; worker_processes 2; pid {self.folder}/pid; error_log {self.folder}/error;
            events {{ }}
            http {{
                access_log off; sendfile on; tcp_nopush on; client_body_temp_path {self.folder}/body;
                proxy_temp_path {self.folder}/proxy; fastcgi_temp_path {self.folder}/fastcgi;
                uwsgi_temp_path {self.folder}/uwsgi; scgi_temp_path {self.folder}/scgi;
                server {{ listen {SERVER}:{self.port}; root {root}; }}
            }}
        """, encoding="ascii")
        self.start("nginx", "-c", self.folder / "nginx.conf", "-e", self.folder / "error")

    def use(self):
        url = f"http://{SERVER}:{self.port}"
        text = run("wrk", "-t2", "-c4" if self.fast else "-c16", "-d2s" if self.fast else "-d10s", "--timeout", "60s",
                   url + "/small").decode()
        requests = int(re.search(r"(\d+) requests in", text).group(1))
        if "Socket errors" in text or "Non-2xx" in text or not requests:
            raise AssertionError(text)
        same(run("curl", "-sS", "--fail", url + "/small"), content(self.small), "the small file")
        same(run("curl", "-sS", "--fail", url + "/large", limit=300), content(self.size()), "the large file")
        return 0, requests * self.small + self.size()


class Openssl(Program):
    """A file of s_server to s_client, by TLS."""

    needs = ("openssl",)
    port = 4433
    size = 4 * MIB

    def serve(self):
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
            "2", "-subj", "/CN=smc", "-keyout", self.folder / "key", "-out", self.folder / "cert")
        self.start("openssl", "s_server", "-accept", f"{SERVER}:{self.port}", "-key", self.folder / "key", "-cert",
                   self.folder / "cert", "-HTTP")
        (self.folder / "file.http").write_bytes(b"HTTP/1.0 200 ok\r\n\r\n" + content(self.size))

    def use(self):
        answer = run("openssl", "s_client", "-connect", f"{SERVER}:{self.port}", "-quiet",
                     text=b"GET /file.http HTTP/1.0\r\n\r\n")
        same(answer.partition(b"\r\n\r\n")[2], content(self.size), "the file")
        return 0, self.size


class Postgresql(Program):
    """pgbench, whose balances must agree afterwards."""

    port = 5432

    @staticmethod
    def tool(name):
        found = sorted(pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        if not found:
            raise Skip(f"needs {name}")
        return found[-1]

    def serve(self):
        data = self.folder / "data"
        data.mkdir()
        self.folder.chmod(0o755)
        shutil.chown(data, "postgres", "postgres")
        subprocess.run(["runuser", "-u", "postgres", "--", str(self.tool("initdb")), "-D", str(data), "-A", "trust",
                        "--no-sync", "--no-instructions"], check=True, stdout=subprocess.DEVNULL, cwd="/")
        with open(data / "pg_hba.conf", "a", encoding="ascii") as f:
            f.write("host all all 10.88.0.0/24 trust\n")
        self.start(self.tool("postgres"), "-D", data, "-p", self.port, "-c", f"listen_addresses={SERVER}", "-c",
                   "fsync=off", "-c", "unix_socket_directories=", user="postgres", cwd="/")

    def use(self):
        there = ["-h", SERVER, "-p", self.port, "-U", "postgres"]
        run(self.tool("pgbench"), *there, "-i", "-s", 1, "-q", "postgres")
        clients, each = 4, 50
        run(self.tool("pgbench"), *there, "-n", "-c", clients, "-t", each, "postgres")
        sums = run(self.tool("psql"), *there, "-At", "-c", "select (select sum(abalance) from pgbench_accounts), (select "
                   "sum(delta) from pgbench_history), (select count(*) from pgbench_history)", "postgres").decode()
        accounts, history, count = sums.strip().split("|")
        if accounts != history or int(count) != clients * each:
            raise AssertionError(f"the balances are {sums}")
        rows = run(self.tool("psql"), *there, "-At", "-c", "select repeat(md5(n::text), 64) from generate_series(1, 2000) n",
                   "postgres").decode().split()
        want = [hashlib.md5(str(n).encode()).hexdigest() * 64 for n in range(1, 2001)]
        if rows != want:
            raise AssertionError("the rows are others")
        return 100000, 2000 * 2048


class Openssh(Program):
    """Files through ssh, both ways."""

    needs = ("ssh", "ssh-keygen")
    port = 2222
    size = 4 * MIB

    def serve(self):
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "host")
        key = self.known_key()
        (self.folder / "allowed").write_bytes(run("ssh-keygen", "-y", "-f", key))
        self.start("/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-h", self.folder / "host", "-o",
                   f"ListenAddress={SERVER}:{self.port}", "-o", f"AuthorizedKeysFile={self.folder}/allowed", "-o",
                   "StrictModes=no", "-o", "PermitRootLogin=yes", "-o", "UsePAM=no", "-o", "PidFile=none")

    def known_key(self):
        """The key that was made with the tests, and that both machines have."""
        made = PLAIN / "ssh-key"
        if not made.exists():
            raise Skip(f"needs {made} (make -C selftests apps)")
        key = self.folder / "key"
        shutil.copy(made, key)
        key.chmod(0o600)
        return key

    def use(self):
        ssh = ["ssh", "-p", self.port, "-i", self.known_key(), "-o", "StrictHostKeyChecking=no", "-o",
               "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-q", f"root@{SERVER}"]
        told, kept = run(*ssh, "f=$(mktemp) && cat >$f && sha256sum $f", text=content(self.size)).decode().split()
        if told != hashlib.sha256(content(self.size)).hexdigest():
            raise AssertionError(f"the file to there has the hash {told}")
        same(run(*ssh, f"cat {kept}; rm {kept}"), content(self.size), "the file from there")
        return self.size, self.size


class PythonHttp(Program):
    """http.server and urllib."""

    port = 8000
    size = 8 * MIB

    def serve(self):
        (self.folder / "file").write_bytes(content(self.size))
        self.start(sys.executable, "-m", "http.server", "--bind", SERVER, "--directory", self.folder, self.port)

    def use(self):
        same(fetch(f"http://{SERVER}:{self.port}/file"), content(self.size), "the file")
        return 0, self.size


class PythonAsyncio(Program):
    """Streams of asyncio, many at once."""

    port = 8001
    size = 256 * 1024
    many = 16

    def serve(self):
        self.start(sys.executable, "-B", __file__, "asyncio")

    @staticmethod
    async def echo(reader, writer):
        while piece := await reader.read(10000):
            writer.write(piece)
            await writer.drain()
        writer.close()

    @classmethod
    async def server(cls):
        async with await asyncio.start_server(cls.echo, SERVER, cls.port) as server:
            await server.serve_forever()

    async def one(self, seed):
        reader, writer = await asyncio.open_connection(SERVER, self.port)
        data = content(self.size, seed)
        writer.write(data)
        writer.write_eof()
        same(await reader.read(), data, f"stream {seed}")
        writer.close()

    async def all(self):
        await asyncio.wait_for(asyncio.gather(*(self.one(n) for n in range(self.many))), 150 * SLOW)

    def use(self):
        asyncio.run(self.all())
        return self.many * self.size, self.many * self.size


class Memcached(Program):
    """The protocol's own test, and a file that comes back."""

    needs = ("memcached", "memccapable", "memccp", "memccat")
    port = 11211
    size = 500000

    def serve(self):
        self.start("memcached", "-u", "nobody", "-l", SERVER, "-p", self.port, "-U", 0)

    def use(self):
        run("memccapable", "-h", SERVER, "-p", self.port, "-a")
        data = content(self.size)
        (self.folder / "value").write_bytes(data)
        run("memccp", f"--servers={SERVER}:{self.port}", self.folder / "value")
        same(run("memccat", f"--servers={SERVER}:{self.port}", "value").rstrip(b"\n"), data.rstrip(b"\n"), "the value")
        return self.size, self.size


class Libfabric(Program):
    """fi_pingpong over libfabric's provider tcp, with its check of the data."""

    needs = ("fi_pingpong",)
    port = 47592
    times = 10

    def serve(self):
        # It serves one client, and opens what it listens to twice: its own words first, then the endpoint's.
        self.start("fi_pingpong", "-p", "tcp", "-e", "msg", "-c", "-I", self.times)

    def use(self):
        text = run("fi_pingpong", "-p", "tcp", "-e", "msg", "-c", "-I", self.times, SERVER).decode()
        rows = re.findall(r"^(\d+k?m?) +\S+ +=(\d+)", text, re.M)
        if len(rows) < 3 or any(acknowledged != str(self.times) for _, acknowledged in rows):
            raise AssertionError(text)
        return 64 * self.times, 64 * self.times


class Languages(Program):
    """A program of Go, of Java, or of C without a C library: an echo, and the same bytes back."""

    total = 300000
    command = ()

    def serve(self):
        self.start(*self.command, "serve", SERVER, self.port)

    def use(self):
        process = subprocess.Popen([*map(str, self.command), "talk", SERVER, str(self.port)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, env=environment())
        said = process.communicate(b"\n" * 10, timeout=150 * SLOW)[0].decode()
        if process.returncode or "same" not in said:
            raise AssertionError(f"it ended with {process.returncode} and said {said!r}")
        return self.total, self.total


class Static(Languages):
    """Statically linked."""

    port = 8002
    command = (PLAIN / "plain",)


class Go(Languages):
    """Go: listens by protocol 262."""

    port = 8003
    command = (PLAIN / "plain-go",)


class Java(Languages):
    """Java."""

    needs = ("java",)
    port = 8004
    command = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m", "-cp", PLAIN, "Plain")


FAST = (Iperf3, Redis, Nginx)
ALL = (*FAST, Netperf, Openssl, Postgresql, Openssh, PythonHttp, PythonAsyncio, Memcached, Libfabric, Static, Go, Java)


def title(kind):
    return "app_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def missing(kind):
    for name in kind.needs:
        if not shutil.which(name):
            return f"needs {name}"
    files = [word for word in getattr(kind, "command", ()) if isinstance(word, pathlib.Path)]
    if files and not any(f.exists() if f != PLAIN else (PLAIN / "Plain.class").exists() for f in files):
        return f"needs {files[0]} (make -C selftests languages)"
    return None


def judge(before, after, there, back, role):
    """Whether RDMA carried it."""
    sent, rcvd, tcp, begun = (now - then for now, then in zip(after, before))
    if role == "b" and (sent < there or rcvd < back):
        raise AssertionError(f"RDMA sent {sent} and received {rcvd} bytes; the program moved {there} and {back}")
    if tcp >= HANDSHAKE * max(begun, 1):
        raise AssertionError(f"TCP carried {tcp} bytes in {begun} connections")
    if not begun:
        raise AssertionError("there was no connection")
    return f"connections={begun} rdma_sent={sent} rdma_received={rcvd} tcp={tcp}"


def case(kind, role, fast):
    """One program; both machines go the same way through it, whatever happens."""
    name = title(kind)
    began = time.monotonic()
    why = missing(kind)
    wrong = None
    there = back = 0
    with tempfile.TemporaryDirectory() as folder:
        program = kind(fast, folder)
        barrier(name + "-begin")
        before = counters()
        for step in ("serve", "use"):
            if not why and not wrong and (step == "serve") == (role == "a"):
                try:
                    if role == "a":
                        program.serve()
                        program.wait_listening()
                    else:
                        there, back = program.use()
                except Skip as reason:
                    why = str(reason)
                except Exception as error:  # pylint: disable=broad-except
                    wrong = f"{type(error).__name__}: {error}"
            barrier(f"{name}-{step}")
        if wrong and role == "a":
            print(f"# the server said: {program.said()}".replace("\n", "\n# "))
        program.stop()
        if not why and not wrong:
            try:
                print(f"# {name} seconds={time.monotonic() - began:.0f}",
                      judge(before, counters(), there, back, role))
            except AssertionError as error:
                wrong = str(error)
    if why:
        print("ok 1", name, "# SKIP", why, flush=True)
    elif wrong:
        print("# " + wrong.replace("\n", "\n# "))
        print("not ok 1", name, flush=True)
    else:
        print("ok 1", name, flush=True)
    return not wrong


def main(words):
    if words == ["asyncio"]:
        asyncio.run(PythonAsyncio.server())
        return 0
    options = {word for word in words if word.startswith("-")}
    names = [word for word in words if not word.startswith("-")]
    if "--help" in options or "-h" in options:
        print(__doc__)
        return 0
    if words == ["--list"]:
        print("\n".join(title(kind).removeprefix("app_") for kind in ALL))
        return 0
    if not names or names[0] not in ("a", "b") or options - {"--fast", "--count"}:
        print(__doc__, file=sys.stderr)
        return 2
    role, names = names[0], [n if n.startswith("app_") else "app_" + n for n in names[1:]]
    kinds = [kind for kind in (FAST if "--fast" in options else ALL)
             if not names or any(title(kind).startswith(name) for name in names)]
    if "--count" in options:
        print(len(kinds))
        return 0
    subprocess.run(["nft", "-f", "-"], input=RULES.encode(), check=True)
    try:
        return 0 if all([case(kind, role, "--fast" in options) for kind in kinds]) else 1
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "smcapps"], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
