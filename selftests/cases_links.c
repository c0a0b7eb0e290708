// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "links": link groups with a second link between the namespaces, each of
 * which has two RDMA devices.  Links are lost in mid-transfer and come back;
 * what the devices count and what the RDMA core lists says which link carries
 * the data.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "cases_links.h"

const struct flavour links_v4 = { "AF_SMC v4", SMC4, SMC4, SERVER_V4, SERVER_V4 };
static const struct flavour links_v6 = { "AF_SMC v6", SMC6, SMC6, SERVER_V6, SERVER_V6 };

const char *device(enum side side, int which)
{
	static const char *const names[2][2] = {
		{ "SMC_DEV_CLIENT", "SMC_DEV_CLIENT2" },
		{ "SMC_DEV_SERVER", "SMC_DEV_SERVER2" },
	};

	return getenv(names[side][which]);
}

long long number_of(const char *fmt, ...)
{
	char cmd[600], line[200] = "";
	va_list ap;
	FILE *out;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof(cmd), fmt, ap);
	va_end(ap);
	out = popen(cmd, "r");
	if (!out)
		FAIL("popen: %s", strerror(errno));
	if (!fgets(line, sizeof(line), out))
		line[0] = '\0';
	pclose(out);
	return line[0] ? atoll(line) : -1;
}

unsigned int qps_on(const char *device, unsigned int *number)
{
	FILE *out = popen("rdma resource show qp 2>/dev/null", "r");
	char line[400], name[100];
	unsigned int lqpn, n = 0;

	if (!out)
		FAIL("popen: %s", strerror(errno));
	while (fgets(line, sizeof(line), out)) {
		if (!strstr(line, "state RTS") || !strstr(line, "[smc_rs]") ||
		    (strstr(line, "rq-psn 0 ") && strstr(line, "sq-psn 0 ")) ||
		    sscanf(line, "link %99[^/ ]/1 lqpn %u", name, &lqpn) != 2 || strcmp(name, device))
			continue;
		n++;
		if (number)
			*number = lqpn;
	}
	pclose(out);
	return n;
}

struct qps qps(void)
{
	struct qps n;

	for (int side = 0; side < 2; side++)
		for (int which = 0; which < 2; which++)
			n.of[side][which] = qps_on(device(side, which), NULL);
	return n;
}

static bool there(enum side side, int which)
{
	char path[200];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s", device(side, which));
	return access(path, F_OK) == 0;
}

void device_went(enum side side, int which, const char *how, uint64_t start)
{
	uint64_t took = now_us() - start;

	note("%s was %s in %llu ms", device(side, which), how, (unsigned long long)took / 1000);
	if (took > 4000000ull * slowness())
		FAIL("%s was %s in no less than %llu ms", device(side, which), how, (unsigned long long)took / 1000);
}

void device_delete(enum side side, int which)
{
	uint64_t start = now_us();

	CHECK_EQ(sh("rdma link delete %s", device(side, which)), 0);
	device_went(side, which, "deleted", start);
}

void device_add(enum side side, int which)
{
	CHECK_EQ(sh("ip netns exec %s rdma link add %s type rxe netdev veth%d", ns_of(side),
		    device(side, which), which), 0);
}

void netdev(enum side side, int which, const char *state)
{
	CHECK_EQ(sh("ip -n %s link set veth%d %s", ns_of(side), which, state), 0);
}

void restore(void)
{
	for (int which = 0; which < 2; which++)
		for (int side = 0; side < 2; side++) {
			netdev(side, which, "up");
			if (!there(side, which))
				device_add(side, which);
		}
}

bool links_prepare(void)
{
	for (int which = 0; which < 2; which++)
		for (int side = 0; side < 2; side++)
			if (!have_namespaces() || !device(side, which)) {
				suite_skip_reason("needs two namespaces with two RDMA devices each");
				return false;
			}
	return true;
}

bool has_qps(void *arg)
{
	unsigned int want = *(unsigned int *)arg;
	struct qps n = qps();

	for (int which = 0; which < 2; which++)
		for (int side = 0; side < 2; side++)
			if (n.of[side][which] != want)
				return false;
	return true;
}

