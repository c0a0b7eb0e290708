#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Boots one or two virtual machines and runs a command in each.

This half runs inside the lab's root, started by scripts/vm, which documents
the options.  It needs nothing but python3's standard library and QEMU.
"""

import argparse
import hashlib
import json
import lzma
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

EXIT_TIME = 124
EXIT_RUNNER = 125
EXIT_SPLAT = 126
EXIT_DIED = 127

# How often machines are started when one of them does not come up: QEMU's emulation hangs at times on a busy host.
BOOTS = 3

# Seconds that a run may go on after a kernel complained.
AFTER_SPLAT = 60

# What a healthy kernel never says.  Matched against console lines without
# their time stamp.
SPLATS = re.compile(
    "|".join(
        [
            r"\bBUG: ",
            r"\bBUG at ",
            r"\bOops\b",
            r"\bWARNING: ",
            r"\bKernel panic\b",
            r"\bgeneral protection fault\b",
            r"\bKASAN: ",
            r"\bKCSAN: ",
            r"\bKFENCE: ",
            r"\bUBSAN: ",
            r"\bODEBUG: ",
            r"kmemleak: \d+ new suspected memory leaks",
            r"\brefcount_t: ",
            r"unregister_netdevice: waiting for",
            r"INFO: task .* blocked for more than",
            r"INFO: possible ",
            r"INFO: suspicious ",
            r"INFO: .*detected( expedited)? stalls?",
            r"self-detected stall",
            r"soft lockup",
            r"hard LOCKUP",
            r"list_(add|del)( corruption|\.)",
            r"DEBUG_LOCKS_WARN_ON",
            r"[Oo]bjects remaining",
            r"Unable to handle kernel",
            r"invalid opcode: ",
            r"unchecked MSR access",
            r"scheduling while atomic",
            r"sleeping function called from invalid context",
            r"page allocation failure",
            r"Out of memory: ",
            r"^Call Trace:",
            r"^rust_kernel: panicked",
        ]
    )
)

STAMP = re.compile(r"^(\x1b\[[0-9;?]*[A-Za-z]|\x1bc)*(\[ *\d+\.\d+\](\[ *[TC]\d+\])? ?)?")

# Needed before the root is there.  Built-in ones are skipped.
BOOT_MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay"]

# Both stages run on busybox from memory: under emulation a dynamic program
# started from the 9p root costs a tenth of a second and more.
INITRAMFS_INIT = r"""#!/bin/busybox sh
b=/bin/busybox
fail() { echo "initramfs: $*" >/dev/console; $b sleep 1; $b poweroff -f; }
$b mount -t devtmpfs dev /dev
for m in $($b cat /job/insmod); do
	$b insmod /mod/$m || fail "cannot load $m"
done
opt=trans=virtio,version=9p2000.L,msize=262144
$b mount -t 9p -o "ro,cache=loose,$opt" root /lower || fail "cannot mount the root"
$b mount -t tmpfs -o size=60% tmpfs /rw
$b mkdir /rw/up /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/up,workdir=/rw/work overlay /new ||
	fail "cannot mount the overlay"
$b mount -o move /dev /new/dev
$b mkdir -p /new/run /new/tmp /new/mnt/smc /new/mnt/out
$b mount -t proc proc /new/proc
$b mount -t sysfs sysfs /new/sys
$b mount -t tmpfs -o mode=755 tmpfs /new/run
$b mkdir -p /new/dev/pts /new/dev/shm /new/run/lock
$b mount -t devpts devpts /new/dev/pts
$b mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm
$b mount -t tmpfs -o mode=1777 tmpfs /new/tmp
$b mount -t debugfs debugfs /new/sys/kernel/debug 2>/dev/null
$b mount -t tracefs tracefs /new/sys/kernel/tracing 2>/dev/null
$b mount -t cgroup2 cgroup2 /new/sys/fs/cgroup 2>/dev/null
. /job/env
$b mount -t 9p -o "ro,cache=loose,$opt" checkout /new/mnt/smc || fail "cannot mount the checkout"
[ -z "$VM_OUT" ] || $b mount -t 9p -o "$opt" out /new/mnt/out
if [ -n "$VM_MODULES" ]; then
	$b mkdir -p "/new/lib/modules/$VM_MODULES"
	$b mount -t 9p -o "ro,cache=loose,$opt" modules "/new/lib/modules/$VM_MODULES"
