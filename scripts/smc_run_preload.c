// SPDX-License-Identifier: GPL-2.0
/*
 * Loaded into a program by smc-run where control groups cannot be used: its TCP
 * sockets become SMC sockets, where that is possible.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef IPPROTO_SMC
#define IPPROTO_SMC 256
#endif
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

int socket(int domain, int type, int protocol)
{
	const int flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
	int saved = errno, fd;

	if ((domain == AF_INET || domain == AF_INET6) && (type & ~flags) == SOCK_STREAM &&
	    (protocol == 0 || protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP)) {
		fd = syscall(SYS_socket, domain, type, IPPROTO_SMC);
		if (fd >= 0)
			return fd;
		/* Without the module, or while it is unloaded, it is TCP. */
		errno = saved;
	}
	return syscall(SYS_socket, domain, type, protocol);
}
