// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "socket": what one SMC socket answers before it has a connection, and
 * every way to misuse it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <linux/sockios.h>

#include "cases.h"

#define for_each_smc_kind(k)							\
	for (enum kind_id k = SMC4; k <= INETSMC6 && (row("%s", kinds[k].name), 1); k++)

static int fresh(enum kind_id k)
{
	return sock_at(SERVER, k, 0);
}

static socklen_t loopback(enum kind_id k, struct sockaddr_storage *ss, unsigned int port)
{
	bool v6 = kinds[k].family == AF_INET6;

	return addr_make(ss, kinds[k].family, v6 ? "::1" : "127.0.0.1", port);
}

static int listener(enum kind_id k, struct sockaddr_storage *ss, socklen_t *len)
{
	int fd = fresh(k);

	*len = loopback(k, ss, 0);
	CHECK_OK(bind(fd, (struct sockaddr *)ss, *len));
	CHECK_OK(listen(fd, 16));
	CHECK_OK(getsockname(fd, (struct sockaddr *)ss, len));
	return fd;
}

static void socket_other_types_refused(void)
{
	static const struct {
		int domain, type, proto, err;
	} table[] = {
		{ AF_SMC, SOCK_DGRAM, 0, ESOCKTNOSUPPORT },
		{ AF_SMC, SOCK_DGRAM, 1, ESOCKTNOSUPPORT },
		{ AF_SMC, SOCK_SEQPACKET, 0, ESOCKTNOSUPPORT },
		{ AF_SMC, SOCK_RAW, 0, ESOCKTNOSUPPORT },
		{ AF_SMC, SOCK_RDM, 0, ESOCKTNOSUPPORT },
		{ AF_SMC, SOCK_DGRAM, 77, ESOCKTNOSUPPORT },
		{ AF_SMC, SOCK_STREAM, 2, EPROTONOSUPPORT },
		{ AF_SMC, SOCK_STREAM, 6, EPROTONOSUPPORT },
		{ AF_SMC, SOCK_STREAM, 256, EPROTONOSUPPORT },
		{ AF_SMC, SOCK_STREAM, 0x7fffffff, EPROTONOSUPPORT },
		{ AF_SMC, SOCK_STREAM, -1, EPROTONOSUPPORT },
		{ AF_INET, SOCK_DGRAM, 256, EPROTONOSUPPORT },
		{ AF_INET6, SOCK_DGRAM, 256, EPROTONOSUPPORT },
	};

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		row("socket(%d, %d, %d)", table[i].domain, table[i].type, table[i].proto);
		CHECK_ERRNO(socket(table[i].domain, table[i].type, table[i].proto),
			    table[i].err);
	}
}

static void socket_stream_kinds_created(void)
{
	for_each_smc_kind(k) {
		int fd = CHECK_OK(socket(kinds[k].domain, SOCK_STREAM | SOCK_NONBLOCK |
					 SOCK_CLOEXEC, kinds[k].protocol));
		int v = -1;
		socklen_t len = sizeof(v);

		CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
		CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, &len));
		CHECK_EQ(v, SOCK_STREAM);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &v, &len));
		CHECK_EQ(v, kinds[k].domain);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &v, &len));
		CHECK_EQ(v, kinds[k].protocol);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &v, &len));
		CHECK_EQ(v, 0);
		CHECK_EQ(so_error(fd), 0);
		CHECK_OK(close(fd));
	}
}

static void socket_pair_refused(void)
{
	int sv[2];

	for_each_smc_kind(k)
		CHECK_ERRNO(socketpair(kinds[k].domain, SOCK_STREAM, kinds[k].protocol, sv),
			    EOPNOTSUPP);
}

static void bind_bad_addresses_refused(void)
{
	for_each_smc_kind(k) {
		int fd = fresh(k);
		bool v6 = kinds[k].family == AF_INET6;
		struct sockaddr_storage ss;
		socklen_t len = loopback(k, &ss, 0);
		struct sockaddr_un un = { .sun_family = AF_UNIX };

		CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, 2), EINVAL);
		CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, sizeof(struct sockaddr_in) - 1),
			    EINVAL);
		CHECK_ERRNO(bind(fd, (struct sockaddr *)&un, sizeof(un)), EAFNOSUPPORT);
		ss.ss_family = AF_SMC;
		CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, len), EAFNOSUPPORT);
		len = addr_make(&ss, kinds[k].family, v6 ? "2001:db8::77" : "192.0.2.77", 0);
		CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, len), EADDRNOTAVAIL);
		if (!v6) {
			len = addr_make(&ss, AF_INET6, "::1", 0);
			CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, len), EAFNOSUPPORT);
			len = addr_make(&ss, AF_INET, "127.0.0.1", 0);
			ss.ss_family = AF_UNSPEC;
			CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, len), EAFNOSUPPORT);
		}
		/* None of this spoils the socket. */
		len = loopback(k, &ss, 0);
		CHECK_OK(bind(fd, (struct sockaddr *)&ss, len));
		close(fd);
	}
}

