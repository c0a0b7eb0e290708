#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Why connections go by TCP, as everything that says it says it.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma nft python3
log_start
need_module
tap_start $(($("$here/reason_cases.py" "$ns_client" "$ns_server" count) + 1))
net_up rdma || note "the namespaces cannot be made"
tap_from "$here/reason_cases.py" "$ns_client" "$ns_server"
log_check reason_no_message_above_notice
tap_end
