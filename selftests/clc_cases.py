#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""Handshakes with a peer made by hand: one line of TAP for each case, no plan.

The arguments name two namespaces joined by the devices veth0.  In the first is the module with an RDMA device, at
10.76.0.1; the second is 10.76.0.2, where this program speaks TCP by itself, with the SMC option, and says in the
handshake what no module of ours would say.
"""

import json
import select
import socket
import struct
import subprocess
import sys
import time

from caserun import enter, run

IPPROTO_SMC = 256
SOL_SMC, SMC_RS_INFO = 286, 0x100
MODE_TCP = 2
PEERNOSMC, NOUEID, VERSMISMAT, PEERDECL = 0x03010000, 0x03030008, 0x030C0000, 0x05000000
SERVER, CLIENT = sys.argv[1:3]
MODULE, PEER, NETWORK = "10.76.0.1", "10.76.0.2", "10.76.0.0"

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
SMC_OPTION = bytes.fromhex("0101FE06E2D4C3D9")
EYECATCHER = bytes.fromhex("E2D4C3D9")
PROPOSAL, ACCEPT, DECLINE = 1, 2, 4
OURS, OTHER = b"SMC-RS.DEFAULT", b"SOMEBODY.ELSE"


def smc():
    enter(SERVER)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SMC)
    sock.settimeout(20)
    return sock


def info(sock):
    """Mode, reason of the fallback, the peer's diagnosis."""
    numbers = struct.unpack("6I", sock.getsockopt(SOL_SMC, SMC_RS_INFO, 24))
    return numbers[1], numbers[3], numbers[4]


def mac_of(name):
    text = subprocess.run(["ip", "-n", name, "-j", "link", "show", "veth0"], check=True, stdout=subprocess.PIPE).stdout
    return bytes.fromhex(json.loads(text)[0]["address"].replace(":", ""))


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Tcp:
    """One TCP connection over a wire that loses nothing."""

    def __init__(self, port):
        enter(CLIENT)
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self.wire.bind(("veth0", 0))
        self.frame = mac_of(SERVER) + mac_of(CLIENT) + b"\x08\x00"
        self.port, self.peer_port = port, 0
        self.seq, self.ack = 1000, 0
        self.data = b""

    def segment(self, flags, data=b"", options=b""):
        source, target = socket.inet_aton(PEER), socket.inet_aton(MODULE)
        head = struct.pack("!HHIIBBHHH", self.port, self.peer_port, self.seq, self.ack, (20 + len(options)) << 2, flags,
                           60000, 0, 0)
        tcp = head + options + data
        total = checksum(source + target + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)
        tcp = tcp[:16] + struct.pack("!H", total) + tcp[18:]
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + target
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        self.wire.send(self.frame + ip + tcp)
        self.seq += len(data) + bool(flags & SYN) + bool(flags & FIN)

    def take(self, patience=20):
        """The next segment to us: its flags and options; its data are kept and answered."""
        end = time.monotonic() + patience
        while select.select([self.wire], [], [], max(0, end - time.monotonic()))[0]:
            packet, where = self.wire.recvfrom(65536)
            ip = packet[14:]
            if where[2] == socket.PACKET_OUTGOING or ip[9] != 6:
                continue
            tcp = ip[(ip[0] & 15) * 4:struct.unpack("!H", ip[2:4])[0]]
            peer_port, port, seq, _, offset, flags = struct.unpack("!HHIIBB", tcp[:14])
            if port != self.port or self.peer_port not in (0, peer_port):
                continue
            data = tcp[(offset >> 4) * 4:]
            if flags & SYN:
                self.peer_port, self.ack = peer_port, seq + 1
            elif seq != self.ack:
                # Sent again: the answer was late.
                self.segment(ACK)
                continue
            self.ack += len(data) + bool(flags & FIN)
            self.data += data
            if data or flags & FIN:
                self.segment(ACK)
            return flags, tcp[20:(offset >> 4) * 4]
        raise TimeoutError("nothing came")

    def connect(self, port, asks=True):
        self.peer_port = port
        self.segment(SYN, options=SMC_OPTION if asks else b"")
        flags, options = self.take()
        assert flags & (SYN | ACK) == SYN | ACK and (SMC_OPTION[2:] in options) == asks, "no such SYN-ACK"
        self.segment(ACK)

    def accept(self, asked=True):
        flags, options = self.take()
        assert flags & SYN and (SMC_OPTION[2:] in options) == asked, f"flags {flags}, options {options.hex()}"
        self.segment(SYN | ACK, options=SMC_OPTION if asked else b"")

    def recv(self, count):
        while len(self.data) < count:
            flags, _ = self.take()
            assert not flags & (RST | FIN), f"the connection ended after {len(self.data)} of {count} bytes"
        data, self.data = self.data[:count], self.data[count:]
        return data

    def message(self, want):
        """The next message of the handshake."""
        head = self.recv(8)
        assert head[:4] == EYECATCHER and head[4] == want, f"message {head.hex()}, expected one of type {want}"
        return head + self.recv(struct.unpack("!H", head[5:7])[0] - 8)

    def send(self, data):
        self.segment(PSH | ACK, data)

    def there(self):
        """The flags of all segments that have come by now; their data are kept."""
        flags = 0
        try:
            while True:
                flags |= self.take(0)[0]
        except TimeoutError:
            return flags

    def close(self):
        self.segment(RST | ACK)
        self.wire.close()


