// SPDX-License-Identifier: GPL-2.0
/* Wrappers for rust/kapi/net/. */
