// SPDX-License-Identifier: GPL-2.0
/*
 * smc_bench: measures what needs exact times or many sockets: round trips,
 * connects, idle connections.  See usage().
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "util.h"

#define MOST_SAMPLES 1000000
#define MOST_IDLE 20000

static struct sockaddr_storage address;
static socklen_t address_len;
static enum kind_id kind;

static void usage(FILE *to)
{
	fputs("usage: smc_bench echo ADDRESS PORT tcp|smc          serve ping and connect\n"
	      "       smc_bench hold ADDRESS PORT tcp|smc          serve idle\n"
	      "       smc_bench ping ADDRESS PORT tcp|smc BYTES SECONDS\n"
	      "       smc_bench connect ADDRESS PORT tcp|smc SECONDS\n"
	      "       smc_bench idle ADDRESS PORT tcp|smc N...\n"
	      "\n"
	      "  ping     BYTES there and back, over and over, on one connection\n"
	      "  connect  connections one after the other, a byte each way on each; with 0\n"
	      "           seconds one connection\n"
	      "  idle     opens connections until there are N, prints \"open N\", waits for a\n"
	      "           line, and goes on with the next N\n"
	      "\n"
	      "Servers print \"ready\". ping and connect print \"running\" and at the end a line\n"
	      "of key=value: count, seconds, and of each single one mean, p50 and p99 in\n"
	      "microseconds, and the mode if the kernel tells (smcr, tcp, unknown).\n", to);
}

static void die(const char *what)
{
	printf("smc_bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* util.h has microseconds. */
static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void send_exactly(int fd, const char *buf, size_t len)
{
	while (len) {
		ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);

		if (n <= 0)
			die("send");
		buf += n;
		len -= n;
	}
}

static void recv_exactly(int fd, char *buf, size_t len)
{
	while (len) {
		ssize_t n = recv(fd, buf, len, 0);

		if (n == 0)
			errno = ENODATA;
		if (n <= 0)
			die("recv");
		buf += n;
		len -= n;
	}
}

static int open_listener(void)
{
	int fd = kind_socket(kind, 0), one = 1;

	if (fd < 0)
		die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&address, address_len))
		die("bind");
	if (listen(fd, 1000))
		die("listen");
	puts("ready");
	return fd;
}

static int open_connection(void)
{
	int fd = kind_socket(kind, 0);

	if (fd < 0)
		die("socket");
	if (connect(fd, (struct sockaddr *)&address, address_len))
		die("connect");
	return fd;
}

static void run_echo(void)
{
	static char buf[65536];
	int l = open_listener();

	for (;;) {
		int fd = accept(l, NULL, NULL);
		ssize_t n;

		if (fd < 0)
			die("accept");
		nodelay(fd);
		while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
			send_exactly(fd, buf, n);
		close(fd);
	}
}

/* Connections stay until the program ends. */
static void run_hold(void)
{
	int l = open_listener();

	for (;;) {
		int fd = accept(l, NULL, NULL);
		char c;

		if (fd < 0)
			die("accept");
		recv_exactly(fd, &c, 1);
		send_exactly(fd, &c, 1);
	}
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return x < y ? -1 : x > y;
}

/* The sample that a part of all samples does not exceed. */
static float percentile(const float *sorted, size_t n, unsigned int percent)
{
	size_t rank = (n * percent + 99) / 100;

	return sorted[rank ? rank - 1 : 0];
}

static void report(float *samples, size_t n, double seconds, int fd)
{
	struct smc_rs_info info;
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += samples[i];
	qsort(samples, n, sizeof(*samples), by_value);
	printf("result count=%zu seconds=%.6f mean=%.2f p50=%.2f p99=%.2f mode=%s\n", n, seconds,
	       sum / n, percentile(samples, n, 50), percentile(samples, n, 99),
	       smc_info(fd, &info) ? "unknown" : mode_name(info.mode));
}

static float *new_samples(void)
{
	float *samples = calloc(MOST_SAMPLES, sizeof(*samples));

	if (!samples)
		die("memory");
	return samples;
}

static void run_ping(size_t bytes, double seconds)
{
	float *samples = new_samples();
	char *buf = calloc(1, bytes);
	double start, before, after;
	int fd = open_connection();
	size_t n = 0;

	if (!buf)
		die("memory");
	nodelay(fd);
	for (int i = 0; i < 10; i++) {
		send_exactly(fd, buf, bytes);
		recv_exactly(fd, buf, bytes);
	}
	puts("running");
	start = before = after = now();
	while (after - start < seconds && n < MOST_SAMPLES) {
		send_exactly(fd, buf, bytes);
		recv_exactly(fd, buf, bytes);
		after = now();
		samples[n++] = (after - before) * 1e6;
		before = after;
	}
	report(samples, n, after - start, fd);
}

/* The time of a connection is that of connect(). */
static void run_connect(double seconds)
{
	float *samples = new_samples();
	double start = now(), after = start;
	size_t n = 0;
	int fd = -1;

	puts("running");
	do {
		double before = now();
		char c = 'x';

		if (fd >= 0)
			close(fd);
		fd = open_connection();
		samples[n++] = (now() - before) * 1e6;
		send_exactly(fd, &c, 1);
		recv_exactly(fd, &c, 1);
		after = now();
	} while (after - start < seconds && n < MOST_SAMPLES);
	report(samples, n, after - start, fd);
}

static void run_idle(int steps, char **step)
{
	static int fds[MOST_IDLE];
	int n = 0;

	for (int i = 0; i < steps; i++) {
		int goal = atoi(step[i]);
		char line[100], c = 'x';

		if (goal > MOST_IDLE)
			goal = MOST_IDLE;
		for (; n < goal; n++) {
			fds[n] = open_connection();
			send_exactly(fds[n], &c, 1);
			recv_exactly(fds[n], &c, 1);
		}
		printf("open %d\n", n);
		if (!fgets(line, sizeof(line), stdin))
			break;
	}
	while (n)
		close(fds[--n]);
	puts("closed");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(mode, "--help") || !strcmp(mode, "-h")) {
		usage(stdout);
		return 0;
	}
	if (argc < 5 || (strcmp(argv[4], "tcp") && strcmp(argv[4], "smc"))) {
		usage(stderr);
		return 2;
	}
	kind = strcmp(argv[4], "tcp") ? SMC4 : TCP4;
	address_len = addr_make(&address, AF_INET, argv[2], strtoul(argv[3], NULL, 10));
	if (!address_len) {
		usage(stderr);
		return 2;
	}
	if (!strcmp(mode, "echo"))
		run_echo();
	else if (!strcmp(mode, "hold"))
		run_hold();
	else if (!strcmp(mode, "ping") && argc == 7 && strtoul(argv[5], NULL, 10))
		run_ping(strtoul(argv[5], NULL, 10), atof(argv[6]));
	else if (!strcmp(mode, "connect") && argc == 6)
		run_connect(atof(argv[5]));
	else if (!strcmp(mode, "idle") && argc > 5)
		run_idle(argc - 5, argv + 5);
	else {
		usage(stderr);
		return 2;
	}
	return 0;
}
