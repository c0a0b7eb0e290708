#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""SMC-R version 1: one line of TAP for each case, no plan.

The arguments are those of netlink_cases.py, whose ways to talk to the module are used here, and whose namespaces have
one RDMA device each. Cases that begin with off_ need the module as it is, those with v1_ need one that was loaded with
v1_over_v2_gids=1; the variable SMC_V1 says which are meant. The peer that is made by hand, from clc_cases.py, is the
second namespace.
"""

import contextlib
import ctypes
import hashlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import clc_cases as handmade
import netlink_cases as netlink
from caserun import Skip, enter, run
from netlink_cases import CLIENT, CLIENT_IP, MODE_SMC, MODE_TCP, SERVER, SERVER_IP, inside

handmade.MODULE, handmade.PEER, handmade.NETWORK = CLIENT_IP, SERVER_IP, "10.77.0.0"

NOUEID, DIFFPREFIX, VERSMISMAT, PEERDECL = 0x03030008, 0x03070000, 0x030C0000, 0x05000000
# Kinds of LLC messages.
CONFIRM_LINK, ADD_LINK, ADD_LINK_CONT, DELETE_LINK, CONFIRM_RKEY, TEST_LINK, DELETE_RKEY = 1, 2, 3, 4, 6, 7, 9
RESPONSE, REJECT = 0x80, 0x40
SYMMETRIC = 2
SO_ATTACH_FILTER = 26


class Known:
    """What a socket says of itself."""

    def __init__(self, sock):
        numbers = struct.unpack("16I2Q2I64s", sock.getsockopt(netlink.SOL_SMC, netlink.SMC_RS_INFO, 152))
        self.mode, self.version, self.release, self.group = numbers[1], numbers[5], numbers[6], numbers[7]
        self.first_contact = numbers[11]


def is_v1(*socks):
    for sock in socks:
        known = Known(sock)
        assert (known.mode, known.version, known.release) == (MODE_SMC, 1, 0), vars(known)


@contextlib.contextmanager
def without_ids(*namespaces):
    """Version 2 is off in some namespaces, for a while."""
    for namespace in namespaces:
        netlink.system(namespace).do(netlink.FLUSH_UEID)
    try:
        yield
    finally:
        for namespace in namespaces:
            netlink.system(namespace).do(netlink.FLUSH_UEID)
            netlink.system(namespace).do(netlink.ADD_UEID, netlink.attr(1, netlink.DEFAULT_EID))


@contextlib.contextmanager
def silent():
    """The kernel of the second namespace says nothing by TCP: somebody else does."""
    rules = ("add table ip smcv; add chain ip smcv in { type filter hook prerouting priority -300; }; "
             "add rule ip smcv in meta l4proto tcp drop")
    subprocess.run(["ip", "netns", "exec", SERVER, "nft", rules], check=True)
    try:
        yield
    finally:
        inside(SERVER, "nft delete table ip smcv")


def set_to(namespace, name, value):
    enter(namespace)
    with open(f"/proc/sys/net/smc/{name}", "w", encoding="ascii") as f:
        f.write(str(value))


def until(what, seconds=30):
    """Waits for something to be true, and returns that."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, f"line {what.__code__.co_firstlineno} does not come true"
        time.sleep(0.1)


class Tap:
    """Hears the LLC messages of the ordinary length on an interface of the first namespace."""

    # Those of an IP packet of 88 bytes whose RDMA payload does not begin as a CDC message does.
    FILTER = [(0x28, 0, 0, 16), (0x15, 0, 3, 88), (0x30, 0, 0, 54), (0x15, 1, 0, 0xFE), (6, 0, 0, 0xFFFF), (6, 0, 0, 0)]

    def __init__(self, interface="veth0"):
        enter(CLIENT)
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in self.FILTER))
        # What goes out is only seen by those who want everything.
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        program = struct.pack("HxxxxxxP", len(self.FILTER), ctypes.addressof(code))
        self.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        self.sock.bind((interface, 0))
        self.heard = []

    def messages(self):
        """All so far: whether the server sent it, and its bytes. Twice is once."""
        while select.select([self.sock], [], [], 0)[0]:
            packet = self.sock.recv(65536)
            if packet[12:14] != b"\x08\0" or packet[23] != 17 or struct.unpack("!H", packet[36:38])[0] != 4791 or packet[42] & 0x1F not in (4, 5):
                continue
            item = packet[47:54], packet[26:30] == socket.inet_aton(SERVER_IP), packet[54:98]
            # A packet that is sent again has the same queue pair and number.
            if item not in self.heard:
                self.heard.append(item)
        return [(server, message) for _, server, message in self.heard]

    def of(self, kind, server=None, response=None):
        """Those of a kind, and of a side."""
        return [m for by, m in self.messages() if m[0] == kind and server in (None, by)
                and response in (None, bool(m[3] & RESPONSE))]

    def all_are_v1(self):
        found = self.messages()
        assert found and all(m[0] <= DELETE_RKEY and m[1] == 44 for _, m in found), [m.hex() for _, m in found]

    def close(self):
        self.sock.close()