static void bind_unspec_any_accepted(void)
{
	for (enum kind_id k = SMC4; k <= INETSMC4; k += INETSMC4 - SMC4) {
		struct sockaddr_storage ss;
		socklen_t len = addr_make(&ss, AF_INET, NULL, 0);
		int fd = fresh(k);

		row("%s", kinds[k].name);
		ss.ss_family = AF_UNSPEC;
		CHECK_OK(bind(fd, (struct sockaddr *)&ss, len));
		close(fd);
	}
}

static void bind_twice_refused(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len = loopback(k, &ss, 0);
		int fd = fresh(k);

		CHECK_OK(bind(fd, (struct sockaddr *)&ss, len));
		CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, len), EINVAL);
		close(fd);
	}
}

static void bind_port_in_use_refused(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int l = listener(k, &ss, &len);
		int fd = fresh(k);
		int tcp = fresh(kinds[k].family == AF_INET6 ? TCP6 : TCP4);

		CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, len), EADDRINUSE);
		CHECK_ERRNO(bind(tcp, (struct sockaddr *)&ss, len), EADDRINUSE);
		close(l);
		CHECK_OK(bind(fd, (struct sockaddr *)&ss, len));
		close(fd);
		close(tcp);
	}
}

static void bind_reuse_options_reach_tcp(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len = loopback(k, &ss, 0);
		int a = fresh(k), b = fresh(k), one = 1;

		CHECK_OK(setsockopt(a, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)));
		CHECK_OK(setsockopt(b, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)));
		CHECK_OK(bind(a, (struct sockaddr *)&ss, len));
		CHECK_OK(getsockname(a, (struct sockaddr *)&ss, &len));
		CHECK_OK(bind(b, (struct sockaddr *)&ss, len));
		CHECK_OK(listen(a, 5));
		CHECK_OK(listen(b, 5));
		close(a);
		close(b);
	}
}

static void bind_low_port_needs_privilege(void)
{
	/* Sockets made before the privilege is given up, and after. */
	int fd = fresh(SMC4);

	CHECK_OK(setresgid(65534, 65534, 65534));
	CHECK_OK(setresuid(65534, 65534, 65534));
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len = loopback(k, &ss, 81);
		int own = CHECK_OK(kind_socket(k, 0));

		CHECK_ERRNO(bind(own, (struct sockaddr *)&ss, len), EACCES);
		if (k == SMC4)
			CHECK_ERRNO(bind(fd, (struct sockaddr *)&ss, len), EACCES);
		close(own);
	}
}

static void getname_before_connection_answered(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len = sizeof(ss);
		int fd = fresh(k);

		CHECK_OK(getsockname(fd, (struct sockaddr *)&ss, &len));
		CHECK_EQ(ss.ss_family, kinds[k].family);
		CHECK_EQ(addr_port(&ss), 0);
		CHECK_EQ(len, kinds[k].family == AF_INET6 ? sizeof(struct sockaddr_in6) :
			 sizeof(struct sockaddr_in));
		len = sizeof(ss);
		CHECK_ERRNO(getpeername(fd, (struct sockaddr *)&ss, &len), ENOTCONN);
		len = loopback(k, &ss, 0);
		CHECK_OK(bind(fd, (struct sockaddr *)&ss, len));
		len = sizeof(ss);
		CHECK_OK(getsockname(fd, (struct sockaddr *)&ss, &len));
		CHECK(addr_port(&ss) != 0);
		close(fd);
	}
}

static void listen_unbound_gets_port(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len = sizeof(ss);
		int fd = fresh(k), v = 0;

		CHECK_OK(listen(fd, 5));
		CHECK_OK(getsockname(fd, (struct sockaddr *)&ss, &len));
		CHECK(addr_port(&ss) != 0);
		len = sizeof(v);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &v, &len));
		CHECK_EQ(v, 1);
		close(fd);
	}
}

