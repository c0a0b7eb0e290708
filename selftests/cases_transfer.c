// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "transfer": data by RDMA between two namespaces with an rxe device
 * each.  Every byte is checked, and counters outside of the module say which
 * way the bytes went.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/sockios.h>

#include "cases.h"

static const struct flavour v4 = { "AF_SMC v4", SMC4, SMC4, SERVER_V4, SERVER_V4 };
static const struct flavour v4_inet = {
	"IPPROTO_SMC v4", INETSMC4, INETSMC4, SERVER_V4, SERVER_V4
};
static const struct flavour v4_mixed = {
	"AF_SMC to IPPROTO_SMC v4", SMC4, INETSMC4, SERVER_V4, NULL
};
static const struct flavour v6 = { "AF_SMC v6", SMC6, SMC6, SERVER_V6, SERVER_V6 };
static const struct flavour v6_inet = {
	"IPPROTO_SMC v6", INETSMC6, INETSMC6, SERVER_V6, SERVER_V6
};
static const struct flavour v6_near = {
	"AF_SMC v6 of one link", SMC6, SMC6, SERVER_NEAR, SERVER_NEAR
};
static const struct flavour mapped = { "mapped to v4", SMC6, SMC4, SERVER_V4, SERVER_V4 };

/* What the first connection of all came to, shared by all cases. */
static char *no_smcr;

static void probe(void)
{
	struct smc_rs_info info;
	struct pair p;
	int rc;

	counters_read(&(struct counters){ 0 });
	expect_smcr_begin();
	p = pair_make(&v4);
	rc = smc_info(p.c, &info);
	if (!rc && info.mode != SMC_RS_MODE_SMCR)
		snprintf(no_smcr, 200, "the connection is %s, reason 0x%08x (%s)",
			 mode_name(info.mode), info.fallback_reason,
			 reason_name(info.fallback_reason));
	exchange(&p, 20000, 20000);
	if (rc) {
		struct counters c;

		counters_read(&c);
		if (c.tcp_bytes >= 40000)
			snprintf(no_smcr, 200, "the data goes by TCP");
	}
	pair_close(&p);
}

static bool prepare(void)
{
	if (!have_namespaces()) {
		suite_skip_reason("needs two network namespaces");
		return false;
	}
	if (!have_rdma_devices() && !as_tcp()) {
		suite_skip_reason("no RDMA devices with byte counters");
		return false;
	}
	no_smcr = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	pid_t pid = fork();
	int status;

	if (!pid) {
		alarm(30);
		probe();
		_exit(0);
	}
	waitpid(pid, &status, 0);
	if (status && !no_smcr[0])
		snprintf(no_smcr, 200, "the first connection failed");
	return true;
}

static void need_smcr(void)
{
	if (no_smcr[0] && !as_tcp())
		SKIP("%s", no_smcr);
}

static struct pair smcr_pair(const struct flavour *f)
{
	struct pair p;

	need_smcr();
	p = pair_make(f);
	check_mode(p.c, SMC_RS_MODE_SMCR);
	check_mode(p.s, SMC_RS_MODE_SMCR);
	return p;
}

/* The one case that fails when there is no SMC-R; all others are skipped. */
static void first_connection_uses_rdma(void)
{
	const char *optional = getenv("SMC_RDMA_OPTIONAL");

	if (optional && optional[0] == '1')
		need_smcr();
	if (no_smcr[0] && !as_tcp())
		FAIL("%s", no_smcr);
}

static void info_describes_both_ends(void)
{
	struct smc_rs_info c, s;
	struct pair p = smcr_pair(&v4);

	if (smc_info(p.c, &c) || smc_info(p.s, &s))
		SKIP("the module has no SMC_RS_INFO");
	CHECK_EQ(c.state, 1);
	CHECK_EQ(s.state, 1);
	CHECK_EQ(c.smc_version, 2);
	CHECK_EQ(s.smc_version, 2);
	CHECK_EQ(c.smc_release, s.smc_release);
	CHECK_EQ(c.lgr_role, 0);
	CHECK_EQ(s.lgr_role, 1);
	CHECK(c.link_id != 0 && s.link_id != 0);
	CHECK(c.rmb >= 16384 && c.sndbuf >= 16384);
	CHECK_EQ(c.peer_rmb, s.rmb);
	CHECK_EQ(s.peer_rmb, c.rmb);
	CHECK(c.lgr_conns >= 1);
	CHECK(!strcmp(c.ib_name, getenv("SMC_DEV_CLIENT")));
	CHECK(!strcmp(s.ib_name, getenv("SMC_DEV_SERVER")));
	CHECK_EQ(c.ib_port, 1);
	CHECK_EQ(c.fallback_reason, 0);
	pair_close(&p);
}

/* n bytes one way or both, with the counters around. */
static void counted(const struct flavour *f, uint64_t to_server, uint64_t to_client)
{
	struct pair p;

	need_smcr();
	row("%s, %llu to the server, %llu to the client", f->name,
	    (unsigned long long)to_server, (unsigned long long)to_client);
	expect_smcr_begin();
	p = smcr_pair(f);
	exchange(&p, to_server, to_client);
	expect_smcr_end(to_server, to_client, 1);
	pair_close(&p);
}

static const unsigned int sizes[] = {
	1, 2, 7, 44, 1024, 4095, 4096, 16383, 16385, 65535, 65536, 65537, 131072, 1048579,
};

static void sizes_to_server_arrive(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
		counted(&v4, sizes[i], 0);
}

static void sizes_to_client_arrive(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
		counted(&v4, 0, sizes[i]);
}

static void sizes_both_ways_arrive(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i += 3)
		counted(&v4, sizes[i], sizes[ARRAY_SIZE(sizes) - 1 - i]);
}

static void sixteen_mib_to_server_arrive(void)
{
	counted(&v4, 16 << 20, 0);
}

static void sixteen_mib_to_client_arrive(void)
{
	counted(&v4, 0, 16 << 20);
}

static void both_ways_at_once_arrive(void)
{
	counted(&v4, 4 << 20, 4 << 20);
}

static void ipproto_smc_sockets_use_rdma(void)
{
	counted(&v4_inet, 200000, 200000);
	counted(&v4_mixed, 200000, 200000);
}

static void odd_chunks_wrap_small_rings(void)
{
	static const unsigned int chunks[] = { 1237, 16381, 16384, 65521 };

	need_smcr();
	for (size_t i = 0; i < ARRAY_SIZE(chunks); i++) {
		struct pair p;

		row("chunks of %u", chunks[i]);
		expect_smcr_begin();
		p = pair_make_bufs(&v4, 16384, 16384);
		check_mode(p.c, SMC_RS_MODE_SMCR);

		struct flow f[2] = {
			{ .fd = p.c, .to_send = 400003, .to_recv = 300007, .recv_seed = 5,
			  .chunk = chunks[i] },
			{ .fd = p.s, .to_send = 300007, .send_seed = 5, .to_recv = 400003,
			  .chunk = chunks[(i + 1) % ARRAY_SIZE(chunks)] },
		};

		pump(f, 2, 30000);
		expect_smcr_end(400003, 300007, 1);
		pair_close(&p);
	}
}

static void unequal_rings_work(void)
{
	static const struct {
		int snd, rcv;
	} table[] = { { 16384, 100000 }, { 100000, 16384 }, { 100000, 100000 } };

	need_smcr();
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct pair p;

		row("sndbuf %d, rcvbuf %d", table[i].snd, table[i].rcv);
		expect_smcr_begin();
		p = pair_make_bufs(&v4, table[i].snd, table[i].rcv);
		check_mode(p.c, SMC_RS_MODE_SMCR);
		exchange(&p, 500000, 500000);
		expect_smcr_end(500000, 500000, 1);
		pair_close(&p);
	}
}

