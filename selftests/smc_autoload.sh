#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The installed module is loaded by the first program that asks for an SMC
# socket, or about SMC, whoever runs it, unless the operator forbade it.
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

# shellcheck disable=SC2317 # the trap calls it
autoload_end() {
	local status=$?
	rm -f "$aliases"
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
tap_start 5
loads_by socket_of_the_family_loads open_socket 43 0
loads_by protocol_of_ipv4_loads open_socket 2 256
loads_by protocol_of_ipv6_loads open_socket 10 256
loads_by generic_netlink_loads ask 'smcinfo.Module()'

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
