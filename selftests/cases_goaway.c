// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "goaway": what happens to sockets when the module, the device or the
 * namespace under them is taken away, and what they keep from going.
 *
 * The cases depend on each other's order only in that each leaves the module
 * loaded and both devices present.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>

#include "cases.h"
#include "places.h"

static const struct flavour v4 = { "AF_SMC v4", SMC4, SMC4, SERVER_V4, SERVER_V4 };
static const struct flavour to_tcp = { "SMC to TCP", SMC4, TCP4, SERVER_V4, SERVER_V4 };

static bool prepare(void)
{
	if (!have_namespaces()) {
		suite_skip_reason("needs two network namespaces");
		return false;
	}
	if (module_refcount() < 0) {
		suite_skip_reason("the module is not loaded, or cannot be unloaded");
		return false;
	}
	return true;
}

static bool unreferenced(void *arg)
{
	(void)arg;
	return module_refcount() == 0;
}

static void expect_unreferenced(void)
{
	if (!busywait(10000, unreferenced, NULL))
		FAIL("the module still has %lld references after 10 s", module_refcount());
}

static bool is_smcr(int fd)
{
	struct smc_rs_info info;

	return !smc_info(fd, &info) && info.mode == SMC_RS_MODE_SMCR;
}

static void refused(const char *with)
{
	row("with %s", with);
	CHECK_EQ(module_unload(), -1);
	CHECK(errno == EBUSY || errno == EAGAIN);
	CHECK(module_refcount() > 0);
}

static void unload_with_sockets_is_refused_and_harmless(void)
{
	struct sockaddr_storage ss;
	struct pair p, q;
	int fd, l;

	expect_unreferenced();
	fd = sock_at(CLIENT, SMC4, 0);
	refused("a fresh socket");
	close(fd);
	fd = sock_at(CLIENT, INETSMC4, 0);
	refused("a fresh IPPROTO_SMC socket");
	close(fd);
	l = listen_at(&v4, 0, &ss);
	refused("a listener");
	close(l);
	p = pair_make(&v4);
	q = pair_make(&to_tcp);
	close(p.l);
	close(q.l);
	p.l = q.l = -1;
	refused("connections");
	exchange(&p, 200000, 200000);
	exchange(&q, 200000, 200000);
	close(p.c);
	p.c = -1;
	refused("one end of a connection");
	pair_close(&p);
	refused("a fallback connection");
	exchange(&q, 1000, 1000);
	pair_close(&q);
	row("%s", "");
	expect_unreferenced();
}

static void unload_after_close_works_at_once(void)
{
	need_module_file();
	for (int i = 0; i < 3; i++) {
		struct pair p = pair_make(&v4), q = pair_make(&to_tcp);

		exchange(&p, 100000, 100000);
		exchange(&q, 100000, 100000);
		pair_close(&p);
		pair_close(&q);
		/* A link group without connections does not keep the module. */
		expect_unreferenced();

		uint64_t start = now_us();

		CHECK_OK(module_unload());
		CHECK(now_us() - start < 10000000);
		CHECK_ERRNO(socket(AF_SMC, SOCK_STREAM, 0), EAFNOSUPPORT);
		module_load();
	}
	counters_read(&(struct counters){ 0 });
}

/* Sends pieces both ways until the parent has said that it is enough. */
static void traffic_until_told(struct pair *p, int told)
{
	uint64_t pieces = 0;

	do {
		exchange(p, 50000, 50000);
		pieces++;
	} while (!(poll_one(told, POLLIN, 0) & POLLIN));
	note("%llu times 50000 bytes both ways", (unsigned long long)pieces);
	_exit(0);
}

