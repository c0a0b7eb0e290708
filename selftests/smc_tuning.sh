#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Two namespaces with two RDMA devices each: what the settings of link
# groups do, and what becomes of their memory.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suite_script tuning second