static void blocking_calls_arrive(void)
{
	struct pair p;

	need_smcr();
	expect_smcr_begin();
	p = smcr_pair(&v4);

	struct flow f[2] = {
		{ .fd = p.c, .to_send = 2000000, .to_recv = 1000000, .recv_seed = 1,
		  .shut = true, .want_eof = true, .chunk = 50001 },
		{ .fd = p.s, .to_send = 1000000, .send_seed = 1, .to_recv = 2000000,
		  .shut = true, .want_eof = true, .chunk = 33333 },
	};

	pump_blocking(f, 2);
	expect_smcr_end(2000000, 1000000, 1);
	pair_close(&p);
}

static void edge_triggered_arrives(void)
{
	struct pair p;

	need_smcr();
	expect_smcr_begin();
	p = smcr_pair(&v4);

	struct flow f[2] = {
		{ .fd = p.c, .to_send = 1000000, .to_recv = 2000000, .recv_seed = 1,
		  .shut = true, .want_eof = true },
		{ .fd = p.s, .to_send = 2000000, .send_seed = 1, .to_recv = 1000000,
		  .shut = true, .want_eof = true },
	};

	pump_et(f, 2, 30000);
	expect_smcr_end(1000000, 2000000, 1);
	pair_close(&p);
}

static void ping_pong_of_small_messages_arrives(void)
{
	enum { ROUNDS = 400 };

	struct pair p;
	char out[64], in[64];

	need_smcr();
	expect_smcr_begin();
	p = smcr_pair(&v4);
	for (int i = 0; i < ROUNDS; i++) {
		size_t n = 1 + i % 64;

		memset(out, i, n);
		send_all(p.c, out, n);
		recv_all(p.s, in, n);
		CHECK(!memcmp(in, out, n));
		send_all(p.s, in, n);
		recv_all(p.c, in, n);
		CHECK(!memcmp(in, out, n));
	}
	expect_smcr_end(ROUNDS * 32, ROUNDS * 32, 1);
	pair_close(&p);
}

static void many_tiny_writes_arrive(void)
{
	struct pair p = smcr_pair(&v4);
	struct flow f[2] = {
		{ .fd = p.c, .to_send = 3000, .chunk = 1 },
		{ .fd = p.s, .to_recv = 3000 },
	};

	pump(f, 2, 30000);
	pair_close(&p);
}

/* Packets that `writes` sends of a byte take on a wire that answers late; TCP_NODELAY was set on both ends before. */
static long long packets_of(int writes, int nodelay)
{
	struct sockaddr_storage ss;
	int l = listen_at(&v4, 0, &ss), c = sock_at(CLIENT, SMC4, 0), s;
	socklen_t len = target(&v4, addr_port(&ss), &ss);
	long long before;
	char byte;

	CHECK_OK(setsockopt(l, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof(nodelay)));
	CHECK_OK(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof(nodelay)));
	CHECK_OK(connect(c, (struct sockaddr *)&ss, len));
	s = CHECK_OK(accept(l, NULL, NULL));
	check_mode(c, SMC_RS_MODE_SMCR);
	before = dev_counter(CLIENT, "sent_pkts") + dev_counter(SERVER, "sent_pkts");
	for (int i = 0; i < writes; i++) {
		send_all(c, "c", 1);
		send_all(s, "s", 1);
	}
	for (int i = 0; i < writes; i++) {
		recv_all(c, &byte, 1);
		recv_all(s, &byte, 1);
	}
	before = dev_counter(CLIENT, "sent_pkts") + dev_counter(SERVER, "sent_pkts") - before;
	close(c);
	close(s);
	close(l);
	return before;
}

/* Small data does not wait for what was sent before it, at either end. */
static void nodelay_from_before_the_connection_counts(void)
{
	enum { WRITES = 30 };

	struct pair p;
	long long with, without;

	if (sh("modprobe -q sch_netem && tc -V >/dev/null"))
		SKIP("needs tc and sch_netem");
	p = smcr_pair(&v4);
	wires_begin(BOTH_SIDES, 1);
	wires_set(BOTH_SIDES, 1, "delay 100ms");
	without = packets_of(WRITES, 0);
	with = packets_of(WRITES, 1);
	wires_set(BOTH_SIDES, 1, "delay 0ms");
	wires_end(BOTH_SIDES, 1);
	note("%lld packets with TCP_NODELAY, %lld without", with, without);
	CHECK(with >= 2 * WRITES);
	CHECK(without < with);
	pair_close(&p);
}

static void full_ring_blocks_and_reopens(void)
{
	struct pair p = smcr_pair(&v4);
	struct smc_rs_info info;
	int ep = CHECK_OK(epoll_create1(EPOLL_CLOEXEC));
	struct epoll_event ev = { .events = EPOLLOUT | EPOLLET };
	static char buf[65536];
	size_t sum = 0;

	CHECK_OK(epoll_ctl(ep, EPOLL_CTL_ADD, p.c, &ev));
	for (int idle = 0; idle < 3;) {
		ssize_t n = send(p.c, buf, sizeof(buf), MSG_DONTWAIT);

		if (n > 0) {
			sum += n;
			idle = 0;
		} else {
			CHECK_EQ(errno, EAGAIN);
			poll_one(p.c, POLLOUT, 100);
			idle++;
		}
	}
	if (!smc_info(p.c, &info)) {
		CHECK(sum >= info.peer_rmb);
		CHECK(sum <= info.sndbuf + info.peer_rmb);
	}
	while (epoll_wait(ep, &ev, 1, 50) > 0)
		;
	CHECK_EQ(poll_one(p.c, POLLOUT, 0), 0);

	struct timeval tv = { .tv_usec = 60000 };

	CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
	CHECK_ERRNO(send(p.c, buf, 1, 0), EAGAIN);
	while (sum) {
		ssize_t n;

		wait_events(p.s, POLLIN, 5000);
		n = CHECK_OK(recv(p.s, buf, sizeof(buf), MSG_DONTWAIT));
		sum -= n;
	}
	CHECK_EQ(CHECK_OK(epoll_wait(ep, &ev, 1, 5000)), 1);
	wait_events(p.c, POLLOUT, 5000);
	exchange(&p, 100000, 100000);
	close(ep);
	pair_close(&p);
}

static void receive_flags_work(void)
{
	struct pair p = smcr_pair(&v4);
	char buf[16] = "";
	struct iovec iov[2] = { { buf, 2 }, { buf + 2, 3 } };
	struct msghdr mh = { .msg_iov = iov, .msg_iovlen = 2 };
	int v = -1;

	for (int side = 0; side < 2; side++) {
		int from = side ? p.s : p.c, to = side ? p.c : p.s;

		CHECK_ERRNO(recv(to, buf, 1, MSG_DONTWAIT), EAGAIN);
		send_all(from, "abcde", 5);
		send_all(from, "fghij", 5);
		CHECK_EQ(recv(to, buf, 10, MSG_PEEK | MSG_WAITALL), 10);
		CHECK(!memcmp(buf, "abcdefghij", 10));
		CHECK_OK(ioctl(to, SIOCINQ, &v));
		CHECK_EQ(v, 10);
		memset(buf, 0, sizeof(buf));
		CHECK_EQ(recvmsg(to, &mh, 0), 5);
		CHECK(!memcmp(buf, "abcde", 5));
		CHECK_EQ(recv(to, NULL, 3, MSG_TRUNC | MSG_WAITALL), 3);
		CHECK_EQ(read(to, buf, 5), 2);
		CHECK(!memcmp(buf, "ij", 2));
		CHECK_OK(ioctl(to, SIOCINQ, &v));
		CHECK_EQ(v, 0);
		CHECK_OK(ioctl(from, SIOCOUTQ, &v));
		CHECK(v >= 0 && v <= 10);
		CHECK_ERRNO(send(from, (void *)8, 4, MSG_NOSIGNAL), EFAULT);
		CHECK_ERRNO(recv(to, buf, 1, MSG_ERRQUEUE), EAGAIN);
	}
	exchange(&p, 1000, 1000);
	pair_close(&p);
}

