// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "waiting": who waits on a connection that is TCP in the end: connect in
 * all its forms, poll and epoll across it, time-outs and signals.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <linux/sockios.h>

#include "cases_fallback.h"

static void nonblocking_connect_reports_progress(void)
{
	for_all(f) {
		struct sockaddr_storage ss;
		int l = listen_at(f, 0, &ss), rc;
		int c = sock_at(CLIENT, f->client, SOCK_NONBLOCK);
		socklen_t len = target(f, addr_port(&ss), &ss);

		rc = connect_nb(c, &ss, len);
		CHECK(rc == EINPROGRESS || rc == 0);
		rc = connect_nb(c, &ss, len);
		CHECK(rc == EALREADY || rc == EISCONN || rc == 0);
		wait_events(c, POLLOUT, 5000);
		CHECK_EQ(poll_one(c, POLLOUT | POLLIN, 0), POLLOUT);
		CHECK_EQ(so_error(c), 0);
		rc = connect_nb(c, &ss, len);
		CHECK(rc == 0 || rc == EISCONN);
		CHECK_EQ(connect_nb(c, &ss, len), EISCONN);
		wait_events(l, POLLIN, 5000);

		int s = CHECK_OK(accept4(l, NULL, NULL, SOCK_NONBLOCK));
		struct pair p = { l, c, s, addr_port(&ss) };

		exchange(&p, 5000, 5000);
		pair_close(&p);
	}
}

/* A closed listener refuses at once, whatever of it is still being cleared away. */
static void closed_listener_refuses_at_once(void)
{
	for_all(f) {
		for (int i = 0; i < 10; i++) {
			struct sockaddr_storage ss;
			int l = listen_at(f, 0, &ss);
			int early = sock_at(CLIENT, f->client, SOCK_NONBLOCK);
			int late = sock_at(CLIENT, f->client, 0);
			socklen_t len = target(f, addr_port(&ss), &ss);

			/* Its arrival keeps the listener busy while it is closed. */
			CHECK_ERRNO(connect(early, (struct sockaddr *)&ss, len), EINPROGRESS);
			close(l);
			CHECK_ERRNO(connect(late, (struct sockaddr *)&ss, len), ECONNREFUSED);
			close(early);
			close(late);
		}
	}
}

static void refused_connect_is_reported(void)
{
	for_all(f) {
		struct sockaddr_storage ss;
		int l = listen_at(f, 0, &ss);
		int c = sock_at(CLIENT, f->client, 0);
		int n = sock_at(CLIENT, f->client, SOCK_NONBLOCK);
		socklen_t len = target(f, addr_port(&ss), &ss);
		char x;

		close(l);
		CHECK_ERRNO(connect(c, (struct sockaddr *)&ss, len), ECONNREFUSED);
		CHECK_EQ(so_error(c), 0);
		CHECK_ERRNO(connect(n, (struct sockaddr *)&ss, len), EINPROGRESS);
		wait_events(n, POLLERR, 5000);
		CHECK(poll_one(n, POLLOUT | POLLIN, 0) & POLLHUP);
		CHECK_EQ(so_error(n), ECONNREFUSED);
		CHECK_EQ(so_error(n), 0);
		CHECK_EQ(recv(n, &x, 1, 0) > 0, 0);
		close(c);
		close(n);
	}
}

struct waiter {
	int fd;
	short events;
	short revents;
	int ms;
	bool entered;
};

static void *poll_thread(void *arg)
{
	struct waiter *w = arg;
	struct pollfd p = { .fd = w->fd, .events = w->events };

	__atomic_store_n(&w->entered, true, __ATOMIC_SEQ_CST);
	if (poll(&p, 1, w->ms) >= 0)
		w->revents = p.revents;
	return NULL;
}

static pthread_t poll_in_thread(struct waiter *w)
{
	pthread_t t;

	CHECK(!pthread_create(&t, NULL, poll_thread, w));
	while (!__atomic_load_n(&w->entered, __ATOMIC_SEQ_CST))
		usleep(1000);
	usleep(10000);
	return t;
}

