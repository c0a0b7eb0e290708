#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""Sockets of TCP that become ones of SMC (net.smc.tcp2smc): one line of TAP for each case, no plan.

The arguments name two namespaces joined by the devices veth0, each with an RDMA device: 10.77.0.1 and fd77::1 in the
first, 10.77.0.2 and fd77::2 in the second, whose nftables counter smc_syn counts SYN segments with the SMC option.
"""

import ctypes
import errno
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from caserun import Skip, enter, libc, run

IPPROTO_SMC, IPPROTO_MPTCP = 256, 262
SO_PROTOCOL, SOL_SMC, SMC_RS_INFO = 38, 286, 0x100
MODE_SMC, MODE_TCP = 1, 2
PEERNOSMC, NOTWANTED = 0x03010000, 0x03F00000
PR_SET_NAME, PR_SET_NO_NEW_PRIVS = 15, 38
CLIENT, SERVER = sys.argv[1:3]
CLIENT_IP, SERVER_IP = "10.77.0.1", "10.77.0.2"
HERE = os.path.dirname(os.path.abspath(__file__))
PLAIN = os.path.join(HERE, "..", "build", "plain")
SLOW = int(os.environ.get("SMC_SLOW", "1"))
DENIED = "comm:iscsid comm:nbd-client"


def setting(namespace, name, value=None):
    """Writes a setting of a namespace, or reads it."""
    enter(namespace)
    path = "/proc/sys/net/smc/" + name
    if value is None:
        with open(path, encoding="ascii") as f:
            return f.read().rstrip("\n")
    with open(path, "w", encoding="ascii") as f:
        # Of an empty text nothing would be written.
        f.write(f"{value}\n")
    return None


def both(level):
    for namespace in (CLIENT, SERVER):
        setting(namespace, "tcp2smc", level)


def opened(namespace, family=socket.AF_INET, kind=socket.SOCK_STREAM, protocol=0):
    """The protocol of a socket that is opened in a namespace."""
    enter(namespace)
    with socket.socket(family, kind, protocol) as sock:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL)


def in_child(work):
    """What work returns, from a process of its own."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(into, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as f:
        text = f.read()
    os.waitpid(pid, 0)
    assert text, "the child died"
    return json.loads(text)


def info(sock):
    """Mode and reason of the fallback."""
    numbers = struct.unpack("6I", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 24))
    return numbers[1], numbers[3]


def pair(port=0, family=socket.AF_INET, host=SERVER_IP):
    """A connection of two plain sockets: the client's, the server's, the listener."""
    enter(SERVER)
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen()
    enter(CLIENT)
    client = socket.socket(family)
    client.settimeout(60 * SLOW)
    client.connect(listener.getsockname()[:2])
    listener.settimeout(60 * SLOW)
    server, _ = listener.accept()
    server.settimeout(60 * SLOW)
    return client, server, listener


def exchange(one, other):
    for a, b in ((one, other), (other, one)):
        a.sendall(b"over there")
        got = b""
        while len(got) < 10:
            got += b.recv(100) or sys.exit("end of stream")
        assert got == b"over there", got


def smc_syns():
    text = subprocess.run(["ip", "netns", "exec", SERVER, "nft", "list", "counter", "inet", "smct", "smc_syn"],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(re.search(r"packets (\d+)", text).group(1))


def start(namespace, command, stderr=sys.stdout):
    # pylint: disable=subprocess-popen-preexec-fn
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                            preexec_fn=lambda: enter(namespace))


def says(process, word):
    end = time.monotonic() + 100 * SLOW
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 1)[0]:
            line = process.stdout.readline().strip().decode()
            assert line == word, f"said '{line}', not '{word}'"
            return
    raise TimeoutError(f"does not say {word}")


def modes(process):
    """What the process's SMC sockets are."""
    found = []
    for fd in os.listdir(f"/proc/{process.pid}/fdinfo"):
        with open(f"/proc/{process.pid}/fdinfo/{fd}", encoding="ascii") as f:
            found += re.findall(r"^smc:\t(\S+)", f.read(), re.M)
    return sorted(found)