static void listen_again_changes_backlog(void)
{
	for_each_smc_kind(k) {
		int fd = fresh(k);

		CHECK_OK(listen(fd, 1));
		CHECK_OK(listen(fd, 100));
		CHECK_OK(listen(fd, 0));
		CHECK_OK(listen(fd, -1));
		close(fd);
	}
}

static void accept_without_listen_refused(void)
{
	for_each_smc_kind(k) {
		int fd = fresh(k);

		CHECK_ERRNO(accept(fd, NULL, NULL), EINVAL);
		CHECK_ERRNO(accept4(fd, NULL, NULL, SOCK_NONBLOCK), EINVAL);
		close(fd);
	}
}

static void accept_empty_queue_answered(void)
{
	for_each_smc_kind(k) {
		struct timeval tv = { .tv_usec = 150000 };
		struct sockaddr_storage ss;
		socklen_t len;
		int fd = listener(k, &ss, &len);
		uint64_t start = now_us();

		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
		CHECK_ERRNO(accept(fd, NULL, NULL), EAGAIN);
		CHECK(now_us() - start >= 60000);
		set_nonblock(fd, true);
		CHECK_ERRNO(accept(fd, NULL, NULL), EAGAIN);
		CHECK_ERRNO(accept4(fd, NULL, NULL, 0x40), EINVAL);
		CHECK_EQ(poll_one(fd, POLLIN | POLLOUT, 0), 0);
		close(fd);
	}
}

static void accept_signal_interrupts(void)
{
	catch_signal(SIGUSR1);
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int fd = listener(k, &ss, &len);

		alarm_start(SIGUSR1, 50);
		CHECK_ERRNO(accept(fd, NULL, NULL), EINTR);
		alarm_stop();
		close(fd);
	}
	CHECK(got_signal >= 4);
}

static void *accept_in_thread(void *fd)
{
	return (void *)(long)(accept(*(int *)fd, NULL, NULL) < 0 ? errno : 0);
}

static void accept_ends_when_listener_is_shut_down(void)
{
	/* A listener of SMC, and one that went on as one of TCP. */
	for (int tcp = 0; tcp < 2; tcp++) {
		for_each_smc_kind(k) {
			struct sockaddr_storage ss;
			socklen_t len = loopback(k, &ss, 0);
			int fd = fresh(k), one = 1;
			pthread_t thread;
			void *err;

			if (tcp)
				CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN, &one,
						    sizeof(one)));
			CHECK_OK(bind(fd, (struct sockaddr *)&ss, len));
			CHECK_OK(listen(fd, 1));
			CHECK(!pthread_create(&thread, NULL, accept_in_thread, &fd));
			/* Until it waits, or nearly so. */
			poll(NULL, 0, 100);
			CHECK_OK(shutdown(fd, SHUT_RDWR));
			CHECK(!pthread_join(thread, &err));
			CHECK_EQ((long)err, EINVAL);
			close(fd);
		}
	}
}

static void connect_bad_addresses_refused(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_un un = { .sun_family = AF_UNIX };
		struct sockaddr_storage ss;
		socklen_t len = loopback(k, &ss, 1);
		int fd = fresh(k);

		CHECK_ERRNO(connect(fd, (struct sockaddr *)&ss, 2), EINVAL);
		CHECK_ERRNO(connect(fd, (struct sockaddr *)&un, sizeof(un)), EAFNOSUPPORT);
		ss.ss_family = AF_SMC;
		CHECK_ERRNO(connect(fd, (struct sockaddr *)&ss, len), EAFNOSUPPORT);
		close(fd);
	}
}

static void connect_refused_port_reported(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int l = listener(k, &ss, &len);
		int fd = fresh(k);

		close(l);
		CHECK_ERRNO(connect(fd, (struct sockaddr *)&ss, len), ECONNREFUSED);
		CHECK_EQ(so_error(fd), 0);
		close(fd);
	}
}

static void connect_unreachable_reported(void)
{
	for_each_smc_kind(k) {
		bool v6 = kinds[k].family == AF_INET6;
		struct sockaddr_storage ss;
		socklen_t len = addr_make(&ss, kinds[k].family,
					  v6 ? "2001:db8::77" : "192.0.2.77", 9);
		int fd = fresh(k);

		if (!have_namespaces())
			SKIP("no namespaces without a default route");
		CHECK_ERRNO(connect(fd, (struct sockaddr *)&ss, len), ENETUNREACH);
		close(fd);
	}
}

