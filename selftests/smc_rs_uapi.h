/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What smc_rs.ko tells an application about one socket:
 * getsockopt(fd, SOL_SMC, SMC_RS_INFO, &info, &len).
 *
 * The kernel copies as many bytes as fit and sets len to that number, so that
 * a later version may append fields.  All numbers are in host byte order, and
 * zero stands for "not known" or "does not apply".
 */
#ifndef SMC_RS_UAPI_H
#define SMC_RS_UAPI_H

#include <linux/types.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif
#ifndef SOL_SMC
#define SOL_SMC 286
#endif
#ifndef IPPROTO_SMC
#define IPPROTO_SMC 256
#endif
#ifndef SMC_LIMIT_HS
#define SMC_LIMIT_HS 1
#endif

#define SMC_RS_INFO 0x100
#define SMC_RS_INFO_VERSION 1

enum smc_rs_mode {
	SMC_RS_MODE_NONE = 0,	/* not connected, or still connecting */
	SMC_RS_MODE_SMCR = 1,	/* the data goes by RDMA */
	SMC_RS_MODE_TCP = 2,	/* the connection fell back to TCP */
};

struct smc_rs_info {
	__u32 version;		/* SMC_RS_INFO_VERSION */
	__u32 mode;		/* enum smc_rs_mode */
	__u32 state;		/* numbers of smc_diag: 1 active, 2 initial ... */
	__u32 fallback_reason;	/* a decline code, if mode is TCP */
	__u32 peer_diagnosis;	/* the code in the peer's decline, if it sent one */
	__u32 smc_version;	/* negotiated version and release of SMC-R */
	__u32 smc_release;
	__u32 lgr_id;		/* link group */
	__u32 lgr_role;		/* 0 client, 1 server */
	__u32 lgr_conns;	/* connections in it at this moment */
	__u32 link_id;		/* link of that group */
	__u32 first_contact;	/* 1 if the group was made for this connection */
	__u32 token;		/* our alert token of the connection */
	__u32 sndbuf;		/* bytes of our send ring, */
	__u32 rmb;		/* of our receive ring, */
	__u32 peer_rmb;		/* and of the peer's receive ring */
	__u64 tx_bytes;		/* payload taken from the application by SMC-R */
	__u64 rx_bytes;		/* payload given to it */
	__u32 ib_port;
	__u32 reserved;
	char ib_name[64];	/* RDMA device, ends with NUL */
};

#endif /* SMC_RS_UAPI_H */
