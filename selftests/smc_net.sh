#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The kernel's own tools/testing/selftests/net, over TCP and over SMC
# (net.smc.tcp2smc): what may differ stands in net.d/programs. They are built by
# scripts/lab net and put to build/net by scripts/net-selftests.
#
# Environment:
#   SMC_NET   names of runs, and --long for those that take minutes as well

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma python3 nstat sysctl
[[ -x $here/../build/net/tcp_inq ]] || tap_skip_all "there is no build/net, run scripts/net-selftests"
[[ -e $here/../build/newnet.so ]] || tap_skip_all "build/newnet.so is not built, run make -C selftests net"
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing || tap_skip_all "there is no tracefs"
[[ -e /sys/kernel/tracing/kprobe_events ]] || tap_skip_all "this kernel has no events of probes"
read -ra chosen <<<"${SMC_NET-}"
log_start
need_module
modprobe rdma_rxe || tap_skip_all "needs the module rdma_rxe"
tap_start $(($("$here/net_cases.py" --count "${chosen[@]}") + 1))
tap_from "$here/net_cases.py" "${chosen[@]}"
log_check net_no_message_above_notice 'ip_local_port_range: prefer different parity for start/end values'
tap_end
