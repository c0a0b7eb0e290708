// SPDX-License-Identifier: GPL-2.0
/*
 * smc_dance: one connection between two programs that each follow a list of
 * steps, with a TCP connection beside it to keep step.  See usage().
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/smc_diag.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util.h"

static int sock = -1, control = -1;
static bool listens;
static uint64_t sent, received;
static const char *step = "connection";
static unsigned int step_number, smc_port;

static void usage(FILE *to)
{
	fputs("usage: smc_dance listen|connect ADDRESS PORT smc|inet|tcp STEP...\n"
	      "\n"
	      "Both sides make a connection (and one to PORT+1 to keep step), then do:\n"
	      "  sync        wait until the other side has come to its sync\n"
	      "  wait:MS     wait\n"
	      "  send:N      send N bytes\n"
	      "  fill        send until there is no room\n"
	      "  recv:N      receive N bytes, which must be the right ones\n"
	      "  swap:N      send N bytes and receive N right ones at the same time\n"
	      "  drain       receive right bytes until the end of the stream\n"
	      "  eof         the stream must end here\n"
	      "  reset       receiving must fail with ECONNRESET (C's module shows the end\n"
	      "              of the stream to a reader when the peer has aborted)\n"
	      "  aborted     receiving must fail with ECONNRESET or ECONNABORTED\n"
	      "  gone        the stream ends or is reset, right bytes may come before\n"
	      "  broken      the same, but a clean end of the stream is wrong (not C's)\n"
	      "  pump        send right bytes until that fails because the connection\n"
	      "              is gone\n"
	      "  epipe       sending must fail with EPIPE or ECONNRESET, at the latest\n"
	      "              after a second of trying\n"
	      "  oob:C       send C as urgent data\n"
	      "  recvoob:C   receive C as urgent data\n"
	      "  shut        shut the own direction down\n"
	      "  shutboth    shut both down\n"
	      "  linger0     close with a reset\n"
	      "  close       close\n"
	      "  mode:NAME   the connection must be smcr or tcp\n"
	      "  state:A|B   the socket must come to a state (ACTIVE, APPCLOSEWAIT1 ...)\n"
	      "  link        print the link of the connection (not C's)\n"
	      "  mark:NAME   make a file NAME.PORT in the working directory\n"
	      "  await:NAME  wait until there is a file NAME\n"
	      "  die         the process that holds the connection ends by SIGKILL\n"
	      "\n"
	      "Prints \"dance result=ok\", or what went wrong at which step.\n"
	      "Exit status: 0, 1 for a step that failed, 2 for wrong usage.\n", to);
}

static void fail(const char *fmt, ...)
{
	va_list ap;

	printf("dance result=error at=%u:%s ", step_number, step);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf(" sent=%llu received=%llu\n", (unsigned long long)sent,
	       (unsigned long long)received);
	fflush(stdout);
	_exit(1);
}

static void on_alarm(int sig)
{
	(void)sig;
	fail("time limit");
}

/* What goes from the listener differs from what goes to it. */
static uint64_t seed(bool from_listener)
{
	return from_listener ? 77 : 99;
}

static int established(const char *side, int family, const char *address, unsigned int port,
		       int domain, int protocol)
{
	struct sockaddr_storage ss;
	socklen_t len = addr_make(&ss, family, address, port);
	int fd, one = 1;

	if (!len)
		fail("%s is no address", address);
	for (int tries = 0;; tries++) {
		fd = socket(domain, SOCK_STREAM | SOCK_CLOEXEC, protocol);
		if (fd < 0)
			fail("%s socket: %s", side, strerrorname_np(errno));
		if (!listens) {
			if (!connect(fd, (struct sockaddr *)&ss, len))
				return fd;
			/* The other program may not be there yet. */
			if (errno != ECONNREFUSED || tries == 100)
				fail("%s connect: %s", side, strerrorname_np(errno));
			close(fd);
			usleep(100000);
			continue;
		}
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, (struct sockaddr *)&ss, len))
			fail("%s bind: %s", side, strerrorname_np(errno));
		if (listen(fd, 5))
			fail("%s listen: %s", side, strerrorname_np(errno));
		one = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (one < 0)
			fail("%s accept: %s", side, strerrorname_np(errno));
		close(fd);
		return one;
	}
}

/* Mode and state, from our module's option or from the C module's socket dump. */
struct view {
	unsigned int mode;	/* enum smc_rs_mode */
	unsigned int state;
	uint32_t reason;
};

