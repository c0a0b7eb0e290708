// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "fallback": no RDMA between the two namespaces, so every connection is
 * TCP, and an application must not see a difference to a TCP socket.  Both
 * roles have a plain TCP peer in turn, over IPv4, IPv6 and v4-mapped addresses.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <linux/sockios.h>

#include "cases_fallback.h"

const struct flavour flavours[FLAVOURS] = {
	{ "SMC to TCP, v4", SMC4, TCP4, SERVER_V4, SERVER_V4 },
	{ "TCP to SMC, v4", TCP4, SMC4, SERVER_V4, SERVER_V4 },
	{ "SMC to SMC, v4", SMC4, SMC4, SERVER_V4, SERVER_V4 },
	{ "SMC to TCP, v6", SMC6, TCP6, SERVER_V6, SERVER_V6 },
	{ "TCP to SMC, v6", TCP6, SMC6, SERVER_V6, SERVER_V6 },
	{ "SMC to SMC, v6", SMC6, SMC6, SERVER_V6, SERVER_V6 },
	{ "SMC to TCP, mapped to v4", SMC6, TCP4, SERVER_V4, SERVER_V4 },
	{ "TCP to SMC, v4 to any v6", TCP4, SMC6, SERVER_V4, NULL },
	{ "SMC to SMC, mapped to mapped", SMC6, SMC6, SERVER_V4, NULL },
	{ "IPPROTO_SMC to TCP, v4", INETSMC4, TCP4, SERVER_V4, SERVER_V4 },
	{ "TCP to IPPROTO_SMC, v4", TCP4, INETSMC4, SERVER_V4, SERVER_V4 },
	{ "IPPROTO_SMC to TCP, v6", INETSMC6, TCP6, SERVER_V6, SERVER_V6 },
	{ "TCP to IPPROTO_SMC, v6", TCP6, INETSMC6, SERVER_V6, SERVER_V6 },
	{ "IPPROTO_SMC to SMC, mapped to v4", INETSMC6, SMC4, SERVER_V4, SERVER_V4 },
};

void check_fallback(const struct flavour *f, int fd, bool client)
{
	enum kind_id own = client ? f->client : f->server;
	enum kind_id other = client ? f->server : f->client;
	struct smc_rs_info info;

	if (!kinds[own].smc)
		return;
	check_mode(fd, SMC_RS_MODE_TCP);
	if (smc_info(fd, &info))
		return;
	if (!kinds[other].smc && info.fallback_reason != 0x03010000)
		FAIL("reason is 0x%08x (%s), expected 0x03010000",
		     info.fallback_reason, reason_name(info.fallback_reason));
	if (!info.fallback_reason)
		FAIL("no reason is recorded");
}

int connect_nb(int c, struct sockaddr_storage *ss, socklen_t len)
{
	return connect(c, (struct sockaddr *)ss, len) ? errno : 0;
}

static void transfer_small_and_large_arrives(void)
{
	static const unsigned int sizes[] = { 1, 1000, 300000 };

	for_all(f) {
		struct pair p = pair_make(f);

		check_fallback(f, p.c, true);
		check_fallback(f, p.s, false);
		pair_close(&p);
		for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
			p = pair_make(f);
			exchange(&p, sizes[i], sizes[i] / 2 + 1);
			pair_close(&p);
		}
	}
}

static void transfer_blocking_calls_arrive(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		struct flow fl[2] = {
			{ .fd = p.c, .to_send = 2000000, .to_recv = 1500000, .recv_seed = 1,
			  .shut = true, .want_eof = true, .chunk = 50001 },
			{ .fd = p.s, .to_send = 1500000, .send_seed = 1, .to_recv = 2000000,
			  .shut = true, .want_eof = true, .chunk = 33333 },
		};

		pump_blocking(fl, 2);
		pair_close(&p);
	}
}

static void transfer_edge_triggered_arrives(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		struct flow fl[2] = {
			{ .fd = p.c, .to_send = 1000000, .to_recv = 1500000, .recv_seed = 1,
			  .shut = true, .want_eof = true },
			{ .fd = p.s, .to_send = 1500000, .send_seed = 1, .to_recv = 1000000,
			  .shut = true, .want_eof = true },
		};

		pump_et(fl, 2, 15000);
		pair_close(&p);
	}
}

