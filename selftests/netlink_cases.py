#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""What tools ask by netlink, byte for byte: one line of TAP for each case, no plan.

The arguments name two namespaces joined by the devices veth0, 10.77.0.1 in the first and 10.77.0.2 in the second, each
with an RDMA device of its own name.
"""

import ctypes
import errno
import itertools
import os
import platform
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time

from caserun import enter, libc, run

IPPROTO_SMC, AF_SMC = 256, 43
SOL_SMC, SMC_RS_INFO, SO_COOKIE, SO_NETNS_COOKIE = 286, 0x100, 57, 71
MODE_SMC, MODE_TCP = 1, 2
# What a connection sends from at its start.
PAGE = 4096
NOSMCRDEV, NOUEID, PEERDECL, PEERNOSMC = 0x03030002, 0x03030008, 0x05000000, 0x03010000
CLIENT, SERVER = sys.argv[1:3]
CLIENT_IP, SERVER_IP = "10.77.0.1", "10.77.0.2"
DEFAULT_EID = b"SMC-RS.DEFAULT".ljust(32)

NETLINK_SOCK_DIAG, NETLINK_GENERIC = 4, 16
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NETLINK_EXT_ACK = 270, 1, 11
NLMSG_ERROR, NLMSG_DONE = 2, 3
F_REQUEST, F_MULTI, F_ACK, F_DUMP = 1, 2, 4, 0x300
GET_SYS_INFO, GET_LGR_SMCR, GET_LINK_SMCR, GET_LGR_SMCD, GET_DEV_SMCD, GET_DEV_SMCR, GET_STATS, GET_FBACK = range(1, 9)
DUMP_UEID, ADD_UEID, REMOVE_UEID, FLUSH_UEID, DUMP_SEID, ENABLE_SEID, DISABLE_SEID = range(9, 16)
DUMP_HS, ENABLE_HS, DISABLE_HS, GET_PEER_STATS = 16, 17, 18, 70
EVENT_FALLBACK, EVENT_LGR_UP, EVENT_LGR_DOWN, EVENT_LINK_UP, EVENT_LINK_DOWN, EVENT_FAILOVER = range(64, 70)
# A lost path, or the peer's word.
CAUSES = [struct.pack("I", cause) for cause in (3, 5)]
PNET_GET, PNET_ADD, PNET_DEL, PNET_FLUSH = 1, 2, 3, 4


def attr(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attrs(data):
    """The attributes in order: kind and value."""
    found = []
    while len(data) >= 4:
        length, kind = struct.unpack("HH", data[:4])
        assert 4 <= length <= len(data), data.hex()
        found.append((kind & 0x3FFF, data[4:length]))
        data = data[(length + 3) & ~3:]
    return found


def table(data):
    """The attributes by kind, each once; what fills gaps is left out."""
    found = [(kind, value) for kind, value in attrs(data) if (kind, value) != (0, b"")]
    assert len({kind for kind, _ in found}) == len(found), found
    return dict(found)


def number(value):
    return int.from_bytes(value, sys.byteorder)


class Netlink:
    """A netlink socket in a namespace."""

    def __init__(self, namespace, protocol):
        if namespace:
            enter(namespace)
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self.sock.bind((0, 0))
        self.sock.settimeout(30)
        self.sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self.seq = 0
        self.said = b""

    def send(self, kind, flags, payload):
        self.seq += 1
        self.sock.send(struct.pack("IHHII", 16 + len(payload), kind, flags, self.seq, 0) + payload)

    def answers(self):
        """Messages up to the end: kind, flags, payload."""
        while True:
            data = self.sock.recv(1 << 17)
            while data:
                length, kind, flags, seq, _ = struct.unpack("IHHII", data[:16])
                assert seq == self.seq
                payload, data = data[16:length], data[(length + 3) & ~3:]
                if kind == NLMSG_DONE:
                    code = struct.unpack("i", payload[:4])[0] if payload else 0
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return
                if kind == NLMSG_ERROR:
                    code = struct.unpack("i", payload[:4])[0]
                    # Behind the request, or its head, stands why.
                    rest = payload[20:] if flags & 0x100 else payload[4 + struct.unpack("I", payload[4:8])[0]:]
                    self.said = dict(attrs(rest)).get(1, b"") if flags & 0x200 else b""
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return
                yield kind, flags, payload


class Genl(Netlink):
    """A family of generic netlink."""

    def __init__(self, namespace, name):
        super().__init__(namespace, NETLINK_GENERIC)
        self.send(16, F_REQUEST, struct.pack("BBH", 3, 1, 0) + attr(2, name.encode() + b"\0"))
        _, _, payload = next(self.answers())
        about = dict(attrs(payload[4:]))
        self.family, self.version = number(about[1]), number(about[3])

    def dump_mixed(self, command):
        """The command and the attributes of each message."""
        self.send(self.family, F_REQUEST | F_DUMP, struct.pack("BBH", command, 1, 0))
        found = []
        for kind, flags, payload in self.answers():
            assert kind == self.family and flags & F_MULTI
            assert payload[1] == 1, payload.hex()
            found.append((payload[0], payload[4:]))
        return found

    def dump(self, command):
        """The attributes of each message, which must be of this command."""
        found = self.dump_mixed(command)
        assert {of for of, _ in found} <= {command}, found
        return [payload for _, payload in found]

    def do(self, command, payload=b"", answered=False):
        """Does a command; one that is answered has its own end."""
        self.send(self.family, F_REQUEST | (0 if answered else F_ACK), struct.pack("BBH", command, 1, 0) + payload)
        return [payload[4:] for _, _, payload in self.answers()]

    def refused(self, code, command, payload=b"", explained=True):
        try:
            self.do(command, payload)
        except OSError as e:
            assert e.errno == code, (command, payload, e)
            assert bool(self.said) == explained, self.said
        else:
            raise AssertionError(f"command {command} with {payload} was accepted")


def system(namespace=CLIENT):
    return Genl(namespace, "SMC_GEN_NETLINK")


def pnet(namespace=CLIENT):
    return Genl(namespace, "SMC_PNETID")


def info(sock):
    """Mode, reason of the fallback, the peer's diagnosis."""
    numbers = struct.unpack("6I", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 24))
    return numbers[1], numbers[3], numbers[4]


def pair(family=socket.AF_INET, protocol=IPPROTO_SMC, at=None):
    """A connection of SMC sockets: the client's, the server's, the listener."""
    enter(at or SERVER)
    listener = socket.socket(family, socket.SOCK_STREAM, protocol)
    address = "127.0.0.1" if at else SERVER_IP
    if family == AF_SMC:
        bind(listener, address)
    else:
        listener.bind((address, 0))
    listener.listen()
    enter(at or CLIENT)
    client = socket.socket(family, socket.SOCK_STREAM, protocol)
    client.settimeout(60)
    if family == AF_SMC:
        connect(client, address, port_of(listener))
    else:
        client.connect(listener.getsockname())
    listener.settimeout(60)
    server = accept(listener) if family == AF_SMC else listener.accept()[0]
    server.settimeout(60)
    return client, server, listener


def gid_text(address):
    """The GID of an IPv4 address, as tools get it."""
    a, b, c, d = socket.inet_aton(address)
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}".encode() + b"\0"


def sockaddr(address, port=0):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address) + bytes(8)


def call(function, *arguments):
    answer = function(*arguments)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def bind(sock, address):
    call(libc.bind, sock.fileno(), sockaddr(address), 16)


def connect(sock, address, port):
    sock.setblocking(True)
    call(libc.connect, sock.fileno(), sockaddr(address, port), 16)


def port_of(sock):
    room = ctypes.create_string_buffer(16)
    length = ctypes.c_uint(16)
    call(libc.getsockname, sock.fileno(), room, ctypes.byref(length))
    return struct.unpack("!H", room.raw[2:4])[0]


