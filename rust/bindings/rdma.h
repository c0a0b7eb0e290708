/* SPDX-License-Identifier: GPL-2.0 */
/* Headers for rust/kapi/rdma/ and rust/kapi/pages.rs. */
#include <linux/completion.h>
#include <linux/gfp.h>
#include <linux/inetdevice.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/scatterlist.h>
#include <linux/uio.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>
