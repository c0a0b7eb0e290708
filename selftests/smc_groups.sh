#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Two namespaces with two RDMA devices each: how link groups get and lose links,
# and how they end.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suite_script groups second
