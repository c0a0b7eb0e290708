// SPDX-License-Identifier: GPL-2.0
/*
 * smc_xfer: carries data over one or many connections and says how it went.
 * See usage() for the options and the lines it prints.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util.h"

#define CHUNK (256 * 1024)

enum { EXIT_TRANSFER = 1, EXIT_USAGE = 2 };

struct conn {
	int fd;
	unsigned int index;
	bool connecting;
	const unsigned char *out;
	size_t out_len, sent;
	unsigned char *in;
	size_t in_room, received;
	bool shut, eof;
	uint64_t first_us, last_us;	/* of received data */
	struct smc_rs_info info;
	bool known;			/* the kernel told us */
};

static struct {
	bool listen;
	const char *host, *family, *port_text;
	unsigned int conns, limit_s, hold_s;
	const char *send_file, *recv_file;
	size_t send_bytes, recv_bytes;
	bool each, blocking, v6, no_hash;
	enum kind_id kind;
} opt = { .family = "smc", .port_text = "7777", .conns = 1, .limit_s = 60 };

static unsigned char *file_data;
static size_t file_len;

static void usage(FILE *to)
{
	fputs("usage: smc_xfer --listen [ADDRESS] | --connect ADDRESS [options]\n"
	      "\n"
	      "  -f, --family smc|inet|tcp  AF_SMC (default), IPPROTO_SMC, or plain TCP\n"
	      "  -6                         IPv6, also implied by an IPv6 address\n"
	      "  -p, --port N               default 7777\n"
	      "  -n, --conns N              so many connections at once\n"
	      "  -s, --send FILE            send this file; with -b a part of it for\n"
	      "                             each connection, another one each time\n"
	      "  -b, --send-bytes N         send so many bytes on each connection, of\n"
	      "                             the file or of a pattern\n"
	      "  -R, --recv-bytes N         most bytes to receive on each (default: 64 MiB)\n"
	      "  -o, --output FILE          write what the first connection received\n"
	      "  -B, --blocking             blocking calls, one thread for a connection\n"
	      "  -e, --each                 print a line for each connection\n"
	      "      --no-hash              do not compute SHA-256\n"
	      "      --hold SECONDS         keep the sockets open so long at the end\n"
	      "  -t, --time-limit S         give up after S seconds (default 60)\n"
	      "\n"
	      "Every connection sends, shuts its direction down, and receives until the\n"
	      "end of the stream. Prints \"ready port=N\" when listening, then the lines\n"
	      "\"conn key=value ...\" with -e, and at the end \"xfer key=value ...\": result,\n"
	      "connections by mode, bytes, and microseconds from the first to the last\n"
	      "byte received.\n"
	      "\n"
	      "Exit status: 0 all went through, 1 something failed, 2 wrong usage.\n", to);
}

static void die(const char *what, int err)
{
	printf("xfer result=error what=\"%s\" errno=%s\n", what, strerrorname_np(err));
	exit(EXIT_TRANSFER);
}

static void on_alarm(int sig)
{
	static const char text[] = "xfer result=error what=\"time limit\" errno=ETIMEDOUT\n";

	(void)sig;
	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(EXIT_TRANSFER);
	_exit(EXIT_TRANSFER);
}

static void prepare_data(struct conn *c)
{
	c->out_len = opt.send_bytes;
	if (opt.send_file && !opt.send_bytes)
		c->out_len = file_len;
	if (opt.send_file) {
		/* Another part of the file for each connection. */
		size_t room = file_len > c->out_len ? file_len - c->out_len : 0;

		if (c->out_len > file_len)
			c->out_len = file_len;
		c->out = file_data + (opt.conns > 1 ? room / (opt.conns - 1) * c->index : 0);
	} else if (c->out_len) {
		unsigned char *p = malloc(c->out_len);

		if (!p)
			die("memory", ENOMEM);
		pattern_fill(p, c->out_len, c->index + 1, 0);
		c->out = p;
	}
	c->in_room = opt.recv_bytes ? opt.recv_bytes : 64 << 20;
	/* Touched only where data comes in. */
	c->in = mmap(NULL, c->in_room + 1, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->in == MAP_FAILED)
		die("memory", errno);
}

