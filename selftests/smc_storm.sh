#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Two namespaces with two RDMA devices each: thousands of connections. It takes
# minutes and is not part of the usual run.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma nft
need_cases_program
log_start
need_module
tap_start $(($(cases_count storm) + 1))
net_up rdma || note "no namespaces here"
net_second || note "no second wire here"
cases_run storm
net_down
log_check storm_no_message_above_notice
tap_end
