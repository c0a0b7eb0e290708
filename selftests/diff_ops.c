// SPDX-License-Identifier: GPL-2.0
/*
 * smc_diff: connections, options, and what goes on around a socket.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <linux/sockios.h>

#include "diff_ops.h"

static void need(int n, int least, const char *what)
{
	if (n < least)
		bad_script("too few arguments", what);
}

/* Making and ending */

static void op_socket(struct end *e, char **arg, int n, struct out *o)
{
	int flags = n && !strcmp(arg[0], "nonblock") ? SOCK_NONBLOCK : 0;

	e->fd = make_socket(e, flags);
	e->tx = 0;
	say(o, e->fd < 0 ? "-1 %s" : "ok", errno_name(errno));
}

/* Any word but a letter is an address that is wrong in some way. */
static socklen_t address(struct end *e, const char *word, struct sockaddr_storage *ss)
{
	if (!word[1]) {
		struct end *to = end_named(word[0]);

		*ss = to->addr;
		return to->addr_len;
	}
	if (!strcmp(word, "any") || !strcmp(word, "zero"))
		return addr_make(ss, AF_INET, NULL, 0);
	if (!strcmp(word, "here"))
		return addr_make(ss, AF_INET, e->server ? server_text() : "127.0.0.1", 0);
	if (!strcmp(word, "nobody"))	/* a port where nobody listens */
		return addr_make(ss, AF_INET, server_text(), 1);
	if (!strcmp(word, "foreign"))
		return addr_make(ss, AF_INET, "192.0.2.77", 0);
	if (!strcmp(word, "broadcast"))
		return addr_make(ss, AF_INET, "255.255.255.255", 9);
	if (!strcmp(word, "unspec")) {
		addr_make(ss, AF_INET, NULL, 0);
		ss->ss_family = AF_UNSPEC;
		return sizeof(struct sockaddr_in);
	}
	if (!strcmp(word, "short")) {
		addr_make(ss, AF_INET, server_text(), 1);
		return 5;
	}
	if (!strcmp(word, "unix")) {
		addr_make(ss, AF_INET, server_text(), 1);
		ss->ss_family = AF_UNIX;
		return sizeof(struct sockaddr_in);
	}
	if (!strcmp(word, "v6"))
		return addr_make(ss, AF_INET6, "::1", 1);
	if (!strcmp(word, "long")) {
		addr_make(ss, AF_INET, server_text(), 1);
		return sizeof(*ss) + 1;
	}
	bad_script("no such address", word);
}

static void op_bind(struct end *e, char **arg, int n, struct out *o)
{
	struct sockaddr_storage ss;
	socklen_t len = address(e, n ? arg[0] : "any", &ss);

	say_result(o, bind(e->fd, (struct sockaddr *)&ss, len));
	len = sizeof(ss);
	if (!getsockname(e->fd, (struct sockaddr *)&ss, &len) && addr_port(&ss)) {
		e->addr_len = addr_make(&e->addr, AF_INET, server_text(), addr_port(&ss));
		if (!e->server && !flavour->near)
			e->addr_len = addr_make(&e->addr, AF_INET, "10.77.0.1", addr_port(&ss));
	}
}

static void op_listen(struct end *e, char **arg, int n, struct out *o)
{
	need(n, 1, "listen");
	say_result(o, listen(e->fd, atoi(arg[0])));
	if (!e->addr_len)
		e->server ? op_bind(e, (char *[]){ "any" }, 1, &(struct out){ .len = 0 }) : (void)0;
}

static void op_connect(struct end *e, char **arg, int n, struct out *o)
{
	struct sockaddr_storage ss;
	socklen_t len;

	need(n, 1, "connect");
	if (!strcmp(arg[0], "null")) {
		say_result(o, connect(e->fd, NULL, sizeof(struct sockaddr_in)));
		return;
	}
	len = address(e, arg[0], &ss);
	say_result(o, connect(e->fd, (struct sockaddr *)&ss, len));
}