static void poller_is_woken_across_connect(void)
{
	for_all(f) {
		struct sockaddr_storage ss;
		int l = listen_at(f, SOCK_NONBLOCK, &ss);
		int c = sock_at(CLIENT, f->client, SOCK_NONBLOCK);
		socklen_t len = target(f, addr_port(&ss), &ss);
		struct waiter wl = { .fd = l, .events = POLLIN, .ms = 8000 };
		struct waiter wc = { .fd = c, .events = POLLIN, .ms = 8000 };
		pthread_t tl = poll_in_thread(&wl), tc;
		uint64_t start = now_us();
		char x;

		/* The client's poller starts while the connect is under way. */
		connect_nb(c, &ss, len);
		tc = poll_in_thread(&wc);
		pthread_join(tl, NULL);
		CHECK(wl.revents & POLLIN);

		int s = CHECK_OK(accept(l, NULL, NULL));

		send_all(s, "x", 1);
		pthread_join(tc, NULL);
		CHECK(wc.revents & POLLIN);
		recv_all(c, &x, 1);
		if (!kinds[f->client].smc || !kinds[f->server].smc)
			CHECK(now_us() - start < 4000000);
		close(c);
		close(s);
		close(l);
	}
}

static int ep_add(int ep, int fd, unsigned int events)
{
	struct epoll_event ev = { .events = events, .data.fd = fd };

	return CHECK_OK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
}

static unsigned int ep_wait(int ep, int ms)
{
	struct epoll_event ev;
	int n = CHECK_OK(epoll_wait(ep, &ev, 1, ms));

	return n ? ev.events : 0;
}

/* Waits for an event with all these bits, and throws others away. */
static void ep_expect(int ep, unsigned int bits)
{
	uint64_t end = now_us() + 6000000;
	unsigned int got = 0;

	while (now_us() < end) {
		got = ep_wait(ep, 1000);
		if ((got & bits) == bits)
			return;
	}
	FAIL("epoll said 0x%x at last, expected 0x%x", got, bits);
}

static void epoll_watches_whole_life(bool edge)
{
	unsigned int et = edge ? EPOLLET : 0;

	for_all(f) {
		struct sockaddr_storage ss;
		int l = listen_at(f, SOCK_NONBLOCK, &ss);
		int c = sock_at(CLIENT, f->client, SOCK_NONBLOCK);
		socklen_t len = target(f, addr_port(&ss), &ss);
		int epl = epoll_create1(EPOLL_CLOEXEC), epc = epoll_create1(EPOLL_CLOEXEC);
		int eps = epoll_create1(EPOLL_CLOEXEC), epi = epoll_create1(EPOLL_CLOEXEC);
		char buf[8];

		/* Registered before anything happens, and never again. */
		ep_add(epl, l, EPOLLIN | et);
		ep_add(epc, c, EPOLLIN | EPOLLOUT | EPOLLRDHUP | et);
		ep_add(epi, c, EPOLLIN | et);
		ep_wait(epc, 0);
		ep_wait(epi, 0);
		CHECK_EQ(ep_wait(epl, 0), 0);
		connect_nb(c, &ss, len);
		ep_expect(epl, EPOLLIN);

		int s = CHECK_OK(accept4(l, NULL, NULL, SOCK_NONBLOCK));

		CHECK_ERRNO(accept(l, NULL, NULL), EAGAIN);
		CHECK_EQ(ep_wait(epl, 0), 0);
		ep_add(eps, s, EPOLLIN | EPOLLRDHUP | et);
		ep_expect(epc, EPOLLOUT);
		CHECK_EQ(so_error(c), 0);
		while (ep_wait(epi, 0) & (EPOLLHUP | EPOLLERR))
			CHECK(edge);

		/* Data, read and not read. */
		CHECK_EQ(ep_wait(eps, 0), 0);
		send_all(c, "a", 1);
		ep_expect(eps, EPOLLIN);
		CHECK_EQ(ep_wait(eps, 20), edge ? 0 : EPOLLIN);
		send_all(c, "b", 1);
		ep_expect(eps, EPOLLIN);
		recv_all(s, buf, 2);
		CHECK_EQ(ep_wait(eps, 20), 0);
		send_all(s, "c", 1);
		ep_expect(epi, EPOLLIN);
		ep_expect(epc, EPOLLIN);
		recv_all(c, buf, 1);
		CHECK_EQ(ep_wait(epi, 20), 0);

		/* The end of one direction, then of both. */
		CHECK_OK(shutdown(c, SHUT_WR));
		ep_expect(eps, EPOLLIN | EPOLLRDHUP);
		CHECK_EQ(recv(s, buf, 1, 0), 0);
		send_all(s, "d", 1);
		ep_expect(epi, EPOLLIN);
		recv_all(c, buf, 1);
		close(s);
		ep_expect(epc, EPOLLIN | EPOLLRDHUP | EPOLLHUP);
		CHECK_EQ(recv(c, buf, 1, 0), 0);
		close(c);
		close(l);
		close(epl);
		close(epc);
		close(eps);
		close(epi);
	}
}

