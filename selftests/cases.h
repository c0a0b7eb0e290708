/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Harness of smc_cases: a suite is a table of cases, each of which runs in a
 * process of its own with a time limit.
 */
#ifndef SMC_TEST_CASES_H
#define SMC_TEST_CASES_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>

#include "util.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

struct test_case {
	const char *name;	/* area_condition_result */
	void (*run)(void);
	unsigned int limit_s;	/* 0: the default */
	unsigned int flags;
};

#define CASE(fn) { .name = #fn, .run = fn }
#define CASE_LIMIT(fn, s) { .name = #fn, .run = fn, .limit_s = (s) }

struct suite {
	const char *name;
	const struct test_case *cases;
	size_t count;
	bool (*prepare)(void);	/* before the first case; false: skip them all */
	void (*mend)(void);	/* in each case first: what a failed one may have left undone */
};

extern const struct suite suite_load;
extern const struct suite suite_socket;
extern const struct suite suite_fallback;
extern const struct suite suite_waiting;
extern const struct suite suite_reason;
extern const struct suite suite_transfer;
extern const struct suite suite_goaway;
extern const struct suite suite_crowd;
extern const struct suite suite_faults;
extern const struct suite suite_links;
extern const struct suite suite_groups;
extern const struct suite suite_isolated;
extern const struct suite suite_tuning;
extern const struct suite suite_storm;