def accept(listener):
    listener.setblocking(True)
    return socket.socket(fileno=call(libc.accept, listener.fileno(), None, None), family=AF_SMC,
                         type=socket.SOCK_STREAM, proto=0)


def exchange(one, other, data=b"over there"):
    for a, b in ((one, other), (other, one)):
        a.sendall(data)
        got = b""
        while len(got) < len(data):
            got += b.recv(65536) or sys.exit("end of stream")
        assert got == data, got


def netlink_families_have_their_version():
    assert system().version == 1 and pnet().version == 1


def netlink_sys_info():
    messages = system().dump(GET_SYS_INFO)
    assert len(messages) == 1
    (kind, value), = attrs(messages[0])
    host = platform.node()[:32].encode() + b"\0"
    assert kind == 1 and attrs(value) == [(1, b"\2"), (2, b"\1"), (3, b"\0"), (6, b"\1"), (4, host)], attrs(value)


def netlink_smcd_is_empty():
    for command in (GET_LGR_SMCD, GET_DEV_SMCD):
        assert system().dump(command) == []


def netlink_seid_is_none():
    assert system().dump(DUMP_SEID) == [b""]
    for command in (ENABLE_SEID, DISABLE_SEID):
        system().refused(errno.EOPNOTSUPP, command)


def netlink_hs_limitation():
    def on():
        messages = system().dump(DUMP_HS)
        assert len(messages) == 1
        (kind, value), = attrs(messages[0])
        assert kind == 1 and len(value) == 1
        with open("/proc/sys/net/smc/limit_smc_hs", encoding="ascii") as f:
            assert int(f.read()) == value[0]
        return value[0]

    assert on() == 0
    system().do(ENABLE_HS)
    assert on() == 1
    system().do(DISABLE_HS)
    assert on() == 0


def ueids(namespace=CLIENT):
    found = []
    for message in system(namespace).dump(DUMP_UEID):
        (kind, value), = attrs(message)
        assert kind == 1 and len(value) == 33 and value[32] == 0, value
        found.append(value[:32])
    return found


def netlink_ueids():
    family = system()
    assert ueids() == [DEFAULT_EID]
    family.do(ADD_UEID, attr(1, b"SOMETHING.ELSE\0"))
    family.do(ADD_UEID, attr(1, b"9-DIGITS".ljust(32) + b"\0"))
    family.do(ADD_UEID, attr(1, b"A" * 32))
    assert ueids() == [DEFAULT_EID, b"SOMETHING.ELSE".ljust(32), b"9-DIGITS".ljust(32), b"A" * 32]
    family.refused(errno.ERANGE, ADD_UEID, attr(1, b"ONE.TOO.MANY\0"))
    family.refused(errno.EEXIST, ADD_UEID, attr(1, b"9-DIGITS\0"))
    assert ueids(SERVER) == [DEFAULT_EID], "ids are those of a namespace"
    family.do(REMOVE_UEID, attr(1, b"SOMETHING.ELSE\0"))
    family.refused(errno.ENOENT, REMOVE_UEID, attr(1, b"SOMETHING.ELSE\0"))
    assert ueids() == [DEFAULT_EID, b"9-DIGITS".ljust(32), b"A" * 32]
    for bad in (b"lower", b".DOT", b"-DASH", b" BLANK", b"IN SIDE", b"", b"UNDER_SCORE"):
        family.refused(errno.EINVAL, ADD_UEID, attr(1, bad + b"\0"))
    family.refused(errno.ERANGE, ADD_UEID, attr(1, b"A" * 33 + b"\0"))
    family.refused(errno.EINVAL, ADD_UEID)
    family.refused(errno.EINVAL, REMOVE_UEID)
    family.do(FLUSH_UEID)
    assert ueids() == []
    family.do(FLUSH_UEID)
    family.do(ADD_UEID, attr(1, DEFAULT_EID + b"\0"))


def netlink_ueids_decide():
    assert info(pair()[0])[0] == MODE_SMC
    family = system(CLIENT)
    try:
        family.do(ADD_UEID, attr(1, b"COMMON\0"))
        family.do(REMOVE_UEID, attr(1, DEFAULT_EID))
        client, server, _ = pair()
        assert info(server) == (MODE_TCP, NOUEID, 0), info(server)
        assert info(client) == (MODE_TCP, PEERDECL, NOUEID), info(client)
        exchange(client, server)
        system(SERVER).do(ADD_UEID, attr(1, b"COMMON\0"))
        client, server, _ = pair()
        assert info(client)[0] == MODE_SMC and info(server)[0] == MODE_SMC
        exchange(client, server)
        family.do(FLUSH_UEID)
        client, server, _ = pair()
        assert info(client) == (MODE_TCP, NOUEID, 0), info(client)
        exchange(client, server)
    finally:
        for namespace in (CLIENT, SERVER):
            system(namespace).do(FLUSH_UEID)
            system(namespace).do(ADD_UEID, attr(1, DEFAULT_EID))


def netlink_devices():
    enter(CLIENT)
    index = socket.if_nametoindex("veth0")
    found = {}
    for message in system().dump(GET_DEV_SMCR):
        (kind, value), = attrs(message)
        assert kind == 6
        about = table(value)
        found[about[10].rstrip(b"\0").decode()] = about
    # The other one's interface is in the other namespace.
    assert number(table(found[SERVER][8])[3]) == 0
    about = found[CLIENT]
    # A device in software is on no PCI bus, and has one port.
    assert set(about) == {1, 2, 8, 10}, about
    assert len(about[1]) == 4 and len(about[2]) == 1
    port = table(about[8])
    assert set(port) == {1, 2, 3, 4, 5, 6}, port
    assert port[1] == b"\0" and port[2] == b"\0" and number(port[3]) == index, port
    assert port[4] == b"\1" and port[5] == b"\1" and len(port[6]) == 4, port
    client, server, _ = pair()
    exchange(client, server)
    for message in system().dump(GET_DEV_SMCR):
        about = table(attrs(message)[0][1])
        if about[10].rstrip(b"\0").decode() in (CLIENT, SERVER):
            assert number(about[1]) >= 1 and number(table(about[8])[6]) >= 1
    pnet().do(PNET_ADD, attr(1, b"NETWORK1\0") + attr(3, CLIENT.encode() + b"\0") + attr(4, b"\1"))
    for message in system().dump(GET_DEV_SMCR):
        about = table(attrs(message)[0][1])
        port = table(about[8])
        if about[10].rstrip(b"\0").decode() == CLIENT:
            assert port[1] == b"\1" and port[2] == b"NETWORK1\0", port
    pnet().do(PNET_FLUSH)


def link_groups(namespace):
    """By the number of the group: its attributes, and those of its links."""
    family = system(namespace)
    groups = {}
    for message in family.dump(GET_LGR_SMCR):
        (kind, value), = attrs(message)
        about = table(value)
        assert kind == 2 and number(about[1]) not in groups
        groups[number(about[1])] = (about, [])
    at = None
    for command, message in family.dump_mixed(GET_LINK_SMCR):
        (kind, value), = attrs(message)
        about = table(value)
        if command == GET_LGR_SMCR:
            assert kind == 2
            at = number(about[1])
        else:
            # A link comes behind its group.
            assert (command, kind) == (GET_LINK_SMCR, 3) and at is not None
            if at in groups:
                groups[at][1].append(about)
    return groups


