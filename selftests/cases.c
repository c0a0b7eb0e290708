// SPDX-License-Identifier: GPL-2.0
/*
 * smc_cases: runs the cases of one suite and prints a line for each.
 *
 *   smc_cases --list SUITE          names of the cases
 *   smc_cases --count SUITE         how many there are
 *   smc_cases SUITE [NAME...]       run all of them, or the named ones
 *
 * A case is a process of its own: a crash or a hang ends that case only.
 * Lines on stdout: "ok NAME", "not ok NAME", "skip NAME - why", "# text".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <linux/netlink.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nf_tables.h>

#include "cases.h"

#define DEFAULT_LIMIT_S 20

enum { EXIT_PASS = 0, EXIT_FAIL = 1, EXIT_SKIP = 4 };

static const struct suite *const suites[] = {
	&suite_load, &suite_socket, &suite_fallback, &suite_waiting, &suite_reason,
	&suite_transfer, &suite_goaway, &suite_faults,
	&suite_crowd, &suite_links, &suite_groups, &suite_isolated, &suite_tuning, &suite_storm,
};

/* Shared with the case's process: why it skips. */
static char *reason;
static __thread char row_text[256];
static char skip_reason[200];

/* Reporting */

static void vnote(const char *prefix, const char *fmt, va_list ap)
{
	char line[600];
	int n = snprintf(line, sizeof(line), "# %s", prefix);

	vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	strcat(line, "\n");
	/* One write, so that threads and processes do not mix their lines. */
	if (write(STDOUT_FILENO, line, strlen(line)) < 0)
		_exit(EXIT_FAIL);
}

void note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vnote("", fmt, ap);
	va_end(ap);
}

void row(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(row_text, sizeof(row_text), fmt, ap);
	va_end(ap);
}

void case_fail(const char *file, int line, const char *fmt, ...)
{
	char prefix[320];
	va_list ap;

	snprintf(prefix, sizeof(prefix), "%s:%d: %s%s", file, line, row_text,
		 row_text[0] ? ": " : "");
	va_start(ap, fmt);
	vnote(prefix, fmt, ap);
	va_end(ap);
	_exit(EXIT_FAIL);
}

void case_skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(reason, 200, fmt, ap);
	va_end(ap);
	_exit(EXIT_SKIP);
}

void suite_skip_reason(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(skip_reason, sizeof(skip_reason), fmt, ap);
	va_end(ap);
}

/* Places */

static int ns_fd[2] = { -1, -1 };

bool have_namespaces(void)
{
	return ns_fd[CLIENT] >= 0 && ns_fd[SERVER] >= 0;
}

static void open_namespaces(void)
{
	static const char *const names[] = { "SMC_NS_CLIENT", "SMC_NS_SERVER" };

	for (int i = 0; i < 2; i++) {
		const char *name = getenv(names[i]);
		char path[200];

		if (!name || !name[0])
			continue;
		snprintf(path, sizeof(path), "/run/netns/%s", name);
		ns_fd[i] = open(path, O_RDONLY | O_CLOEXEC);
		if (ns_fd[i] < 0) {
			fprintf(stderr, "smc_cases: %s: %s\n", path, strerror(errno));
			exit(EXIT_FAIL);
		}
	}
}

void enter(enum side side)
{
	if (ns_fd[side] >= 0 && setns(ns_fd[side], CLONE_NEWNET))
		FAIL("setns: %s", strerror(errno));
}

int sock_at(enum side side, enum kind_id kind, int flags)
{
	enter(side);

	int fd = kind_socket(kind, flags);

	if (fd < 0)
		FAIL("socket(%s): %s", kinds[kind].name, strerrorname_np(errno));
	return fd;
}

socklen_t target(const struct flavour *f, unsigned int port,
		 struct sockaddr_storage *ss)
{
	socklen_t len = addr_make(ss, kinds[f->client].family, f->to, port);

	if (!len)
		FAIL("flavour %s: bad address", f->name);
	return len;
}