static void unload_during_traffic_of_others_waits_for_them(void)
{
	struct pair p = pair_make(&v4);
	int told[2], status;
	pid_t pid;

	CHECK_OK(pipe2(told, O_CLOEXEC));
	pid = fork();
	if (!pid)
		traffic_until_told(&p, told[0]);
	pair_close(&p);
	for (int i = 0; i < 20; i++) {
		CHECK_EQ(module_unload(), -1);
		CHECK(errno == EBUSY || errno == EAGAIN);
		usleep(20000);
	}
	CHECK_EQ(waitpid(pid, &status, WNOHANG), 0);
	CHECK_EQ(write(told[1], "x", 1), 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	expect_unreferenced();
}

/* Sends one request to the RDMA core and receives into rsp. */
static ssize_t rdma_request(int fd, int cmd, int flags, const void *attrs, size_t len,
			    char *rsp, size_t room)
{
	char req[128] __attribute__((aligned(8))) = "";
	struct nlmsghdr *h = (void *)req;

	h->nlmsg_len = NLMSG_HDRLEN + len;
	h->nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd);
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	if (len)
		memcpy(NLMSG_DATA(h), attrs, len);
	CHECK_EQ(send(fd, req, h->nlmsg_len, 0), h->nlmsg_len);
	return CHECK_OK(recv(fd, rsp, room, 0));
}

/* What "rdma link delete" does, without the time that starting it takes. */
static void link_delete(enum side side)
{
	const char *name = getenv(side == CLIENT ? "SMC_DEV_CLIENT" : "SMC_DEV_SERVER");
	static char rsp[65536] __attribute__((aligned(8)));
	int fd = CHECK_OK(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA));
	ssize_t n = rdma_request(fd, RDMA_NLDEV_CMD_GET, NLM_F_DUMP, NULL, 0, rsp, sizeof(rsp));
	char attrs[16] __attribute__((aligned(8)));
	uint32_t index = UINT32_MAX;
	uint64_t start, took;

	for (bool done = false; !done;) {
		for (struct nlmsghdr *h = (void *)rsp; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			size_t len = h->nlmsg_len - NLMSG_HDRLEN;
			const struct nlattr *a;

			if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR) {
				done = true;
				break;
			}
			a = attr_find(NLMSG_DATA(h), len, RDMA_NLDEV_ATTR_DEV_NAME);
			if (!a || strcmp((const char *)a + NLA_HDRLEN, name))
				continue;
			a = attr_find(NLMSG_DATA(h), len, RDMA_NLDEV_ATTR_DEV_INDEX);
			CHECK(a);
			memcpy(&index, (const char *)a + NLA_HDRLEN, sizeof(index));
		}
		if (!done)
			n = CHECK_OK(recv(fd, rsp, sizeof(rsp), 0));
	}
	if (index == UINT32_MAX)
		FAIL("there is no RDMA device %s", name);
	attr_put(attrs, RDMA_NLDEV_ATTR_DEV_INDEX, &index, sizeof(index));
	start = now_us();
	rdma_request(fd, RDMA_NLDEV_CMD_DELLINK, NLM_F_ACK, attrs, NLA_HDRLEN + sizeof(index),
		     rsp, sizeof(rsp));
	took = now_us() - start;
	close(fd);

	struct nlmsghdr *h = (void *)rsp;

	CHECK_EQ(h->nlmsg_type, NLMSG_ERROR);
	CHECK_EQ(((struct nlmsgerr *)NLMSG_DATA(h))->error, 0);
	note("the device was deleted in %llu ms", (unsigned long long)took / 1000);
	CHECK(took < 2000000 * slowness());
}

static void link_add(enum side side)
{
	CHECK_EQ(sh("ip netns exec %s rdma link add %s type rxe netdev veth0",
		    getenv(side == CLIENT ? "SMC_NS_CLIENT" : "SMC_NS_SERVER"),
		    getenv(side == CLIENT ? "SMC_DEV_CLIENT" : "SMC_DEV_SERVER")), 0);
}

static void mend(void)
{
	if (!module_loaded()) {
		need_module_file();
		module_load();
	}
	for (int side = CLIENT; side <= SERVER; side++) {
		const char *dev = getenv(side == CLIENT ? "SMC_DEV_CLIENT" : "SMC_DEV_SERVER");
		char path[200];

		if (!dev)
			continue;
		snprintf(path, sizeof(path), "/sys/class/infiniband/%s", dev);
		if (access(path, F_OK))
			link_add(side);
	}
}