static void accepted(struct end *e, int fd, struct out *o)
{
	if (fd < 0) {
		say_result(o, fd);
		return;
	}
	e->fd = fd;
	e->tx = 0;
	say(o, "ok fl=%o fd=%d", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
	tell_mode(fd);
}

static int accept_flags(char **arg, int n)
{
	int flags = 0;

	for (int i = 0; i < n; i++) {
		if (!strcmp(arg[i], "nonblock"))
			flags |= SOCK_NONBLOCK;
		else if (!strcmp(arg[i], "cloexec"))
			flags |= SOCK_CLOEXEC;
		else
			flags |= strtol(arg[i], NULL, 0);
	}
	return flags;
}

static void op_accept(struct end *e, char **arg, int n, struct out *o)
{
	struct sockaddr_storage ss = { 0 };
	socklen_t len = sizeof(ss);
	int fd;

	need(n, 1, "accept");
	fd = accept4(end_named(arg[0][0])->fd, (struct sockaddr *)&ss, &len,
		     accept_flags(arg + 1, n - 1));
	accepted(e, fd, o);
	if (fd >= 0)
		say_addr(o, &ss, len);
}

static void op_close(struct end *e, char **arg, int n, struct out *o)
{
	int fd = e->fd;

	(void)arg;
	(void)n;
	e->fd = -1;
	say_result(o, close(fd));
}

static void op_shutdown(struct end *e, char **arg, int n, struct out *o)
{
	static const char *const how[] = { "rd", "wr", "rdwr" };
	int i;

	need(n, 1, "shutdown");
	for (i = 0; i < 3 && strcmp(how[i], arg[0]); i++)
		;
	say_result(o, shutdown(e->fd, i < 3 ? i : atoi(arg[0])));
}

static void name_of(struct end *e, char **arg, int n, struct out *o, bool peer)
{
	struct sockaddr_storage ss = { 0 };
	socklen_t len = n ? atoi(arg[0]) : (int)sizeof(ss);
	int ret = (peer ? getpeername : getsockname)(e->fd, (struct sockaddr *)&ss, &len);

	say_result(o, ret);
	if (!ret)
		say_addr(o, &ss, len);
}

static void op_getsockname(struct end *e, char **arg, int n, struct out *o)
{
	name_of(e, arg, n, o, false);
}

static void op_getpeername(struct end *e, char **arg, int n, struct out *o)
{
	name_of(e, arg, n, o, true);
}

/* Asking */

static void op_poll(struct end *e, char **arg, int n, struct out *o)
{
	int ms = n ? atoi(arg[0]) : 0;
	struct pollfd p = { .fd = e->fd,
			    .events = n > 1 ? events_of(arg + 1, n - 1) : 0xffff & ~POLLNVAL };

	say_result(o, poll(&p, 1, ms));
	say(o, " ");
	say_events(o, (unsigned short)p.revents);
}

static void op_select(struct end *e, char **arg, int n, struct out *o)
{
	struct timeval tv = { .tv_usec = n ? atoi(arg[0]) * 1000 : 0 };
	fd_set r, w, x;

	FD_ZERO(&r);
	FD_SET(e->fd, &r);
	w = x = r;
	say_result(o, select(e->fd + 1, &r, &w, &x, &tv));
	say(o, " r%d w%d x%d", !!FD_ISSET(e->fd, &r), !!FD_ISSET(e->fd, &w),
	    !!FD_ISSET(e->fd, &x));
}

static void op_epoll(struct end *e, char **arg, int n, struct out *o)
{
	struct epoll_event ev = { .data.fd = e->fd };

	need(n, 1, "epoll");
	if (e->epoll < 0)
		e->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!strcmp(arg[0], "wait")) {
		struct epoll_event got = { 0 };

		say_result(o, epoll_wait(e->epoll, &got, 1, n > 1 ? atoi(arg[1]) : 0));
		say(o, " ");
		say_events(o, got.events);
		return;
	}
	ev.events = events_of(arg + 1, n - 1);
	say_result(o, epoll_ctl(e->epoll, !strcmp(arg[0], "add") ? EPOLL_CTL_ADD :
				!strcmp(arg[0], "mod") ? EPOLL_CTL_MOD : EPOLL_CTL_DEL,
				e->fd, &ev));
}

static void op_ioctl(struct end *e, char **arg, int n, struct out *o)
{
	static const struct {
		const char *name;
		unsigned long cmd;
	} known[] = {
		{ "inq", SIOCINQ }, { "outq", SIOCOUTQ }, { "outqnsd", SIOCOUTQNSD },
		{ "atmark", SIOCATMARK }, { "fionbio", FIONBIO }, { "fioasync", FIOASYNC },
	};
	unsigned char room[128] = { 0 };
	unsigned long cmd;
	size_t i;
	int ret;

	need(n, 1, "ioctl");
	for (i = 0; i < ARRAY_SIZE(known) && strcmp(known[i].name, arg[0]); i++)
		;
	cmd = i < ARRAY_SIZE(known) ? known[i].cmd : strtoul(arg[0], NULL, 0);
	if (n > 1 && !strcmp(arg[1], "bad")) {
		say_result(o, ioctl(e->fd, cmd, (void *)8));
		return;
	}
	if (n > 1)
		memcpy(room, &(int){ atoi(arg[1]) }, sizeof(int));
	ret = ioctl(e->fd, cmd, room);
	say_result(o, ret);
	if (!ret && i < 4)
		say(o, " %d", *(int *)room);
}