int listen_at(const struct flavour *f, int flags, struct sockaddr_storage *where)
{
	int l = sock_at(SERVER, f->server, flags);
	struct sockaddr_storage ss;
	socklen_t len = addr_make(&ss, kinds[f->server].family, f->bind, 0);
	int zero = 0;

	if (kinds[f->server].family == AF_INET6)
		CHECK_OK(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)));
	CHECK_OK(bind(l, (struct sockaddr *)&ss, len));
	CHECK_OK(listen(l, 128));
	len = sizeof(ss);
	CHECK_OK(getsockname(l, (struct sockaddr *)&ss, &len));
	*where = ss;
	return l;
}

struct pair pair_make_bufs(const struct flavour *f, int sndbuf, int rcvbuf)
{
	struct sockaddr_storage ss;
	struct pair p;
	socklen_t len;

	p.l = sock_at(SERVER, f->server, 0);
	if (kinds[f->server].family == AF_INET6) {
		int zero = 0;

		CHECK_OK(setsockopt(p.l, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)));
	}
	p.c = sock_at(CLIENT, f->client, 0);
	if (sndbuf) {
		CHECK_OK(setsockopt(p.l, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf)));
		CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf)));
	}
	if (rcvbuf) {
		CHECK_OK(setsockopt(p.l, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)));
		CHECK_OK(setsockopt(p.c, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)));
	}
	enter(SERVER);
	len = addr_make(&ss, kinds[f->server].family, f->bind, 0);
	CHECK_OK(bind(p.l, (struct sockaddr *)&ss, len));
	CHECK_OK(listen(p.l, 128));
	len = sizeof(ss);
	CHECK_OK(getsockname(p.l, (struct sockaddr *)&ss, &len));
	p.port = addr_port(&ss);
	enter(CLIENT);
	len = target(f, p.port, &ss);
	CHECK_OK(connect(p.c, (struct sockaddr *)&ss, len));
	p.s = CHECK_OK(accept4(p.l, NULL, NULL, SOCK_CLOEXEC));
	return p;
}

struct pair pair_make(const struct flavour *f)
{
	return pair_make_bufs(f, 0, 0);
}

void pair_close(struct pair *p)
{
	if (p->c >= 0)
		close(p->c);
	if (p->s >= 0)
		close(p->s);
	if (p->l >= 0)
		close(p->l);
	p->c = p->s = p->l = -1;
}

unsigned int slowness(void)
{
	const char *slow = getenv("SMC_SLOW");
	int times = slow ? atoi(slow) : 1;

	return times > 1 ? times : 1;
}

/* Moving data */

#define CHUNK 65536

static __thread unsigned char data_buf[CHUNK];

/* Sends as much as goes, at most one chunk.  False when the socket is full. */
static bool flow_send(struct flow *f, int flags)
{
	size_t chunk = f->chunk ? f->chunk : CHUNK;
	size_t want = f->to_send - f->sent;

	if (want > chunk)
		want = chunk;
	if (want) {
		pattern_fill(data_buf, want, f->send_seed, f->sent);

		ssize_t n = send(f->fd, data_buf, want, flags | MSG_NOSIGNAL);

		if (n < 0 && errno == EAGAIN && (flags & MSG_DONTWAIT))
			return false;
		if (n <= 0)
			FAIL("send after %llu of %llu bytes: %zd (%s)",
			     (unsigned long long)f->sent, (unsigned long long)f->to_send,
			     n, strerrorname_np(errno));
		f->sent += n;
	}
	if (f->sent == f->to_send && f->shut && !f->shut_done) {
		CHECK_OK(shutdown(f->fd, SHUT_WR));
		f->shut_done = true;
	}
	return true;
}

