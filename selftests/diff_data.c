// SPDX-License-Identifier: GPL-2.0
/*
 * smc_diff: operations that move bytes.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <linux/errqueue.h>

#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

#include "diff_ops.h"

#define MOST (1 << 20)
#define MOST_PIECES 1024

/* Nothing is mapped there. */
#define BAD_PLACE ((void *)8)

static size_t size_of(char **arg, int n)
{
	size_t len;

	if (n < 1)
		bad_script("too few arguments", "a number of bytes");
	len = strtoul(arg[0], NULL, 0);
	if (len > MOST)
		bad_script("too many bytes", arg[0]);
	return len;
}

static unsigned char *room(size_t len)
{
	unsigned char *buf = calloc(1, len + 1);

	if (!buf)
		bad_script("calloc", strerror(errno));
	return buf;
}

static unsigned char *stream(struct end *e, size_t len)
{
	unsigned char *buf = room(len);

	stream_fill(e, buf, len);
	return buf;
}

static void sent(struct end *e, ssize_t ret, struct out *o)
{
	say_result(o, ret);
	if (ret > 0)
		e->tx += ret;
}

/* Sending */

static void op_send(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = stream(e, len);

	sent(e, send(e->fd, buf, len, flags_of(arg + 1, n - 1)), o);
	free(buf);
}

static void op_write(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = stream(e, len);

	sent(e, write(e->fd, buf, len), o);
	free(buf);
}

/* To the end named second. */
static void op_sendto(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = stream(e, len);
	struct end *to;

	if (n < 2)
		bad_script("too few arguments", "sendto");
	to = end_named(arg[1][0]);
	sent(e, sendto(e->fd, buf, len, flags_of(arg + 2, n - 2), (struct sockaddr *)&to->addr,
		       to->addr_len), o);
	free(buf);
}

/* Pieces of a vector: "5", "bad", "3x100" for 100 pieces of 3 bytes; flags follow "/". */
static int pieces(char **arg, int n, struct iovec *iov, unsigned char *buf, size_t *total,
		  unsigned int *flags)
{
	int count = 0;

	*total = 0;
	*flags = 0;
	for (int i = 0; i < n; i++) {
		unsigned int len, times = 1;

		if (!strcmp(arg[i], "/")) {
			*flags = flags_of(arg + i + 1, n - i - 1);
			break;
		}
		if (!strcmp(arg[i], "bad")) {
			iov[count++] = (struct iovec){ BAD_PLACE, 16 };
			continue;
		}
		if (sscanf(arg[i], "%ux%u", &len, &times) < 1)
			bad_script("no such piece", arg[i]);
		for (; times && count < MOST_PIECES + 1; times--) {
			iov[count++] = (struct iovec){ buf + *total, len };
			*total += len;
			if (*total > MOST)
				bad_script("too many bytes", arg[i]);
		}
	}
	return count;
}

static void vector(struct end *e, char **arg, int n, struct out *o, bool out, bool msg)
{
	struct iovec *iov = calloc(MOST_PIECES + 2, sizeof(*iov));
	unsigned char *buf = room(MOST);
	struct msghdr m = { .msg_iov = iov };
	struct sockaddr_storage name;
	unsigned char control[256];
	unsigned int flags;
	size_t total;
	ssize_t ret;

	m.msg_iovlen = pieces(arg, n, iov, buf, &total, &flags);
	if (out) {
		stream_fill(e, buf, total);
		sent(e, msg ? sendmsg(e->fd, &m, flags) : writev(e->fd, iov, m.msg_iovlen), o);
	} else {
		if (msg) {
			m.msg_name = &name;
			m.msg_namelen = sizeof(name);
			m.msg_control = control;
			m.msg_controllen = sizeof(control);
		}
		ret = msg ? recvmsg(e->fd, &m, flags) : readv(e->fd, iov, m.msg_iovlen);
		say_result(o, ret);
		if (ret > 0 && !(flags & MSG_TRUNC))
			say_bytes(o, buf, ret);
		if (ret >= 0 && msg) {
			say(o, " flags=");
			say_msg_flags(o, m.msg_flags);
			say(o, " name=%u", m.msg_namelen);
			for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
				say(o, " cmsg=%d/%d", c->cmsg_level, c->cmsg_type);
		}
	}
	free(iov);
	free(buf);
}

static void op_sendmsg(struct end *e, char **arg, int n, struct out *o)
{
	vector(e, arg, n, o, true, true);
}

