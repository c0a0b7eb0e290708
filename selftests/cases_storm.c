// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "storm": clients open and close connections by the thousand, each of
 * them ends in some other way, and afterwards everything that can be counted is
 * as it was.  It takes minutes and runs only when it is named.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>

#include "cases_links.h"

/* As many clients at once. */
#define CLIENTS 8

/* How a connection ends; the client chooses. */
enum ending {
	CLIENT_FIRST,		/* everything is read, and the client closes first */
	SERVER_FIRST,		/* the server does */
	UNREAD,			/* the client leaves with data unread */
	RESET,			/* the client goes away in the middle: SO_LINGER of zero */
	ENDINGS
};

/* What the client says first. */
struct plan {
	uint32_t ending, seed, to_server, to_client;
};

/* What the module keeps, as the kernel counts it. */
struct kept {
	long long sockets, qps, cqs, mrs, pds, memory_kib;
};

static struct kept kept(void)
{
	struct kept k = {
		.sockets = proto_sockets("SMC") + proto_sockets("SMC6"),
		.qps = objects("qp"), .cqs = objects("cq"), .mrs = objects("mr"), .pds = objects("pd"),
	};

	CHECK_EQ(sh("sync; echo 3 >/proc/sys/vm/drop_caches"), 0);
	k.memory_kib = number_of("sed -n 's/^MemAvailable: *\\([0-9]*\\).*/\\1/p' /proc/meminfo");
	return k;
}

static bool is_as_before(void *arg)
{
	const struct kept *before = arg;
	struct kept now = kept();

	return now.sockets == before->sockets && now.qps == before->qps && now.cqs == before->cqs &&
	       now.mrs == before->mrs && now.pds == before->pds &&
	       now.memory_kib >= before->memory_kib - before->memory_kib / 20;
}

static struct storm {
	int listener;
	unsigned int port, rounds;
	uint64_t seed;
	/* By RDMA, by TCP, and not at all. */
	unsigned int rdma, tcp, none;
	uint64_t bytes;
} storm;

/* Reads until the end, or until the other side has given the connection up. */
static void drain(int fd)
{
	static __thread char buf[65536];
	ssize_t n;

	do {
		if (!(poll_one(fd, POLLIN, 60000) & (POLLIN | POLLHUP | POLLERR)))
			FAIL("nothing comes, not even the end");
		n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
	} while (n > 0);
	CHECK(n == 0 || errno == ECONNRESET || errno == ECONNABORTED);
}

/* Sends what the client will not read. */
static void send_in_vain(int fd, size_t len)
{
	static __thread char buf[65536];

	while (len) {
		size_t part = len < sizeof(buf) ? len : sizeof(buf);
		ssize_t n = send(fd, buf, part, MSG_NOSIGNAL);

		if (n < 0) {
			CHECK(errno == EPIPE || errno == ECONNRESET || errno == ECONNABORTED);
			return;
		}
		len -= n;
	}
}

static void serve(int fd)
{
	struct plan plan;
	struct flow f = { .fd = fd };

	recv_all(fd, &plan, sizeof(plan));
	f.recv_seed = plan.seed;
	f.send_seed = plan.seed + 1;
	if (plan.ending < UNREAD) {
		f.to_recv = plan.to_server;
		f.to_send = plan.to_client;
		pump(&f, 1, 60000);
	} else if (plan.ending == UNREAD) {
		send_in_vain(fd, plan.to_client);
	} else {
		/* What is on its way to us when a reset comes would go with it. */
		send_all(fd, "!", 1);
	}
	if (plan.ending != SERVER_FIRST)
		drain(fd);
	close(fd);
}

static void *server(void *arg)
{
	(void)arg;
	enter(SERVER);
	for (;;) {
		int fd = accept(storm.listener, NULL, NULL);

		if (fd < 0) {
			/* The listener was shut down. */
			CHECK(errno == EINVAL);
			return NULL;
		}
		serve(fd);
	}
}

/* One connection, from the first call to the last. */
static void one(uint64_t *rng)
{
	struct plan plan = {
		.ending = dice(rng, ENDINGS), .seed = dice(rng, 1u << 30),
		.to_server = 1 + dice(rng, 30000), .to_client = 1 + dice(rng, 30000),
	};
	int fd = sock_at(CLIENT, SMC4, 0);
	struct linger linger = { .l_onoff = 1 };
	struct flow f = { .fd = fd, .send_seed = plan.seed, .recv_seed = plan.seed + 1 };
	struct sockaddr_storage to;
	struct smc_rs_info info;
	char heard;

	row("ending %u, seed %u, %u and %u bytes", plan.ending, plan.seed, plan.to_server, plan.to_client);
	if (connect(fd, (void *)&to, target(&links_v4, storm.port, &to))) {
		note("connect: %s", strerrorname_np(errno));
		__atomic_add_fetch(&storm.none, 1, __ATOMIC_RELAXED);
		close(fd);
		return;
	}
	CHECK_EQ(smc_info(fd, &info), 0);
	__atomic_add_fetch(info.mode == SMC_RS_MODE_SMCR ? &storm.rdma : &storm.tcp, 1, __ATOMIC_RELAXED);
	send_all(fd, &plan, sizeof(plan));
	switch (plan.ending) {
	case SERVER_FIRST:
	case CLIENT_FIRST:
		f.to_send = plan.to_server;
		f.to_recv = plan.to_client;
		pump(&f, 1, 60000);
		if (plan.ending == SERVER_FIRST)
			expect_eof(fd);
		__atomic_add_fetch(&storm.bytes, plan.to_server + plan.to_client, __ATOMIC_RELAXED);
		break;
	case UNREAD:
		wait_events(fd, POLLIN, 60000);
		break;
	case RESET:
		recv_all(fd, &heard, 1);
		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
		break;
	}
	close(fd);
}