/* Receives at most one chunk.  False when there is nothing. */
static bool flow_recv(struct flow *f, int flags)
{
	size_t chunk = f->chunk ? f->chunk : CHUNK;
	ssize_t n = recv(f->fd, data_buf, chunk, flags);

	if (n < 0 && errno == EAGAIN && (flags & MSG_DONTWAIT))
		return false;
	if (n < 0)
		FAIL("recv after %llu of %llu bytes: %s",
		     (unsigned long long)f->received, (unsigned long long)f->to_recv,
		     strerrorname_np(errno));
	if (n == 0) {
		if (f->received != f->to_recv)
			FAIL("the stream ended after %llu of %llu bytes",
			     (unsigned long long)f->received,
			     (unsigned long long)f->to_recv);
		f->eof = true;
		return false;
	}
	if (f->received + n > f->to_recv)
		FAIL("%llu bytes too many",
		     (unsigned long long)(f->received + n - f->to_recv));

	size_t good = pattern_check(data_buf, n, f->recv_seed, f->received);

	if (good != (size_t)n)
		FAIL("wrong byte at offset %llu of %llu (%zd received at once)",
		     (unsigned long long)(f->received + good),
		     (unsigned long long)f->to_recv, n);
	f->received += n;
	return true;
}

static bool send_open(const struct flow *f)
{
	return f->sent < f->to_send || (f->shut && !f->shut_done);
}

static bool recv_open(const struct flow *f)
{
	return f->received < f->to_recv || (f->want_eof && !f->eof);
}

static void stalled(const struct flow *flows, size_t count, const char *how)
{
	for (size_t i = 0; i < count; i++) {
		const struct flow *f = &flows[i];
		short now = poll_one(f->fd, POLLIN | POLLOUT | POLLRDHUP, 0);

		if (send_open(f) || recv_open(f))
			note("flow %zu: sent %llu of %llu, received %llu of %llu, eof %d, poll says 0x%x",
			     i, (unsigned long long)f->sent, (unsigned long long)f->to_send,
			     (unsigned long long)f->received, (unsigned long long)f->to_recv,
			     f->eof, now);
	}
	FAIL("%s: no progress in time", how);
}

void pump(struct flow *flows, size_t count, unsigned int limit_ms)
{
	uint64_t end = now_us() + limit_ms * 1000ull * slowness();
	struct pollfd *p = calloc(count, sizeof(*p));

	for (;;) {
		size_t open = 0;

		for (size_t i = 0; i < count; i++) {
			p[i].fd = -1;
			p[i].events = 0;
			if (send_open(&flows[i]))
				p[i].events |= POLLOUT;
			if (recv_open(&flows[i]))
				p[i].events |= POLLIN;
			if (p[i].events) {
				p[i].fd = flows[i].fd;
				open++;
			}
		}
		if (!open)
			break;

		uint64_t now = now_us();

		if (now >= end || poll(p, count, (end - now) / 1000 + 1) <= 0)
			stalled(flows, count, "poll");
		for (size_t i = 0; i < count; i++) {
			if (p[i].fd < 0)
				continue;
			if (p[i].revents & POLLNVAL)
				FAIL("POLLNVAL");
			if (p[i].revents & (POLLIN | POLLERR | POLLHUP) && recv_open(&flows[i]))
				flow_recv(&flows[i], MSG_DONTWAIT);
			if (p[i].revents & (POLLOUT | POLLERR | POLLHUP) && send_open(&flows[i]))
				flow_send(&flows[i], MSG_DONTWAIT);
		}
	}
	free(p);
}

void pump_et(struct flow *flows, size_t count, unsigned int limit_ms)
{
	uint64_t end = now_us() + limit_ms * 1000ull * slowness();
	int ep = CHECK_OK(epoll_create1(EPOLL_CLOEXEC));
	size_t open = count;

	for (size_t i = 0; i < count; i++) {
		struct epoll_event ev = {
			.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
			.data.u64 = i,
		};

		CHECK_OK(epoll_ctl(ep, EPOLL_CTL_ADD, flows[i].fd, &ev));
		if (!send_open(&flows[i]) && !recv_open(&flows[i]))
			open--;
	}
	while (open) {
		struct epoll_event ev[32];
		uint64_t now = now_us();
		int n = now >= end ? 0 :
			epoll_wait(ep, ev, ARRAY_SIZE(ev), (end - now) / 1000 + 1);

		if (n <= 0)
			stalled(flows, count, "edge-triggered epoll");
		for (int i = 0; i < n; i++) {
			struct flow *f = &flows[ev[i].data.u64];

			if (!send_open(f) && !recv_open(f))
				continue;
			/* An edge comes once: go on until EAGAIN both ways. */
			for (bool again = true; again;) {
				again = false;
				if (recv_open(f) && flow_recv(f, MSG_DONTWAIT))
					again = true;
				if (send_open(f) && flow_send(f, MSG_DONTWAIT))
					again = true;
			}
			if (!send_open(f) && !recv_open(f))
				open--;
		}
	}
	close(ep);
}

