// SPDX-License-Identifier: GPL-2.0
/*
 * smc_peer: what an interop test asks of the C implementation by netlink: user
 * EIDs, link groups, sockets, statistics.  See usage().
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/smc.h>
#include <linux/smc_diag.h>
#include <linux/sock_diag.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

/* The kernel's name for the top attribute of the EID table. */
#define EID_ENTRY 1

static const char *program;

static void die(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "%s: ", program);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

static void usage(FILE *to)
{
	fprintf(to,
		"usage: %s ueid add|del NAME   add or remove a user EID\n"
		"       %s ueid list|flush     show or remove all of them\n"
		"       %s lgrs                link groups: id role type conns version release\n"
		"                               max_conns max_links eid\n"
		"       %s socks               SMC sockets: state mode reason diagnosis ports\n"
		"       %s stats               statistics of SMC-R and of fallbacks\n",
		program, program, program, program, program);
}

/* Attributes */

struct message {
	struct nlmsghdr head;
	struct genlmsghdr gen;
	char room[1000];
};

static void put(struct message *m, unsigned int type, const void *data, size_t len)
{
	struct nlattr *a = (struct nlattr *)((char *)m + NLMSG_ALIGN(m->head.nlmsg_len));

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + len;
	memcpy((char *)a + NLA_HDRLEN, data, len);
	m->head.nlmsg_len = NLMSG_ALIGN(m->head.nlmsg_len) + NLA_ALIGN(a->nla_len);
}

static const struct nlattr *find(const void *data, size_t len, unsigned int type)
{
	const char *p = data;

	while (len >= NLA_HDRLEN) {
		const struct nlattr *a = (const void *)p;

		if (a->nla_len < NLA_HDRLEN || a->nla_len > len)
			break;
		if ((a->nla_type & NLA_TYPE_MASK) == type)
			return a;
		if ((size_t)NLA_ALIGN(a->nla_len) > len)
			break;
		len -= NLA_ALIGN(a->nla_len);
		p += NLA_ALIGN(a->nla_len);
	}
	return NULL;
}

static const struct nlattr *inner(const struct nlattr *nest, unsigned int type)
{
	if (!nest)
		return NULL;
	return find((const char *)nest + NLA_HDRLEN, nest->nla_len - NLA_HDRLEN, type);
}

static unsigned long long number(const struct nlattr *a)
{
	unsigned long long v = 0;
	size_t n;

	if (!a)
		return 0;
	n = a->nla_len - NLA_HDRLEN;
	memcpy(&v, (const char *)a + NLA_HDRLEN, n < sizeof(v) ? n : sizeof(v));
	return v;
}

static const char *text(const struct nlattr *a)
{
	static char copy[128];
	size_t n;

	if (!a)
		return "-";
	n = a->nla_len - NLA_HDRLEN;
	if (n >= sizeof(copy))
		n = sizeof(copy) - 1;
	memcpy(copy, (const char *)a + NLA_HDRLEN, n);
	copy[n] = 0;
	/* Blanks on the right are padding. */
	for (n = strlen(copy); n && copy[n - 1] == ' '; n--)
		copy[n - 1] = 0;
	return *copy ? copy : "-";
}

/* Requests */

static int open_netlink(int protocol)
{
	int fd = socket(AF_NETLINK, SOCK_RAW, protocol);

	if (fd < 0)
		die("netlink socket: %s", strerror(errno));
	return fd;
}

/* Sends a request; calls each() for every answer until the last one. */
static int ask(int fd, const void *request, size_t len, bool dump,
	       void (*each)(const struct nlmsghdr *h))
{
	static char room[65536];

	if (send(fd, request, len, 0) < 0)
		die("netlink send: %s", strerror(errno));
	for (;;) {
		ssize_t n = recv(fd, room, sizeof(room), 0);
		struct nlmsghdr *h = (void *)room;

		if (n < 0)
			die("netlink receive: %s", strerror(errno));
		for (; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_type == NLMSG_ERROR)
				return ((struct nlmsgerr *)NLMSG_DATA(h))->error;
			if (h->nlmsg_type == NLMSG_DONE)
				return 0;
			if (each)
				each(h);
			if (!dump && !(h->nlmsg_flags & NLM_F_MULTI))
				return 0;
		}
	}
}

static int family_id;

static const struct nlattr *top(const struct nlmsghdr *h, unsigned int type)
{
	return find((const char *)NLMSG_DATA(h) + GENL_HDRLEN,
		    h->nlmsg_len - NLMSG_HDRLEN - GENL_HDRLEN, type);
}

