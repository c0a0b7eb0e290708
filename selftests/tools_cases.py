#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""The operator's tools, smc-doctor, smc-top and smc-run: one line of TAP for each case, no plan.

The arguments name two namespaces joined by the devices veth0, 10.77.0.1 in the first and 10.77.0.2 in the second, each
with an RDMA device of its own name.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

from caserun import Skip, enter, run

IPPROTO_SMC, SO_PROTOCOL = 256, 38
CLIENT, SERVER = sys.argv[1:3]
CLIENT_IP, SERVER_IP = "10.77.0.1", "10.77.0.2"
HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.environ.get("SMC_TOOLS", os.path.join(HERE, "..", "scripts"))
PROTOCOL_OF_A_SOCKET = "import socket; print(socket.socket().getsockopt(socket.SOL_SOCKET, 38))"


def at(name, command):
    subprocess.run(["ip", "netns", "exec", name] + (command.split() if isinstance(command, str) else command),
                   check=True, stdout=subprocess.DEVNULL)


def tool(namespace, name, *arguments, uid=0, before=""):
    """Exit status and both outputs of a tool. With before, shell commands that run in front of it in the same mount
    namespace, which has the /sys of the network namespace.
    """
    enter(namespace)
    user = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
    command = [os.path.join(TOOLS, name)] + list(arguments)
    if before:
        command[:0] = ["unshare", "--mount", "sh", "-euc", f'mount -t sysfs sysfs /sys; {before}; exec "$@"', "sh"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
                          **user)
    return done.returncode, done.stdout, done.stderr


def with_file(folder, name, content):
    """For before: a folder of the kernel's with this file alone."""
    return f"mount -t tmpfs none {folder}; echo '{content}' >{folder}/{name}"


def doctor(namespace, *arguments, before=""):
    """The findings: name and text."""
    status, out, err = tool(namespace, "smc-doctor", "--json", *arguments, before=before)
    assert not err, err
    answer = json.loads(out)
    found = [(check["name"], check["text"]) for check in answer["findings"]]
    assert status == (1 if found else 0), (status, found)
    assert all(check["remedy"] for check in answer["findings"]), answer["findings"]
    return found


def expect(namespace, name, words, *arguments, before=""):
    """Exactly this finding."""
    found = doctor(namespace, *arguments, before=before)
    assert len(found) == 1 and found[0][0] == name and words in found[0][1], found


def pair(protocol=IPPROTO_SMC):
    enter(SERVER)
    listener = socket.socket(proto=protocol)
    listener.bind((SERVER_IP, 0))
    listener.listen()
    enter(CLIENT)
    client = socket.socket(proto=IPPROTO_SMC)
    client.settimeout(60)
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    return client, server, listener


def doctor_of_a_healthy_host():
    assert doctor(CLIENT) == []
    assert doctor(CLIENT, SERVER_IP) == []
    status, out, _ = tool(CLIENT, "smc-doctor")
    assert status == 0 and "nothing is wrong" in out and f"{CLIENT}/1 on veth0" in out, out
    status, out, _ = tool(CLIENT, "smc-doctor", "--quiet")
    assert (status, out) == (0, ""), out
    for wrong in (["--what"], ["1.2.3.4", "port"], ["1", "2", "3"]):
        assert tool(CLIENT, "smc-doctor", *wrong)[0] == 2
    assert tool(CLIENT, "smc-doctor", "--help")[0] == 0


def doctor_without_a_device():
    subprocess.run(["ip", "netns", "add", CLIENT + "x"], check=True)
    try:
        expect(CLIENT + "x", "devices", "no RDMA device")
    finally:
        enter(None)
        subprocess.run(["ip", "netns", "del", CLIENT + "x"], check=True)


def doctor_with_a_port_down():
    at(CLIENT, "ip link set veth0 down")
    try:
        expect(CLIENT, "devices", "is not up")
    finally:
        at(CLIENT, "ip link set veth0 up")
        time.sleep(1)


