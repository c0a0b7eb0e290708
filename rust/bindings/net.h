/* SPDX-License-Identifier: GPL-2.0 */
/* Headers for rust/kapi/net/. */
#include <linux/net.h>
#include <net/sock.h>