static bool dumped(struct view *v)
{
	static char room[65536];
	struct {
		struct nlmsghdr head;
		struct smc_diag_req req;
	} m = {
		.head = {
			.nlmsg_len = sizeof(m),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		},
		.req = { .diag_family = AF_SMC, .diag_ext = 1 << (SMC_DIAG_FALLBACK - 1) },
	};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	bool found = false, done = false;
	struct stat st;

	if (fd < 0 || fstat(sock, &st) || send(fd, &m, sizeof(m), 0) < 0)
		fail("socket dump: %s", strerrorname_np(errno));
	while (!done) {
		ssize_t n = recv(fd, room, sizeof(room), 0);
		struct nlmsghdr *h = (void *)room;

		if (n < 0)
			fail("socket dump: %s", strerrorname_np(errno));
		for (; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			const struct smc_diag_msg *d = NLMSG_DATA(h);

			if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR) {
				done = true;
				break;
			}
			if (d->diag_inode != st.st_ino)
				continue;
			found = true;
			v->mode = d->diag_mode == SMC_DIAG_MODE_SMCR ? SMC_RS_MODE_SMCR :
								       SMC_RS_MODE_TCP;
			v->state = d->diag_state;
		}
	}
	close(fd);
	return found;
}

/* Whether the socket is one of the C module. */
static bool is_c(void)
{
	struct smc_rs_info info;

	return smc_info(sock, &info);
}

static struct view look(void)
{
	struct view v = { 0 };
	struct smc_rs_info info;

	if (!smc_info(sock, &info)) {
		v.mode = info.mode;
		v.state = info.state;
		v.reason = info.fallback_reason;
	} else if (!dumped(&v)) {
		fail("the kernel does not say");
	}
	return v;
}

static const struct {
	unsigned int value;
	const char *name;
} states[] = {
	{ 1, "ACTIVE" }, { 2, "INIT" }, { 7, "CLOSED" }, { 10, "LISTEN" },
	{ 20, "PEERCLOSEWAIT1" }, { 21, "PEERCLOSEWAIT2" }, { 22, "APPCLOSEWAIT1" },
	{ 23, "APPCLOSEWAIT2" }, { 24, "APPFINCLOSEWAIT" }, { 25, "PEERFINCLOSEWAIT" },
	{ 26, "PEERABORTWAIT" }, { 27, "PROCESSABORT" },
};

static const char *state_name(unsigned int value)
{
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
		if (states[i].value == value)
			return states[i].name;
	return "?";
}

static bool listed(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (;;) {
		const char *end = strchrnul(list, '|');

		if ((size_t)(end - list) == len && !memcmp(list, name, len))
			return true;
		if (!*end)
			return false;
		list = end + 1;
	}
}

static void expect_state(const char *want)
{
	struct view v;

	for (int tries = 0; tries < 50; tries++) {
		v = look();
		if (listed(want, state_name(v.state)))
			return;
		usleep(100000);
	}
	fail("the state is %s", state_name(v.state));
}

static void expect_mode(const char *want)
{
	struct view v = look();

	if (strcmp(mode_name(v.mode), want))
		fail("the mode is %s, reason 0x%08x", mode_name(v.mode), v.reason);
}

static void send_bytes(uint64_t n)
{
	static char room[65536];

	while (n) {
		size_t len = n < sizeof(room) ? n : sizeof(room);
		ssize_t got;

		pattern_fill(room, len, seed(listens), sent);
		got = send(sock, room, len, MSG_NOSIGNAL);
		if (got < 0)
			fail("send: %s", strerrorname_np(errno));
		sent += got;
		n -= got;
	}
}

static void fill(void)
{
	static char room[65536];

	for (int idle = 0; idle < 5;) {
		ssize_t got;

		pattern_fill(room, sizeof(room), seed(listens), sent);
		got = send(sock, room, sizeof(room), MSG_NOSIGNAL | MSG_DONTWAIT);
		if (got > 0) {
			sent += got;
			idle = 0;
			continue;
		}
		if (errno != EAGAIN)
			fail("send: %s", strerrorname_np(errno));
		/* What is on its way may make some. */
		idle++;
		usleep(100000);
	}
}

