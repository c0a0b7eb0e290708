// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "crowd": many connections in transfer, both ways and all the time, and
 * what is under them goes: the device, the interface, the namespaces, the
 * module. Each case has two namespaces of its own.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "cases_links.h"
#include "places.h"

#define MOST 1000
/* How long an end may take to learn that the other one has gone without a word. */
#define SILENCE_MS 45000
/* How long a command that takes something away may take. */
#define COMMAND_MS 10000

/* One end of a connection. */
struct end {
	int fd;
	uint64_t seed, peer_seed;
	_Atomic uint64_t sent, received;
	/* Why it ended, 0 as long as it lives. */
	_Atomic int error;
};

static struct crowd {
	char a[32], b[32];
	unsigned int n;
	/* Those in a, and then those in b. */
	struct end ends[2 * MOST];
	int epoll;
	pthread_t thread;
	_Atomic bool enough;
} crowd;

static void moves(struct end *e, uint32_t events)
{
	static char buf[8192];
	ssize_t n = 0;

	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		uint64_t at = e->received;

		n = recv(e->fd, buf, sizeof(buf), MSG_DONTWAIT);
		/* The other end never stops, so that this is no way to hear of its end. */
		if (!n)
			FAIL("after %llu bytes the end of the stream, as if that were all", (unsigned long long)at);
		if (n > 0) {
			if (pattern_check(buf, n, e->peer_seed, at) != (size_t)n)
				FAIL("wrong bytes behind the first %llu", (unsigned long long)at);
			e->received = at + n;
		}
	}
	if (n >= 0 && events & EPOLLOUT) {
		pattern_fill(buf, 4096, e->seed, e->sent);
		n = send(e->fd, buf, 4096, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n > 0)
			e->sent += n;
	}
	if (n < 0 && errno != EAGAIN) {
		e->error = errno;
		CHECK_OK(epoll_ctl(crowd.epoll, EPOLL_CTL_DEL, e->fd, NULL));
	}
}

static void *traffic(void *arg)
{
	(void)arg;
	while (!crowd.enough) {
		struct epoll_event events[64];
		int n = epoll_wait(crowd.epoll, events, ARRAY_SIZE(events), 100);

		for (int i = 0; i < n; i++)
			moves(events[i].data.ptr, events[i].events);
	}
	return NULL;
}

static bool all_received(void *arg)
{
	const uint64_t *marks = arg;

	for (unsigned int i = 0; i < 2 * crowd.n; i++)
		if (crowd.ends[i].error || crowd.ends[i].received <= marks[i])
			return false;
	return true;
}

/* Every end gets more. */
static void expect_flow(void)
{
	static uint64_t marks[2 * MOST];

	for (unsigned int i = 0; i < 2 * crowd.n; i++)
		marks[i] = crowd.ends[i].received;
	if (busywait(60000, all_received, marks))
		return;
	for (unsigned int i = 0; i < 2 * crowd.n; i++)
		if (crowd.ends[i].error || crowd.ends[i].received <= marks[i])
			FAIL("end %u stands at %llu bytes: %s", i, (unsigned long long)crowd.ends[i].received,
			     crowd.ends[i].error ? strerrorname_np(crowd.ends[i].error) : "no error");
}

static bool all_ended(void *arg)
{
	unsigned int first = *(unsigned int *)arg;

	for (unsigned int i = first; i < first + crowd.n; i++)
		if (!crowd.ends[i].error)
			return false;
	return true;
}

/* Every end of a side has an error before long. */
static void expect_ended(enum side side, unsigned int ms)
{
	unsigned int first = side == CLIENT ? 0 : crowd.n;
	uint64_t start = now_us();

	if (!busywait(ms, all_ended, &first))
		FAIL("not every connection has ended at the %s", side == CLIENT ? "client" : "server");
	note("the %s knew after %llu ms", side == CLIENT ? "client" : "server",
	     (unsigned long long)(now_us() - start) / 1000);
	for (unsigned int i = first; i < first + crowd.n; i++) {
		int error = crowd.ends[i].error;

		if (error != ECONNABORTED && error != ECONNRESET && error != EPIPE && error != ETIMEDOUT)
			FAIL("end %u has ended with %s", i, strerrorname_np(error));
	}
}

