#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Two namespaces with two RDMA devices each: second links, and what happens to
# connections when links are lost.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suite_script links second