def talk(serve, client, port, level=1):
    """Two programs talk: both ends do it by SMC-R."""
    both(level)
    server = start(SERVER, serve + [SERVER_IP, str(port)])
    try:
        says(server, "ready")
        client = start(CLIENT, client + [SERVER_IP, str(port)])
        try:
            says(client, "same")
            assert "smc-r" in modes(client), f"the client has {modes(client)}"
            assert "smc-r" in modes(server), f"the server has {modes(server)}"
            client.stdin.close()
            assert client.wait(30 * SLOW) == 0
            assert server.wait(30 * SLOW) == 0
        finally:
            client.kill()
            client.wait()
    finally:
        server.kill()
        server.wait()


def convert_is_off_by_default():
    assert setting(CLIENT, "tcp2smc") == "0"
    assert setting(CLIENT, "tcp2smc_no_new_privs") == "0"
    assert setting(CLIENT, "tcp2smc_memory") == "300"
    assert setting(CLIENT, "tcp2smc_allow") == ""
    assert setting(CLIENT, "tcp2smc_deny") == DENIED
    assert opened(CLIENT) == socket.IPPROTO_TCP


def convert_static_program():
    plain = os.path.join(PLAIN, "plain")
    talk([plain, "serve"], [plain, "talk"], 8001)


def convert_io_uring():
    plain = os.path.join(PLAIN, "plain")
    talk([plain, "serve"], [plain, "ring"], 8002)


def convert_python():
    plain = ["python3", os.path.join(HERE, "plain", "plain.py")]
    talk(plain + ["serve"], plain + ["talk"], 8003)


def convert_go():
    plain = os.path.join(PLAIN, "plain-go")
    if not os.path.exists(plain):
        raise Skip("there is no build/plain/plain-go (make -C selftests languages)")
    # Its listeners are of MPTCP.
    talk([plain, "serve"], [plain, "talk"], 8004, 2)


def convert_java():
    if not os.path.exists(os.path.join(PLAIN, "Plain.class")):
        raise Skip("there is no build/plain/Plain.class (make -C selftests languages)")
    plain = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m", "-cp", PLAIN, "Plain"]
    talk(plain + ["serve"], plain + ["talk"], 8005)


def convert_ipv6_sockets():
    both(1)
    assert opened(CLIENT, socket.AF_INET6) == IPPROTO_SMC
    client, server = pair(family=socket.AF_INET6, host="fd77::2")[:2]
    exchange(client, server)
    assert info(client)[0] == MODE_SMC, info(client)


def convert_explicit_protocol():
    both(1)
    assert opened(CLIENT, protocol=socket.IPPROTO_TCP) == IPPROTO_SMC
    assert opened(CLIENT, kind=socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) == IPPROTO_SMC


def convert_other_kinds_untouched():
    both(2)
    assert opened(CLIENT, kind=socket.SOCK_DGRAM) == socket.IPPROTO_UDP
    assert opened(CLIENT, kind=socket.SOCK_RAW, protocol=socket.IPPROTO_ICMP) == socket.IPPROTO_ICMP
    assert opened(CLIENT, family=socket.AF_UNIX) == 0
    for kind, protocol in ((socket.SOCK_STREAM, 5), (socket.SOCK_SEQPACKET, 0)):
        try:
            opened(CLIENT, kind=kind, protocol=protocol)
        except OSError as e:
            assert e.errno in (errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT), e
        else:
            raise AssertionError(f"type {kind} of protocol {protocol} was opened")


def convert_mptcp_at_2_only():
    both(1)
    try:
        assert opened(CLIENT, protocol=IPPROTO_MPTCP) == IPPROTO_MPTCP
    except OSError as e:
        if e.errno != errno.EPROTONOSUPPORT and e.errno != errno.ENOPROTOOPT:
            raise
    both(2)
    assert opened(CLIENT, protocol=IPPROTO_MPTCP) == IPPROTO_SMC
    assert opened(CLIENT) == IPPROTO_SMC


def convert_other_namespace_untouched():
    setting(CLIENT, "tcp2smc", 1)
    assert opened(CLIENT) == IPPROTO_SMC
    assert setting(SERVER, "tcp2smc") == "0"
    assert opened(SERVER) == socket.IPPROTO_TCP


def convert_existing_sockets_stay():
    enter(SERVER)
    listener = socket.socket()
    listener.bind((SERVER_IP, 0))
    enter(CLIENT)
    before = socket.socket()
    both(1)
    listener.listen()
    assert before.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL) == socket.IPPROTO_TCP
    assert opened(CLIENT) == IPPROTO_SMC
    before.connect(listener.getsockname())
    server, _ = listener.accept()
    assert server.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL) == socket.IPPROTO_TCP
    exchange(before, server)