static void peek_and_waitall_across_wrap_are_right(void)
{
	need_smcr();

	struct pair p = pair_make_bufs(&v4, 16384, 16384);
	static unsigned char buf[20000];
	uint64_t off = 0;

	check_mode(p.c, SMC_RS_MODE_SMCR);
	for (int i = 0; i < 40; i++) {
		size_t n = 7001;

		pattern_fill(buf, n, 3, off);
		send_all(p.c, buf, n);
		memset(buf, 0, n);
		CHECK_EQ(recv(p.s, buf, n, MSG_PEEK | MSG_WAITALL), n);
		CHECK_EQ(pattern_check(buf, n, 3, off), n);
		memset(buf, 0, n);
		CHECK_EQ(recv(p.s, buf, n, MSG_WAITALL), n);
		CHECK_EQ(pattern_check(buf, n, 3, off), n);
		off += n;
	}
	pair_close(&p);
}

static void receive_wait_ends_by_timeout_or_signal(void)
{
	struct pair p = smcr_pair(&v4);
	struct timeval tv = { .tv_usec = 150000 }, none = { 0 };
	uint64_t start = now_us();
	char c;

	CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	CHECK_ERRNO(recv(p.c, &c, 1, 0), EAGAIN);
	CHECK(now_us() - start >= 60000);
	CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)));
	catch_signal(SIGUSR1);
	alarm_start(SIGUSR1, 50);
	CHECK_ERRNO(recv(p.c, &c, 1, 0), EINTR);
	alarm_stop();
	pair_close(&p);
}

static uint64_t cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000ull + ts.tv_nsec / 1000;
}

static void *send_later(void *arg)
{
	for (int i = 0; i < 10; i++) {
		poll(NULL, 0, 30);
		send_all(*(int *)arg, "x", 1);
	}
	return NULL;
}

/* Processor time of a reader of ten bytes that come one after the other. */
static uint64_t reading(struct pair *p, int busy_us)
{
	pthread_t writer;
	uint64_t used;
	char c;

	CHECK_OK(setsockopt(p->c, SOL_SOCKET, SO_BUSY_POLL, &busy_us, sizeof(busy_us)));
	CHECK(!pthread_create(&writer, NULL, send_later, &p->s));
	used = cpu_us();
	for (int i = 0; i < 10; i++)
		CHECK_EQ(recv(p->c, &c, 1, 0), 1);
	used = cpu_us() - used;
	pthread_join(writer, NULL);
	return used;
}

/* SO_BUSY_POLL: a reader that looks for data before it sleeps, as long as it is told to. */
static void busy_reader_looks_before_it_sleeps(void)
{
	struct pair p = smcr_pair(&v4);
	struct timeval tv = { .tv_usec = 100000 };
	uint64_t asleep = reading(&p, 0), briefly = reading(&p, 50), busy = reading(&p, 500000), start;
	char c;

	note("processor time asleep %llu us, looking for 50 us %llu us, for 500 ms %llu us",
	     (unsigned long long)asleep, (unsigned long long)briefly, (unsigned long long)busy);
	/* With one processor the writer has it as soon as it wakes, and so have many others. */
	if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
		CHECK(busy > 3 * asleep && busy > 2 * briefly);
	/* The other limits hold. */
	CHECK_ERRNO(recv(p.c, &c, 1, MSG_DONTWAIT), EAGAIN);
	CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	start = now_us();
	CHECK_ERRNO(recv(p.c, &c, 1, 0), EAGAIN);
	note("a limit of 100 ms took %llu ms", (unsigned long long)(now_us() - start) / 1000);
	CHECK(now_us() - start < 400000ull * slowness());
	tv.tv_usec = 0;
	CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	catch_signal(SIGUSR1);
	alarm_start(SIGUSR1, 50);
	CHECK_ERRNO(recv(p.c, &c, 1, 0), EINTR);
	alarm_stop();
	exchange(&p, 100000, 100000);
	pair_close(&p);
}

static void names_agree_on_both_sides(void)
{
	struct pair p = smcr_pair(&v4);
	struct sockaddr_storage cn, cp, sn, sp;
	socklen_t len = sizeof(cn);

	CHECK_OK(getsockname(p.c, (struct sockaddr *)&cn, &len));
	len = sizeof(cp);
	CHECK_OK(getpeername(p.c, (struct sockaddr *)&cp, &len));
	len = sizeof(sn);
	CHECK_OK(getsockname(p.s, (struct sockaddr *)&sn, &len));
	len = sizeof(sp);
	CHECK_OK(getpeername(p.s, (struct sockaddr *)&sp, &len));
	CHECK(!memcmp(&cn, &sp, len));
	CHECK(!memcmp(&cp, &sn, len));
	CHECK(strstr(addr_text(&cp), SERVER_V4));
	CHECK(strstr(addr_text(&cn), CLIENT_V4));
	pair_close(&p);
}

static void nonblocking_connect_and_epoll_see_connection(void)
{
	struct sockaddr_storage ss;
	int l, c, s, ep, epl;
	socklen_t len;
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };
	uint64_t end = now_us() + 8000000;
	unsigned int got = 0;

	need_smcr();
	expect_smcr_begin();
	l = listen_at(&v4, SOCK_NONBLOCK, &ss);
	c = sock_at(CLIENT, SMC4, SOCK_NONBLOCK);
	ep = CHECK_OK(epoll_create1(EPOLL_CLOEXEC));
	epl = CHECK_OK(epoll_create1(EPOLL_CLOEXEC));
	CHECK_OK(epoll_ctl(ep, EPOLL_CTL_ADD, c, &ev));
	ev.events = EPOLLIN | EPOLLET;
	CHECK_OK(epoll_ctl(epl, EPOLL_CTL_ADD, l, &ev));
	while (epoll_wait(ep, &ev, 1, 0) > 0)
		;
	len = target(&v4, addr_port(&ss), &ss);
	CHECK_ERRNO(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
	while (!(got & EPOLLOUT) && now_us() < end)
		got = epoll_wait(ep, &ev, 1, 1000) > 0 ? ev.events : 0;
	CHECK(got & EPOLLOUT);
	CHECK(!(got & (EPOLLERR | EPOLLHUP)));
	CHECK_EQ(so_error(c), 0);
	CHECK_EQ(CHECK_OK(epoll_wait(epl, &ev, 1, 5000)), 1);
	s = CHECK_OK(accept4(l, NULL, NULL, SOCK_NONBLOCK));
	check_mode(c, SMC_RS_MODE_SMCR);
	check_mode(s, SMC_RS_MODE_SMCR);

	struct pair p = { l, c, s, addr_port(&ss) };

	send_all(s, "x", 1);
	for (got = 0; !(got & EPOLLIN) && now_us() < end;)
		got = epoll_wait(ep, &ev, 1, 1000) > 0 ? ev.events : 0;
	CHECK(got & EPOLLIN);
	recv_all(c, &(char){ 0 }, 1);
	exchange(&p, 50000, 50000);
	expect_smcr_end(50001, 50000, 1);
	close(s);
	for (got = 0; !(got & EPOLLRDHUP) && now_us() < end;)
		got = epoll_wait(ep, &ev, 1, 1000) > 0 ? ev.events : 0;
	CHECK((got & (EPOLLIN | EPOLLRDHUP)) == (EPOLLIN | EPOLLRDHUP));
	CHECK_EQ(recv(c, &(char){ 0 }, 1, 0), 0);
	close(c);
	close(l);
}

