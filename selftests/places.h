/* SPDX-License-Identifier: GPL-2.0 */
/* Namespaces of a case's own, which may go. */
#ifndef SMC_TEST_PLACES_H
#define SMC_TEST_PLACES_H

#include <stdbool.h>

/* Where their addresses are, and those on the wire between them. */
#define PLACE_A "10.78.0.1"
#define PLACE_B "10.78.0.2"

/*
 * Two namespaces of these names, joined by interfaces veth0, with RDMA devices
 * of the same names if wanted.
 */
void namespaces_add(const char *a, const char *b, bool rdma);
void enter_place(const char *name);
/* For busywait(): the RDMA device of this name has gone. */
bool device_gone(void *name);

#endif
