/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the test programs: kinds of sockets, test data that can be checked
 * at any offset, and what the kernel says about a connection.
 */
#ifndef SMC_TEST_UTIL_H
#define SMC_TEST_UTIL_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "smc_rs_uapi.h"

/* The ways to ask for a stream socket. */
enum kind_id { SMC4, SMC6, INETSMC4, INETSMC6, TCP4, TCP6, KINDS };

struct kind {
	const char *name;
	int domain;
	int protocol;
	int family;		/* AF_INET or AF_INET6: of its addresses */
	bool smc;
};

extern const struct kind kinds[KINDS];

int kind_socket(enum kind_id kind, int flags);

/* Fills an address from text; an IPv6 text may be a v4-mapped one. */
socklen_t addr_make(struct sockaddr_storage *ss, int family, const char *text,
		    unsigned int port);
unsigned int addr_port(const struct sockaddr_storage *ss);
const char *addr_text(const struct sockaddr_storage *ss);

/* Zero or a negative errno. */
int smc_info(int fd, struct smc_rs_info *info);
const char *mode_name(unsigned int mode);
const char *reason_name(uint32_t code);

/*
 * Test data: every byte follows from the seed and its offset in the stream,
 * so that lost, doubled or moved bytes are found at once.
 */
void pattern_fill(void *buf, size_t len, uint64_t seed, uint64_t offset);
/* Length of the part that is right: len if all is. */
size_t pattern_check(const void *buf, size_t len, uint64_t seed, uint64_t offset);

void set_nonblock(int fd, bool on);
uint64_t now_us(void);

struct sha256 {
	uint32_t h[8];
	uint64_t len;
	unsigned char block[64];
};

void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *data, size_t len);
void sha256_final(struct sha256 *s, char hex[65]);

#endif /* SMC_TEST_UTIL_H */
