# SPDX-License-Identifier: GPL-2.0
"""What is measured and how it is called: the rows of the table."""

# What a measurement is done with.
TCP, C, OURS, VERBS = "tcp", "c", "ours", "verbs"
IMPLEMENTATIONS = [TCP, C, OURS, VERBS]
NAMES = {TCP: "TCP", C: "C SMC-R", OURS: "smc-rs", VERBS: "raw verbs"}

# Measurements that follow each other with the same module loaded.
GROUPS = [
    ["bulk1", "bulk4", "rr64", "rr1k"],
    ["connect", "first"],
    ["redis-set", "redis-get", "nginx-small", "nginx-large", "nginx-each"],
    ["memory"],
]
MEASUREMENTS = [name for group in GROUPS for name in group]

# Row: measurement, title, unit, whether more is better.
ROWS = {
    "bulk1": ("bulk1", "throughput, 1 stream", "Mbit/s", True),
    "bulk4": ("bulk4", "throughput, 4 streams", "Mbit/s", True),
    "bulk1.cpu": ("bulk1", "processor time, 1 stream", "ms/MiB", False),
    "bulk1.switches": ("bulk1", "switches between tasks, 1 stream", "per MiB", False),
    "bulk1.packets": ("bulk1", "packets on the wire, 1 stream", "per MiB", False),
    "rr64.mean": ("rr64", "64 B there and back, mean", "µs", False),
    "rr64.p50": ("rr64", "64 B there and back, p50", "µs", False),
    "rr64.p99": ("rr64", "64 B there and back, p99", "µs", False),
    "rr64.cpu": ("rr64", "processor time, 64 B message", "µs", False),
    "rr64.switches": ("rr64", "switches between tasks, 64 B message", "each", False),
    "rr64.packets": ("rr64", "packets on the wire, 64 B message", "each", False),
    "rr1k.mean": ("rr1k", "1 KiB there and back, mean", "µs", False),
    "rr1k.p50": ("rr1k", "1 KiB there and back, p50", "µs", False),
    "rr1k.p99": ("rr1k", "1 KiB there and back, p99", "µs", False),
    "rr1k.cpu": ("rr1k", "processor time, 1 KiB message", "µs", False),
    "rr1k.switches": ("rr1k", "switches between tasks, 1 KiB message", "each", False),
    "rr1k.packets": ("rr1k", "packets on the wire, 1 KiB message", "each", False),
    "connect.rate": ("connect", "connect, 1 B each way, close", "per s", True),
    "connect.p50": ("connect", "connect(), link group reused", "µs", False),
    "connect.cpu": ("connect", "processor time, one connection", "µs", False),
    "connect.switches": ("connect", "switches between tasks, one connection", "each", False),
    "connect.packets": ("connect", "packets on the wire, one connection", "each", False),
    "first.p50": ("first", "connect(), first contact", "µs", False),
    "redis-set": ("redis-set", "redis SET, 10 clients", "per s", True),
    "redis-get": ("redis-get", "redis GET, 10 clients", "per s", True),
    "nginx-small": ("nginx-small", "nginx 1 KiB, 4 connections", "per s", True),
    "nginx-large": ("nginx-large", "nginx 128 KiB, 4 connections", "per s", True),
    "nginx-each": ("nginx-each", "nginx 1 KiB, a connection each", "per s", True),
    "memory.100": ("memory", "memory of a connection, of 100", "KiB", False),
    "memory.1000": ("memory", "memory of a connection, of 1000", "KiB", False),
}

# What raw verbs are measured with.
VERBS_MEASUREMENTS = ["bulk1", "bulk4", "rr64", "rr1k"]

# Programs of the lab that a measurement needs.
PROGRAMS = {
    "bulk1": ["iperf3", "ib_write_bw"],
    "bulk4": ["iperf3", "ib_write_bw"],
    "rr64": ["ib_send_lat"],
    "rr1k": ["ib_send_lat"],
    "redis-set": ["redis-server", "redis-benchmark"],
    "redis-get": ["redis-server", "redis-benchmark"],
    "nginx-small": ["nginx", "wrk"],
    "nginx-large": ["nginx", "wrk"],
    "nginx-each": ["nginx", "wrk"],
}