fi
$b cp -r /job /new/run/vm
$b cp /bin/busybox /new/run/vm/busybox
exec $b switch_root /new /run/vm/busybox sh /run/vm/init
"""

# Stage two, process 1 of the machine.
GUEST_INIT = r"""#!/run/vm/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LC_ALL=C.UTF-8
b=/run/vm/busybox
. /run/vm/env
$b ln -sf /proc/self/fd /dev/fd
$b ln -sf /proc/self/fd/0 /dev/stdin
$b ln -sf /proc/self/fd/1 /dev/stdout
$b ln -sf /proc/self/fd/2 /dev/stderr
echo "$VM_NAME" >/proc/sys/kernel/hostname
echo 8 >/proc/sys/kernel/printk
echo 60 >/proc/sys/kernel/hung_task_timeout_secs 2>/dev/null
for d in /sys/class/virtio-ports/*; do
	read -r name <"$d/name"
	eval "port_$name=/dev/${d##*/}"
done
exec 7<>"$port_ctl"
$b mkdir -p /usr/local/bin
$b cp /run/vm/barrier /usr/local/bin/vm-barrier
$b ip link set lo up
if [ -n "$VM_ADDR" ]; then
	[ -e /sys/class/net/eth0 ] || modprobe virtio_net
	wire=0
	while [ "$wire" -lt "$VM_WIRES" ]; do
		dev=eth$wire
		until [ -e /sys/class/net/$dev ]; do $b usleep 50000; done
		echo 0 >/proc/sys/net/ipv6/conf/$dev/accept_dad
		[ -z "$VM_MTU" ] || $b ip link set $dev mtu "$VM_MTU"
		$b ip link set $dev up
		$b ip addr add "10.88.$wire.$VM_ADDR/24" dev $dev
		# The first one is fd88::/64.
		net=fd88:$wire
		[ "$wire" != 0 ] || net=fd88
		$b ip addr add "$net::$VM_ADDR/64" dev $dev
		wire=$((wire + 1))
	done
fi
$b cp /run/vm/hosts /etc/hosts
cd /mnt/smc
[ -z "$VM_CWD" ] || cd "$VM_CWD"
echo ready >&7
read -r _ <&7
if [ -n "$VM_SHELL" ]; then
	$b stty -F /dev/hvc0 sane
	$b stty -F /dev/hvc0 rows "$VM_ROWS" cols "$VM_COLS"
	TERM=$VM_TERM setsid -c bash -i <>/dev/hvc0 >&0 2>&0
	echo "exit $?" >&7
else
	$b mkfifo /run/vm/o /run/vm/e
	$b cat /run/vm/o >"$port_out" 7>&- &
	o=$!
	$b cat /run/vm/e >"$port_err" 7>&- &
	e=$!
	bash /run/vm/cmd </dev/null >/run/vm/o 2>/run/vm/e
	status=$?
	# What the command left running may hold these open for ever.
	n=0
	while [ $n -lt 40 ] && { [ -e "/proc/$o" ] || [ -e "/proc/$e" ]; }; do
		$b usleep 50000
		n=$((n + 1))
	done
	echo "exit $status" >&7
fi
while :; do $b sleep 3600; done
"""

BARRIER = r"""#!/run/vm/busybox sh
# vm-barrier NAME: waits until the other machine has come to NAME as well.
exec 8<>/run/vm/lock
flock 8
echo "barrier $1" >&7
while read -r word name <&7; do
	if [ "$word $name" = "go $1" ]; then exit 0; fi