def convert_off_again_at_once():
    both(1)
    client, server, listener = pair()
    assert info(client)[0] == MODE_SMC and info(server)[0] == MODE_SMC
    both(0)
    assert opened(CLIENT) == socket.IPPROTO_TCP
    exchange(client, server)
    # The listener is one of before.
    enter(CLIENT)
    with socket.create_connection(listener.getsockname(), 60) as plain:
        assert plain.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL) == socket.IPPROTO_TCP
        accepted, _ = listener.accept()
        accepted.settimeout(60)
        exchange(plain, accepted)
        assert info(accepted) == (MODE_TCP, PEERNOSMC), info(accepted)
    both(1)
    assert opened(CLIENT) == IPPROTO_SMC


def convert_no_new_privs():
    both(1)

    def bound():
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return opened(CLIENT)

    assert in_child(bound) == socket.IPPROTO_TCP
    assert in_child(lambda: opened(CLIENT)) == IPPROTO_SMC
    setting(CLIENT, "tcp2smc_no_new_privs", 1)
    assert in_child(bound) == IPPROTO_SMC


def named(name):
    """The protocol of a socket that a program of this name opens, in a thread of another name."""

    def work():
        libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
        answer = []

        def thread():
            libc.prctl(PR_SET_NAME, b"thread", 0, 0, 0)
            answer.append(opened(CLIENT))

        other = threading.Thread(target=thread)
        other.start()
        other.join()
        return answer[0]

    return in_child(work)


def convert_list_of_commands():
    both(1)
    assert named("iscsid") == socket.IPPROTO_TCP
    assert named("nbd-client") == socket.IPPROTO_TCP
    assert named("thread") == IPPROTO_SMC
    setting(CLIENT, "tcp2smc_deny", "comm:a.out  comm:a_name_of_15_ch")
    assert setting(CLIENT, "tcp2smc_deny") == "comm:a.out comm:a_name_of_15_ch"
    assert named("iscsid") == IPPROTO_SMC
    assert named("a_name_of_15_ch") == socket.IPPROTO_TCP
    setting(CLIENT, "tcp2smc_allow", "comm:a.out comm:b.out")
    assert named("b.out") == IPPROTO_SMC
    assert named("b.ou") == socket.IPPROTO_TCP
    assert named("a.out") == socket.IPPROTO_TCP, "what is denied is not allowed"
    setting(CLIENT, "tcp2smc_allow", "")
    assert named("b.ou") == IPPROTO_SMC
    assert setting(SERVER, "tcp2smc_deny") == DENIED, "the lists are those of a namespace"


def convert_list_of_cgroups():
    both(1)
    with tempfile.TemporaryDirectory() as top:
        subprocess.run(["mount", "-t", "cgroup2", "none", top], check=True)
        group = os.path.join(top, "smct")
        below = os.path.join(group, "below")
        try:
            os.makedirs(below)
            number = os.stat(group).st_ino

            def within(path):
                with open(os.path.join(path, "cgroup.procs"), "w", encoding="ascii") as f:
                    f.write(str(os.getpid()))
                return opened(CLIENT)

            setting(CLIENT, "tcp2smc_allow", f"cgroup:{number}")
            assert in_child(lambda: opened(CLIENT)) == socket.IPPROTO_TCP
            assert in_child(lambda: within(group)) == IPPROTO_SMC
            assert in_child(lambda: within(below)) == IPPROTO_SMC
            setting(CLIENT, "tcp2smc_allow", "")
            setting(CLIENT, "tcp2smc_deny", f"cgroup:{number}")
            assert in_child(lambda: opened(CLIENT)) == IPPROTO_SMC
            assert in_child(lambda: within(below)) == socket.IPPROTO_TCP
        finally:
            for path in (below, group):
                if os.path.isdir(path):
                    os.rmdir(path)
            subprocess.run(["umount", top], check=True)


