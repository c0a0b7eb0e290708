#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Data by RDMA between two namespaces with an rxe device each.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma nft
need_cases_program
log_start
need_module
tap_start $(($(cases_count transfer) + 1))
net_up rdma || note "no namespaces here"
cases_run transfer
net_down
log_check transfer_no_message_above_notice
tap_end