static void data_before_accept_is_kept(void)
{
	struct sockaddr_storage ss;
	int l, c, s;
	socklen_t len;
	static unsigned char buf[30000];

	need_smcr();
	expect_smcr_begin();
	l = listen_at(&v4, 0, &ss);
	c = sock_at(CLIENT, SMC4, 0);
	len = target(&v4, addr_port(&ss), &ss);
	CHECK_OK(connect(c, (struct sockaddr *)&ss, len));
	pattern_fill(buf, sizeof(buf), 4, 0);
	send_all(c, buf, sizeof(buf));
	CHECK_OK(shutdown(c, SHUT_WR));
	s = CHECK_OK(accept(l, NULL, NULL));
	memset(buf, 0, sizeof(buf));
	recv_all(s, buf, sizeof(buf));
	CHECK_EQ(pattern_check(buf, sizeof(buf), 4, 0), sizeof(buf));
	expect_eof(s);
	expect_smcr_end(sizeof(buf), 0, 1);
	close(s);
	close(c);
	close(l);
}

static void second_connection_reuses_group(void)
{
	struct smc_rs_info a, b, c;
	struct pair p, q, r;

	need_smcr();
	expect_smcr_begin();
	p = smcr_pair(&v4);
	q = smcr_pair(&v4);
	r = smcr_pair(&v4_inet);
	exchange(&p, 30000, 30000);
	exchange(&q, 30000, 30000);
	exchange(&r, 30000, 30000);
	expect_smcr_end(90000, 90000, 3);
	if (!smc_info(p.c, &a) && !smc_info(q.c, &b) && !smc_info(r.c, &c)) {
		CHECK_EQ(b.lgr_id, a.lgr_id);
		CHECK_EQ(c.lgr_id, a.lgr_id);
		CHECK_EQ(b.first_contact, 0);
		CHECK_EQ(c.first_contact, 0);
		CHECK(a.lgr_conns >= 3);
		CHECK(a.token != b.token && b.token != c.token);
	}
	/* One goes away, the others go on. */
	pair_close(&p);
	exchange(&q, 30000, 30000);
	pair_close(&q);
	exchange(&r, 30000, 30000);
	pair_close(&r);
}

/*
 * Between two of ours a key is told by the handshake and forgotten with the connection: no exchange is needed for it,
 * neither before the connection nor after it.  What is left are the chains of two bytes and of two ends, and their
 * acknowledgements.
 */
static void keys_of_short_connections_need_no_exchange(void)
{
	enum { N = 12, MOST = 16 };

	long long best = -1;
	struct pair p;

	need_smcr();
	p = smcr_pair(&v4);
	exchange(&p, 1, 1);
	pair_close(&p);
	/* A loaded machine sends packets again: the best of some rows counts. */
	for (int row = 0; row < 4 && (best < 0 || best > N * MOST); row++) {
		long long before = dev_counter(CLIENT, "sent_pkts") + dev_counter(SERVER, "sent_pkts"), now;

		for (int i = 0; i < N; i++) {
			p = smcr_pair(&v4);
			exchange(&p, 1, 1);
			pair_close(&p);
		}
		usleep(100000);
		now = dev_counter(CLIENT, "sent_pkts") + dev_counter(SERVER, "sent_pkts");
		if (best < 0 || now - before < best)
			best = now - before;
	}
	note("%lld packets by RDMA for %d connections", best, N);
	CHECK(best <= N * MOST);
}

/* How often the tasks that do the kernel's deferred softirqs have run. */
static long long ksoftirqd_runs(void)
{
	static const char key[] = "voluntary_ctxt_switches:";
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	long long runs = 0;

	CHECK(proc != NULL);
	while ((entry = readdir(proc))) {
		char path[300], line[128];
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%s/status", entry->d_name);
		f = entry->d_name[0] > '0' && entry->d_name[0] <= '9' ? fopen(path, "r") : NULL;
		if (!f)
			continue;
		if (fgets(line, sizeof(line), f) && strstr(line, "ksoftirqd/"))
			while (fgets(line, sizeof(line), f))
				if (!strncmp(line, key, sizeof(key) - 1))
					runs += atoll(line + sizeof(key) - 1);
		fclose(f);
	}
	closedir(proc);
	return runs;
}

/* A device in software tells of completions in its tasks: nobody has to be woken to serve them. */
static void completions_do_not_wait_for_ksoftirqd(void)
{
	enum { ROUNDS = 300 };

	struct pair p;
	long long runs;
	char byte = 'x';

	need_smcr();
	/* A kernel made for debugging defers softirqs for reasons of its own. */
	if (slowness() > 1)
		SKIP("on a slow kernel the count says nothing");
	p = smcr_pair(&v4);
	runs = ksoftirqd_runs();
	for (int i = 0; i < ROUNDS; i++) {
		send_all(p.c, &byte, 1);
		recv_all(p.s, &byte, 1);
		send_all(p.s, &byte, 1);
		recv_all(p.c, &byte, 1);
	}
	runs = ksoftirqd_runs() - runs;
	note("ksoftirqd ran %lld times for %d messages", runs, 2 * ROUNDS);
	CHECK(runs < ROUNDS);
	pair_close(&p);
}

static void opposite_direction_works_at_once(void)
{
	/* Who connects is swapped: listener where the clients are. */
	struct sockaddr_storage ss;
	struct pair p = smcr_pair(&v4), q;
	socklen_t len = addr_make(&ss, AF_INET, CLIENT_V4, 0);

	expect_smcr_begin();
	q.l = sock_at(CLIENT, SMC4, 0);
	CHECK_OK(bind(q.l, (struct sockaddr *)&ss, len));
	CHECK_OK(listen(q.l, 5));
	CHECK_OK(getsockname(q.l, (struct sockaddr *)&ss, &len));
	q.port = addr_port(&ss);
	q.c = sock_at(SERVER, SMC4, 0);
	CHECK_OK(connect(q.c, (struct sockaddr *)&ss, len));
	q.s = CHECK_OK(accept(q.l, NULL, NULL));
	check_mode(q.c, SMC_RS_MODE_SMCR);
	exchange(&q, 100000, 50000);
	exchange(&p, 50000, 50000);
	/* The counters are named after the usual roles. */
	expect_smcr_end(50000 + 50000, 50000 + 100000, 1);
	pair_close(&p);
	pair_close(&q);
}

static void twenty_at_once_arrive(void)
{
	enum { N = 20, SIZE = 200000 };

	struct sockaddr_storage ss;
	struct flow f[2 * N] = { 0 };
	struct smc_rs_info a, b;
	socklen_t len;
	int l;

	need_smcr();
	expect_smcr_begin();
	l = listen_at(&v4, 0, &ss);
	len = target(&v4, addr_port(&ss), &ss);
	for (int i = 0; i < N; i++) {
		f[2 * i].fd = sock_at(CLIENT, SMC4, SOCK_NONBLOCK);
		CHECK_ERRNO(connect(f[2 * i].fd, (struct sockaddr *)&ss, len), EINPROGRESS);
	}
	for (int i = 0; i < N; i++) {
		f[2 * i + 1].fd = CHECK_OK(accept4(l, NULL, NULL, SOCK_NONBLOCK));
		f[2 * i].to_send = f[2 * i + 1].to_recv = SIZE;
		f[2 * i].to_recv = f[2 * i + 1].to_send = SIZE;
		f[2 * i].shut = f[2 * i + 1].shut = true;
		f[2 * i].want_eof = f[2 * i + 1].want_eof = true;
	}
	for (int i = 0; i < 2 * N; i++) {
		wait_events(f[i].fd, POLLOUT, 8000);
		check_mode(f[i].fd, SMC_RS_MODE_SMCR);
	}
	if (!smc_info(f[0].fd, &a)) {
		for (int i = 2; i < 2 * N; i += 2) {
			CHECK_EQ(smc_info(f[i].fd, &b), 0);
			CHECK_EQ(a.lgr_id, b.lgr_id);
		}
	}
	pump(f, 2 * N, 45000);
	expect_smcr_end(N * SIZE, N * SIZE, N);
	for (int i = 0; i < 2 * N; i++)
		close(f[i].fd);
	close(l);
}