/* Options */

/* "1", "0x10", "t50" (a time in ms), "l1,5" (linger), "s:lo" (text), "-" (nothing) */
static socklen_t value_of(const char *word, unsigned char *to)
{
	if (word[0] == 't' && word[1]) {
		long ms = atol(word + 1);
		struct timeval tv = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };

		memcpy(to, &tv, sizeof(tv));
		return sizeof(tv);
	}
	if (word[0] == 'l' && word[1]) {
		struct linger l = { 0 };

		sscanf(word + 1, "%d,%d", &l.l_onoff, &l.l_linger);
		memcpy(to, &l, sizeof(l));
		return sizeof(l);
	}
	if (word[0] == 's' && word[1] == ':') {
		strcpy((char *)to, word + 2);
		return strlen(word + 2) + 1;
	}
	memcpy(to, &(int){ strtol(word, NULL, 0) }, sizeof(int));
	return sizeof(int);
}

static void op_set(struct end *e, char **arg, int n, struct out *o)
{
	unsigned char value[64] = { 0 };
	int level, name;
	socklen_t len;

	need(n, 3, "set");
	level = level_of(arg[0]);
	name = option_of(level, arg[1]);
	if (!strcmp(arg[2], "bad")) {
		say_result(o, setsockopt(e->fd, level, name, (void *)8, sizeof(int)));
		return;
	}
	len = value_of(arg[2], value);
	if (n > 3)
		len = atoi(arg[3]);
	say_result(o, setsockopt(e->fd, level, name, value, len));
}

static void op_get(struct end *e, char **arg, int n, struct out *o)
{
	unsigned char value[512];
	int level, name, ret;
	socklen_t len = sizeof(int);

	need(n, 2, "get");
	level = level_of(arg[0]);
	name = option_of(level, arg[1]);
	memset(value, 0xaa, sizeof(value));
	if (n > 2 && !strcmp(arg[2], "bad")) {
		say_result(o, getsockopt(e->fd, level, name, (void *)8, &len));
		return;
	}
	if (n > 2)
		len = atoi(arg[2]);
	ret = getsockopt(e->fd, level, name, value, &len);
	say_result(o, ret);
	if (ret)
		return;
	say(o, " len=%u", len);
	if (option_is_volatile(level, name))
		return;
	if (len == sizeof(int)) {
		say(o, " %d", *(int *)value);
		return;
	}
	for (size_t i = 0; i < len && i < 16; i++)
		say(o, "%s%02x", i ? "" : " ", value[i]);
}

static void op_fcntl(struct end *e, char **arg, int n, struct out *o)
{
	int flags = fcntl(e->fd, F_GETFL), bit = 0;

	need(n, 1, "fcntl");
	if (!strcmp(arg[0], "own")) {
		say_result(o, fcntl(e->fd, F_SETOWN, n > 1 ? atoi(arg[1]) : getpid()));
		return;
	}
	if (!strcmp(arg[0], "getown")) {
		say(o, "%s", fcntl(e->fd, F_GETOWN) == getpid() ? "self" : "other");
		return;
	}
	if (!strcmp(arg[0], "getfl")) {
		say(o, "%o", flags);
		return;
	}
	if (!strcmp(arg[0], "nonblock"))
		bit = O_NONBLOCK;
	else if (!strcmp(arg[0], "async"))
		bit = O_ASYNC;
	else
		bad_script("no such fcntl", arg[0]);
	flags = n > 1 && !strcmp(arg[1], "off") ? flags & ~bit : flags | bit;
	say_result(o, fcntl(e->fd, F_SETFL, flags));
}

/* Threads, signals, processes */

static void op_join(struct end *e, char **arg, int n, struct out *o)
{
	int ms = n ? atoi(arg[0]) : 1500;
	uint64_t end = now_us() + ms * 1000ull;

	if (!e->job.started) {
		say(o, "nothing");
		return;
	}
	while (e->job.running && now_us() < end)
		poll(NULL, 0, 2);
	if (e->job.running) {
		say(o, "blocked");
		return;
	}
	pthread_join(e->job.thread, NULL);
	e->job.started = false;
	say(o, "%s", e->job.out.text);
}

/* Whether the end's thread waits in its call. */
static void op_waits(struct end *e, char **arg, int n, struct out *o)
{
	(void)arg;
	(void)n;
	say(o, "%s", !e->job.started ? "nothing" : e->job.running ? "blocked" : "done");
}