def netlink_link_groups():
    client, server, _ = pair()
    exchange(client, server)
    links = {}
    for sock, namespace, here, there, role in (
            (client, CLIENT, CLIENT_IP, SERVER_IP, 0), (server, SERVER, SERVER_IP, CLIENT_IP, 1)):
        enter(namespace)
        index = socket.if_nametoindex("veth0")
        cookie = sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
        known = struct.unpack("16I2Q2I64s", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 152))
        release, group, link_id, sndbuf, rmb = *known[6:8], known[10], *known[13:15]
        about, its_links = link_groups(namespace)[group]
        about.pop(10, None)
        assert set(about) == {*range(1, 10), *range(11, 14)}, about
        # The only device of a side has the only link.
        assert (about[2], about[3], about[4], about[5]) == (bytes([role]), b"\1", b"\0", b"\0"), about
        assert number(about[6]) >= 1 and about[9] == cookie, about
        assert about[11] == b"\0" and number(about[12]) >= min(sndbuf, PAGE) and number(about[13]) >= rmb, about
        common = dict(attrs(about[7]))
        host = platform.node()[:32].encode() + b"\0"
        assert common == {0: b"\2", 1: bytes([release]), 2: b"\2", 3: DEFAULT_EID + b"\0", 4: host}, common
        assert set(table(about[8])) == {1, 2, 3}, about
        assert table(about[8])[1] == b"\1" and table(about[8])[2] == b"\xff", about
        link, = its_links
        assert set(link) == set(range(1, 11)), link
        assert (link[1][0], link[2], link[3]) == (link_id, namespace.encode() + b"\0", b"\1"), link
        assert (link[4], link[5]) == (gid_text(here), gid_text(there)), link
        assert 1 <= number(link[6]) <= number(about[6]) and number(link[7]) == index and number(link[10]) == 3, link
        links[role] = link
    # Each side has the other one's id of the link.
    assert links[0][8] == links[1][9] and links[1][8] == links[0][9], links
    # A group is seen in its namespace alone.
    assert not link_groups(CLIENT).keys() & link_groups(SERVER).keys()
    # The id of the network is that of the port.
    pnet().do(PNET_ADD, attr(1, b"NETWORK1\0") + attr(3, CLIENT.encode() + b"\0") + attr(4, b"\1"))
    known = struct.unpack("8I", client.getsockopt(SOL_SMC, SMC_RS_INFO, 32))
    assert link_groups(CLIENT)[known[7]][0][4] == b"NETWORK1\0"
    pnet().do(PNET_FLUSH)


OWN = ("abort-peer", "abort-link", "abort-violation", "abort-local", "abort-unread", "abort-timeout", "handshake-timeout",
       "hooks-added", "hooks-removed", "groups-up", "groups-down", "links-up", "links-down", "conns-moved")


def counters(namespace):
    """All counters of SMC-R, nests as lists, and of the handshakes."""
    messages = system(namespace).dump(GET_STATS)
    assert len(messages) == 1
    (kind, value), = attrs(messages[0])
    assert kind == 7
    top = table(value)
    assert set(top) == {1, 2, 3, 4, 64}, top
    for tech in (1, 2):
        about = table(top[tech])
        assert set(about) == set(range(1, 22)), sorted(about)
        for nest in (1, 2, 3, 4):
            assert sorted(table(about[nest])) == list(range(1, 10))
        for nest in (5, 6):
            assert sorted(table(about[nest])) == list(range(1, 8))
        for kind in range(7, 20):
            assert len(about[kind]) == 8
        for kind in (20, 21):
            assert len(about[kind]) in (4, 8)
        if tech == 1:
            assert not any(number(v) for nest in range(1, 7) for v in table(about[nest]).values())
    found = {kind: number(value) for kind, value in about.items() if kind > 6}
    for nest in range(1, 7):
        found[nest] = [number(value) for _, value in sorted(table(about[nest]).items())]
    found["errors"] = [number(top[3]), number(top[4])]
    assert list(table(top[64])) == list(range(1, len(OWN) + 1)), top[64]
    found["own"] = {OWN[kind - 1]: number(value) for kind, value in table(top[64]).items()}
    return found


def rings_rest():
    """No ring is in use. They come back when both ends have said their last word, and a work item has seen it."""
    end = time.monotonic() + 20
    while any(counters(name)[way] for name in (CLIENT, SERVER) for way in (20, 21)):
        assert time.monotonic() < end, "rings stay in use"
        time.sleep(0.1)


def netlink_statistics():
    rings_rest()
    before = {name: counters(name) for name in (CLIENT, SERVER)}
    client, server, listener = pair()
    assert info(client)[0] == MODE_SMC
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    client.send(b"!", socket.MSG_OOB)
    client.send(b"x" * 8192)
    client.send(b"y" * 8193)
    got = 0
    while got < 16385:
        got += len(server.recv(1 << 20))
    during = counters(CLIENT)
    # A ring to receive, what a connection sends from at its start, and, unless it has rested since, one to send so much.
    for way, held in ((20, [65536]), (21, [65536 + PAGE, PAGE])):
        assert during[way] - before[CLIENT][way] in held, (way, during[way], before[CLIENT][way])
    for sock in (client, server, listener):
        sock.close()
    after = {name: counters(name) for name in (CLIENT, SERVER)}

    def grown(name, kind):
        a, b = before[name][kind], after[name][kind]
        return [y - x for x, y in zip(a, b)] if isinstance(a, list) else b - a

    # Each connection has one ring of each kind, that was there or is new, of the size that it wants; and who sends more
    # than a page another one.
    for name, nest in itertools.product((CLIENT, SERVER), (5, 6)):
        reused, new, degraded = grown(name, nest)[4:]
        rings = 2 if (name, nest) == (CLIENT, 5) else 1
        assert (reused + new, degraded) == (rings, 0), (name, nest, grown(name, nest))

    assert (grown(CLIENT, 8), grown(CLIENT, 10)) == (1, 0)
    assert (grown(SERVER, 8), grown(SERVER, 10)) == (0, 1)
    assert (grown(CLIENT, 14), grown(CLIENT, 13), grown(CLIENT, 15)) == (1, 1, 1)
    assert (grown(CLIENT, 19), grown(CLIENT, 17)) == (3, 16386), (grown(CLIENT, 19), grown(CLIENT, 17))
    assert grown(CLIENT, 3) == [2, 1, 0, 0, 0, 0, 0, 0, 0], grown(CLIENT, 3)
    assert grown(SERVER, 16) == 16385, grown(SERVER, 16)
    assert grown(SERVER, 18) >= 1 and sum(grown(SERVER, 4)) == grown(SERVER, 18)
    # More was asked for than the ring holds.
    assert grown(SERVER, 6)[1] == grown(SERVER, 18)
    assert grown(CLIENT, 1) == [0, 0, 0, 1, 0, 0, 0, 0, 0] == grown(CLIENT, 2), grown(CLIENT, 1)
    assert after[CLIENT]["errors"] == before[CLIENT]["errors"]
    rings_rest()


def netlink_statistics_of_rings():
    wires = SecondDevices()
    with wires:
        # No group is left, and so no ring.
        wires.renew()
        ring = {}
        for turn in ("new", "reused"):
            before = {name: counters(name) for name in (CLIENT, SERVER)}
            pairs = [pair() for _ in range(2)] if turn == "new" else [pair()]
            for client, server, _ in pairs:
                exchange(client, server)
            ring[turn] = {(name, nest): [b - a for a, b in zip(before[name][nest], counters(name)[nest])][4:]
                          for name in (CLIENT, SERVER) for nest in (5, 6)}
            for some in pairs:
                for sock in some:
                    sock.close()
            rings_rest()
            time.sleep(1)
        assert set(map(tuple, ring["new"].values())) == {(0, 2, 0)}, ring
        assert set(map(tuple, ring["reused"].values())) == {(1, 0, 0)}, ring


