// SPDX-License-Identifier: GPL-2.0
/*
 * A program of TCP that knows nothing of SMC: serves or opens one connection.
 *
 *   plain serve ADDRESS PORT         echoes all it gets until the end
 *   plain talk ADDRESS PORT          sends 300000 bytes and checks the echo
 *   plain ring ADDRESS PORT          the same with a socket opened by io_uring
 *
 * "serve" says "ready" when it listens.  "talk" says "same" when the echo was
 * right, and waits with the connection open until its input ends.
 */
#include <arpa/inet.h>
#include <err.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TOTAL 300000

static void *map(int fd, size_t length, off_t offset)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_POPULATE, fd, offset);

	if (at == MAP_FAILED)
		err(1, "mmap");
	return at;
}

/* A stream socket of IPv4, by IORING_OP_SOCKET. */
static int ring_socket(void)
{
	struct io_uring_params params = { 0 };
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	unsigned int head;
	char *sq, *cq;
	int fd, ring;

	ring = syscall(SYS_io_uring_setup, 4, &params);
	if (ring < 0)
		err(1, "io_uring_setup");
	sq = map(ring, params.sq_off.array + params.sq_entries * 4, IORING_OFF_SQ_RING);
	cq = map(ring, params.cq_off.cqes + params.cq_entries * sizeof(*cqe), IORING_OFF_CQ_RING);
	sqe = map(ring, params.sq_entries * sizeof(*sqe), IORING_OFF_SQES);
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_SOCKET;
	sqe->fd = AF_INET;
	sqe->off = SOCK_STREAM;
	((unsigned int *)(sq + params.sq_off.array))[0] = 0;
	__atomic_store_n((unsigned int *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		err(1, "io_uring_enter");
	head = __atomic_load_n((unsigned int *)(cq + params.cq_off.head), __ATOMIC_ACQUIRE);
	cqe = (struct io_uring_cqe *)(cq + params.cq_off.cqes) + head;
	fd = cqe->res;
	if (fd < 0)
		errx(1, "IORING_OP_SOCKET: %s", strerror(-fd));
	close(ring);
	return fd;
}

static void serve(const struct sockaddr_in *at)
{
	char buffer[16384];
	int one = 1, fd, conn;
	ssize_t n;

	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0)
		err(1, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (const struct sockaddr *)at, sizeof(*at)) || listen(fd, 1))
		err(1, "listen");
	puts("ready");
	fflush(stdout);
	conn = accept(fd, NULL, NULL);
	if (conn < 0)
		err(1, "accept");
	while ((n = read(conn, buffer, sizeof(buffer))) > 0) {
		for (ssize_t done = 0, w; done < n; done += w) {
			w = write(conn, buffer + done, n - done);
			if (w < 0)
				err(1, "write");
		}
	}
	if (n < 0)
		err(1, "read");
}

static void talk(int fd, const struct sockaddr_in *to)
{
	static char sent[TOTAL], got[TOTAL];
	size_t out = 0, in = 0;
	char byte;

	if (fd < 0)
		err(1, "socket");
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)))
		err(1, "connect");
	for (size_t i = 0; i < TOTAL; i++)
		sent[i] = i * 31 + i / 251;
	while (in < TOTAL) {
		struct pollfd p = { fd, POLLIN | (out < TOTAL ? POLLOUT : 0) };
		ssize_t n;

		if (poll(&p, 1, 60000) != 1)
			errx(1, "nothing comes any more");
		if (p.revents & POLLOUT) {
			n = send(fd, sent + out, TOTAL - out, MSG_DONTWAIT);
			if (n > 0)
				out += n;
		}
		if (p.revents & POLLIN) {
			n = recv(fd, got + in, TOTAL - in, 0);
			if (n <= 0)
				err(1, "recv");
			in += n;
		}
	}
	if (memcmp(sent, got, TOTAL))
		errx(1, "the echo differs");
	puts("same");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };

	if (argc != 4 || inet_pton(AF_INET, argv[2], &at.sin_addr) != 1)
		errx(2, "usage: plain serve|talk|ring ADDRESS PORT");
	at.sin_port = htons(atoi(argv[3]));
	if (!strcmp(argv[1], "serve"))
		serve(&at);
	else
		talk(strcmp(argv[1], "ring") ? socket(AF_INET, SOCK_STREAM, 0) : ring_socket(), &at);
	return 0;
}