def convert_list_of_ports():
    both(1)
    setting(CLIENT, "tcp2smc_deny", "port:22 port:8100-8199")
    syns = smc_syns()
    client, server = pair(8150)[:2]
    assert info(client) == (MODE_TCP, NOTWANTED), info(client)
    assert info(server) == (MODE_TCP, PEERNOSMC), info(server)
    exchange(client, server)
    assert smc_syns() == syns, "the SYN had the option"
    client, server = pair(8200)[:2]
    assert info(client)[0] == MODE_SMC, info(client)
    setting(CLIENT, "tcp2smc_deny", "")
    # As a listener.
    setting(SERVER, "tcp2smc_allow", "port:8300")
    client, server, listener = pair(8150)
    assert info(listener) == (MODE_TCP, NOTWANTED), info(listener)
    assert info(client) == (MODE_TCP, PEERNOSMC), info(client)
    exchange(client, server)
    client, server = pair(8300)[:2]
    assert info(server)[0] == MODE_SMC, info(server)


def convert_bad_values_refused():
    for name, values in {
            "tcp2smc": ("3", "-1", "yes"),
            "tcp2smc_no_new_privs": ("2",),
            "tcp2smc_memory": ("86401",),
            "tcp2smc_deny": ("port", "port:", "port:65536", "port:2-1", "port:1-", "port:1-2-3", "comm:", "user:1",
                             "comm:a_name_of_16_cha", "cgroup:x", "cgroup:99999999999999999999", ":1", "x" * 1024),
    }.items():
        before = setting(CLIENT, name)
        for value in values:
            try:
                setting(CLIENT, name, value)
            except OSError as e:
                assert e.errno == errno.EINVAL, (name, value, e)
            else:
                raise AssertionError(f"{name} took '{value}'")
            assert setting(CLIENT, name) == before, (name, value)


def convert_peer_without_smc_is_remembered():
    setting(CLIENT, "tcp2smc", 1)

    def attempt(port):
        before = smc_syns()
        client, server = pair(port)[:2]
        exchange(client, server)
        assert info(client) == (MODE_TCP, PEERNOSMC), info(client)
        return smc_syns() > before

    assert attempt(8401), "the first connection does not try"
    assert not attempt(8401), "the second one does"
    assert attempt(8402), "another port is another peer"
    # The peer has SMC by now, but who was told that it had none does not try.
    setting(SERVER, "tcp2smc", 1)
    client, server = pair(8401)[:2]
    assert info(client) == (MODE_TCP, PEERNOSMC), info(client)
    # A change of the time forgets all.
    setting(CLIENT, "tcp2smc_memory", 1)
    client, server = pair(8401)[:2]
    assert info(client)[0] == MODE_SMC, info(client)
    setting(SERVER, "tcp2smc", 0)
    assert attempt(8403)
    time.sleep(1.1)
    assert attempt(8403), "after its time a peer is tried again"
    setting(CLIENT, "tcp2smc_memory", 0)
    assert attempt(8404) and attempt(8404)


def convert_listener_closed_in_a_handshake_is_not_held_against_it():
    both(1)
    port = 8420

    def speaks(sock):
        """Whether the TCP connection is there and something that it sent is not acknowledged."""
        known = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return known[0] == 1 and struct.unpack_from("=I", known, 24)[0] > 0

    def cut():
        """A listener that goes while a connection to it is in its handshake."""
        enter(SERVER)
        listener = socket.create_server((SERVER_IP, port))
        enter(CLIENT)
        with socket.socket() as client:
            client.setblocking(False)
            assert client.connect_ex((SERVER_IP, port)) == errno.EINPROGRESS
            # Until the client has said what the listener is not let hear.
            end = time.monotonic() + 20 * SLOW
            while not speaks(client):
                assert time.monotonic() < end, "it does not speak"
                time.sleep(0.02)
            listener.close()
            assert select.select([], [client], [], 60 * SLOW)[1], "it still connects"
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (errno.ECONNREFUSED, errno.ECONNRESET)

    def mode():
        client, server, listener = pair(port)
        exchange(client, server)
        found = info(client)[0]
        for sock in (client, server, listener):
            sock.close()
        return found

    def deaf(on):
        rule = (f"table inet deaf {{ chain in {{ type filter hook input priority 0; tcp dport {port} meta length > 100 "
                "drop; }; }" if on else "delete table inet deaf")
        subprocess.run(["ip", "netns", "exec", SERVER, "nft", rule], check=True)

    for cuts, expected in ((1, MODE_SMC), (2, MODE_TCP)):
        deaf(True)
        for _ in range(cuts):
            cut()
        deaf(False)
        found = mode()
        assert found == expected, f"after {cuts}: mode {found}, expected {expected}"
    setting(CLIENT, "tcp2smc_memory", 0)


