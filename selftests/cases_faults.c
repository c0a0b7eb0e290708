// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "faults": every allocation on the way of a socket fails once, in turn.
 *
 * fail_function makes the n-th allocation fail that has a function of the
 * module among its callers, whichever task or work item makes it.  For n = 1,
 * 2, 3 ... until a whole attempt no longer reaches the n-th: the attempt ends
 * with an error or goes on by TCP, nothing hangs, and the next attempt works.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>

#include "cases.h"

#define FAIL_FUNCTION "/sys/kernel/debug/fail_function"

/* Longer than any wait of the module for its peer. */
#define PATIENCE_S 20

/* More allocations than any attempt makes. */
#define MOST_FAULTS 1500

static const struct flavour smc = { "SMC to SMC", SMC4, SMC4, SERVER_V4, SERVER_V4 };
static const struct flavour from_tcp = { "TCP to SMC", TCP4, SMC4, SERVER_V4, SERVER_V4 };
static const struct flavour to_tcp = { "SMC to TCP", SMC4, TCP4, SERVER_V4, SERVER_V4 };

/* False when there is no such file or it does not take the text. */
static bool put_text(const char *path, const char *fmt, ...)
{
	char text[100];
	va_list ap;

	va_start(ap, fmt);

	int len = vsnprintf(text, sizeof(text), fmt, ap);

	va_end(ap);

	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, len) == len;

	if (fd >= 0)
		close(fd);
	return done;
}

static bool set(const char *name, const char *value)
{
	char path[200];

	snprintf(path, sizeof(path), FAIL_FUNCTION "/%s", name);
	return put_text(path, "%s\n", value);
}

static void arm(unsigned int nth)
{
	char text[20];

	snprintf(text, sizeof(text), "%u", nth);
	CHECK(set("space", text));
	CHECK(set("times", "1"));
}

/* True if an allocation has failed since it was armed. */
static bool disarm(void)
{
	bool fired = file_number(FAIL_FUNCTION "/times") == 0;

	CHECK(set("times", "0"));
	return fired;
}

/* Where the module's functions lie: from its first one to the next name that is not its. */
static bool module_text(unsigned long long *from, unsigned long long *to)
{
	FILE *names = popen("sort /proc/kallsyms", "re");
	char line[1024];

	*from = *to = 0;
	while (names && fgets(line, sizeof(line), names)) {
		unsigned long long at;
		char type;

		if (*to || sscanf(line, "%llx %c", &at, &type) != 2)
			continue;
		if (!strstr(line, "[smc_rs]")) {
			if (*from)
				*to = at;
		} else if (!*from && (type == 't' || type == 'T')) {
			*from = at;
		}
	}
	if (names)
		pclose(names);
	return *from && *to > *from;
}

static bool prepare(void)
{
	unsigned long long from, to;

	if (!have_namespaces() || !have_rdma_devices()) {
		suite_skip_reason("needs two network namespaces with an RDMA device each");
		return false;
	}
	if (access(FAIL_FUNCTION "/inject", W_OK)) {
		suite_skip_reason("this kernel injects no faults");
		return false;
	}
	if (!module_text(&from, &to)) {
		suite_skip_reason("where the module lies cannot be seen");
		return false;
	}
	/* Nothing can fail before "times" is set. */
	if (!set("times", "0") || !set("inject", "should_failslab") ||
	    !put_text(FAIL_FUNCTION "/should_failslab/retval", "%#llx\n",
		      (unsigned long long)-ENOMEM) ||
	    !set("inject", "should_fail_alloc_page") || !set("probability", "100") ||
	    !set("interval", "1") || !set("task-filter", "N") ||
	    !set("verbose", getenv("SMC_FAULTS_VERBOSE") ? "2" : "0") ||
	    !set("stacktrace-depth", "32") ||
	    !put_text(FAIL_FUNCTION "/require-start", "%#llx\n", from) ||
	    !put_text(FAIL_FUNCTION "/require-end", "%#llx\n", to)) {
		suite_skip_reason("fault injection by caller does not work here");
		return false;
	}
	return true;
}

/* What came of an attempt. */
struct outcome {
	bool whole;		/* every byte arrived */
	const char *what;	/* the call that failed */
	int err;
	unsigned int mode;
	uint32_t reason;	/* why by TCP */
};

static struct outcome failed(const char *what)
{
	return (struct outcome){ .what = what, .err = errno };
}

static void be_patient(int fd)
{
	struct timeval tv = { .tv_sec = PATIENCE_S * slowness() };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
}

/* A call that failed because the time was over hangs: that is no error to expect. */
static bool call(const char *what, long long rc, struct outcome *o)
{
	if (rc >= 0)
		return true;
	if (errno == EAGAIN || errno == EINPROGRESS)
		FAIL("%s does not come to an end", what);
	*o = failed(what);
	return false;
}