static void server_speaks_first_is_heard(void)
{
	for_all(f) {
		struct pair p = pair_make(f);
		char buf[8];

		send_all(p.s, "220 hi\n", 7);
		recv_all(p.c, buf, 7);
		CHECK(!memcmp(buf, "220 hi\n", 7));
		pair_close(&p);
	}
}

static void silent_client_is_accepted_at_once(void)
{
	for_all(f) {
		uint64_t start = now_us();
		struct pair p = pair_make(f);

		/* No wait for a handshake that will not come. */
		if (!kinds[f->client].smc || !kinds[f->server].smc)
			CHECK(now_us() - start < 2000000);
		CHECK_EQ(poll_one(p.s, POLLIN, 0), 0);
		pair_close(&p);
	}
}

static void data_before_accept_is_kept(void)
{
	for_all(f) {
		struct sockaddr_storage ss;
		int l = listen_at(f, 0, &ss);
		int c = sock_at(CLIENT, f->client, 0);
		socklen_t len = target(f, addr_port(&ss), &ss);
		char buf[8];

		CHECK_OK(connect(c, (struct sockaddr *)&ss, len));
		send_all(c, "early", 5);
		CHECK_OK(shutdown(c, SHUT_WR));
		wait_events(l, POLLIN, 5000);

		int s = CHECK_OK(accept(l, NULL, NULL));

		recv_all(s, buf, 5);
		CHECK(!memcmp(buf, "early", 5));
		expect_eof(s);
		close(s);
		close(c);
		close(l);
	}
}

static void names_agree_on_both_sides(void)
{
	for_all(f) {
		struct sockaddr_storage want, l, a, cn, cp, sn, sp;
		int lfd = listen_at(f, 0, &l);
		int c = sock_at(CLIENT, f->client, 0);
		socklen_t wlen = target(f, addr_port(&l), &want), len = sizeof(a);

		CHECK_OK(connect(c, (struct sockaddr *)&want, wlen));

		int s = CHECK_OK(accept(lfd, (struct sockaddr *)&a, &len));

		CHECK_EQ(len, kinds[f->server].family == AF_INET6 ?
			 sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
		len = sizeof(cn);
		CHECK_OK(getsockname(c, (struct sockaddr *)&cn, &len));
		len = sizeof(cp);
		CHECK_OK(getpeername(c, (struct sockaddr *)&cp, &len));
		len = sizeof(sn);
		CHECK_OK(getsockname(s, (struct sockaddr *)&sn, &len));
		len = sizeof(sp);
		CHECK_OK(getpeername(s, (struct sockaddr *)&sp, &len));
		CHECK_EQ(cn.ss_family, kinds[f->client].family);
		CHECK_EQ(sn.ss_family, kinds[f->server].family);
		CHECK(!memcmp(&sp, &a, len));
		CHECK_EQ(addr_port(&cn), addr_port(&sp));
		CHECK_EQ(addr_port(&cp), addr_port(&sn));
		CHECK_EQ(addr_port(&cp), addr_port(&l));
		CHECK(!memcmp(&cp, &want, wlen) || kinds[f->client].family == AF_INET6);
		if (!strcmp(f->to, SERVER_V6))
			CHECK(strstr(addr_text(&sp), CLIENT_V6));
		else
			CHECK(strstr(addr_text(&sp), CLIENT_V4));
		CHECK(strstr(addr_text(&cp), f->to));
		close(c);
		close(s);
		close(lfd);
	}
}

static void reset_by_peer_is_reported(void)
{
	for_all(f) {
		for (int side = 0; side < 2; side++) {
			struct linger li = { .l_onoff = 1 };
			struct pair p = pair_make(f);
			int gone = side ? p.s : p.c, left = side ? p.c : p.s;
			char c;

			CHECK_OK(setsockopt(gone, SOL_SOCKET, SO_LINGER, &li, sizeof(li)));
			close(gone);
			wait_events(left, POLLERR, 5000);
			CHECK(poll_one(left, POLLIN, 0) & POLLHUP);
			CHECK_ERRNO(recv(left, &c, 1, 0), ECONNRESET);
			CHECK_ERRNO(send(left, "x", 1, MSG_NOSIGNAL), EPIPE);
			CHECK_EQ(recv(left, &c, 1, 0), 0);
			close(left);
			close(p.l);
		}
	}
}

static void shutdown_in_every_order_works(void)
{
	for_all(f) {
		struct pair p = pair_make(f);
		char buf[4];

		/* The client's direction first. */
		send_all(p.c, "1", 1);
		CHECK_OK(shutdown(p.c, SHUT_WR));
		CHECK_ERRNO(send(p.c, "x", 1, MSG_NOSIGNAL), EPIPE);
		recv_all(p.s, buf, 1);
		expect_eof(p.s);
		send_all(p.s, "22", 2);
		CHECK_OK(shutdown(p.s, SHUT_WR));
		recv_all(p.c, buf, 2);
		expect_eof(p.c);
		CHECK(poll_one(p.c, POLLIN, 0) & POLLHUP);
		pair_close(&p);

		/* Both directions of the server at once. */
		p = pair_make(f);
		CHECK_OK(shutdown(p.s, SHUT_RDWR));
		expect_eof(p.c);
		CHECK_EQ(recv(p.s, buf, 1, 0), 0);
		CHECK_ERRNO(send(p.s, "x", 1, MSG_NOSIGNAL), EPIPE);
		pair_close(&p);

		/* Reading only: local, and writing goes on. */
		p = pair_make(f);
		CHECK_OK(shutdown(p.c, SHUT_RD));
		CHECK_EQ(recv(p.c, buf, 1, 0), 0);
		send_all(p.c, "3", 1);
		recv_all(p.s, buf, 1);
		CHECK_ERRNO(shutdown(p.c, 5), EINVAL);
		pair_close(&p);
	}
}

static void sigpipe_comes_unless_asked_not_to(void)
{
	catch_signal(SIGPIPE);
	for_few(f) {
		struct pair p = pair_make(f);
		int had = got_signal;

		CHECK_OK(shutdown(p.c, SHUT_WR));
		CHECK_ERRNO(send(p.c, "x", 1, MSG_NOSIGNAL), EPIPE);
		CHECK_EQ(got_signal, had);
		CHECK_ERRNO(send(p.c, "x", 1, 0), EPIPE);
		CHECK_EQ(got_signal, had + 1);
		pair_close(&p);
	}
}

static void close_in_both_orders_ends_stream(void)
{
	for_all(f) {
		for (int side = 0; side < 2; side++) {
			struct pair p = pair_make(f);
			int first = side ? p.s : p.c, last = side ? p.c : p.s;
			char buf[1000];

			memset(buf, 'q', sizeof(buf));
			send_all(first, buf, sizeof(buf));
			close(first);
			recv_all(last, buf, sizeof(buf));
			expect_eof(last);
			CHECK_OK(close(last));
			close(p.l);
		}
	}
}

static void close_with_unread_data_resets(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		char c;

		send_all(p.c, "unread", 6);
		wait_events(p.s, POLLIN, 3000);
		close(p.s);
		wait_events(p.c, POLLHUP, 5000);
		CHECK_ERRNO(recv(p.c, &c, 1, 0), ECONNRESET);
		p.s = -1;
		pair_close(&p);
	}
}

