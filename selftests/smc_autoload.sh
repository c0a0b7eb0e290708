#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The installed module is loaded by the first program that asks for an SMC
# socket, or about SMC, whoever runs it, unless the operator forbade it. A boot
# with the installed samples and the unit loads it, applies the settings, and
# restores ids and physical networks.
#
# Environment:
#   SMC_STAGE  what scripts/stage-install made (default: build/install of this
#              checkout): laid over the kernel's module folder for the time of
#              the test, where the module is not installed

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

tree=/lib/modules/$(uname -r)
stage=${SMC_STAGE:-$here/../build/install}$tree
mounted=
was_loaded=
boot=
boot_files=
boot_group=/sys/fs/cgroup/smct-boot$$

# shellcheck disable=SC2317 # the trap calls it
autoload_end() {
	local status=$?
	rm -f "$aliases"
	boot_end
	if module_loaded; then busywait 10000 rmmod smc_rs 2>/dev/null || :; fi
	[[ -z $mounted ]] || umount "$(realpath "$tree")" || :
	if [[ -n $was_loaded ]]; then module_load || :; fi
	exit "$status"
}

# A stream socket, from a program of its own; prints the error's name, if any.
# shellcheck disable=SC2317 # called by loads_by
open_socket() { # family, protocol
	setpriv --reuid=65534 --regid=65534 --clear-groups python3 -c '
import errno, socket, sys
try:
    socket.socket(int(sys.argv[1]), socket.SOCK_STREAM, int(sys.argv[2])).close()
except OSError as e:
    print(errno.errorcode[e.errno])' "$1" "$2"
}

# What a tool asks by netlink, from a program of its own; prints what is wrong, if anything is.
# shellcheck disable=SC2317 # called by loads_by
ask() { # expression of the module smcinfo
	setpriv --reuid=65534 --regid=65534 --clear-groups python3 -Bc '
import sys
sys.path.insert(0, sys.argv[1])
import smcinfo
try:
    eval(sys.argv[2])
except Exception as e:
    print(type(e).__name__, e)' "$here/../scripts" "$1"
}

unloaded() {
	if module_loaded; then busywait 10000 rmmod smc_rs 2>/dev/null; fi
	! module_loaded
}

loads_by() { # name of the case, function, its arguments
	local answer name=$1
	shift
	unloaded || note "the module cannot be unloaded"
	answer=$("$@")
	if [[ -z $answer ]] && module_loaded; then
		tap_result ok "$name"
	else
		note "$*: ${answer:-no error}, module $(module_loaded || echo not) loaded"
		tap_result "not ok" "$name"
	fi
}

