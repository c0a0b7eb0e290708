#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The TCP option under unusual conditions: one line of TAP for each case, no plan.

Two namespaces, named by the arguments, are joined by the devices veth0, 10.79.0.1 and fd79::1 in the first (the
server's), 10.79.0.2 and fd79::2 in the second (the client's).
"""

import ctypes
import errno
import os
import socket
import struct
import subprocess
import sys
import threading

AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6
IPPROTO_SMC = 256
SOL_SMC, SMC_RS_INFO = 286, 0x100
PEERNOSMC = 0x03010000
IPV6_ADDRFORM = 1
SERVER, CLIENT = sys.argv[1:3]
V4, V6, MAPPED = "10.79.0.1", "fd79::1", "::ffff:10.79.0.1"

libc = ctypes.CDLL(None, use_errno=True)
failed = 0


def enter(name):
    fd = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(fd, 0):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)


def at(name, command, check=True):
    subprocess.run(["ip", "netns", "exec", name] + command.split(), check=check,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def smc(name, family, proto=IPPROTO_SMC):
    enter(name)
    return socket.socket(family, socket.SOCK_STREAM, proto)


def listener(family, host, proto=IPPROTO_SMC, backlog=10):
    sock = smc(SERVER, family, proto)
    sock.bind((host, 0))
    sock.listen(backlog)
    return sock


def reason(sock):
    """Why the socket fell back, 0 for one that did not."""
    return struct.unpack("6I", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 24))[3]


def exchange(one, other):
    for a, b in ((one, other), (other, one)):
        a.sendall(b"x" * 4000)
        got = 0
        while got < 4000:
            got += len(b.recv(4000)) or sys.exit("end of stream")


def connect(family, host, client_family, client_host):
    """A connection that works, and whether both ends saw the option."""
    with listener(family, host) as server:
        client = smc(CLIENT, client_family)
        client.connect((client_host, server.getsockname()[1]))
        accepted, _ = server.accept()
    exchange(client, accepted)
    seen = reason(client) != PEERNOSMC, reason(accepted) != PEERNOSMC
    client.close()
    accepted.close()
    assert seen[0] == seen[1], f"the client saw {seen[0]}, the server {seen[1]}"
    return seen[0]


def offload(state):
    for name in (SERVER, CLIENT):
        at(name, f"ethtool -K veth0 tx {state} rx {state}", check=False)


def option_survives_without_checksum_offload():
    offload("off")
    try:
        assert connect(AF_INET, V4, AF_INET, V4)
        assert connect(AF_INET6, V6, AF_INET6, V6)
        assert connect(AF_INET6, "::", AF_INET6, MAPPED)
    finally:
        offload("on")


def option_is_dropped_with_syncookies():
    at(SERVER, "sysctl -qw net.ipv4.tcp_syncookies=2")
    try:
        assert not connect(AF_INET, V4, AF_INET, V4)
        assert not connect(AF_INET6, V6, AF_INET6, V6)
    finally:
        at(SERVER, "sysctl -qw net.ipv4.tcp_syncookies=1")


def option_is_valid_for_connection_tracking():
    for name in (SERVER, CLIENT):
        for rule in ("add table ip smct", "add chain ip smct in { type filter hook input priority 0 ; }",
                     "add rule ip smct in ct state invalid drop"):
            at(name, "nft " + rule)
    try:
        assert connect(AF_INET, V4, AF_INET, V4)
    finally:
        for name in (SERVER, CLIENT):
            at(name, "nft delete table ip smct")


def option_survives_loss():
    for name in (SERVER, CLIENT):
        at(name, "tc qdisc add dev veth0 root netem loss 10%")
    try:
        for _ in range(2):
            assert connect(AF_INET, V4, AF_INET, V4)
    finally:
        for name in (SERVER, CLIENT):
            at(name, "tc qdisc del dev veth0 root")


def option_is_seen_by_forty_connections_at_once():
    clients = []

    def one():
        client = smc(CLIENT, AF_INET)
        client.connect(server.getsockname())
        clients.append(client)

    with listener(AF_INET, V4, backlog=100) as server:
        threads = [threading.Thread(target=one) for _ in range(40)]
        for thread in threads:
            thread.start()
        accepted = [server.accept()[0] for _ in threads]
        for thread in threads:
            thread.join()
    assert all(reason(sock) != PEERNOSMC for sock in clients + accepted)


def option_is_asked_again_after_refusal():
    client = smc(CLIENT, AF_INET)
    assert client.connect_ex((V4, 9)) == errno.ECONNREFUSED
    with listener(AF_INET, V4) as server:
        enter(CLIENT)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
    assert reason(client) != PEERNOSMC and reason(accepted) != PEERNOSMC


def option_does_not_hinder_addrform():
    with listener(AF_INET6, "::") as server:
        client = smc(CLIENT, AF_INET6)
        client.connect((MAPPED, server.getsockname()[1]))
        accepted, _ = server.accept()
    exchange(client, accepted)
    client.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET)
    exchange(client, accepted)


def option_and_closing_listener_do_not_meet_badly():
    for _ in range(30):
        server = listener(AF_INET, V4, backlog=2)
        client = smc(CLIENT, AF_INET)
        client.setblocking(False)
        client.connect_ex(server.getsockname())
        server.close()
        client.close()


CASES = [case for name, case in list(globals().items()) if name.startswith("option_")]

if len(sys.argv) > 3:
    print(len(CASES))
    sys.exit(0)
for number, case in enumerate(CASES, 1):
    try:
        case()
        print("ok", number, case.__name__, flush=True)
    except Exception as error:  # pylint: disable=broad-except
        failed = 1
        print(f"# {type(error).__name__}: {error}")
        print("not ok", number, case.__name__, flush=True)
sys.exit(failed)
