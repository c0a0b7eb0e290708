// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "reason": what makes a connection go by TCP although both ends could
 * speak SMC, and whether the SMC option is on the wire then.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/tcp.h>
#include <linux/xfrm.h>

#include "cases_fallback.h"

static void fast_open_asked_for_falls_back(void)
{
	static const struct flavour *const two[] = { &flavours[0], &flavours[2] };

	for (size_t i = 0; i < ARRAY_SIZE(two); i++) {
		const struct flavour *f = two[i];
		struct sockaddr_storage ss;
		int l = listen_at(f, 0, &ss);
		int c = sock_at(CLIENT, f->client, 0);
		socklen_t len = target(f, addr_port(&ss), &ss);
		char buf[8];

		row("%s", f->name);
		CHECK_EQ(sendto(c, "fast", 4, MSG_FASTOPEN, (struct sockaddr *)&ss, len), 4);

		int s = CHECK_OK(accept(l, NULL, NULL));

		recv_all(s, buf, 4);
		CHECK(!memcmp(buf, "fast", 4));
		check_mode(c, SMC_RS_MODE_TCP);

		struct pair p = { l, c, s, addr_port(&ss) };

		exchange(&p, 10000, 10000);
		pair_close(&p);
	}
}

#define REASON_PEER_HAS_NO_SMC 0x03010000
#define REASON_IPSEC 0x03020000
#define REASON_PEER_DECLINED 0x05000000

/* An SMC end fell back for this reason. */
static void expect_reason(int fd, enum kind_id kind, uint32_t reason)
{
	struct smc_rs_info info;

	if (!kinds[kind].smc || as_tcp())
		return;
	check_mode(fd, SMC_RS_MODE_TCP);
	CHECK_EQ(smc_info(fd, &info), 0);
	if (info.fallback_reason != reason)
		FAIL("the reason is 0x%08x (%s), expected 0x%08x (%s)", info.fallback_reason,
		     reason_name(info.fallback_reason), reason, reason_name(reason));
}

/* How TCP's segments are signed. */
enum signature { NOT_SIGNED, BY_MD5, BY_AO };

/* Gives a socket a key for every peer, or for this one. */
static void sign(int fd, enum signature how, const struct sockaddr_storage *peer)
{
	static const char secret[] = "1234";

	if (how == BY_MD5) {
		struct tcp_md5sig key = { .tcpm_keylen = 4 };

		memcpy(&key.tcpm_addr, peer, sizeof(*peer));
		memcpy(key.tcpm_key, secret, 4);
		CHECK_OK(setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof(key)));
	} else if (how == BY_AO) {
		struct tcp_ao_add key = {
			.alg_name = "hmac(sha1)", .sndid = 100, .rcvid = 100,
			.maclen = 12, .keylen = 4,
		};

		key.addr.ss_family = peer->ss_family;
		memcpy(key.key, secret, 4);
		if (setsockopt(fd, IPPROTO_TCP, TCP_AO_ADD_KEY, &key, sizeof(key))) {
			if (errno == ENOPROTOOPT)
				SKIP("no TCP-AO in this kernel");
			FAIL("TCP_AO_ADD_KEY: %s", strerrorname_np(errno));
		}
	}
}

/*
 * The segments with the SMC option of a connection that works, as nftables
 * counts them in the server's namespace; and both ends fell back with reason.
 */
static uint64_t options_of_connect(const struct flavour *f, enum signature how, uint32_t reason)
{
	struct counters a, b;
	struct sockaddr_storage ss, peer;
	int l, c;
	socklen_t len;

	counters_read(&a);
	if (!a.have_tcp)
		SKIP("no nftables counter");
	l = listen_at(f, 0, &ss);
	c = sock_at(CLIENT, f->client, 0);
	len = target(f, addr_port(&ss), &ss);
	sign(c, how, &ss);
	addr_make(&peer, kinds[f->server].family, strchr(f->to, ':') ? CLIENT_V6 : CLIENT_V4, 0);
	sign(l, how, &peer);
	CHECK_OK(connect(c, (struct sockaddr *)&ss, len));

	struct pair p = { l, c, CHECK_OK(accept(l, NULL, NULL)), addr_port(&ss) };

	exchange(&p, 100, 100);
	if (reason) {
		expect_reason(p.c, f->client, reason);
		expect_reason(p.s, f->server, reason);
	}
	pair_close(&p);
	counters_read(&b);
	return b.syn_options - a.syn_options;
}