def doctor_with_an_old_kind_of_address():
    types = f"/sys/class/infiniband/{CLIENT}/ports/1/gid_attrs/types"
    assert doctor(CLIENT, before=with_file(types, "0", "RoCE v2")) == []
    expect(CLIENT, "devices", "no address for RoCE v2", before=with_file(types, "0", "IB/RoCE v1"))


def doctor_with_little_memory():
    expect(CLIENT, "memory", "40 MiB",
           before="sed 's/^MemAvailable:.*/MemAvailable: 40960 kB/' /proc/meminfo >/dev/shm/smct; "
                  "mount --bind /dev/shm/smct /proc/meminfo; rm /dev/shm/smct")


def doctor_with_a_small_mtu():
    at(CLIENT, "ip link set veth0 mtu 1000")
    try:
        expect(CLIENT, "mtu", "1000")
    finally:
        at(CLIENT, "ip link set veth0 mtu 1500")
        # IPv6 has left an interface for which it is too large.
        at(CLIENT, "ip addr replace fd77::1/64 dev veth0 nodad")


def ueids(command, value=b""):
    """One of the commands on enterprise ids, in the client's namespace."""
    sys.path.insert(0, TOOLS)
    sys.dont_write_bytecode = True
    import smcinfo  # pylint: disable=import-outside-toplevel,import-error
    enter(CLIENT)
    module = smcinfo.Module()
    payload = struct.pack("BBH", command, 1, 0) + (smcinfo.attrs_of(1, value + b"\0") if value else b"")
    module.sock.send(struct.pack("IHHII", 16 + len(payload), module.family, 5, 1, 0) + payload)
    assert struct.unpack("i", module.sock.recv(1 << 16)[16:20])[0] == 0


def doctor_without_an_id():
    ueids(12)
    try:
        expect(CLIENT, "ueid", "no enterprise id")
    finally:
        ueids(10, b"SMC-RS.DEFAULT")


def doctor_with_a_firewall():
    at(CLIENT, ["nft", "table inet smcd { chain in { type filter hook input priority 0; udp dport 4791 drop; }; }"])
    try:
        expect(CLIENT, "firewall", "4791")
    finally:
        at(CLIENT, "nft delete table inet smcd")
    at(CLIENT, ["nft", "table inet smcd { chain in { type filter hook input priority 0; udp dport 4791 accept; }; }"])
    try:
        assert doctor(CLIENT) == []
    finally:
        at(CLIENT, "nft delete table inet smcd")


def doctor_with_ipsec():
    def policy(verb, *more):
        at(CLIENT, ["ip", "xfrm", "policy", verb, "dst", f"{SERVER_IP}/32", *more, "dir", "out"]
           + (["tmpl", "proto", "esp", "mode", "transport"] if verb == "add" else []))

    policy("add")
    try:
        assert doctor(CLIENT) == [] and doctor(CLIENT, "10.77.0.3") == [], "they are another's"
        expect(CLIENT, "ipsec", SERVER_IP, SERVER_IP)
        assert "there are IPsec policies" in tool(CLIENT, "smc-doctor")[1]
    finally:
        policy("del")
    # One for other traffic does not matter.
    policy("add", "proto", "udp", "dport", "53")
    try:
        assert doctor(CLIENT, SERVER_IP) == []
    finally:
        policy("del", "proto", "udp", "dport", "53")


def doctor_without_probes():
    switch = "/sys/kernel/debug/kprobes/enabled"
    if not os.path.exists(switch):
        raise Skip("the kernel's probes have no switch here")

    def write(path, value):
        with open(path, "w", encoding="ascii") as f:
            f.write(value)

    enter(CLIENT)
    write("/proc/sys/net/smc/tcp2smc", "1")
    try:
        assert doctor(CLIENT) == []
        write(switch, "0")
        expect(CLIENT, "probes", "switched off")
    finally:
        write(switch, "1")
        write("/proc/sys/net/smc/tcp2smc", "0")