static void take_family(const struct nlmsghdr *h)
{
	family_id = number(top(h, CTRL_ATTR_FAMILY_ID));
}

static struct message message(int type, unsigned int command, unsigned int flags)
{
	struct message m = {
		.head = {
			.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN),
			.nlmsg_type = type,
			.nlmsg_flags = NLM_F_REQUEST | flags,
		},
		.gen = { .cmd = command, .version = 1 },
	};

	return m;
}

static int open_family(void)
{
	int fd = open_netlink(NETLINK_GENERIC);
	struct message m = message(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0);

	put(&m, CTRL_ATTR_FAMILY_NAME, SMC_GENL_FAMILY_NAME, sizeof(SMC_GENL_FAMILY_NAME));
	if (ask(fd, &m, m.head.nlmsg_len, false, take_family) || !family_id)
		die("there is no netlink family " SMC_GENL_FAMILY_NAME);
	return fd;
}

static void dump(unsigned int command, void (*each)(const struct nlmsghdr *h))
{
	int fd = open_family(), error;
	struct message m = message(family_id, command, NLM_F_DUMP);

	error = ask(fd, &m, m.head.nlmsg_len, true, each);
	if (error)
		die("command %u: %s", command, strerror(-error));
	close(fd);
}

/* Commands */

static void show_eid(const struct nlmsghdr *h)
{
	const struct nlattr *a = top(h, EID_ENTRY);

	if (a)
		printf("%s\n", text(a));
}

static void ueid(const char *what, const char *name)
{
	unsigned int command = SMC_NETLINK_FLUSH_UEID;
	struct message m;
	int fd, error;

	if (!strcmp(what, "list")) {
		dump(SMC_NETLINK_DUMP_UEID, show_eid);
		return;
	}
	fd = open_family();
	if (!strcmp(what, "add"))
		command = SMC_NETLINK_ADD_UEID;
	else if (!strcmp(what, "del"))
		command = SMC_NETLINK_REMOVE_UEID;
	m = message(family_id, command, NLM_F_ACK);
	if (name) {
		char padded[SMC_MAX_EID_LEN + 1];

		if (strlen(name) > SMC_MAX_EID_LEN)
			die("%s is longer than %d characters", name, SMC_MAX_EID_LEN);
		snprintf(padded, sizeof(padded), "%-*s", SMC_MAX_EID_LEN, name);
		put(&m, EID_ENTRY, padded, sizeof(padded));
	}
	error = ask(fd, &m, m.head.nlmsg_len, true, NULL);
	if (error)
		die("ueid %s: %s", what, strerror(-error));
	close(fd);
}

static void show_lgr(const struct nlmsghdr *h)
{
	static const char * const types[] = { "none", "single", "symmetric", "asym-peer", "asym-local" };
	const struct nlattr *l = top(h, SMC_GEN_LGR_SMCR), *common, *v2;
	unsigned int type;

	if (!l)
		return;
	common = inner(l, SMC_NLA_LGR_R_V2_COMMON);
	v2 = inner(l, SMC_NLA_LGR_R_V2);
	type = number(inner(l, SMC_NLA_LGR_R_TYPE));
	printf("id=%llu role=%s type=%s conns=%llu version=%llu release=%llu max_conns=%llu max_links=%llu eid=%s",
	       number(inner(l, SMC_NLA_LGR_R_ID)),
	       number(inner(l, SMC_NLA_LGR_R_ROLE)) ? "server" : "client",
	       type < 5 ? types[type] : "?", number(inner(l, SMC_NLA_LGR_R_CONNS_NUM)),
	       number(inner(common, SMC_NLA_LGR_V2_VER)), number(inner(common, SMC_NLA_LGR_V2_REL)),
	       number(inner(v2, SMC_NLA_LGR_R_V2_MAX_CONNS)),
	       number(inner(v2, SMC_NLA_LGR_R_V2_MAX_LINKS)),
	       text(inner(common, SMC_NLA_LGR_V2_NEG_EID)));
	printf(" peer_host=%s\n", text(inner(common, SMC_NLA_LGR_V2_PEER_HOST)));
}