static void *client(void *arg)
{
	uint64_t rng = storm.seed + (uintptr_t)arg * 0x9e3779b97f4a7c15ull;

	enter(CLIENT);
	for (unsigned int i = 0; i < storm.rounds; i++)
		one(&rng);
	return NULL;
}

/* So many connections over CLIENTS clients. */
static void blow(unsigned int conns)
{
	pthread_t servers[CLIENTS], clients[CLIENTS];
	struct sockaddr_storage where;
	uint64_t start = now_us();

	storm.rounds = conns / CLIENTS;
	storm.rdma = storm.tcp = storm.none = 0;
	storm.bytes = 0;
	storm.listener = listen_at(&links_v4, 0, &where);
	storm.port = addr_port(&where);
	for (uintptr_t i = 0; i < CLIENTS; i++) {
		CHECK_EQ(pthread_create(&servers[i], NULL, server, NULL), 0);
		CHECK_EQ(pthread_create(&clients[i], NULL, client, (void *)i), 0);
	}
	for (int i = 0; i < CLIENTS; i++)
		CHECK_EQ(pthread_join(clients[i], NULL), 0);
	CHECK_OK(shutdown(storm.listener, SHUT_RD));
	for (int i = 0; i < CLIENTS; i++)
		CHECK_EQ(pthread_join(servers[i], NULL), 0);
	close(storm.listener);
	note("%u connections by RDMA, %u by TCP, %u not at all; %llu bytes checked; %llu s",
	     storm.rdma, storm.tcp, storm.none, (unsigned long long)storm.bytes,
	     (unsigned long long)(now_us() - start) / 1000000);
}

/* How many connections a case makes. */
static unsigned int wanted(void)
{
	const char *text = getenv("SMC_STORM");

	storm.seed = seed();
	return text ? atoi(text) : 2000;
}

static struct kept before_storm(void)
{
	restore();
	/* What is made once, and kept, is there then. */
	blow(4 * CLIENTS);
	end_groups();
	return kept();
}

static void expect_as_before(struct kept *before)
{
	struct kept now;

	end_groups();
	if (busywait(30000, is_as_before, before))
		return;
	now = kept();
	FAIL("sockets %lld (%lld before), queue pairs %lld (%lld), completion queues %lld (%lld), "
	     "regions %lld (%lld), domains %lld (%lld), KiB free %lld (%lld)",
	     now.sockets, before->sockets, now.qps, before->qps, now.cqs, before->cqs,
	     now.mrs, before->mrs, now.pds, before->pds, now.memory_kib, before->memory_kib);
}

static void storm_leaves_nothing(void)
{
	unsigned int conns = wanted();
	struct kept before = before_storm();

	blow(conns);
	CHECK_EQ(storm.rdma, conns / CLIENTS * CLIENTS);
	expect_as_before(&before);
}

/* The same where packets are late, and some get lost. */
static void storm_over_a_bad_wire_leaves_nothing(void)
{
	unsigned int conns = wanted();
	struct kept before;

	if (sh("modprobe -q sch_netem && tc -V >/dev/null"))
		SKIP("needs tc and sch_netem");
	before = before_storm();
	wires_begin(BOTH_SIDES, 2);
	wires_set(BOTH_SIDES, 2, "delay 2ms loss 0.1%");
	blow(conns);
	/* A handshake may need more patience than there is. */
	CHECK_EQ(storm.rdma + storm.tcp + storm.none, conns / CLIENTS * CLIENTS);
	CHECK(storm.rdma >= conns / 10 * 9);
	CHECK(storm.none <= conns / 100);
	wires_set(BOTH_SIDES, 2, "delay 0ms loss 0%");
	wires_end(BOTH_SIDES, 2);
	expect_as_before(&before);
}

static const struct test_case storm_cases[] = {
	CASE_LIMIT(storm_leaves_nothing, 1200),
	CASE_LIMIT(storm_over_a_bad_wire_leaves_nothing, 1800),
};

const struct suite suite_storm = {
	.name = "storm", .cases = storm_cases, .count = ARRAY_SIZE(storm_cases),
	.prepare = links_prepare, .mend = groups_mend,
};