def doctor_while_draining():
    enter(None)
    with open("/proc/sys/net/smc/drain", "w", encoding="ascii") as f:
        f.write("1")
    try:
        assert "drain" in dict(doctor(None))
    finally:
        with open("/proc/sys/net/smc/drain", "w", encoding="ascii") as f:
            f.write("0")


def doctor_of_a_peer_that_cannot_be_reached_so():
    for address in ("fd77::2", "fe80::77:2%veth0"):
        found = doctor(CLIENT, address)
        assert found == [], (address, found)
    assert "IPv6" in tool(CLIENT, "smc-doctor", "fd77::2")[1]
    expect(CLIENT, "route", "no route", "2001:db8::1")
    expect(CLIENT, "route", "no route", "192.0.2.1")
    at(CLIENT, "ip addr add 10.78.0.1/24 dev lo")
    try:
        expect(CLIENT, "route", "no usable RDMA device", "10.78.0.1")
    finally:
        at(CLIENT, "ip addr del 10.78.0.1/24 dev lo")


def doctor_of_physical_networks():
    def restore(text):
        path = f"/run/smct-networks-{os.getpid()}"
        with open(path, "w", encoding="ascii") as f:
            f.write(text)
        try:
            assert tool(CLIENT, "smc-persist", "-f", path, "restore")[0] == 0
        finally:
            os.unlink(path)

    try:
        restore("pnet NET1 eth veth0\n")
        assert doctor(CLIENT) == [], "the host alone is healthy"
        expect(CLIENT, "pnet", "NET1", SERVER_IP)
        restore(f"pnet NET1 eth veth0\npnet NET2 ib {CLIENT} 1\n")
        expect(CLIENT, "pnet", "NET1", SERVER_IP)
        restore(f"pnet NET1 eth veth0\npnet NET1 ib {CLIENT} 1\n")
        assert doctor(CLIENT, SERVER_IP) == []
    finally:
        restore("")


