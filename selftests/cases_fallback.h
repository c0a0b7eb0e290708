/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the suites of connections that fall back: the ways to make one, and
 * what its SMC ends must say.
 */
#ifndef SMC_TEST_CASES_FALLBACK_H
#define SMC_TEST_CASES_FALLBACK_H

#include "cases.h"

#define FLAVOURS 14
#define SMC_TO_SMC_V6 5

extern const struct flavour flavours[FLAVOURS];

/* A few of them, for what does not depend on the address family. */
#define FEW 3

#define for_flavours(f, n)							\
	for (const struct flavour *f = flavours;				\
	     f < flavours + (n) && (row("%s", f->name), 1); f++)
#define for_all(f) for_flavours(f, FLAVOURS)
#define for_few(f) for_flavours(f, FEW)

/* The mode and the reason of one end. */
void check_fallback(const struct flavour *f, int fd, bool client);
/* Begins to connect, without waiting; what connect() says. */
int connect_nb(int c, struct sockaddr_storage *ss, socklen_t len);

#endif /* SMC_TEST_CASES_FALLBACK_H */