void expect_both_links(void)
{
	uint64_t start = now_us();
	unsigned int one = 1;

	if (!busywait(SECOND_MS, has_qps, &one)) {
		struct qps n = qps();

		FAIL("no two links: queue pairs of the client %u and %u, of the server %u and %u",
		     n.of[CLIENT][0], n.of[CLIENT][1], n.of[SERVER][0], n.of[SERVER][1]);
	}
	note("both links are there after %llu ms", (unsigned long long)(now_us() - start) / 1000);
}

bool drain_groups(bool (*gone)(void *arg), void *arg)
{
	/* The setting is one of the first namespace, in which the case need not be any more. */
	CHECK_EQ(sh("nsenter -t 1 -n sysctl -qw net.smc.drain=1"), 0);
	bool ended = busywait(SECOND_MS, gone, arg);
	CHECK_EQ(sh("nsenter -t 1 -n sysctl -qw net.smc.drain=0"), 0);
	return ended;
}

void end_groups(void)
{
	unsigned int none = 0;

	if (!drain_groups(has_qps, &none))
		FAIL("groups do not end");
}

struct smc_rs_info info_of(int fd)
{
	struct smc_rs_info info;

	CHECK_EQ(smc_info(fd, &info), 0);
	CHECK_EQ(info.mode, SMC_RS_MODE_SMCR);
	return info;
}

int carried_by(int fd, enum side side)
{
	struct smc_rs_info info = info_of(fd);

	for (int which = 0; which < 2; which++)
		if (!strcmp(info.ib_name, device(side, which)))
			return which;
	FAIL("the connection is on device \"%s\"", info.ib_name);
}

struct place {
	int fd;
	enum side side;
	int which;
};

static bool is_there(void *arg)
{
	struct place *p = arg;

	return carried_by(p->fd, p->side) == p->which;
}

void expect_carried_by(struct pair *p, int which)
{
	struct place c = { p->c, CLIENT, which }, s = { p->s, SERVER, which };

	if (!busywait(5000, is_there, &c) || !busywait(5000, is_there, &s))
		FAIL("a connection is on links %d and %d, not on %d", carried_by(p->c, CLIENT),
		     carried_by(p->s, SERVER), which);
}

static struct pair linked_pair_of(const struct flavour *f)
{
	struct pair p;

	end_groups();
	restore();
	p = pair_make(f);
	expect_both_links();
	return p;
}

struct pair linked_pair(void)
{
	return linked_pair_of(&links_v4);
}

static void *transfer_thread(void *arg)
{
	struct transfer *t = arg;
	bool last;

	do {
		/* Asked first: what happened before the end was wanted has a whole round behind it. */
		last = t->ending;
		for (int i = 0; i < 2; i++) {
			t->flows[i].to_send += t->round[i];
			t->flows[!i].to_recv += t->round[i];
		}
		pump_blocking(t->flows, 2);
	} while (!last);
	t->done = true;
	return NULL;
}

void transfer_start(struct transfer *t, struct pair *p, uint64_t to_server,
			   uint64_t to_client)
{
	*t = (struct transfer) {
		.flows = {
			{ .fd = p->c, .send_seed = p->port, .recv_seed = p->port + 70000,
			  .chunk = 16384 },
			{ .fd = p->s, .send_seed = p->port + 70000, .recv_seed = p->port,
			  .chunk = 16384 },
		},
		.round = { to_server, to_client },
	};
	CHECK(!pthread_create(&t->thread, NULL, transfer_thread, t));
}

static uint64_t transfer_received(struct transfer *t)
{
	return __atomic_load_n(&t->flows[0].received, __ATOMIC_RELAXED) +
	       __atomic_load_n(&t->flows[1].received, __ATOMIC_RELAXED);
}

void transfer_wait(struct transfer *t, uint64_t more)
{
	uint64_t want = transfer_received(t) + more, last = transfer_received(t);
	uint64_t since = now_us(), end = since + 60000000ull * slowness();

	while (!t->done && transfer_received(t) < want) {
		uint64_t now = now_us(), got = transfer_received(t);

		if (got != last) {
			last = got;
			since = now;
		} else if (now - since > t->longest_us) {
			t->longest_us = now - since;
		}
		if (now > end)
			FAIL("the transfer stands at %llu bytes", (unsigned long long)got);
		poll(NULL, 0, 2);
	}
}