static void op_writev(struct end *e, char **arg, int n, struct out *o)
{
	vector(e, arg, n, o, true, false);
}

static void op_recvmsg(struct end *e, char **arg, int n, struct out *o)
{
	vector(e, arg, n, o, false, true);
}

static void op_readv(struct end *e, char **arg, int n, struct out *o)
{
	vector(e, arg, n, o, false, false);
}

enum { MESSAGES = 8 };

/* Messages of consecutive parts of one buffer, and the flags of the call. */
struct messages {
	struct mmsghdr m[MESSAGES];
	struct iovec iov[MESSAGES];
	unsigned char *buf;
	size_t total;
	unsigned int count, flags;
};

/* A message for each number; flags may stand behind "/". */
static struct messages *messages_of(char **arg, int n, const char *op)
{
	struct messages *set = calloc(1, sizeof(*set));

	if (!set)
		bad_script("no memory", op);
	set->buf = room(MOST);
	for (int i = 0; i < n && set->count < MESSAGES; i++) {
		struct iovec *iov = &set->iov[set->count];

		if (!strcmp(arg[i], "/")) {
			set->flags = flags_of(arg + i + 1, n - i - 1);
			break;
		}
		*iov = (struct iovec){ set->buf + set->total, size_of(arg + i, 1) };
		set->total += iov->iov_len;
		set->m[set->count++].msg_hdr = (struct msghdr){ .msg_iov = iov, .msg_iovlen = 1 };
	}
	if (set->total > MOST)
		bad_script("too many bytes", op);
	return set;
}

static void messages_free(struct messages *set)
{
	free(set->buf);
	free(set);
}

static void op_sendmmsg(struct end *e, char **arg, int n, struct out *o)
{
	struct messages *set = messages_of(arg, n, "sendmmsg");
	int ret;

	stream_fill(e, set->buf, set->total);
	ret = sendmmsg(e->fd, set->m, set->count, set->flags);
	say_result(o, ret);
	for (int i = 0; i < ret; i++) {
		say(o, " %u", set->m[i].msg_len);
		e->tx += set->m[i].msg_len;
	}
	messages_free(set);
}

static void op_recvmmsg(struct end *e, char **arg, int n, struct out *o)
{
	struct messages *set = messages_of(arg, n, "recvmmsg");
	struct timespec wait = { .tv_nsec = 50000000 };
	int ret = recvmmsg(e->fd, set->m, set->count, set->flags, &wait);

	say_result(o, ret);
	for (int i = 0; i < ret; i++)
		say_bytes(o, set->iov[i].iov_base, set->m[i].msg_len);
	messages_free(set);
}

/* The last bytes before a page that is not there, and so many behind its start. */
static void op_sendbad(struct end *e, char **arg, int n, struct out *o)
{
	size_t before = size_of(arg, n), behind = size_of(arg + 1, n - 1);
	size_t page = sysconf(_SC_PAGESIZE), good = (before + page - 1) / page * page;
	unsigned char *map = mmap(NULL, good + page, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED || mprotect(map + good, page, PROT_NONE))
		bad_script("mmap", strerror(errno));
	stream_fill(e, map + good - before, before);
	sent(e, send(e->fd, map + good - before, before + behind, flags_of(arg + 2, n - 2)), o);
	munmap(map, good + page);
}