def transfer(one, other, size=1 << 19):
    """Both directions at once, compared by their hashes."""
    failures = []

    def send(sock, data):
        try:
            sock.sendall(data)
        except OSError as error:
            failures.append(error)

    def receive(sock, want):
        digest, left = hashlib.sha256(), size
        try:
            while left:
                data = sock.recv(min(left, 1 << 16))
                if not data:
                    break
                digest.update(data)
                left -= len(data)
        except OSError as error:
            failures.append(error)
        if digest.digest() != want:
            failures.append(f"{left} bytes are missing, or others are wrong")

    threads = []
    for a, b in ((one, other), (other, one)):
        data = os.urandom(size)
        want = hashlib.sha256(data).digest()
        threads += [threading.Thread(target=send, args=(a, data)), threading.Thread(target=receive, args=(b, want))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def close(*pairs):
    for some in pairs:
        for sock in some:
            sock.close()


def no_groups():
    return not any(netlink.link_groups(name) for name in (CLIENT, SERVER))


def group_of(sock, namespace):
    """The attributes of a socket's link group, and of its links."""
    return netlink.link_groups(namespace)[Known(sock).group]


def renew():
    """All devices go and come again, so that no link group is left."""
    for name in (CLIENT, SERVER):
        netlink.new_device(name, name)
    until(no_groups)


def other_subnet(namespaces):
    """A connection between addresses of the same network whose prefixes differ in their length."""
    for namespace, address in zip(namespaces, ("10.79.0.1/24", "10.79.0.2/25")):
        subprocess.run(["ip", "-n", namespace, "addr", "replace", address, "dev", "veth0"], check=True)
    enter(SERVER)
    listener = socket.socket(proto=netlink.IPPROTO_SMC)
    listener.bind(("10.79.0.2", 0))
    listener.listen()
    enter(CLIENT)
    client = socket.socket(proto=netlink.IPPROTO_SMC)
    client.settimeout(60)
    client.bind(("10.79.0.1", 0))
    client.connect(listener.getsockname())
    return client, listener.accept()[0], listener


def off_a_proposal_is_of_version_2_alone():
    with silent():
        sock, peer = handmade.to_peer(7101)
        offer = peer.message(handmade.PROPOSAL)
        assert offer[7] == 0x22 and not any(offer[16:40]), offer.hex()
        peer.send(handmade.decline(NOUEID))
        handmade.connected(sock)
        handmade.exchange(sock, peer)
        peer.close()


def off_without_an_id_nothing_is_offered():
    with without_ids(CLIENT):
        some = netlink.pair()
        assert netlink.info(some[0]) == (MODE_TCP, NOUEID, 0), netlink.info(some[0])
        netlink.exchange(*some[:2])
        close(some)


def off_a_proposal_of_version_1_is_declined():
    with silent():
        listener, peer = handmade.from_peer()
        peer.send(handmade.proposal_v1())
        answer = peer.message(handmade.DECLINE)
        assert len(answer) == 28 and handmade.diagnosis_of(answer) == VERSMISMAT, answer.hex()
        listener.accept()[0].close()
        peer.close()


def v1_both_versions_are_offered():
    with silent():
        sock, peer = handmade.to_peer(7102)
        offer = peer.message(handmade.PROPOSAL)
        mac = handmade.mac_of(CLIENT)
        gid = bytes(10) + b"\xff\xff" + socket.inet_aton(CLIENT_IP)
        assert offer[7] == 0x20 and offer[16:40] == gid + mac + b"\0\x28", offer.hex()
        # The extension of version 2 lies behind the subnet.
        assert offer[50:52] == b"\0\x24" and offer[80:88] == bytes.fromhex("0A4D0000 18 0000 00"), offer.hex()
        peer.send(handmade.decline(NOUEID))
        handmade.connected(sock)
        handmade.exchange(sock, peer)
        peer.close()


def v1_version_2_is_chosen_where_both_have_it():
    some = netlink.pair()
    for sock in some[:2]:
        assert (Known(sock).mode, Known(sock).version) == (MODE_SMC, 2), vars(Known(sock))
    transfer(*some[:2])
    close(some)
    renew()


def v1_a_client_without_ids_offers_version_1_alone():
    with without_ids(CLIENT), silent():
        sock, peer = handmade.to_peer(7103)
        offer = peer.message(handmade.PROPOSAL)
        assert len(offer) == 52 and offer[7] == 0x10 and offer[38:40] == b"\0\0", offer.hex()
        assert offer[40:48] == bytes.fromhex("0A4D0000 18 0000 00"), offer.hex()
        # A server that can do version 2 alone, and says so without having been asked.
        peer.send(handmade.accept(handmade.OURS))
        answer = peer.message(handmade.DECLINE)
        assert len(answer) == 44 and handmade.diagnosis_of(answer) == VERSMISMAT, answer.hex()
        handmade.connected(sock)
        handmade.expect_tcp(sock, VERSMISMAT)
        handmade.exchange(sock, peer)
        peer.close()


def v1_a_server_without_ids_declines_version_2_alone():
    with without_ids(CLIENT), silent():
        listener, peer = handmade.from_peer()
        peer.send(handmade.proposal(handmade.OURS))
        answer = peer.message(handmade.DECLINE)
        assert len(answer) == 44 and handmade.diagnosis_of(answer) == NOUEID, answer.hex()
        sock = listener.accept()[0]
        handmade.expect_tcp(sock, NOUEID)
        sock.close()
        peer.close()


def v1_a_plain_proposal_is_accepted():
    with silent():
        listener, peer = handmade.from_peer()
        peer.send(handmade.proposal_v1())
        answer = peer.message(handmade.ACCEPT)
        gid = bytes(10) + b"\xff\xff" + socket.inet_aton(CLIENT_IP)
        assert len(answer) == 68 and answer[7] == 0x18, answer.hex()
        assert answer[16:38] == gid + handmade.mac_of(CLIENT), answer.hex()
        peer.send(handmade.decline(0x03030001))
        sock = listener.accept()[0]
        handmade.expect_tcp(sock, PEERDECL, 0x03030001)
        handmade.exchange(sock, peer)
        sock.close()
        peer.close()


def v1_another_subnet_is_declined():
    with silent():
        listener, peer = handmade.from_peer()
        peer.send(handmade.proposal_v1(25))
        answer = peer.message(handmade.DECLINE)
        assert len(answer) == 28 and handmade.diagnosis_of(answer) == DIFFPREFIX, answer.hex()
        listener.accept()[0].close()
        peer.close()
    with without_ids(SERVER):
        some = other_subnet((CLIENT, SERVER))
        assert netlink.info(some[0]) == (MODE_TCP, PEERDECL, DIFFPREFIX), netlink.info(some[0])
        assert netlink.info(some[1]) == (MODE_TCP, DIFFPREFIX, 0), netlink.info(some[1])
        netlink.exchange(*some[:2])
        close(some)
    # Version 2 does not ask.
    some = other_subnet((CLIENT, SERVER))
    assert Known(some[0]).version == 2, vars(Known(some[0]))
    netlink.exchange(*some[:2])
    close(some)
    renew()


def v1_first_contact_reuse_and_transfer():
    before = {name: netlink.counters(name) for name in (CLIENT, SERVER)}
    tap = Tap()
    with without_ids(SERVER):
        one = netlink.pair()
        is_v1(*one[:2])
        transfer(*one[:2])
        two = netlink.pair()
        is_v1(*two[:2])
        transfer(*two[:2])
        for a, b in zip(one[:2], two[:2]):
            assert Known(a).group == Known(b).group and (Known(a).first_contact, Known(b).first_contact) == (1, 0)
        for sock, name in zip(one, (CLIENT, SERVER)):
            group, links = group_of(sock, name)
            # Nothing of version 2 is said of it.
            assert 7 not in group and 8 not in group and group[3] == b"\1" and len(links) == 1, group
        after = {name: netlink.counters(name) for name in (CLIENT, SERVER)}
        grown = [[after[name][kind] - before[name][kind] for kind in (7, 8, 9, 10)] for name in (CLIENT, SERVER)]
        assert grown == [[2, 0, 0, 0], [0, 0, 2, 0]], grown
        # By the family of IPv6 it is a group of its own, as its GIDs are others.
        six = by_ipv6()
        is_v1(*six[:2])
        transfer(*six[:2])
        assert Known(six[0]).group != Known(one[0]).group
    # Every exchange has its two messages, and the offer of a second link was refused: there is one device each.
    assert len(tap.of(CONFIRM_LINK)) == 2, tap.messages()
    asked, refused = until(lambda: tap.of(ADD_LINK, True, False)), until(lambda: tap.of(ADD_LINK, False, True))
    assert refused[0][3] & REJECT and refused[0][2] == 1, (asked, refused)
    # Both sides tell the key of their ring of the second connection.
    for server in (True, False):
        assert tap.of(CONFIRM_RKEY, server, False) and tap.of(CONFIRM_RKEY, not server, True), tap.messages()
    close(one, two, six)
    # The keys are withdrawn, a silent link is tested, and the group ends.
    until(lambda: tap.of(DELETE_RKEY, response=True))
    for name in (CLIENT, SERVER):
        set_to(name, "smcr_testlink_time", 1)
    until(lambda: tap.of(TEST_LINK, response=True))
    set_to(SERVER, "lgr_linger", 1)
    until(lambda: tap.of(DELETE_LINK, True))
    until(no_groups)
    tap.all_are_v1()
    tap.close()
    for name in (CLIENT, SERVER):
        set_to(name, "smcr_testlink_time", 30)
        set_to(name, "lgr_linger", 10)


def by_ipv6():
    enter(SERVER)
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, netlink.IPPROTO_SMC)
    listener.bind(("fd77::2", 0))
    listener.listen()
    enter(CLIENT)
    client = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, netlink.IPPROTO_SMC)
    client.settimeout(60)
    client.connect(listener.getsockname()[:2])
    server = listener.accept()[0]
    server.settimeout(60)
    return client, server, listener


