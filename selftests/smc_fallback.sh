#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Connections that fall back to TCP, with a plain TCP peer in both roles and
# between two SMC sockets that have no RDMA device: nothing may differ from TCP.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip
need_cases_program
log_start
need_module
suites=(fallback waiting reason)
total=1
for suite in "${suites[@]}"; do total=$((total + $(cases_count "$suite"))); done
tap_start "$total"
net_up tcp || note "no namespaces here"
for suite in "${suites[@]}"; do cases_run "$suite"; done
net_down
log_check fallback_no_message_above_notice
tap_end