static bool move_bytes(int from, int to, struct outcome *o)
{
	/* More than a connection has room for from its start. */
	unsigned char out[9000], in[9000];
	size_t got = 0;

	pattern_fill(out, sizeof(out), from, 0);
	if (!call("send", send(from, out, sizeof(out), MSG_NOSIGNAL), o))
		return false;
	while (got < sizeof(in)) {
		ssize_t n = recv(to, in + got, sizeof(in) - got, 0);

		if (!call("recv", n, o))
			return false;
		if (!n) {
			errno = 0;
			*o = failed("the stream's end");
			return false;
		}
		got += n;
	}
	if (pattern_check(in, sizeof(in), from, 0) != sizeof(in))
		FAIL("wrong bytes arrived");
	return true;
}

/* A connection to the listener, with some bytes both ways. */
static struct outcome attempt(const struct flavour *f, int l, unsigned int port)
{
	struct sockaddr_storage ss;
	socklen_t len = target(f, port, &ss);
	struct outcome o = { 0 };
	struct smc_rs_info info;
	int c, s = -1;

	enter(CLIENT);
	c = kind_socket(f->client, SOCK_CLOEXEC);
	if (!call("socket", c, &o))
		return o;
	be_patient(c);
	if (!call("connect", connect(c, (struct sockaddr *)&ss, len), &o))
		goto out;

	struct pollfd p[2] = { { .fd = l, .events = POLLIN }, { .fd = c, .events = POLLRDHUP } };

	poll(p, 2, PATIENCE_S * 1000 * slowness());
	if (!(p[0].revents & POLLIN)) {
		/* The server's kernel gave it up: the client has to know. */
		if (!p[1].revents)
			FAIL("the connection is neither accepted nor ended");
		errno = so_error(c);
		o = failed("the server");
		goto out;
	}
	s = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	if (s < 0) {
		/* What was there may have been reset by now. */
		o = failed("accept");
		goto out;
	}
	be_patient(s);
	if (!move_bytes(c, s, &o) || !move_bytes(s, c, &o))
		goto out;
	o.whole = true;
	o.mode = SMC_RS_MODE_TCP;
	if (kinds[f->client].smc && !smc_info(c, &info)) {
		o.mode = info.mode;
		o.reason = info.fallback_reason;
	}
out:
	close(c);
	if (s >= 0)
		close(s);
	return o;
}

