#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Devices, interfaces, namespaces and the module go under many connections.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

suite_script crowd
