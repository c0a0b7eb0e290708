#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The module is loaded and unloaded, again and again, alone and while network
# namespaces come and go.
#
# Functions are called through check().
# shellcheck disable=SC2317

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

rounds=20
churn=

stop_churn() {
	[[ -n $churn ]] || return 0
	kill "$churn" 2>/dev/null
	wait "$churn" 2>/dev/null
	churn=
}

# Kilobytes that the kernel holds for itself.
kernel_memory() {
	local name value sum=0
	while read -r name value _; do
		case $name in
		SUnreclaim: | Percpu: | VmallocUsed: | KernelStack:) sum=$((sum + value)) ;;
		esac
	done </proc/meminfo
	echo "$sum"
}

registered() {
	grep -q '^SMC ' /proc/net/protocols && grep -q '^SMC6 ' /proc/net/protocols &&
		[[ -d /proc/sys/net/smc ]]
}

no_trace() {
	! module_loaded && ! grep -q '^SMC' /proc/net/protocols && [[ ! -e /proc/sys/net/smc ]]
}

reload() { # times
	local i
	for ((i = 0; i < $1; i++)); do
		module_load || return
		rmmod smc_rs || return
	done
}

reload_with_sockets() {
	local i
	for ((i = 0; i < 3; i++)); do
		module_load || return
		"$here/smc_cases" socket socket_stream_kinds_created listen_unbound_gets_port |
			grep -vE '^(ok|#|skip)' && return 1
		busywait 10000 rmmod smc_rs 2>/dev/null || return
	done
}

check() { # name command...
	local name=$1
	shift
	if "$@"; then
		tap_result ok "$name"
	else
		tap_result "not ok" "$name"
	fi
}

script_start
need_command insmod rmmod unshare
need_cases_program
if module_loaded; then
	was_loaded=1
	[[ $(module_refcount) == 0 ]] || tap_skip_all "the module is in use"
	rmmod smc_rs || tap_skip_all "the module cannot be unloaded"
else
	was_loaded=
fi
log_start
tap_start 8
check load_fresh_succeeds module_load
check load_registers_protocols_and_sysctls registered
check unload_succeeds rmmod smc_rs
check unload_leaves_no_trace no_trace

before=$(kernel_memory)
check "reload_${rounds}_times_succeeds" reload "$rounds"

# Namespaces come and go as fast as they can.
(
	trap 'exit 0' TERM
	while :; do
		unshare -n true
	done
) &
churn=$!
trap 'stop_churn; cleanup' EXIT
check "reload_${rounds}_times_with_namespace_churn_succeeds" reload "$rounds"
stop_churn
trap cleanup EXIT

check reload_after_sockets_were_open_succeeds reload_with_sockets
after=$(kernel_memory)
note "kernel memory grew by $((after - before)) kB"
log_check load_no_message_above_notice
[[ -z $was_loaded ]] || module_load
tap_end
