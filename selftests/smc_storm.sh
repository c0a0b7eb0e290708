#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Two namespaces with two RDMA devices each: thousands of connections. It takes
# minutes and is not part of the usual run.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suite_script storm second