static void *send_thread(void *arg)
{
	while (send_open(arg))
		flow_send(arg, 0);
	return NULL;
}

static void *recv_thread(void *arg)
{
	while (recv_open(arg))
		flow_recv(arg, 0);
	return NULL;
}

void pump_blocking(struct flow *flows, size_t count)
{
	pthread_t *t = calloc(count * 2, sizeof(*t));

	for (size_t i = 0; i < count; i++) {
		CHECK(!pthread_create(&t[2 * i], NULL, send_thread, &flows[i]));
		CHECK(!pthread_create(&t[2 * i + 1], NULL, recv_thread, &flows[i]));
	}
	for (size_t i = 0; i < 2 * count; i++)
		pthread_join(t[i], NULL);
	free(t);
}

void exchange(struct pair *p, uint64_t to_server, uint64_t to_client)
{
	struct flow f[2] = {
		{ .fd = p->c, .to_send = to_server, .send_seed = p->port,
		  .to_recv = to_client, .recv_seed = p->port + 70000 },
		{ .fd = p->s, .to_send = to_client, .send_seed = p->port + 70000,
		  .to_recv = to_server, .recv_seed = p->port },
	};

	/* Emulated machines that share processors can be very slow. */
	pump(f, 2, 15000 + (to_server + to_client) / 500);
}

short poll_one(int fd, short events, int ms)
{
	struct pollfd p = { .fd = fd, .events = events };

	if (poll(&p, 1, ms) < 0)
		FAIL("poll: %s", strerrorname_np(errno));
	return p.revents;
}

void wait_events(int fd, short events, int ms)
{
	short got = poll_one(fd, events, ms * slowness());

	if (!(got & events))
		FAIL("poll says 0x%x after %d ms, expected one of 0x%x", got, ms, events);
}

int so_error(int fd)
{
	int err = -1;
	socklen_t len = sizeof(err);

	CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len));
	return err;
}

void send_all(int fd, const void *buf, size_t len)
{
	while (len) {
		ssize_t n = CHECK_OK(send(fd, buf, len, MSG_NOSIGNAL));

		buf = (const char *)buf + n;
		len -= n;
	}
}

void recv_all(int fd, void *buf, size_t len)
{
	while (len) {
		ssize_t n = CHECK_OK(recv(fd, buf, len, 0));

		if (!n)
			FAIL("the stream ended %zu bytes early", len);
		buf = (char *)buf + n;
		len -= n;
	}
}

void expect_eof(int fd)
{
	char c;

	wait_events(fd, POLLIN | POLLRDHUP, 5000);
	CHECK_EQ(CHECK_OK(recv(fd, &c, 1, MSG_DONTWAIT)), 0);
}

volatile int got_signal;

static void on_signal(int sig)
{
	(void)sig;
	got_signal++;
}

void catch_signal(int sig)
{
	struct sigaction sa = { .sa_handler = on_signal };

	CHECK_OK(sigaction(sig, &sa, NULL));
}

static __thread timer_t alarm_timer;

void alarm_start(int sig, unsigned int ms)
{
	struct sigevent ev = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = sig };
	struct itimerspec its = {
		.it_value.tv_nsec = ms * 1000000l,
		.it_interval.tv_nsec = ms * 1000000l,
	};

	ev._sigev_un._tid = gettid();
	CHECK_OK(timer_create(CLOCK_MONOTONIC, &ev, &alarm_timer));
	CHECK_OK(timer_settime(alarm_timer, 0, &its, NULL));
}

void alarm_stop(void)
{
	CHECK_OK(timer_delete(alarm_timer));
}

/* The world outside */

