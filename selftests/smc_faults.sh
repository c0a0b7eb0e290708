#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Every allocation of sockets, connections and link groups fails once. Needs a
# kernel with fault injection. Takes long.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

faults=/sys/kernel/debug/fail_function

script_start
need_command ip rdma insmod rmmod
need_cases_program
[[ -w $faults/inject ]] || tap_skip_all "this kernel injects no faults"
trap '[[ ! -w $faults/inject ]] || echo >"$faults/inject"; cleanup' EXIT
need_module
tap_start $(($(cases_count faults) + 1))
net_up rdma || note "no namespaces here"
cases_run faults
echo 0 >"$faults/times"
echo >"$faults/inject"

# Whatever of the RDMA devices the module has not given back keeps it, or is
# listed under its name.
left() {
	local what
	for what in qp cq mr pd; do
		rdma -d resource show "$what" 2>/dev/null | grep smc_rs
	done
}
"$SMC_UNLOAD" -q -t 30 || note "the module cannot be unloaded"
if module_loaded || [[ -n $(left) ]]; then
	left | head -20 | sed 's/^/# /'
	tap_result "not ok" unload_after_faults_leaves_nothing
else
	tap_result ok unload_after_faults_leaves_nothing
	[[ -n $loaded_here ]] || module_load
	loaded_here=
fi
net_down
tap_end
