// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers for inline functions and macros, no logic of their own. Each is
 * called smc_helper_<name> and reaches Rust as <name>.
 */
#include "bindings.h"

#include "base.c"
#include "net.c"
#include "netlink.c"
#include "probe.c"
#include "rdma.c"
#include "trace.c"
#include "kunit.c"