static void op_recvbad(struct end *e, char **arg, int n, struct out *o)
{
	size_t before = size_of(arg, n), behind = size_of(arg + 1, n - 1);
	size_t page = sysconf(_SC_PAGESIZE), good = (before + page - 1) / page * page;
	unsigned char *map = mmap(NULL, good + page, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ssize_t ret;

	if (map == MAP_FAILED || mprotect(map + good, page, PROT_NONE))
		bad_script("mmap", strerror(errno));
	ret = recv(e->fd, map + good - before, before + behind, flags_of(arg + 2, n - 2));
	say_result(o, ret);
	if (ret > 0 && (size_t)ret <= before)
		say_bytes(o, map + good - before, ret);
	munmap(map, good + page);
}

/* Receiving */

static void op_recv(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = room(len);
	unsigned int flags = flags_of(arg + 1, n - 1);
	ssize_t ret = recv(e->fd, buf, len, flags);

	say_result(o, ret);
	if (ret > 0 && !(flags & MSG_TRUNC))
		say_bytes(o, buf, ret);
	free(buf);
}

static void op_read(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = room(len);
	ssize_t ret = read(e->fd, buf, len);

	say_result(o, ret);
	if (ret > 0)
		say_bytes(o, buf, ret);
	free(buf);
}

static void op_recvfrom(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = room(len);
	struct sockaddr_storage ss;
	socklen_t sslen = sizeof(ss);
	ssize_t ret = recvfrom(e->fd, buf, len, flags_of(arg + 1, n - 1), (struct sockaddr *)&ss,
			       &sslen);

	say_result(o, ret);
	if (ret > 0)
		say_bytes(o, buf, ret);
	if (ret >= 0)
		say(o, " name=%u", sslen);
	free(buf);
}

/* Reads until nothing is there, and says how much that was. */
static void op_drain(struct end *e, char **arg, int n, struct out *o)
{
	unsigned char *buf = room(MOST);
	size_t got = 0;
	ssize_t ret;

	(void)arg;
	(void)n;
	while ((ret = recv(e->fd, buf + got, MOST - got, MSG_DONTWAIT)) > 0)
		got += ret;
	say(o, "%zu then ", got);
	say_result(o, ret);
	say_bytes(o, buf, got);
	free(buf);
}

/* Moves bytes to another end, both sides without waiting in a call. */
static void op_xfer(struct end *e, char **arg, int n, struct out *o)
{
	struct end *to;
	size_t total, chunk, got = 0, put = 0;
	unsigned char *in, *all;
	uint64_t end = now_us() + 12000000;
	uint64_t first = e->tx;

	if (n < 2)
		bad_script("too few arguments", "xfer");
	to = end_named(arg[0][0]);
	total = strtoul(arg[1], NULL, 0);
	chunk = n > 2 ? strtoul(arg[2], NULL, 0) : 65536;
	in = room(chunk);
	all = room(chunk);
	while (got < total && now_us() < end) {
		struct pollfd p[2] = {
			{ .fd = e->fd, .events = put < total ? POLLOUT : 0 },
			{ .fd = to->fd, .events = POLLIN },
		};
		ssize_t ret;

		poll(p, 2, 1000);
		if (put < total) {
			size_t len = total - put < chunk ? total - put : chunk;

			stream_fill(e, all, len);
			ret = send(e->fd, all, len, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (ret > 0) {
				put += ret;
				e->tx += ret;
			} else if (errno != EAGAIN) {
				say_result(o, ret);
				break;
			}
		}
		ret = recv(to->fd, in, chunk, MSG_DONTWAIT);
		if (ret > 0) {
			struct end was = *e;

			was.tx = first + got;
			stream_fill(&was, all, ret);
			if (memcmp(in, all, ret)) {
				say(o, "wrong byte after %zu", got);
				break;
			}
			got += ret;
		} else if (ret == 0 || errno != EAGAIN) {
			say(o, "after %zu ", got);
			say_result(o, ret);
			break;
		}
	}
	say(o, "%s %zu", got == total ? "moved" : "only", got);
	free(in);
	free(all);
}

/* Sends without waiting until nothing more goes in; how much that is differs. */
static void op_fill(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = n ? size_of(arg, n) : 16384;
	unsigned char *buf = stream(e, len);
	ssize_t ret;

	/* What leaves meanwhile makes room again: until it stays full. */
	for (int full = 0; full < 5;) {
		ret = send(e->fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (ret > 0) {
			e->tx += ret;
			full = 0;
			continue;
		}
		if (errno != EAGAIN)
			break;
		full++;
		poll(NULL, 0, quiet_ms / 4 + 1);
	}
	say_result(o, ret);
	free(buf);
}

/* Reads all that the other side's fill sent, without waiting in a call. */
static void op_unfill(struct end *e, char **arg, int n, struct out *o)
{
	struct end *from;
	unsigned char *buf = room(65536);
	uint64_t end = now_us() + 12000000;
	size_t got = 0;

	if (n < 1)
		bad_script("too few arguments", "unfill");
	from = end_named(arg[0][0]);
	while (now_us() < end) {
		struct pollfd p = { .fd = e->fd, .events = POLLIN };
		bool all = got >= from->tx;
		ssize_t ret;

		/* A call that waits for room is counted when it returns. */
		if (poll(&p, 1, all ? 200 : 1000) == 0 && all)
			break;
		ret = recv(e->fd, buf, 65536, MSG_DONTWAIT);
		if (ret == 0 || (ret < 0 && errno != EAGAIN))
			break;
		if (ret > 0)
			got += ret;
	}
	say(o, "%s", got == from->tx ? "all" : "not all");
	free(buf);
}

/* Pipes */

static void need_pipe(struct end *e)
{
	if (e->pipe[0] < 0 && pipe2(e->pipe, O_CLOEXEC))
		bad_script("pipe", strerror(errno));
}

static void op_splicein(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned int flags = n > 1 && !strcmp(arg[1], "nonblock") ? SPLICE_F_NONBLOCK : 0;
	unsigned char *buf = room(len);
	ssize_t ret;

	need_pipe(e);
	ret = splice(e->fd, NULL, e->pipe[1], NULL, len, flags);
	say_result(o, ret);
	if (ret > 0) {
		size_t got = 0;

		while (got < (size_t)ret) {
			ssize_t more = read(e->pipe[0], buf + got, ret - got);

			if (more <= 0)
				break;
			got += more;
		}
		say_bytes(o, buf, got);
	}
	free(buf);
}

static void op_spliceout(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned int flags = n > 1 && !strcmp(arg[1], "more") ? SPLICE_F_MORE : 0;
	unsigned char *buf = stream(e, len);

	need_pipe(e);
	fcntl(e->pipe[1], F_SETPIPE_SZ, 1 << 20);
	if (len && write(e->pipe[1], buf, len) != (ssize_t)len)
		bad_script("the pipe is too small", arg[0]);
	sent(e, splice(e->pipe[0], NULL, e->fd, NULL, len, flags), o);
	close(e->pipe[0]);
	close(e->pipe[1]);
	e->pipe[0] = e->pipe[1] = -1;
	free(buf);
}

/* Pages of the caller, not a copy of them. */
static void op_vmspliceout(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = stream(e, len);
	struct iovec iov = { buf, len };

	need_pipe(e);
	fcntl(e->pipe[1], F_SETPIPE_SZ, 1 << 20);
	if (vmsplice(e->pipe[1], &iov, 1, 0) != (ssize_t)len)
		bad_script("the pipe is too small", arg[0]);
	sent(e, splice(e->pipe[0], NULL, e->fd, NULL, len, 0), o);
}

static void op_sendfile(struct end *e, char **arg, int n, struct out *o)
{
	size_t len = size_of(arg, n);
	unsigned char *buf = stream(e, len);
	int fd = memfd_create("smc_diff", MFD_CLOEXEC);
	off_t off = 0;

	if (fd < 0 || write(fd, buf, len) != (ssize_t)len)
		bad_script("memfd", strerror(errno));
	sent(e, sendfile(e->fd, fd, &off, len + (n > 1 ? strtoul(arg[1], NULL, 0) : 0)), o);
	say(o, " off=%lld", (long long)off);
	close(fd);
	free(buf);
}

/* Completions of MSG_ZEROCOPY: from, to. Of a time stamp, that there is one. */
static void op_errqueue(struct end *e, char **arg, int n, struct out *o)
{
	unsigned char control[256];
	struct msghdr m = { .msg_control = control, .msg_controllen = sizeof(control) };
	ssize_t ret = recvmsg(e->fd, &m, MSG_ERRQUEUE | (n ? flags_of(arg, n) : 0));

	say_result(o, ret);
	if (ret < 0)
		return;
	say(o, " flags=");
	say_msg_flags(o, m.msg_flags);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		const struct sock_extended_err *err = (const void *)CMSG_DATA(c);

		say(o, " cmsg=%d/%d", c->cmsg_level, c->cmsg_type);
		if (c->cmsg_level == SOL_SOCKET)
			continue;
		say(o, " errno=%u origin=%u", err->ee_errno, err->ee_origin);
		if (err->ee_origin == SO_EE_ORIGIN_ZEROCOPY)
			say(o, " %u-%u", err->ee_info, err->ee_data);
	}
}

/* io_uring */

#ifdef HAVE_LIBURING
static void op_uring(struct end *e, char **arg, int n, struct out *o)
{
	unsigned char *buf = room(MOST);
	struct sockaddr_storage ss;
	struct __kernel_timespec wait = { .tv_nsec = 300000000 };
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	size_t len = 0;
	int rc, res;

	if (n < 1)
		bad_script("too few arguments", "uring");
	rc = io_uring_queue_init(4, &ring, 0);
	if (rc) {
		say(o, "no io_uring");
		free(buf);
		return;
	}
	sqe = io_uring_get_sqe(&ring);
	if (!strcmp(arg[0], "send") || !strcmp(arg[0], "sendzc")) {
		len = size_of(arg + 1, n - 1);
		stream_fill(e, buf, len);
		if (arg[0][4])
			io_uring_prep_send_zc(sqe, e->fd, buf, len,
					      flags_of(arg + 2, n - 2) | MSG_NOSIGNAL, 0);
		else
			io_uring_prep_send(sqe, e->fd, buf, len, flags_of(arg + 2, n - 2));
	} else if (!strcmp(arg[0], "recv")) {
		len = size_of(arg + 1, n - 1);
		io_uring_prep_recv(sqe, e->fd, buf, len, flags_of(arg + 2, n - 2));
	} else if (!strcmp(arg[0], "read")) {
		len = size_of(arg + 1, n - 1);
		io_uring_prep_read(sqe, e->fd, buf, len, 0);
	} else if (!strcmp(arg[0], "write")) {
		len = size_of(arg + 1, n - 1);
		stream_fill(e, buf, len);
		io_uring_prep_write(sqe, e->fd, buf, len, 0);
	} else if (!strcmp(arg[0], "accept")) {
		io_uring_prep_accept(sqe, end_named(arg[1][0])->fd, NULL, NULL, SOCK_CLOEXEC);
	} else if (!strcmp(arg[0], "connect")) {
		ss = end_named(arg[1][0])->addr;
		io_uring_prep_connect(sqe, e->fd, (struct sockaddr *)&ss,
				      end_named(arg[1][0])->addr_len);
	} else if (!strcmp(arg[0], "poll")) {
		io_uring_prep_poll_add(sqe, e->fd, events_of(arg + 1, n - 1));
	} else if (!strcmp(arg[0], "shutdown")) {
		io_uring_prep_shutdown(sqe, e->fd, atoi(arg[1]));
	} else {
		bad_script("no such request", arg[0]);
	}
	rc = io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &wait, NULL);
	if (rc < 0 || io_uring_peek_cqe(&ring, &cqe)) {
		say(o, "pending");
	} else {
		res = cqe->res;
		if (res < 0)
			say(o, "-1 %s", errno_name(-res));
		else if (!strcmp(arg[0], "accept"))
			say(o, "ok");
		else if (!strcmp(arg[0], "poll"))
			say_events(o, res);
		else
			say(o, "%d", res);
		if (res > 0 && (!strcmp(arg[0], "recv") || !strcmp(arg[0], "read")))
			say_bytes(o, buf, res);
		if (res > 0 && (!strncmp(arg[0], "send", 4) || !strcmp(arg[0], "write")))
			e->tx += res;
		if (res >= 0 && !strcmp(arg[0], "accept")) {
			e->fd = res;
			e->tx = 0;
			tell_mode(res);
		}
		if (cqe->flags & IORING_CQE_F_MORE) {
			io_uring_cqe_seen(&ring, cqe);
			if (!io_uring_wait_cqe_timeout(&ring, &cqe, &wait))
				say(o, " notified %s", cqe->flags & IORING_CQE_F_NOTIF ? "yes" : "no");
		}
	}
	io_uring_queue_exit(&ring);
	free(buf);
}
#else
static void op_uring(struct end *e, char **arg, int n, struct out *o)
{
	(void)e;
	(void)arg;
	(void)n;
	say(o, "built without liburing");
}
#endif

const struct op data_ops[] = {
	{ "send", op_send, false }, { "sendto", op_sendto, false }, { "write", op_write, false },
	{ "sendmsg", op_sendmsg, false }, { "writev", op_writev, false },
	{ "sendmmsg", op_sendmmsg, false }, { "sendbad", op_sendbad, false },
	{ "recv", op_recv, false }, { "read", op_read, false },
	{ "recvfrom", op_recvfrom, false }, { "recvmsg", op_recvmsg, false },
	{ "readv", op_readv, false }, { "recvmmsg", op_recvmmsg, false },
	{ "recvbad", op_recvbad, false }, { "drain", op_drain, false },
	{ "xfer", op_xfer, false }, { "fill", op_fill, false }, { "unfill", op_unfill, false },
	{ "splicein", op_splicein, false }, { "spliceout", op_spliceout, false },
	{ "vmspliceout", op_vmspliceout, false }, { "sendfile", op_sendfile, false },
	{ "errqueue", op_errqueue, false }, { "uring", op_uring, false },
};
const size_t data_ops_count = ARRAY_SIZE(data_ops);
