#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# One socket by itself: creation, addresses, options, and every wrong call.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip
need_cases_program
log_start
need_module
tap_start $(($(cases_count socket) + 1))
net_up tcp || note "no namespaces here"
cases_run socket
net_down
log_check socket_no_message_above_notice
tap_end