static void kill_of_peer_process_ends_stream(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		pid_t pid = fork();

		if (!pid) {
			close(p.s);
			send_all(p.c, "bye", 3);
			pause();
			_exit(0);
		}
		close(p.c);

		char buf[4];

		recv_all(p.s, buf, 3);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		expect_eof(p.s);
		p.c = -1;
		pair_close(&p);
	}
}

static void ioctl_counts_queued_bytes(void)
{
	for_all(f) {
		struct pair p = pair_make(f);

		for (int side = 0; side < 2; side++) {
			int from = side ? p.s : p.c, to = side ? p.c : p.s, v = -1;

			send_all(from, "12345", 5);
			wait_events(to, POLLIN, 3000);
			CHECK_OK(ioctl(to, SIOCINQ, &v));
			CHECK_EQ(v, 5);
			CHECK_OK(ioctl(from, SIOCOUTQNSD, &v));
			CHECK_EQ(v, 0);
			CHECK_OK(ioctl(from, SIOCOUTQ, &v));
			CHECK(v >= 0 && v <= 5);
			CHECK_OK(ioctl(to, SIOCATMARK, &v));
			CHECK_EQ(v, 0);
			CHECK_ERRNO(ioctl(to, 0x5399, &v), ENOTTY);
			v = 1;
			CHECK_OK(ioctl(to, FIONBIO, &v));
			CHECK(fcntl(to, F_GETFL) & O_NONBLOCK);
		}
		pair_close(&p);
	}
}

