#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# RDMA devices that belong to one namespace alone, and move from one to another.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

need_root
need_command rdma
devices_isolated || tap_skip_all "needs RDMA devices that belong to namespaces, and no other namespace"
# rxe does not let go of the queue pair for management when its device moves.
suite_script isolated second "rxe_create_qp: (returned err = -22|[0-9]+ callbacks suppressed)|Couldn.t create ib_mad QP1|Couldn.t open port 1"
