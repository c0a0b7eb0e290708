#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What plain.c says, in Python."""

import socket
import sys
import threading

TOTAL = 300000


def serve(host, port):
    listener = socket.create_server((host, port))
    print("ready", flush=True)
    conn, _ = listener.accept()
    with conn:
        while data := conn.recv(16384):
            conn.sendall(data)


def talk(host, port):
    sent = bytes((i * 31 + i // 251) & 0xFF for i in range(TOTAL))
    with socket.create_connection((host, port), timeout=60) as conn:
        writer = threading.Thread(target=conn.sendall, args=(sent,))
        writer.start()
        got = b""
        while len(got) < TOTAL:
            got += conn.recv(65536) or sys.exit("end of stream")
        writer.join()
        if got != sent:
            sys.exit("the echo differs")
        print("same", flush=True)
        sys.stdin.read()


{"serve": serve, "talk": talk}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
