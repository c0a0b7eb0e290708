/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tracepoints. Those that the C implementation has too have its names and
 * fields; the two are never loaded together.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM smc
/* The file's name, for the kernel's headers that read it again. */
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE smc_trace

#if !defined(_TRACE_SMC_RS_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_SMC_RS_H

#include <linux/tracepoint.h>

/* A connection goes on by TCP: sk is our socket, clcsk the one of TCP. */
TRACE_EVENT(smc_switch_to_fallback,
	TP_PROTO(const void *sk, const void *clcsk, u64 net_cookie,
		 int fallback_rsn),
	TP_ARGS(sk, clcsk, net_cookie, fallback_rsn),
	TP_STRUCT__entry(
		__field(const void *, sk)
		__field(const void *, clcsk)
		__field(u64, net_cookie)
		__field(int, fallback_rsn)
	),
	TP_fast_assign(
		__entry->sk = sk;
		__entry->clcsk = clcsk;
		__entry->net_cookie = net_cookie;
		__entry->fallback_rsn = fallback_rsn;
	),
	TP_printk("sk=%p clcsk=%p net=%llu fallback_rsn=%d",
		  __entry->sk, __entry->clcsk, __entry->net_cookie,
		  __entry->fallback_rsn)
);

/* A call moved len bytes by RDMA. */
DECLARE_EVENT_CLASS(smc_msg_event,
	TP_PROTO(const void *smc, u64 net_cookie, size_t len, const char *dev),
	TP_ARGS(smc, net_cookie, len, dev),
	TP_STRUCT__entry(
		__field(const void *, smc)
		__field(u64, net_cookie)
		__field(size_t, len)
		__string(name, dev)
	),
	TP_fast_assign(
		__entry->smc = smc;
		__entry->net_cookie = net_cookie;
		__entry->len = len;
		__assign_str(name);
	),
	TP_printk("smc=%p net=%llu len=%zu dev=%s", __entry->smc,
		  __entry->net_cookie, __entry->len, __get_str(name))
);

DEFINE_EVENT(smc_msg_event, smc_tx_sendmsg,
	TP_PROTO(const void *smc, u64 net_cookie, size_t len, const char *dev),
	TP_ARGS(smc, net_cookie, len, dev)
);

DEFINE_EVENT(smc_msg_event, smc_rx_recvmsg,
	TP_PROTO(const void *smc, u64 net_cookie, size_t len, const char *dev),
	TP_ARGS(smc, net_cookie, len, dev)
);

/* A link ends. */
TRACE_EVENT(smcr_link_down,
	TP_PROTO(const void *lnk, const void *lgr, u64 net_cookie, int state,
		 const char *dev, void *location),
	TP_ARGS(lnk, lgr, net_cookie, state, dev, location),
	TP_STRUCT__entry(
		__field(const void *, lnk)
		__field(const void *, lgr)
		__field(u64, net_cookie)
		__field(int, state)
		__string(name, dev)
		__field(void *, location)
	),
	TP_fast_assign(
		__entry->lnk = lnk;
		__entry->lgr = lgr;
		__entry->net_cookie = net_cookie;
		__entry->state = state;
		__assign_str(name);
		__entry->location = location;
	),
	TP_printk("lnk=%p lgr=%p net=%llu state=%d dev=%s location=%pS",
		  __entry->lnk, __entry->lgr, __entry->net_cookie,
		  __entry->state, __get_str(name), __entry->location)
);

/* The close state of a connection by RDMA changes; not in the C implementation. */
TRACE_EVENT(smc_conn_state,
	TP_PROTO(const void *conn, u64 net_cookie, u32 token, u8 oldstate,
		 u8 newstate),
	TP_ARGS(conn, net_cookie, token, oldstate, newstate),
	TP_STRUCT__entry(
		__field(const void *, conn)
		__field(u64, net_cookie)
		__field(u32, token)
		__field(u8, oldstate)
		__field(u8, newstate)
	),
	TP_fast_assign(
		__entry->conn = conn;
		__entry->net_cookie = net_cookie;
		__entry->token = token;
		__entry->oldstate = oldstate;
		__entry->newstate = newstate;
	),
	TP_printk("conn=%p net=%llu token=%u oldstate=%u newstate=%u",
		  __entry->conn, __entry->net_cookie, __entry->token,
		  __entry->oldstate, __entry->newstate)
);

#endif /* _TRACE_SMC_RS_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .

#include <trace/define_trace.h>