def doctor_tries_a_connection():
    enter(SERVER)
    for protocol in (IPPROTO_SMC, 0):
        enter(SERVER)
        listener = socket.socket(proto=protocol)
        listener.bind((SERVER_IP, 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        if protocol:
            assert doctor(CLIENT, SERVER_IP, port) == []
        else:
            expect(CLIENT, "connection", "0x03010000", SERVER_IP, port)
        listener.close()
    expect(CLIENT, "connection", "Connection refused", SERVER_IP, port)
    enter(SERVER)
    with socket.socket(socket.AF_INET6, proto=IPPROTO_SMC) as listener:
        listener.bind(("fd77::2", 0))
        listener.listen()
        assert doctor(CLIENT, "fd77::2", str(listener.getsockname()[1])) == []
    # What was is told, but is no finding.
    status, out, _ = tool(CLIENT, "smc-doctor")
    assert status == 0 and "0x03010000" in out, out


def metrics(namespace):
    status, out, err = tool(namespace, "smc-top", "--prometheus", uid=65534)
    assert (status, err) == (0, ""), err
    found, declared = {}, set()
    for line in out.splitlines():
        if line.startswith("# TYPE "):
            declared.add(line.split()[2])
            assert line.split()[3] in ("counter", "gauge")
        elif not line.startswith("# HELP "):
            name, value = line.rsplit(" ", 1)
            assert re.fullmatch(r'[a-z_]+(\{([a-z]+="[^"\\]*",?)+\})?', name), name
            assert name.split("{")[0] in declared, name
            assert name not in found, name
            found[name] = int(value)
    return found


def top_for_prometheus():
    before = metrics(CLIENT)
    client, server, _ = pair()
    client.sendall(b"x" * 12345)
    got = 0
    while got < 12345:
        got += len(server.recv(65536))
    after = metrics(CLIENT)

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    assert grown("smc_send_bytes_total") == 12345, grown("smc_send_bytes_total")
    assert grown("smc_connections_client_total") == 1
    assert grown("smc_connections_server_total") == 0
    assert grown('smc_sockets{mode="SMC-R",state="ACTIVE"}') == 1
    assert after[f'smc_links{{device="{CLIENT}",port="1"}}'] >= 1


def top_for_prometheus_by_peer_and_cause():
    client, server, _ = pair()
    found = metrics(CLIENT)
    assert found[f'smc_peer_connections_total{{peer="{SERVER_IP}",side="client",way="rdma"}}'] >= 1, found
    assert found["smc_links_up_total"] >= 1 and "smc_aborts_timeout_total" in found, sorted(found)
    client.close()
    server.close()


def top_once():
    client, server, _ = pair()
    client.sendall(b"x" * 4321)
    status, out, err = tool(CLIENT, "smc-top", "--once")
    assert (status, err) == (0, ""), err
    port = client.getsockname()[1]
    rows = [line.split() for line in out.splitlines() if f"{CLIENT_IP}:{port}" in line]
    assert rows == [["ACTIVE", f"{CLIENT_IP}:{port}", f"{SERVER_IP}:{server.getsockname()[1]}", "SMC-R", "4321", "0",
                     CLIENT]], rows
    for wrong in (["-n"], ["-n", "x"], ["-i", "0"], ["what"]):
        assert tool(CLIENT, "smc-top", *wrong)[0] == 2


def top_in_a_terminal():
    client, server, _ = pair()
    enter(CLIENT)
    pid, terminal = pty.fork()
    if not pid:
        os.execv(os.path.join(TOOLS, "smc-top"), ["smc-top", "-i", "1"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    before = termios.tcgetattr(terminal)[3]
    seen = b""

    def until(condition):
        nonlocal seen
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, seen[-2000:]
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536)

    try:
        port = str(client.getsockname()[1]).encode()
        until(lambda: b"smc-top" in seen and CLIENT_IP.encode() + b":" + port in seen)
        assert b"\x1b[?1049h" in seen
        client.sendall(b"y" * 100000)
        got = 0
        while got < 100000:
            got += len(server.recv(65536))
        until(lambda: re.search(rb"sent \S+ [1-9]\d*K?/s", seen))
        # No line is longer than the terminal.
        for line in re.sub(rb"\x1b\[[?0-9]*[A-Za-z]", b"", seen).split(b"\r\n"):
            assert len(line) <= 100, line
        os.write(terminal, b"q")
        until(lambda: b"\x1b[?1049l" in seen)
        assert os.waitpid(pid, 0)[1] == 0
        pid = 0
        assert termios.tcgetattr(terminal)[3] == before, "the terminal is left in another mode"
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def with_cgroups(work):
    """Runs work where there are control groups of version 2."""
    mounted = any(line.split()[2] == "cgroup2" for line in open("/proc/self/mounts", encoding="ascii"))
    if not mounted:
        os.makedirs("/sys/fs/cgroup", exist_ok=True)
        subprocess.run(["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"], check=True)
    try:
        work()
    finally:
        enter(CLIENT)
        for name, value in (("tcp2smc", "0"), ("tcp2smc_allow", "")):
            with open("/proc/sys/net/smc/" + name, "w", encoding="ascii") as f:
                f.write(value + "\n")
        if not mounted:
            for folder in ("smc-run", "user.slice/user-65534.slice/smc-run", "user.slice/user-65534.slice", "user.slice"):
                if os.path.isdir("/sys/fs/cgroup/" + folder):
                    os.rmdir("/sys/fs/cgroup/" + folder)
            subprocess.run(["umount", "/sys/fs/cgroup"], check=True)


def run_as_root():
    def work():
        run = ["python3", "-c", PROTOCOL_OF_A_SOCKET]
        assert tool(CLIENT, "smc-run", *run) == (0, "256\n", ""), tool(CLIENT, "smc-run", *run)
        # A child of a child, in Go's way of naming MPTCP.
        child = ["sh", "-c", f"python3 -c '{PROTOCOL_OF_A_SOCKET}'"]
        assert tool(CLIENT, "smc-run", *child)[1] == "256\n"
        # Nobody else.
        enter(CLIENT)
        assert subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout == "6\n"
        assert tool(CLIENT, "smc-run", "sh", "-c", "exit 7")[0] == 7
        # Twice the same word is once.
        with open("/proc/sys/net/smc/tcp2smc_allow", encoding="ascii") as f:
            assert re.fullmatch(r"cgroup:\d+\n", f.read())

    with_cgroups(work)


def run_enabled_for_a_user():
    def work():
        run = ["python3", "-c", PROTOCOL_OF_A_SOCKET]
        assert tool(CLIENT, "smc-run", "--enable", "nobody")[0] == 0
        status, out, err = tool(CLIENT, "smc-run", *run, uid=65534)
        # The process of the test is not in the user's part of the tree: as with sudo, that must be said.
        if "not enabled" in err:
            with open("/sys/fs/cgroup/user.slice/user-65534.slice/cgroup.procs", "w", encoding="ascii") as f:
                f.write(str(os.getpid()))
            status, out, err = tool(CLIENT, "smc-run", *run, uid=65534)
            with open("/sys/fs/cgroup/cgroup.procs", "w", encoding="ascii") as f:
                f.write(str(os.getpid()))
        assert (status, out, err) == (0, "256\n", ""), (status, out, err)
        assert subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True, user=65534).stdout == "6\n"
        assert tool(CLIENT, "smc-run", "--disable", "nobody")[0] == 0
        with open("/proc/sys/net/smc/tcp2smc", encoding="ascii") as f:
            assert f.read() == "0\n"
        assert tool(CLIENT, "smc-run", "--enable", "nobody", uid=65534)[0] == 125

    with_cgroups(work)


def run_without_rights():
    def work():
        status, out, err = tool(CLIENT, "smc-run", "python3", "-c", PROTOCOL_OF_A_SOCKET, uid=65534)
        assert (status, out) == (0, "256\n"), (status, out, err)
        assert "not enabled" in err and "library" in err, err

    with_cgroups(work)


def run_with_wrong_arguments():
    for wrong in ([], ["--what"], ["--enable"], ["--enable", "a", "b"]):
        assert tool(CLIENT, "smc-run", *wrong)[0] == 2, wrong
    assert tool(CLIENT, "smc-run", "--enable", "there-is-none")[0] == 125
    assert tool(CLIENT, "smc-run", "--help")[0] == 0


def persist_saves_and_restores():
    path = f"/run/smct-persist-{os.getpid()}"

    def persist(verb, *options):
        return tool(CLIENT, "smc-persist", *options, verb)

    def write(text):
        with open(path, "w", encoding="ascii") as f:
            f.write(text)

    head = "# Enterprise ids and physical networks of SMC: see smc-persist(8).\n"
    plain = head + "ueid SMC-RS.DEFAULT\n"
    mine = head + ("ueid MY.COMPANY\nueid OTHER\nueid THIRD\nueid FOURTH\npnet NET1 eth veth0\npnet NET1 ib mlx5_0 2\n"
                   "pnet N2 eth n/a\n")
    try:
        assert persist("show") == (0, plain, "")
        assert persist("save", "-f", path)[0] == 0
        with open(path, encoding="ascii") as f:
            assert f.read() == plain
        write(mine + "  # with a remark\n\n")
        for _ in range(2):
            assert persist("restore", "-f", path) == (0, "", ""), persist("restore", "-f", path)
            assert persist("show") == (0, mine, ""), persist("show")
        # Without ids the ids stay.
        write("pnet N3 ib rxe0 1\n")
        assert persist("restore", "-f", path)[0] == 0
        assert persist("show")[1] == mine.split("pnet")[0] + "pnet N3 ib rxe0 1\n", persist("show")
        # What cannot be is said, and the rest is done.
        write("ueid MY.COMPANY\nueid lower\npnet N_4 eth veth0\npnet N5 eth veth0\n")
        status, out, err = persist("restore", "-f", path)
        assert (status, out) == (1, "") and "ueid lower: an id has" in err and "pnet N_4 eth veth0: an id of" in err, err
        assert persist("show")[1] == head + "ueid MY.COMPANY\npnet N5 eth veth0\n", persist("show")
        # A file with a line that is none changes nothing.
        for bad in ("ueid\n", "ueid A B\n", "pnet N eth\n", "pnet N ib d 3\n", "pnet N usb d\n", "what\n"):
            write("ueid A\n" + bad)
            status, _, err = persist("restore", "-f", path)
            assert status == 1 and "line 2" in err, (bad, err)
        assert persist("show")[1] == head + "ueid MY.COMPANY\npnet N5 eth veth0\n"
        assert persist("restore", "-f", path + "none")[0] == 1
        # Not everybody may.
        write(plain)
        status, _, err = tool(CLIENT, "smc-persist", "-f", path, "restore", uid=65534)
        assert status == 1 and "not permitted" in err, err
        for wrong in ([], ["save", "show"], ["-f"], ["what"]):
            assert tool(CLIENT, "smc-persist", *wrong)[0] == 2, wrong
    finally:
        write(plain)
        assert persist("restore", "-f", path)[0] == 0
        os.unlink(path)
    assert persist("show") == (0, plain, "")


def persist_is_installed_as_a_unit():
    top = os.path.join(TOOLS, "..")
    if not os.path.exists(os.path.join(top, "Makefile")):
        raise Skip("this is no checkout")
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["make", "-s", "-C", top, "install-tools", f"DESTDIR={root}", "PREFIX=/opt/smc"], check=True,
                       stdout=subprocess.DEVNULL)
        with open(f"{root}/opt/smc/lib/systemd/system/smc-persist.service", encoding="ascii") as f:
            lines = f.read().splitlines()
        starts = [line.split("=", 1)[1].split() for line in lines if line.startswith("ExecStart=")]
        assert starts == [["/opt/smc/sbin/smc-persist", "restore"]], starts
        assert "ConditionPathExists=/etc/smc-rs.conf" in lines and "@" not in "".join(lines)
        # It works where it was installed.
        enter(CLIENT)
        done = subprocess.run([root + starts[0][0], "show"], check=True, stdout=subprocess.PIPE, text=True)
        assert "ueid SMC-RS.DEFAULT" in done.stdout
        for name in ("modules-load.conf", "sysctl.conf", "SMC_PNETID.yaml"):
            assert os.path.getsize(f"{root}/opt/smc/share/doc/smc-rs/examples/{name}")


def doctor_without_the_module():
    unload = os.environ.get("SMC_UNLOAD", os.path.join(TOOLS, "smc-unload"))
    subprocess.run([unload, "--quiet"], check=True)
    try:
        # Who asks loads an installed module.
        forbidden = "/run/modprobe.d/smct.conf"
        os.makedirs(os.path.dirname(forbidden), exist_ok=True)
        with open(forbidden, "w", encoding="ascii") as f:
            f.write("install smc_rs /bin/false\n")
        try:
            expect(CLIENT, "module", "not loaded" if subprocess.run(["modinfo", "smc_rs"], stdout=subprocess.DEVNULL,
                                                                    stderr=subprocess.DEVNULL,
                                                                    check=False).returncode == 0 else "neither loaded")
            expect(CLIENT, "module", "Secure Boot",
                   before=with_file("/sys/kernel/security", "lockdown", "none [integrity] confidentiality"))
            assert tool(CLIENT, "smc-top", "--once")[0] == 1
            assert tool(CLIENT, "smc-run", "true")[0] == 125
        finally:
            os.unlink(forbidden)
    finally:
        ko = os.environ.get("SMC_KO", "")
        subprocess.run(["insmod", ko] if os.path.exists(ko) else ["modprobe", "smc_rs"], check=True)


if __name__ == "__main__":
    sys.exit(run(globals(), ("doctor_", "top_", "run_", "persist_")))
