/* SPDX-License-Identifier: GPL-2.0 */
/* Headers for rust/kapi/{sync,work,time,...}.rs. */
#include <linux/errno.h>
#include <linux/gfp.h>
#include <linux/jiffies.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/random.h>
#include <linux/ratelimit.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/utsname.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

static const gfp_t SMC_CONST_GFP_KERNEL = GFP_KERNEL;
static const gfp_t SMC_CONST_GFP_ATOMIC = GFP_ATOMIC;
static const gfp_t SMC_CONST_GFP_KERNEL_ACCOUNT = GFP_KERNEL_ACCOUNT;
static const gfp_t SMC_CONST___GFP_ZERO = __GFP_ZERO;
static const gfp_t SMC_CONST___GFP_NOWARN = __GFP_NOWARN;
static const gfp_t SMC_CONST___GFP_NORETRY = __GFP_NORETRY;
static const gfp_t SMC_CONST___GFP_RETRY_MAYFAIL = __GFP_RETRY_MAYFAIL;
static const gfp_t SMC_CONST___GFP_COMP = __GFP_COMP;
