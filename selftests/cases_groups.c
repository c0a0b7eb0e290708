// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "groups": how a link group gets its second link when devices come later
 * or one side has none, what a new connection does that meets one whose links
 * have just died, how many leave a lost link together, and what the operator
 * learns of losses.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "cases_links.h"

#define SYNCERR 0x04000000
#define ERR_REGBUF 0x09990003

void setting(enum side side, const char *name, unsigned int value)
{
	CHECK_EQ(sh("ip netns exec %s sysctl -qw net.smc.%s=%u", ns_of(side), name, value), 0);
}

void settings(const char *name, unsigned int value)
{
	setting(CLIENT, name, value);
	setting(SERVER, name, value);
}

void groups_mend(void)
{
	static const struct {
		const char *name;
		unsigned int value;
	} defaults[] = {
		{ "lgr_linger", 10 }, { "smcr_testlink_time", 30 },
		{ "smcr_max_links_per_lgr", 2 }, { "smcr_max_conns_per_lgr", 255 },
		{ "smcr_max_send_wr", 16 }, { "smcr_max_recv_wr", 48 }, { "smcr_buf_type", 0 },
		{ "extensions", 3 },
		{ "wmem", 65536 }, { "rmem", 65536 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(defaults); i++)
		settings(defaults[i].name, defaults[i].value);
	sh("ip netns exec %s nft 'delete table netdev smclost; delete table netdev smccount' >/dev/null 2>&1",
	   ns_of(SERVER));
	sh("rdma link delete smcmv >/dev/null 2>&1");
	for (int side = 0; side < 2; side++)
		sh("ip -n %s link delete mv0 >/dev/null 2>&1", ns_of(side));
	wires_mend(2);
	end_groups();
	restore();
}

void one_wire(void)
{
	device_delete(CLIENT, 1);
	device_delete(SERVER, 1);
}

void count_packets(const char *match)
{
	CHECK_EQ(sh("ip netns exec %s nft 'table netdev smccount { counter c { }; chain in { type filter hook ingress device veth0 priority 0; %s counter name c\n}\n}'",
		    ns_of(SERVER), match), 0);
}

unsigned int counted(void)
{
	return number_of("ip netns exec %s nft list counter netdev smccount c | sed -n 's/.*packets \\([0-9]*\\).*/\\1/p'",
			 ns_of(SERVER));
}

void count_no_packets(void)
{
	CHECK_EQ(sh("ip netns exec %s nft delete table netdev smccount", ns_of(SERVER)), 0);
}

/* A message of this kind, in the only packet of a SEND (4), as data may look alike: behind UDP and the header of RDMA. */
#define ADD_LINK "udp dport 4791 @th,64,8 4 @th,160,8 0x22"

/* Nothing gets through on the only link any more, which nobody knows before somebody tries. */
static void dead_group_is_no_obstacle(void)
{
	struct pair p, q;
	unsigned int qpn, old;
	char match[100];

	one_wire();
	p = pair_make(&links_v4);
	exchange(&p, 1000, 1000);
	old = info_of(p.c).lgr_id;
	CHECK_EQ(qps_on(device(SERVER, 0), &qpn), 1);
	snprintf(match, sizeof(match), "udp dport 4791 @th,104,24 0x%x", qpn);
	lose_packets(SERVER, 0, match);
	/* Of a peer that was heard of in the last second it is believed that it is there. */
	poll(NULL, 0, 1500);
	q = pair_make(&links_v4);
	CHECK(info_of(q.c).first_contact);
	CHECK(info_of(q.s).first_contact);
	CHECK(info_of(q.c).lgr_id != old);
	exchange(&q, 100000, 100000);
	lose_no_packets();
	pair_close(&q);
	pair_close(&p);
}

/* The link dies for the client when the server has led the connection to it already. */
static void client_whose_group_dies_says_so(void)
{
	struct smc_rs_info info;
	struct pair p, q;
	unsigned int reason;

	/* With two links each side has to tell its keys. */
	p = linked_pair();
	exchange(&p, 1000, 1000);
	CHECK_EQ(sh("ip netns exec %s nft 'table netdev smclost { chain a { type filter hook ingress device veth0 priority 0; %s drop\n}\nchain b { type filter hook ingress device veth1 priority 0; %s drop\n}\n}'",
		    ns_of(SERVER), CONFIRM_RKEY, CONFIRM_RKEY), 0);
	q = pair_make(&links_v4);
	lose_no_packets();
	CHECK_EQ(smc_info(q.c, &info), 0);
	CHECK_EQ(info.mode, SMC_RS_MODE_TCP);
	/* Out of step if the device has given up by then, else without an answer about the key. */
	reason = info.fallback_reason;
	note("the client falls back with %#x", reason);
	CHECK(reason == SYNCERR || reason == ERR_REGBUF);
	CHECK_EQ(smc_info(q.s, &info), 0);
	CHECK_EQ(info.mode, SMC_RS_MODE_TCP);
	CHECK_EQ(info.peer_diagnosis, reason);
	exchange(&q, 100000, 100000);
	pair_close(&q);
	/* The next one finds a link that works, or makes a group. */
	q = pair_make(&links_v4);
	exchange(&q, 100000, 100000);
	CHECK_EQ(info_of(q.c).mode, SMC_RS_MODE_SMCR);
	pair_close(&q);
	pair_close(&p);
}

static void late_devices(bool client, bool server)
{
	struct pair p;
	struct qps n;

	if (client)
		device_delete(CLIENT, 1);
	if (server)
		device_delete(SERVER, 1);
	p = pair_make(&links_v4);
	exchange(&p, 1000, 1000);
	/* As long as it might take. */
	poll(NULL, 0, 500);
	n = qps();
	CHECK_EQ(n.of[CLIENT][0], 1);
	CHECK_EQ(n.of[SERVER][0], 1);
	CHECK_EQ(n.of[CLIENT][1], 0);
	CHECK_EQ(n.of[SERVER][1], 0);
	if (client)
		device_add(CLIENT, 1);
	if (server)
		device_add(SERVER, 1);
	expect_both_links();
	exchange(&p, 100000, 100000);
	pair_close(&p);
}

static void second_link_follows_a_late_device_of_the_client(void)
{
	late_devices(true, false);
}

static void second_link_follows_a_late_device_of_the_server(void)
{
	late_devices(false, true);
}

static void second_link_follows_late_devices_of_both(void)
{
	late_devices(true, true);
}

/*
 * The devices for a second link are there, but nothing gets through between them: new connections are not kept from the
 * first one by the attempts.
 */
static void link_that_cannot_come(bool one_way)
{
	struct pair p, q;
	uint64_t longest = 0;

	device_delete(SERVER, 1);
	p = pair_make(&links_v4);
	exchange(&p, 1000, 1000);
	lose_packets(SERVER, 1, "udp dport 4791");
	if (!one_way)
		lose_packets(CLIENT, 1, "udp dport 4791");
	count_packets(ADD_LINK);
	device_add(SERVER, 1);
	/* The client's answer to an offer. */
	for (int i = 0; i < 500 && !counted(); i++)
		usleep(10000);
	CHECK(counted() > 0);
	for (int i = 0; i < 6; i++) {
		uint64_t start = now_us();

		row("connection %d", i);
		q = pair_make(&links_v4);
		if (now_us() - start > longest)
			longest = now_us() - start;
		CHECK_EQ(info_of(q.c).mode, SMC_RS_MODE_SMCR);
		CHECK_EQ(info_of(q.s).mode, SMC_RS_MODE_SMCR);
		exchange(&q, 1000, 1000);
		pair_close(&q);
		usleep(400000);
	}
	row("%s", "");
	note("the longest connect took %llu ms", (unsigned long long)longest / 1000);
	count_no_packets();
	lose_no_packets();
	/* When it can come it does: soon if the device is found anew. */
	device_delete(SERVER, 1);
	device_add(SERVER, 1);
	expect_both_links();
	exchange(&p, 100000, 100000);
	pair_close(&p);
}

static void newcomers_do_not_wait_for_a_link_that_cannot_come(void)
{
	link_that_cannot_come(false);
}

/* The client believes that the link is there, as what the server sends comes through. */
static void newcomers_do_not_wait_for_a_link_of_one_direction(void)
{
	link_that_cannot_come(true);
}

/* One wire goes: neither side has a device for another link, and none is offered. */
static void nothing_is_offered_that_cannot_be(void)
{
	struct pair p = linked_pair();

	/* What made the link is behind us, and not repeated by a device that is still waiting for an answer. */
	exchange(&p, 100000, 100000);
	count_packets(ADD_LINK);
	netdev(SERVER, 1, "down");
	exchange(&p, 100000, 100000);
	poll(NULL, 0, 1500);
	CHECK_EQ(qps().of[SERVER][0], 1);
	CHECK_EQ(qps().of[SERVER][1], 0);
	CHECK_EQ(counted(), 0);
	netdev(SERVER, 1, "up");
	expect_both_links();
	/* The client's answer to the offer that made sense, over the first wire. */
	CHECK(counted() > 0);
	count_no_packets();
	pair_close(&p);
}

static bool two_links_here(void *arg)
{
	enum side one = *(enum side *)arg;

	return qps_on(device(one, 0), NULL) == 2 && qps_on("smcmv", NULL) == 1 &&
	       qps_on(device(!one, 0), NULL) == 1;
}

static bool one_link_here(void *arg)
{
	enum side one = *(enum side *)arg;

	return qps_on(device(one, 0), NULL) == 1;
}

/* One side has two devices on the wire, the other one has one for both links. */
static void asymmetric(enum side two)
{
	enum side one = !two;
	struct transfer t;
	struct pair p;

	if (sh("modprobe -q macvlan"))
		SKIP("needs macvlan");
	one_wire();
	CHECK_EQ(sh("ip netns exec %s sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
		    ns_of(two)), 0);
	CHECK_EQ(sh("ip -n %s link add mv0 link veth0 type macvlan mode bridge", ns_of(two)), 0);
	CHECK_EQ(sh("ip -n %s addr add 10.77.0.%d/24 dev mv0", ns_of(two), two == CLIENT ? 3 : 4), 0);
	CHECK_EQ(sh("ip -n %s link set mv0 up", ns_of(two)), 0);
	CHECK_EQ(sh("ip netns exec %s rdma link add smcmv type rxe netdev mv0", ns_of(two)), 0);

	p = pair_make(&links_v4);
	if (!busywait(SECOND_MS, two_links_here, &one))
		FAIL("no asymmetric link: %u queue pairs at the one device, %u and %u at the two",
		     qps_on(device(one, 0), NULL), qps_on(device(two, 0), NULL), qps_on("smcmv", NULL));
	transfer_start(&t, &p, MUCH, MUCH);
	transfer_wait(&t, MUCH / 4);
	/* The link that carries goes. */
	device_delete(two, 0);
	transfer_wait(&t, MUCH / 4);
	CHECK(busywait(5000, one_link_here, &one));
	device_add(two, 0);
	if (!busywait(SECOND_MS, two_links_here, &one))
		FAIL("the second link does not come back");
	transfer_wait(&t, MUCH / 4);
	/* Whichever carries by now, both get their turn to go. */
	CHECK_EQ(sh("rdma link delete smcmv"), 0);
	transfer_end(&t);
	CHECK(busywait(5000, one_link_here, &one));
	if (t.longest_us > 3000000ull * slowness())
		FAIL("nothing arrived for %llu ms", (unsigned long long)t.longest_us / 1000);
	exchange(&p, 100000, 100000);
	pair_close(&p);
}

static void asymmetric_link_of_a_client_with_two_devices(void)
{
	asymmetric(CLIENT);
}

static void asymmetric_link_of_a_server_with_two_devices(void)
{
	asymmetric(SERVER);
}

/*
 * The connections of a link whose device goes have to say something on the other one first, which is slow and has data
 * for seconds before it.  The device does not wait for that, no connection gives up, and none is put off until others
 * have sent what they have.
 */
static void device_goes_at_once_though_the_other_wire_is_slow(void)
{
	enum { MANY = 60, EACH = 400000 };
	struct pair p[MANY];
	struct flow f[2 * MANY];
	int first;

	if (sh("modprobe -q sch_netem && tc -V >/dev/null"))
		SKIP("needs tc and sch_netem");
	settings("smcr_max_send_wr", 64);
	settings("smcr_max_recv_wr", 128);
	settings("wmem", 262144);
	settings("rmem", 262144);
	for (int i = 0; i < MANY; i++) {
		p[i] = i ? pair_make(&links_v4) : linked_pair();
		CHECK_EQ(info_of(p[i].c).lgr_id, info_of(p[0].c).lgr_id);
		f[2 * i] = (struct flow) { .fd = p[i].c, .to_send = EACH, .send_seed = i };
		f[2 * i + 1] = (struct flow) { .fd = p[i].s, .to_recv = EACH, .recv_seed = i };
	}
	first = carried_by(p[0].c, CLIENT);
	wires_begin(1u << CLIENT, 2);
	/* The first device has little before it that it has to get rid of. */
	wires_set(1u << CLIENT, 2, "rate 50mbit");
	CHECK_EQ(sh("tc -n %s qdisc change dev veth%d root netem limit 10000 rate 5mbit", ns_of(CLIENT), !first), 0);

	pid_t pid = fork();

	if (!pid) {
		poll(NULL, 0, 1500);
		device_delete(CLIENT, first);
		/* Time for those that have to say something: on the other wire there are some six seconds of data. */
		poll(NULL, 0, 12000);
		for (int i = 0; i < MANY; i++)
			expect_carried_by(&p[i], !first);
		wires_set(1u << CLIENT, 2, "rate 10gbit");
		_exit(0);
	}
	pump(f, 2 * MANY, 90000);

	int status;

	CHECK_OK(waitpid(pid, &status, 0));
	CHECK_EQ(status, 0);
	for (int i = 0; i < MANY; i++) {
		exchange(&p[i], 1000, 1000);
		pair_close(&p[i]);
	}
	wires_end(1u << CLIENT, 2);
}

/* What the first devices of both sides have counted. */
static long long counted_by_devices(const char *what)
{
	return dev_counter(CLIENT, what) + dev_counter(SERVER, what);
}

/*
 * All connections that a group takes are busy at once, with messages too small to be put together.  The other end has
 * no receive buffer for one of them now and then, which costs that link a pause for all; it must not become the rule.
 */
static void full_group_of_busy_connections_finds_receive_buffers(void)
{
	enum { MANY = 255, EACH = 3000, MESSAGE = 100 };
	static struct pair p[MANY];
	static struct flow f[2 * MANY];
	long long refused, packets;

	one_wire();
	for (int i = 0; i < MANY; i++) {
		p[i] = pair_make(&links_v4);
		CHECK_EQ(info_of(p[i].c).lgr_id, info_of(p[0].c).lgr_id);
		f[2 * i] = (struct flow) { .fd = p[i].c, .to_send = EACH, .send_seed = i, .to_recv = EACH,
					   .recv_seed = i + MANY, .chunk = MESSAGE };
		f[2 * i + 1] = (struct flow) { .fd = p[i].s, .to_send = EACH, .send_seed = i + MANY, .to_recv = EACH,
					       .recv_seed = i, .chunk = MESSAGE };
	}
	refused = counted_by_devices("rcvd_rnr_err");
	packets = counted_by_devices("sent_pkts");
	pump(f, 2 * MANY, 60000);
	refused = counted_by_devices("rcvd_rnr_err") - refused;
	packets = counted_by_devices("sent_pkts") - packets;
	note("%lld packets, of which %lld found no receive buffer", packets, refused);
	/* Waiting messages of one connection go together, so that there are fewer than were written. */
	CHECK(packets > 10 * MANY);
	CHECK(refused * 100 < packets);
	for (int i = 0; i < MANY; i++)
		pair_close(&p[i]);
}

/* Lines at notice level in the kernel's log that match. */
static long long notices(const char *fmt, ...)
{
	char pattern[300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(pattern, sizeof(pattern), fmt, ap);
	va_end(ap);
	/* Numbers of groups begin anew with the module: only what was said since this script began counts. */
	return number_of("dmesg -x | awk -v p='smc_rs: %s' '/smc selftest/ { n = 0 } /:notice:/ && $0 ~ p { n++ } END { print n + 0 }'",
			 pattern);
}

/* The operator learns of lost links and groups: which, over what device, to whom, why. */
static void losses_are_noticed(void)
{
	struct pair p = linked_pair();
	unsigned int client = info_of(p.c).lgr_id, server = info_of(p.s).lgr_id;

	device_delete(SERVER, 1);
	CHECK_EQ(notices("link [12] of group %#x on %s to 10.78.0.1 is lost: its device goes",
			 server, device(SERVER, 1)), 1);
	device_delete(SERVER, 0);
	CHECK_EQ(notices("link group %#x ends with 1 connections: link [12] of group %#x on %s to 10.77.0.1 is lost: its device goes",
			 server, server, device(SERVER, 0)), 1);
	wait_events(p.c, POLLIN, 10000);
	pair_close(&p);
	end_groups();
	CHECK_EQ(notices("link group %#x ends with 1 connections: .*on %s to 10.77.0.2", client,
			 device(CLIENT, 0)), 1);
	/* What ends in good order is not worth a line. */
	restore();
	p = pair_make(&links_v4);
	server = info_of(p.s).lgr_id;
	settings("lgr_linger", 0);
	pair_close(&p);

	unsigned int none = 0;

	CHECK(busywait(SECOND_MS, has_qps, &none));
	CHECK_EQ(notices("link group %#x ", server), 0);
}

static const struct test_case groups_cases[] = {
	CASE_LIMIT(dead_group_is_no_obstacle, 120),
	CASE_LIMIT(client_whose_group_dies_says_so, 120),
	CASE_LIMIT(second_link_follows_a_late_device_of_the_client, 120),
	CASE_LIMIT(second_link_follows_a_late_device_of_the_server, 120),
	CASE_LIMIT(second_link_follows_late_devices_of_both, 120),
	CASE_LIMIT(newcomers_do_not_wait_for_a_link_that_cannot_come, 90),
	CASE_LIMIT(newcomers_do_not_wait_for_a_link_of_one_direction, 90),
	CASE_LIMIT(nothing_is_offered_that_cannot_be, 120),
	CASE_LIMIT(asymmetric_link_of_a_client_with_two_devices, 120),
	CASE_LIMIT(asymmetric_link_of_a_server_with_two_devices, 120),
	CASE_LIMIT(device_goes_at_once_though_the_other_wire_is_slow, 180),
	CASE_LIMIT(full_group_of_busy_connections_finds_receive_buffers, 180),
	CASE_LIMIT(losses_are_noticed, 120),
};

const struct suite suite_groups = {
	.name = "groups", .cases = groups_cases, .count = ARRAY_SIZE(groups_cases),
	.prepare = links_prepare, .mend = groups_mend,
};