void transfer_end(struct transfer *t)
{
	t->ending = true;
	transfer_wait(t, UINT64_MAX / 2);
	pthread_join(t->thread, NULL);
	note("the longest pause was %llu ms", (unsigned long long)t->longest_us / 1000);
}

static void second_link_is_added_and_both_are_used(void)
{
	struct pair p = linked_pair(), q;
	uint64_t used[2] = { 0, 0 };

	exchange(&p, 500000, 500000);
	used[carried_by(p.c, CLIENT)]++;
	/* A later connection takes the link with fewer of them. */
	q = pair_make(&links_v4);
	CHECK_EQ(info_of(q.c).lgr_id, info_of(p.c).lgr_id);
	CHECK_EQ(info_of(q.s).link_id, info_of(q.c).link_id);
	CHECK(info_of(q.c).link_id != info_of(p.c).link_id);
	CHECK_EQ(carried_by(q.c, CLIENT), carried_by(q.s, SERVER));
	used[carried_by(q.c, CLIENT)]++;
	exchange(&q, 500000, 500000);
	CHECK_EQ(used[0], 1);
	CHECK_EQ(used[1], 1);
	pair_close(&p);
	pair_close(&q);
}

void lose_each_device(struct pair *p, enum side side, const struct losing *by)
{
	struct transfer t;
	int first = carried_by(p->c, CLIENT);

	transfer_start(&t, p, MUCH, MUCH);
	transfer_wait(&t, MUCH / 4);
	by->lose(side, first);
	transfer_wait(&t, MUCH / 4);
	expect_carried_by(p, !first);
	if (by->meanwhile)
		by->meanwhile();
	by->back(side, first);
	by->both();
	by->lose(side, !first);
	transfer_end(&t);
	expect_carried_by(p, first);
	if (t.longest_us > 3000000ull * slowness())
		FAIL("nothing arrived for %llu ms", (unsigned long long)t.longest_us / 1000);
	by->back(side, !first);
	by->both();
	exchange(p, 100000, 100000);
	pair_close(p);
}

static void lose_devices(const struct flavour *f, enum side side)
{
	static const struct losing deleted = {
		.lose = device_delete, .back = device_add, .both = expect_both_links,
	};
	struct pair p = linked_pair_of(f);

	lose_each_device(&p, side, &deleted);
}

static void client_device_lost_twice_loses_no_byte(void)
{
	lose_devices(&links_v4, CLIENT);
}

static void server_device_lost_twice_loses_no_byte(void)
{
	lose_devices(&links_v4, SERVER);
}

static void device_lost_twice_loses_no_byte_by_v6(void)
{
	lose_devices(&links_v6, CLIENT);
}

/* The network interface under a transfer goes down: at one side, or at both. */
static void lose_netdev(bool client, bool server)
{
	struct pair p = linked_pair();
	struct transfer t;
	int first = carried_by(p.c, CLIENT);

	transfer_start(&t, &p, MUCH, MUCH);
	transfer_wait(&t, MUCH / 4);
	if (client)
		netdev(CLIENT, first, "down");
	if (server)
		netdev(SERVER, first, "down");
	transfer_end(&t);
	expect_carried_by(&p, !first);
	if (t.longest_us > 1000000ull * slowness())
		FAIL("nothing arrived for %llu ms", (unsigned long long)t.longest_us / 1000);
	netdev(CLIENT, first, "up");
	netdev(SERVER, first, "up");
	expect_both_links();
	exchange(&p, 100000, 100000);
	pair_close(&p);
}

static void client_netdev_down_loses_no_byte(void)
{
	lose_netdev(true, false);
}

static void server_netdev_down_loses_no_byte(void)
{
	lose_netdev(false, true);
}

static void both_netdevs_down_lose_no_byte(void)
{
	lose_netdev(true, true);
}

