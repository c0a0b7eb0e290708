#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Programs that others wrote talk SMC-R across two machines without being told
# (net.smc.tcp2smc). Runs on both at the same time, with the machine's name, a or
# b, as its argument: see smc_pair.sh.
#
# Environment:
#   SMC_APPS      names of programs (iperf3 redis ...), or --fast for the few
#                 that every check runs; all of them if it is not set
#   SMC_PRELOAD   this library makes SMC sockets of their sockets, in place of the
#                 sysctl: for another implementation, which is loaded already

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

pair_role "${1-}"
script_start
need_command ip rdma nft ss python3 vm-barrier
log_start
read -ra chosen <<<"${SMC_APPS-}"
if [[ -z ${SMC_PRELOAD-} ]]; then
	need_module
	# Go's listeners as well, which use MPTCP's protocol.
	echo 2 >/proc/sys/net/smc/tcp2smc || tap_skip_all "this kernel has no probes for sockets"
fi
tap_start $(($("$here/apps_cases.py" "$role" --count "${chosen[@]}") + 1))
pair_device_up
tap_from "$here/apps_cases.py" "$role" "${chosen[@]}"
[[ -n ${SMC_PRELOAD-} ]] || echo 0 >/proc/sys/net/smc/tcp2smc
if [[ -z ${SMC_PRELOAD-} ]]; then
	log_check apps_no_message_above_notice
else
	tap_result skip apps_no_message_above_notice "what another implementation says to the log is its own"
fi
vm-barrier apps-end
rdma link delete rxe0
tap_end