def convert_kernel_socket_untouched():
    both(1)
    enter(SERVER)
    listener = socket.create_server((SERVER_IP, 8501))
    listener.settimeout(60 * SLOW)
    syns = smc_syns()
    with tempfile.TemporaryDirectory() as where:
        # It fails in the end, and what it says then must not get into the middle of a result.
        mount = start(CLIENT, ["mount", "-t", "9p", "-o", "trans=tcp,port=8501,version=9p2000.L", SERVER_IP, where],
                      stderr=subprocess.DEVNULL)
        try:
            server, _ = listener.accept()
            # The kernel speaks first.
            assert b"9P2000.L" in server.recv(100)
            assert info(server) == (MODE_TCP, PEERNOSMC), info(server)
            assert smc_syns() == syns
        finally:
            listener.close()
            server.close()
            mount.kill()
            mount.wait()


def convert_without_probes_is_refused():
    with tempfile.TemporaryDirectory() as debug:
        subprocess.run(["mount", "-t", "debugfs", "none", debug], check=True)
        try:
            switch = os.path.join(debug, "kprobes", "enabled")
            if not os.path.exists(switch):
                raise Skip("the kernel's probes have no switch here")
            with open(switch, "w", encoding="ascii") as f:
                f.write("0")
            try:
                setting(CLIENT, "tcp2smc", 1)
            except OSError as e:
                assert e.errno == errno.EOPNOTSUPP, e
            else:
                raise AssertionError("accepted without probes")
            finally:
                with open(switch, "w", encoding="ascii") as f:
                    f.write("1")
        finally:
            subprocess.run(["umount", debug], check=True)
    assert setting(CLIENT, "tcp2smc") == "0"
    assert opened(CLIENT) == socket.IPPROTO_TCP
    setting(CLIENT, "tcp2smc", 1)
    assert opened(CLIENT) == IPPROTO_SMC


def probes():
    """The kernel's list of probed places."""
    with tempfile.TemporaryDirectory() as debug:
        subprocess.run(["mount", "-t", "debugfs", "none", debug], check=True)
        try:
            with open(os.path.join(debug, "kprobes", "list"), encoding="ascii") as f:
                return re.findall(r"\S+ +k +(\w+)", f.read())
        finally:
            subprocess.run(["umount", debug], check=True)


def convert_leaves_no_probe():
    assert probes() == []
    both(1)
    assert sorted(probes()) == ["__sys_socket_file", "update_socket_protocol"], probes()
    setting(CLIENT, "tcp2smc", 0)
    assert len(probes()) == 2
    setting(SERVER, "tcp2smc", 0)
    assert probes() == []
    subprocess.run(["ip", "netns", "add", CLIENT + "x"], check=True)
    setting(CLIENT + "x", "tcp2smc", 1)
    assert len(probes()) == 2
    enter(CLIENT)
    subprocess.run(["ip", "netns", "del", CLIENT + "x"], check=True)
    end = time.monotonic() + 20 * SLOW
    while probes():
        assert time.monotonic() < end, "a namespace that went left its probes"
        time.sleep(0.1)


def convert_costs_a_peer_without_smc_no_packet():
    setting(CLIENT, "tcp2smc_memory", 0)

    def packets():
        """Segments of TCP in and out of the server's namespace, as the kernel counts them."""
        enter(SERVER)
        with open("/proc/thread-self/net/snmp", encoding="ascii") as f:
            names, values = [line.split() for line in f if line.startswith("Tcp:")]
        counted = dict(zip(names, values))
        return int(counted["InSegs"]) + int(counted["OutSegs"])

    def one(port):
        """Packets of a whole connection, and the time of its connect in microseconds."""
        enter(SERVER)
        listener = socket.create_server((SERVER_IP, port))
        before = packets()
        enter(CLIENT)
        client = socket.socket()
        began = time.monotonic_ns()
        client.connect((SERVER_IP, port))
        took = (time.monotonic_ns() - began) // 1000
        server, _ = listener.accept()
        # One end after the other, so that no two segments cross.
        client.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
        server.close()
        assert client.recv(1) == b""
        client.close()
        listener.close()
        # The last acknowledgement comes by itself.
        time.sleep(0.05)
        return packets() - before, took

    plain = [one(8600 + n) for n in range(10)]
    setting(CLIENT, "tcp2smc", 1)
    converted = [one(8620 + n) for n in range(10)]
    for name, runs in (("TCP", plain), ("converted", converted)):
        print(f"# {name}: {sorted(p for p, _ in runs)[5]} packets, connect {sorted(t for _, t in runs)[5]} us (median)")
    assert sorted(p for p, _ in plain)[5] == sorted(p for p, _ in converted)[5]


