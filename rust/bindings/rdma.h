/* SPDX-License-Identifier: GPL-2.0 */
/* Headers for rust/kapi/rdma/ and rust/kapi/pages.rs. */
#include <rdma/ib_verbs.h>