static void op_kick(struct end *e, char **arg, int n, struct out *o)
{
	struct sigaction sa;

	/* "kick restart": a handler after which calls go on. */
	sigaction(SIGUSR1, NULL, &sa);
	sa.sa_flags = n && !strcmp(arg[0], "restart") ? SA_RESTART : 0;
	sigaction(SIGUSR1, &sa, NULL);
	say(o, "%s", e->job.started && e->job.running && !pthread_kill(e->job.thread, SIGUSR1) ?
	    "sent" : "nobody");
}

static void op_dup(struct end *e, char **arg, int n, struct out *o)
{
	need(n, 1, "dup");
	e->fd = dup(end_named(arg[0][0])->fd);
	say(o, e->fd < 0 ? "-1" : "ok");
}

/* The descriptor goes through a unix socket. */
static void op_pass(struct end *e, char **arg, int n, struct out *o)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char byte = 'x';
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room,
			      .msg_controllen = sizeof(control.room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int sv[2];

	need(n, 1, "pass");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
		bad_script("socketpair", strerror(errno));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &end_named(arg[0][0])->fd, sizeof(int));
	say_result(o, sendmsg(sv[0], &msg, 0));
	msg.msg_controllen = sizeof(control.room);
	say(o, " ");
	say_result(o, recvmsg(sv[1], &msg, MSG_CMSG_CLOEXEC));
	c = CMSG_FIRSTHDR(&msg);
	if (c)
		memcpy(&e->fd, CMSG_DATA(c), sizeof(int));
	close(sv[0]);
	close(sv[1]);
}

/* A child process holds a copy of the descriptor and nothing else. */
static void op_hold(struct end *e, char **arg, int n, struct out *o)
{
	(void)arg;
	(void)n;
	e->child = fork();
	if (e->child < 0)
		bad_script("fork", strerror(errno));
	if (!e->child) {
		close_range(3, e->fd - 1, 0);
		close_range(e->fd + 1, ~0U, 0);
		for (;;)
			pause();
	}
	say(o, "ok");
}

static void op_kill(struct end *e, char **arg, int n, struct out *o)
{
	int status;

	(void)arg;
	(void)n;
	if (e->child <= 0)
		bad_script("no child", "kill");
	kill(e->child, SIGKILL);
	say(o, "%s", waitpid(e->child, &status, 0) == e->child && WIFSIGNALED(status) ?
	    "killed" : "not killed");
	e->child = 0;
}

static void op_sleep(struct end *e, char **arg, int n, struct out *o)
{
	(void)e;
	need(n, 1, "sleep");
	poll(NULL, 0, atoi(arg[0]));
	say(o, "ok");
}

/* How many connections of the listener's port are in TIME_WAIT where the end stands. */
static void op_timewait(struct end *e, char **arg, int n, struct out *o)
{
	unsigned int port, count = 0;
	char line[300];
	FILE *f;

	need(n, 1, "timewait");
	port = addr_port(&end_named(arg[0][0])->addr);
	stand_at(e->server);
	f = fopen("/proc/thread-self/net/tcp", "re");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned int from, to, state;

		if (sscanf(line, "%*d: %*x:%x %*x:%x %x", &from, &to, &state) == 3 &&
		    (e->server ? from : to) == port && state == 6)
			count++;
	}
	if (f)
		fclose(f);
	say(o, "%u", count);
}

static const struct op ops[] = {
	{ "socket", op_socket, false }, { "bind", op_bind, false },
	{ "listen", op_listen, false }, { "connect", op_connect, false },
	{ "accept", op_accept, false }, { "close", op_close, false },
	{ "shutdown", op_shutdown, false }, { "getsockname", op_getsockname, true },
	{ "getpeername", op_getpeername, true }, { "poll", op_poll, true },
	{ "select", op_select, true }, { "epoll", op_epoll, true },
	{ "ioctl", op_ioctl, true }, { "set", op_set, false },
	{ "qset", op_set, true }, { "get", op_get, true },
	{ "fcntl", op_fcntl, false }, { "join", op_join, false }, { "waits", op_waits, false },
	{ "kick", op_kick, false }, { "dup", op_dup, false }, { "pass", op_pass, false },
	{ "hold", op_hold, false }, { "kill", op_kill, false }, { "sleep", op_sleep, false },
	{ "timewait", op_timewait, false },
};

const struct op *op_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
		if (!strcmp(ops[i].name, name))
			return &ops[i];
	for (size_t i = 0; i < data_ops_count; i++)
		if (!strcmp(data_ops[i].name, name))
			return &data_ops[i];
	return NULL;
}