static void options_after_connect_reach_tcp(void)
{
	for_all(f) {
		struct pair p = pair_make(f);

		for (int side = 0; side < 2; side++) {
			int fd = side ? p.s : p.c, v = 1;
			socklen_t len = sizeof(v);
			struct tcp_info ti;

			CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, len));
			v = 0;
			CHECK_OK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, &len));
			CHECK_EQ(v, 1);
			CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &v, len));
			v = 0;
			CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &v, len));
			v = 0;
			CHECK_OK(getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &v, &len));
			CHECK(v > 500 && v < 65536);
			len = sizeof(ti);
			CHECK_OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len));
			CHECK_EQ(ti.tcpi_state, TCP_ESTABLISHED);
			v = 1;
			len = sizeof(v);
			CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &v, len));
			v = 33;
			CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &v, len));
			v = 0;
			CHECK_OK(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &v, &len));
			CHECK_EQ(v, 33);
			CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &v, &len));
			CHECK(v > 10000);
			CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, &len));
			CHECK(v > 10000);
		}
		exchange(&p, 70000, 70000);
		pair_close(&p);
	}
}

static void keepalive_reaches_tcp(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		int v = 1, fd = kinds[f->client].smc ? p.c : p.s;
		struct tcp_info ti;
		socklen_t len = sizeof(ti);

		if (!have_namespaces())
			SKIP("no namespaces");
		CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &v, sizeof(v)));
		CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &v, sizeof(v)));
		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &v, sizeof(v)));

		/* The answer to a probe makes the time since the last one fall. */
		unsigned int last = 0;
		bool answered = false;

		for (int i = 0; i < 30 && !answered; i++) {
			CHECK_OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len));
			answered = ti.tcpi_last_ack_recv < last;
			last = ti.tcpi_last_ack_recv;
			usleep(100000);
		}
		CHECK(answered);
		pair_close(&p);
	}
}

static void receive_flags_behave_as_tcp(void)
{
	for_all(f) {
		struct pair p = pair_make(f);
		char buf[16] = "";

		for (int side = 0; side < 2; side++) {
			int from = side ? p.s : p.c, to = side ? p.c : p.s;
			struct iovec iov[2] = { { buf, 2 }, { buf + 2, 3 } };
			struct msghdr mh = { .msg_iov = iov, .msg_iovlen = 2 };

			CHECK_ERRNO(recv(to, buf, 1, MSG_DONTWAIT), EAGAIN);
			CHECK_EQ(send(from, "abcde", 5, MSG_MORE | MSG_NOSIGNAL), 5);
			CHECK_EQ(writev(from, iov, 0), 0);
			CHECK_EQ(send(from, "fghij", 5, MSG_NOSIGNAL), 5);
			CHECK_EQ(recv(to, buf, 10, MSG_PEEK | MSG_WAITALL), 10);
			CHECK(!memcmp(buf, "abcdefghij", 10));
			memset(buf, 0, sizeof(buf));
			CHECK_EQ(recvmsg(to, &mh, MSG_WAITALL), 5);
			CHECK(!memcmp(buf, "abcde", 5));
			CHECK_EQ(recv(to, NULL, 3, MSG_TRUNC | MSG_WAITALL), 3);
			CHECK_EQ(read(to, buf, 2), 2);
			CHECK(!memcmp(buf, "ij", 2));
			CHECK_EQ(recv(to, buf, 0, MSG_DONTWAIT) <= 0, 1);
			CHECK_ERRNO(send(from, (void *)8, 4, MSG_NOSIGNAL), EFAULT);
		}
		pair_close(&p);
	}
}

static void low_water_mark_is_kept(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		int v = 4;
		char buf[8];

		CHECK_OK(setsockopt(p.s, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof(v)));
		send_all(p.c, "12", 2);
		CHECK_EQ(poll_one(p.s, POLLIN, 60), 0);
		send_all(p.c, "34", 2);
		wait_events(p.s, POLLIN, 3000);
		CHECK_EQ(recv(p.s, buf, 8, 0), 4);
		pair_close(&p);
	}
}

static void urgent_byte_is_forwarded(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		char c = 0;
		int v = 0;

		CHECK_EQ(send(p.c, "ab!", 3, MSG_OOB), 3);
		wait_events(p.s, POLLPRI, 3000);
		CHECK_EQ(recv(p.s, &c, 1, MSG_OOB), 1);
		CHECK_EQ(c, '!');
		recv_all(p.s, &c, 1);
		recv_all(p.s, &c, 1);
		CHECK_OK(ioctl(p.s, SIOCATMARK, &v));
		CHECK_EQ(v, 1);
		pair_close(&p);
	}
}

