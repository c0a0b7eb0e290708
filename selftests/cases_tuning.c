// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "tuning": what the settings of link groups do, as the RDMA core, the
 * page allocator, packet counters and memory cgroups see it, and what becomes of
 * rings when memory is short.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include "cases_links.h"

/* A question of this kind, in the only packet of a SEND: behind UDP and the header of RDMA. */
#define TEST_LINK "udp dport 4791 @th,160,8 0x27 @th,184,8 & 0x80 == 0"

/* Without a connection a group stays for so many seconds. */
static void idle_group_lingers_as_long_as_set(void)
{
	unsigned int none = 0;
	struct pair p;
	uint64_t start;

	settings("lgr_linger", 60);
	p = linked_pair();
	pair_close(&p);
	poll(NULL, 0, 4000);
	CHECK_EQ(qps().of[SERVER][0], 1);
	/* It is looked at anew: what has lasted for too long by now ends. */
	settings("lgr_linger", 2);
	start = now_us();
	if (!busywait(6000, has_qps, &none))
		FAIL("the group stays");
	note("it has ended after %llu ms", (unsigned long long)(now_us() - start) / 1000);
}

/* An idle link is tested as often as set; never, at 0. */
static void idle_link_is_tested_as_often_as_set(void)
{
	unsigned int often;
	struct pair p;

	one_wire();
	p = pair_make(&links_v4);
	settings("smcr_testlink_time", 0);
	count_packets(TEST_LINK);
	poll(NULL, 0, 3500);
	CHECK_EQ(counted(), 0);
	setting(CLIENT, "smcr_testlink_time", 1);
	poll(NULL, 0, 6000);
	often = counted();
	if (often < 2 || often > 12)
		FAIL("%u tests in six seconds", often);
	count_no_packets();
	exchange(&p, 1000, 1000);
	pair_close(&p);
}

/* A message in a packet of its own. */
#define SEND_ONLY "udp dport 4791 @th,64,8 0x04"

/* Either side may want less than the other one of what goes beyond the standard. */
static void extensions_are_those_that_both_want(void)
{
	enum { ROUNDS = 30, OWN_KEYS = 1, SHORT = 2 };

	one_wire();
	for (unsigned int want = 0; want <= (OWN_KEYS | SHORT); want++) {
		struct pair p, q;
		unsigned int sends, told;
		char byte = 'x';

		end_groups();
		settings("extensions", OWN_KEYS | SHORT);
		setting(want & 1 ? CLIENT : SERVER, "extensions", want);
		p = pair_make(&links_v4);
		exchange(&p, 1, 1);
		count_packets(SEND_ONLY);
		for (int i = 0; i < ROUNDS; i++) {
			send_all(p.c, &byte, 1);
			recv_all(p.s, &byte, 1);
			send_all(p.s, &byte, 1);
			recv_all(p.c, &byte, 1);
		}
		sends = counted();
		count_no_packets();
		count_packets(CONFIRM_RKEY);
		exchange(&p, 1, 1);
		q = pair_make(&links_v4);
		exchange(&q, 1, 1);
		told = counted();
		count_no_packets();
		note("%u: %u sends for %d messages, %u keys told", want, sends, ROUNDS, told);
		if (want & SHORT)
			CHECK(sends < ROUNDS / 2);
		else
			CHECK(sends >= ROUNDS);
		if (want & OWN_KEYS)
			CHECK_EQ(told, 0);
		else
			CHECK(told >= 1);
		pair_close(&p);
		pair_close(&q);
	}
	CHECK(sh("ip netns exec %s sysctl -qw net.smc.extensions=4 2>/dev/null", ns_of(CLIENT)));
}

/* Either side may want fewer connections in a group, or one link. */
static void limits_of_a_group_are_the_lesser_ones(void)
{
	for (int side = 0; side < 2; side++) {
		struct pair p[17];
		unsigned int first;

		end_groups();
		setting(side, "smcr_max_conns_per_lgr", 16);
		setting(side, "smcr_max_links_per_lgr", 1);
		for (int i = 0; i < 17; i++)
			p[i] = pair_make(&links_v4);
		first = info_of(p[0].s).lgr_id;
		for (int i = 1; i < 16; i++)
			CHECK_EQ(info_of(p[i].s).lgr_id, first);
		CHECK(info_of(p[16].s).lgr_id != first);
		poll(NULL, 0, 1500);
		CHECK_EQ(qps().of[SERVER][0], 2);
		CHECK_EQ(qps().of[SERVER][1], 0);
		for (int i = 0; i < 17; i++)
			pair_close(&p[i]);
		setting(side, "smcr_max_conns_per_lgr", 255);
		setting(side, "smcr_max_links_per_lgr", 2);
	}
	CHECK(sh("ip netns exec %s sysctl -qw net.smc.smcr_max_conns_per_lgr=15 2>/dev/null", ns_of(CLIENT)));
	CHECK(sh("ip netns exec %s sysctl -qw net.smc.smcr_max_links_per_lgr=3 2>/dev/null", ns_of(CLIENT)));
}