int sh(const char *fmt, ...)
{
	char cmd[1200], line[300];
	va_list ap;
	FILE *out;
	int rc;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof(cmd) - 6, fmt, ap);
	va_end(ap);
	strcat(cmd, " 2>&1");
	out = popen(cmd, "r");
	if (!out)
		FAIL("popen: %s", strerror(errno));
	while (fgets(line, sizeof(line), out)) {
		line[strcspn(line, "\n")] = '\0';
		note("  %s", line);
	}
	rc = pclose(out);
	return WIFEXITED(rc) ? WEXITSTATUS(rc) : 255;
}

long long file_number(const char *fmt, ...)
{
	char path[300], buf[64] = "";
	va_list ap;
	int fd;

	va_start(ap, fmt);
	vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;

	ssize_t n = read(fd, buf, sizeof(buf) - 1);

	close(fd);
	return n > 0 ? atoll(buf) : -1;
}

bool busywait(unsigned int ms, bool (*cond)(void *arg), void *arg)
{
	uint64_t end = now_us() + ms * 1000ull * slowness();

	while (!cond(arg)) {
		if (now_us() > end)
			return false;
		poll(NULL, 0, 20);
	}
	return true;
}

static const char *module_file(void)
{
	const char *ko = getenv("SMC_KO");

	return ko && ko[0] ? ko : "../smc_rs.ko";
}

bool module_loaded(void)
{
	return access("/sys/module/smc_rs", F_OK) == 0;
}

long long module_refcount(void)
{
	return file_number("/sys/module/smc_rs/refcnt");
}

void need_module_file(void)
{
	if (access(module_file(), R_OK))
		SKIP("no module file to load, set SMC_KO");
}