/* Connections that a fault has left behind with nobody to take them. */
static void empty(int l)
{
	int s;

	while ((s = accept4(l, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		close(s);
}

/* The next attempt after a fault: it has nothing to complain about. */
static void must_work(const struct flavour *f, int l, unsigned int port, unsigned int mode)
{
	struct outcome o;

	empty(l);
	o = attempt(f, l, port);
	if (!o.whole)
		FAIL("afterwards %s: %s", o.what, strerrorname_np(o.err) ?: "no error");
	if (o.mode != mode)
		FAIL("afterwards the connection is %s, reason 0x%08x (%s)", mode_name(o.mode),
		     o.reason, reason_name(o.reason));
}

struct tally {
	unsigned int fired, whole, fell_back, errors;
};

static void count(struct tally *t, const struct outcome *o)
{
	t->fired++;
	if (!o->whole)
		t->errors++;
	else if (o->mode == SMC_RS_MODE_SMCR)
		t->whole++;
	else
		t->fell_back++;
}

static void tell(const struct tally *t)
{
	note("%u allocations failed: %u errors, %u by TCP, %u by RDMA all the same", t->fired,
	     t->errors, t->fell_back, t->whole);
	/* An attempt that allocates nothing would prove nothing. */
	if (t->fired < 5)
		FAIL("only %u allocations were found", t->fired);
}

/* Two attempts in a row that did not get as far as the n-th allocation: no more to come. */
static bool more(unsigned int n, bool fired)
{
	static unsigned int quiet;

	quiet = fired ? 0 : quiet + 1;
	if (quiet == 2) {
		quiet = 0;
		return false;
	}
	if (n >= MOST_FAULTS)
		FAIL("still allocations to fail after %u", n);
	return true;
}

/* For another look at one fault: what SMC_FAULTS_FROM says, less one. */
static unsigned int first_fault(void)
{
	const char *from = getenv("SMC_FAULTS_FROM");

	return from && atoi(from) > 0 ? atoi(from) - 1 : 0;
}

/* Whether the module has no more users than this: none of an attempt is left. */
static bool few_users(void *arg)
{
	return module_refcount() <= *(long long *)arg;
}

static void each_fault(const struct flavour *f, unsigned int mode, void (*before)(void))
{
	struct sockaddr_storage ss;
	int l = listen_at(f, SOCK_CLOEXEC | SOCK_NONBLOCK, &ss);
	unsigned int port = addr_port(&ss), n = first_fault();
	struct tally t = { 0 };
	long long users = module_refcount();
	bool fired;

	must_work(f, l, port, mode);
	do {
		struct outcome o;

		if (before)
			before();
		row("%s, allocation %u", f->name, ++n);
		arm(n);
		o = attempt(f, l, port);
		fired = disarm();
		if (getenv("SMC_FAULTS_VERBOSE"))
			note("%u: %s, %s %s", n, fired ? "failed" : "not reached",
			     o.whole ? mode_name(o.mode) : o.what,
			     o.whole ? "" : strerrorname_np(o.err) ?: "no error");
		if (fired)
			count(&t, &o);
		else if (!o.whole)
			FAIL("without a fault %s: %s", o.what, strerrorname_np(o.err));
		must_work(f, l, port, mode);
		if (!busywait(20000, few_users, &users))
			FAIL("the module has %lld users, %lld before (%s: %s)", module_refcount(), users,
			     o.whole ? mode_name(o.mode) : o.what, strerrorname_np(o.err) ?: "no error");
	} while (more(n, fired));
	close(l);
	row("%s", f->name);
	tell(&t);
}

/* Ends all link groups: the next connection is a first contact. */
static void end_groups(void)
{
	int fd = CHECK_OK(open("/proc/1/ns/net", O_RDONLY | O_CLOEXEC));

	CHECK_OK(setns(fd, CLONE_NEWNET));
	close(fd);
	CHECK(put_text("/proc/sys/net/smc/drain", "1\n"));
	/* The module looks once a second. */
	poll(NULL, 0, 1500);
	CHECK(put_text("/proc/sys/net/smc/drain", "0\n"));
}

static void socket_each_fault_is_an_error(void)
{
	static const enum kind_id some[] = { SMC4, SMC6, INETSMC4 };

	for (size_t k = 0; k < ARRAY_SIZE(some); k++) {
		struct tally t = { 0 };
		unsigned int n = 0;
		bool fired;

		enter(SERVER);
		do {
			row("%s, allocation %u", kinds[some[k]].name, ++n);
			arm(n);

			int fd = kind_socket(some[k], SOCK_CLOEXEC), err = errno;
			int rc = fd < 0 ? -1 : listen(fd, 5);

			if (fd >= 0 && rc)
				err = errno;
			fired = disarm();
			if (rc && !fired)
				FAIL("without a fault: %s", strerrorname_np(err));
			/* Without memory for it TCP calls a port taken. */
			if (rc && err != ENOMEM && err != ENOBUFS && err != ENFILE &&
			    err != EADDRINUSE)
				FAIL("the error is %s", strerrorname_np(err));
			if (fd >= 0)
				close(fd);
			if (fired)
				count(&t, &(struct outcome){ .whole = !rc });
			fd = CHECK_OK(kind_socket(some[k], SOCK_CLOEXEC));
			CHECK_OK(listen(fd, 5));
			close(fd);
		} while (more(n, fired));
		row("%s", kinds[some[k]].name);
		tell(&t);
	}
}

static void connection_with_tcp_each_fault_ends_or_works(void)
{
	each_fault(&from_tcp, SMC_RS_MODE_TCP, NULL);
	each_fault(&to_tcp, SMC_RS_MODE_TCP, NULL);
}

static void further_contact_each_fault_ends_or_falls_back(void)
{
	/* This one keeps the link group, unless a fault ends that as well. */
	struct pair keeper = pair_make(&smc);

	each_fault(&smc, SMC_RS_MODE_SMCR, NULL);
	pair_close(&keeper);
}

static void first_contact_each_fault_ends_or_falls_back(void)
{
	each_fault(&smc, SMC_RS_MODE_SMCR, end_groups);
}

static void returned_rings_each_fault_lose_nothing(void)
{
	/* So few that the module looks after their rings once a second, not at once. */
	struct pair p[5];
	struct tally t = { 0 };
	unsigned int n = 0;
	bool fired;

	do {
		row("allocation %u", ++n);
		for (size_t i = 0; i < ARRAY_SIZE(p); i++)
			p[i] = pair_make(&smc);
		for (size_t i = 0; i < ARRAY_SIZE(p); i++)
			pair_close(&p[i]);
		arm(n);
		poll(NULL, 0, 2000);
		fired = disarm();
		if (fired)
			t.fired++;
	} while (more(n, fired));
	row("after all of them");
	note("%u allocations failed", t.fired);
}

static bool nothing_left(void *unused)
{
	(void)unused;
	return !proto_sockets("SMC") && !proto_sockets("SMC6") && !module_refcount();
}

static void sockets_are_gone_afterwards(void)
{
	CHECK(set("times", "0"));
	CHECK(busywait(20000, nothing_left, NULL));
}

static const struct test_case cases[] = {
	CASE_LIMIT(socket_each_fault_is_an_error, 600),
	CASE_LIMIT(connection_with_tcp_each_fault_ends_or_works, 1200),
	CASE_LIMIT(further_contact_each_fault_ends_or_falls_back, 1800),
	CASE_LIMIT(first_contact_each_fault_ends_or_falls_back, 3600),
	CASE_LIMIT(returned_rings_each_fault_lose_nothing, 900),
	CASE_LIMIT(sockets_are_gone_afterwards, 60),
};

const struct suite suite_faults = {
	.name = "faults", .cases = cases, .count = ARRAY_SIZE(cases), .prepare = prepare,
};