static void need_smcr(void)
{
	const char *optional = getenv("SMC_RDMA_OPTIONAL");
	struct pair p;

	if (!have_rdma_devices())
		SKIP("no RDMA devices with byte counters");
	p = pair_make(&v4);

	bool good = is_smcr(p.c) && is_smcr(p.s);

	pair_close(&p);
	if (good)
		return;
	if (optional && optional[0] == '1')
		SKIP("no SMC-R between the namespaces");
	FAIL("no SMC-R between the namespaces");
}

struct aborted {
	int fd;
	uint64_t end;
};

static bool has_hup(void *arg)
{
	struct aborted *a = arg;

	return poll_one(a->fd, POLLIN, 0) & (POLLHUP | POLLERR);
}

/*
 * The connection ends with ECONNABORTED, and the descriptor goes on to exist.
 * Who has been told that the peer's data has ended reads that, as with TCP, and
 * learns of the rest where it writes.
 */
static void expect_aborted(int fd, bool local, bool peer_done)
{
	struct aborted a = { .fd = fd };
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	char buf[2000];
	ssize_t n;
	int err;

	if (!busywait(5000, has_hup, &a))
		FAIL("no POLLHUP or POLLERR after 5 s, poll says 0x%x",
		     poll_one(fd, POLLIN | POLLOUT, 0));
	errno = 0;
	do {
		n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
	} while (n > 0);
	CHECK_EQ(n, peer_done ? 0 : -1);
	if (peer_done)
		CHECK_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
	err = errno;
	if (err != ECONNABORTED && (local || (err != ECONNRESET && !(peer_done && err == EPIPE))))
		FAIL("the call says %s, expected ECONNABORTED", strerrorname_np(err));
	CHECK_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
	CHECK(errno == EPIPE || errno == ECONNABORTED || errno == ECONNRESET);
	CHECK_OK(getsockname(fd, (struct sockaddr *)&ss, &len));
	CHECK(recv(fd, buf, sizeof(buf), MSG_DONTWAIT) <= 0);
}

static void device_delete(enum side side)
{
	struct pair p[4], q;

	need_smcr();
	for (size_t i = 0; i < ARRAY_SIZE(p); i++)
		p[i] = pair_make(&v4);
	q = pair_make(&to_tcp);
	exchange(&p[0], 100000, 100000);
	send_all(p[1].c, "unread", 6);
	CHECK_OK(shutdown(p[2].c, SHUT_WR));
	link_delete(side);
	for (size_t i = 0; i < ARRAY_SIZE(p); i++) {
		row("connection %zu, the deleted device's end", i);
		expect_aborted(side == CLIENT ? p[i].c : p[i].s, true, side == SERVER && i == 2);
	}
	for (size_t i = 0; i < ARRAY_SIZE(p); i++) {
		row("connection %zu, the other end", i);
		expect_aborted(side == CLIENT ? p[i].s : p[i].c, false, side == CLIENT && i == 2);
	}
	row("afterwards");
	/* TCP is not concerned, and new connections are TCP. */
	exchange(&q, 50000, 50000);
	pair_close(&q);
	q = pair_make(&v4);
	check_mode(q.c, SMC_RS_MODE_TCP);
	exchange(&q, 50000, 50000);
	pair_close(&q);
	link_add(side);
	need_smcr();
	for (size_t i = 0; i < ARRAY_SIZE(p); i++)
		pair_close(&p[i]);
	row("at the end");
	expect_unreferenced();
}

static void device_of_client_deleted_aborts(void)
{
	device_delete(CLIENT);
}

static void device_of_server_deleted_aborts(void)
{
	device_delete(SERVER);
}

/* Notes which queue pairs the server's device has, or says whether it has one of those noted. */
static bool queue_pairs(bool note_them)
{
	return !sh("ip netns exec %s rdma resource show qp link %s/1 | grep 'type RC' | "
		   "grep -o 'lqpn [0-9]*' %s", ns_of(SERVER), getenv("SMC_DEV_SERVER"),
		   note_them ? "| tee /tmp/queue_pairs | grep ." : "| grep -xFf /tmp/queue_pairs");
}

/*
 * A peer whose device goes and comes without a word begins its queue pair
 * numbers anew.  The client's old group leads to the same number as the new
 * one, and must not be taken for it.
 */