# Process 1 of a system that boots: systemd, in namespaces of its own, with the
# tools installed below /usr/local, the samples in place, and nothing else to do.
# The host sees none of the files.
# shellcheck disable=SC2317 # boot_start calls it
boot_init() { # checkout, empty folder
	local d etc=/etc/systemd/system units=/usr/lib/systemd/system samples=/usr/local/share/doc/smc-rs/examples
	mount -t tmpfs smct "$2"
	mkdir "$2"/{etc,etc.work,local,local.work}
	mount -t overlay -o "lowerdir=/etc,upperdir=$2/etc,workdir=$2/etc.work" smct /etc
	mount -t overlay -o "lowerdir=/usr/local,upperdir=$2/local,workdir=$2/local.work" smct /usr/local
	make -s -C "$1" install-tools DESTDIR= PREFIX=/usr/local >/dev/null
	rm -rf "$etc"/*.wants /etc/modules-load.d/* /etc/sysctl.d/*
	install -D -m 644 "$samples/modules-load.conf" /etc/modules-load.d/smc_rs.conf
	install -D -m 644 "$samples/sysctl.conf" /etc/sysctl.d/90-smc.conf
	sed -i 's/^#net.smc.tcp2smc = .*/net.smc.tcp2smc = 1/' /etc/sysctl.d/90-smc.conf
	printf 'ueid BOOTED.HERE\npnet NET1 eth eth7\n' >/etc/smc-rs.conf
	for d in "$units"/*.wants /usr/lib/systemd/system-generators /usr/lib/sysctl.d /usr/lib/modules-load.d; do
		[[ ! -d $d ]] || mount -t tmpfs smct "$d"
	done
	mkdir -p "$etc/sysinit.target.wants"
	ln -s "$units"/systemd-{modules-load,sysctl}.service "$etc/sysinit.target.wants/"
	systemctl enable smc-persist 2>/dev/null
	mount -t proc proc /proc
	mount -t tmpfs smct /run
	mount -t cgroup2 smct /sys/fs/cgroup
	exec env -i container=smct PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=multi-user.target \
		--show-status=no --log-target=null --crash-reboot=no </dev/null >/dev/null 2>&1
}

boot_start() {
	mountpoint -q /sys/fs/cgroup || mount -t cgroup2 smct /sys/fs/cgroup || return
	boot_files=$(mktemp -d) || return
	mkdir -p "$boot_group"
	(
		echo "$BASHPID" >"$boot_group/cgroup.procs"
		exec unshare --mount --net --uts --ipc --cgroup --pid --fork --kill-child \
			bash -euc "$(declare -f boot_init); boot_init $(printf '%q ' "$(realpath "$here/..")" "$boot_files")"
	) &
	boot=$!
}

boot_end() {
	[[ -n $boot ]] || return 0
	kill -KILL "$boot" 2>/dev/null || :
	wait "$boot" 2>/dev/null || :
	boot=
	echo 1 2>/dev/null >"$boot_group/cgroup.kill" || :
	busywait 5000 boot_gone || :
	rmdir "$boot_files"
}

# shellcheck disable=SC2317 # busywait calls it
boot_gone() {
	find "$boot_group" -depth -type d -exec rmdir {} + 2>/dev/null
	[[ ! -d $boot_group ]]
}

# A command in the system that boots.
in_boot() {
	nsenter -t "$(pgrep -P "$boot" | head -1)" -m -n -p -- "$@" 2>/dev/null
}

# shellcheck disable=SC2317 # busywait calls it
boot_done() {
	case $(in_boot systemctl show -P ActiveState smc-persist) in
	active | failed) ;;
	*) return 1 ;;
	esac
}

boots() {
	local state level shown
	unloaded || note "the module cannot be unloaded"
	boot_start || return
	busywait 90000 boot_done
	state=$(in_boot systemctl show -P ActiveState smc-persist)
	level=$(in_boot cat /proc/sys/net/smc/tcp2smc)
	shown=$(in_boot smc-persist show | grep -v '^#')
	boot_end
	if [[ $state == active && $level == 1 && $shown == $'ueid BOOTED.HERE\npnet NET1 eth eth7' ]]; then
		tap_result ok boot_restores
	else
		note "smc-persist.service: ${state:-nothing}, net.smc.tcp2smc: ${level:-none}, what is set: ${shown:-nothing}"
		tap_result "not ok" boot_restores
	fi
}

script_start
need_command modinfo modprobe rmmod python3 setpriv
if module_loaded; then
	was_loaded=1
	[[ $(module_refcount) == 0 ]] || tap_skip_all "the module is in use"
fi
trap autoload_end EXIT
if ! modinfo -n smc_rs >/dev/null 2>&1; then
	[[ -e $stage/modules.alias.bin ]] ||
		tap_skip_all "the module is not installed for $(uname -r) (make install), nor is $stage there (scripts/stage-install)"
	mount -t overlay -o "ro,lowerdir=$stage:$(realpath "$tree")" smct "$(realpath "$tree")" ||
		tap_skip_all "$stage cannot be laid over $tree"
	mounted=1
fi

modprobe_rules <<<'blacklist smc'
tap_start 6
loads_by socket_of_the_family_loads open_socket 43 0
loads_by protocol_of_ipv4_loads open_socket 2 256
loads_by protocol_of_ipv6_loads open_socket 10 256
loads_by generic_netlink_loads ask 'smcinfo.Module()'

if [[ ! -x /lib/systemd/systemd || ! -e $here/../Makefile ]]; then
	tap_result skip boot_restores "needs systemd and a checkout"
elif ! grep -q '\bcgroup2$' /proc/filesystems; then
	tap_result skip boot_restores "needs control groups"
else
	boots
fi

# As modprobe.d(5) has it, and by the error of a family that is not there.
modprobe_rules <<<$'blacklist smc\ninstall smc_rs /bin/false'
unloaded || note "the module cannot be unloaded"
answer=$(open_socket 43 0)
if [[ $answer == EAFNOSUPPORT ]] && ! module_loaded; then
	tap_result ok forbidden_module_stays_out
else
	note "answer: ${answer:-a socket}"
	tap_result "not ok" forbidden_module_stays_out
fi
tap_end
