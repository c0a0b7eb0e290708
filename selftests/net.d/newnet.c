// SPDX-License-Identifier: GPL-2.0
/*
 * Loaded into the programs that smc_net.sh runs: in each network namespace that
 * they make, SMC_NET_HOOK is run before they go on. It is what an operator would
 * do there; a program whose namespace it does not suit must not run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int unshare(int flags)
{
	const char *hook = getenv("SMC_NET_HOOK");
	int saved = errno;

	/*
	 * While an rxe device goes, as it does after its namespace, the RDMA core
	 * makes no new ones: it cannot ask that device what its port is like.
	 */
	for (int left = 100; syscall(SYS_unshare, flags); left--) {
		if (!(flags & CLONE_NEWNET) || errno != ENODEV || !left)
			return -1;
		usleep(100000);
	}
	if ((flags & CLONE_NEWNET) && hook && system(hook)) {
		fprintf(stderr, "%s failed in a new network namespace\n", hook);
		abort();
	}
	errno = saved;
	return 0;
}
