// SPDX-License-Identifier: GPL-2.0
/* Wrappers for rust/kapi/trace.rs, and the one place that defines tracepoints. */

/* bindgen reads the wrappers alone. */
#ifndef __BINDGEN__
#define CREATE_TRACE_POINTS
#endif
#include "smc_trace.h"

void smc_helper_trace_fallback(const struct sock *sk, const struct sock *clcsk,
			       u32 reason)
{
	trace_smc_switch_to_fallback(sk, clcsk, sock_net(sk)->net_cookie,
				     (int)reason);
}

bool smc_helper_trace_tx_enabled(void)
{
	return trace_smc_tx_sendmsg_enabled();
}

void smc_helper_trace_tx(const struct sock *sk, size_t len, const char *dev)
{
	trace_smc_tx_sendmsg(sk, sock_net(sk)->net_cookie, len, dev);
}

bool smc_helper_trace_rx_enabled(void)
{
	return trace_smc_rx_recvmsg_enabled();
}

void smc_helper_trace_rx(const struct sock *sk, size_t len, const char *dev)
{
	trace_smc_rx_recvmsg(sk, sock_net(sk)->net_cookie, len, dev);
}

void smc_helper_trace_link_down(const void *link, const void *group,
				u64 net_cookie, u32 state, const char *dev)
{
	trace_smcr_link_down(link, group, net_cookie, (int)state, dev,
			     (void *)_RET_IP_);
}

void smc_helper_trace_conn_state(const void *conn, u64 net_cookie, u32 token,
				 u8 oldstate, u8 newstate)
{
	trace_smc_conn_state(conn, net_cookie, token, oldstate, newstate);
}
