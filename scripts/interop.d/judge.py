#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reads a capture of two SMC-R peers by tshark and holds it against the protocol.

tshark is the independent reader of the bytes; the rules here are those that a
dissector does not check: answers that are due, sequence numbers, fixed values.
"""

import argparse
import collections
import subprocess
import sys

CLC = {1: "Proposal", 2: "Accept", 3: "Confirm", 4: "Decline"}
LLC = {
    0x01: "Confirm Link", 0x02: "Add Link", 0x03: "Add Link Continuation", 0x04: "Delete Link",
    0x05: "Request Add Link", 0x06: "Confirm Rkey", 0x07: "Test Link", 0x08: "Confirm Rkey Continuation",
    0x09: "Delete Rkey",
}
CDC = 0xFE
# Bytes before the message in a datagram, and in the message to its flags.
BTH = 12
FLAGS = 3
ANSWER = 0x80
REJECTED = 0x40
# In an ADD LINK of version 2: bytes to the keys, with their number before them, and of each key.
ADD_LINK_V2 = b"\x22"
KEYS = 72
KEY_LENGTH = 16
# In a CDC message: bytes to the flags of the producer, and the one that says that the connection has changed links.
PRODUCER_FLAGS = 24
FAILOVER = 0x08
# Those that may stand alone: C does not answer the first one, and the second one is answered by the first.
ALONE = ("Delete Link", "Request Add Link")
# RFC 7609, section 3.5: what is not answered within this is taken as lost.
DUE_SECONDS = 2.0

FIELDS = [
    "frame.number", "frame.time_epoch", "ip.src", "ip.dst", "_ws.malformed", "_ws.expert.severity",
    "tcp.len", "smc.clc_msg", "smc.llc_msg",
    "infiniband.bth.opcode", "infiniband.bth.se", "infiniband.bth.destqp", "infiniband.bth.psn", "udp.payload",
    "smc.rmbe.ctrl.alert.token", "smc.rmbe.ctrl.seqno",
    "smc.proposal.smc.version", "smc.proposal.smc.version.relnum", "smc.proposal.smc.type",
    "smc.proposal.smcv2.type", "smc.proposal.eid.count", "smc.proposal.eid",
    "smc.accept.first.contact", "smc.accept.eid", "smc.accept.peer.host.name",
    "smc.confirm.first.contact", "smc.confirm.eid", "smc.confirm.gid.list.entry_count",
]
# What a SEND is among the opcodes of a reliable connection.
SEND_ONLY = 4


def read(capture):
    """Yields a dictionary of the named fields for every frame."""
    command = ["tshark", "-n", "-o", "tcp.try_heuristic_first:TRUE", "-r", capture,
               "-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]
    for field in FIELDS:
        command += ["-e", field]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        values = line.split("|")
        if len(values) != len(FIELDS):
            sys.exit(f"judge: {len(values)} values for {len(FIELDS)} fields: {line}")
        yield {f: v for f, v in zip(FIELDS, values) if v != ""}


def number(frame, field):
    """The value of a number or flag, None if the frame has no such field."""
    text = frame.get(field)
    if text is None:
        return None
    if text in ("True", "False"):
        return int(text == "True")
    return int(text, 0)


class Judge:
    """Keeps what was seen and what was wrong."""

    def __init__(self, ours, eid):
        self.ours = frozenset(ours)
        self.first = ours[0]
        self.eid = eid
        self.bad = []
        self.seen = collections.Counter()
        # (asker, link, kind) -> times of unanswered requests.
        self.asked = collections.defaultdict(collections.deque)
        # (sender, ends, queue pair it sends to) -> link. The links between the same ends are told apart by who has
        # confirmed them: a Confirm Link and its answer name both queue pairs.
        self.links = {}
        self.confirming = {}
        self.longest = collections.defaultdict(float)
        # What was asked on a link before its end may have been left unanswered. When a link was ended last by a message,
        # and (sender, link) -> when it was last heard of.
        self.deleted = -1.0
        self.heard = {}
        # What the device has sent again is not new: the way, and the packet sequence number.
        self.packets = set()
        # The way and the token -> last sequence number.
        self.sequence = {}
        self.end = 0.0

    def side(self, frame):
        return "ours" if frame.get("ip.src") in self.ours else "peer"

    @staticmethod
    def ends(frame):
        """The two ends of a link."""
        return frozenset((frame["ip.src"], frame["ip.dst"]))

    def way(self, frame):
        """Who sends to which queue pair."""
        return self.side(frame), self.ends(frame), frame["infiniband.bth.destqp"]

    def link(self, frame):
        """The link of a SEND; until it is confirmed all that is known are its ends."""
        return self.links.get(self.way(frame), self.ends(frame))

    def note_link(self, frame, answer):
        """A link is confirmed."""
        ends = self.ends(frame)
        if not answer:
            self.confirming[ends] = ends, frame["frame.number"]
        self.links[self.way(frame)] = self.confirming.get(ends, ends)

    def wrong(self, frame, text):
        self.bad.append(f"frame {frame['frame.number']} from {self.side(frame)}: {text}")

    def look(self, frame):
        self.end = float(frame["frame.time_epoch"])
        # The C implementation writes lengths of LLC messages in its own byte order, which tshark does not take.
        if "_ws.malformed" in frame and self.side(frame) == "ours" and not self.has_keys(frame):
            self.wrong(frame, "malformed")
        if number(frame, "infiniband.bth.opcode") == SEND_ONLY:
            packet = self.way(frame), frame["infiniband.bth.psn"]
            if packet not in self.packets:
                self.packets.add(packet)
                self.look_at_send(frame)
                self.heard[self.side(frame), self.link(frame)] = self.end
        kind = number(frame, "smc.clc_msg")
        if kind is not None:
            self.look_at_clc(frame, CLC.get(kind, f"CLC {kind}"))

    def look_at_send(self, frame):
        message = bytes.fromhex(frame["udp.payload"])[BTH:]
        kind = message[0]
        side = self.side(frame)
        if side == "ours" and number(frame, "smc.llc_msg") != kind:
            self.wrong(frame, "a SEND that tshark does not take for a message of SMC")
        if not number(frame, "infiniband.bth.se"):
            self.wrong(frame, "a SEND that does not ask for an event")
        if kind == CDC:
            self.look_at_cdc(frame, message)
            return
        name = LLC.get(kind & 0x0F if kind & 0xF0 == 0x20 else kind)
        if name is None:
            self.wrong(frame, f"unknown message {kind:#x}")
            return
        answer = bool(message[FLAGS] & ANSWER)
        if name == "Confirm Link":
            self.note_link(frame, answer)
        link = self.link(frame)
        refused = answer and name == "Add Link" and bool(message[FLAGS] & REJECTED)
        self.seen[side, name + (" refused" if refused else " answer" if answer else "")] += 1
        if name == "Add Link" and side == "ours":
            self.look_at_keys(frame, message)
        if name == "Delete Link":
            self.deleted = self.end
        if name in ALONE:
            return
        if not answer:
            self.asked[side, link, name].append((self.end, frame["frame.number"]))
            return
        asker = "peer" if side == "ours" else "ours"
        if not self.asked[asker, link, name]:
            # C says it twice that it wants no further link.
            if side == "ours" or not refused:
                self.wrong(frame, f"an answer to no {name}")
            return
        took = self.end - self.asked[asker, link, name].popleft()[0]
        self.longest[side] = max(self.longest[side], took)
        if took > DUE_SECONDS:
            self.wrong(frame, f"{name} answered after {took:.1f} s")

    @staticmethod
    def has_keys(frame):
        """Whether it is an ADD LINK with keys. Their number is in the order in which the C implementation reads it, which
        is not that of tshark; look_at_keys() looks at it."""
        message = bytes.fromhex(frame.get("udp.payload", ""))[BTH:]
        return message[:1] == ADD_LINK_V2 and int.from_bytes(message[1:3], "big") > KEYS

    def look_at_keys(self, frame, message):
        """Whether an offer of ours, or its acceptance, has as many keys as it says."""
        length = int.from_bytes(message[1:3], "big")
        if length < KEYS:
            return
        count = int.from_bytes(message[KEYS - 2:KEYS], sys.byteorder)
        if count * KEY_LENGTH != length - KEYS:
            self.wrong(frame, f"an Add Link of {length} bytes for {count} keys")
        if count:
            self.seen["ours", "Add Link with keys"] += 1

    def look_at_cdc(self, frame, message):
        side = self.side(frame)
        self.seen[side, "CDC"] += 1
        key = self.way(frame), frame["smc.rmbe.ctrl.alert.token"]
        now, before = number(frame, "smc.rmbe.ctrl.seqno"), self.sequence.get(key)
        if message[PRODUCER_FLAGS] & FAILOVER:
            # The first one over another link repeats the number of the last one that is known to have come.
            self.seen[side, "CDC failover validation"] += 1
            self.sequence.pop(key, None)
            return
        self.sequence[key] = now
        # A token returns with another connection, which starts at one (or zero).
        if before is not None and now not in ((before + 1) & 0xFFFF, 0, 1):
            self.wrong(frame, f"CDC sequence number {now} after {before}")

    def look_at_clc(self, frame, name):
        side = self.side(frame)
        self.seen[side, name] += 1
        if side == "peer":
            return

        def must(field, want):
            got = frame.get(field)
            if got is not None and field.endswith("eid"):
                got = got.rstrip()
            elif got is not None:
                got = number(frame, field)
            if got != want:
                self.wrong(frame, f"{name}: {field} is {got}, not {want}")

        if name == "Proposal":
            must("smc.proposal.smc.version", 2)
            must("smc.proposal.smc.version.relnum", 1)
            must("smc.proposal.smc.type", 2)  # nothing of version 1
            must("smc.proposal.smcv2.type", 0)  # SMC-R
            must("smc.proposal.eid.count", 1)
            must("smc.proposal.eid", self.eid)
        elif name == "Accept":
            must("smc.accept.eid", self.eid)
        elif name == "Confirm":
            must("smc.confirm.eid", self.eid)
            if number(frame, "smc.confirm.first.contact"):
                # More than one where it has more than one device, for another link.
                count = number(frame, "smc.confirm.gid.list.entry_count")
                if frame["ip.src"] == self.first or not count:
                    must("smc.confirm.gid.list.entry_count", 1)

    def never_answered(self, side, link, name, times):
        other = "peer" if side == "ours" else "ours"
        for time, frame in times:
            # What was asked at the very end cannot have been answered.
            if time > self.deleted and self.heard.get((other, link), 0) > time and self.end - time > DUE_SECONDS:
                self.bad.append(f"frame {frame} from {side}: {name} was never answered")

    def finish(self, require):
        for key, times in self.asked.items():
            self.never_answered(*key, times)
        for side in ("ours", "peer"):
            for name in require:
                if not self.seen[side, name]:
                    self.bad.append(f"no {name} from {side} was captured")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 all well, 1 not, 2 wrong usage.")
    parser.add_argument("--eid", default="SMC-RS.DEFAULT", help="the EID that both have (default %(default)s)")
    parser.add_argument("--require", default="", metavar="NAME,...",
                        help="kinds of messages that both sides must have sent")
    parser.add_argument("capture", help="file with what crossed the wire")
    parser.add_argument("ours", nargs="+", help="addresses of the side whose values are known; from "
                        "the first one on it has one RDMA device")
    args = parser.parse_args()
    judge = Judge(args.ours, args.eid)
    for frame in read(args.capture):
        judge.look(frame)
    judge.finish([name for name in args.require.split(",") if name])
    names = sorted({name for _, name in judge.seen})
    print(f"{'message':<28} {'ours':>6} {'peer':>6}")
    for name in names:
        print(f"{name:<28} {judge.seen['ours', name]:>6} {judge.seen['peer', name]:>6}")
    print("longest wait for an answer of LLC: "
          f"{judge.longest['ours'] * 1000:.0f} ms from ours, {judge.longest['peer'] * 1000:.0f} ms from the peer")
    for text in judge.bad:
        print(f"wrong: {text}")
    sys.exit(bool(judge.bad))


if __name__ == "__main__":
    main()
