// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "isolated": the RDMA core keeps devices to the namespace that they are
 * in ("rdma system set netns exclusive"), and devices move from one to another.
 * Each of the two namespaces has two interfaces, with two devices on them.
 */
#define _GNU_SOURCE
#include <poll.h>

#include "cases_links.h"

#define NO_RDMA_DEVICE 0x03030002

/* The device goes into the namespace of its interface, or out into that of the machine. */
static void move_in(enum side side, int which)
{
	CHECK_EQ(sh("nsenter -t 1 -n rdma dev set %s netns %s", device(side, which), ns_of(side)), 0);
}

static void move_out(enum side side, int which)
{
	uint64_t start = now_us();

	/* It takes a name of the machine's namespace to go there. */
	CHECK_EQ(sh("ip netns attach smctout 1; ip netns exec %s rdma dev set %s netns smctout; s=$?; "
		    "ip netns del smctout; exit $s", ns_of(side), device(side, which)), 0);
	device_went(side, which, "moved", start);
}

static bool is_inside(enum side side, int which)
{
	return !sh("ip netns exec %s rdma dev show %s >/dev/null 2>&1", ns_of(side), device(side, which));
}

/* Objects of the module on the devices of a namespace; those of the machine with NULL. */
static long long queue_pairs(const char *ns)
{
	return number_of("nsenter --net=%s%s rdma resource show qp | grep -c 'smc_rs'", ns ? "/run/netns/" : "/proc/1/ns/net",
			 ns ? ns : "");
}

/* Whether the group has so many links, each with two queue pairs at either side. */
static bool has_links(void *arg)
{
	long long want = 2 * *(int *)arg;

	return queue_pairs(ns_of(CLIENT)) == want && queue_pairs(ns_of(SERVER)) == want;
}

static void expect_links(int n)
{
	uint64_t start = now_us();

	if (!busywait(SECOND_MS, has_links, &n))
		FAIL("%d links are expected: queue pairs of the client %lld, of the server %lld", n,
		     queue_pairs(ns_of(CLIENT)), queue_pairs(ns_of(SERVER)));
	note("%d links after %llu ms", n, (unsigned long long)(now_us() - start) / 1000);
}

static void mend(void)
{
	int none = 0;

	for (int which = 0; which < 2; which++)
		for (int side = 0; side < 2; side++)
			if (!is_inside(side, which))
				move_in(side, which);
	if (!drain_groups(has_links, &none))
		FAIL("groups do not end");
}

static bool goes_by_rdma(void *arg)
{
	struct pair p = pair_make(&links_v4);
	struct smc_rs_info info;

	(void)arg;
	CHECK_EQ(smc_info(p.c, &info), 0);
	pair_close(&p);
	return info.mode == SMC_RS_MODE_SMCR;
}

/* The interfaces are here, and the devices on them belong to another namespace. */
static void device_of_another_namespace_is_left_alone(void)
{
	struct pair p;

	for (int which = 0; which < 2; which++)
		move_out(CLIENT, which);
	p = pair_make(&links_v4);

	struct smc_rs_info info;

	CHECK_EQ(smc_info(p.c, &info), 0);
	CHECK_EQ(info.mode, SMC_RS_MODE_TCP);
	CHECK_EQ(info.fallback_reason, NO_RDMA_DEVICE);
	exchange(&p, 100000, 100000);
	pair_close(&p);
	CHECK_EQ(queue_pairs(NULL), 0);
	move_in(CLIENT, 0);
	if (!busywait(10000, goes_by_rdma, NULL))
		FAIL("connections go by TCP, though the device is here");
}

static void nothing_outside(void)
{
	CHECK_EQ(queue_pairs(NULL), 0);
}

static void expect_two_links(void)
{
	expect_links(2);
}

/* One device after the other goes to another namespace, and comes back. */
static void devices_that_move(enum side side)
{
	static const struct losing moved = {
		.lose = move_out, .back = move_in, .meanwhile = nothing_outside, .both = expect_two_links,
	};
	struct pair p = pair_make(&links_v4);

	expect_links(2);
	lose_each_device(&p, side, &moved);
}

static void devices_of_the_client_move_and_no_byte_is_lost(void)
{
	devices_that_move(CLIENT);
}

static void devices_of_the_server_move_and_no_byte_is_lost(void)
{
	devices_that_move(SERVER);
}

/* With the last device the connections end, at both sides, and the next one goes by TCP until a device comes back. */
static void last_device_that_moves_aborts(void)
{
	struct pair p = pair_make(&links_v4);
	char buf[100];
	int none = 0;

	expect_links(2);
	for (int which = 0; which < 2; which++)
		move_out(SERVER, which);
	wait_events(p.s, POLLIN, 10000);
	wait_events(p.c, POLLIN, 45000);
	CHECK_ERRNO(recv(p.s, buf, sizeof(buf), 0), ECONNABORTED);
	CHECK(recv(p.c, buf, sizeof(buf), 0) == -1);
	CHECK(errno == ECONNABORTED || errno == ECONNRESET);
	pair_close(&p);
	CHECK(busywait(SECOND_MS, has_links, &none));
	CHECK_EQ(queue_pairs(NULL), 0);
	CHECK(!goes_by_rdma(NULL));
	move_in(SERVER, 1);
	move_in(SERVER, 0);
	if (!busywait(10000, goes_by_rdma, NULL))
		FAIL("connections go by TCP, though the devices are back");
}

static const struct test_case isolated_cases[] = {
	CASE_LIMIT(device_of_another_namespace_is_left_alone, 60),
	CASE_LIMIT(devices_of_the_client_move_and_no_byte_is_lost, 120),
	CASE_LIMIT(devices_of_the_server_move_and_no_byte_is_lost, 120),
	CASE_LIMIT(last_device_that_moves_aborts, 120),
};

const struct suite suite_isolated = {
	.name = "isolated", .cases = isolated_cases, .count = ARRAY_SIZE(isolated_cases), .prepare = links_prepare,
	.mend = mend,
};