done
exit 1
"""


def say(text):
    print(f"vm: {text}", file=sys.stderr, flush=True)


class Failure(Exception):
    """The runner itself cannot go on."""


def cpio(entries):
    """Packs (name, mode, data) entries as a newc archive."""
    out = bytearray()
    for number, (name, mode, data) in enumerate(entries + [("TRAILER!!!", 0, b"")]):
        raw = name.encode() + b"\0"
        head = [number + 1, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0]
        out += b"070701" + b"".join(b"%08X" % v for v in head) + raw
        out += b"\0" * (-len(out) % 4) + data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def read_module(path):
    """The bytes of a module, decompressed where it is compressed."""
    with open(path, "rb") as f:
        data = f.read()
    if path.endswith(".xz"):
        return lzma.decompress(data)
    if path.endswith(".gz"):
        import gzip

        return gzip.decompress(data)
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq", path], check=True, stdout=subprocess.PIPE).stdout
    return data


def boot_modules(moddir):
    """Names and contents of the modules to load at boot, dependencies first."""
    if not moddir:
        return []
    deps, by_name = {}, {}
    try:
        with open(f"{moddir}/modules.dep", encoding="utf-8") as f:
            for line in f:
                path, _, rest = line.partition(":")
                deps[path] = rest.split()
                name = os.path.basename(path).split(".ko")[0].replace("-", "_")
                by_name[name] = path
    except FileNotFoundError:
        raise Failure(f"{moddir} has no modules.dep: run 'make modules_install' for that kernel")
    order = []

    def add(path):
        for dep in deps.get(path, []):
            add(dep)
        if path not in order:
            order.append(path)

    for name in BOOT_MODULES:
        if name in by_name:
            add(by_name[name])
    return [
        (os.path.basename(p).split(".ko")[0] + ".ko", read_module(f"{moddir}/{p}"))
        for p in order
    ]


def initramfs(machine):
    """The whole initramfs of one machine, its job included."""
    with open("/bin/busybox", "rb") as f:
        busybox = f.read()
    entries = [(d, 0o040755, b"") for d in
               ("bin", "dev", "mod", "job", "lower", "rw", "new", "proc", "sys")]
    entries.append(("bin/busybox", 0o100755, busybox))
    entries.append(("init", 0o100755, INITRAMFS_INIT.encode()))
    modules = boot_modules(machine.moddir)
    for name, data in modules:
        entries.append((f"mod/{name}", 0o100644, data))
    entries.append(("job/insmod", 0o100644, " ".join(n for n, _ in modules).encode()))
    entries.append(("job/init", 0o100755, GUEST_INIT.encode()))
    entries.append(("job/cmd", 0o100644, (machine.command + "\n").encode()))
    entries.append(("job/lock", 0o100644, b""))
    entries.append(("job/barrier", 0o100755, BARRIER.encode()))
    hosts = f"127.0.0.1 localhost {machine.name}\n::1 localhost ip6-localhost\n"
    if machine.env["VM_ADDR"]:
        hosts = ("127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
                 "10.88.0.1 a\n10.88.0.2 b\nfd88::1 a6\nfd88::2 b6\n")
    entries.append(("job/hosts", 0o100644, hosts.encode()))
    env = "".join(f"export {k}={quote(v)}\n" for k, v in machine.env.items())
    entries.append(("job/env", 0o100644, env.encode()))
    return cpio(entries)


def quote(text):
    return "'" + str(text).replace("'", "'\\''") + "'"


class Lines:
    """Cuts a byte stream into lines."""

    def __init__(self, take):
        self.rest = b""
        self.take = take

    def feed(self, data):
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            self.take(line)

    def end(self):
        if self.rest:
            self.take(self.rest)
            self.rest = b""


class Machine:
    """One virtual machine: its QEMU process and what came out of it."""

    def __init__(self, name, command, kernel, moddir, env):
        self.name = name
        self.command = command
        self.kernel = kernel
        self.moddir = moddir
        self.env = env
        self.process = None
        self.status = None
        self.ready = False
        self.splat = None
        self.splat_lines = 0
        self.ended = False
        self.ctl = None
        self.barrier = None
        self.logs = {}


class Stuck(Exception):
    """A machine does not come up. Nothing of the commands has run."""


class Runner:
    def __init__(self, opts):
        self.opts = opts
        self.machines = []
        self.selector = selectors.DefaultSelector()
        self.tmp = tempfile.mkdtemp(prefix="vm.", dir="/run")
        self.deadline = time.monotonic() + opts.time_limit
        self.started = time.monotonic()
        self.allow = [re.compile(a) for a in opts.allow]
        self.open_streams = 0

    # Output ---------------------------------------------------------------

    def emit(self, machine, kind, line):
        text = line.decode("utf-8", "replace").rstrip("\r")
        if kind == "out":
            if self.opts.plain:
                print(text, flush=True)
            else:
                print(f"{machine.name}| {text}", flush=True)
        elif kind == "err":
            print(f"{machine.name}! {text}", file=sys.stderr, flush=True)
        else:
            self.console(machine, text)

    def console(self, machine, text):
        bare = STAMP.sub("", text)
        if SPLATS.search(bare) and not any(a.search(bare) for a in self.allow):
            if machine.splat is None:
                machine.splat = bare
                machine.splat_lines = 60
        show = self.opts.verbose or (machine.ready and not self.opts.quiet)
        if machine.splat_lines > 0:
            machine.splat_lines -= 1
            show = True
        if show:
            print(f"{machine.name}# {text}", file=sys.stderr, flush=True)

    # Starting ---------------------------------------------------------------

    def stream(self, machine, kind):
        """A listening socket for one of the machine's serial lines."""
        path = f"{self.tmp}/{machine.name}.{kind}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        log = None
        if self.opts.logs:
            ext = {"con": "console", "out": "out", "err": "err", "ctl": "ctl"}[kind]
            log = open(f"{self.opts.logs}/{machine.name}.{ext}", "wb", buffering=0)
        if kind == "ctl":
            lines = Lines(lambda line: self.control(machine, line))
        else:
            lines = Lines(lambda line: self.emit(machine, kind, line))

        def accept():
            sock, _ = listener.accept()
            self.selector.unregister(listener)
            listener.close()
            sock.setblocking(False)
            self.open_streams += 1
            if kind == "ctl":
                machine.ctl = sock
            self.selector.register(sock, selectors.EVENT_READ, lambda: receive(sock))

        def receive(sock):
            try:
                data = sock.recv(65536)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if data:
                if log:
                    log.write(data)
                lines.feed(data)
                return
            self.selector.unregister(sock)
            sock.close()
            lines.end()
            self.open_streams -= 1
            if kind == "ctl":
                machine.ctl = None

        self.selector.register(listener, selectors.EVENT_READ, accept)
        return path

    def start(self, machine, links):
        o = self.opts
        initrd = f"{self.tmp}/{machine.name}.initrd"
        with open(initrd, "wb") as f:
            f.write(initramfs(machine))
        # An emulated processor's TSC is misjudged while the host is busy, and time runs wrong.  A kernel without the
        # ACPI timer has the HPET to measure it by; with neither it would count ticks, and lose some.
        clock = "" if o.accel == "kvm" else "clocksource=acpi_pm "
        append = (
            f"console=ttyS0 loglevel=5 panic=-1 oops=panic {clock}no_timer_check "
            "rcupdate.rcu_cpu_stall_timeout=60 watchdog_thresh=30 "
            f"mitigations=off net.ifnames=0 random.trust_cpu=on {o.append}"
        )
        if o.verbose:
            append += " ignore_loglevel"
        fs = "security_model=none,multidevs=remap"
        args = [
            "qemu-system-x86_64", "-name", f"smc-{machine.name}", "-nodefaults", "-no-user-config",
            "-display", "none", "-no-reboot", "-machine", "pc,hpet=on", "-m", o.memory,
            "-smp", str(o.smp), "-kernel", machine.kernel, "-initrd", initrd,
            "-append", append,
            "-chardev", f"socket,id=con,path={self.stream(machine, 'con')}",
            "-serial", "chardev:con",
            "-device", "virtio-serial-pci,max_ports=8",
            "-chardev", f"socket,id=ctl,path={self.stream(machine, 'ctl')}",
            "-device", "virtserialport,chardev=ctl,name=ctl",
            "-chardev", f"socket,id=out,path={self.stream(machine, 'out')}",
            "-device", "virtserialport,chardev=out,name=out",
            "-chardev", f"socket,id=err,path={self.stream(machine, 'err')}",
            "-device", "virtserialport,chardev=err,name=err",
            "-virtfs", f"local,path={o.root_share},mount_tag=root,readonly=on,{fs}",
            "-virtfs", f"local,path={o.checkout},mount_tag=checkout,readonly=on,{fs}",
        ]
        if machine.env.get("VM_MODULES"):
            args += ["-virtfs", f"local,path={machine.moddir},mount_tag=modules,readonly=on,{fs}"]
        if o.out:
            args += ["-virtfs", f"local,path={o.out},mount_tag=out,{fs}"]
        if o.accel == "kvm":
            args += ["-accel", "kvm", "-cpu", "host"]
        else:
            args += ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", o.cpu]
        for wire, link in enumerate(links):
            args += ["-netdev", f"stream,id=n{wire},{link}", "-device",
                     f"virtio-net-pci,netdev=n{wire},mac=52:54:00:88:{wire:02}:0{machine.env['VM_ADDR']}"
                     + (f",host_mtu={o.mtu}" if o.mtu else "")]
        stdin = subprocess.DEVNULL
        if machine.env.get("VM_SHELL"):
            args += ["-chardev", "stdio,id=tty,signal=off", "-device", "virtconsole,chardev=tty"]
            stdin = None
        for extra in o.qemu:
            args += extra.split()
        errors = open(f"{self.tmp}/{machine.name}.qemu", "wb")
        machine.errors = errors.name
        machine.process = subprocess.Popen(
            args, stdin=stdin, stdout=None if stdin is None else errors, stderr=errors,
            start_new_session=stdin is not None)
        errors.close()

    # Running ----------------------------------------------------------------

    def control(self, machine, line):
        word, _, rest = line.decode("ascii", "replace").partition(" ")
        if word == "ready":
            machine.ready = True
            if self.opts.verbose or not self.opts.quiet:
                say(f"{machine.name} is up after {time.monotonic() - self.started:.1f} s")
            if all(m.ready for m in self.machines):
                for m in self.machines:
                    self.tell(m, "go start")
        elif word == "exit":
            machine.status = int(rest)
        elif word == "barrier":
            machine.barrier = rest
            if all(m.barrier == rest for m in self.machines):
                for m in self.machines:
                    m.barrier = None
                    self.tell(m, f"go {rest}")

    def tell(self, machine, text):
        if machine.ctl:
            machine.ctl.sendall(text.encode() + b"\n")

    def pump(self, timeout):
        for key, _ in self.selector.select(timeout):
            key.data()

    def run(self):
        """Returns the exit status of the whole run."""
        paths = []
        if len(self.machines) > 1:
            paths = [f"{self.tmp}/link{wire}" for wire in range(self.opts.wires)]
        for index, machine in enumerate(self.machines):
            role = "server=on" if index == 0 else "server=off,reconnect-ms=100"
            self.start(machine, [f"{role},addr.type=unix,addr.path={path}" for path in paths])
            while index == 0 and not all(map(os.path.exists, paths)):
                if machine.process.poll() is not None:
                    break
                time.sleep(0.02)
        grace = self.deadline + 1
        while True:
            now = time.monotonic()
            self.pump(0.2)
            missing = [m.name for m in self.machines if not (m.ready or m.ended or m.splat)]
            if missing and self.started + self.opts.boot_limit < now < self.deadline:
                raise Stuck(", ".join(missing))
            for m in self.machines:
                if not m.ended and m.process.poll() is not None:
                    m.ended = True
            if now > self.deadline:
                break
            if all(m.ended or m.status is not None for m in self.machines):
                break
            # What still runs after a failure gets a while to end by itself.
            if any(m.ended or m.status for m in self.machines):
                grace = min(grace, now + self.opts.grace)
            if any(m.splat for m in self.machines):
                grace = min(grace, now + AFTER_SPLAT)
            if now > grace:
                break
        late = time.monotonic() > self.deadline
        # A splat of the last moment may still be on its way.
        settle = time.monotonic() + 0.3
        while time.monotonic() < settle:
            self.pump(0.05)
        self.stop()
        return self.verdict(late)

    def stop(self):
        """Ends the machines of this run and takes in what they still said."""
        for m in self.machines:
            if m.process and m.process.poll() is None:
                m.process.kill()
        for m in self.machines:
            if m.process:
                m.process.wait()
        until = time.monotonic() + 2
        while self.open_streams and time.monotonic() < until:
            self.pump(0.1)

    def end(self):
        """Leaves nothing of the run behind."""
        self.stop()
        self.selector.close()
        shutil.rmtree(self.tmp, ignore_errors=True)

    def verdict(self, late):
        status = 0
        for m in self.machines:
            if m.splat:
                say(f"{m.name}: the kernel complained: {m.splat}")
        for m in self.machines:
            if m.splat:
                return EXIT_SPLAT
        for m in self.machines:
            if m.status is None and m.ended:
                with open(m.errors, encoding="utf-8", errors="replace") as f:
                    text = f.read().strip()
                say(f"{m.name} died before its command ended" + (f": {text}" if text else ""))
                return EXIT_DIED
        for m in self.machines:
            if m.status:
                say(f"{m.name}: the command ended with status {m.status}")
                if not status:
                    status = min(m.status, EXIT_TIME - 1)
        if status:
            return status
        for m in self.machines:
            if m.status is None:
                what = "its command still ran" if m.ready else "it had not come up"
                if late:
                    say(f"{m.name}: {what} at the time limit of {self.opts.time_limit} s")
                else:
                    say(f"{m.name}: {what} when the run was ended")
        if any(m.status is None for m in self.machines):
            return EXIT_TIME
        return 0