def netlink_statistics_of_our_own():
    wires = SecondDevices()
    with wires as second:
        # Other networks: there are no second links.
        for namespace in (CLIENT, SERVER):
            ib_row(namespace, NET_B, second[namespace])
        wires.renew()
        before = {name: counters(name)["own"] for name in (CLIENT, SERVER)}

        def grown(*ways):
            """The counters of client and server have grown by so much, in one of these ways, or will soon have."""
            end = time.monotonic() + 30
            while True:
                found = {name: {key: value - before[name][key] for key, value in counters(name)["own"].items()
                                if value != before[name][key] and not key.startswith("hooks")}
                         for name in (CLIENT, SERVER)}
                expected = [{name: {key.replace("_", "-"): value for key, value in side.items()}
                             for name, side in zip((CLIENT, SERVER), way)} for way in ways]
                if found in expected:
                    return
                assert time.monotonic() < end, found
                time.sleep(0.2)

        up = {"groups_up": 1, "links_up": 1}
        client, server, listener = pair()
        exchange(client, server)
        grown((up, up))
        # Closed with data unread: the other end sees an abort.
        client.sendall(b"unread")
        select.select([server], [], [], 60)
        server.close()
        grown(({**up, "abort_peer": 1}, {**up, "abort_unread": 1}))
        client.close()
        # Both sides' devices go, and with them link, group and connection.
        client, server, listener = pair()
        exchange(client, server)
        wires.renew()
        gone = {"groups_down": 1, "links_down": 1}
        # Who is second may hear of that by the end of its link or by the first one's abort.
        lost = {**up, **gone, "abort_link": 1, "abort_peer": 1}, {**up, **gone, "abort_link": 1, "abort_unread": 1}
        told = {**up, **gone, "abort_peer": 2}, {**up, **gone, "abort_peer": 1, "abort_unread": 1}
        grown(lost, (told[0], lost[1]), (lost[0], told[1]))
        for sock in (client, server, listener):
            sock.close()
    enter(CLIENT)
    namespace = CLIENT + "h"
    assert os.system(f"ip netns add {namespace} && ip -n {namespace} link set lo up") == 0
    try:
        enter(namespace)
        assert counters(namespace)["own"]["hooks-added"] == 0
        with open("/proc/sys/net/smc/hook_timeout", "w", encoding="ascii") as f:
            f.write("0")
        for count in (1, 2):
            for sock in pair(at=namespace):
                sock.close()
            end = time.monotonic() + 30
            while counters(namespace)["own"]["hooks-removed"] < count:
                assert time.monotonic() < end, counters(namespace)["own"]
                time.sleep(0.1)
            assert counters(namespace)["own"]["hooks-added"] == count
    finally:
        enter(CLIENT)
        os.system(f"ip netns del {namespace}")


def events(namespace):
    """A socket that gets the events of a namespace."""
    family = system(namespace)
    family.send(16, F_REQUEST, struct.pack("BBH", 3, 1, 0) + attr(2, b"SMC_GEN_NETLINK\0"))
    _, _, payload = next(family.answers())
    groups = [table(value) for _, value in attrs(table(payload[4:])[7])]
    group, = [number(about[2]) for about in groups if about[1] == b"events\0"]
    family.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    return family


def told(family, seconds=30):
    """The next event: command and attributes; nothing if none comes."""
    family.sock.settimeout(seconds)
    try:
        data = family.sock.recv(1 << 16)
    except TimeoutError:
        return None
    length, kind, flags, _, port = struct.unpack("IHHII", data[:16])
    assert (kind, flags, port) == (family.family, 0, 0) and length == len(data), data.hex()
    assert data[17] == 1, data.hex()
    return data[16], table(data[20:])


def netlink_events_of_fallbacks():
    listening = {name: events(name) for name in (CLIENT, SERVER)}
    system(SERVER).do(FLUSH_UEID)
    try:
        client, server, _ = pair()
        exchange(client, server)
        # Who joined nothing gets nothing.
        assert told(system(CLIENT), 0.2) is None
        here, there = client.getsockname(), server.getsockname()
        assert told(listening[SERVER]) == (EVENT_FALLBACK, {
            1: b"\1", 2: struct.pack("I", NOUEID), 3: struct.pack("I", 0), 4: socket.inet_aton(here[0]),
            5: struct.pack("H", here[1])})
        assert told(listening[CLIENT]) == (EVENT_FALLBACK, {
            1: b"\0", 2: struct.pack("I", PEERDECL), 3: struct.pack("I", NOUEID), 4: socket.inet_aton(there[0]),
            5: struct.pack("H", there[1])})
        # One each, and another namespace's are not told.
        assert [told(family, 0.2) for family in listening.values()] == [None, None]
    finally:
        system(SERVER).do(ADD_UEID, attr(1, DEFAULT_EID))
    client, _, _ = ipv6_pair()
    kind, about = told(listening[CLIENT])
    assert kind == EVENT_FALLBACK and about[4] == socket.inet_pton(socket.AF_INET6, "fd77::2"), about


def ipv6_pair():
    """A connection by IPv6 to a peer without SMC, which is one of TCP."""
    enter(SERVER)
    listener = socket.socket(socket.AF_INET6)
    listener.bind(("fd77::2", 0))
    listener.listen()
    enter(CLIENT)
    client = socket.socket(socket.AF_INET6, proto=IPPROTO_SMC)
    client.connect(listener.getsockname()[:2])
    return client, listener.accept()[0], listener


def netlink_events_of_links():
    wires = SecondDevices()
    with wires as second:
        wires.renew()
        listening = {name: events(name) for name in (CLIENT, SERVER)}
        client, server, _ = pair()
        exchange(client, server)
        seen = {}
        devices = {name.encode() for name in (CLIENT, SERVER, *second.values())}
        for name, sock in ((CLIENT, client), (SERVER, server)):
            group = struct.pack("I", struct.unpack("8I", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 32))[7])

            def link(device):
                return {6: group, 8: device.encode() + b"\0", 9: b"\1"}

            def without_id(event):
                return event[0], {kind: value for kind, value in event[1].items() if kind != 7}

            assert told(listening[name]) == (EVENT_LGR_UP, {6: group})
            assert without_id(told(listening[name])) == (EVENT_LINK_UP, link(name))
            assert without_id(told(listening[name])) == (EVENT_LINK_UP, link(second[name]))
            seen[name] = group, link
        # The first link goes: the connection moves to the other one. Another may come on the one device that is left.
        subprocess.run(["rdma", "link", "delete", CLIENT], check=True)
        for name in (CLIENT, SERVER):
            group, link = seen[name]
            found = [without_id(told(listening[name])) for _ in range(2)]
            down, moved = sorted(found)
            assert down[0] == EVENT_LINK_DOWN and down[1].pop(10) in CAUSES and down[1] == link(name), found
            assert moved == (EVENT_FAILOVER, {**link(name), 11: struct.pack("I", 1)}), found
        exchange(client, server)
        # And that device.
        subprocess.run(["rdma", "link", "delete", second[CLIENT]], check=True)
        for name in (CLIENT, SERVER):
            group, link = seen[name]
            links = 1
            while True:
                kind, about = told(listening[name], 60)
                assert about.pop(6) == group
                if kind == EVENT_LGR_DOWN:
                    assert about.pop(10) in CAUSES and not about, about
                    break
                assert kind in (EVENT_LINK_UP, EVENT_LINK_DOWN, EVENT_FAILOVER), kind
                assert kind != EVENT_LINK_DOWN or about[10] in CAUSES and about[8][:-1] in devices, about
                links += {EVENT_LINK_UP: 1, EVENT_LINK_DOWN: -1}.get(kind, 0)
            assert links == 0, links


