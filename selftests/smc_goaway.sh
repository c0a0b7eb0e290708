#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The module, an RDMA device or a namespace is taken away under open sockets.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suite_script goaway