static void epoll_level_triggered_life_seen(void)
{
	epoll_watches_whole_life(false);
}

static void epoll_edge_triggered_life_seen(void)
{
	epoll_watches_whole_life(true);
}

/* Fills a socket until it takes no more; what went in. */
static size_t fill(int fd)
{
	static char buf[65536];
	size_t sum = 0;

	for (int idle = 0; idle < 3;) {
		ssize_t n = send(fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0) {
			sum += n;
			idle = 0;
			continue;
		}
		CHECK_EQ(errno, EAGAIN);
		poll_one(fd, POLLOUT, 30);
		idle++;
	}
	return sum;
}

static void drain(int fd, size_t sum)
{
	static char buf[65536];

	while (sum) {
		ssize_t n;

		wait_events(fd, POLLIN, 5000);
		n = CHECK_OK(recv(fd, buf, sizeof(buf), MSG_DONTWAIT));
		CHECK(n > 0);
		sum -= n;
	}
}

static void epoll_edge_of_writability_comes(void)
{
	for_few(f) {
		struct pair p = pair_make_bufs(f, 40000, 40000);
		int ep = epoll_create1(EPOLL_CLOEXEC);

		ep_add(ep, p.c, EPOLLOUT | EPOLLET);
		ep_expect(ep, EPOLLOUT);

		size_t sum = fill(p.c);

		while (ep_wait(ep, 30))
			;
		CHECK_EQ(poll_one(p.c, POLLOUT, 0), 0);
		drain(p.s, sum);
		ep_expect(ep, EPOLLOUT);
		close(ep);
		pair_close(&p);
	}
}

static void full_socket_times_out_and_goes_on(void)
{
	for_few(f) {
		struct pair p = pair_make_bufs(f, 40000, 40000);
		struct timeval tv = { .tv_usec = 50000 };
		size_t sum = fill(p.s);
		char buf[65536] = "";

		CHECK_OK(setsockopt(p.s, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
		for (;;) {
			ssize_t n = send(p.s, buf, sizeof(buf), MSG_NOSIGNAL);

			if (n < 0)
				break;
			sum += n;
		}
		CHECK_EQ(errno, EAGAIN);
		drain(p.c, sum);
		exchange(&p, 100, 100);
		pair_close(&p);
	}
}

static void receive_timeout_and_signal_end_wait(void)
{
	catch_signal(SIGUSR1);
	for_few(f) {
		struct pair p = pair_make(f);
		struct timeval tv = { .tv_usec = 150000 }, none = { 0 };
		char c;

		for (int i = 0; i < 2; i++) {
			int fd = i ? p.s : p.c;
			uint64_t start = now_us();

			CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
			CHECK_ERRNO(recv(fd, &c, 1, 0), EAGAIN);
			/* A clock that stood still for a while makes up for it. */
			CHECK(now_us() - start >= 60000);
			CHECK_OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)));
			alarm_start(SIGUSR1, 50);
			CHECK_ERRNO(recv(fd, &c, 1, 0), EINTR);
			alarm_stop();
		}
		pair_close(&p);
	}
}

