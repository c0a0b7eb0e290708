// SPDX-License-Identifier: GPL-2.0
/*
 * Namespaces of a case's own, see places.h.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>

#include "cases.h"
#include "places.h"

bool device_gone(void *name)
{
	char path[200];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s", (char *)name);
	return access(path, F_OK) != 0;
}

void enter_place(const char *name)
{
	char path[64];
	int ns;

	snprintf(path, sizeof(path), "/run/netns/%s", name);
	ns = CHECK_OK(open(path, O_RDONLY | O_CLOEXEC));
	CHECK_OK(setns(ns, CLONE_NEWNET));
	close(ns);
}

void namespaces_add(const char *a, const char *b, bool rdma)
{
	CHECK_EQ(sh("set -e; ip netns add %s; ip netns add %s; "
		    "ip link add veth0 netns %s type veth peer name veth0 netns %s; "
		    "ip -n %s addr add " PLACE_A "/24 dev veth0; ip -n %s link set veth0 up; "
		    "ip -n %s addr add " PLACE_B "/24 dev veth0; ip -n %s link set veth0 up",
		    a, b, a, b, a, a, b, b), 0);
	if (rdma)
		CHECK_EQ(sh("ip netns exec %s rdma link add %s type rxe netdev veth0 && "
			    "ip netns exec %s rdma link add %s type rxe netdev veth0",
			    a, a, b, b), 0);
}