/* Entries of the largest completion queue of the module, which has one for each work request. */
static long long largest_queue(void)
{
	return number_of("rdma resource show cq | sed -n 's/.* cqe \\([0-9]*\\) .*smc_rs.*/\\1/p' | sort -n | tail -1");
}

/* Few work requests or many: data goes, and the RDMA core lists queues of that size. */
static void queues_are_as_long_as_set(void)
{
	static const unsigned int numbers[][2] = { { 2, 2 }, { 16, 48 }, { 2048, 2048 } };
	long long before = 0;

	for (size_t n = 0; n < ARRAY_SIZE(numbers); n++) {
		struct pair p[6];
		struct flow f[12];
		long long entries;

		end_groups();
		settings("smcr_max_send_wr", numbers[n][0]);
		settings("smcr_max_recv_wr", numbers[n][1]);
		for (int i = 0; i < 6; i++) {
			p[i] = pair_make(&links_v4);
			CHECK_EQ(info_of(p[i].c).lgr_id, info_of(p[0].c).lgr_id);
			f[2 * i] = (struct flow) { .fd = p[i].c, .to_send = 300000, .send_seed = i,
						   .to_recv = 300000, .recv_seed = 100 + i };
			f[2 * i + 1] = (struct flow) { .fd = p[i].s, .to_send = 300000, .send_seed = 100 + i,
						       .to_recv = 300000, .recv_seed = i };
		}
		entries = largest_queue();
		note("%u and %u work requests: %lld entries", numbers[n][0], numbers[n][1], entries);
		CHECK(entries >= numbers[n][0] + numbers[n][1]);
		CHECK(entries > before);
		CHECK(entries <= 6 * (numbers[n][0] + numbers[n][1]) + 40);
		before = entries;
		pump(f, 12, 60000);
		for (int i = 0; i < 6; i++)
			pair_close(&p[i]);
	}
	CHECK(sh("ip netns exec %s sysctl -qw net.smc.smcr_max_send_wr=1 2>/dev/null", ns_of(CLIENT)));
	CHECK(sh("ip netns exec %s sysctl -qw net.smc.smcr_max_recv_wr=2049 2>/dev/null", ns_of(CLIENT)));
}

#define TRACING "/sys/kernel/tracing"

/* Rings of 256 KiB: in one piece, in small ones, or as it comes; the kernel's allocator says which. */
static void rings_are_laid_out_as_set(void)
{
	if (sh("test -d " TRACING "/events/kmem/mm_page_alloc || mount -t tracefs none " TRACING " 2>/dev/null"))
		SKIP("needs tracefs");
	one_wire();
	settings("wmem", 262144);
	settings("rmem", 262144);
	for (unsigned int type = 0; type < 3; type++) {
		struct pair p;
		long long whole, small;

		end_groups();
		settings("smcr_buf_type", type);
		/* The send rings come with data that does not fit into a page. */
		CHECK_EQ(sh("cd " TRACING " && echo 'order == 6 || order == 2 || order == 3' >events/kmem/mm_page_alloc/filter && : >trace && echo 1 >events/kmem/mm_page_alloc/enable"), 0);
		p = pair_make(&links_v4);
		exchange(&p, 600000, 600000);
		CHECK_EQ(sh("echo 0 >" TRACING "/events/kmem/mm_page_alloc/enable"), 0);
		CHECK_EQ(info_of(p.c).rmb, 262144);
		CHECK_EQ(info_of(p.s).sndbuf, 262144);
		whole = number_of("grep -c 'order=6 .*__GFP_ZERO' " TRACING "/trace");
		small = number_of("grep -c 'order=[23] .*__GFP_ZERO' " TRACING "/trace");
		note("type %u: %lld large pieces, %lld small ones", type, whole, small);
		/* Two rings at each side. */
		CHECK_EQ(whole, type == 1 ? 0 : 4);
		if (type == 1)
			CHECK(small >= 2 * 16 + 2 * 8);
		pair_close(&p);
	}
	CHECK_EQ(sh("echo 0 >" TRACING "/events/kmem/mm_page_alloc/filter"), 0);
	CHECK(sh("ip netns exec %s sysctl -qw net.smc.smcr_buf_type=3 2>/dev/null", ns_of(CLIENT)));
}