/* What became of a connection, as soon as that is decided. */
static void connected(struct conn *c)
{
	c->connecting = false;
	c->known = smc_info(c->fd, &c->info) == 0;
}

/* One step in each direction; false when nothing could be done. */
static bool step_send(struct conn *c, int flags)
{
	size_t left = c->out_len - c->sent;

	if (left) {
		ssize_t n = send(c->fd, c->out + c->sent, left < CHUNK ? left : CHUNK,
				 flags | MSG_NOSIGNAL);

		if (n < 0 && errno == EAGAIN)
			return false;
		if (n < 0)
			die("send", errno);
		c->sent += n;
	}
	if (c->sent == c->out_len && !c->shut) {
		if (shutdown(c->fd, SHUT_WR))
			die("shutdown", errno);
		c->shut = true;
	}
	return true;
}

static bool step_recv(struct conn *c, int flags)
{
	size_t room = c->in_room + 1 - c->received;
	ssize_t n = recv(c->fd, c->in + c->received, room < CHUNK ? room : CHUNK, flags);

	if (n < 0 && errno == EAGAIN)
		return false;
	if (n < 0)
		die("recv", errno);
	if (n == 0) {
		c->eof = true;
		return true;
	}
	c->last_us = now_us();
	if (!c->received)
		c->first_us = c->last_us;
	c->received += n;
	if (c->received > c->in_room)
		die("more bytes than expected", EMSGSIZE);
	return true;
}

static void run_polled(struct conn *conns)
{
	struct pollfd *p = calloc(opt.conns, sizeof(*p));

	for (;;) {
		unsigned int open = 0;

		for (unsigned int i = 0; i < opt.conns; i++) {
			struct conn *c = &conns[i];

			p[i].fd = -1;
			p[i].events = (c->connecting || !c->shut ? POLLOUT : 0) |
				      (!c->connecting && !c->eof ? POLLIN : 0);
			if (!p[i].events)
				continue;
			p[i].fd = c->fd;
			open++;
		}
		if (!open)
			break;
		if (poll(p, opt.conns, -1) < 0)
			die("poll", errno);
		for (unsigned int i = 0; i < opt.conns; i++) {
			struct conn *c = &conns[i];

			if (p[i].fd < 0 || !p[i].revents)
				continue;
			if (c->connecting) {
				int err = 0;
				socklen_t len = sizeof(err);

				if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err)
					die("connect", err ? err : errno);
				if (!(p[i].revents & POLLOUT))
					continue;
				connected(c);
			}
			if (!c->eof && p[i].revents & ~POLLOUT)
				step_recv(c, MSG_DONTWAIT);
			if (!c->shut && p[i].revents & ~POLLIN)
				step_send(c, MSG_DONTWAIT);
		}
	}
	free(p);
}

static void *send_all_thread(void *arg)
{
	struct conn *c = arg;

	while (!c->shut)
		step_send(c, 0);
	return NULL;
}

static void *recv_all_thread(void *arg)
{
	struct conn *c = arg;

	while (!c->eof)
		step_recv(c, 0);
	return NULL;
}

static void run_blocking(struct conn *conns)
{
	pthread_t *t = calloc(2 * opt.conns, sizeof(*t));

	for (unsigned int i = 0; i < opt.conns; i++) {
		set_nonblock(conns[i].fd, false);
		if (pthread_create(&t[2 * i], NULL, send_all_thread, &conns[i]) ||
		    pthread_create(&t[2 * i + 1], NULL, recv_all_thread, &conns[i]))
			die("threads", EAGAIN);
	}
	for (unsigned int i = 0; i < 2 * opt.conns; i++)
		pthread_join(t[i], NULL);
	free(t);
}

