// SPDX-License-Identifier: GPL-2.0
/* Wrappers for rust/kapi/probe.rs. */
#include <linux/cgroup.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>

/*
 * Where the three arguments of a function stand at its entry: the only code
 * here that differs from one machine to another.
 */
#if defined(CONFIG_X86_64)
#define SMC_ARG1(regs) ((regs)->di)
#define SMC_ARG2(regs) ((regs)->si)
#define SMC_ARG3(regs) ((regs)->dx)
#elif defined(CONFIG_ARM64)
#define SMC_ARG1(regs) ((regs)->regs[0])
#define SMC_ARG2(regs) ((regs)->regs[1])
#define SMC_ARG3(regs) ((regs)->regs[2])
#elif defined(CONFIG_S390)
#define SMC_ARG1(regs) ((regs)->gprs[2])
#define SMC_ARG2(regs) ((regs)->gprs[3])
#define SMC_ARG3(regs) ((regs)->gprs[4])
#endif

bool smc_helper_probes_supported(void)
{
#if defined(CONFIG_KPROBES) && defined(SMC_ARG1)
	return true;
#else
	return false;
#endif
}

int smc_helper_probe_register(struct kprobe *p)
{
	return register_kprobe(p);
}

void smc_helper_probe_unregister(struct kprobe *p)
{
	unregister_kprobe(p);
}

int smc_helper_regs_first(const struct pt_regs *regs)
{
#ifdef SMC_ARG1
	return (int)SMC_ARG1(regs);
#else
	return 0;
#endif
}

int smc_helper_regs_second(const struct pt_regs *regs)
{
#ifdef SMC_ARG1
	return (int)SMC_ARG2(regs);
#else
	return 0;
#endif
}

int smc_helper_regs_third(const struct pt_regs *regs)
{
#ifdef SMC_ARG1
	return (int)SMC_ARG3(regs);
#else
	return 0;
#endif
}

void smc_helper_regs_set_third(struct pt_regs *regs, int value)
{
#ifdef SMC_ARG1
	SMC_ARG3(regs) = value;
#endif
}

/* What a probe is tried on before it is trusted: gives back its third argument. */
noinline int smc_helper_probe_target(int family, int type, int protocol)
{
	asm volatile("" : "+r" (family), "+r" (type), "+r" (protocol));
	return protocol;
}

/* The network namespace of the running program; null for the kernel's own threads. */
struct net *smc_helper_current_net(void)
{
	if ((current->flags & PF_KTHREAD) || !current->nsproxy)
		return NULL;
	return current->nsproxy->net_ns;
}

bool smc_helper_current_no_new_privs(void)
{
	return task_no_new_privs(current);
}

/* The name of the running program's first thread, in 16 bytes. */
void smc_helper_current_command(char *to)
{
	BUILD_BUG_ON(TASK_COMM_LEN != 16);
	/* It may change meanwhile: then a bit of both names is read. */
	memcpy(to, current->group_leader->comm, TASK_COMM_LEN);
	to[TASK_COMM_LEN - 1] = 0;
}

bool smc_helper_current_in_cgroup(u64 id)
{
	bool found = false;
#ifdef CONFIG_CGROUPS
	struct cgroup *cgrp;

	rcu_read_lock();
	for (cgrp = task_dfl_cgroup(current); cgrp && !found;
	     cgrp = cgroup_parent(cgrp))
		found = cgroup_id(cgrp) == id;
	rcu_read_unlock();
#endif
	return found;
}

bool smc_helper_this_module_stays(void)
{
	return module_is_live(THIS_MODULE);
}