static void connect_wait_ends_by_timeout_or_signal(void)
{
	static const enum kind_id ks[] = { SMC4, SMC6, INETSMC4, INETSMC6 };

	if (!have_namespaces())
		SKIP("no namespaces");
	catch_signal(SIGUSR1);
	for (size_t i = 0; i < 2 * ARRAY_SIZE(ks); i++) {
		enum kind_id k = ks[i % ARRAY_SIZE(ks)];
		bool v6 = kinds[k].family == AF_INET6;
		struct timeval tv = { .tv_usec = 150000 };
		struct sockaddr_storage ss;
		/* Nobody answers there. */
		socklen_t len = addr_make(&ss, kinds[k].family,
					  v6 ? "fd77::99" : "10.77.0.99", 7);
		int c = sock_at(CLIENT, k, 0), n = sock_at(CLIENT, k, SOCK_NONBLOCK);
		uint64_t start = now_us();

		row("%s", kinds[k].name);
		if (i < ARRAY_SIZE(ks)) {
			CHECK_OK(setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
			CHECK_ERRNO(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
			CHECK(now_us() - start >= 60000);
		} else {
			alarm_start(SIGUSR1, 50);
			CHECK_ERRNO(connect(c, (struct sockaddr *)&ss, len), EINTR);
			alarm_stop();
		}
		CHECK_EQ(connect_nb(n, &ss, len), EINPROGRESS);
		CHECK_EQ(connect_nb(n, &ss, len), EALREADY);
		CHECK_EQ(poll(&(struct pollfd){ .fd = n, .events = POLLOUT }, 1, 0), 0);
		/* Closing in this state must not wait either. */
		start = now_us();
		close(c);
		close(n);
		CHECK(now_us() - start < 1000000);
	}
}

static void async_signal_is_sent(void)
{
	catch_signal(SIGIO);
	for_few(f) {
		for (int side = 0; side < 2; side++) {
			struct pair p = pair_make(f);
			int to = side ? p.s : p.c, from = side ? p.c : p.s;

			CHECK_OK(fcntl(to, F_SETOWN, getpid()));
			CHECK_OK(fcntl(to, F_SETFL, fcntl(to, F_GETFL) | O_ASYNC));

			int had = got_signal;

			send_all(from, "x", 1);
			for (int i = 0; i < 100 && got_signal == had; i++)
				usleep(20000);
			CHECK(got_signal > had);
			pair_close(&p);
		}
	}
}

struct racer {
	int fd;
	bool stop;
};

static void *racing_poller(void *arg)
{
	struct racer *r = arg;

	while (!__atomic_load_n(&r->stop, __ATOMIC_SEQ_CST)) {
		struct pollfd p = { .fd = r->fd, .events = POLLIN | POLLOUT };
		struct sockaddr_storage ss;
		socklen_t len = sizeof(ss);
		int v = 0;

		poll(&p, 1, 1);
		getsockname(r->fd, (struct sockaddr *)&ss, &len);
		setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &v, sizeof(v));
		ioctl(r->fd, SIOCINQ, &v);
	}
	return NULL;
}

static void calls_during_connect_and_close_survive(void)
{
	for_few(f) {
		for (int i = 0; i < 10; i++) {
			struct sockaddr_storage ss;
			int l = listen_at(f, 0, &ss);
			struct racer r = { .fd = sock_at(CLIENT, f->client, 0) };
			socklen_t len = target(f, addr_port(&ss), &ss);
			pthread_t t;

			CHECK(!pthread_create(&t, NULL, racing_poller, &r));
			CHECK_OK(connect(r.fd, (struct sockaddr *)&ss, len));

			int s = CHECK_OK(accept(l, NULL, NULL));

			close(s);
			shutdown(r.fd, SHUT_RDWR);
			close(r.fd);
			__atomic_store_n(&r.stop, true, __ATOMIC_SEQ_CST);
			pthread_join(t, NULL);
			close(l);
		}
	}
}


static const struct test_case cases[] = {
	CASE(nonblocking_connect_reports_progress),
	CASE(refused_connect_is_reported),
	CASE(closed_listener_refuses_at_once),
	CASE(poller_is_woken_across_connect),
	CASE(epoll_level_triggered_life_seen),
	CASE(epoll_edge_triggered_life_seen),
	CASE(epoll_edge_of_writability_comes),
	CASE(full_socket_times_out_and_goes_on),
	CASE(receive_timeout_and_signal_end_wait),
	CASE(connect_wait_ends_by_timeout_or_signal),
	CASE(async_signal_is_sent),
	CASE(calls_during_connect_and_close_survive),
};

const struct suite suite_waiting = {
	.name = "waiting", .cases = cases, .count = ARRAY_SIZE(cases),
};