/* What a connection has to tell the peer stands behind seconds of the data of others: it waits, and does not give up. */
static void busy_slow_wire_keeps_newcomers_on_rdma(void)
{
	enum { BUSY = 16, NEW = 3 };
	struct transfer t[BUSY];
	struct pair p[BUSY], q;

	if (sh("modprobe -q sch_netem && tc -V >/dev/null"))
		SKIP("needs tc and sch_netem");
	settings("smcr_max_send_wr", 256);
	settings("smcr_max_recv_wr", 512);
	settings("wmem", 262144);
	settings("rmem", 262144);
	/* With two links each side has to tell its keys. */
	for (int i = 0; i < BUSY; i++)
		p[i] = i ? pair_make(&links_v4) : linked_pair();
	wires_begin(1u << SERVER, 2);
	wires_set(1u << SERVER, 2, "rate 5mbit");
	for (int i = 0; i < BUSY; i++)
		transfer_start(&t[i], &p[i], 1000, 1000000);
	poll(NULL, 0, 1000);
	for (int i = 0; i < NEW; i++) {
		uint64_t start = now_us();

		q = pair_make(&links_v4);
		note("a newcomer took %llu ms", (unsigned long long)(now_us() - start) / 1000);
		CHECK_EQ(info_of(q.c).lgr_id, info_of(p[0].c).lgr_id);
		pair_close(&q);
	}
	wires_set(1u << SERVER, 2, "rate 10gbit");
	for (int i = 0; i < BUSY; i++) {
		transfer_end(&t[i]);
		pair_close(&p[i]);
	}
	wires_end(1u << SERVER, 2);
}

/* Delays what the RDMA devices of the client send, and nothing else. */
static void rdma_is_slow(unsigned int ms)
{
	for (int which = 0; which < 2; which++)
		CHECK_EQ(sh("tc -n %1$s qdisc add dev veth%2$d root handle 1: prio && "
			    "tc -n %1$s qdisc add dev veth%2$d parent 1:3 netem delay %3$ums && "
			    "tc -n %1$s filter add dev veth%2$d parent 1: protocol ip u32 match ip dport 4791 0xffff flowid 1:3",
			    ns_of(CLIENT), which, ms), 0);
}

/* With two links the key of a ring has to be told by an exchange: that comes before the connection. */
static void keys_are_told_ahead(void)
{
	enum { ROUNDS = 6 };
	unsigned int delay = 400 * slowness(), slow = 0;
	struct pair p[ROUNDS];

	if (sh("modprobe -q sch_netem && tc -V >/dev/null"))
		SKIP("needs tc and sch_netem");
	p[0] = linked_pair();
	rdma_is_slow(delay);
	for (int i = 1; i < ROUNDS; i++) {
		uint64_t start;

		/* Nobody uses them for so long that the next ones are made. */
		poll(NULL, 0, 6 * delay);
		start = now_us();
		p[i] = pair_make(&links_v4);
		start = (now_us() - start) / 1000;
		note("connection %d took %llu ms, what a device says takes %u ms", i, (unsigned long long)start, delay);
		CHECK_EQ(info_of(p[i].c).lgr_id, info_of(p[0].c).lgr_id);
		slow += start >= delay;
	}
	wires_mend(2);
	/* The first one may come before any ring was made ahead. */
	CHECK(slow <= 1);
	for (int i = 0; i < ROUNDS; i++) {
		exchange(&p[i], 1000, 1000);
		pair_close(&p[i]);
	}
}

/* Memory regions of the module: one for each receive ring and link. */
static unsigned int regions(void)
{
	return objects("mr");
}

static bool has_regions(void *arg)
{
	return regions() == *(unsigned int *)arg;
}