def fallbacks(namespace):
    """By side and reason: the count; and the sums of server and client."""
    found, sums = {}, (0, 0)
    for message in system(namespace).dump(GET_FBACK):
        (kind, value), = attrs(message)
        assert kind == 8
        row = table(value)
        assert set(row) == {1, 2, 3, 4, 5, 64}
        assert [len(row[kind]) for kind in (1, 2, 3, 4, 5, 64)] == [1, 8, 8, 4, 2, 8]
        assert number(row[5]) == number(row[64]) > 0
        found[number(row[1]), number(row[4])] = number(row[5])
        sums = number(row[2]), number(row[3])
    return found, sums


def netlink_fallback_statistics():
    namespace = CLIENT + "f"
    assert os.system(f"ip netns add {namespace} && ip -n {namespace} link set lo up") == 0
    try:
        assert fallbacks(namespace) == ({}, (0, 0))
        for count in (1, 2):
            client, server, _ = pair(at=namespace)
            exchange(client, server)
            assert info(client)[:2] == (MODE_TCP, NOSMCRDEV), info(client)
            assert fallbacks(namespace) == ({(0, NOSMCRDEV): count, (1, PEERDECL): count}, (count, count))
        # A client of TCP.
        enter(namespace)
        listener = socket.socket(proto=IPPROTO_SMC)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        plain = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        assert fallbacks(namespace) == ({(0, NOSMCRDEV): 2, (1, PEERDECL): 2, (1, PEERNOSMC): 1}, (3, 2))
        plain.close()
        for sock in (client, server, listener):
            sock.close()
    finally:
        os.system(f"ip netns del {namespace}")


def peers(namespace):
    """By address: connections by RDMA and by TCP, each as client and as server, and the last reason."""
    found = {}
    for message in system(namespace).dump(GET_PEER_STATS):
        (kind, value), = attrs(message)
        row = table(value)
        assert kind == 64 and set(row) == {1, 2, 3, 4, 5, 6} and row[1] not in found, row
        found[row[1]] = tuple(number(row[n]) for n in (2, 3, 4, 5, 6))
    return found


def netlink_peer_statistics():
    def grown(namespace, address):
        new, old = peers(namespace)[address], before[namespace].get(address, (0, 0, 0, 0))
        return tuple(a - b for a, b in zip(new[:4], old)), new[4]

    before = {name: peers(name) for name in (CLIENT, SERVER)}
    addresses = {name: socket.inet_aton(ip) for name, ip in ((CLIENT, SERVER_IP), (SERVER, CLIENT_IP))}
    for _ in range(2):
        exchange(*pair()[:2])
    system(SERVER).do(FLUSH_UEID)
    try:
        exchange(*pair()[:2])
    finally:
        system(SERVER).do(ADD_UEID, attr(1, DEFAULT_EID))
    assert grown(CLIENT, addresses[CLIENT]) == ((2, 0, 1, 0), PEERDECL), peers(CLIENT)
    assert grown(SERVER, addresses[SERVER]) == ((0, 2, 0, 1), NOUEID), peers(SERVER)
    ipv6_pair()
    assert peers(CLIENT)[socket.inet_pton(socket.AF_INET6, "fd77::2")][2] >= 1
    namespace = CLIENT + "p"
    assert os.system(f"ip netns add {namespace} && ip -n {namespace} link set lo up") == 0
    try:
        enter(namespace)
        listener = socket.socket(proto=IPPROTO_SMC)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        # With the listener's address, which is the clients' peer, 256 are remembered. Of those the first comes again, and
        # then one more.
        for n in [*range(255), 0, 256]:
            client = socket.socket(proto=IPPROTO_SMC)
            client.bind((f"127.0.1.{n}" if n < 256 else "127.0.2.1", 0))
            client.connect(listener.getsockname())
            listener.accept()[0].close()
            client.close()
        found = peers(namespace)
        assert len(found) == 256, len(found)
        assert found[socket.inet_aton("127.0.1.0")][3] == 2, found[socket.inet_aton("127.0.1.0")]
        for n, there in ((1, False), (2, True), (254, True)):
            assert (socket.inet_aton(f"127.0.1.{n}") in found) == there, n
        assert socket.inet_aton("127.0.2.1") in found
    finally:
        enter(CLIENT)
        os.system(f"ip netns del {namespace}")


def rows(messages):
    found = []
    for message in messages:
        row = attrs(message)
        assert [kind for kind, _ in row] == [1, 2, 3, 4], row
        found.append(tuple(value.rstrip(b"\0").decode() for _, value in row[:3]) + (row[3][1][0],))
        assert all(value[-1] == 0 for _, value in row[:3]) and len(row[3][1]) == 1
    return found


def netlink_pnet():
    family = pnet()
    assert family.dump(PNET_GET) == []
    family.do(PNET_ADD, attr(1, b"net1  \0") + attr(2, b"eth7\0"))
    family.do(PNET_ADD, attr(1, b"NET2\0") + attr(2, b"eth8\0") + attr(3, b"mlx5_0\0") + attr(4, b"\2"))
    family.do(PNET_ADD, attr(1, b"NET1\0") + attr(3, b"i" * 63 + b"\0"))
    all_rows = [("NET1", "eth7", "n/a", 255), ("NET2", "eth8", "n/a", 255), ("NET2", "n/a", "mlx5_0", 2),
                ("NET1", "n/a", "i" * 63, 1)]
    assert rows(family.dump(PNET_GET)) == all_rows, rows(family.dump(PNET_GET))
    assert rows(family.do(PNET_GET, attr(1, b"NET2\0"), answered=True)) == all_rows[1:3]
    assert rows(pnet(SERVER).dump(PNET_GET)) == [], "the table is that of a namespace"
    # What is there is there; one of two that is new is added.
    family.refused(errno.EEXIST, PNET_ADD, attr(1, b"OTHER\0") + attr(2, b"eth7\0"))
    family.do(PNET_ADD, attr(1, b"NET3\0") + attr(2, b"eth7\0") + attr(3, b"mlx5_1\0"))
    assert rows(family.dump(PNET_GET))[4:] == [("NET3", "n/a", "mlx5_1", 1)]
    for bad in (b"", b"   ", b"with blank", b"under_score", b"A" * 17):
        code = errno.ERANGE if len(bad) > 16 else errno.EINVAL
        family.refused(code, PNET_ADD, attr(1, bad + b"\0") + attr(2, b"eth9\0"))
    family.refused(errno.EINVAL, PNET_ADD, attr(2, b"eth9\0"))
    family.refused(errno.EINVAL, PNET_ADD, attr(1, b"NET4\0"))
    family.refused(errno.EINVAL, PNET_ADD, attr(1, b"NET4") + attr(2, b"eth9\0"))
    family.refused(errno.EINVAL, PNET_ADD, attr(1, b"NET4\0") + attr(2, b"\0"))
    family.refused(errno.ERANGE, PNET_ADD, attr(1, b"NET4\0") + attr(2, b"e" * 16 + b"\0"))
    family.refused(errno.ERANGE, PNET_ADD, attr(1, b"NET4\0") + attr(3, b"e" * 64 + b"\0"))
    for port in (0, 3, 255):
        family.refused(errno.EINVAL, PNET_ADD, attr(1, b"NET4\0") + attr(3, b"x\0") + attr(4, bytes([port])))
    family.do(PNET_DEL, attr(1, b"NET1\0"))
    family.refused(errno.ENOENT, PNET_DEL, attr(1, b"NET1\0"))
    family.refused(errno.EINVAL, PNET_DEL)
    assert [row[0] for row in rows(family.dump(PNET_GET))] == ["NET2", "NET2", "NET3"]
    family.do(PNET_FLUSH)
    assert family.dump(PNET_GET) == []
    family.do(PNET_FLUSH)


def on_device(sock):
    """Mode, and the name of the RDMA device of a connection."""
    known = struct.unpack("16I2Q2I64s", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 152))
    return known[1], known[20].rstrip(b"\0").decode()