def devices_of(sock, namespace):
    return {link[2].rstrip(b"\0").decode() for link in group_of(sock, namespace)[1]}


def symmetric(ends, second):
    """Both sides have a link on each of their devices."""
    for sock, name in ends:
        until(lambda s=sock, n=name: group_of(s, n)[0][3] == bytes([SYMMETRIC]))
        until(lambda s=sock, n=name: devices_of(s, n) == {n, second[n]})


def v1_second_link_with_the_keys_of_many_rings():
    if os.system("modprobe -q macvlan"):
        raise Skip("needs macvlan")
    tap = Tap()
    with without_ids(CLIENT):
        # A message has two keys: these need three.
        pairs = [netlink.pair() for _ in range(5)]
        for some in pairs:
            is_v1(*some[:2])
        assert not tap.of(ADD_LINK_CONT)
        ends = tuple(zip(pairs[0][:2], (CLIENT, SERVER)))
        with netlink.SecondDevices() as second:
            symmetric(ends, second)
            # The client's device came first: it says so, and may get a link from the only device of the server, which one
            # between the second devices replaces.
            wish = tap.of(ADD_LINK, False, False)[0]
            assert wish[28:36] == bytes(8) and wish[24:28] == socket.inet_aton("10.77.0.11"), wish.hex()
            # Requests of the server and answers of the client in turn, until both have told all.
            links = {link[1][0] for link in group_of(*ends[0])[1]}
            assert tap.of(ADD_LINK_CONT) and len(links) == 2, links
            for link in links:
                asked, told = ([m for m in tap.of(ADD_LINK_CONT, server, not server) if m[4] == link]
                               for server in (True, False))
                if link == 1:
                    # The first one: its keys came with the connections.
                    assert not asked and not told
                    continue
                assert len(asked) == len(told) >= 3, (len(asked), len(told))
                for messages in (asked, told):
                    left = [m[5] for m in messages]
                    assert left[0] >= 5 and left == [max(left[0] - 2 * n, 0) for n in range(len(left))], left
                    keys = {m[8 + 16 * n:12 + 16 * n] for m in messages for n in range(min(2, m[5]))}
                    assert len(keys) == left[0], (left, keys)
            failover(pairs, ends, second)
    tap.all_are_v1()
    tap.close()
    close(*pairs)
    renew()


def failover(pairs, ends, second):
    """The first link is lost with connections on both, in the middle of their data; then it comes back."""
    failures = []

    def carry(some):
        try:
            for _ in range(3):
                transfer(*some[:2])
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=carry, args=(some,)) for some in pairs]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    subprocess.run(["rdma", "link", "delete", CLIENT], check=True)
    for sock, name in ends:
        until(lambda s=sock, n=name: second[n] in devices_of(s, n) and CLIENT not in devices_of(s, n))
    for thread in threads:
        thread.join()
    assert not failures, failures
    inside(CLIENT, f"rdma link add {CLIENT} type rxe netdev veth0")
    symmetric(ends, second)
    for some in pairs:
        is_v1(*some[:2])
        netlink.exchange(*some[:2])


if __name__ == "__main__":
    sys.exit(run(globals(), {"off": "off_", "on": "v1_"}.get(os.environ.get("SMC_V1"), ("off_", "v1_"))))