/* A connection between the two namespaces, over RDMA. */
static bool connect_one(int listener, unsigned int port, int fds[2])
{
	struct sockaddr_storage ss;
	struct smc_rs_info info;
	socklen_t len = addr_make(&ss, AF_INET, PLACE_B, port);

	fds[0] = CHECK_OK(kind_socket(SMC4, 0));
	CHECK_OK(connect(fds[0], (struct sockaddr *)&ss, len));
	fds[1] = CHECK_OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	CHECK_EQ(smc_info(fds[0], &info), 0);
	return info.mode == SMC_RS_MODE_SMCR;
}

static void connect_all(void)
{
	struct sockaddr_storage ss;
	socklen_t len = addr_make(&ss, AF_INET, PLACE_B, 0);
	unsigned int port;
	int listener, fds[2];

	enter_place(crowd.b);
	listener = CHECK_OK(kind_socket(SMC4, 0));
	CHECK_OK(bind(listener, (struct sockaddr *)&ss, len));
	CHECK_OK(listen(listener, 128));
	len = sizeof(ss);
	CHECK_OK(getsockname(listener, (struct sockaddr *)&ss, &len));
	port = addr_port(&ss);
	enter_place(crowd.a);
	/* The devices take a moment to learn their addresses. */
	for (int i = 0; !connect_one(listener, port, fds); i++) {
		if (i == 50)
			FAIL("connections go by TCP");
		close(fds[0]);
		close(fds[1]);
		usleep(100000);
	}
	for (unsigned int i = 0;;) {
		for (int side = 0; side < 2; side++)
			crowd.ends[side * crowd.n + i] = (struct end) {
				.fd = fds[side], .seed = 2 * i + side, .peer_seed = 2 * i + !side,
			};
		if (++i == crowd.n)
			break;
		if (!connect_one(listener, port, fds))
			FAIL("connection %u goes by TCP", i);
	}
	close(listener);
	enter(CLIENT);
}

static void begin(void)
{
	const char *text = getenv("SMC_CROWD");
	struct rlimit files = { .rlim_cur = 2 * MOST + 100, .rlim_max = 2 * MOST + 100 };

	crowd.n = text ? atoi(text) : 20;
	if (!crowd.n || crowd.n > MOST)
		FAIL("SMC_CROWD is from 1 to %d", MOST);
	CHECK_OK(setrlimit(RLIMIT_NOFILE, &files));
	snprintf(crowd.a, sizeof(crowd.a), "smct%dx", getpid());
	snprintf(crowd.b, sizeof(crowd.b), "smct%dy", getpid());
	namespaces_add(crowd.a, crowd.b, true);
	connect_all();
	crowd.epoll = CHECK_OK(epoll_create1(EPOLL_CLOEXEC));
	for (unsigned int i = 0; i < 2 * crowd.n; i++) {
		struct epoll_event event = { .events = EPOLLIN | EPOLLOUT, .data.ptr = &crowd.ends[i] };

		CHECK_OK(epoll_ctl(crowd.epoll, EPOLL_CTL_ADD, crowd.ends[i].fd, &event));
	}
	CHECK(!pthread_create(&crowd.thread, NULL, traffic, NULL));
	expect_flow();
	note("%u connections are in transfer", crowd.n);
}

/* A command that does not take long, however many connections there are. */
static void soon(const char *command)
{
	uint64_t start = now_us();

	CHECK_EQ(sh("%s", command), 0);
	note("%s: %llu ms", command, (unsigned long long)(now_us() - start) / 1000);
	if (now_us() - start > COMMAND_MS * 1000ull * slowness())
		FAIL("%s took %llu ms", command, (unsigned long long)(now_us() - start) / 1000);
}

static void close_all(void)
{
	uint64_t bytes = 0;

	crowd.enough = true;
	CHECK(!pthread_join(crowd.thread, NULL));
	for (unsigned int i = 0; i < 2 * crowd.n; i++) {
		bytes += crowd.ends[i].received;
		close(crowd.ends[i].fd);
	}
	note("%llu bytes were received and checked", (unsigned long long)bytes);
}