def eid(name):
    return name.ljust(32)


def gid():
    return bytes.fromhex("00000000000000000000FFFF") + socket.inet_aton(PEER)


def proposal(name):
    """A Proposal of version 2.1 with one enterprise id."""
    body = bytes(8) + bytes(22) + bytes(2) + bytes(10) + b"\0\x1c" + bytes(28)
    body += bytes.fromhex("01000010 00000000") + gid() + bytes.fromhex("FF010000") + bytes(12) + eid(name) + EYECATCHER
    return EYECATCHER + struct.pack("!BHB", PROPOSAL, 8 + len(body), 0x22) + body


def proposal_v1(length=24):
    """A Proposal of version 1 alone, from a subnet with a prefix of this length."""
    mac = mac_of(CLIENT)
    body = b"\0\2" + mac + gid() + mac + bytes(2)
    body += socket.inet_aton(NETWORK) + bytes([length, 0, 0, 0]) + EYECATCHER
    return EYECATCHER + struct.pack("!BHB", PROPOSAL, 8 + len(body), 0x10) + body


def accept(name):
    """An Accept of version 2.1, first contact."""
    mac = mac_of(CLIENT)
    body = b"\0\2" + mac + gid() + mac + bytes.fromhex("000123 11223344 01 CAFEBABE 23 00 0000123456789000 00 ABCDEF")
    body += eid(name) + bytes(8) + bytes.fromhex("80210000") + b"crafted".ljust(32, b"\0") + b"\x80\1" + bytes(14)
    body += EYECATCHER
    return EYECATCHER + struct.pack("!BHB", ACCEPT, 8 + len(body), 0x28) + body


def decline(diagnosis):
    body = b"\0\2" + mac_of(CLIENT) + struct.pack("!I", diagnosis) + b"\x20" + bytes(19) + EYECATCHER
    return EYECATCHER + struct.pack("!BHB", DECLINE, 8 + len(body), 0x20) + body


def diagnosis_of(message):
    return struct.unpack("!I", message[16:20])[0]


def exchange(sock, peer):
    """The application's bytes come right behind the handshake's."""
    sock.sendall(b"to the peer")
    assert peer.recv(11) == b"to the peer"
    peer.send(b"to the module")
    got = b""
    while len(got) < 13:
        got += sock.recv(100) or sys.exit("end of stream")
    assert got == b"to the module", got


def expect_tcp(sock, reason, diagnosis=0):
    got = info(sock)
    assert got == (MODE_TCP, reason, diagnosis), tuple(map(hex, got))