/* Rings that no connection uses, and groups without one, go when the kernel wants memory back. */
static void unused_rings_go_when_memory_is_short(void)
{
	unsigned int none = 0, used, with_spares;
	struct pair p, q[6];

	one_wire();
	settings("lgr_linger", 600);
	p = pair_make(&links_v4);
	used = regions();
	CHECK_EQ(used, 2);
	for (int i = 0; i < 6; i++)
		q[i] = pair_make(&links_v4);
	with_spares = regions();
	CHECK_EQ(with_spares, 14);
	for (int i = 0; i < 6; i++)
		pair_close(&q[i]);
	/* They are kept for the next ones. */
	poll(NULL, 0, 3000);
	CHECK_EQ(regions(), with_spares);
	CHECK_EQ(sh("echo 2 >/proc/sys/vm/drop_caches"), 0);
	if (!busywait(5000, has_regions, &used))
		FAIL("%u regions are left", regions());
	exchange(&p, 100000, 100000);
	pair_close(&p);
	poll(NULL, 0, 1500);
	CHECK_EQ(qps().of[SERVER][0], 1);
	CHECK_EQ(sh("echo 2 >/proc/sys/vm/drop_caches"), 0);
	if (!busywait(5000, has_qps, &none))
		FAIL("an idle group stays");
}

static bool has_moved(void *arg)
{
	struct pair *p = arg;

	return strcmp(info_of(p->c).ib_name, device(CLIENT, 0)) && strcmp(info_of(p->s).ib_name, device(SERVER, 0));
}

/* Nobody sends, no port goes down, and the packets of the one path are lost: the clock asks. */
static void dead_path_of_an_idle_connection_is_noticed(void)
{
	struct pair p = linked_pair();
	uint64_t start = now_us();

	CHECK(!strcmp(info_of(p.c).ib_name, device(CLIENT, 0)));
	settings("smcr_testlink_time", 1);
	lose_packets(SERVER, 0, "udp dport 4791");
	if (!busywait(30000, has_moved, &p))
		FAIL("the connection is still on %s and %s", info_of(p.c).ib_name, info_of(p.s).ib_name);
	note("it has moved after %llu ms", (unsigned long long)(now_us() - start) / 1000);
	lose_no_packets();
	exchange(&p, 100000, 100000);
	pair_close(&p);
}

#define CGROUPS "/sys/fs/cgroup"

/* Puts this process into a memory cgroup; into the topmost one without a name. */
static void enter_cgroup(const char *name)
{
	char path[100];
	FILE *procs;

	snprintf(path, sizeof(path), CGROUPS "/%s/cgroup.procs", name);
	procs = fopen(path, "w");
	CHECK(procs);
	CHECK(fprintf(procs, "%d", getpid()) > 0);
	CHECK(!fclose(procs));
}

static long long charged(void)
{
	return number_of("sed -n 's/^kernel //p' " CGROUPS "/smctest/memory.stat");
}

/* What is charged at most, in some attempts, when this has just been transferred. */
static long long charged_with(struct pair *p, size_t bytes)
{
	long long most = 0;

	for (int i = 0; i < 5; i++) {
		long long now;

		exchange(p, bytes, bytes);
		now = charged();
		if (now > most)
			most = now;
	}
	return most;
}

static bool little_charged(void *arg)
{
	return charged() <= *(long long *)arg;
}

/* A connection whose two sockets belong to a cgroup, in which this process is not any more when rings are made. */
static struct pair pair_of(const char *cgroup)
{
	struct sockaddr_storage where, to;
	struct pair p;

	enter_cgroup(cgroup);
	p.l = listen_at(&links_v4, 0, &where);
	p.c = sock_at(CLIENT, SMC4, 0);
	enter_cgroup("");
	p.port = ntohs(((struct sockaddr_in *)&where)->sin_port);
	CHECK_OK(connect(p.c, (void *)&to, target(&links_v4, p.port, &to)));
	p.s = CHECK_OK(accept(p.l, NULL, NULL));
	return p;
}

/* Connections of a side that got no memory for a send ring of the wanted size. */
static long long degraded(enum side side)
{
	return number_of("ip netns exec %s \"${SMC_UNLOAD%%/*}/smc-top\" --prometheus | sed -n 's/^smc_send_ring_degraded_total //p'",
			 ns_of(side));
}