static bool nothing_is_left(void *arg)
{
	(void)arg;
	return device_gone(crowd.a) && device_gone(crowd.b) && !module_refcount() && !objects("qp") &&
	       !objects("mr") && !objects("pd") && !objects("cq");
}

/* The namespaces go, if they have not gone before; nothing stays. */
static void end(void)
{
	CHECK_EQ(sh("for n in %s %s; do ! test -e /run/netns/$n || ip netns del $n; done", crowd.a, crowd.b), 0);
	if (!busywait(20000, nothing_is_left, NULL))
		FAIL("left: %lld references, %lld queue pairs, %lld regions, %lld domains, %lld queues, devices %d and %d",
		     module_refcount(), objects("qp"), objects("mr"), objects("pd"), objects("cq"),
		     !device_gone(crowd.a), !device_gone(crowd.b));
}

/* What is taken away by a command ends the connections, and their ends are closed later. */
static void goes(const char *format, enum side side)
{
	char command[200];

	begin();
	snprintf(command, sizeof(command), format, side == CLIENT ? crowd.a : crowd.b);
	soon(command);
	expect_ended(CLIENT, SILENCE_MS);
	expect_ended(SERVER, SILENCE_MS);
	close_all();
	end();
}

static void device_deleted_under_a_crowd(void)
{
	goes("rdma link delete %s", CLIENT);
}

static void interface_down_under_a_crowd(void)
{
	goes("ip -n %s link set veth0 down", SERVER);
}

/* The other end of the wire goes with it. */
static void interface_deleted_under_a_crowd(void)
{
	goes("ip -n %s link delete veth0", CLIENT);
}

static void interface_moved_under_a_crowd(void)
{
	goes("ip -n %1$s link set veth0 name smct0 netns 1 && nsenter -t 1 -n ip link delete smct0", SERVER);
}

/* Connections outlive the names of their namespaces, which go with the last of them. */
static void namespaces_deleted_under_a_crowd(void)
{
	begin();
	CHECK_EQ(sh("ip netns del %s && ip netns del %s", crowd.a, crowd.b), 0);
	expect_flow();
	close_all();
	end();
}

static void module_unloaded_under_a_crowd(void)
{
	const char *script = getenv("SMC_UNLOAD");
	uint64_t start = now_us();
	int status;
	pid_t pid;

	need_module_file();
	if (!script || access(script, X_OK))
		SKIP("no script smc-unload");
	begin();
	pid = fork();
	if (!pid) {
		execl(script, script, "--quiet", "--timeout", "120", NULL);
		_exit(127);
	}
	expect_ended(CLIENT, SILENCE_MS);
	expect_ended(SERVER, SILENCE_MS);
	CHECK_EQ(waitpid(pid, &status, WNOHANG), 0);
	close_all();
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK(!module_loaded());
	note("unloaded after %llu ms", (unsigned long long)(now_us() - start) / 1000);
	module_load();
	end();
}

static bool prepare(void)
{
	if (!have_namespaces() || !have_rdma_devices()) {
		suite_skip_reason("needs namespaces with RDMA devices");
		return false;
	}
	return true;
}

/* What a failed case may have left. */
static void mend(void)
{
	sh("for n in /run/netns/smct*[xy]; do ! test -e $n || ip netns del ${n##*/}; done");
}

static const struct test_case crowd_cases[] = {
	CASE_LIMIT(device_deleted_under_a_crowd, 300),
	CASE_LIMIT(interface_down_under_a_crowd, 300),
	CASE_LIMIT(interface_deleted_under_a_crowd, 300),
	CASE_LIMIT(interface_moved_under_a_crowd, 300),
	CASE_LIMIT(namespaces_deleted_under_a_crowd, 300),
	CASE_LIMIT(module_unloaded_under_a_crowd, 300),
};

const struct suite suite_crowd = {
	.name = "crowd", .cases = crowd_cases, .count = ARRAY_SIZE(crowd_cases), .prepare = prepare, .mend = mend,
};