void lose_packets(enum side side, int which, const char *match)
{
	CHECK_EQ(sh("ip netns exec %s nft 'table netdev smclost { chain in { type filter hook ingress device veth%d priority 0; %s drop\n}\n}'",
		    ns_of(side), which, match), 0);
}

void lose_no_packets(void)
{
	for (enum side side = CLIENT; side <= SERVER; side++)
		sh("ip netns exec %s nft delete table netdev smclost 2>/dev/null", ns_of(side));
}

/*
 * What the client has sent last waits below its device for an Ethernet address
 * that nobody tells, which takes three seconds to be given up.  Connections do
 * not wait for that.
 */
static void stuck_packets_delay_nothing(void)
{
	struct pair p = linked_pair();
	struct transfer t;
	int first = carried_by(p.c, CLIENT);

	transfer_start(&t, &p, MUCH, MUCH);
	transfer_wait(&t, MUCH / 4);
	lose_packets(SERVER, first, "");
	CHECK_EQ(sh("ip -n %s neigh flush dev veth%d", ns_of(CLIENT), first), 0);
	/* The device repeats what is not acknowledged after a quarter of a second. */
	poll(NULL, 0, 400);
	netdev(SERVER, first, "down");
	transfer_end(&t);
	lose_no_packets();
	expect_carried_by(&p, !first);
	if (t.longest_us > 1500000ull * slowness())
		FAIL("nothing arrived for %llu ms", (unsigned long long)t.longest_us / 1000);
	pair_close(&p);
	restore();
}

/* No port goes down: only the packets of the first path are lost. */
static void dead_path_is_noticed(void)
{
	struct pair p = linked_pair();
	struct transfer t;
	int first = carried_by(p.c, CLIENT);

	transfer_start(&t, &p, MUCH, MUCH);
	transfer_wait(&t, MUCH / 4);
	lose_packets(SERVER, first, "udp dport 4791");
	transfer_end(&t);
	lose_no_packets();
	expect_carried_by(&p, !first);
	if (t.longest_us > 6000000ull * slowness())
		FAIL("nothing arrived for %llu ms", (unsigned long long)t.longest_us / 1000);
	pair_close(&p);
}

/* One direction has ended, and what was sent before is still on its way. */
static void half_closed_connections_move(void)
{
	struct pair p = linked_pair();
	int first = carried_by(p.c, CLIENT);
	struct flow said = { .fd = p.c, .to_send = 40000, .send_seed = 1, .shut = true };
	struct flow rest[2] = {
		{ .fd = p.c, .to_recv = 300000, .recv_seed = 2, .want_eof = true },
		{ .fd = p.s, .to_send = 300000, .send_seed = 2, .shut = true,
		  .to_recv = 40000, .recv_seed = 1, .want_eof = true },
	};

	/* The client has no more to say, and nothing of it was read. */
	pump(&said, 1, 10000);
	device_delete(SERVER, first);
	pump(rest, 2, 30000);
	pair_close(&p);
	device_add(SERVER, first);
}

/* Without any link the connections end, at both sides, with an error. */
static void last_link_lost_aborts(void)
{
	struct pair p = linked_pair();
	uint64_t start;
	char buf[100];

	device_delete(SERVER, 0);
	device_delete(SERVER, 1);
	start = now_us();
	wait_events(p.c, POLLIN, 10000);
	wait_events(p.s, POLLIN, 10000);
	CHECK_ERRNO(recv(p.s, buf, sizeof(buf), 0), ECONNABORTED);
	CHECK(recv(p.c, buf, sizeof(buf), 0) == -1);
	CHECK(errno == ECONNABORTED || errno == ECONNRESET);
	note("the ends saw an error after %llu ms", (unsigned long long)(now_us() - start) / 1000);
	pair_close(&p);
	restore();
}

