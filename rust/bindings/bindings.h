/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel headers that bindgen reads, one list for each room of kapi.
 * A macro constant that bindgen cannot evaluate is given a value here under
 * the name SMC_CONST_<name>; the prefix is cut off afterwards.
 */
#include "base.h"
#include "net.h"
#include "netlink.h"
#include "probe.h"
#include "rdma.h"
