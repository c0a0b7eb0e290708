/* SPDX-License-Identifier: GPL-2.0 */
/* Headers for rust/kapi/netlink/. */
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <net/genetlink.h>
#include <net/netlink.h>
