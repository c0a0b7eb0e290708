/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the files of smc_diff, which runs steps of socket calls on both
 * ends of a connection and says what each call returned. See diff.c.
 */
#ifndef SMC_TEST_DIFF_H
#define SMC_TEST_DIFF_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* What a step says. */
struct out {
	char text[1800];
	size_t len;
};

void say(struct out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "5", or "-1 EAGAIN". */
void say_result(struct out *o, long long ret);
/* Bytes: as text when they are few, else by a checksum. */
void say_bytes(struct out *o, const unsigned char *buf, size_t len);
/* An address, without what differs from run to run. */
void say_addr(struct out *o, const struct sockaddr_storage *ss, socklen_t len);

/* A step that runs in a thread of its own. */
struct job {
	pthread_t thread;
	atomic_int tid;
	atomic_bool running;	/* in its call, or about to be */
	bool started;
	char line[400];
	struct out out;
};

/* A descriptor of the script, named by a letter. */
struct end {
	char name;
	int fd;
	bool server;			/* in which place it was made */
	uint64_t tx;			/* bytes that its calls sent */
	struct sockaddr_storage addr;	/* of a listener, as others reach it */
	socklen_t addr_len;
	int epoll;			/* epoll instance it is in, -1: none */
	int pipe[2];
	pid_t child;			/* holds a copy of the descriptor */
	struct job job;
};

struct end *end_named(char name);
/* How the ends of this run are made. */
struct diff_flavour {
	const char *name;
	enum kind_id client, server;
	bool near;		/* by the loopback device, which no RDMA device belongs to */
	int mode;		/* what the module has to say of its ends */
};

/* For how long nothing must change before it counts as settled. */
extern unsigned int quiet_ms;
extern const struct diff_flavour *flavour;

void stand_at(bool server);
int make_socket(struct end *e, int flags);
const char *server_text(void);

/* One step: what it is called and what it does. */
struct op {
	const char *name;
	void (*run)(struct end *e, char **arg, int n, struct out *o);
	bool quiet;		/* changes nothing that the other side could see */
};

const struct op *op_find(const char *name);
void run_step(char *line, struct out *o);

/* Names of flags, levels and options; all exit on a name that is not known. */
unsigned int flags_of(char **arg, int n);
int level_of(const char *name);
int option_of(int level, const char *name);
/* What an option says is different from run to run. */
bool option_is_volatile(int level, int name);
const char *errno_name(int err);
void say_events(struct out *o, unsigned int events);
unsigned int events_of(char **arg, int n);
void say_msg_flags(struct out *o, unsigned int flags);
void bad_script(const char *what, const char *word) __attribute__((noreturn));

/* Contents of the stream that an end sends. */
void stream_fill(const struct end *e, unsigned char *buf, size_t len);

#endif /* SMC_TEST_DIFF_H */
