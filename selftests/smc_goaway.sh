#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The module, an RDMA device or a namespace is taken away under open sockets.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma nft
need_cases_program
log_start
need_module
tap_start $(($(cases_count goaway) + 1))
net_up rdma || note "no namespaces here"
cases_run goaway
net_down
log_check goaway_no_message_above_notice
tap_end
