# SPDX-License-Identifier: GPL-2.0
"""What the module smc_rs says of itself by netlink, for the tools of this folder. Needs nothing but Python."""

import os
import socket
import struct
import sys

from smcreasons import REASONS

NETLINK_SOCK_DIAG, NETLINK_GENERIC = 4, 16
F_REQUEST, F_ACK, F_DUMP = 1, 4, 0x300
F_CAPPED, F_ACK_TLVS = 0x100, 0x200
SOL_NETLINK, NETLINK_EXT_ACK = 270, 11
NLMSG_ERROR, NLMSG_DONE = 2, 3
AF_SMC = 43
GET_DEV_SMCR, GET_STATS, GET_FBACK, DUMP_UEID, GET_PEERS = 6, 7, 8, 9, 70

STATES = {1: "ACTIVE", 2: "INIT", 7: "CLOSED", 10: "LISTEN", 20: "PEERCLOSEWAIT1", 21: "PEERCLOSEWAIT2",
          22: "APPCLOSEWAIT1", 23: "APPCLOSEWAIT2", 24: "APPFINCLOSEWAIT", 25: "PEERFINCLOSEWAIT",
          26: "PEERABORTWAIT", 27: "PROCESSABORT"}

# Counters that other implementations lack, by the number of their attribute.
OWN = ("aborts_peer", "aborts_link", "aborts_violation", "aborts_local", "aborts_unread", "aborts_timeout",
       "handshake_timeouts", "hooks_added", "hooks_removed", "groups_up", "groups_down", "links_up", "links_down",
       "connections_moved")


def reason(code):
    """What a reason means, and what to do."""
    unknown = ("UNKNOWN", f"reason 0x{code:08x}", "look at both hosts' kernel logs")
    return REASONS.get(code, unknown)[1:]