static void connect_on_listener_refused(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int l = listener(k, &ss, &len);

		errno = 0;
		CHECK_EQ(connect(l, (struct sockaddr *)&ss, len), -1);
		CHECK(errno == EINVAL || errno == EISCONN);
		close(l);
	}
}

static void data_calls_unconnected_refused(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int fd = fresh(k), l = listener(k, &ss, &len);
		char c = 0;

		CHECK_ERRNO(send(fd, &c, 1, MSG_NOSIGNAL), EPIPE);
		CHECK_ERRNO(recv(fd, &c, 1, 0), ENOTCONN);
		CHECK_ERRNO(recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK), ENOTCONN);
		CHECK_ERRNO(send(l, &c, 1, MSG_NOSIGNAL), EPIPE);
		CHECK_ERRNO(recv(l, &c, 1, 0), ENOTCONN);
		close(fd);
		close(l);
	}
}

static void shutdown_unconnected_refused(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int fd = fresh(k), l = listener(k, &ss, &len);

		CHECK_ERRNO(shutdown(fd, 3), EINVAL);
		CHECK_ERRNO(shutdown(fd, -1), EINVAL);
		for (int how = SHUT_RD; how <= SHUT_RDWR; how++) {
			CHECK_ERRNO(shutdown(fd, how), ENOTCONN);
			/* TCP lets a listener be shut down; it may be refused. */
			CHECK(!shutdown(l, how) || errno == ENOTCONN);
		}
		close(fd);
		close(l);
	}
}

static void option_smc_level_checked(void)
{
	for_each_smc_kind(k) {
		int fd = fresh(k), v = -1;
		socklen_t len = sizeof(v);

		CHECK_OK(getsockopt(fd, SOL_SMC, SMC_LIMIT_HS, &v, &len));
		CHECK_EQ(v, 0);
		CHECK_EQ(len, sizeof(v));
		v = 7;
		CHECK_OK(setsockopt(fd, SOL_SMC, SMC_LIMIT_HS, &v, sizeof(v)));
		CHECK_OK(getsockopt(fd, SOL_SMC, SMC_LIMIT_HS, &v, &len));
		CHECK_EQ(v, 1);
		v = 0;
		CHECK_OK(setsockopt(fd, SOL_SMC, SMC_LIMIT_HS, &v, sizeof(v)));
		CHECK_OK(getsockopt(fd, SOL_SMC, SMC_LIMIT_HS, &v, &len));
		CHECK_EQ(v, 0);
		CHECK_ERRNO(setsockopt(fd, SOL_SMC, SMC_LIMIT_HS, &v, 2), EINVAL);
		CHECK_ERRNO(setsockopt(fd, SOL_SMC, 2, &v, sizeof(v)), ENOPROTOOPT);
		CHECK_ERRNO(getsockopt(fd, SOL_SMC, 2, &v, &len), ENOPROTOOPT);
		CHECK_ERRNO(setsockopt(fd, SOL_SMC, SMC_LIMIT_HS, (void *)8, sizeof(v)), EFAULT);
		CHECK_ERRNO(getsockopt(fd, SOL_SMC, SMC_LIMIT_HS, (void *)8, &len), EFAULT);
		close(fd);
	}
}

static void option_info_before_connection(void)
{
	for_each_smc_kind(k) {
		struct smc_rs_info info;
		int fd = fresh(k), rc = smc_info(fd, &info);
		char part[5] = { 1, 1, 1, 1, 77 };
		socklen_t len = 4;

		if (rc == -ENOPROTOOPT)
			SKIP("the module has no SMC_RS_INFO");
		CHECK_EQ(rc, 0);
		CHECK_EQ(info.mode, SMC_RS_MODE_NONE);
		CHECK_EQ(info.fallback_reason, 0);
		CHECK_EQ(info.state, 2);
		CHECK_OK(getsockopt(fd, SOL_SMC, SMC_RS_INFO, part, &len));
		CHECK_EQ(len, 4);
		CHECK_EQ(part[4], 77);
		CHECK_EQ(info.version, *(uint32_t *)part);
		CHECK_ERRNO(getsockopt(fd, SOL_SMC, SMC_RS_INFO, (void *)8, &len), EFAULT);
		CHECK_OK(listen(fd, 1));
		CHECK_EQ(smc_info(fd, &info), 0);
		CHECK_EQ(info.state, 10);
		close(fd);
	}
}

