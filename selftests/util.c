// SPDX-License-Identifier: GPL-2.0
/*
 * Shared by the test programs, see util.h.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smc_reasons.h"
#include "util.h"

const struct kind kinds[KINDS] = {
	[SMC4] = { "AF_SMC,0", AF_SMC, 0, AF_INET, true },
	[SMC6] = { "AF_SMC,1", AF_SMC, 1, AF_INET6, true },
	[INETSMC4] = { "AF_INET,IPPROTO_SMC", AF_INET, IPPROTO_SMC, AF_INET, true },
	[INETSMC6] = { "AF_INET6,IPPROTO_SMC", AF_INET6, IPPROTO_SMC, AF_INET6, true },
	[TCP4] = { "AF_INET,TCP", AF_INET, IPPROTO_TCP, AF_INET, false },
	[TCP6] = { "AF_INET6,TCP", AF_INET6, IPPROTO_TCP, AF_INET6, false },
};

int kind_socket(enum kind_id kind, int flags)
{
	const struct kind *k = &kinds[kind];

	/* To test the tests: what holds for SMC must hold for TCP. */
	if (k->smc && getenv("SMC_AS_TCP"))
		k = &kinds[k->family == AF_INET6 ? TCP6 : TCP4];
	return socket(k->domain, SOCK_STREAM | SOCK_CLOEXEC | flags, k->protocol);
}

socklen_t addr_make(struct sockaddr_storage *ss, int family, const char *text,
		    unsigned int port)
{
	memset(ss, 0, sizeof(*ss));
	ss->ss_family = family;
	if (family == AF_INET6) {
		struct sockaddr_in6 *a = (struct sockaddr_in6 *)ss;
		char plain[64];
		const char *interface = text ? strchr(text, '%') : NULL;

		if (interface) {
			snprintf(plain, sizeof(plain), "%.*s", (int)(interface - text), text);
			text = plain;
			a->sin6_scope_id = if_nametoindex(interface + 1);
			if (!a->sin6_scope_id)
				return 0;
		} else if (text && !strchr(text, ':')) {
			snprintf(plain, sizeof(plain), "::ffff:%s", text);
			text = plain;
		}
		a->sin6_port = htons(port);
		if (text && inet_pton(AF_INET6, text, &a->sin6_addr) != 1)
			return 0;
		return sizeof(*a);
	}

	struct sockaddr_in *a = (struct sockaddr_in *)ss;

	a->sin_port = htons(port);
	if (text && inet_pton(AF_INET, text, &a->sin_addr) != 1)
		return 0;
	return sizeof(*a);
}

unsigned int addr_port(const struct sockaddr_storage *ss)
{
	if (ss->ss_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)ss)->sin6_port);
	return ntohs(((const struct sockaddr_in *)ss)->sin_port);
}

const char *addr_text(const struct sockaddr_storage *ss)
{
	static __thread char ring[4][80];
	static __thread unsigned int next;
	char *out = ring[next++ % 4];
	char text[INET6_ADDRSTRLEN] = "?";

	if (ss->ss_family == AF_INET6)
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)ss)->sin6_addr,
			  text, sizeof(text));
	else if (ss->ss_family == AF_INET)
		inet_ntop(AF_INET, &((const struct sockaddr_in *)ss)->sin_addr,
			  text, sizeof(text));
	snprintf(out, sizeof(ring[0]), "%d/%s/%u", ss->ss_family, text, addr_port(ss));
	return out;
}

int smc_info(int fd, struct smc_rs_info *info)
{
	socklen_t len = sizeof(*info);

	memset(info, 0, sizeof(*info));
	if (getsockopt(fd, SOL_SMC, SMC_RS_INFO, info, &len))
		return -errno;
	return info->version >= 1 ? 0 : -EPROTO;
}

const char *mode_name(unsigned int mode)
{
	switch (mode) {
	case SMC_RS_MODE_NONE:
		return "none";
	case SMC_RS_MODE_SMCR:
		return "smcr";
	case SMC_RS_MODE_TCP:
		return "tcp";
	default:
		return "unknown";
	}
}

