#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The same calls over TCP, over SMC sockets that fell back, and over SMC-R:
# nothing may differ but what docs/differences.md allows. SMC_DIFF has options
# for diff_compare.py in place of those of the fast run.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma nft python3
[[ -x $here/smc_diff ]] || tap_skip_all "smc_diff is not built, run make -C selftests"
log_start
need_module
options=(--fast --random 20 --seed 1)
[[ -z ${SMC_DIFF-} ]] || read -ra options <<<"$SMC_DIFF"
read -ra only <<<"${SMC_CASES-}"
results=$("$here/diff_compare.py" "${options[@]}" --count "${only[@]}")
tap_start $((results + 1))
net_up rdma || note "no namespaces here"
tap_from "$here/diff_compare.py" "${options[@]}" "${only[@]}"
net_down
log_check diff_no_message_above_notice
tap_end
