#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Programs of TCP that talk SMC-R without being told (net.smc.tcp2smc).

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma nft python3
for symbol in update_socket_protocol register_kprobe; do
	grep -q " $symbol\$" /proc/kallsyms || tap_skip_all "this kernel has no probes for sockets ($symbol)"
done
log_start
need_module
[[ -x $here/../build/plain/plain ]] || tap_skip_all "build/plain/plain is not built, run make -C selftests"
tap_start $(($("$here/convert_cases.py" "$ns_client" "$ns_server" count) + 1))
net_up rdma || note "the namespaces cannot be made"
tap_from "$here/convert_cases.py" "$ns_client" "$ns_server"
log_check convert_no_message_above_notice
tap_end