def probe_kvm(kernel, cache):
    """True where KVM really boots the kernel.  The answer is kept in cache."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        boot = f.read().strip()
    key = f"{boot} {kernel} {os.stat(kernel).st_mtime_ns}"
    try:
        with open(cache, encoding="utf-8") as f:
            known = json.load(f)
    except (OSError, ValueError):
        known = {}
    if key in known:
        return known[key]
    say("trying whether KVM boots the kernel (once per host boot)")
    tmp = tempfile.mkdtemp(prefix="kvm.", dir="/run")
    with open("/bin/busybox", "rb") as f:
        busybox = f.read()
    script = b"#!/bin/busybox sh\necho kvm-works\n/bin/busybox poweroff -f\n"
    with open(f"{tmp}/initrd", "wb") as f:
        f.write(cpio([("bin", 0o040755, b""), ("dev", 0o040755, b""),
                      ("bin/busybox", 0o100755, busybox), ("init", 0o100755, script)]))
    works = False
    try:
        done = subprocess.run(
            ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
             "-no-reboot", "-machine", "pc", "-accel", "kvm", "-cpu", "host", "-m", "512",
             "-smp", "2", "-kernel", kernel, "-initrd", f"{tmp}/initrd",
             "-append", "console=ttyS0 panic=-1", "-serial", "stdio"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=20, check=False)
        works = b"kvm-works" in done.stdout
    except subprocess.TimeoutExpired:
        pass
    shutil.rmtree(tmp, ignore_errors=True)
    say("KVM works" if works else "KVM does not boot the kernel here: software emulation")
    try:
        with open(cache + ".new", "w", encoding="utf-8") as f:
            json.dump({**{k: v for k, v in known.items() if k.startswith(boot)}, key: works}, f)
        os.replace(cache + ".new", cache)
    except OSError:
        pass
    return works


def uncompressed(kernel, cache):
    """The ELF image inside a bzImage, where QEMU can boot that directly.

    Unpacking the kernel takes emulated processors seconds.  The unpacked one
    is kept in cache; a kernel without a PVH entry is booted as it is.
    """
    with open(kernel, "rb") as f:
        image = f.read()
    if image[0x202:0x206] != b"HdrS":
        return kernel
    unpack = {b"\x28\xb5\x2f\xfd": ["zstd", "-dcq"], b"\xfd7zX": ["xz", "-dcq"],
              b"\x1f\x8b\x08\x00": ["gzip", "-dcq"]}
    start = (image[0x1F1] + 1) * 512 + int.from_bytes(image[0x248:0x24C], "little")
    payload = image[start:start + int.from_bytes(image[0x24C:0x250], "little") - 4]
    if payload[:4] not in unpack:
        return kernel
    path = f"{cache}/elf/{hashlib.sha256(image).hexdigest()[:24]}"
    if not os.path.exists(path):
        elf = subprocess.run(unpack[payload[:4]], input=payload, check=True,
                             stdout=subprocess.PIPE).stdout
        # The note "Xen", type 18: where the kernel may be entered.
        if b"\x04\0\0\0\x08\0\0\0\x12\0\0\0Xen\0" not in elf:
            return kernel
        os.makedirs(f"{cache}/elf", exist_ok=True)
        new = f"{path}.{os.getpid()}.{time.time_ns()}"
        with open(new, "wb") as f:
            f.write(elf)
        os.replace(new, path)
        kept = sorted(os.scandir(f"{cache}/elf"), key=lambda e: e.stat().st_atime_ns)
        for entry in kept[:-8]:
            os.unlink(entry.path)
    os.utime(path)
    return path


def find_modules(path):
    """The directory lib/modules/RELEASE meant by a --modules argument."""
    path = os.path.realpath(path)
    if os.path.exists(f"{path}/modules.dep"):
        return path
    for base in (f"{path}/lib/modules", path):
        if os.path.isdir(base):
            found = [d for d in sorted(os.listdir(base))
                     if os.path.exists(f"{base}/{d}/modules.dep")]
            if len(found) == 1:
                return f"{base}/{found[0]}"
            if len(found) > 1:
                raise Failure(f"{base} holds several kernels' modules: name one of them")
    raise Failure(f"{path} holds no installed modules (no modules.dep)")


def main():
    p = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--pair", "--shell", "--plain", "--verbose", "--quiet"):
        p.add_argument(flag, action="store_true")
    p.add_argument("--time-limit", type=float, default=300)
    p.add_argument("--grace", type=float, default=10)
    p.add_argument("--boot-limit", type=float, default=180)
    p.add_argument("--smp", type=int, default=2)
    p.add_argument("--memory", default="1024")
    p.add_argument("--cpu", default="max")
    p.add_argument("--mtu", type=int)
    p.add_argument("--wires", type=int, choices=range(1, 5), default=1)
    p.add_argument("--accel", choices=["auto", "kvm", "tcg"], default="auto")
    p.add_argument("--append", default="")
    for name in ("--allow", "--env", "--qemu"):
        p.add_argument(name, action="append", default=[])
    for name in ("--kernel", "--kernel-a", "--kernel-b", "--modules", "--modules-a", "--modules-b",
                 "--logs", "--out", "--checkout", "--root-share", "--cache", "--cwd",
                 "--lab-modules"):
        p.add_argument(name)
    p.add_argument("-a", dest="a")
    p.add_argument("-b", dest="b")
    p.add_argument("--command")
    opts = p.parse_args()
    if opts.logs:
        os.makedirs(opts.logs, exist_ok=True)
    runner = Runner(opts)

    def on_signal(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    names = ["a", "b"] if opts.pair else ["a"]
    extra = dict(e.split("=", 1) for e in opts.env)
    for index, name in enumerate(names):
        kernel = getattr(opts, f"kernel_{name}") or opts.kernel
        modules = getattr(opts, f"modules_{name}") or opts.modules
        own_kernel = kernel is not None
        if own_kernel:
            moddir = find_modules(modules) if modules else None
        else:
            moddir = opts.lab_modules
            kernel = f"{moddir}/vmlinuz"
        if not os.path.exists(kernel):
            raise Failure(f"there is no kernel image {kernel}")
        command = getattr(opts, name) if opts.pair else opts.command
        env = {
            "VM_NAME": name,
            "VM_ADDR": str(index + 1) if opts.pair else "",
            "VM_OUT": "1" if opts.out else "",
            "VM_MODULES": os.path.basename(moddir) if own_kernel and moddir else "",
            "VM_CWD": opts.cwd or "",
            "VM_MTU": str(opts.mtu or ""),
            "VM_WIRES": str(opts.wires),
            "VM_SHELL": "",
            **extra,
        }
        if opts.shell and index == 0:
            size = shutil.get_terminal_size()
            env.update(VM_SHELL="1", VM_ROWS=str(size.lines), VM_COLS=str(size.columns),
                       VM_TERM=os.environ.get("TERM", "vt100"))
        elif command is None:
            command = "sleep infinity" if opts.shell else None
        if command is None and not env["VM_SHELL"]:
            raise Failure(f"no command for machine {name}")
        runner.machines.append(Machine(name, command or "", kernel, moddir, env))
    if opts.accel == "auto":
        opts.accel = "kvm" if probe_kvm(runner.machines[0].kernel, f"{opts.cache}/kvm.json") else "tcg"
    if opts.accel == "tcg":
        for machine in runner.machines:
            machine.kernel = uncompressed(machine.kernel, opts.cache)
    tty = None
    if opts.shell:
        opts.quiet = True
        if sys.stdin.isatty():
            import termios

            tty = termios.tcgetattr(0)
    try:
        for boot in range(1, BOOTS + 1):
            try:
                return runner.run()
            except Stuck as stuck:
                say(f"{stuck} did not come up in {opts.boot_limit:g} s"
                    + (": starting anew" if boot < BOOTS else ""))
            runner.end()
            machines = [Machine(m.name, m.command, m.kernel, m.moddir, m.env) for m in runner.machines]
            deadline = runner.deadline
            runner = Runner(opts)
            runner.machines, runner.deadline = machines, deadline
        return EXIT_RUNNER
    finally:
        runner.end()
        if tty:
            termios.tcsetattr(0, termios.TCSADRAIN, tty)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        say(str(failure))
        sys.exit(EXIT_RUNNER)
    except KeyboardInterrupt:
        sys.exit(130)
