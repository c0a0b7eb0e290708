#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Data by RDMA between two namespaces with an rxe device each.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suite_script transfer