def attrs(data):
    """The attributes by kind; the last of a kind counts."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack("HH", data[:4])
        if not 4 <= length <= len(data):
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3:]
    return found


def number(value):
    return int.from_bytes(value, sys.byteorder)


def text(value):
    return value.split(b"\0")[0].decode(errors="replace").rstrip()


class Missing(Exception):
    """The module is not there."""


class Refused(Exception):
    """The module did not do it: why in words."""


def ask(sock, kind, payload):
    """The payloads of the answers to a dump."""
    sock.send(struct.pack("IHHII", 16 + len(payload), kind, F_REQUEST | F_DUMP, 1, 0) + payload)
    while True:
        data = sock.recv(1 << 17)
        while data:
            length, kind = struct.unpack("IH", data[:6])
            payload, data = data[16:length], data[(length + 3) & ~3:]
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                code = -struct.unpack("i", payload[:4])[0]
                raise OSError(code, os.strerror(code))
            yield payload


class Module:
    """The module in this network namespace."""

    def __init__(self, family=b"SMC_GEN_NETLINK"):
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        name = attrs_of(2, family + b"\0")
        payload = struct.pack("BBH", 3, 1, 0) + name
        self.sock.send(struct.pack("IHHII", 16 + len(payload), 16, F_REQUEST, 1, 0) + payload)
        data = self.sock.recv(1 << 16)
        length, kind = struct.unpack("IH", data[:6])
        if kind == NLMSG_ERROR:
            raise Missing
        self.family = number(attrs(data[20:length])[1])

    def dump(self, command):
        return [attrs(payload[4:]) for payload in ask(self.sock, self.family, struct.pack("BBH", command, 1, 0))]

    def change(self, command, *values):
        """Does what changes something; values are pairs of an attribute and its bytes."""
        payload = struct.pack("BBH", command, 1, 0) + b"".join(attrs_of(*value) for value in values)
        self.sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self.sock.send(struct.pack("IHHII", 16 + len(payload), self.family, F_REQUEST | F_ACK, 1, 0) + payload)
        data = self.sock.recv(1 << 16)
        flags, code = struct.unpack("H", data[6:8])[0], -struct.unpack("i", data[16:20])[0]
        if code:
            # The request comes back, whole or its head alone, and then why.
            rest = data[36:] if flags & F_CAPPED else data[20 + struct.unpack("I", data[20:24])[0]:]
            why = text(attrs(rest).get(1, b"")) if flags & F_ACK_TLVS else ""
            raise Refused(why or os.strerror(code))

    def devices(self):
        """Name, and for each port: number of the interface, whether it is up, links."""
        found = {}
        for message in self.dump(GET_DEV_SMCR):
            about = attrs(message[6])
            ports = [attrs(about[kind]) for kind in (8, 9) if kind in about]
            found[text(about[10])] = [(number(p[3]), bool(p[4][0]), number(p[6])) for p in ports]
        return found

    def networks(self):
        """The ids of ports that have one, by DEVICE/PORT."""
        found = {}
        for message in self.dump(GET_DEV_SMCR):
            about = attrs(message[6])
            ports = {number: attrs(about[kind]) for number, kind in ((1, 8), (2, 9)) if kind in about}
            found.update((f"{text(about[10])}/{number}", text(port[2])) for number, port in ports.items() if text(port[2]))
        return found

    def ueids(self):
        return [text(message[1]) for message in self.dump(DUMP_UEID)]

    def fallbacks(self):
        """Rows of side, reason, count."""
        found = []
        for message in self.dump(GET_FBACK):
            row = attrs(message[8])
            found.append(("server" if row[1][0] else "client", number(row[4]), number(row.get(64, row[5]))))
        return found

    def peers(self):
        """Address, and connections by side and way, of the peers of late."""
        found = {}
        for message in self.dump(GET_PEERS):
            row = attrs(message[64])
            family = socket.AF_INET if len(row[1]) == 4 else socket.AF_INET6
            found[socket.inet_ntop(family, row[1])] = {
                ("client", "rdma"): number(row[2]), ("server", "rdma"): number(row[3]),
                ("client", "tcp"): number(row[4]), ("server", "tcp"): number(row[5])}
        return found

    def stats(self):
        """Counters of SMC-R by a stable name."""
        top = attrs(self.dump(GET_STATS)[0][7])
        tech = attrs(top[2])
        names = {8: "connections_client", 10: "connections_server", 12: "splices", 13: "corks", 14: "nodelays",
                 15: "urgent", 16: "receive_bytes", 17: "send_bytes", 18: "receive_calls", 19: "send_calls"}
        found = {name: number(tech[kind]) for kind, name in names.items()}
        for kind, way in ((5, "send"), (6, "receive")):
            events = attrs(tech[kind])
            for event, name in ((1, "small_peer"), (2, "small"), (3, "full_peer"), (4, "full"), (5, "reused"), (6, "new"),
                                (7, "degraded")):
                found[f"{way}_ring_{name}"] = number(events[event])
        own = attrs(top.get(64, b""))
        found.update((name, number(own[kind])) for kind, name in enumerate(OWN, 1) if kind in own)
        found["handshake_errors_client"], found["handshake_errors_server"] = number(top[3]), number(top[4])
        return found, {"receive": number(tech[20]), "send": number(tech[21])}


def interface_networks():
    """The ids of interfaces that have one, by the interface's name."""
    rows = Module(b"SMC_PNETID").dump(1)
    return {text(row[2]): text(row[1]) for row in rows if row[4][0] == 255}


def attrs_of(kind, value):
    """An attribute."""
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def address(packed):
    """An address of the list of sockets, which does not say of which family it is."""
    if any(packed[4:]):
        return socket.inet_ntop(socket.AF_INET6, packed)
    return socket.inet_ntop(socket.AF_INET, packed[:4])


def sockets():
    """The SMC sockets of this network namespace."""
    diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    found = []
    for payload in ask(diag, 20, struct.pack("BBBB", AF_SMC, 0, 0, 3) + bytes(48)):
        state, mode = payload[1:3]
        ports = struct.unpack("!2H", payload[4:8])
        about = attrs(payload[64:])
        why, diagnosis = struct.unpack("2I", about[5])
        row = {"state": STATES.get(state, str(state)), "mode": "TCP" if mode else "SMC-R",
               "local": address(payload[8:24]), "local_port": ports[0], "peer": address(payload[24:40]),
               "peer_port": ports[1], "inode": struct.unpack("Q", payload[56:64])[0], "reason": why,
               "peer_diagnosis": diagnosis}
        if 1 in about:
            values = struct.unpack("=4I" + "HHI" * 4 + "4B" + "HHI" * 3, about[1])
            # Laps of a ring and bytes of the last one.
            row["sent"] = values[21] * values[1] + values[22]
            row["received"] = values[8] * values[2] + values[9]
        if 2 in about:
            row["link"], row["device"] = about[2][0], text(about[2][1:65])
        found.append(row)
    return found