/* End the case that calls them. */
void case_fail(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), noreturn));
void case_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* A line for the reader. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Why prepare() says that the suite cannot run. */
void suite_skip_reason(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Text that stands before every complaint of this thread: the row of a table. */
void row(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define FAIL(...) case_fail(__FILE__, __LINE__, __VA_ARGS__)
#define SKIP(...) case_skip(__VA_ARGS__)
#define CHECK(cond)								\
	do {									\
		if (!(cond))							\
			FAIL("%s (errno %d, %s)", #cond, errno, strerror(errno));\
	} while (0)
#define CHECK_EQ(a, b)								\
	do {									\
		long long a_ = (long long)(a), b_ = (long long)(b);		\
		if (a_ != b_)							\
			FAIL("%s is %lld, expected %lld (%s)", #a, a_, b_, #b);	\
	} while (0)
/* The expression must return -1 with this errno. */
#define CHECK_ERRNO(expr, want)							\
	do {									\
		errno = 0;							\
		long long r_ = (long long)(expr);				\
		int e_ = errno;							\
		if (r_ != -1 || e_ != (want))					\
			FAIL("%s: got %lld (%s), expected %s", #expr, r_,	\
			     r_ == -1 ? strerrorname_np(e_) : "no error",	\
			     strerrorname_np(want));				\
	} while (0)
/* The expression must not return -1. */
#define CHECK_OK(expr)								\
	({									\
		errno = 0;							\
		long long r_ = (long long)(expr);				\
		if (r_ == -1)							\
			FAIL("%s: %s", #expr, strerrorname_np(errno));		\
		r_;								\
	})

/* Two places for sockets. With no namespaces given both are where we stand. */
enum side { CLIENT, SERVER };
#define BOTH_SIDES (1u << CLIENT | 1u << SERVER)

#define SERVER_V4 "10.77.0.2"
#define CLIENT_V4 "10.77.0.1"
#define SERVER_V6 "fd77::2"
#define CLIENT_V6 "fd77::1"
#define SERVER_NEAR "fe80::77:2%veth0"

bool have_namespaces(void);
/* The name of a side's namespace, NULL if none was given. */
const char *ns_of(enum side side);
void enter(enum side side);
int sock_at(enum side side, enum kind_id kind, int flags);

/* How the two ends of a connection are made. */
struct flavour {
	const char *name;
	enum kind_id client, server;
	const char *to;		/* address the client connects to */
	const char *bind;	/* address the server binds to, NULL: any */
};

int listen_at(const struct flavour *f, int flags, struct sockaddr_storage *where);
/* The listener's address as the client must spell it. */
socklen_t target(const struct flavour *f, unsigned int port,
		 struct sockaddr_storage *ss);

struct pair {
	int l, c, s;		/* listener, client's end, server's end */
	unsigned int port;
};

/* A connected pair; all three are blocking sockets. */
struct pair pair_make(const struct flavour *f);
struct pair pair_make_bufs(const struct flavour *f, int sndbuf, int rcvbuf);
void pair_close(struct pair *p);

/* One end of a connection with work to do. */
struct flow {
	int fd;
	uint64_t to_send, sent, send_seed;
	uint64_t to_recv, received, recv_seed;
	size_t chunk;		/* most bytes of one call, 0: 64 KiB */
	bool shut;		/* SHUT_WR after the last byte */
	bool want_eof;		/* read on until the end of the stream */
	bool shut_done, eof;
};

/* How many times slower than usual the machine is: waits take that much longer. */
unsigned int slowness(void);

/* Moves everything by poll() and MSG_DONTWAIT; FAILs when it takes too long. */
void pump(struct flow *flows, size_t count, unsigned int limit_ms);
/* The same by edge-triggered epoll. */
void pump_et(struct flow *flows, size_t count, unsigned int limit_ms);
/* The same with blocking calls, two threads for each. */
void pump_blocking(struct flow *flows, size_t count);
/* n bytes both ways through a pair, checked. */
void exchange(struct pair *p, uint64_t to_server, uint64_t to_client);

/* revents of one descriptor within ms milliseconds. */
short poll_one(int fd, short events, int ms);
/* Waits until poll says at least one of these events. */
void wait_events(int fd, short events, int ms);
int so_error(int fd);
void send_all(int fd, const void *buf, size_t len);
void recv_all(int fd, void *buf, size_t len);
/* Fails unless the stream ends here, within the socket's own patience. */
void expect_eof(int fd);
/* Catches the signal without SA_RESTART; counts into got_signal. */
extern volatile int got_signal;
void catch_signal(int sig);
/* Sends sig to the calling thread every ms milliseconds, until stopped. */
void alarm_start(int sig, unsigned int ms);
void alarm_stop(void);

/* Runs a shell command, its output indented into the log; its exit status. */
int sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* First number in a file, or -1. */
long long file_number(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
struct nlattr;

/* Netlink attributes: append one, returns the place for the next; find one. */
void *attr_put(void *at, int type, const void *data, size_t len);
const struct nlattr *attr_find(const void *at, size_t len, int type);
/* Polls until cond() or the time is over; true if it came. */
bool busywait(unsigned int ms, bool (*cond)(void *arg), void *arg);
/* The module; its file is named by SMC_KO. */
bool module_loaded(void);
long long module_refcount(void);
void need_module_file(void);
void module_load(void);
/* Zero or -1; never waits. */
int module_unload(void);
/* Sockets of a protocol, from /proc/net/protocols; -1 if there is no such one. */
long long proto_sockets(const char *name);

/*
 * Counters outside of the module: RDMA bytes from the devices, TCP bytes from
 * nftables in the server's namespace.
 */
struct counters {
	bool have_rdma, have_tcp;
	uint64_t rdma_c_sent, rdma_c_rcvd, rdma_s_sent, rdma_s_rcvd;
	uint64_t tcp_bytes;	/* both directions, with all headers */
	uint64_t syn_options;	/* SYN segments with the SMC option */
};

void counters_read(struct counters *c);
/* A counter of the RDMA device of a side, -1 without one. */
long long dev_counter(enum side side, const char *what);
bool have_rdma_devices(void);
/*
 * Worse wires, the first one or both, by netem at the interfaces of some sides
 * (bits): put there, set, taken away.
 * rxe gives a queue pair up when the interface refuses one packet, as it does
 * while one queueing discipline takes the place of another. So it is put there
 * and taken away when nothing is on the way, and only set in between.
 */
void wires_begin(unsigned int sides, int wires);
void wires_set(unsigned int sides, int wires, const char *how);
void wires_end(unsigned int sides, int wires);
/* Takes away what a failed case has left, at both sides. */
void wires_mend(int wires);

/*
 * Around a test: afterwards RDMA must have carried at least these payloads,
 * and TCP less than 4 KiB for each of the connections.
 */
void expect_smcr_begin(void);
void expect_smcr_end(uint64_t to_server, uint64_t to_client, unsigned int conns);
void expect_tcp_end(uint64_t to_server, uint64_t to_client);
/* The tests are being tested with TCP sockets: no counters, no modes. */
bool as_tcp(void);
/* What the kernel says about this end, if it says anything. */
void check_mode(int fd, unsigned int mode);

#endif /* SMC_TEST_CASES_H */