class SecondDevices:
    """In each namespace a second interface, macv0, on the same wire, with an address of the same network and an RDMA
    device of its own, whose names are the keys of the answer.
    """

    def __enter__(self):
        self.names = {CLIENT: CLIENT + "m", SERVER: SERVER + "m"}
        for namespace, address in ((CLIENT, "10.77.0.11"), (SERVER, "10.77.0.12")):
            for command in ("sysctl -q net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
                            "ip link add macv0 link veth0 type macvlan mode bridge",
                            f"ip addr add {address}/24 dev macv0", "ip link set macv0 up",
                            f"rdma link add {self.names[namespace]} type rxe netdev macv0"):
                inside(namespace, command)
        return self.names

    def renew(self):
        """All devices go and come again, so that no link group is left."""
        for namespace, second in self.names.items():
            for name, netdev in ((namespace, "veth0"), (second, "macv0")):
                new_device(namespace, name, netdev)

    def __exit__(self, *_):
        for namespace, name in self.names.items():
            pnet(namespace).do(PNET_FLUSH)
            if not os.path.exists(f"/sys/class/infiniband/{namespace}"):
                inside(namespace, f"rdma link add {namespace} type rxe netdev veth0")
            subprocess.run(["rdma", "link", "delete", name], check=False)
            subprocess.run(["ip", "-n", namespace, "link", "del", "macv0"], check=False)


def inside(namespace, command):
    subprocess.run(["ip", "netns", "exec", namespace] + command.split(), check=True)


def new_device(namespace, name, netdev="veth0"):
    """A device goes and comes again, so that it has no link of a group."""
    subprocess.run(["rdma", "link", "delete", name], check=True)
    inside(namespace, f"rdma link add {name} type rxe netdev {netdev}")


def eth_row(namespace, network, name):
    pnet(namespace).do(PNET_ADD, attr(1, network) + attr(2, name.encode() + b"\0"))


def ib_row(namespace, network, name, port=1):
    pnet(namespace).do(PNET_ADD, attr(1, network) + attr(3, name.encode() + b"\0") + attr(4, bytes([port])))


NET_A, NET_B = b"NETA\0", b"NETB\0"


def netlink_pnet_chooses_the_device_of_the_first_link():
    wires = SecondDevices()
    with wires as second:
        def devices():
            # The first connection of a group is on its first link.
            wires.renew()
            client, server, _ = pair()
            exchange(client, server)
            return on_device(client), on_device(server)

        def smc(of_client, of_server):
            return (MODE_SMC, of_client), (MODE_SMC, of_server)

        # Without a table a connection takes the device of its own interface.
        found = devices()
        assert found == smc(CLIENT, SERVER), found
        # In either role for itself.
        eth_row(CLIENT, NET_A, "veth0")
        ib_row(CLIENT, NET_A, second[CLIENT])
        found = devices()
        assert found == smc(second[CLIENT], SERVER), found
        pnet(CLIENT).do(PNET_FLUSH)
        eth_row(SERVER, NET_A, "veth0")
        ib_row(SERVER, NET_A, second[SERVER])
        found = devices()
        assert found == smc(CLIENT, second[SERVER]), found
        # Ids of ports alone change nothing: the device of the interface serves one without an id.
        pnet(SERVER).do(PNET_FLUSH)
        ib_row(SERVER, NET_A, SERVER)
        ib_row(SERVER, NET_B, second[SERVER])
        found = devices()
        assert found == smc(CLIENT, SERVER), found
        # No port has the interface's id: the one of another, of none, and another port of the device.
        pnet(SERVER).do(PNET_FLUSH)
        eth_row(SERVER, NET_A, "veth0")
        ib_row(SERVER, NET_A, second[SERVER], 2)
        ib_row(SERVER, NET_B, SERVER)
        client, server, _ = pair()
        assert info(server) == (MODE_TCP, NOSMCRDEV, 0), info(server)
        assert info(client) == (MODE_TCP, PEERDECL, NOSMCRDEV), info(client)
        exchange(client, server)
        pnet(SERVER).do(PNET_FLUSH)
        eth_row(CLIENT, NET_A, "veth0")
        client, server, _ = pair()
        assert info(client) == (MODE_TCP, NOSMCRDEV, 0), info(client)
        assert info(server) == (MODE_TCP, PEERDECL, NOSMCRDEV), info(server)
        exchange(client, server)


def netlink_pnet_of_the_interface_below_counts():
    wires = SecondDevices()
    with wires as second:
        enter(SERVER)
        listener = socket.socket(proto=IPPROTO_SMC)
        listener.bind((SERVER_IP, 0))
        listener.listen()
        listener.settimeout(60)
        subprocess.run(["ip", "-n", CLIENT, "route", "add", f"{SERVER_IP}/32", "dev", "macv0", "src", "10.77.0.11"],
                       check=True)

        def device():
            wires.renew()
            enter(CLIENT)
            client = socket.socket(proto=IPPROTO_SMC)
            client.settimeout(60)
            client.connect(listener.getsockname())
            assert client.getsockname()[0] == "10.77.0.11", client.getsockname()
            exchange(client, listener.accept()[0])
            return on_device(client)

        found = device()
        assert found == (MODE_SMC, second[CLIENT]), found
        # macv0 itself has an id.
        eth_row(CLIENT, NET_A, "macv0")
        found = device()
        assert found == (MODE_TCP, ""), found
        ib_row(CLIENT, NET_A, second[CLIENT])
        found = device()
        assert found == (MODE_SMC, second[CLIENT]), found
        # veth0, on which it lies, goes before.
        eth_row(CLIENT, NET_B, "veth0")
        found = device()
        assert found == (MODE_TCP, ""), found
        pnet(CLIENT).do(PNET_DEL, attr(1, NET_A))
        ib_row(CLIENT, NET_B, second[CLIENT])
        found = device()
        assert found == (MODE_SMC, second[CLIENT]), found


def netlink_pnet_chooses_the_device_of_the_second_link():
    wires = SecondDevices()
    with wires as second:
        def links(wanted):
            """The devices of the links of a new connection's group, as its server has them in the end."""
            wires.renew()
            client, server, _ = pair()
            exchange(client, server)
            group = struct.unpack("8I", server.getsockopt(SOL_SMC, SMC_RS_INFO, 32))[7]
            end = time.monotonic() + 30
            since = None
            while True:
                now = time.monotonic()
                found = {link[2].rstrip(b"\0").decode() for link in link_groups(SERVER)[group][1] if number(link[10]) == 3}
                since = (since or now) if found == wanted else None
                # Another link may still come where there is one.
                if now > end or (since and (len(wanted) > 1 or now > since + 3)):
                    return found
                time.sleep(0.2)

        def rows_of(first, other):
            for namespace in (CLIENT, SERVER):
                pnet(namespace).do(PNET_FLUSH)
                eth_row(namespace, NET_A, "veth0")
                if first:
                    ib_row(namespace, NET_A, namespace)
                if other:
                    ib_row(namespace, other, second[namespace])

        both = {SERVER, second[SERVER]}
        for other, wanted in ((NET_B, {SERVER}), (None, {SERVER}), (NET_A, both)):
            rows_of(True, other)
            found = links(wanted)
            assert found == wanted, (other, found)
        # What has no id goes with what has none.
        for namespace in (CLIENT, SERVER):
            pnet(namespace).do(PNET_FLUSH)
        found = links(both)
        assert found == both, found


def netlink_thousands_of_rows():
    family = pnet()
    wanted = [("NET", f"e{n}", "n/a", 255) for n in range(2000)]
    for row in wanted:
        family.do(PNET_ADD, attr(1, b"NET\0") + attr(2, row[1].encode() + b"\0"))
    assert rows(family.dump(PNET_GET)) == wanted
    family.do(PNET_FLUSH)