/* Receives n bytes, or to the end of the stream if n is all ones. */
static void receive(uint64_t n)
{
	static char room[65536];
	bool all = n == UINT64_MAX;

	while (n) {
		size_t len = n < sizeof(room) ? n : sizeof(room);
		ssize_t got = recv(sock, room, len, 0);

		if (got < 0)
			fail("recv: %s", strerrorname_np(errno));
		if (!got && all)
			return;
		if (!got)
			fail("the stream ended %llu bytes early", (unsigned long long)n);
		len = pattern_check(room, got, seed(!listens), received);
		if (len != (size_t)got)
			fail("wrong byte at %llu", (unsigned long long)(received + len));
		received += got;
		if (!all)
			n -= got;
	}
}

static void swap(uint64_t n)
{
	static char room[65536];
	uint64_t out = n, in = n;

	while (out || in) {
		struct pollfd p = {
			.fd = sock,
			.events = (out ? POLLOUT : 0) | (in ? POLLIN : 0),
		};
		ssize_t got;

		if (poll(&p, 1, -1) != 1)
			fail("poll: %s", strerrorname_np(errno));
		if (out) {
			size_t len = out < sizeof(room) ? out : sizeof(room);

			pattern_fill(room, len, seed(listens), sent);
			got = send(sock, room, len, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (got < 0 && errno != EAGAIN)
				fail("send: %s", strerrorname_np(errno));
			if (got > 0) {
				sent += got;
				out -= got;
			}
		}
		if (in) {
			size_t len = in < sizeof(room) ? in : sizeof(room);

			got = recv(sock, room, len, MSG_DONTWAIT);
			if (!got)
				fail("the stream ended %llu bytes early", (unsigned long long)in);
			if (got < 0 && errno != EAGAIN)
				fail("recv: %s", strerrorname_np(errno));
			if (got > 0) {
				len = pattern_check(room, got, seed(!listens), received);
				if (len != (size_t)got)
					fail("wrong byte at %llu", (unsigned long long)(received + len));
				received += got;
				in -= got;
			}
		}
	}
}

static void print_link(void)
{
	struct smc_rs_info info;

	if (!smc_info(sock, &info))
		printf("link step=%u device=%s id=%u\n", step_number, info.ib_name, info.link_id);
}

static void mark(const char *name)
{
	char file[256];
	int fd;

	snprintf(file, sizeof(file), "%s.%u", name, smc_port);
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		fail("%s: %s", file, strerrorname_np(errno));
	close(fd);
}

static void expect_end(bool error, bool local)
{
	char c;
	ssize_t got = recv(sock, &c, 1, 0);

	if (got > 0)
		fail("there is still data");
	if (!error && got < 0)
		fail("recv: %s", strerrorname_np(errno));
	if (error && !got && !is_c())
		fail("a clean end of the stream");
	if (error && got && errno != ECONNRESET && !(local && errno == ECONNABORTED))
		fail("recv: %s", strerrorname_np(errno));
}

static bool connection_is_gone(void)
{
	return errno == ECONNRESET || errno == ECONNABORTED || errno == EPIPE;
}

static void expect_gone(bool error)
{
	static char room[65536];

	for (;;) {
		ssize_t got = recv(sock, room, sizeof(room), 0);

		if (!got && error && !is_c())
			fail("a clean end of the stream");
		if (!got || (got < 0 && connection_is_gone()))
			return;
		if (got < 0)
			fail("recv: %s", strerrorname_np(errno));
		if (pattern_check(room, got, seed(!listens), received) != (size_t)got)
			fail("wrong bytes after %llu", (unsigned long long)received);
		received += got;
	}
}

static void expect_epipe(void)
{
	for (int tries = 0; tries < 20; tries++) {
		if (send(sock, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) {
			if (!connection_is_gone())
				fail("send: %s", strerrorname_np(errno));
			return;
		}
		usleep(50000);
	}
	fail("sending still works");
}

/* The time limit of the program bounds it. */
static void pump(void)
{
	static char room[65536];

	for (;;) {
		ssize_t got;

		pattern_fill(room, sizeof(room), seed(listens), sent);
		got = send(sock, room, sizeof(room), MSG_NOSIGNAL);
		if (got < 0 && connection_is_gone())
			return;
		if (got < 0)
			fail("send: %s", strerrorname_np(errno));
		sent += got;
	}
}

static void receive_urgent(char want)
{
	struct pollfd p = { .fd = sock, .events = POLLPRI };
	char c = 0;

	if (poll(&p, 1, 5000) != 1)
		fail("no POLLPRI");
	if (recv(sock, &c, 1, MSG_OOB) != 1)
		fail("recv MSG_OOB: %s", strerrorname_np(errno));
	if (c != want)
		fail("urgent byte '%c'", c);
}

static void keep_step(void)
{
	char c = 's';

	if (send(control, &c, 1, MSG_NOSIGNAL) != 1 || recv(control, &c, 1, 0) != 1)
		fail("the other side is gone");
}

static void dance(const char *what)
{
	const char *arg = strchrnul(what, ':');
	size_t len = arg - what;

	if (*arg)
		arg++;
#define IS(word) (len == strlen(word) && !memcmp(what, word, len))
	if (IS("sync")) {
		keep_step();
	} else if (IS("wait")) {
		usleep(strtoul(arg, NULL, 0) * 1000);
	} else if (IS("send")) {
		send_bytes(strtoull(arg, NULL, 0));
	} else if (IS("fill")) {
		fill();
	} else if (IS("recv")) {
		receive(strtoull(arg, NULL, 0));
	} else if (IS("swap")) {
		swap(strtoull(arg, NULL, 0));
	} else if (IS("drain")) {
		receive(UINT64_MAX);
	} else if (IS("eof")) {
		expect_end(false, false);
	} else if (IS("reset")) {
		expect_end(true, false);
	} else if (IS("aborted")) {
		expect_end(true, true);
	} else if (IS("gone")) {
		expect_gone(false);
	} else if (IS("broken")) {
		expect_gone(true);
	} else if (IS("pump")) {
		pump();
	} else if (IS("epipe")) {
		expect_epipe();
	} else if (IS("oob")) {
		if (send(sock, arg, 1, MSG_OOB | MSG_NOSIGNAL) != 1)
			fail("send MSG_OOB: %s", strerrorname_np(errno));
	} else if (IS("recvoob")) {
		receive_urgent(*arg);
	} else if (IS("shut")) {
		if (shutdown(sock, SHUT_WR))
			fail("%s", strerrorname_np(errno));
	} else if (IS("shutboth")) {
		if (shutdown(sock, SHUT_RDWR))
			fail("%s", strerrorname_np(errno));
	} else if (IS("linger0")) {
		struct linger l = { 1, 0 };

		setsockopt(sock, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	} else if (IS("close")) {
		close(sock);
		sock = -1;
	} else if (IS("mode")) {
		expect_mode(arg);
	} else if (IS("state")) {
		expect_state(arg);
	} else if (IS("link")) {
		print_link();
	} else if (IS("mark")) {
		mark(arg);
	} else if (IS("await")) {
		while (access(arg, F_OK)) /* the time limit of the program bounds it */
			usleep(50000);
	} else if (IS("die")) {
		raise(SIGKILL);
	} else {
		fail("there is no such step");
	}
}

int main(int argc, char **argv)
{
	int family, protocol, status;
	pid_t child;
	bool v6;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 6 || (strcmp(argv[1], "listen") && strcmp(argv[1], "connect"))) {
		usage(stderr);
		return 2;
	}
	listens = !strcmp(argv[1], "listen");
	v6 = strchr(argv[2], ':');
	smc_port = strtoul(argv[3], NULL, 0);
	family = v6 ? AF_INET6 : AF_INET;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, on_alarm);
	alarm(200);

	control = established("control", family, argv[2], smc_port + 1, family, IPPROTO_TCP);
	protocol = !strcmp(argv[4], "tcp") ? IPPROTO_TCP :
		   !strcmp(argv[4], "inet") ? IPPROTO_SMC : v6;
	child = fork();
	if (child < 0)
		fail("fork: %s", strerrorname_np(errno));
	if (!child) {
		alarm(190);
		sock = established("smc", family, argv[2], smc_port,
				   strcmp(argv[4], "smc") ? family : AF_SMC, protocol);
		for (int i = 5; i < argc; i++) {
			step = argv[i];
			step_number = i - 4;
			dance(argv[i]);
		}
		return 0;
	}
	step = "steps";
	if (waitpid(child, &status, 0) != child)
		fail("waitpid: %s", strerrorname_np(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status))
		return WEXITSTATUS(status);
	if (WIFSIGNALED(status) && (WTERMSIG(status) != SIGKILL || strcmp(argv[argc - 1], "die")))
		fail("ended by signal %d", WTERMSIG(status));
	/* Whoever is done first waits: the other one may still look. */
	step = "end";
	keep_step();
	printf("dance result=ok\n");
	return 0;
}