static void sendfile_and_splice_work(void)
{
	for_few(f) {
		static char in[50000], out[50000];
		struct pair p = pair_make(f);
		int file = CHECK_OK(memfd_create("data", MFD_CLOEXEC)), pipes[2];
		off_t off = 0;

		pattern_fill(in, sizeof(in), 9, 0);
		CHECK_EQ(write(file, in, sizeof(in)), sizeof(in));
		CHECK_EQ(sendfile(p.c, file, &off, sizeof(in)), sizeof(in));
		CHECK_OK(pipe2(pipes, O_CLOEXEC));

		size_t got = 0;

		while (got < sizeof(out)) {
			ssize_t n = CHECK_OK(splice(p.s, NULL, pipes[1], NULL,
						    sizeof(out) - got, 0));

			CHECK(n > 0);
			for (ssize_t r = 0; r < n;)
				r += CHECK_OK(read(pipes[0], out + got + r, n - r));
			got += n;
		}
		CHECK_EQ(pattern_check(out, sizeof(out), 9, 0), sizeof(out));
		close(file);
		close(pipes[0]);
		close(pipes[1]);
		pair_close(&p);
	}
}

static void many_at_once_all_arrive(void)
{
	enum { N = 20 };

	for_few(f) {
		struct sockaddr_storage ss, to;
		int l = listen_at(f, 0, &ss);
		socklen_t len = target(f, addr_port(&ss), &to);
		struct flow fl[2 * N] = { 0 };

		for (int i = 0; i < N; i++) {
			struct flow *c = &fl[2 * i];

			c->fd = sock_at(CLIENT, f->client, SOCK_NONBLOCK);
			connect_nb(c->fd, &to, len);
		}
		for (int i = 0; i < N; i++) {
			struct flow *c = &fl[2 * i], *s = &fl[2 * i + 1];

			s->fd = CHECK_OK(accept4(l, NULL, NULL, SOCK_NONBLOCK));
			wait_events(c->fd, POLLOUT, 5000);
			c->to_send = s->to_recv = 30000;
			s->to_send = c->to_recv = 20000;
			c->shut = s->shut = c->want_eof = s->want_eof = true;
		}
		pump(fl, 2 * N, 15000);
		for (int i = 0; i < 2 * N; i++)
			close(fl[i].fd);
		close(l);
	}
}

static void listener_closed_with_children_resets_them(void)
{
	for_all(f) {
		struct sockaddr_storage ss;
		int l = listen_at(f, 0, &ss), c[3];
		socklen_t len = target(f, addr_port(&ss), &ss);
		char x;

		for (int i = 0; i < 3; i++) {
			c[i] = sock_at(CLIENT, f->client, 0);
			CHECK_OK(connect(c[i], (struct sockaddr *)&ss, len));
		}
		wait_events(l, POLLIN, 5000);
		close(l);
		for (int i = 0; i < 3; i++) {
			wait_events(c[i], POLLIN | POLLHUP | POLLERR, 5000);
			CHECK(recv(c[i], &x, 1, MSG_DONTWAIT) <= 0);
			CHECK(errno != EAGAIN);
			close(c[i]);
		}
	}
}

static void descriptors_travel_and_are_inherited(void)
{
	for_few(f) {
		struct pair p = pair_make(f);
		int sv[2], dupfd = CHECK_OK(dup(p.c)), status;
		char buf[8];
		pid_t pid;

		CHECK_OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sv));
		pid = fork();
		if (!pid) {
			union {
				struct cmsghdr h;
				char b[CMSG_SPACE(sizeof(int))];
			} u;
			struct iovec iov = { buf, 1 };
			struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1,
					     .msg_control = &u, .msg_controllen = sizeof(u) };
			int fd;

			pair_close(&p);
			close(dupfd);
			if (recvmsg(sv[1], &mh, 0) != 1)
				_exit(1);
			memcpy(&fd, CMSG_DATA(&u.h), sizeof(fd));
			_exit(send(fd, "passed", 6, 0) == 6 ? 0 : 2);
		}

		union {
			struct cmsghdr h;
			char b[CMSG_SPACE(sizeof(int))];
		} u = { .h = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
			       .cmsg_type = SCM_RIGHTS } };
		struct iovec iov = { "x", 1 };
		struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u,
				     .msg_controllen = sizeof(u) };

		memcpy(CMSG_DATA(&u.h), &p.c, sizeof(int));
		CHECK_EQ(sendmsg(sv[0], &mh, 0), 1);
		close(p.c);
		waitpid(pid, &status, 0);
		CHECK_EQ(WEXITSTATUS(status), 0);
		recv_all(p.s, buf, 6);
		/* The duplicate is the same connection. */
		send_all(dupfd, "dup", 3);
		recv_all(p.s, buf, 3);
		close(dupfd);
		expect_eof(p.s);
		close(sv[0]);
		close(sv[1]);
		p.c = -1;
		pair_close(&p);
	}
}