static void rings_are_charged_to_the_cgroup_of_the_socket(void)
{
	enum { RING = 524288 };
	struct smc_rs_info info;
	struct pair p, q, out;
	long long before, used, little, small[2];
	unsigned int bytes;

	if (sh("test -e " CGROUPS "/cgroup.procs || mount -t cgroup2 none " CGROUPS " 2>/dev/null") ||
	    sh("echo +memory >" CGROUPS "/cgroup.subtree_control 2>/dev/null"))
		SKIP("needs memory cgroups of version 2");
	CHECK_EQ(sh("mkdir -p " CGROUPS "/smctest"), 0);
	CHECK_EQ(sh("echo max >" CGROUPS "/smctest/memory.max"), 0);
	one_wire();
	settings("wmem", RING);
	settings("rmem", RING);

	out = pair_of("");
	CHECK_EQ(info_of(out.c).rmb, RING);
	before = charged();
	CHECK(before < RING);
	/* Its rings are nobody's, whoever sends first. */
	enter_cgroup("smctest");
	used = charged_with(&out, 300000) - before;
	enter_cgroup("");
	note("somebody else's connection: %lld bytes are charged", used);
	CHECK(used < RING / 2);
	p = pair_of("smctest");
	CHECK_EQ(info_of(p.c).lgr_id, info_of(out.c).lgr_id);
	used = charged() - before;
	note("a ring of 512 KiB at each end: %lld bytes are charged", used);
	CHECK(used >= 2 * RING && used < 3 * RING);
	exchange(&p, 1000, 1000);
	CHECK(charged() - before < 3 * RING);
	used = charged_with(&p, 100000) - before;
	note("with what they send from: %lld bytes", used);
	CHECK(used >= 4 * RING && used < 5 * RING);
	/* Which is given back when nothing is sent for a while. */
	little = before + 3 * RING;
	if (!busywait(10000, little_charged, &little))
		FAIL("%lld bytes are still charged", charged() - before);
	for (enum side side = CLIENT; side <= SERVER; side++)
		small[side] = degraded(side);
	CHECK(small[CLIENT] >= 0 && small[SERVER] >= 0);
	exchange(&p, 100000, 100000);

	/*
	 * Room for one ring more than there is now: what does not fit is smaller, or the connection goes by TCP.  Each
	 * processor may have half a ring's worth of charge in stock.
	 */
	CHECK_EQ(sh("echo $(($(cat " CGROUPS "/smctest/memory.current) + %d)) >" CGROUPS "/smctest/memory.max",
		    RING), 0);
	q = pair_of("smctest");
	exchange(&q, 500000, 500000);
	/* A connection counts once, however often it asks. */
	for (enum side side = CLIENT; side <= SERVER; side++) {
		small[side] = degraded(side) - small[side];
		note("%lld connections of side %d got no send ring as large as wanted", small[side], side);
		CHECK(small[side] <= 2);
	}
	CHECK_EQ(smc_info(q.c, &info), 0);
	bytes = info.mode == SMC_RS_MODE_SMCR ? info.rmb + info.sndbuf + info_of(q.s).rmb + info_of(q.s).sndbuf : 0;
	note("at the limit: %s, rings of %u bytes", info.mode == SMC_RS_MODE_SMCR ? "RDMA" : "TCP", bytes);
	CHECK(bytes < 3 * RING);
	pair_close(&q);
	/* Others do not feel that. */
	q = pair_of("");
	CHECK_EQ(info_of(q.c).rmb, RING);
	CHECK_EQ(info_of(q.s).sndbuf, RING);
	pair_close(&q);
	CHECK_EQ(number_of("sed -n 's/^oom_kill //p' " CGROUPS "/smctest/memory.events"), 0);

	CHECK_EQ(sh("echo max >" CGROUPS "/smctest/memory.max"), 0);
	pair_close(&p);
	pair_close(&out);
	end_groups();
	before += RING / 8;
	if (!busywait(10000, little_charged, &before))
		FAIL("%lld bytes are still charged", charged());
	CHECK_EQ(sh("rmdir " CGROUPS "/smctest"), 0);
}

static const struct test_case tuning_cases[] = {
	CASE_LIMIT(idle_group_lingers_as_long_as_set, 120),
	CASE_LIMIT(idle_link_is_tested_as_often_as_set, 120),
	CASE_LIMIT(dead_path_of_an_idle_connection_is_noticed, 120),
	CASE_LIMIT(extensions_are_those_that_both_want, 120),
	CASE_LIMIT(limits_of_a_group_are_the_lesser_ones, 120),
	CASE_LIMIT(queues_are_as_long_as_set, 120),
	CASE_LIMIT(rings_are_laid_out_as_set, 120),
	CASE_LIMIT(busy_slow_wire_keeps_newcomers_on_rdma, 120),
	CASE_LIMIT(keys_are_told_ahead, 120),
	CASE_LIMIT(unused_rings_go_when_memory_is_short, 120),
	CASE_LIMIT(rings_are_charged_to_the_cgroup_of_the_socket, 120),
};

const struct suite suite_tuning = {
	.name = "tuning", .cases = tuning_cases, .count = ARRAY_SIZE(tuning_cases),
	.prepare = links_prepare, .mend = groups_mend,
};