static void hash(const unsigned char *data, size_t len, char hex[65])
{
	struct sha256 s;

	strcpy(hex, "-");
	if (opt.no_hash)
		return;
	sha256_init(&s);
	sha256_update(&s, data, len);
	sha256_final(&s, hex);
}

static void report(const struct conn *conns)
{
	uint64_t sent = 0, received = 0, first = 0, last = 0;
	unsigned int modes[4] = { 0 };

	for (unsigned int i = 0; i < opt.conns; i++) {
		const struct conn *c = &conns[i];
		const struct smc_rs_info *f = &c->info;
		unsigned int mode = c->known && f->mode < 3 ? f->mode : 3;

		modes[mode]++;
		sent += c->sent;
		received += c->received;
		if (c->received) {
			if (!first || c->first_us < first)
				first = c->first_us;
			if (c->last_us > last)
				last = c->last_us;
		}
		if (!opt.each)
			continue;

		char out[65], in[65];

		hash(c->out, c->sent, out);
		hash(c->in, c->received, in);
		printf("conn index=%u mode=%s version=%u.%u lgr=%u role=%s link=%u first=%u dev=%s port=%u sndbuf=%u rmb=%u reason=0x%08x text=\"%s\" sent=%zu sent_sha256=%s received=%zu received_sha256=%s\n",
		       c->index, mode_name(mode), f->smc_version, f->smc_release, f->lgr_id,
		       mode != SMC_RS_MODE_SMCR ? "-" : f->lgr_role ? "server" : "client", f->link_id, f->first_contact,
		       f->ib_name[0] ? f->ib_name : "-", f->ib_port, f->sndbuf, f->rmb,
		       f->fallback_reason, reason_name(f->fallback_reason), c->sent, out,
		       c->received, in);
	}
	printf("xfer result=ok conns=%u smcr=%u tcp=%u none=%u unknown=%u sent=%llu received=%llu usec=%llu\n",
	       opt.conns, modes[SMC_RS_MODE_SMCR], modes[SMC_RS_MODE_TCP],
	       modes[SMC_RS_MODE_NONE], modes[3], (unsigned long long)sent,
	       (unsigned long long)received, (unsigned long long)(last - first));
	fflush(stdout);
}