static void option_on_wire_only_from_smc(void)
{
	for_all(f) {
		uint64_t want = kinds[f->client].smc ? kinds[f->server].smc ? 2 : 1 : 0;
		uint64_t got = options_of_connect(f, NOT_SIGNED, 0);

		if (!got && want)
			SKIP("the module sends no SMC option");
		/* A repeated segment counts again. */
		if (got < want || (!want && got))
			FAIL("%llu segments with the SMC option, expected %llu",
			     (unsigned long long)got, (unsigned long long)want);
	}
}

static void option_absent_with(enum signature how)
{
	for_few(f)
		CHECK_EQ(options_of_connect(f, how, REASON_PEER_HAS_NO_SMC), 0);
	row("SMC to SMC, v6");
	CHECK_EQ(options_of_connect(&flavours[SMC_TO_SMC_V6], how, REASON_PEER_HAS_NO_SMC), 0);
}

static void option_absent_with_md5(void)
{
	option_absent_with(BY_MD5);
}

static void option_absent_with_ao(void)
{
	option_absent_with(BY_AO);
}

static const char *ns_name(enum side side)
{
	return getenv(side == CLIENT ? "SMC_NS_CLIENT" : "SMC_NS_SERVER");
}

/* ESP in transport mode, in one direction, as one side has it to know. */
static void ipsec_rules(FILE *to, const char *source, const char *target, unsigned int spi, bool out)
{
	fprintf(to, "xfrm state add src %s dst %s proto esp spi %u mode transport "
		"aead rfc4106(gcm(aes)) 0x0123456789abcdef0123456789abcdef01234567 128\n",
		source, target, spi);
	fprintf(to, "xfrm policy add src %s dst %s dir %s tmpl src %s dst %s proto esp "
		"mode transport\n", source, target, out ? "out" : "in", source, target);
}

static bool ipsec_start(void)
{
	bool good = true;

	for (int side = CLIENT; side <= SERVER; side++) {
		char command[100];
		FILE *to;

		snprintf(command, sizeof(command), "ip -n %s -batch -", ns_name(side));
		to = popen(command, "w");
		CHECK(to);
		ipsec_rules(to, CLIENT_V4, SERVER_V4, 0x1001, side == CLIENT);
		ipsec_rules(to, SERVER_V4, CLIENT_V4, 0x1002, side == SERVER);
		ipsec_rules(to, CLIENT_V6, SERVER_V6, 0x1003, side == CLIENT);
		ipsec_rules(to, SERVER_V6, CLIENT_V6, 0x1004, side == SERVER);
		good &= pclose(to) == 0;
	}
	return good;
}

static void ipsec_stop(void)
{
	for (int side = CLIENT; side <= SERVER; side++)
		CHECK_EQ(sh("ip -n %s xfrm policy flush; ip -n %s xfrm state flush",
			    ns_name(side), ns_name(side)), 0);
}

/* What IPsec is to protect must not go round it by RDMA. */
static void ipsec_policy_of_namespace_is_obeyed(void)
{
	if (!have_namespaces())
		SKIP("no namespaces");
	ipsec_stop();
	if (!ipsec_start()) {
		ipsec_stop();
		SKIP("no IPsec in this kernel");
	}
	for_all(f)
		CHECK_EQ(options_of_connect(f, NOT_SIGNED, REASON_IPSEC), 0);
	row("%s", "");
	/* The counters of the states say that the policies were used. */
	CHECK_EQ(sh("ip -n %s -s xfrm state list | grep -Eq '[1-9][0-9]*\\(packets\\)'",
		    ns_name(SERVER)), 0);
	ipsec_stop();
	row("afterwards");
	CHECK(options_of_connect(&flavours[2], NOT_SIGNED, 0) >= 2);
}