static void device_of_server_replaced_in_silence_starts_anew(void)
{
	const char *ns = ns_of(CLIENT);
	struct pair p, q[3];

	need_smcr();
	/* The numbers of a new device begin where the next one's will. */
	link_delete(SERVER);
	link_add(SERVER);
	need_smcr();
	p = pair_make(&v4);
	check_mode(p.c, SMC_RS_MODE_SMCR);
	CHECK(queue_pairs(true));
	CHECK_EQ(sh("ip netns exec %s nft 'table inet silence { chain in { type filter hook input "
		    "priority 0; udp dport 4791 drop; }; }'", ns), 0);
	link_delete(SERVER);
	link_add(SERVER);
	CHECK_EQ(sh("ip netns exec %s nft delete table inet silence", ns), 0);
	for (size_t i = 0; i < ARRAY_SIZE(q); i++) {
		row("new connection %zu", i);
		q[i] = pair_make(&v4);
		check_mode(q[i].c, SMC_RS_MODE_SMCR);
		check_mode(q[i].s, SMC_RS_MODE_SMCR);
	}
	row("%s", "");
	if (!queue_pairs(false))
		FAIL("the new device does not use the old one's numbers");
	for (size_t i = 0; i < ARRAY_SIZE(q); i++) {
		row("new connection %zu", i);
		exchange(&q[i], 50000, 50000);
		pair_close(&q[i]);
	}
	row("the old connection");
	expect_aborted(p.s, true, false);
	expect_aborted(p.c, false, false);
	pair_close(&p);
	row("at the end");
	expect_unreferenced();
}

static void *send_until_error(void *arg)
{
	static __thread char buf[30000];
	int fd = *(int *)arg;

	while (send(fd, buf, sizeof(buf), MSG_NOSIGNAL) > 0)
		;
	return (void *)(long)errno;
}

static void *recv_until_error(void *arg)
{
	static __thread char buf[30000];
	int fd = *(int *)arg;

	while (recv(fd, buf, sizeof(buf), 0) > 0)
		;
	return (void *)(long)errno;
}

static void describe(int fd, const char *name)
{
	struct smc_rs_info info;

	if (smc_info(fd, &info))
		memset(&info, 0, sizeof(info));
	note("%s: mode %s, state %u, poll 0x%x, sent %llu, received %llu", name,
	     mode_name(info.mode), info.state,
	     poll_one(fd, POLLIN | POLLOUT | POLLRDHUP, 0),
	     (unsigned long long)info.tx_bytes, (unsigned long long)info.rx_bytes);
}

static void device_deleted_under_traffic_wakes_everybody(void)
{
	enum { N = 4 };

	struct pair p[N];
	pthread_t t[2 * N];

	need_smcr();
	for (int i = 0; i < N; i++) {
		p[i] = pair_make(&v4);
		CHECK(!pthread_create(&t[2 * i], NULL, send_until_error, &p[i].c));
		CHECK(!pthread_create(&t[2 * i + 1], NULL, recv_until_error, &p[i].s));
	}
	usleep(200000);
	link_delete(CLIENT);
	for (int i = 0; i < 2 * N; i++) {
		void *err;
		struct timespec ts;

		clock_gettime(CLOCK_REALTIME, &ts);
		ts.tv_sec += 6;
		row("thread %d", i);
		if (pthread_timedjoin_np(t[i], &err, &ts)) {
			describe(p[i / 2].c, "client's end");
			describe(p[i / 2].s, "server's end");
			FAIL("it still waits after 6 s");
		}
		CHECK((long)err == ECONNABORTED || (long)err == EPIPE ||
		      (long)err == ECONNRESET);
	}
	for (int i = 0; i < N; i++)
		pair_close(&p[i]);
	row("at the end");
	link_add(CLIENT);
	need_smcr();
	expect_unreferenced();
}

/* As pair_make(), but in namespaces of these names. */
static struct pair pair_in(const char *client, const char *server, const struct flavour *f)
{
	struct sockaddr_storage ss;
	struct pair p;
	socklen_t len;