void module_load(void)
{
	int fd = open(module_file(), O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_OK(syscall(SYS_finit_module, fd, "", 0));
	close(fd);
}

int module_unload(void)
{
	return syscall(SYS_delete_module, "smc_rs", O_NONBLOCK);
}

long long proto_sockets(const char *name)
{
	FILE *f = fopen("/proc/thread-self/net/protocols", "re");
	long long count = -1;
	char line[300];

	while (f && fgets(line, sizeof(line), f)) {
		char proto[64];
		long long size, sockets;

		if (sscanf(line, "%63s %lld %lld", proto, &size, &sockets) == 3 &&
		    !strcmp(proto, name))
			count = sockets;
	}
	if (f)
		fclose(f);
	return count;
}

const char *ns_of(enum side side)
{
	return getenv(side == CLIENT ? "SMC_NS_CLIENT" : "SMC_NS_SERVER");
}

/* Counters */

static const char *dev_name(enum side side)
{
	const char *name = getenv(side == CLIENT ? "SMC_DEV_CLIENT" : "SMC_DEV_SERVER");

	return name && name[0] ? name : NULL;
}

long long dev_counter(enum side side, const char *what)
{
	const char *dev = dev_name(side);

	if (!dev)
		return -1;
	return file_number("/sys/class/infiniband/%s/ports/1/hw_counters/%s", dev, what);
}

/* Packets that all RDMA devices of the machine have sent. */
static long long all_packets(void)
{
	long long sum = 0;
	glob_t found;

	if (!glob("/sys/class/infiniband/*/ports/1/hw_counters/sent_pkts", 0, NULL, &found)) {
		for (size_t i = 0; i < found.gl_pathc; i++) {
			long long n = file_number("%s", found.gl_pathv[i]);

			/* A device may go meanwhile. */
			sum += n < 0 ? 0 : n;
		}
	}
	globfree(&found);
	return sum;
}

/* Waits until nothing is sent any more. */
static void wires_quiet(void)
{
	uint64_t until = now_us() + 15000000;
	long long now = all_packets(), before;

	do {
		before = now;
		poll(NULL, 0, 300);
		now = all_packets();
		CHECK(now_us() < until);
	} while (now != before);
}

/* Runs a command of tc for the interface of each of some wires. */
static void wires_do(unsigned int sides, int wires, const char *verb, const char *how)
{
	for (int side = CLIENT; side <= SERVER; side++)
		for (int which = 0; which < wires; which++)
			if (sides & 1u << side)
				CHECK_EQ(sh("tc -n %s qdisc %s dev veth%d root %s", ns_of(side),
					    verb, which, how), 0);
}

void wires_begin(unsigned int sides, int wires)
{
	wires_quiet();
	wires_do(sides, wires, "add", "netem limit 10000");
}

void wires_set(unsigned int sides, int wires, const char *how)
{
	char all[100];

	snprintf(all, sizeof(all), "netem limit 10000 %s", how);
	wires_do(sides, wires, "change", all);
}

void wires_end(unsigned int sides, int wires)
{
	wires_quiet();
	wires_do(sides, wires, "del", "");
}

void wires_mend(int wires)
{
	for (int side = CLIENT; side <= SERVER; side++)
		for (int which = 0; which < wires; which++)
			sh("tc -n %s qdisc del dev veth%d root >/dev/null 2>&1", ns_of(side), which);
}

bool have_rdma_devices(void)
{
	return dev_counter(CLIENT, "sent_bytes") >= 0 && dev_counter(SERVER, "sent_bytes") >= 0;
}

void *attr_put(void *at, int type, const void *data, size_t len)
{
	struct nlattr *a = at;

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + len;
	memcpy((char *)at + NLA_HDRLEN, data, len);
	memset((char *)at + NLA_HDRLEN + len, 0, NLA_ALIGN(len) - len);
	return (char *)at + NLA_ALIGN(a->nla_len);
}

const struct nlattr *attr_find(const void *at, size_t len, int type)
{
	while (len >= NLA_HDRLEN) {
		const struct nlattr *a = at;

		if (a->nla_len < NLA_HDRLEN || a->nla_len > len)
			break;
		if ((a->nla_type & NLA_TYPE_MASK) == type)
			return a;
		if ((size_t)NLA_ALIGN(a->nla_len) >= len)
			break;
		len -= NLA_ALIGN(a->nla_len);
		at = (const char *)at + NLA_ALIGN(a->nla_len);
	}
	return NULL;
}

/* A named counter of table "inet smct" where the calling thread stands. */
static bool nft_counter(const char *name, uint64_t *bytes, uint64_t *packets)
{
	static const char table[] = "smct";
	char req[256] __attribute__((aligned(8))) = "", rsp[2048] __attribute__((aligned(8)));
	struct nlmsghdr *h = (void *)req;
	struct nfgenmsg *g = NLMSG_DATA(h);
	uint32_t type = htonl(NFT_OBJECT_COUNTER);
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	bool found = false;
	void *at = g + 1;

	if (fd < 0)
		return false;
	h->nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETOBJ;
	h->nlmsg_flags = NLM_F_REQUEST;
	g->nfgen_family = NFPROTO_INET;
	at = attr_put(at, NFTA_OBJ_TABLE, table, sizeof(table));
	at = attr_put(at, NFTA_OBJ_NAME, name, strlen(name) + 1);
	at = attr_put(at, NFTA_OBJ_TYPE, &type, sizeof(type));
	h->nlmsg_len = (char *)at - req;

	ssize_t n = -1;

	if (send(fd, req, h->nlmsg_len, 0) == (ssize_t)h->nlmsg_len)
		n = recv(fd, rsp, sizeof(rsp), 0);
	close(fd);
	h = (void *)rsp;
	if (n < (ssize_t)(NLMSG_HDRLEN + sizeof(*g)) || h->nlmsg_type == NLMSG_ERROR)
		return false;
	g = NLMSG_DATA(h);

	const struct nlattr *data = attr_find(g + 1, n - NLMSG_HDRLEN - sizeof(*g),
					      NFTA_OBJ_DATA);

	if (data) {
		const void *in = (const char *)data + NLA_HDRLEN;
		size_t len = data->nla_len - NLA_HDRLEN;
		const struct nlattr *b = attr_find(in, len, NFTA_COUNTER_BYTES);
		const struct nlattr *p = attr_find(in, len, NFTA_COUNTER_PACKETS);
		uint64_t be;

		if (b && p) {
			memcpy(&be, (const char *)b + NLA_HDRLEN, sizeof(be));
			*bytes = be64toh(be);
			memcpy(&be, (const char *)p + NLA_HDRLEN, sizeof(be));
			*packets = be64toh(be);
			found = true;
		}
	}
	return found;
}

void counters_read(struct counters *c)
{
	uint64_t unused;

	memset(c, 0, sizeof(*c));
	c->have_rdma = have_rdma_devices();
	if (c->have_rdma) {
		c->rdma_c_sent = dev_counter(CLIENT, "sent_bytes");
		c->rdma_c_rcvd = dev_counter(CLIENT, "rcvd_bytes");
		c->rdma_s_sent = dev_counter(SERVER, "sent_bytes");
		c->rdma_s_rcvd = dev_counter(SERVER, "rcvd_bytes");
	}
	enter(SERVER);
	c->have_tcp = nft_counter("tcp_bytes", &c->tcp_bytes, &unused);
	nft_counter("smc_syn", &unused, &c->syn_options);
}

bool as_tcp(void)
{
	return getenv("SMC_AS_TCP") != NULL;
}

static struct counters before;

void expect_smcr_begin(void)
{
	counters_read(&before);
}

static void wait_carried(uint64_t to_server, uint64_t to_client, struct counters *now)
{
	/* The devices count on their own processors: give them a moment. */
	for (int i = 0; i < 50; i++) {
		counters_read(now);
		if (now->rdma_c_sent - before.rdma_c_sent >= to_server &&
		    now->rdma_s_rcvd - before.rdma_s_rcvd >= to_server &&
		    now->rdma_s_sent - before.rdma_s_sent >= to_client &&
		    now->rdma_c_rcvd - before.rdma_c_rcvd >= to_client)
			return;
		poll(NULL, 0, 10);
	}
}

void expect_smcr_end(uint64_t to_server, uint64_t to_client, unsigned int conns)
{
	struct counters now;

	if (as_tcp())
		return;
	wait_carried(to_server, to_client, &now);
	if (!now.have_rdma || !now.have_tcp)
		FAIL("no counters outside of the module");

#define CARRIED(field, want)								\
	if (now.field - before.field < (want))						\
		FAIL("%s grew by %llu, payload is %llu", #field,			\
		     (unsigned long long)(now.field - before.field),			\
		     (unsigned long long)(want))

	CARRIED(rdma_c_sent, to_server);
	CARRIED(rdma_s_rcvd, to_server);
	CARRIED(rdma_s_sent, to_client);
	CARRIED(rdma_c_rcvd, to_client);
#undef CARRIED
	if (now.tcp_bytes - before.tcp_bytes >= 4096ull * conns)
		FAIL("TCP carried %llu bytes for %u connections",
		     (unsigned long long)(now.tcp_bytes - before.tcp_bytes), conns);
}

void expect_tcp_end(uint64_t to_server, uint64_t to_client)
{
	struct counters now;
	uint64_t payload = to_server + to_client;

	counters_read(&now);
	if (now.have_tcp && now.tcp_bytes - before.tcp_bytes < payload)
		FAIL("TCP carried %llu bytes, payload is %llu",
		     (unsigned long long)(now.tcp_bytes - before.tcp_bytes),
		     (unsigned long long)payload);
	if (now.have_rdma && payload > 65536 &&
	    now.rdma_c_sent + now.rdma_s_sent - before.rdma_c_sent - before.rdma_s_sent > 32768)
		FAIL("RDMA carried %llu bytes",
		     (unsigned long long)(now.rdma_c_sent + now.rdma_s_sent -
					  before.rdma_c_sent - before.rdma_s_sent));
}

void check_mode(int fd, unsigned int mode)
{
	struct smc_rs_info info;
	int rc = smc_info(fd, &info);

	/* A kernel without that option: the counters must do. */
	if (rc == -ENOPROTOOPT || rc == -EOPNOTSUPP)
		return;
	if (rc)
		FAIL("SMC_RS_INFO: %s", strerrorname_np(-rc));
	if (info.mode != mode)
		FAIL("mode is %s, expected %s; reason 0x%08x, %s", mode_name(info.mode),
		     mode_name(mode), info.fallback_reason,
		     reason_name(info.fallback_reason));
}

/* Running */

static int wait_case(pid_t pid, unsigned int limit_s, bool *stuck)
{
	int pidfd = syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	int status = 0;

	*stuck = false;
	if (poll(&p, 1, limit_s * 1000) == 0) {
		note("still running after %u s", limit_s);
		sh("for f in wchan stack; do for t in /proc/%d/task/*; do "
		   "echo \"$f of ${t##*/}:\"; head -12 $t/$f; echo; done; done", pid);
		kill(-pid, SIGKILL);
		if (poll(&p, 1, 5000) == 0) {
			note("does not even end by SIGKILL");
			*stuck = true;
			close(pidfd);
			return EXIT_FAIL;
		}
		waitpid(pid, &status, 0);
		close(pidfd);
		return EXIT_FAIL;
	}
	waitpid(pid, &status, 0);
	/* What the case started goes with it. */
	kill(-pid, SIGKILL);
	close(pidfd);
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	note("ended by signal %d", WTERMSIG(status));
	return EXIT_FAIL;
}

static int run_case(const struct suite *suite, const struct test_case *c, bool *stuck)
{
	fflush(NULL);
	reason[0] = '\0';

	pid_t pid = fork();

	if (pid < 0) {
		note("fork: %s", strerror(errno));
		return EXIT_FAIL;
	}
	if (!pid) {
		setpgid(0, 0);
		signal(SIGPIPE, SIG_IGN);
		if (suite->mend)
			suite->mend();
		c->run();
		_exit(EXIT_PASS);
	}
	setpgid(pid, pid);
	return wait_case(pid, (c->limit_s ? c->limit_s : DEFAULT_LIMIT_S) * slowness(), stuck);
}

static bool selected(const char *name, char **names, int count)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return true;
	return count == 0;
}