def convert_costs_other_namespaces_next_to_nothing():
    def opening():
        """Nanoseconds for a socket of another namespace, the least of many."""
        enter(SERVER)
        best = None
        for _ in range(2000):
            began = time.monotonic_ns()
            sock = socket.socket()
            took = time.monotonic_ns() - began
            sock.close()
            best = took if best is None else min(best, took)
        return best

    off = opening()
    setting(CLIENT, "tcp2smc", 1)
    on = opening()
    print(f"# socket() in a namespace that converts none: {off} ns without the probes, {on} ns with them")
    assert on < 3 * off
    assert opened(SERVER) == socket.IPPROTO_TCP


def convert_sockets_are_none_for_sockmap():
    def bpf(command, *fields):
        """bpf(2)."""
        about = ctypes.create_string_buffer(struct.pack("@" + "".join(kind for kind, _ in fields),
                                                        *(value for _, value in fields)).ljust(64, b"\0"))
        result = libc.syscall(321 if os.uname().machine == "x86_64" else 280, command, about, 64)
        if result < 0:
            raise OSError(ctypes.get_errno(), "bpf")
        return result

    try:
        # A map of sockets with room for one.
        sockets = bpf(0, ("I", 15), ("I", 4), ("I", 4), ("I", 1))
    except OSError as e:
        raise Skip(f"no map of sockets: {e}") from e

    def add(sock):
        key, value = (ctypes.create_string_buffer(struct.pack("I", number)) for number in (0, sock.fileno()))
        bpf(2, ("I", sockets), ("I", 0), ("Q", ctypes.addressof(key)), ("Q", ctypes.addressof(value)), ("Q", 0))

    try:
        plain = pair()
        add(plain[0])
        both(1)
        converted = pair()
        exchange(*converted[:2])
        for sock in converted:
            try:
                add(sock)
            except OSError as e:
                assert e.errno == errno.EOPNOTSUPP, e
            else:
                raise AssertionError("taken")
        exchange(*converted[:2])
    finally:
        os.close(sockets)


def convert_keeps_the_owner_for_firewalls():
    rules = "table inet smcto { counter owned { }; chain out { type filter hook output priority 0; " \
            "meta l4proto tcp meta skuid 0 counter name owned; }; }"
    at = ["ip", "netns", "exec", CLIENT, "nft"]
    subprocess.run(at + [rules], check=True)

    def owned():
        text = subprocess.run(at + ["list", "counter", "inet", "smcto", "owned"], check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        return int(re.search(r"packets (\d+)", text).group(1))

    try:
        exchange(*pair()[:2])
        assert owned() > 0, "not even TCP has an owner"
        both(1)
        before = owned()
        exchange(*pair()[:2])
        assert owned() > before
    finally:
        subprocess.run(at + ["delete table inet smcto"], check=True)


def convert_does_not_keep_the_module():
    both(1)
    client, server, listener = pair()
    exchange(client, server)
    for sock in (client, server, listener):
        sock.close()
    unload = os.environ.get("SMC_UNLOAD", os.path.join(HERE, "..", "scripts", "smc-unload"))
    subprocess.run([unload, "--quiet", "--timeout", str(30 * SLOW)], check=True, stdout=sys.stdout)
    assert opened(CLIENT) == socket.IPPROTO_TCP
    assert probes() == []
    ko = os.environ.get("SMC_KO", "")
    subprocess.run(["insmod", ko] if os.path.exists(ko) else ["modprobe", "smc_rs"], check=True)
    assert setting(CLIENT, "tcp2smc") == "0"


def reset():
    for namespace in (CLIENT, SERVER):
        for name, value in (("tcp2smc", 0), ("tcp2smc_no_new_privs", 0), ("tcp2smc_memory", 300),
                            ("tcp2smc_allow", ""), ("tcp2smc_deny", DENIED)):
            setting(namespace, name, value)


if __name__ == "__main__":
    sys.exit(run(globals(), "convert_", reset))