	for (int side = 0; side < 2; side++) {
		enter_place(side ? client : server);
		if (!side) {
			p.l = CHECK_OK(kind_socket(f->server, 0));
			len = addr_make(&ss, AF_INET, f->bind, 0);
			CHECK_OK(bind(p.l, (struct sockaddr *)&ss, len));
			CHECK_OK(listen(p.l, 5));
			len = sizeof(ss);
			CHECK_OK(getsockname(p.l, (struct sockaddr *)&ss, &len));
			p.port = addr_port(&ss);
		} else {
			p.c = CHECK_OK(kind_socket(f->client, 0));
			len = target(f, p.port, &ss);
			CHECK_OK(connect(p.c, (struct sockaddr *)&ss, len));
			p.s = CHECK_OK(accept(p.l, NULL, NULL));
		}
	}
	return p;
}

static unsigned int ms_since(uint64_t start)
{
	return (now_us() - start) / 1000;
}

/* Milliseconds until both devices have gone with their namespaces. */
static unsigned int devices_gone_after(uint64_t start, char *a, char *b)
{
	if (!busywait(20000, device_gone, a) || !busywait(20000, device_gone, b))
		FAIL("the devices are still there after %u ms", ms_since(start));
	return ms_since(start);
}

/* What the module may need for its part: half of the documented bound of 10 s. */
#define GOING_MS 5000

static void namespace_deleted_connection_goes_on(void)
{
	static const struct flavour other = { "own namespaces", SMC4, SMC4, "10.78.0.2",
					      "10.78.0.2" };
	static char full[65536];
	char a[32], b[32];
	unsigned int alone = 0, took;
	uint64_t start;
	struct pair p;
	bool rdma;

	rdma = have_rdma_devices();
	expect_unreferenced();
	snprintf(a, sizeof(a), "smct%da", getpid());
	snprintf(b, sizeof(b), "smct%db", getpid());
	if (rdma) {
		/* What the kernel needs by itself, which ends namespaces one by one. */
		namespaces_add(a, b, rdma);
		start = now_us();
		CHECK_EQ(sh("ip netns del %s && ip netns del %s", a, b), 0);
		alone = devices_gone_after(start, a, b);
	}
	namespaces_add(a, b, rdma);

	struct smc_rs_info info = { 0 };
	bool smcr = false;

	/* The devices take a moment to learn their addresses. */
	for (int i = 0; i < 50 && !smcr; i++) {
		if (i) {
			pair_close(&p);
			usleep(100000);
		}
		p = pair_in(a, b, &other);
		smcr = is_smcr(p.c);
		smc_info(p.c, &info);
		if (!rdma)
			break;
	}
	if (rdma && !smcr)
		FAIL("fell back: 0x%08x, %s", info.fallback_reason,
		     reason_name(info.fallback_reason));
	enter(CLIENT);

	/* Ends that have nothing to say, that are not listened to, that have said their last. */
	struct pair more[4];

	for (size_t i = 0; i < ARRAY_SIZE(more); i++)
		more[i] = pair_in(a, b, &other);
	enter(CLIENT);
	exchange(&p, 50000, 50000);
	send_all(more[1].c, "unread", 6);
	while (send(more[2].c, full, sizeof(full), MSG_DONTWAIT) > 0)
		;
	CHECK_OK(shutdown(more[3].c, SHUT_WR));
	CHECK_EQ(sh("ip netns del %s && ip netns del %s", a, b), 0);
	note("the connections are %s", smcr ? "SMC-R" : "TCP");
	exchange(&p, 300000, 300000);

	start = now_us();
	pair_close(&p);
	for (size_t i = 0; i < ARRAY_SIZE(more); i++)
		pair_close(&more[i]);
	expect_unreferenced();
	took = ms_since(start);
	note("the module was referred to for %u ms", took);
	CHECK(took < GOING_MS);
	if (rdma) {
		took = devices_gone_after(start, a, b);
		note("the namespaces were gone after %u ms, without SMC after %u ms", took, alone);
		CHECK(took < alone + GOING_MS);
	}
	CHECK(module_loaded());
}