static void option_tcp_and_ip_remembered(void)
{
	static const struct {
		int level, name, value;
		bool v4_only, v6_only;
	} table[] = {
		{ IPPROTO_TCP, TCP_NODELAY, 1 },
		{ IPPROTO_TCP, TCP_NODELAY, 0 },
		{ IPPROTO_TCP, TCP_CORK, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 77 },
		{ IPPROTO_TCP, TCP_KEEPINTVL, 7 },
		{ IPPROTO_TCP, TCP_KEEPCNT, 3 },
		{ IPPROTO_TCP, TCP_SYNCNT, 2 },
		{ IPPROTO_TCP, TCP_USER_TIMEOUT, 12345 },
		{ IPPROTO_TCP, TCP_QUICKACK, 0 },
		{ IPPROTO_IP, IP_TOS, 0x10, true, false },
		{ IPPROTO_IP, IP_TTL, 17, true, false },
		{ IPPROTO_IPV6, IPV6_V6ONLY, 1, false, true },
		{ IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9, false, true },
		{ IPPROTO_IPV6, IPV6_TCLASS, 0x20, false, true },
	};

	for (enum kind_id k = SMC4; k <= INETSMC6; k++) {
		int fd = fresh(k);

		for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
			int v = table[i].value;
			socklen_t len = sizeof(v);

			if (kinds[k].family == AF_INET6 ? table[i].v4_only : table[i].v6_only)
				continue;
			row("%s level %d option %d", kinds[k].name, table[i].level,
			    table[i].name);
			CHECK_OK(setsockopt(fd, table[i].level, table[i].name, &v, len));
			v = -1;
			CHECK_OK(getsockopt(fd, table[i].level, table[i].name, &v, &len));
			CHECK_EQ(v, table[i].value);
		}
		row("%s unknown option", kinds[k].name);
		int v = 1;

		CHECK_ERRNO(setsockopt(fd, IPPROTO_TCP, 9999, &v, sizeof(v)), ENOPROTOOPT);
		CHECK_ERRNO(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, 1), EINVAL);
		close(fd);
	}
}

static void option_socket_level_remembered(void)
{
	static const struct {
		int name, value;
	} table[] = {
		{ SO_REUSEADDR, 1 }, { SO_REUSEPORT, 1 }, { SO_KEEPALIVE, 1 },
		{ SO_OOBINLINE, 1 }, { SO_PRIORITY, 3 }, { SO_RCVLOWAT, 100 },
		{ SO_MARK, 7 }, { SO_KEEPALIVE, 0 }, { SO_BUSY_POLL, 50 },
	};

	for (enum kind_id k = SMC4; k <= INETSMC6; k++) {
		struct linger li = { .l_onoff = 1, .l_linger = 4 };
		struct timeval tv = { .tv_sec = 3 };
		int fd = fresh(k), v, half;
		socklen_t len = sizeof(v);

		for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
			row("%s option %d", kinds[k].name, table[i].name);
			v = table[i].value;
			CHECK_OK(setsockopt(fd, SOL_SOCKET, table[i].name, &v, len));
			v = -1;
			CHECK_OK(getsockopt(fd, SOL_SOCKET, table[i].name, &v, &len));
			CHECK_EQ(v, table[i].value);
		}
		row("%s buffers", kinds[k].name);
		half = 40000;
		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &half, len));
		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &half, len));
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &v, &len));
		CHECK_EQ(v, 2 * half);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, &len));
		CHECK_EQ(v, 2 * half);
		row("%s linger and time-outs", kinds[k].name);
		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &li, sizeof(li)));
		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
		CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
		memset(&li, 0, sizeof(li));
		memset(&tv, 0, sizeof(tv));
		len = sizeof(li);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &li, &len));
		CHECK_EQ(li.l_onoff, 1);
		CHECK_EQ(li.l_linger, 4);
		len = sizeof(tv);
		CHECK_OK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, &len));
		CHECK_EQ(tv.tv_sec, 3);
		close(fd);
	}
}