static void show_stats(const struct nlmsghdr *h)
{
	const struct nlattr *s = top(h, SMC_GEN_STATS), *r = inner(s, SMC_NLA_STATS_SMCR_TECH);

	if (!s)
		return;
	printf("smcr client_v2=%llu server_v2=%llu rx_bytes=%llu tx_bytes=%llu client_errors=%llu server_errors=%llu\n",
	       number(inner(r, SMC_NLA_STATS_T_CLNT_V2_SUCC)),
	       number(inner(r, SMC_NLA_STATS_T_SRV_V2_SUCC)),
	       number(inner(r, SMC_NLA_STATS_T_RX_BYTES)), number(inner(r, SMC_NLA_STATS_T_TX_BYTES)),
	       number(inner(s, SMC_NLA_STATS_CLNT_HS_ERR_CNT)),
	       number(inner(s, SMC_NLA_STATS_SRV_HS_ERR_CNT)));
}

static void show_fallback(const struct nlmsghdr *h)
{
	const struct nlattr *f = top(h, SMC_GEN_FBACK_STATS);

	if (f && number(inner(f, SMC_NLA_FBACK_STATS_RSN_CNT)))
		printf("fallback side=%s reason=0x%08llx count=%llu\n",
		       number(inner(f, SMC_NLA_FBACK_STATS_TYPE)) ? "server" : "client",
		       number(inner(f, SMC_NLA_FBACK_STATS_RSN_CODE)),
		       number(inner(f, SMC_NLA_FBACK_STATS_RSN_CNT)));
}

static const char *state_name(unsigned int state)
{
	switch (state) {
	case 1: return "ACTIVE";
	case 2: return "INIT";
	case 7: return "CLOSED";
	case 10: return "LISTEN";
	case 20: return "PEERCLOSEWAIT1";
	case 21: return "PEERCLOSEWAIT2";
	case 22: return "APPCLOSEWAIT1";
	case 23: return "APPCLOSEWAIT2";
	case 24: return "APPFINCLOSEWAIT";
	case 25: return "PEERFINCLOSEWAIT";
	case 26: return "PEERABORTWAIT";
	case 27: return "PROCESSABORT";
	default: return "?";
	}
}

static void show_sock(const struct nlmsghdr *h)
{
	static const char * const modes[] = { "smcr", "tcp", "smcd" };
	const struct smc_diag_msg *d = NLMSG_DATA(h);
	size_t head = NLMSG_ALIGN(sizeof(*d)), len = h->nlmsg_len - NLMSG_HDRLEN;
	const struct nlattr *a = len < head ? NULL :
		find((const char *)d + head, len - head, SMC_DIAG_FALLBACK);
	struct smc_diag_fallback f = { 0 };

	if (a)
		memcpy(&f, (const char *)a + NLA_HDRLEN, sizeof(f));
	printf("state=%s mode=%s reason=0x%08x diagnosis=0x%08x local=%u peer=%u\n",
	       state_name(d->diag_state), d->diag_mode < 3 ? modes[d->diag_mode] : "?",
	       f.reason, f.peer_diagnosis, ntohs(d->id.idiag_sport), ntohs(d->id.idiag_dport));
}

static void socks(void)
{
	struct {
		struct nlmsghdr head;
		struct smc_diag_req req;
	} m = {
		.head = {
			.nlmsg_len = sizeof(m),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		},
		.req = {
			.diag_family = AF_SMC,
			.diag_ext = 1 << (SMC_DIAG_FALLBACK - 1),
		},
	};
	int fd = open_netlink(NETLINK_SOCK_DIAG), error;

	error = ask(fd, &m, sizeof(m), true, show_sock);
	if (error)
		die("socket dump: %s", strerror(-error));
	close(fd);
}

int main(int argc, char **argv)
{
	program = argv[0];
	if (argc == 3 && !strcmp(argv[1], "ueid") &&
	    (!strcmp(argv[2], "list") || !strcmp(argv[2], "flush"))) {
		ueid(argv[2], NULL);
	} else if (argc == 4 && !strcmp(argv[1], "ueid") &&
		   (!strcmp(argv[2], "add") || !strcmp(argv[2], "del"))) {
		ueid(argv[2], argv[3]);
	} else if (argc == 2 && !strcmp(argv[1], "lgrs")) {
		dump(SMC_NETLINK_GET_LGR_SMCR, show_lgr);
	} else if (argc == 2 && !strcmp(argv[1], "stats")) {
		dump(SMC_NETLINK_GET_STATS, show_stats);
		dump(SMC_NETLINK_GET_FBACK_STATS, show_fallback);
	} else if (argc == 2 && !strcmp(argv[1], "socks")) {
		socks();
	} else {
		usage(stderr);
		return 2;
	}
	return 0;
}
