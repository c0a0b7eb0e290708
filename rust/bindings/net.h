/* SPDX-License-Identifier: GPL-2.0 */
/* Headers for rust/kapi/net/. */
#include <linux/file.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ipv6.h>
#include <linux/net.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6.h>
#include <linux/percpu.h>
#include <linux/poll.h>
#include <linux/ratelimit.h>
#include <linux/sched/signal.h>
#include <linux/socket.h>
#include <linux/splice.h>
#include <linux/sysctl.h>
#include <linux/tcp.h>
#include <linux/wait.h>
#include <net/inet_common.h>
#include <net/ip.h>
#include <net/inet_connection_sock.h>
#include <net/ipv6.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>
#include <net/protocol.h>
#include <net/sock.h>
#include <net/tcp.h>
#include <net/transp_v6.h>
#include <net/xfrm.h>

static const __u32 SMC_CONST_EPOLLIN = (__force __u32)EPOLLIN;
static const __u32 SMC_CONST_EPOLLPRI = (__force __u32)EPOLLPRI;
static const __u32 SMC_CONST_EPOLLOUT = (__force __u32)EPOLLOUT;
static const __u32 SMC_CONST_EPOLLERR = (__force __u32)EPOLLERR;
static const __u32 SMC_CONST_EPOLLHUP = (__force __u32)EPOLLHUP;
static const __u32 SMC_CONST_EPOLLRDHUP = (__force __u32)EPOLLRDHUP;
static const __u32 SMC_CONST_EPOLLRDNORM = (__force __u32)EPOLLRDNORM;
static const __u32 SMC_CONST_EPOLLWRNORM = (__force __u32)EPOLLWRNORM;
static const long SMC_CONST_MAX_SCHEDULE_TIMEOUT = MAX_SCHEDULE_TIMEOUT;
