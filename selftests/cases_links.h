/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the suites about link groups share: two namespaces with two RDMA devices
 * each, what is there of queue pairs, and how links get lost.
 */
#ifndef SMC_CASES_LINKS_H
#define SMC_CASES_LINKS_H

#include <pthread.h>

#include "cases.h"

/* How long the second link may take to come, in milliseconds. */
#define SECOND_MS 15000

extern const struct flavour links_v4;

/* The devices: both of the client, both of the server. */
const char *device(enum side side, int which);
/* What a command prints first, as a number; -1 if it prints none. */
long long number_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * Queue pairs of the module to a peer, on each of the devices: those that can
 * send, but for the one of each link that registers keys and never sends.
 */
struct qps {
	unsigned int of[2][2];
};

struct qps qps(void);
/* Objects of the module that the RDMA core lists: "qp", "cq", "mr" or "pd". */
long long objects(const char *what);
/* Queue pairs of that kind on a device; the number of the last one, if wanted. */
unsigned int qps_on(const char *name, unsigned int *number);
bool has_qps(void *arg);

/* A device has gone, in this way, and that must not have taken long. */
void device_went(enum side side, int which, const char *how, uint64_t start);
void device_delete(enum side side, int which);
void device_add(enum side side, int which);
void netdev(enum side side, int which, const char *state);
/* All devices are there and up, whatever a case before has left. */
void restore(void);
bool links_prepare(void);

/* Each device has one queue pair: there is one group, and it has two links. */
void expect_both_links(void);
/* Ends the groups of cases before, as far as connections allow; whether "gone" says so before long. */
bool drain_groups(bool (*gone)(void *arg), void *arg);
void end_groups(void);
struct smc_rs_info info_of(int fd);
/* The device that carries a connection on its side: 0 or 1. */
int carried_by(int fd, enum side side);
/* Both ends of a connection take this link before long. */
void expect_carried_by(struct pair *p, int which);
/* A connection of a group with both links. */
struct pair linked_pair(void);

/* What comes to a side's interface and matches is lost; all, if nothing is named. */
void lose_packets(enum side side, int which, const char *match);
void lose_no_packets(void);

void setting(enum side side, const char *name, unsigned int value);
void settings(const char *name, unsigned int value);	/* at both sides */
/* What a failed case may have left, which the next one does not expect. */
void groups_mend(void);
/* Each side has its first device alone. */
void one_wire(void);
/* A request that tells a key, in the only packet of a SEND: behind UDP and the header of RDMA. */
#define CONFIRM_RKEY "udp dport 4791 @th,160,8 0x26 @th,184,8 & 0x80 == 0"
/* How many messages have come to the server that match, since it was asked to count. */
void count_packets(const char *match);
unsigned int counted(void);
void count_no_packets(void);

/* Where chance begins: SMC_SEED, or the time; it is noted. */
uint64_t seed(void);
uint32_t dice(uint64_t *rng, uint32_t sides);

/* What a round of a transfer carries each way, in bytes. */
#define MUCH (1u << 20)

/*
 * A transfer both ways that goes on, round after round, while something happens.
 * At least one round begins after its end was asked for.
 */
struct transfer {
	struct flow flows[2];
	uint64_t round[2];	/* bytes to the server and to the client */
	pthread_t thread;
	uint64_t longest_us;	/* longest time in which nothing arrived */
	volatile bool ending, done;
};

/* The bytes are those of one round. */
void transfer_start(struct transfer *t, struct pair *p, uint64_t to_server, uint64_t to_client);
/* Waits until so many more bytes have arrived, and notes the longest pause. */
void transfer_wait(struct transfer *t, uint64_t more);
/* Waits until the last round is over. */
void transfer_end(struct transfer *t);

/* How a device is lost and comes back; what holds meanwhile, if that is to be checked; and that both links are there. */
struct losing {
	void (*lose)(enum side side, int which), (*back)(enum side side, int which);
	void (*meanwhile)(void), (*both)(void);
};

/* The device under a transfer goes; then it comes back, and the other one goes. Closes the pair. */
void lose_each_device(struct pair *p, enum side side, const struct losing *by);

#endif
