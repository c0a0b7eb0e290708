#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0
"""The tracepoints of the system smc, through tracefs and bpftrace: one line of TAP for each case, no plan.

The arguments are those of netlink_cases.py, whose ways to talk to the module are used here.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import netlink_cases as netlink
from caserun import Skip, run
from netlink_cases import CLIENT, SERVER

TRACEFS = "/sys/kernel/tracing"
SLOW = int(os.environ.get("SMC_SLOW", "1"))
# Names and C types of the fields, as scripts for the C implementation know them.
FIELDS = {
    "smc_switch_to_fallback": ["const void * sk", "const void * clcsk", "u64 net_cookie", "int fallback_rsn"],
    "smc_tx_sendmsg": ["const void * smc", "u64 net_cookie", "size_t len", "__data_loc char[] name"],
    "smc_rx_recvmsg": ["const void * smc", "u64 net_cookie", "size_t len", "__data_loc char[] name"],
    "smcr_link_down": ["const void * lnk", "const void * lgr", "u64 net_cookie", "int state", "__data_loc char[] name",
                       "void * location"],
    "smc_conn_state": ["const void * conn", "u64 net_cookie", "u32 token", "u8 oldstate", "u8 newstate"],
}


def read(*path):
    with open(os.path.join(TRACEFS, *path), encoding="utf-8", errors="replace") as f:
        return f.read()


def write(text, *path):
    with open(os.path.join(TRACEFS, *path), "w", encoding="ascii") as f:
        f.write(text)


@contextlib.contextmanager
def traced(*names):
    """Traces these, in no other task's way; gives a function that returns what came: name and fields of each."""
    write("nop", "current_tracer")
    write("", "trace")
    for name in names:
        write("1", "events", "smc", name, "enable")

    def seen():
        found = []
        for line in read("trace").splitlines():
            match = re.search(r": (smc\w+): (.*)$", line)
            if match:
                found.append((match.group(1), dict(re.findall(r"(\w+)=(\S+)", match.group(2)))))
        return found

    try:
        yield seen
    finally:
        for name in names:
            write("0", "events", "smc", name, "enable")


def cookie(sock):
    return str(int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, netlink.SO_NETNS_COOKIE, 8), sys.byteorder))


def pointer(text):
    return re.fullmatch(r"[0-9a-f]{16}", text) and int(text, 16) != 0


def soon(look):
    """What look returns, once that is true."""
    end = time.monotonic() + 30 * SLOW
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def trace_fields_are_known():
    assert sorted(name for name in os.listdir(os.path.join(TRACEFS, "events", "smc")) if name.startswith("smc")) == \
        sorted(FIELDS)
    for name, wanted in FIELDS.items():
        fields = re.findall(r"^\tfield:(.*?)([\w]+)(\[\])?;", read("events", "smc", name, "format").split("\n\n")[1], re.M)
        found = [(kind.replace(" *", "*").replace("*", " *").strip() + array + " " + field) for kind, field, array in fields]
        normal = [re.sub(r"\s+", " ", text).replace("char name", "char[] name").replace("char[] [] name", "char[] name")
                  for text in found]
        assert normal == wanted, (name, normal)


def trace_fallback():
    netlink.system(SERVER).do(netlink.FLUSH_UEID)
    try:
        with traced("smc_switch_to_fallback") as seen:
            client, server, _ = netlink.pair()
            found = [about for name, about in seen() if name == "smc_switch_to_fallback"]
            assert len(found) == 2, found
            for about in found:
                assert set(about) == {"sk", "clcsk", "net", "fallback_rsn"}, about
                assert pointer(about["sk"]) and pointer(about["clcsk"]) and about["sk"] != about["clcsk"], about
            assert {(about["net"], int(about["fallback_rsn"])) for about in found} == \
                {(cookie(client), netlink.PEERDECL), (cookie(server), netlink.NOUEID)}, found
    finally:
        netlink.system(SERVER).do(netlink.ADD_UEID, netlink.attr(1, netlink.DEFAULT_EID))


def trace_messages():
    client, server, _ = netlink.pair()
    netlink.exchange(client, server)
    with traced("smc_tx_sendmsg", "smc_rx_recvmsg") as seen:
        client.sendall(b"x" * 1234)
        got = 0
        while got < 1234:
            got += len(server.recv(1000))
        sent = [about for name, about in seen() if name == "smc_tx_sendmsg"]
        received = [about for name, about in seen() if name == "smc_rx_recvmsg"]
    assert len(sent) == 1 and pointer(sent[0].pop("smc")), sent
    assert sent == [{"net": cookie(client), "len": "1234", "dev": CLIENT}], sent
    assert sum(int(about["len"]) for about in received) == 1234 and len(received) >= 2, received
    assert {(about["net"], about["dev"]) for about in received} == {(cookie(server), SERVER)}, received
    assert len({about["smc"] for about in received}) == 1


def trace_states():
    client, server, _ = netlink.pair()
    netlink.exchange(client, server)
    token = [str(int.from_bytes(netlink.row_of(sock, where).attrs[1][:4], sys.byteorder))
             for sock, where in ((client, CLIENT), (server, SERVER))]
    with traced("smc_conn_state") as seen:
        client.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
        found = soon(lambda: (lambda all_of: all_of if len(all_of) >= 2 else None)([about for _, about in seen()]))
    steps = {(about["net"], about["token"], about["oldstate"], about["newstate"]) for about in found}
    assert (cookie(client), token[0], "1", "20") in steps, steps
    assert (cookie(server), token[1], "1", "22") in steps, steps


def trace_link_down():
    wires = netlink.SecondDevices()
    with wires as second:
        wires.renew()
        listening = netlink.events(CLIENT)
        client, server, _ = netlink.pair()
        netlink.exchange(client, server)
        # Two links.
        assert [netlink.told(listening)[0] for _ in range(3)] == \
            [netlink.EVENT_LGR_UP, netlink.EVENT_LINK_UP, netlink.EVENT_LINK_UP]
        with traced("smcr_link_down") as seen:
            subprocess.run(["rdma", "link", "delete", second[CLIENT]], check=True)
            found = soon(lambda: [about for _, about in seen() if (about["net"], about["dev"]) == (cookie(client), second[CLIENT])])
        # Another group that lingers may have had a link there as well.
        assert len({about["lnk"] for about in found}) == len(found), found
        for about in found:
            assert pointer(about["lnk"]) and pointer(about["lgr"]), about
            assert (about["state"], about["dev"]) == ("3", second[CLIENT]), about
            assert "+0x" in about["location"], about


def trace_by_bpftrace():
    if not shutil.which("bpftrace"):
        raise Skip("there is no bpftrace")
    client, server, _ = netlink.pair()
    netlink.exchange(client, server)
    # Debian's bpftrace reads the strings of no tracepoint of this kernel.
    program = ('tracepoint:smc:smc_tx_sendmsg { printf("%s %d %llu %d\\n", comm, args.len, args.net_cookie, '
               'args.smc != 0); exit(); } BEGIN { printf("ready\\n"); }')
    with subprocess.Popen(["bpftrace", "-e", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            lines = []
            for line in tracer.stdout:
                if line.strip() == "ready":
                    # It has attached when it begins.
                    client.sendall(b"y" * 77)
                    assert server.recv(100) == b"y" * 77
                elif " 77 " in line:
                    lines.append(line.strip())
                    break
            assert len(lines) == 1 and lines[0].split()[-3:] == ["77", cookie(client), "1"], lines
        finally:
            tracer.kill()


if __name__ == "__main__":
    sys.exit(run(globals(), "trace_"))
