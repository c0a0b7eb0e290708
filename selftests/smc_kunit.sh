#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The KUnit tests in the module, which it has where the kernel has KUnit built
# in. That has to be told "kunit.enable=1".

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suites=/sys/kernel/debug/kunit

script_start
need_module
compgen -G "$suites/smc_*/run" >/dev/null ||
	tap_skip_all "no KUnit tests in this module, or KUnit is off"

log_start
results=()
for suite in "$suites"/smc_*; do
	echo run >"$suite/run"
	while read -r line; do
		case $line in
		"ok "*" ${suite##*/}" | "not ok "*" ${suite##*/}") ;;
		"ok "* | "not ok "*) results+=("${line%%ok *}ok ${suite##*/}_${line##* }") ;;
		'#'*ASSERTION* | 'Expected '*) results+=("$line") ;;
		esac
	done <"$suite/results"
done
count=0
for line in "${results[@]}"; do
	[[ $line != 'ok '* && $line != 'not ok '* ]] || count=$((count + 1))
done
tap_start $((count + 2))
for line in "${results[@]}"; do
	case $line in
	'ok '*) tap_result ok "${line#ok }" ;;
	'not ok '*) tap_result "not ok" "${line#not ok }" ;;
	*) note "$line" ;;
	esac
done
if ((count)); then tap_result ok kunit_has_tests; else tap_result "not ok" kunit_has_tests; fi
log_check kunit_no_message_above_notice
tap_end