static void send_of_nothing_returns(void)
{
	struct pair p;

	need_smcr();
	p = pair_make(&v4);
	check_mode(p.c, SMC_RS_MODE_SMCR);
	CHECK_EQ(send(p.c, "", 0, 0), 0);
	CHECK_EQ(write(p.c, "", 0), 0);
	CHECK_EQ(send(p.c, "", 0, MSG_OOB | MSG_DONTWAIT), 0);
	CHECK_OK(shutdown(p.c, SHUT_WR));
	CHECK_ERRNO(send(p.c, "", 0, MSG_NOSIGNAL), EPIPE);
	pair_close(&p);
}

/* The peer reads up to one urgent byte at a time: who sends another one sleeps, and a signal ends that. */
static void second_urgent_byte_waits_asleep(void)
{
	struct pair p;
	char byte;

	need_smcr();
	p = pair_make(&v4);
	catch_signal(SIGUSR1);
	CHECK_EQ(send(p.c, "xa", 2, MSG_OOB), 2);
	CHECK_ERRNO(send(p.c, "b", 1, MSG_OOB | MSG_DONTWAIT), EAGAIN);
	alarm_start(SIGUSR1, 100);
	CHECK_ERRNO(send(p.c, "b", 1, MSG_OOB), EINTR);
	alarm_stop();
	recv_all(p.s, &byte, 1);
	CHECK_EQ(byte, 'x');
	wait_events(p.s, POLLPRI, 5000);
	CHECK_EQ(recv(p.s, &byte, 1, MSG_OOB), 1);
	CHECK_EQ(send(p.c, "b", 1, MSG_OOB), 1);
	wait_events(p.s, POLLPRI, 5000);
	CHECK_EQ(recv(p.s, &byte, 1, MSG_OOB), 1);
	CHECK_EQ(byte, 'b');
	pair_close(&p);
}

/* A page that goes and comes for as long as *until is false. */
struct blinking {
	void *page;
	size_t size;
	atomic_bool *until;
};

static void *blink(void *arg)
{
	struct blinking *b = arg;

	while (!*b->until) {
		mprotect(b->page, b->size, PROT_NONE);
		mprotect(b->page, b->size, PROT_READ | PROT_WRITE);
	}
	return NULL;
}

/* What a call says that it moved is what it moved, even where a bad page is a good one a moment later. */
static void bad_pages_lose_no_byte(void)
{
	enum { ROUNDS = 60, LEN = 45000, AT = 40960, ROOM = 65536 };

	static char buf[LEN];
	struct pair p = smcr_pair(&v4);
	atomic_bool done = false;
	int fd = CHECK_OK(memfd_create("blinking", MFD_CLOEXEC));
	size_t page = sysconf(_SC_PAGESIZE);
	uint64_t there = 0, back = 0;
	unsigned int short_sends = 0, short_recvs = 0;
	pthread_t blinker;
	char *good, *bad;

	CHECK_OK(ftruncate(fd, ROOM));
	good = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	bad = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(good != MAP_FAILED && bad != MAP_FAILED);

	struct blinking b = { bad + AT, page, &done };

	CHECK_EQ(pthread_create(&blinker, NULL, blink, &b), 0);
	for (int i = 0; i < ROUNDS; i++) {
		ssize_t n;

		pattern_fill(good, LEN, 5, there);
		n = send(p.c, bad, LEN, 0);
		CHECK(n > 0 || errno == EFAULT);
		short_sends += n < LEN;
		n = n > 0 ? n : 0;
		recv_all(p.s, buf, n);
		CHECK_EQ(pattern_check(buf, n, 5, there), n);
		there += n;

		pattern_fill(buf, LEN, 6, back);
		send_all(p.s, buf, LEN);
		for (size_t got = 0; got < LEN;) {
			n = recv(p.c, bad, LEN - got, MSG_WAITALL);
			CHECK(n > 0 || errno == EFAULT);
			short_recvs += n < (ssize_t)(LEN - got);
			n = n > 0 ? n : 0;
			CHECK_EQ(pattern_check(good, n, 6, back), n);
			back += n;
			got += n;
		}
	}
	done = true;
	pthread_join(blinker, NULL);
	note("%u sends and %u receives of %u met the bad page", short_sends, short_recvs, ROUNDS);
	munmap(good, ROOM);
	munmap(bad, ROOM);
	close(fd);
	pair_close(&p);
}

/* Whether what clients send on a port arrives: without it their handshakes begin, and go no further. */
static void data_arrives(unsigned int port, bool does)
{
	const char *ns = ns_of(SERVER);

	if (does)
		CHECK_EQ(sh("ip netns exec %s nft delete table inet mute", ns), 0);
	else
		CHECK_EQ(sh("ip netns exec %s nft 'table inet mute { chain in { type filter hook input "
			    "priority 0; tcp dport %u ip length > 80 drop; }; }'", ns, port), 0);
}

/* What a case that failed may have left. */
static void mend(void)
{
	const char *ns = ns_of(SERVER);

	if (!ns || !ns[0])
		return;
	sh("ip netns exec %s nft destroy table inet mute", ns);
	sh("ip netns exec %s nft destroy table inet silence", ns_of(CLIENT));
	wires_mend(1);
}

/* Whether a client that was answered without the option has gone on by TCP. */
static bool went_by_tcp(int fd, int ms)
{
	struct smc_rs_info info;

	if (!(poll_one(fd, POLLOUT, ms) & POLLOUT))
		return false;
	CHECK_EQ(so_error(fd), 0);
	CHECK_EQ(smc_info(fd, &info), 0);
	return info.mode == SMC_RS_MODE_TCP && info.fallback_reason == 0x03010000;
}

/* How many clients come to a listener, while no handshake goes on, before one is answered without the option. */
static int crowd(int limit)
{
	enum { MOST = 40, AFTER = 5 };

	struct sockaddr_storage ss;
	int l = listen_at(&v4, 0, &ss), c[MOST], n = 0, tcp = 0, lost = 0;
	uint64_t start = now_us();
	bool late;
	socklen_t len = target(&v4, addr_port(&ss), &ss);

	CHECK_OK(setsockopt(l, SOL_SMC, SMC_LIMIT_HS, &limit, sizeof(limit)));
	data_arrives(addr_port(&ss), false);
	while (n < MOST && tcp < AFTER) {
		c[n] = sock_at(CLIENT, SMC4, SOCK_NONBLOCK);
		CHECK_ERRNO(connect(c[n], (struct sockaddr *)&ss, len), EINPROGRESS);
		if (went_by_tcp(c[n], limit ? 30 : 0))
			tcp++;
		else if (tcp)
			FAIL("client %d has the option, after one that has not", n);
		n++;
	}
	data_arrives(addr_port(&ss), true);
	/* A machine that needed most of the six seconds that a listener waits for data does not count. */
	late = now_us() - start > 3000000;
	/* Nobody is refused, whatever way they go. */
	for (int i = 0; i < n; i++) {
		wait_events(c[i], POLLOUT, 15000);
		if (so_error(c[i])) {
			CHECK(late);
			close(c[i]);
			c[i] = -1;
			lost++;
		}
	}
	for (int i = 0; i < n - lost; i++) {
		int s = CHECK_OK(accept4(l, NULL, NULL, SOCK_CLOEXEC));

		send_all(s, "x", 1);
		close(s);
	}
	for (int i = 0; i < n; i++) {
		char byte;

		if (c[i] < 0)
			continue;
		CHECK_EQ(went_by_tcp(c[i], 0), i >= n - tcp);
		wait_events(c[i], POLLIN, 15000);
		CHECK_EQ(recv(c[i], &byte, 1, 0), 1);
		close(c[i]);
	}
	close(l);
	return n - tcp;
}