static int usage(FILE *to)
{
	fprintf(to, "usage: smc_cases [--list|--count] SUITE [CASE...]\nsuites:");
	for (size_t i = 0; i < ARRAY_SIZE(suites); i++)
		fprintf(to, " %s", suites[i]->name);
	fprintf(to, "\n");
	return to == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
	const struct suite *suite = NULL;
	bool list = false, count = false, stuck = false, failed = false;
	bool timed = getenv("SMC_TIMES") != NULL;
	int i = 1;

	for (; i < argc && argv[i][0] == '-'; i++) {
		if (!strcmp(argv[i], "--list"))
			list = true;
		else if (!strcmp(argv[i], "--count"))
			count = true;
		else
			return usage(strcmp(argv[i], "--help") && strcmp(argv[i], "-h") ?
				     stderr : stdout);
	}
	for (size_t s = 0; i < argc && s < ARRAY_SIZE(suites); s++)
		if (!strcmp(suites[s]->name, argv[i]))
			suite = suites[s];
	if (!suite)
		return usage(stderr);
	i++;
	if (count) {
		printf("%zu\n", suite->count);
		return 0;
	}
	for (size_t c = 0; list && c < suite->count; c++)
		printf("%s\n", suite->cases[c].name);
	if (list)
		return 0;

	reason = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_namespaces();

	bool ready = !suite->prepare || suite->prepare();

	for (size_t c = 0; c < suite->count; c++) {
		const struct test_case *tc = &suite->cases[c];

		if (!selected(tc->name, argv + i, argc - i))
			continue;
		if (!ready) {
			printf("skip %s - %s\n", tc->name, skip_reason);
			continue;
		}
		if (stuck) {
			printf("not ok %s - an earlier case hangs in the kernel\n", tc->name);
			continue;
		}

		uint64_t start = now_us();
		int rc = run_case(suite, tc, &stuck);

		if (timed)
			printf("# %s took %llu ms\n", tc->name,
			       (unsigned long long)(now_us() - start) / 1000);
		if (rc == EXIT_PASS)
			printf("ok %s\n", tc->name);
		else if (rc == EXIT_SKIP)
			printf("skip %s - %s\n", tc->name, reason);
		else
			printf("not ok %s\n", tc->name);
		failed |= rc != EXIT_PASS && rc != EXIT_SKIP;
	}
	return failed ? 1 : 0;
}