def listening(options=()):
    """A listener of the module, with these options of TCP."""
    listener = smc()
    for name in options:
        listener.setsockopt(socket.IPPROTO_TCP, name, 1)
    listener.bind((MODULE, 0))
    listener.listen()
    return listener


def from_peer():
    """A connection of the peer to a listener: both ends, not accepted yet."""
    listener = listening()
    peer = Tcp(7001)
    peer.connect(listener.getsockname()[1])
    return listener, peer


def to_peer(port, options=()):
    """A connection to the peer: both ends, TCP connected; with these options of TCP."""
    peer = Tcp(port)
    sock = smc()
    for name in options:
        sock.setsockopt(socket.IPPROTO_TCP, name, 1)
    sock.setblocking(False)
    sock.connect_ex((PEER, port))
    peer.accept()
    sock.settimeout(20)
    return sock, peer


def connected(sock):
    enter(SERVER)
    assert select.select([], [sock], [], 20)[1], "the connect does not end"
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def clc_server_without_common_eid_declines():
    listener, peer = from_peer()
    peer.send(proposal(OTHER))
    assert diagnosis_of(peer.message(DECLINE)) == NOUEID
    sock, _ = listener.accept()
    sock.settimeout(20)
    expect_tcp(sock, NOUEID)
    exchange(sock, peer)
    peer.close()


def clc_server_with_common_eid_accepts():
    listener, peer = from_peer()
    peer.send(proposal(OURS))
    answer = peer.message(ACCEPT)
    assert eid(OURS) in answer, answer.hex()
    # The peer has changed its mind.
    peer.send(decline(0x03030001))
    sock, _ = listener.accept()
    sock.settimeout(20)
    expect_tcp(sock, PEERDECL, 0x03030001)
    exchange(sock, peer)
    peer.close()


def clc_server_declines_version_1_in_its_form():
    listener, peer = from_peer()
    peer.send(proposal_v1())
    answer = peer.message(DECLINE)
    assert len(answer) == 28 and answer[7] >> 4 == 1, answer.hex()
    assert diagnosis_of(answer) == VERSMISMAT
    sock, _ = listener.accept()
    sock.settimeout(20)
    expect_tcp(sock, VERSMISMAT)
    exchange(sock, peer)
    peer.close()


def clc_silent_peers_hold_up_nobody():
    listener = listening()
    port = listener.getsockname()[1]
    for number in range(8):
        silent, peer = Tcp(7100 + number), Tcp(7200 + number)
        silent.connect(port)
        peer.connect(port)
        peer.send(proposal(OTHER))
        assert diagnosis_of(peer.message(DECLINE)) == NOUEID
        assert not silent.there() & (FIN | RST), "it was answered when the silent one was given up"
        silent.close()
        peer.close()
    listener.close()


def clc_more_silent_peers_than_the_backlog_hold_up_nobody():
    listener = listening()
    # Two have their handshake, and two more wait in TCP's queue, the other peer among them.
    listener.listen(1)
    port = listener.getsockname()[1]
    silent = [Tcp(7700 + number) for number in range(3)]
    for one in silent:
        one.connect(port)
    peer = Tcp(7800)
    peer.connect(port)
    peer.send(proposal(OTHER))
    assert diagnosis_of(peer.message(DECLINE)) == NOUEID
    for one in silent:
        assert not one.there() & (FIN | RST), "it was answered when the silent ones were given up"
        one.close()
    peer.close()
    listener.close()


def is_held_back(first, second, want):
    """Whether the first one's message is not there when that of the second one comes, which was made later."""
    second.message(want)
    first.there()
    held = not first.data
    first.message(want)
    return held


def clc_client_with_cork_does_not_wait():
    held = []
    for number in range(5):
        corked, first = to_peer(7300 + number, [socket.TCP_CORK])
        plain, second = to_peer(7400 + number)
        held.append(is_held_back(first, second, PROPOSAL))
        for sock, peer in (corked, first), (plain, second):
            peer.send(decline(NOUEID))
            connected(sock)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == (sock is corked)
        first.close()
        second.close()
    assert not all(held), "each Proposal was held back"


