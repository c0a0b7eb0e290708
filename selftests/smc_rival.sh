#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The kernel's own implementation of SMC and this module cannot be loaded at
# once.  The second is refused, says why, and does the first no harm.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

sysctls=/proc/sys/net/smc

rival_loaded() { [[ -d /sys/module/smc ]]; }

# shellcheck disable=SC2317 # the trap calls it
rival_end() {
	if rival_loaded; then modprobe -r smc 2>/dev/null || :; fi
	cleanup
}

# What the loaded one offers: settings, sockets, protocol names.
offers() {
	ls "$sysctls" 2>/dev/null
	grep -o '^SMC6\? ' /proc/net/protocols
	python3 -c 'import socket; socket.socket(43, socket.SOCK_STREAM, 0).close()' 2>&1 && echo sockets
}

# The second must not come in, must be explained, and the first is as before.
refused() { # name of the case, words in the log, command...
	local name=$1 words=$2 before after status=0 told
	shift 2
	before=$(offers)
	"$@" 2>/dev/null && status=1
	after=$(offers)
	told=$(dmesg --nopager | sed "1,/$log_mark/d" | grep -c "$words")
	if ((!status && told)) && [[ -n $before && $before == "$after" ]]; then
		tap_result ok "$name"
		return
	fi
	note "loaded: $status, told: $told, offered before: ${before//$'\n'/ }; after: ${after//$'\n'/ }"
	tap_result "not ok" "$name"
}

goes() { # module
	busywait 10000 rmmod "$1" 2>/dev/null
}

script_start
need_command modinfo modprobe rmmod python3 dmesg
modinfo -n smc >/dev/null 2>&1 || tap_skip_all "this kernel has no SMC of its own"
if module_loaded; then
	[[ $(module_refcount) == 0 ]] || tap_skip_all "the module is in use"
	rmmod smc_rs || tap_skip_all "the module cannot be unloaded"
fi
rival_loaded && tap_skip_all "the kernel's own SMC is loaded"
trap rival_end EXIT
log_start
[[ -n $log_mark ]] || tap_skip_all "the kernel's log cannot be written"
module_needs
tap_start 4

module_load
refused other_smc_is_refused_beside_this_one 'another implementation of SMC: to load it' modprobe smc
goes smc_rs
if modprobe smc; then
	tap_result ok other_smc_loads_after_this_one
else
	tap_result "not ok" other_smc_loads_after_this_one
fi
refused this_one_is_refused_beside_other_smc 'another implementation of SMC is loaded' module_load
goes smc
if module_load && goes smc_rs; then
	tap_result ok this_one_loads_after_other_smc
else
	tap_result "not ok" this_one_loads_after_other_smc
fi
tap_end
