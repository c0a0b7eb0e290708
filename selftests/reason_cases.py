#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""Every reason that can be provoked here, as counter, socket, list of sockets, log, event and smc-doctor show it.

One line of TAP for each case, no plan. The arguments are those of netlink_cases.py, whose ways to talk to the module
are used here; nothing has been logged for the two namespaces yet.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import netlink_cases as netlink
from caserun import enter, run
from netlink_cases import CLIENT, CLIENT_IP, IPPROTO_SMC, SERVER, SERVER_IP

TOOLS = os.environ.get("SMC_TOOLS", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
sys.path.insert(0, TOOLS)
from smcreasons import REASONS  # noqa: E402 pylint: disable=wrong-import-position

CODES = {name: code for code, (name, _, _) in REASONS.items()}
SIDE_CLIENT, SIDE_SERVER = 0, 1


def log_since(mark):
    text = subprocess.run(["dmesg"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return text.split(mark)[-1]


class Witness:
    """What is known of a side of a connection before it falls back."""

    def __init__(self, namespace, side):
        self.namespace, self.side = namespace, side
        self.mark = f"mark {time.monotonic_ns()}"
        with open("/dev/kmsg", "w", encoding="ascii") as f:
            f.write(f"<6>{self.mark}\n")
        self.listening = netlink.events(namespace)
        self.before = netlink.fallbacks(namespace)[0]

    def doctor(self):
        """What smc-doctor counts, by text."""
        enter(self.namespace)
        done = subprocess.run([os.path.join(TOOLS, "smc-doctor"), "--json"], stdout=subprocess.PIPE, check=False)
        return {check["text"]: check["remedy"] for check in json.loads(done.stdout)["checks"] if check["name"] == "fallback"}

    def saw(self, sock, name, diagnosis="", logged=True):
        """The socket fell back for a reason, and everybody says the same of it."""
        code = CODES[name]
        peer_code = CODES[diagnosis] if diagnosis else 0
        _, means, remedy = REASONS[code]
        said = netlink.info(sock)
        assert said == (netlink.MODE_TCP, code, peer_code), f"the socket says {tuple(map(hex, said))}"
        count = netlink.fallbacks(self.namespace)[0].get((self.side, code), 0)
        assert count == self.before.get((self.side, code), 0) + 1, f"{count} are counted"
        row = netlink.row_of(sock, self.namespace)
        assert (row.mode, row.reason) == (1, (code, peer_code)), f"the list says {row.reason}"
        kind, about = netlink.told(self.listening)
        numbers = tuple(netlink.number(about[n]) for n in (1, 2, 3))
        assert (kind, numbers) == (netlink.EVENT_FALLBACK, (self.side, code, peer_code)), f"the event is {kind}, {numbers}"
        assert netlink.told(self.listening, 0.1) is None, "it is told twice"
        peer = sock.getpeername()
        family = sock.family if sock.family == socket.AF_INET6 and not peer[0].startswith("::ffff:") else socket.AF_INET
        address = socket.inet_pton(family, peer[0].removeprefix("::ffff:"))
        assert about[4] == address and netlink.number(about[5]) == peer[1], f"the event names {about[4].hex()}"
        way = "from" if self.side == SIDE_SERVER else "to"
        lines = [line for line in log_since(self.mark).splitlines() if f"connection {way} " in line]
        end = f"uses TCP: {means} (0x{code:08x}): {remedy}"
        if diagnosis:
            _, peer_means, peer_remedy = REASONS[peer_code]
            end = f"uses TCP: {means} (0x{code:08x}), it says: {peer_means} (0x{peer_code:08x}): {peer_remedy}"
        assert len([line for line in lines if line.endswith(end)]) == int(logged), lines
        text = f"{count} connections of the {('client', 'server')[self.side]} went by TCP: {means} (0x{code:08x})"
        found = self.doctor()
        assert found.get(text) == remedy, found


def shown(client=None, server=None, make=netlink.pair, logged=True):
    """Makes a connection; at each side all agree on the reason."""
    sides = [(CLIENT, SIDE_CLIENT, client), (SERVER, SIDE_SERVER, server)]
    witnesses = [(Witness(namespace, side), want) for namespace, side, want in sides]
    socks = make()
    netlink.exchange(*socks[:2])
    for (witness, want), sock in zip(witnesses, socks):
        if want:
            witness.saw(sock, *want, logged=logged)
    return socks


@contextlib.contextmanager
def ids_of(namespace, *names):
    """The enterprise ids of a namespace, for a while."""
    family = netlink.system(namespace)
    family.do(netlink.FLUSH_UEID)
    for name in names:
        family.do(netlink.ADD_UEID, netlink.attr(1, name))
    try:
        yield
    finally:
        family = netlink.system(namespace)
        family.do(netlink.FLUSH_UEID)
        family.do(netlink.ADD_UEID, netlink.attr(1, netlink.DEFAULT_EID))


def listening(protocol):
    """A listener of the server; the client's namespace is entered."""
    enter(SERVER)
    listener = socket.socket(proto=protocol)
    listener.bind((SERVER_IP, 0))
    listener.listen()
    enter(CLIENT)
    return listener


def with_plain(client_protocol, server_protocol):
    """A connection of which one end is a socket of TCP."""
    listener = listening(server_protocol)
    client = socket.socket(proto=client_protocol)
    client.settimeout(60)
    client.connect(listener.getsockname())
    return client, listener.accept()[0], listener


def reason_no_id_in_common_at_the_server():
    with ids_of(SERVER, b"ANOTHER"):
        shown(client=("PEERDECL", "NOUEID"), server=("NOUEID",))


def reason_no_id_at_the_client():
    with ids_of(CLIENT):
        shown(client=("NOUEID",), server=("PEERDECL", "NOUEID"))


def reason_peer_without_smc():
    shown(client=("PEERNOSMC",), make=lambda: with_plain(IPPROTO_SMC, 0))
    shown(server=("PEERNOSMC",), make=lambda: with_plain(0, IPPROTO_SMC))


def reason_peer_without_smc_by_ipv6():
    shown(client=("PEERNOSMC",), make=netlink.ipv6_pair)


def reason_no_device_at_the_server():
    netlink.eth_row(SERVER, netlink.NET_A, "veth0")
    try:
        shown(client=("PEERDECL", "NOSMCRDEV"), server=("NOSMCRDEV",))
    finally:
        netlink.pnet(SERVER).do(netlink.PNET_FLUSH)


def reason_fast_open():
    enter(CLIENT)

    def make():
        listener = listening(IPPROTO_SMC)
        client = socket.socket(proto=IPPROTO_SMC)
        client.sendto(b"", socket.MSG_FASTOPEN, listener.getsockname())
        return client, listener.accept()[0], listener

    # It is the program's own wish, and there is no peer yet.
    witness = Witness(CLIENT, SIDE_CLIENT)
    sock = make()[0]
    assert netlink.info(sock)[:2] == (netlink.MODE_TCP, CODES["OPTUNSUPP"]), netlink.info(sock)
    key = SIDE_CLIENT, CODES["OPTUNSUPP"]
    assert netlink.fallbacks(CLIENT)[0][key] == witness.before.get(key, 0) + 1
    kind, about = netlink.told(witness.listening)
    assert (kind, netlink.number(about[2])) == (netlink.EVENT_FALLBACK, CODES["OPTUNSUPP"]), about
    row = netlink.row_of(sock)
    assert (row.mode, row.reason) == (1, (CODES["OPTUNSUPP"], 0)), vars(row)
    assert f"uses TCP: {REASONS[CODES['OPTUNSUPP']][1]}" in log_since(witness.mark)
    assert any("(0x03060000)" in text for text in witness.doctor()), witness.doctor()


def reason_excluded_port():
    def setting(name, value):
        enter(CLIENT)
        with open(f"/proc/sys/net/smc/{name}", "w", encoding="ascii") as f:
            f.write(f"{value}\n")

    setting("tcp2smc", 1)
    try:
        setting("tcp2smc_deny", "port:1-65535")
        # It is what the operator wants: the log has no line.
        shown(client=("NOTWANTED",), make=lambda: with_plain(0, 0), logged=False)
    finally:
        setting("tcp2smc_deny", "comm:iscsid comm:nbd-client")
        setting("tcp2smc", 0)


def reason_ipsec():
    for namespace in (CLIENT, SERVER):
        lines = []
        for source, target, spi in ((CLIENT_IP, SERVER_IP, 0x1001), (SERVER_IP, CLIENT_IP, 0x1002)):
            way = "out" if (source == CLIENT_IP) == (namespace == CLIENT) else "in"
            lines.append(f"xfrm state add src {source} dst {target} proto esp spi {spi} mode transport "
                         "aead rfc4106(gcm(aes)) 0x0123456789abcdef0123456789abcdef01234567 128")
            lines.append(f"xfrm policy add src {source} dst {target} dir {way} tmpl src {source} dst {target} proto esp "
                         "mode transport")
        subprocess.run(["ip", "-n", namespace, "-batch", "-"], input="\n".join(lines), check=True, text=True)
    try:
        shown(client=("IPSEC",), server=None)
    finally:
        for namespace in (CLIENT, SERVER):
            for what in ("policy", "state"):
                subprocess.run(["ip", "-n", namespace, "xfrm", what, "flush"], check=True)


def end_links():
    """The next connection is the first of a link group: a link that is there would be used."""
    for name in (CLIENT, SERVER):
        netlink.new_device(name, name)


@contextlib.contextmanager
def rules(chain, *namespaces):
    """A chain of packet rules in some namespaces, for a while."""
    for namespace in namespaces:
        subprocess.run(["ip", "netns", "exec", namespace, "nft", f"table inet smctr {{ {chain}\n}}"], check=True)
    try:
        yield
    finally:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "exec", namespace, "nft", "delete table inet smctr"], check=True)


@contextlib.contextmanager
def routing(namespace, *lines):
    """Lines that `ip` adds, for a while."""
    done = []
    try:
        for line in lines:
            subprocess.run(["ip", "-n", namespace, *line.replace("DO", "add").split()], check=True)
            done.insert(0, line)
        yield
    finally:
        for line in done:
            subprocess.run(["ip", "-n", namespace, *line.replace("DO", "del").split()], check=True)


def reason_nothing_comes_through():
    end_links()
    with rules("chain in { type filter hook input priority 0; udp dport 4791 drop; }", CLIENT, SERVER):
        shown(client=("PEERDECL", "TIMEOUT_CL"), server=("TIMEOUT_CL",))


def reason_no_route_for_rdma():
    end_links()
    # TCP finds its way, and nothing else does.
    with routing(CLIENT, f"rule DO to {SERVER_IP} ipproto tcp lookup main pref 10",
                 f"rule DO to {SERVER_IP} prohibit pref 11"):
        shown(client=("NOROUTE",), server=("PEERDECL", "NOROUTE"))


def reason_gateway_on_one_way_alone():
    end_links()
    # The client itself is the gateway, by another address.
    with routing(CLIENT, "address DO 10.77.0.99/32 dev veth0"), \
            routing(SERVER, f"route DO {CLIENT_IP}/32 via 10.77.0.99 dev veth0"):
        shown(client=("NOINDIRECT",), server=("PEERDECL", "NOINDIRECT"))


def reason_peer_of_version_1():
    # What the client proposes becomes a Proposal of version 1 on its way. A TCP header with time stamps has 32 bytes; the
    # subnets are said to stand in the last 8 bytes before the trailer, which are blanks of the only id.
    def at(offset, bits=8):
        return f"@th,{(32 + offset) * 8},{bits}"

    chain = ("chain in { type filter hook input priority -300; "
             f"meta l4proto tcp {at(0, 32)} 0xe2d4c3d9 {at(4)} 1 {at(7)} set 0x10 {at(38, 16)} set 104 {at(151)} set 0; }}")
    with rules(chain, SERVER):
        shown(client=("PEERDECL", "VERSMISMAT"), server=("VERSMISMAT",))


@contextlib.contextmanager
def little_memory():
    """A memory cgroup for sockets, and how to write to its files."""
    subprocess.run("mountpoint -q /sys/fs/cgroup || mount -t cgroup2 none /sys/fs/cgroup; "
                   "echo +memory >/sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/smctr", shell=True, check=True)

    def write(name, value):
        with open(f"/sys/fs/cgroup/{name}", "w", encoding="ascii") as f:
            f.write(f"{value}\n")

    try:
        yield write
    finally:
        write("cgroup.procs", os.getpid())
        os.rmdir("/sys/fs/cgroup/smctr")


def reason_no_memory_for_rings():
    with little_memory() as write:
        def make():
            listener = listening(IPPROTO_SMC)
            write("smctr/cgroup.procs", os.getpid())
            client = socket.socket(proto=IPPROTO_SMC)
            write("cgroup.procs", os.getpid())
            # What the processors have in stock for the group goes back; TCP needs some, the smallest ring more.
            write("smctr/memory.high", 0)
            with open("/sys/fs/cgroup/smctr/memory.current", encoding="ascii") as f:
                write("smctr/memory.max", int(f.read()) + 3 * 4096)
            client.settimeout(60)
            client.connect(listener.getsockname())
            return client, listener.accept()[0], listener

        shown(client=("MEM",), server=("PEERDECL", "MEM"), make=make)


if __name__ == "__main__":
    sys.exit(run(globals(), "reason_"))