/* One that a socket has of its own: this one lets everything through. */
static void ipsec_policy_of_socket_is_obeyed(void)
{
	struct xfrm_userpolicy_info policy = {
		.sel.family = AF_INET, .dir = XFRM_POLICY_OUT, .action = XFRM_POLICY_ALLOW,
		.lft = {
			.soft_byte_limit = XFRM_INF, .hard_byte_limit = XFRM_INF,
			.soft_packet_limit = XFRM_INF, .hard_packet_limit = XFRM_INF,
		},
	};
	const struct flavour *f = &flavours[2];
	struct sockaddr_storage ss;
	struct smc_rs_info info;
	struct pair p;
	socklen_t len;

	if (as_tcp())
		SKIP("only for SMC sockets");
	p.l = listen_at(f, 0, &ss);
	p.port = addr_port(&ss);
	p.c = sock_at(CLIENT, f->client, 0);
	if (setsockopt(p.c, IPPROTO_IP, IP_XFRM_POLICY, &policy, sizeof(policy)))
		SKIP("IP_XFRM_POLICY: %s", strerrorname_np(errno));
	len = target(f, p.port, &ss);
	CHECK_OK(connect(p.c, (struct sockaddr *)&ss, len));
	p.s = CHECK_OK(accept(p.l, NULL, NULL));
	exchange(&p, 100000, 100000);
	expect_reason(p.c, f->client, REASON_IPSEC);
	expect_reason(p.s, f->server, REASON_PEER_DECLINED);
	CHECK_EQ(smc_info(p.s, &info), 0);
	CHECK_EQ(info.peer_diagnosis, REASON_IPSEC);
	pair_close(&p);
}

static void syncookies_fall_back(void)
{
	int fd, rc;

	if (!have_namespaces())
		SKIP("no namespaces");
	enter(SERVER);
	fd = open("/proc/sys/net/ipv4/tcp_syncookies", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		SKIP("no syncookies in this kernel");
	CHECK_EQ(write(fd, "2", 1), 1);
	for_all(f) {
		struct pair p = pair_make(f);

		check_fallback(f, p.c, true);
		exchange(&p, 5000, 5000);
		pair_close(&p);
	}
	rc = write(fd, "1", 1);
	CHECK_EQ(rc, 1);
	close(fd);
}

static void option_limit_hs_is_inherited(void)
{
	const struct flavour *f = &flavours[1];
	struct sockaddr_storage ss;
	int l = listen_at(f, 0, &ss), c = sock_at(CLIENT, f->client, 0), v = 1;
	socklen_t len = target(f, addr_port(&ss), &ss);

	CHECK_OK(setsockopt(l, SOL_SMC, SMC_LIMIT_HS, &v, sizeof(v)));
	CHECK_OK(connect(c, (struct sockaddr *)&ss, len));

	struct pair p = { l, c, CHECK_OK(accept(l, NULL, NULL)), addr_port(&ss) };

	exchange(&p, 100, 100);
	pair_close(&p);
}

static const struct test_case cases[] = {
	CASE(fast_open_asked_for_falls_back),
	CASE(option_on_wire_only_from_smc),
	CASE(option_absent_with_md5),
	CASE(option_absent_with_ao),
	CASE_LIMIT(ipsec_policy_of_namespace_is_obeyed, 60),
	CASE(ipsec_policy_of_socket_is_obeyed),
	CASE(syncookies_fall_back),
	CASE(option_limit_hs_is_inherited),
};

const struct suite suite_reason = {
	.name = "reason", .cases = cases, .count = ARRAY_SIZE(cases),
};
