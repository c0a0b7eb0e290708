#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Tracepoints.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma python3
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing || tap_skip_all "there is no tracefs"
log_start
need_module
tap_start $(($("$here/trace_cases.py" "$ns_client" "$ns_server" count) + 1))
net_up rdma || note "the namespaces cannot be made"
tap_from "$here/trace_cases.py" "$ns_client" "$ns_server"
log_check trace_no_message_above_notice
tap_end
