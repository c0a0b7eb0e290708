/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the files of smc_diff that hold its operations.
 */
#ifndef SMC_TEST_DIFF_OPS_H
#define SMC_TEST_DIFF_OPS_H

#include "diff.h"

/* Operations that move bytes. */
extern const struct op data_ops[];
extern const size_t data_ops_count;

/* A line about what became of a connection, which is not compared. */
void tell_mode(int fd);

#endif /* SMC_TEST_DIFF_OPS_H */