/* Many connections at once, of which each takes its own way. */
static void many_connections_move_together(void)
{
	enum { MANY = 12 };
	struct pair p[MANY];
	struct flow f[2 * MANY];
	int first;

	for (int i = 0; i < MANY; i++) {
		p[i] = i ? pair_make(&links_v4) : linked_pair();
		f[2 * i] = (struct flow) { .fd = p[i].c, .to_send = 400000, .send_seed = i,
					   .to_recv = 400000, .recv_seed = 1000 + i };
		f[2 * i + 1] = (struct flow) { .fd = p[i].s, .to_send = 400000, .send_seed = 1000 + i,
					       .to_recv = 400000, .recv_seed = i };
	}
	first = carried_by(p[0].c, CLIENT);

	pid_t pid = fork();

	if (!pid) {
		poll(NULL, 0, 100);
		_exit(sh("rdma link delete %s", device(CLIENT, first)));
	}
	pump(f, 2 * MANY, 60000);

	int status;

	CHECK_OK(waitpid(pid, &status, 0));
	CHECK_EQ(status, 0);
	for (int i = 0; i < MANY; i++) {
		expect_carried_by(&p[i], !first);
		pair_close(&p[i]);
	}
	device_add(CLIENT, first);
}

uint64_t seed(void)
{
	const char *text = getenv("SMC_SEED");
	uint64_t rng = text ? strtoull(text, NULL, 0) : now_us();

	note("SMC_SEED=%llu", (unsigned long long)rng);
	return rng;
}

uint32_t dice(uint64_t *rng, uint32_t sides)
{
	*rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
	return (*rng >> 33) % sides;
}

/* Any device goes, and comes back; or an interface goes down, and up again. */
static void seeded_failovers_lose_no_byte(void)
{
	const char *rounds = getenv("SMC_FAILOVERS");
	struct pair p = linked_pair();
	struct transfer t;
	int left = rounds ? atoi(rounds) : 3;
	uint64_t rng = seed();

	transfer_start(&t, &p, MUCH, MUCH);
	for (; left > 0; left--) {
		enum side side = dice(&rng, 2) ? CLIENT : SERVER;
		int which = dice(&rng, 2);
		bool whole = dice(&rng, 2);

		transfer_wait(&t, 100000 + dice(&rng, 1000000));
		if (whole)
			device_delete(side, which);
		else
			netdev(side, which, "down");
		transfer_wait(&t, 100000 + dice(&rng, 1000000));
		if (whole)
			device_add(side, which);
		else
			netdev(side, which, "up");
		expect_both_links();
	}
	transfer_end(&t);
	pair_close(&p);
}

long long objects(const char *what)
{
	return number_of("rdma -d resource show %s 2>/dev/null | grep -c smc_rs", what);
}

static long long listed(void)
{
	return objects("qp") + objects("cq") + objects("mr") + objects("pd");
}

static void nothing_is_left_after_unload(void)
{
	struct pair p;

	need_module_file();
	p = linked_pair();
	CHECK(listed() > 8);
	pair_close(&p);
	for (int i = 0; module_unload() && i < 100; i++)
		poll(NULL, 0, 100);
	CHECK(!module_loaded());
	CHECK_EQ(listed(), 0);
	module_load();
}

static const struct test_case links_cases[] = {
	CASE_LIMIT(second_link_is_added_and_both_are_used, 60),
	CASE_LIMIT(client_device_lost_twice_loses_no_byte, 120),
	CASE_LIMIT(server_device_lost_twice_loses_no_byte, 120),
	CASE_LIMIT(device_lost_twice_loses_no_byte_by_v6, 120),
	CASE_LIMIT(client_netdev_down_loses_no_byte, 120),
	CASE_LIMIT(server_netdev_down_loses_no_byte, 120),
	CASE_LIMIT(both_netdevs_down_lose_no_byte, 120),
	CASE_LIMIT(stuck_packets_delay_nothing, 120),
	CASE_LIMIT(dead_path_is_noticed, 120),
	CASE_LIMIT(half_closed_connections_move, 60),
	CASE_LIMIT(many_connections_move_together, 120),
	CASE_LIMIT(seeded_failovers_lose_no_byte, 3000),
	CASE_LIMIT(last_link_lost_aborts, 60),
	CASE_LIMIT(nothing_is_left_after_unload, 60),
};

const struct suite suite_links = {
	.name = "links", .cases = links_cases, .count = ARRAY_SIZE(links_cases), .prepare = links_prepare,
};