static void options(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "listen", optional_argument, NULL, 'l' },
		{ "connect", required_argument, NULL, 'c' },
		{ "family", required_argument, NULL, 'f' },
		{ "port", required_argument, NULL, 'p' },
		{ "conns", required_argument, NULL, 'n' },
		{ "send", required_argument, NULL, 's' },
		{ "send-bytes", required_argument, NULL, 'b' },
		{ "recv-bytes", required_argument, NULL, 'R' },
		{ "output", required_argument, NULL, 'o' },
		{ "blocking", no_argument, NULL, 'B' },
		{ "each", no_argument, NULL, 'e' },
		{ "no-hash", no_argument, NULL, 'H' },
		{ "hold", required_argument, NULL, 'h' },
		{ "time-limit", required_argument, NULL, 't' },
		{ "help", no_argument, NULL, '?' },
		{ NULL, 0, NULL, 0 },
	};
	bool role = false;

	for (int c; (c = getopt_long(argc, argv, "6f:p:n:s:b:R:o:Bet:", longs, NULL)) != -1;) {
		switch (c) {
		case 'l':
			opt.listen = role = true;
			opt.host = optarg;
			break;
		case 'c':
			role = true;
			opt.host = optarg;
			break;
		case 'f':
			opt.family = optarg;
			break;
		case 'p':
			opt.port_text = optarg;
			break;
		case 'n':
			opt.conns = strtoul(optarg, NULL, 0);
			break;
		case 's':
			opt.send_file = optarg;
			break;
		case 'b':
			opt.send_bytes = strtoull(optarg, NULL, 0);
			break;
		case 'R':
			opt.recv_bytes = strtoull(optarg, NULL, 0);
			break;
		case 'o':
			opt.recv_file = optarg;
			break;
		case 'B':
			opt.blocking = true;
			break;
		case 'e':
			opt.each = true;
			break;
		case 'H':
			opt.no_hash = true;
			break;
		case 'h':
			opt.hold_s = strtoul(optarg, NULL, 0);
			break;
		case 't':
			opt.limit_s = strtoul(optarg, NULL, 0);
			break;
		case '6':
			opt.v6 = true;
			break;
		default:
			usage(optopt ? stderr : stdout);
			exit(optopt ? EXIT_USAGE : 0);
		}
	}
	if (opt.listen && !opt.host && optind < argc)
		opt.host = argv[optind++];
	if (!role || optind < argc || !opt.conns || opt.conns > 10000) {
		usage(stderr);
		exit(EXIT_USAGE);
	}
	if (opt.host && strchr(opt.host, ':'))
		opt.v6 = true;
	if (!strcmp(opt.family, "smc"))
		opt.kind = opt.v6 ? SMC6 : SMC4;
	else if (!strcmp(opt.family, "inet"))
		opt.kind = opt.v6 ? INETSMC6 : INETSMC4;
	else if (!strcmp(opt.family, "tcp"))
		opt.kind = opt.v6 ? TCP6 : TCP4;
	else {
		usage(stderr);
		exit(EXIT_USAGE);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_storage ss;
	socklen_t len;
	int l = -1;

	options(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, on_alarm);
	alarm(opt.limit_s);
	if (opt.send_file) {
		int fd = open(opt.send_file, O_RDONLY | O_CLOEXEC);
		struct stat st;

		if (fd < 0 || fstat(fd, &st))
			die(opt.send_file, errno);
		file_len = st.st_size;
		file_data = mmap(NULL, file_len, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
		if (file_data == MAP_FAILED)
			die(opt.send_file, errno);
		close(fd);
	}

	len = addr_make(&ss, kinds[opt.kind].family, opt.host, strtoul(opt.port_text, NULL, 0));
	if (!len) {
		fprintf(stderr, "smc_xfer: %s is no address\n", opt.host);
		return EXIT_USAGE;
	}

	struct conn *conns = calloc(opt.conns, sizeof(*conns));

	if (opt.listen) {
		int one = 1;

		l = kind_socket(opt.kind, 0);
		if (l < 0)
			die("socket", errno);
		setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(l, (struct sockaddr *)&ss, len))
			die("bind", errno);
		if (listen(l, 1000))
			die("listen", errno);
		len = sizeof(ss);
		getsockname(l, (struct sockaddr *)&ss, &len);
		printf("ready port=%u\n", addr_port(&ss));
	}
	for (unsigned int i = 0; i < opt.conns; i++) {
		struct conn *c = &conns[i];

		c->index = i;
		prepare_data(c);
		if (opt.listen) {
			c->fd = accept4(l, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
			if (c->fd < 0)
				die("accept", errno);
			connected(c);
			continue;
		}
		/* Blocking users connect one after the other. */
		c->fd = kind_socket(opt.kind, opt.blocking ? 0 : SOCK_NONBLOCK);
		if (c->fd < 0)
			die("socket", errno);
		if (connect(c->fd, (struct sockaddr *)&ss, len)) {
			if (errno != EINPROGRESS)
				die("connect", errno);
			c->connecting = true;
		} else {
			connected(c);
		}
	}
	if (opt.blocking)
		run_blocking(conns);
	else
		run_polled(conns);
	alarm(0);
	if (opt.recv_file) {
		int fd = open(opt.recv_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

		if (fd < 0)
			die(opt.recv_file, errno);
		for (size_t done = 0; done < conns[0].received;) {
			ssize_t n = write(fd, conns[0].in + done, conns[0].received - done);

			if (n < 0)
				die(opt.recv_file, errno);
			done += n;
		}
		close(fd);
	}
	report(conns);
	if (opt.hold_s)
		sleep(opt.hold_s);
	return 0;
}