static void defer_accept_waits_for_data(void)
{
	const struct flavour *f = &flavours[1];
	struct sockaddr_storage ss;
	int l = listen_at(f, SOCK_NONBLOCK, &ss), v = 5;
	int c = sock_at(CLIENT, f->client, 0);
	socklen_t len = target(f, addr_port(&ss), &ss);
	char buf[4];

	CHECK_OK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &v, sizeof(v)));
	CHECK_OK(connect(c, (struct sockaddr *)&ss, len));
	CHECK_ERRNO(accept(l, NULL, NULL), EAGAIN);
	send_all(c, "go", 2);
	wait_events(l, POLLIN, 5000);

	int s = CHECK_OK(accept(l, NULL, NULL));

	recv_all(s, buf, 2);
	close(s);
	close(c);
	close(l);
}

static void sequential_connections_leave_nothing(void)
{
	static const char *const names[] = { "SMC", "SMC6" };
	long long had[2], now = 0;

	for (int i = 0; i < 2; i++)
		had[i] = proto_sockets(names[i]);
	for (int round = 0; round < 4; round++) {
		for_all(f) {
			struct pair p = pair_make(f);

			exchange(&p, 10, 10);
			pair_close(&p);
		}
	}
	if (had[0] < 0)
		SKIP("no protocol SMC in /proc/net/protocols");
	/* Nothing may stay longer than ten seconds. */
	for (int i = 0; i < 500; i++) {
		now = proto_sockets("SMC") + proto_sockets("SMC6") - had[0] - had[1];
		if (now <= 0)
			return;
		usleep(20000);
	}
	FAIL("%lld sockets remain", now);
}

static void buffers_set_before_connect_stay(void)
{
	for_few(f) {
		int want = 60000, v;
		struct pair p = pair_make_bufs(f, want, want);
		socklen_t len = sizeof(v);

		for (int side = 0; side < 2; side++) {
			CHECK_OK(getsockopt(side ? p.s : p.c, SOL_SOCKET, SO_SNDBUF, &v, &len));
			CHECK_EQ(v, 2 * want);
			CHECK_OK(getsockopt(side ? p.s : p.c, SOL_SOCKET, SO_RCVBUF, &v, &len));
			CHECK_EQ(v, 2 * want);
		}
		exchange(&p, 300000, 300000);
		pair_close(&p);
	}
}

static const struct test_case cases[] = {
	CASE(transfer_small_and_large_arrives),
	CASE(transfer_blocking_calls_arrive),
	CASE(transfer_edge_triggered_arrives),
	CASE(server_speaks_first_is_heard),
	CASE(silent_client_is_accepted_at_once),
	CASE(data_before_accept_is_kept),
	CASE(names_agree_on_both_sides),
	CASE(reset_by_peer_is_reported),
	CASE(shutdown_in_every_order_works),
	CASE(sigpipe_comes_unless_asked_not_to),
	CASE(close_in_both_orders_ends_stream),
	CASE(close_with_unread_data_resets),
	CASE(kill_of_peer_process_ends_stream),
	CASE(ioctl_counts_queued_bytes),
	CASE(options_after_connect_reach_tcp),
	CASE(keepalive_reaches_tcp),
	CASE(receive_flags_behave_as_tcp),
	CASE(low_water_mark_is_kept),
	CASE(urgent_byte_is_forwarded),
	CASE(sendfile_and_splice_work),
	CASE(many_at_once_all_arrive),
	CASE(listener_closed_with_children_resets_them),
	CASE(descriptors_travel_and_are_inherited),
	CASE(defer_accept_waits_for_data),
	CASE(sequential_connections_leave_nothing),
	CASE(buffers_set_before_connect_stay),
};

const struct suite suite_fallback = {
	.name = "fallback", .cases = cases, .count = ARRAY_SIZE(cases),
};