static void unload_script_drains_and_unloads(void)
{
	const char *script = getenv("SMC_UNLOAD");
	int to_child[2], out[2], status;
	char text[4000] = "", name[64], x;
	size_t have = 0;
	pid_t holder, unloader;

	need_module_file();
	if (!script || access(script, X_OK))
		SKIP("no script smc-unload");
	expect_unreferenced();
	CHECK_OK(pipe2(to_child, O_CLOEXEC));
	CHECK_OK(pipe2(out, O_CLOEXEC));

	/* Holds all sorts of sockets and reports what becomes of them. */
	holder = fork();
	if (!holder) {
		struct sockaddr_storage ss;
		struct pair p = pair_make(&v4), q = pair_make(&to_tcp);
		int l = listen_at(&v4, 0, &ss);
		bool smcr = is_smcr(p.c) && is_smcr(p.s);

		if (write(out[1], "r", 1) != 1)
			_exit(1);
		row("in the holder");
		if (smcr) {
			expect_aborted(p.c, true, false);
			expect_aborted(p.s, true, false);
		}
		/* TCP connections are the application's to end. */
		exchange(&q, 1000, 1000);

		bool closed = false;

		for (int i = 0; i < 250 && !closed; i++) {
			int fd = socket(AF_SMC, SOCK_STREAM, 0);

			closed = fd < 0;
			if (fd >= 0)
				close(fd);
			usleep(20000);
		}
		if (!closed)
			FAIL("new SMC sockets are still allowed");
		if (write(out[1], "a", 1) != 1)
			_exit(1);
		CHECK_EQ(read(to_child[0], &x, 1), 1);
		pair_close(&p);
		pair_close(&q);
		close(l);
		_exit(0);
	}
	CHECK_EQ(read(out[0], &x, 1), 1);
	CHECK_EQ(x, 'r');

	int log[2];

	CHECK_OK(pipe(log));
	unloader = fork();
	if (!unloader) {
		dup2(log[1], 1);
		dup2(log[1], 2);
		close(log[0]);
		close(log[1]);
		execl(script, script, NULL);
		_exit(127);
	}
	close(log[1]);
	wait_events(out[0], POLLIN, 12000);
	CHECK_EQ(read(out[0], &x, 1), 1);
	CHECK_EQ(x, 'a');
	/* It waits, and has named the holder. */
	snprintf(name, sizeof(name), "%d", holder);

	uint64_t end = now_us() + 8000000;

	while (!strstr(text, name) && now_us() < end) {
		if (poll_one(log[0], POLLIN, 200) & POLLIN) {
			ssize_t n = read(log[0], text + have, sizeof(text) - 1 - have);

			if (n <= 0)
				break;
			have += n;
		}
	}
	if (!strstr(text, name))
		FAIL("it does not name process %s: %s", name, text);
	CHECK_EQ(waitpid(unloader, &status, WNOHANG), 0);
	CHECK_EQ(write(to_child[1], "c", 1), 1);
	waitpid(holder, &status, 0);
	CHECK_EQ(status, 0);
	for (;;) {
		ssize_t n = read(log[0], text, sizeof(text));

		if (n <= 0)
			break;
	}
	waitpid(unloader, &status, 0);
	CHECK_EQ(WEXITSTATUS(status), 0);
	CHECK(!module_loaded());
	module_load();

	struct pair p = pair_make(&v4);

	exchange(&p, 1000, 1000);
	pair_close(&p);
}

static const struct test_case cases[] = {
	CASE_LIMIT(unload_with_sockets_is_refused_and_harmless, 40),
	CASE_LIMIT(unload_after_close_works_at_once, 60),
	CASE_LIMIT(unload_during_traffic_of_others_waits_for_them, 40),
	CASE_LIMIT(device_of_client_deleted_aborts, 40),
	CASE_LIMIT(device_of_server_deleted_aborts, 40),
	CASE_LIMIT(device_deleted_under_traffic_wakes_everybody, 40),
	CASE_LIMIT(device_of_server_replaced_in_silence_starts_anew, 60),
	CASE_LIMIT(namespace_deleted_connection_goes_on, 110),
	CASE_LIMIT(unload_script_drains_and_unloads, 60),
};

const struct suite suite_goaway = {
	.name = "goaway", .cases = cases, .count = ARRAY_SIZE(cases), .prepare = prepare,
	.mend = mend,
};
