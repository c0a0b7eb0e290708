#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""The TCP option under unusual conditions: one line of TAP for each case, no plan.

Two namespaces, named by the arguments, are joined by the devices veth0, 10.79.0.1 and fd79::1 in the first (the
server's), 10.79.0.2 and fd79::2 in the second (the client's).
"""

import errno
import random
import socket
import struct
import subprocess
import sys
import threading
import time

from caserun import enter, run

AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6
IPPROTO_SMC = 256
SOL_SMC, SMC_RS_INFO = 286, 0x100
PEERNOSMC = 0x03010000
IPV6_ADDRFORM = 1
SERVER, CLIENT = sys.argv[1:3]
V4, V6, MAPPED = "10.79.0.1", "fd79::1", "::ffff:10.79.0.1"


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


class Alone:
    """A namespace of its own that speaks to itself, in which hooks stay for so many seconds without a socket."""

    def __init__(self, timeout):
        self.name = f"{SERVER}h"
        self.timeout = timeout

    def __enter__(self):
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        at(self.name, "ip link set lo up")
        at(self.name, f"sysctl -qw net.smc.hook_timeout={self.timeout}")
        return self

    def __exit__(self, *_):
        enter(SERVER)
        subprocess.run(["ip", "netns", "del", self.name], check=True)

    def hooks(self):
        """How many hooks of the module the kernel lists."""
        text = subprocess.run(["ip", "netns", "exec", self.name, "nft", "list", "hooks"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        return text.count("[smc_rs]")

    def listener(self):
        sock = smc(self.name, AF_INET)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        return sock

    def connection(self):
        """Both ends of a connection, the listener closed."""
        with self.listener() as server:
            client = smc(self.name, AF_INET)
            client.connect(server.getsockname())
            accepted, _ = server.accept()
        return client, accepted


def hooks_come_with_a_socket_that_connects_or_listens():
    with Alone(60) as here:
        assert here.hooks() == 0
        with smc(here.name, AF_INET) as sock:
            assert here.hooks() == 0
            sock.bind(("127.0.0.1", 0))
            assert here.hooks() == 0
            sock.listen()
            assert here.hooks() == 2, here.hooks()
    with Alone(60) as here:
        with smc(here.name, AF_INET) as sock:
            assert sock.connect_ex(("127.0.0.1", 9)) == errno.ECONNREFUSED
            assert here.hooks() == 2, here.hooks()


def hooks_go_a_while_after_the_last_socket():
    with Alone(2) as here:
        client, accepted = here.connection()
        # While there is a socket they stay; one that does nothing counts as well.
        client.close()
        time.sleep(2.5)
        assert here.hooks() == 2, here.hooks()
        closed = time.monotonic()
        accepted.close()
        while here.hooks():
            assert time.monotonic() < closed + 20, "they stay"
            time.sleep(0.05)
        took = time.monotonic() - closed
        assert took > 1.5, f"they went after {took:.1f} s"
        print(f"# the hooks went {took:.1f} s after the last socket")
        # And they come again.
        client, accepted = here.connection()
        assert here.hooks() == 2, here.hooks()
        assert reason(client) != PEERNOSMC and reason(accepted) != PEERNOSMC
        client.close()
        accepted.close()


def hooks_stay_while_sockets_come_and_go():
    with Alone(2) as here:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with here.listener():
                pass
            closed = time.monotonic()
            time.sleep(0.3)
            count = here.hooks()
            # On a slow machine the time may be over when they are counted.
            assert count == 2 or time.monotonic() - closed > 2, count


def hooks_removed_and_wanted_at_once_are_there():
    with Alone(0) as here:
        dice = random.Random(1)
        for number in range(150):
            client, accepted = here.connection()
            seen = reason(client) != PEERNOSMC, reason(accepted) != PEERNOSMC
            assert seen == (True, True), f"connection {number}: {seen}"
            client.close()
            accepted.close()
            # The removal begins now; the next connection finds it in any of its stages.
            if number % 3:
                time.sleep(dice.random() / 100)
        end = time.monotonic() + 20
        while here.hooks():
            assert time.monotonic() < end, "they stay"
            time.sleep(0.05)


def hooks_about_to_go_do_not_keep_their_namespace():
    with Alone(1) as here:
        ends = here.connection()
        closed = time.monotonic()
        for sock in ends:
            sock.close()
        count = here.hooks()
        # On a slow machine the time may be over when they are counted.
        assert count == 2 or time.monotonic() - closed > 1, count
    # What was planned would run now.
    time.sleep(1.5)


if __name__ == "__main__":
    sys.exit(run(globals(), ("option_", "hooks_")))