def clc_server_with_cork_does_not_wait():
    held = []
    for number in range(5):
        corked, plain = listening([socket.TCP_CORK]), listening()
        first, second = Tcp(7500 + number), Tcp(7600 + number)
        for listener, peer in (corked, first), (plain, second):
            peer.connect(listener.getsockname()[1])
            peer.send(proposal(OTHER))
        held.append(is_held_back(first, second, DECLINE))
        for listener, peer in (corked, first), (plain, second):
            sock, _ = listener.accept()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == (listener is corked)
            peer.close()
    assert not all(held), "each answer was held back"


def clc_fallback_acknowledges_at_once():
    """Else small data of the peer, who may wait for that, would be delayed, as it is not on a new connection of TCP."""
    late = {"decline": [], "data": []}
    for number in range(6):
        listener = listening()
        peer, plain = Tcp(7700 + 2 * number), Tcp(7701 + 2 * number)
        peer.connect(listener.getsockname()[1])
        if number % 2:
            peer.send(proposal(OURS))
            peer.message(ACCEPT)
            peer.there()
            peer.send(decline(NOUEID))
            sock, _ = listener.accept()
            late["decline"].append(not peer.there() & ACK)
            if late["decline"][-1]:
                peer.take()
        else:
            peer.send(proposal(OTHER))
            peer.message(DECLINE)
            sock, _ = listener.accept()
        plain.connect(listener.getsockname()[1], asks=False)
        peer.there()
        peer.send(b"x")
        plain.send(b"y")
        plain.take()
        late["data"].append(not peer.there() & ACK)
        peer.close()
        plain.close()
        sock.close()
    assert not any(all(rounds) for rounds in late.values()), late


def clc_client_without_common_eid_declines():
    sock, peer = to_peer(7002)
    offer = peer.message(PROPOSAL)
    assert eid(OURS) in offer, offer.hex()
    peer.send(accept(OTHER))
    assert diagnosis_of(peer.message(DECLINE)) == NOUEID
    connected(sock)
    expect_tcp(sock, NOUEID)
    exchange(sock, peer)
    peer.close()


def clc_client_obeys_decline():
    sock, peer = to_peer(7003)
    peer.message(PROPOSAL)
    peer.send(decline(NOUEID))
    connected(sock)
    expect_tcp(sock, PEERDECL, NOUEID)
    exchange(sock, peer)
    peer.close()


def clc_converted_client_outlives_an_echo():
    """A peer that sends back any option and knows nothing of SMC: the program does not notice."""
    enter(SERVER)
    with open("/proc/sys/net/smc/tcp2smc", "w", encoding="ascii") as f:
        f.write("1")
    sock = socket.socket()
    sock.setblocking(False)
    peer = Tcp(7004)
    sock.connect_ex((PEER, 7004))
    peer.accept()
    peer.message(PROPOSAL)
    peer.send(b"SSH-2.0-Nobody_1.0\r\n")
    # Its connection is reset, and the next one does not ask.
    for _ in range(10):
        flags, _ = peer.take()
        if flags & RST:
            break
    peer.peer_port, peer.data = 0, b""
    peer.accept(asked=False)
    sock.settimeout(20)
    connected(sock)
    expect_tcp(sock, PEERNOSMC)
    exchange(sock, peer)
    peer.close()
    # It is remembered.
    again = socket.socket()
    again.setblocking(False)
    peer = Tcp(7004)
    again.connect_ex((PEER, 7004))
    peer.accept(asked=False)
    again.settimeout(20)
    connected(again)
    exchange(again, peer)
    expect_tcp(again, PEERNOSMC)
    peer.close()
    enter(SERVER)
    with open("/proc/sys/net/smc/tcp2smc", "w", encoding="ascii") as f:
        f.write("0")


if __name__ == "__main__":
    sys.exit(run(globals(), "clc_"))
