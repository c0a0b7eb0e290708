// SPDX-License-Identifier: GPL-2.0
/*
 * as_smc.so: preloaded into a program, makes SMC sockets of its TCP sockets.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

/* What may be mixed into the type. */
#define TYPE_FLAGS (SOCK_NONBLOCK | SOCK_CLOEXEC)

int socket(int domain, int type, int protocol)
{
	int (*next)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");

	if (!next) {
		errno = ENOSYS;
		return -1;
	}
	if ((domain == AF_INET || domain == AF_INET6) && (type & ~TYPE_FLAGS) == SOCK_STREAM &&
	    (protocol == 0 || protocol == IPPROTO_TCP))
		return next(AF_SMC, type, domain == AF_INET6);
	return next(domain, type, protocol);
}
