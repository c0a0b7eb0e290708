#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The module is loaded and unloaded, again and again, alone and while network
# namespaces come and go.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command insmod rmmod
need_cases_program
was_loaded=
if module_loaded; then
	was_loaded=1
	[[ $(module_refcount) == 0 ]] || tap_skip_all "the module is in use"
	rmmod smc_rs || tap_skip_all "the module cannot be unloaded"
fi
log_start
module_needs
tap_start $(($(cases_count load) + 1))
cases_run load
log_check load_no_message_above_notice
if [[ -n $was_loaded ]] && ! module_loaded; then
	module_load
fi
tap_end
