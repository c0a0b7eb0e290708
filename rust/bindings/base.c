// SPDX-License-Identifier: GPL-2.0
/* Wrappers for rust/kapi/{sync,work,time,...}.rs. */

void smc_helper_spin_lock_bh_init(spinlock_t *lock, const char *name,
				  struct lock_class_key *key)
{
#ifdef CONFIG_DEBUG_SPINLOCK
	__raw_spin_lock_init(spinlock_check(lock), name, key, LD_WAIT_CONFIG);
#else
	spin_lock_init(lock);
#endif
}

void smc_helper_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

void smc_helper_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

int smc_helper_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

void smc_helper_assert_spin_locked(spinlock_t *lock)
{
	lockdep_assert_held(lock);
}

struct workqueue_struct *smc_helper_smc_alloc_workqueue(const char *name,
							unsigned int flags)
{
	return alloc_workqueue("%s", flags, 0, name);
}

void smc_helper_smc_flush_workqueue(struct workqueue_struct *wq)
{
	__flush_workqueue(wq);
}

void smc_helper_smc_host_name(char *to, size_t len)
{
	memcpy(to, init_uts_ns.name.nodename, min_t(size_t, len, __NEW_UTS_LEN));
}

struct mem_cgroup *smc_helper_set_active_memcg(struct mem_cgroup *memcg)
{
	return set_active_memcg(memcg);
}

void smc_helper_smc_memcg_get(struct mem_cgroup *memcg)
{
#ifdef CONFIG_MEMCG
	css_get(&memcg->css);
#endif
}

void smc_helper_mem_cgroup_put(struct mem_cgroup *memcg)
{
	mem_cgroup_put(memcg);
}
