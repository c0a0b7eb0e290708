/* SPDX-License-Identifier: GPL-2.0 */
/* Headers for rust/kapi/probe.rs. */
#include <linux/kprobes.h>
#include <linux/ptrace.h>