def in_child(work):
    """Runs work in a process of its own, which must come to its end."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except Exception as error:  # pylint: disable=broad-except
            print(f"# child: {type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def netlink_rights():
    def nobody():
        family, other = system(CLIENT), pnet(CLIENT)
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        for command in (GET_SYS_INFO, GET_LGR_SMCR, GET_LINK_SMCR, GET_DEV_SMCR, GET_STATS, GET_FBACK, DUMP_UEID, DUMP_SEID,
                        DUMP_HS, GET_PEER_STATS):
            family.dump_mixed(command)
        other.dump(PNET_GET)
        for command in (ADD_UEID, REMOVE_UEID, FLUSH_UEID, ENABLE_SEID, DISABLE_SEID, ENABLE_HS, DISABLE_HS):
            family.refused(errno.EPERM, command, attr(1, b"HERE\0"), explained=False)
        for command in (PNET_ADD, PNET_DEL, PNET_FLUSH):
            other.refused(errno.EPERM, command, attr(1, b"HERE\0"), explained=False)

    def own_namespace():
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        libc.prctl(4, 1, 0, 0, 0)  # The files in /proc are its own again.
        if libc.unshare(0x10000000 | 0x40000000):
            raise OSError(ctypes.get_errno(), "unshare")
        family, other = system(None), pnet(None)
        family.do(ADD_UEID, attr(1, b"MINE\0"))
        assert len(family.dump(DUMP_UEID)) == 2
        other.do(PNET_ADD, attr(1, b"MINE\0") + attr(2, b"lo\0"))
        family.do(ENABLE_HS)
        # What concerns the machine is not its.
        family.refused(errno.EPERM, ENABLE_SEID, explained=False)

    in_child(nobody)
    in_child(own_namespace)
    assert ueids() == [DEFAULT_EID]


HEAD, CONN, LGR = struct.Struct("=4B2H32sI2IIQ"), 76, 147


class Row:
    """A socket in the list."""

    def __init__(self, payload):
        (self.family, self.state, self.mode, zero, _, _, _, self.interface, low, high, self.uid,
         self.inode) = HEAD.unpack(payload[:64])
        assert zero == 0
        self.ports = struct.unpack("!2H", payload[4:8])
        self.source, self.target = payload[8:24], payload[24:40]
        self.cookie = low | high << 32
        self.attrs = dict(attrs(payload[64:]))
        assert len(self.attrs[3]) == 1 and len(self.attrs[5]) == 8
        self.shutdown = self.attrs[3][0]
        self.reason = struct.unpack("2I", self.attrs[5])


def sockets(namespace=CLIENT, extensions=0):
    assert HEAD.size == 64
    diag = Netlink(namespace, NETLINK_SOCK_DIAG)
    diag.send(20, F_REQUEST | F_DUMP, struct.pack("BBBB", AF_SMC, 0, 0, extensions) + bytes(48))
    found = []
    for kind, flags, payload in diag.answers():
        assert kind == 20 and flags & F_MULTI
        found.append(Row(payload))
    return found


def row_of(sock, namespace=CLIENT, extensions=0xFF):
    inode = os.fstat(sock.fileno()).st_ino
    found = [row for row in sockets(namespace, extensions) if row.inode == inode]
    assert len(found) == 1, f"{len(found)} rows"
    assert found[0].cookie == struct.unpack("Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
    assert found[0].uid == os.getuid()
    return found[0]


def v4(address):
    return socket.inet_aton(address).ljust(16, b"\0")


def diag_connection(family=socket.AF_INET, protocol=IPPROTO_SMC):
    client, server, listener = pair(family, protocol)
    assert info(client)[0] == MODE_SMC
    client.sendall(b"z" * 1000)
    got = 0
    while got < 1000:
        got += len(server.recv(1000))
    exchange(client, server, b"1234")
    port = port_of(listener)
    for sock, namespace, here, there, sent, received, role in (
            (client, CLIENT, CLIENT_IP, SERVER_IP, 1004, 4, 0), (server, SERVER, SERVER_IP, CLIENT_IP, 4, 1004, 1)):
        row = row_of(sock, namespace)
        assert (row.family, row.state, row.mode, row.shutdown) == (family, 1, 0, 0), vars(row)
        assert (row.source, row.target) == (v4(here), v4(there)), vars(row)
        assert row.ports[1 - role] == port and row.ports[role] != port, row.ports
        assert row.reason == (0, 0)
        assert set(row.attrs) == {1, 2, 3, 5}
        assert (len(row.attrs[1]), len(row.attrs[2])) == (CONN, LGR)
        known = struct.unpack("16I2Q2I64s", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 152))
        token, sndbuf, rmb, peer_rmb = struct.unpack("4I", row.attrs[1][:16])
        assert (token, sndbuf, rmb, peer_rmb) == known[12:16], (known, token, sndbuf, rmb, peer_rmb)
        values = struct.unpack("=" + "HHI" * 4 + "4B" + "HHI" * 3, row.attrs[1][16:])
        cursors = [values[n:n + 3] for n in (0, 3, 6, 9, 16, 19, 22)]
        rx_prod, rx_cons, tx_prod, _, prep, out, fin = cursors
        assert rx_prod == rx_cons == (0, 0, received), cursors
        assert tx_prod == prep == out == (0, 0, sent), cursors
        assert fin[2] <= sent, cursors
        lgr = row.attrs[2]
        link, ibname, ibport, gid, peer_gid, its_role = struct.unpack("B64sB40s40sB", lgr)
        assert (link, ibname, ibport, its_role) == (known[10], known[20], known[18], role), (known, lgr)

        assert (gid, peer_gid) == (gid_text(here), gid_text(there)), (gid, peer_gid)
        # What is not asked for does not come.
        assert set(row_of(sock, namespace, 0).attrs) == {3, 5}
        assert set(row_of(sock, namespace, 1).attrs) == {1, 3, 5}
        assert set(row_of(sock, namespace, 2).attrs) == {2, 3, 5}
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    assert row_of(client).shutdown == 2 and row_of(client).state == 20, vars(row_of(client))
    assert row_of(server, SERVER).state == 22
    inode = os.fstat(client.fileno()).st_ino
    client.close()
    assert not [row for row in sockets() if row.inode == inode]


def diag_connection_of_the_family():
    diag_connection(AF_SMC, 0)


def diag_states_and_fallback():
    enter(CLIENT)
    fresh = socket.socket(proto=IPPROTO_SMC)
    row = row_of(fresh)
    assert (row.state, row.mode, row.ports, row.source) == (2, 0, (0, 0), bytes(16)), vars(row)
    listener = socket.socket(socket.AF_INET6, proto=IPPROTO_SMC)
    listener.bind(("::", 0))
    listener.listen()
    row = row_of(listener)
    assert (row.family, row.state, row.mode) == (socket.AF_INET6, 10, 0), vars(row)
    assert row.ports == (listener.getsockname()[1], 0), row.ports
    client = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
    server, _ = listener.accept()
    row = row_of(server)
    assert (row.state, row.mode, row.reason) == (1, 1, (PEERNOSMC, 0)), vars(row)
    assert row.target == bytes.fromhex("00000000000000000000ffff7f000001"), row.target
    assert set(row.attrs) == {3, 5}
    client.close()
    server.close()
    system(SERVER).do(FLUSH_UEID)
    try:
        client, server, _ = pair()
        row = row_of(client)
        assert (row.mode, row.reason) == (1, (PEERDECL, NOUEID)), vars(row)
        row = row_of(server, SERVER)
        assert (row.mode, row.reason) == (1, (NOUEID, 0)), vars(row)
    finally:
        system(SERVER).do(ADD_UEID, attr(1, DEFAULT_EID))
    # Another namespace sees none of it.
    assert not {row.inode for row in sockets(SERVER)} & {os.fstat(s.fileno()).st_ino for s in (fresh, listener, client)}


def diag_without_dump_is_nothing():
    diag = Netlink(CLIENT, NETLINK_SOCK_DIAG)
    diag.send(20, F_REQUEST | F_ACK, struct.pack("BBBB", AF_SMC, 0, 0, 0) + bytes(48))
    assert list(diag.answers()) == []


def ring_sizes(size):
    for namespace, way in itertools.product((CLIENT, SERVER), ("wmem", "rmem")):
        enter(namespace)
        with open(f"/proc/sys/net/smc/{way}", "w", encoding="ascii") as f:
            f.write(str(size))


def diag_many_connections_by_rdma_under_churn():
    resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))
    ring_sizes(16384)
    count = int(os.environ.get("SMC_CONNECTIONS", "300"))
    enter(SERVER)
    listener = socket.socket(proto=IPPROTO_SMC)
    listener.bind((SERVER_IP, 0))
    listener.listen(128)
    enter(CLIENT)
    kept = {CLIENT: [], SERVER: []}
    stop = threading.Event()
    failed = []

    def churn():
        """Sockets, and connections by RDMA, come and go."""
        try:
            enter(SERVER)
            other = socket.socket(proto=IPPROTO_SMC)
            other.bind((SERVER_IP, 0))
            other.listen()
            enter(CLIENT)
            while not stop.is_set():
                some = [socket.socket(proto=IPPROTO_SMC) for _ in range(20)]
                client = socket.socket(proto=IPPROTO_SMC)
                client.connect(other.getsockname())
                some += [client, other.accept()[0]]
                for sock in some:
                    sock.close()
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)

    try:
        began = time.monotonic()
        for _ in range(count):
            client = socket.socket(proto=IPPROTO_SMC)
            client.connect(listener.getsockname())
            kept[CLIENT].append(client)
            kept[SERVER].append(listener.accept()[0])
        print(f"# {count} connections in {time.monotonic() - began:.1f} s")
        assert {info(sock)[0] for sock in kept[CLIENT]} == {MODE_SMC}
        wanted = {name: {os.fstat(sock.fileno()).st_ino for sock in socks} for name, socks in kept.items()}
        thread = threading.Thread(target=churn)
        thread.start()
        try:
            for turn, name in itertools.product(range(3), (CLIENT, SERVER)):
                rows_of_all = sockets(name, 0xFF)
                seen = [row.inode for row in rows_of_all]
                missing = wanted[name] - set(seen)
                assert not missing, f"{len(missing)} of {count} are missing in turn {turn}"
                twice = [n for n, group in itertools.groupby(sorted(seen)) if n and len(list(group)) > 1]
                assert not twice, twice
                bare = [row.inode for row in rows_of_all if row.inode in wanted[name] and not {1, 2} <= set(row.attrs)]
                assert not bare, f"{len(bare)} have no link or rings"
                # Groups, links and their connections agree, but for what comes and goes meanwhile.
                groups = link_groups(name)
                conns = [number(about[6]) for about, _ in groups.values()]
                on_links = sum(number(link[6]) for _, links in groups.values() for link in links)
                assert len(conns) >= -(-count // 255) and max(conns) <= 255, conns
                assert count <= sum(conns) <= count + 8 and count <= on_links <= count + 8, (sum(conns), on_links)
        finally:
            stop.set()
            thread.join()
        assert not failed, failed
    finally:
        for sock in (*kept[CLIENT], *kept[SERVER], listener):
            sock.close()
        ring_sizes(65536)
    for name in (CLIENT, SERVER):
        assert not {row.inode for row in sockets(name)} & wanted[name]


def log_has_a_line_for_each_reason_and_peer():
    namespace = CLIENT + "l"
    assert os.system(f"ip netns add {namespace} && ip -n {namespace} link set lo up") == 0

    def lines():
        text = subprocess.run(["dmesg"], check=True, stdout=subprocess.PIPE, text=True).stdout
        return [line for line in text.split(mark)[-1].splitlines() if " uses TCP: " in line]

    try:
        mark = f"mark {time.monotonic_ns()}"
        with open("/dev/kmsg", "w", encoding="ascii") as f:
            f.write(f"<6>{mark}\n")
        for _ in range(3):
            exchange(*pair(at=namespace)[:2])
        found = lines()
        assert len(found) == 2, found
        assert any("connection to 127.0.0.1:" in line and f"0x{NOSMCRDEV:08x}" in line and "RDMA device" in line
                   for line in found), found
        assert any("connection from 127.0.0.1:" in line and f"0x{PEERDECL:08x}" in line for line in found), found
        # Another peer, with the same reasons.
        enter(namespace)
        listener = socket.socket(proto=IPPROTO_SMC)
        listener.bind(("127.0.0.2", 0))
        listener.listen()
        client = socket.socket(proto=IPPROTO_SMC)
        client.bind(("127.0.0.3", 0))
        client.connect(listener.getsockname())
        listener.accept()[0].close()
        found = lines()[2:]
        assert len(found) == 2 and "to 127.0.0.2:" in "".join(found) and "from 127.0.0.3:" in "".join(found), found
        # Counted are all.
        assert fallbacks(namespace)[1] == (4, 4)
    finally:
        os.system(f"ip netns del {namespace}")


SETTINGS = {
    # Default, least, greatest.
    "wmem": (65536, 16384, (1 << 30) - 1),
    "rmem": (65536, 16384, (1 << 30) - 1),
    "autocorking_size": (65536, 0, (1 << 32) - 1),
    "limit_smc_hs": (0, 0, 1),
    "hook_timeout": (60, 0, 86400),
    "lgr_linger": (10, 0, 86400),
    "smcr_max_links_per_lgr": (2, 1, 2),
    "smcr_max_conns_per_lgr": (255, 16, 255),
    "smcr_testlink_time": (30, 0, 2147483),
    "smcr_buf_type": (0, 0, 2),
    "smcr_max_send_wr": (16, 2, 2048),
    "smcr_max_recv_wr": (48, 2, 2048),
    "extensions": (3, 0, 3),
    "tcp2smc": (0, 0, 2),
    "tcp2smc_no_new_privs": (0, 0, 1),
    "tcp2smc_memory": (300, 0, 86400),
}


def sysctl_defaults_and_ranges():
    namespace = CLIENT + "s"
    assert os.system(f"ip netns add {namespace}") == 0
    try:
        enter(namespace)
        names = set(os.listdir("/proc/sys/net/smc"))
        assert names == set(SETTINGS) | {"tcp2smc_allow", "tcp2smc_deny"}, names
        for name, (default, least, greatest) in SETTINGS.items():
            path = "/proc/sys/net/smc/" + name

            def get():
                with open(path, encoding="ascii") as f:
                    return int(f.read())

            def put(value):
                with open(path, "w", encoding="ascii") as f:
                    f.write(str(value))

            enter(namespace)
            assert get() == default, (name, get())
            for value in (least, greatest):
                put(value)
                assert get() == value, (name, value, get())
            for value in (least - 1, greatest + 1, "x"):
                try:
                    put(value)
                except OSError as e:
                    assert e.errno == errno.EINVAL, (name, value, e)
                else:
                    raise AssertionError(f"{name} took {value}")
                assert get() == greatest, (name, value, get())
            enter(SERVER)
            assert get() == default, f"{name} is not of a namespace alone"
    finally:
        enter(CLIENT)
        os.system(f"ip netns del {namespace}")


if __name__ == "__main__":
    sys.exit(run(globals(), ("netlink_", "diag_", "sysctl_", "log_")))