static void ioctl_unconnected_answered(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int fd = fresh(k), l = listener(k, &ss, &len), v;

		v = -1;
		CHECK_OK(ioctl(fd, SIOCINQ, &v));
		CHECK_EQ(v, 0);
		v = -1;
		CHECK_OK(ioctl(fd, SIOCOUTQ, &v));
		CHECK_EQ(v, 0);
		v = -1;
		CHECK_OK(ioctl(fd, SIOCOUTQNSD, &v));
		CHECK_EQ(v, 0);
		CHECK_ERRNO(ioctl(l, SIOCINQ, &v), EINVAL);
		CHECK_ERRNO(ioctl(l, SIOCOUTQ, &v), EINVAL);
		CHECK_ERRNO(ioctl(fd, SIOCINQ, (void *)8), EFAULT);
		CHECK_ERRNO(ioctl(fd, 0x5399, &v), ENOTTY);
		close(fd);
		close(l);
	}
}

static void poll_fresh_socket_not_readable(void)
{
	for_each_smc_kind(k) {
		int fd = fresh(k);

		CHECK_EQ(poll_one(fd, POLLIN | POLLPRI, 0) & (POLLIN | POLLERR | POLLPRI), 0);
		close(fd);
	}
}

static void fault_addresses_reported(void)
{
	for_each_smc_kind(k) {
		struct sockaddr_storage ss;
		socklen_t len;
		int fd = fresh(k);

		CHECK_ERRNO(bind(fd, (void *)8, 16), EFAULT);
		CHECK_ERRNO(connect(fd, (void *)8, 16), EFAULT);
		len = 16;
		CHECK_ERRNO(getsockname(fd, (void *)8, &len), EFAULT);
		CHECK_ERRNO(getsockname(fd, (struct sockaddr *)&ss, (void *)8), EFAULT);
		close(fd);
	}
}

static bool only_our_sockets(void *arg)
{
	return proto_sockets("SMC") <= *(long long *)arg;
}

static void close_many_sockets_leaves_none(void)
{
	static const char *const names[] = { "SMC", "SMC6" };
	long long had[2];

	for (int i = 0; i < 2; i++)
		had[i] = proto_sockets(names[i]);
	for_each_smc_kind(k) {
		for (int i = 0; i < 200; i++) {
			int fd = fresh(k);

			if (i % 4 == 1)
				CHECK_OK(listen(fd, 5));
			close(fd);
		}
	}
	if (had[0] < 0)
		SKIP("no protocol SMC in /proc/net/protocols");
	CHECK(busywait(3000, only_our_sockets, &had[0]));
	CHECK(proto_sockets("SMC6") <= had[1]);
}

static void close_racing_with_calls_survives(void)
{
	/* One process works with descriptors that another closes. */
	for_each_smc_kind(k) {
		for (int i = 0; i < 20; i++) {
			struct sockaddr_storage ss;
			socklen_t len;
			int fd = listener(k, &ss, &len);
			pid_t pid = fork();

			if (!pid) {
				int v = 0;

				set_nonblock(fd, true);
				accept(fd, NULL, NULL);
				getsockname(fd, (struct sockaddr *)&ss, &len);
				setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, sizeof(v));
				close(fd);
				_exit(0);
			}
			close(fd);
			waitpid(pid, NULL, 0);
		}
	}
}

static const struct test_case cases[] = {
	CASE(socket_other_types_refused),
	CASE(socket_stream_kinds_created),
	CASE(socket_pair_refused),
	CASE(bind_bad_addresses_refused),
	CASE(bind_unspec_any_accepted),
	CASE(bind_twice_refused),
	CASE(bind_port_in_use_refused),
	CASE(bind_reuse_options_reach_tcp),
	CASE(bind_low_port_needs_privilege),
	CASE(getname_before_connection_answered),
	CASE(listen_unbound_gets_port),
	CASE(listen_again_changes_backlog),
	CASE(accept_without_listen_refused),
	CASE(accept_empty_queue_answered),
	CASE(accept_signal_interrupts),
	CASE(accept_ends_when_listener_is_shut_down),
	CASE(connect_bad_addresses_refused),
	CASE(connect_refused_port_reported),
	CASE(connect_unreachable_reported),
	CASE(connect_on_listener_refused),
	CASE(data_calls_unconnected_refused),
	CASE(shutdown_unconnected_refused),
	CASE(option_smc_level_checked),
	CASE(option_info_before_connection),
	CASE(option_tcp_and_ip_remembered),
	CASE(option_socket_level_remembered),
	CASE(ioctl_unconnected_answered),
	CASE(poll_fresh_socket_not_readable),
	CASE(fault_addresses_reported),
	CASE(close_many_sockets_leaves_none),
	CASE(close_racing_with_calls_survives),
};

const struct suite suite_socket = {
	.name = "socket", .cases = cases, .count = ARRAY_SIZE(cases),
};