const char *reason_name(uint32_t code)
{
	static const struct {
		uint32_t code;
		const char *text;
	} table[] = {
		{ 0x00000000, "none" },
#define ROW(code, text) { code, text },
		SMC_REASONS(ROW)
#undef ROW
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i].code == code)
			return table[i].text;
	return "unknown reason";
}

static inline uint64_t word_at(uint64_t seed, uint64_t index)
{
	uint64_t x = (index + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;

	return x ^ (x >> 29);
}

void pattern_fill(void *buf, size_t len, uint64_t seed, uint64_t offset)
{
	unsigned char *p = buf;

	while (len) {
		uint64_t word = word_at(seed, offset / 8);
		size_t skip = offset % 8;
		size_t n = 8 - skip;

		if (n > len)
			n = len;
		memcpy(p, (unsigned char *)&word + skip, n);
		p += n;
		offset += n;
		len -= n;
	}
}

size_t pattern_check(const void *buf, size_t len, uint64_t seed, uint64_t offset)
{
	const unsigned char *p = buf;
	size_t done = 0;

	while (done < len) {
		uint64_t word = word_at(seed, offset / 8);
		size_t skip = offset % 8;
		size_t n = 8 - skip;

		if (n > len - done)
			n = len - done;
		if (memcmp(p + done, (unsigned char *)&word + skip, n)) {
			for (size_t i = 0; i < n; i++)
				if (p[done + i] != ((unsigned char *)&word)[skip + i])
					return done + i;
		}
		done += n;
		offset += n;
	}
	return len;
}

void set_nonblock(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* SHA-256, FIPS 180-4, sections 4.1.2, 4.2.2, 5.1.1, 5.3.3 and 6.2. */

static const uint32_t sha_k[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
	0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
	0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
	0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
	0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
	0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
	0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
	0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t ror(uint32_t x, unsigned int n)
{
	return x >> n | x << (32 - n);
}

static void sha256_block(struct sha256 *s, const unsigned char *p)
{
	uint32_t w[64], v[8];

	for (int i = 0; i < 16; i++) {
		uint32_t be;

		memcpy(&be, p + 4 * i, 4);
		w[i] = ntohl(be);
	}
	for (int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];

		w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[i - 7] +
		       (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
	}
	memcpy(v, s->h, sizeof(v));
	for (int i = 0; i < 64; i++) {
		uint32_t t1 = v[7] + (ror(v[4], 6) ^ ror(v[4], 11) ^ ror(v[4], 25)) +
			      ((v[4] & v[5]) ^ (~v[4] & v[6])) + sha_k[i] + w[i];
		uint32_t t2 = (ror(v[0], 2) ^ ror(v[0], 13) ^ ror(v[0], 22)) +
			      ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

		memmove(v + 1, v, 7 * sizeof(v[0]));
		v[4] += t1;
		v[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		s->h[i] += v[i];
}

void sha256_init(struct sha256 *s)
{
	static const uint32_t start[8] = {
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
	};

	memcpy(s->h, start, sizeof(start));
	s->len = 0;
}

void sha256_update(struct sha256 *s, const void *data, size_t len)
{
	const unsigned char *p = data;

	while (len) {
		size_t have = s->len % 64;

		if (!have && len >= 64) {
			sha256_block(s, p);
			s->len += 64;
			p += 64;
			len -= 64;
			continue;
		}

		size_t n = 64 - have < len ? 64 - have : len;

		memcpy(s->block + have, p, n);
		s->len += n;
		p += n;
		len -= n;
		if (s->len % 64 == 0)
			sha256_block(s, s->block);
	}
}

void sha256_final(struct sha256 *s, char hex[65])
{
	uint64_t bits = s->len * 8;
	unsigned char tail[72] = { 0x80 };
	size_t pad = (s->len % 64 < 56 ? 56 : 120) - s->len % 64;

	for (int i = 0; i < 8; i++)
		tail[pad + i] = bits >> (56 - 8 * i);
	sha256_update(s, tail, pad + 8);
	for (int i = 0; i < 8; i++)
		sprintf(hex + 8 * i, "%08x", s->h[i]);
}
