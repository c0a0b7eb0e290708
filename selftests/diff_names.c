// SPDX-License-Identifier: GPL-2.0
/*
 * smc_diff: the words of the scripts.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>

#include "diff.h"

struct word {
	const char *name;
	unsigned int value;
};

static const struct word msg_flags[] = {
	{ "oob", MSG_OOB }, { "peek", MSG_PEEK }, { "dontroute", MSG_DONTROUTE },
	{ "ctrunc", MSG_CTRUNC }, { "trunc", MSG_TRUNC }, { "dontwait", MSG_DONTWAIT },
	{ "eor", MSG_EOR }, { "waitall", MSG_WAITALL }, { "confirm", MSG_CONFIRM },
	{ "errqueue", MSG_ERRQUEUE }, { "nosignal", MSG_NOSIGNAL }, { "more", MSG_MORE },
	{ "waitforone", MSG_WAITFORONE }, { "zerocopy", MSG_ZEROCOPY },
	{ "fastopen", MSG_FASTOPEN }, { "cmsg_cloexec", MSG_CMSG_CLOEXEC },
};

static const struct word levels[] = {
	{ "ip", IPPROTO_IP }, { "sock", SOL_SOCKET }, { "tcp", IPPROTO_TCP },
	{ "udp", IPPROTO_UDP }, { "ipv6", IPPROTO_IPV6 }, { "raw", IPPROTO_RAW },
	{ "tls", 282 }, { "mptcp", 284 }, { "smc", SOL_SMC },
};

static const struct word sock_options[] = {
	{ "DEBUG", SO_DEBUG }, { "REUSEADDR", SO_REUSEADDR }, { "TYPE", SO_TYPE },
	{ "ERROR", SO_ERROR }, { "DONTROUTE", SO_DONTROUTE }, { "BROADCAST", SO_BROADCAST },
	{ "SNDBUF", SO_SNDBUF }, { "RCVBUF", SO_RCVBUF }, { "KEEPALIVE", SO_KEEPALIVE },
	{ "OOBINLINE", SO_OOBINLINE }, { "PRIORITY", SO_PRIORITY }, { "LINGER", SO_LINGER },
	{ "REUSEPORT", SO_REUSEPORT }, { "RCVLOWAT", SO_RCVLOWAT },
	{ "RCVTIMEO", SO_RCVTIMEO }, { "SNDTIMEO", SO_SNDTIMEO },
	{ "ACCEPTCONN", SO_ACCEPTCONN }, { "BINDTODEVICE", SO_BINDTODEVICE },
	{ "TIMESTAMP", SO_TIMESTAMP }, { "MARK", SO_MARK }, { "PROTOCOL", SO_PROTOCOL },
	{ "DOMAIN", SO_DOMAIN }, { "PEEK_OFF", SO_PEEK_OFF }, { "ZEROCOPY", SO_ZEROCOPY },
	{ "BUSY_POLL", SO_BUSY_POLL }, { "MAX_PACING_RATE", SO_MAX_PACING_RATE },
	{ "INCOMING_CPU", SO_INCOMING_CPU }, { "BINDTOIFINDEX", SO_BINDTOIFINDEX },
	{ "TXREHASH", 74 }, { "TIMESTAMPING", SO_TIMESTAMPING },
};

static const struct word tcp_options[] = {
	{ "NODELAY", TCP_NODELAY }, { "MAXSEG", TCP_MAXSEG }, { "CORK", TCP_CORK },
	{ "KEEPIDLE", TCP_KEEPIDLE }, { "KEEPINTVL", TCP_KEEPINTVL }, { "KEEPCNT", TCP_KEEPCNT },
	{ "SYNCNT", TCP_SYNCNT }, { "LINGER2", TCP_LINGER2 },
	{ "DEFER_ACCEPT", TCP_DEFER_ACCEPT }, { "WINDOW_CLAMP", TCP_WINDOW_CLAMP },
	{ "INFO", TCP_INFO }, { "QUICKACK", TCP_QUICKACK }, { "CONGESTION", TCP_CONGESTION },
	{ "USER_TIMEOUT", TCP_USER_TIMEOUT }, { "FASTOPEN", TCP_FASTOPEN },
	{ "FASTOPEN_CONNECT", TCP_FASTOPEN_CONNECT }, { "ULP", TCP_ULP },
	{ "NOTSENT_LOWAT", TCP_NOTSENT_LOWAT }, { "SAVE_SYN", TCP_SAVE_SYN },
	{ "INQ", TCP_INQ },
};

static const struct word ip_options[] = {
	{ "TOS", IP_TOS }, { "TTL", IP_TTL }, { "MTU_DISCOVER", IP_MTU_DISCOVER },
	{ "FREEBIND", IP_FREEBIND }, { "TRANSPARENT", IP_TRANSPARENT },
	{ "RECVERR", IP_RECVERR }, { "PKTINFO", IP_PKTINFO }, { "MTU", IP_MTU },
	{ "BIND_ADDRESS_NO_PORT", IP_BIND_ADDRESS_NO_PORT },
};

static const struct word smc_options[] = {
	{ "LIMIT_HS", 1 },
};

static const struct word event_names[] = {
	{ "IN", POLLIN }, { "PRI", POLLPRI }, { "OUT", POLLOUT }, { "ERR", POLLERR },
	{ "HUP", POLLHUP }, { "NVAL", POLLNVAL }, { "RDHUP", POLLRDHUP },
	{ "RDNORM", POLLRDNORM }, { "RDBAND", POLLRDBAND }, { "WRNORM", POLLWRNORM },
	{ "WRBAND", POLLWRBAND }, { "MSG", POLLMSG },
	{ "ET", EPOLLET }, { "ONESHOT", EPOLLONESHOT }, { "EXCLUSIVE", EPOLLEXCLUSIVE },
};

void bad_script(const char *what, const char *word)
{
	fprintf(stderr, "smc_diff: %s: %s\n", what, word);
	_exit(3);
}

static bool find(const struct word *words, size_t count, const char *name, unsigned int *value)
{
	for (size_t i = 0; i < count; i++) {
		if (!strcmp(words[i].name, name)) {
			*value = words[i].value;
			return true;
		}
	}

	char *end;

	*value = strtoul(name, &end, 0);
	return end != name && !*end;
}

unsigned int flags_of(char **arg, int n)
{
	unsigned int flags = 0, one;

	for (int i = 0; i < n; i++) {
		if (!find(msg_flags, ARRAY_SIZE(msg_flags), arg[i], &one))
			bad_script("no such flag", arg[i]);
		flags |= one;
	}
	return flags;
}

unsigned int events_of(char **arg, int n)
{
	unsigned int events = 0, one;

	for (int i = 0; i < n; i++) {
		if (!find(event_names, ARRAY_SIZE(event_names), arg[i], &one))
			bad_script("no such event", arg[i]);
		events |= one;
	}
	return events;
}

int level_of(const char *name)
{
	unsigned int level;

	if (!find(levels, ARRAY_SIZE(levels), name, &level))
		bad_script("no such level", name);
	return level;
}

int option_of(int level, const char *name)
{
	unsigned int value;
	bool ok;

	switch (level) {
	case SOL_SOCKET:
		ok = find(sock_options, ARRAY_SIZE(sock_options), name, &value);
		break;
	case IPPROTO_TCP:
		ok = find(tcp_options, ARRAY_SIZE(tcp_options), name, &value);
		break;
	case IPPROTO_IP:
		ok = find(ip_options, ARRAY_SIZE(ip_options), name, &value);
		break;
	default:
		ok = find(smc_options, ARRAY_SIZE(smc_options), name, &value);
		break;
	}
	if (!ok)
		bad_script("no such option", name);
	return value;
}

bool option_is_volatile(int level, int name)
{
	if (level == SOL_SOCKET)
		return name == SO_INCOMING_CPU || name == SO_INCOMING_NAPI_ID ||
		       name == SO_COOKIE || name == SO_MEMINFO ||
		       name == SO_PEERNAME || name == 71 /* NETNS_COOKIE */;
	if (level == IPPROTO_TCP)
		return name == TCP_INFO || name == TCP_CC_INFO || name == TCP_TIMESTAMP ||
		       name == TCP_WINDOW_CLAMP || name == TCP_MAXSEG;
	return level == IPPROTO_IP && (name == IP_MTU || name == 52 /* IP_LOCAL_PORT_RANGE */);
}

const char *errno_name(int err)
{
	const char *name = strerrorname_np(err);

	return name ? name : err == 512 ? "ERESTARTSYS" : err == 524 ? "ENOTSUPP" :
	       err == 515 ? "ENOIOCTLCMD" : "unknown";
}

static void say_words(struct out *o, const struct word *words, size_t count, unsigned int bits,
		      unsigned int without)
{
	const char *between = "";

	bits &= ~without;
	if (!bits)
		say(o, "-");
	for (size_t i = 0; i < count; i++) {
		if (bits & words[i].value) {
			say(o, "%s%s", between, words[i].name);
			bits &= ~words[i].value;
			between = "+";
		}
	}
	if (bits)
		say(o, "%s0x%x", between, bits);
}

void say_events(struct out *o, unsigned int events)
{
	say_words(o, event_names, ARRAY_SIZE(event_names), events, 0);
}

void say_msg_flags(struct out *o, unsigned int flags)
{
	say_words(o, msg_flags, ARRAY_SIZE(msg_flags), flags, 0);
}