/* SMC_LIMIT_HS: who comes while enough are in a handshake gets TCP, at once. */
static void limited_listener_takes_the_rest_by_tcp(void)
{
	int before;

	need_smcr();
	CHECK_EQ(crowd(0), 40);
	before = crowd(1);
	note("%d clients in a handshake were enough", before);
	/* As many in a handshake, or as many on their way to one. */
	CHECK(before >= 16 && before <= 32);
}

/*
 * The peer's LLC answers do not come, so that the handshakes of a crowd wait for each other: whose turn does not come in
 * time goes on by TCP, and nobody is refused.
 */
static void crowd_over_a_dead_path_goes_by_tcp(void)
{
	enum { N = 8 };

	const char *ns = ns_of(CLIENT);
	struct pair p = smcr_pair(&v4);
	struct sockaddr_storage ss;
	struct smc_rs_info info;
	/* Of a size that others do not use: the peer knows no keys of such rings, but for some that a case has left. */
	int l = listen_at(&v4, 0, &ss), c[N], size = 400000, tcp = 0;
	socklen_t len = target(&v4, addr_port(&ss), &ss);

	CHECK_OK(setsockopt(l, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
	CHECK_EQ(sh("ip netns exec %s nft 'table inet silence { chain in { type filter hook input "
		    "priority 0; udp dport 4791 drop; }; }'", ns), 0);
	/* Until nobody takes the path for one that works just because the peer was heard of a moment ago. */
	usleep(1500000);
	for (int i = 0; i < N; i++) {
		c[i] = sock_at(CLIENT, SMC4, SOCK_NONBLOCK);
		CHECK_OK(setsockopt(c[i], SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
		CHECK_ERRNO(connect(c[i], (struct sockaddr *)&ss, len), EINPROGRESS);
	}
	for (int i = 0; i < N; i++) {
		row("client %d", i);
		wait_events(c[i], POLLOUT, 15000);
		CHECK_EQ(so_error(c[i]), 0);
		CHECK_EQ(smc_info(c[i], &info), 0);
		tcp += info.mode == SMC_RS_MODE_TCP;
	}
	row("%s", "");
	/* More than are served before the first one's client would have given up. */
	CHECK(tcp >= 4);
	CHECK_EQ(sh("ip netns exec %s nft delete table inet silence", ns), 0);
	for (int i = 0; i < N; i++) {
		int s = CHECK_OK(accept(l, NULL, NULL));

		send_all(s, "x", 1);
		close(s);
	}
	for (int i = 0; i < N; i++) {
		char byte;

		wait_events(c[i], POLLIN, 15000);
		CHECK_EQ(recv(c[i], &byte, 1, 0), 1);
		close(c[i]);
	}
	close(l);
	/* Its link may be lost by now. */
	pair_close(&p);
}

static void more_than_255_connections_work(void)
{
	enum { N = 270 };

	struct pair p[N];
	struct smc_rs_info first, last;

	need_smcr();
	expect_smcr_begin();
	for (int i = 0; i < N; i++) {
		row("connection %d", i);
		p[i] = pair_make_bufs(&v4, 16384, 16384);
		close(p[i].l);
		p[i].l = -1;
		check_mode(p[i].c, SMC_RS_MODE_SMCR);
	}
	for (int i = 0; i < N; i += 9) {
		row("connection %d", i);
		exchange(&p[i], 5000, 5000);
	}
	if (!smc_info(p[0].c, &first) && !smc_info(p[N - 1].c, &last)) {
		CHECK(first.lgr_id != last.lgr_id);
		CHECK(first.lgr_conns <= 255);
	}
	expect_smcr_end(N / 9 * 5000, N / 9 * 5000, N);
	for (int i = 0; i < N; i++)
		pair_close(&p[i]);
}

static void short_connections_in_a_row_work(void)
{
	enum { N = 60 };

	struct sockaddr_storage ss;
	socklen_t len;
	int l;

	need_smcr();
	expect_smcr_begin();
	l = listen_at(&v4, 0, &ss);
	len = target(&v4, addr_port(&ss), &ss);
	for (int i = 0; i < N; i++) {
		int c = sock_at(CLIENT, SMC4, 0), s;
		char x = i;

		row("connection %d", i);
		CHECK_OK(connect(c, (struct sockaddr *)&ss, len));
		s = CHECK_OK(accept(l, NULL, NULL));
		check_mode(c, SMC_RS_MODE_SMCR);
		send_all(c, &x, 1);
		recv_all(s, &x, 1);
		CHECK_EQ(x, (char)i);
		close(i % 2 ? c : s);
		close(i % 2 ? s : c);
	}
	expect_smcr_end(N, 0, N);
	close(l);
}

/*
 * All orders in which each side shuts its direction down, or not, and closes.
 * Letters: c and s shut down, C and S close.
 */
static void close_in_every_order_works(void)
{
	static const char *const orders[] = {
		"CS", "SC", "cCS", "cSC", "ScC", "sSC", "sCS", "CsS",
		"csCS", "csSC", "scCS", "scSC", "cCsS", "sScC",
	};

	need_smcr();
	for (size_t i = 0; i < ARRAY_SIZE(orders); i++) {
		struct pair p;
		char buf[100];

		row("order %s", orders[i]);
		expect_smcr_begin();
		p = smcr_pair(&v4);
		exchange(&p, 3000, 3000);
		for (const char *o = orders[i]; *o; o++) {
			int own = *o == 'c' || *o == 'C' ? p.c : p.s;
			int other = own == p.c ? p.s : p.c;
			bool closing = *o == 'C' || *o == 'S';
			/* Does the other side still read? */
			bool heard = other >= 0 && !strchr(orders[i], *o - 'A' + 'a');

			if (!closing) {
				/* With nobody left to listen it may fail. */
				if (other < 0) {
					shutdown(own, SHUT_WR);
					continue;
				}
				send_all(own, "tail", 4);
				CHECK_OK(shutdown(own, SHUT_WR));
				CHECK_ERRNO(send(own, "x", 1, MSG_NOSIGNAL), EPIPE);
				recv_all(other, buf, 4);
				expect_eof(other);
				continue;
			}
			CHECK_OK(close(own));
			if (heard)
				expect_eof(other);
			*(own == p.c ? &p.c : &p.s) = -1;
		}
		expect_smcr_end(3000, 3000, 1);
		pair_close(&p);
	}
}

static void close_with_data_on_the_way_delivers_it(void)
{
	static unsigned char buf[60000];

	need_smcr();
	for (int side = 0; side < 2; side++) {
		struct pair p;

		row("%s closes", side ? "server" : "client");
		expect_smcr_begin();
		p = smcr_pair(&v4);

		int from = side ? p.s : p.c, to = side ? p.c : p.s;

		pattern_fill(buf, sizeof(buf), 6, 0);
		send_all(from, buf, sizeof(buf));
		close(from);
		memset(buf, 0, sizeof(buf));
		recv_all(to, buf, sizeof(buf));
		CHECK_EQ(pattern_check(buf, sizeof(buf), 6, 0), sizeof(buf));
		expect_eof(to);
		expect_smcr_end(side ? 0 : sizeof(buf), side ? sizeof(buf) : 0, 1);
		close(to);
		close(p.l);
	}
}

static void close_with_unread_data_resets_peer(void)
{
	need_smcr();
	for (int side = 0; side < 2; side++) {
		struct pair p = smcr_pair(&v4);
		int gone = side ? p.s : p.c, left = side ? p.c : p.s;
		char c;

		send_all(left, "unread", 6);
		wait_events(gone, POLLIN, 5000);
		close(gone);
		wait_events(left, POLLHUP | POLLERR, 5000);
		CHECK_ERRNO(recv(left, &c, 1, 0), ECONNRESET);
		CHECK_EQ(send(left, "x", 1, MSG_NOSIGNAL), -1);
		CHECK(errno == EPIPE || errno == ECONNRESET);
		close(left);
		close(p.l);
	}
	/* The group is not harmed. */
	counted(&v4, 10000, 10000);
}

static void half_closed_connection_still_carries_data(void)
{
	struct pair p;

	need_smcr();
	expect_smcr_begin();
	p = smcr_pair(&v4);
	send_all(p.c, "question", 8);
	CHECK_OK(shutdown(p.c, SHUT_WR));

	char buf[16];

	recv_all(p.s, buf, 8);
	expect_eof(p.s);
	CHECK(poll_one(p.s, POLLIN | POLLRDHUP, 0) & POLLRDHUP);

	struct flow f[2] = {
		{ .fd = p.c, .to_recv = 700000, .recv_seed = 2, .want_eof = true },
		{ .fd = p.s, .to_send = 700000, .send_seed = 2, .shut = true },
	};

	pump(f, 2, 30000);
	expect_smcr_end(8, 700000, 1);
	pair_close(&p);
}

static void shutdown_of_both_directions_works(void)
{
	struct pair p = smcr_pair(&v4);
	char c;

	CHECK_ERRNO(shutdown(p.c, 3), EINVAL);
	CHECK_OK(shutdown(p.c, SHUT_RD));
	CHECK_EQ(recv(p.c, &c, 1, 0), 0);
	send_all(p.c, "x", 1);
	recv_all(p.s, &c, 1);
	CHECK_OK(shutdown(p.c, SHUT_RDWR));
	CHECK_ERRNO(send(p.c, "x", 1, MSG_NOSIGNAL), EPIPE);
	expect_eof(p.s);
	pair_close(&p);
}

static void send_after_peer_closed_fails(void)
{
	struct pair p = smcr_pair(&v4);
	ssize_t n = 0;

	close(p.s);
	expect_eof(p.c);
	for (int i = 0; i < 50 && n >= 0; i++) {
		n = send(p.c, "x", 1, MSG_NOSIGNAL);
		usleep(10000);
	}
	CHECK_EQ(n, -1);
	CHECK(errno == EPIPE || errno == ECONNRESET);
	p.s = -1;
	pair_close(&p);
}

static void killed_sender_ends_stream(void)
{
	struct pair p = smcr_pair(&v4);
	static char buf[65536];
	pid_t pid = fork();
	ssize_t n;

	if (!pid) {
		close(p.s);
		for (;;)
			send_all(p.c, buf, sizeof(buf));
	}
	close(p.c);
	p.c = -1;
	for (size_t sum = 0; sum < 500000; sum += n)
		n = CHECK_OK(recv(p.s, buf, sizeof(buf), 0));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	do {
		wait_events(p.s, POLLIN, 8000);
		n = recv(p.s, buf, sizeof(buf), MSG_DONTWAIT);
	} while (n > 0);
	CHECK(n == 0 || errno == ECONNRESET);
	pair_close(&p);
	counted(&v4, 10000, 10000);
}

static void killed_receiver_frees_blocked_sender(void)
{
	struct pair p = smcr_pair(&v4);
	static char buf[65536];
	pid_t pid = fork();
	ssize_t n;

	if (!pid) {
		pause();
		_exit(0);
	}
	close(p.s);
	p.s = -1;

	struct timeval tv = { .tv_sec = 8 };
	uint64_t start = now_us();

	CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
	if (!fork()) {
		usleep(300000);
		kill(pid, SIGKILL);
		_exit(0);
	}
	/* The child holds the client's end as well, so only its death ends this. */
	do {
		n = send(p.c, buf, sizeof(buf), MSG_NOSIGNAL);
	} while (n > 0);
	CHECK(errno == EPIPE || errno == ECONNRESET);
	CHECK(now_us() - start < 6000000);
	pair_close(&p);
}

/*
 * On a path that is slower than a device's patience everything is sent more
 * than once. Keys of new connections are registered meanwhile, and the link
 * group must outlive that.
 */
static void slow_path_keeps_the_link_group(void)
{
	enum { N = 6 };

	struct pair p, q[N];
	int told[2], status;
	pid_t pid;

	if (sh("modprobe -q sch_netem && tc -V >/dev/null"))
		SKIP("needs tc and sch_netem");
	CHECK_OK(pipe2(told, O_CLOEXEC));
	p = smcr_pair(&v4);
	wires_begin(BOTH_SIDES, 1);
	/* The acknowledgements of both sides come so much later. */
	wires_set(BOTH_SIDES, 1, "delay 200ms");
	pid = fork();
	if (!pid) {
		/* There is always something that was not acknowledged yet. */
		do {
			exchange(&p, 100000, 100000);
		} while (!(poll_one(told[0], POLLIN, 0) & POLLIN));
		_exit(0);
	}
	for (int i = 0; i < N; i++) {
		row("connection %d", i);
		q[i] = pair_make(&v4);
		check_mode(q[i].c, SMC_RS_MODE_SMCR);
		check_mode(q[i].s, SMC_RS_MODE_SMCR);
	}
	wires_set(BOTH_SIDES, 1, "delay 0ms");
	CHECK_EQ(write(told[1], "x", 1), 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	for (int i = 0; i < N; i++) {
		row("connection %d, later", i);
		exchange(&q[i], 50000, 50000);
		pair_close(&q[i]);
	}
	row("the first one");
	exchange(&p, 50000, 50000);
	pair_close(&p);
	wires_end(BOTH_SIDES, 1);
}

/* As with TCP what was sent before a reset can be read. */
static void reset_does_not_overtake_data(void)
{
	const struct linger none = { .l_onoff = 1 };
	static char buf[40000];

	for (int i = 0; i < 60; i++) {
		struct pair p = smcr_pair(&v4);
		size_t len = i % 3 ? sizeof(buf) : 1;
		int sender = i % 2 ? p.s : p.c, reader = i % 2 ? p.c : p.s;

		row("round %d", i);
		pattern_fill(buf, len, i, 0);
		send_all(sender, buf, len);
		CHECK_OK(setsockopt(sender, SOL_SOCKET, SO_LINGER, &none, sizeof(none)));
		close(sender);
		memset(buf, 0, len);
		recv_all(reader, buf, len);
		CHECK_EQ(pattern_check(buf, len, i, 0), len);
		CHECK_ERRNO(recv(reader, buf, 1, 0), ECONNRESET);
		close(reader);
		close(p.l);
	}
}

/* Clients of a listener that goes before it has accepted them; it may wait for their first bytes. */
static void close_listener_with_children(int defer_s)
{
	struct sockaddr_storage ss;
	int l, c[3];
	socklen_t len;

	l = listen_at(&v4, 0, &ss);
	CHECK_OK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &defer_s, sizeof(defer_s)));
	len = target(&v4, addr_port(&ss), &ss);
	for (int i = 0; i < 3; i++) {
		c[i] = sock_at(CLIENT, SMC4, 0);
		CHECK_OK(connect(c[i], (struct sockaddr *)&ss, len));
		check_mode(c[i], SMC_RS_MODE_SMCR);
	}
	if (defer_s)
		CHECK(!(poll_one(l, POLLIN, 300) & POLLIN));
	else
		wait_events(l, POLLIN, 5000);
	close(l);
	for (int i = 0; i < 3; i++) {
		char x;

		wait_events(c[i], POLLIN | POLLHUP | POLLERR, 8000);
		CHECK_ERRNO(recv(c[i], &x, 1, MSG_DONTWAIT), ECONNRESET);
		close(c[i]);
	}
	counted(&v4, 10000, 10000);
}

static void listener_closed_with_children_ends_them(void)
{
	need_smcr();
	close_listener_with_children(0);
}

static void listener_closed_with_deferred_children_ends_them(void)
{
	need_smcr();
	close_listener_with_children(30);
}

static void full_backlog_recovers(void)
{
	enum { N = 8 };

	struct sockaddr_storage ss;
	int l, c[N], got = 0, idle = 0;
	socklen_t len;

	need_smcr();
	l = listen_at(&v4, SOCK_NONBLOCK, &ss);
	CHECK_OK(listen(l, 2));
	len = target(&v4, addr_port(&ss), &ss);
	for (int i = 0; i < N; i++) {
		c[i] = sock_at(CLIENT, SMC4, SOCK_NONBLOCK);
		CHECK_ERRNO(connect(c[i], (struct sockaddr *)&ss, len), EINPROGRESS);
	}
	while (got < N && idle < (got < 3 ? 30 : 4)) {
		int s = accept(l, NULL, NULL);

		if (s >= 0) {
			send_all(s, "y", 1);
			close(s);
			got++;
			idle = 0;
		} else {
			CHECK_EQ(errno, EAGAIN);
			poll_one(l, POLLIN, 200);
			idle++;
		}
	}
	/* TCP repeats the SYNs of the others much later. */
	CHECK(got >= 3);
	for (int i = 0; i < N; i++)
		close(c[i]);
	close(l);
	counted(&v4, 10000, 10000);
}

static void v6_arrives(void)
{
	counted(&v6, 1000000, 1000000);
	counted(&v6_inet, 100000, 200000);
}

static void v6_of_one_link_arrives(void)
{
	counted(&v6_near, 1000000, 1000000);
}

/* The addresses of a group's queue pairs are of one family, as are those of its connections. */
static void v6_has_groups_of_its_own(void)
{
	static const struct flavour *const all[] = { &v4, &v6, &v6_near, &mapped };
	struct pair p[ARRAY_SIZE(all)][2];
	unsigned int group[ARRAY_SIZE(all)];

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct smc_rs_info info[2];

		row("%s", all[i]->name);
		for (int n = 0; n < 2; n++) {
			p[i][n] = smcr_pair(all[i]);
			CHECK_EQ(smc_info(p[i][n].c, &info[n]), 0);
			exchange(&p[i][n], 10000, 10000);
		}
		CHECK_EQ(info[0].lgr_id, info[1].lgr_id);
		group[i] = info[0].lgr_id;
	}
	CHECK(group[0] != group[1] && group[0] != group[2] && group[1] != group[2]);
	CHECK_EQ(group[3], group[0]);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		for (int n = 0; n < 2; n++)
			pair_close(&p[i][n]);
}

static void mapped_address_arrives(void)
{
	counted(&mapped, 300000, 300000);
}

static void plain_tcp_peers_arrive(void)
{
	static const struct flavour two[] = {
		{ "SMC to TCP", SMC4, TCP4, SERVER_V4, SERVER_V4 },
		{ "TCP to SMC", TCP4, SMC4, SERVER_V4, SERVER_V4 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(two); i++) {
		struct pair p;

		row("%s", two[i].name);
		expect_smcr_begin();
		p = pair_make(&two[i]);
		check_mode(i ? p.s : p.c, SMC_RS_MODE_TCP);
		exchange(&p, 300000, 300000);
		expect_tcp_end(300000, 300000);
		pair_close(&p);
	}
}

static bool no_sockets(void *arg)
{
	(void)arg;
	return proto_sockets("SMC") <= 0 && proto_sockets("SMC6") <= 0;
}

static void nothing_remains_after_ten_seconds(void)
{
	if (proto_sockets("SMC") < 0)
		SKIP("no protocol SMC in /proc/net/protocols");
	if (!busywait(10000, no_sockets, NULL))
		FAIL("%lld and %lld sockets remain", proto_sockets("SMC"),
		     proto_sockets("SMC6"));
}

static const struct test_case cases[] = {
	CASE(first_connection_uses_rdma),
	CASE(info_describes_both_ends),
	CASE_LIMIT(sizes_to_server_arrive, 30),
	CASE_LIMIT(sizes_to_client_arrive, 30),
	CASE(sizes_both_ways_arrive),
	CASE_LIMIT(sixteen_mib_to_server_arrive, 60),
	CASE_LIMIT(sixteen_mib_to_client_arrive, 60),
	CASE_LIMIT(both_ways_at_once_arrive, 40),
	CASE(ipproto_smc_sockets_use_rdma),
	CASE_LIMIT(odd_chunks_wrap_small_rings, 40),
	CASE_LIMIT(unequal_rings_work, 40),
	CASE_LIMIT(blocking_calls_arrive, 40),
	CASE_LIMIT(edge_triggered_arrives, 40),
	CASE_LIMIT(ping_pong_of_small_messages_arrives, 40),
	CASE(many_tiny_writes_arrive),
	CASE_LIMIT(nodelay_from_before_the_connection_counts, 40),
	CASE(full_ring_blocks_and_reopens),
	CASE(receive_flags_work),
	CASE(peek_and_waitall_across_wrap_are_right),
	CASE(receive_wait_ends_by_timeout_or_signal),
	CASE(busy_reader_looks_before_it_sleeps),
	CASE(names_agree_on_both_sides),
	CASE(nonblocking_connect_and_epoll_see_connection),
	CASE(data_before_accept_is_kept),
	CASE(second_connection_reuses_group),
	CASE(opposite_direction_works_at_once),
	CASE_LIMIT(keys_of_short_connections_need_no_exchange, 60),
	CASE_LIMIT(completions_do_not_wait_for_ksoftirqd, 40),
	CASE_LIMIT(twenty_at_once_arrive, 50),
	CASE(send_of_nothing_returns),
	CASE(second_urgent_byte_waits_asleep),
	CASE_LIMIT(limited_listener_takes_the_rest_by_tcp, 60),
	CASE_LIMIT(bad_pages_lose_no_byte, 40),
	CASE_LIMIT(crowd_over_a_dead_path_goes_by_tcp, 60),
	CASE_LIMIT(more_than_255_connections_work, 90),
	CASE_LIMIT(short_connections_in_a_row_work, 40),
	CASE_LIMIT(close_in_every_order_works, 40),
	CASE(close_with_data_on_the_way_delivers_it),
	CASE(close_with_unread_data_resets_peer),
	CASE_LIMIT(reset_does_not_overtake_data, 60),
	CASE(half_closed_connection_still_carries_data),
	CASE(shutdown_of_both_directions_works),
	CASE(send_after_peer_closed_fails),
	CASE(killed_sender_ends_stream),
	CASE(killed_receiver_frees_blocked_sender),
	CASE_LIMIT(slow_path_keeps_the_link_group, 60),
	CASE(listener_closed_with_children_ends_them),
	CASE(listener_closed_with_deferred_children_ends_them),
	CASE(full_backlog_recovers),
	CASE(v6_arrives),
	CASE(v6_of_one_link_arrives),
	CASE(v6_has_groups_of_its_own),
	CASE(mapped_address_arrives),
	CASE(plain_tcp_peers_arrive),
	CASE(nothing_remains_after_ten_seconds),
};

const struct suite suite_transfer = {
	.name = "transfer", .cases = cases, .count = ARRAY_SIZE(cases), .prepare = prepare,
	.mend = mend,
};
