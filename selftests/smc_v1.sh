#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# SMC-R version 1, which needs RoCE v1 GIDs: the devices in software have none, and a parameter of the module admits
# others. Without it nothing of version 1 is there.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command insmod rmmod ip rdma nft python3
was_loaded=
unload() {
	busywait 20000 rmmod smc_rs 2>/dev/null
}
if module_loaded; then
	was_loaded=1
	unload || tap_skip_all "the module is in use"
fi
log_start
need_module
tap_start $(($("$here/v1_cases.py" "$ns_client" "$ns_server" count) + 1))
net_up rdma || note "the namespaces cannot be made"
SMC_V1=off tap_from "$here/v1_cases.py" "$ns_client" "$ns_server"
module_parameters=(v1_over_v2_gids=1)
if unload && module_load; then
	SMC_V1=on tap_from "$here/v1_cases.py" "$ns_client" "$ns_server"
else
	note "the module cannot be loaded with its parameter"
fi
net_down
log_check v1_no_message_above_notice
# Others want it as it is.
module_parameters=()
unload || note "the module cannot be unloaded"
if [[ -n $was_loaded ]] && ! module_loaded; then
	module_load
	loaded_here=
fi
tap_end
