// SPDX-License-Identifier: GPL-2.0
/*
 * Suite "load": the module is loaded and unloaded, again and again, alone and
 * while network namespaces come and go.  It is not loaded when this begins, nor
 * when it ends.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include "cases.h"

#define ROUNDS 20

static bool prepare(void)
{
	if (module_loaded()) {
		suite_skip_reason("the module is in use");
		return false;
	}
	return true;
}

static bool has_sockets(void)
{
	return proto_sockets("SMC") >= 0;
}

static void load_registers_protocols_and_sysctls(void)
{
	need_module_file();
	module_load();
	CHECK(module_loaded());
	CHECK_EQ(module_refcount(), 0);

	bool sockets = has_sockets();

	if (sockets) {
		CHECK_EQ(proto_sockets("SMC"), 0);
		CHECK_EQ(proto_sockets("SMC6"), 0);
		CHECK(access("/proc/sys/net/smc", F_OK) == 0);
	}
	CHECK_OK(module_unload());
	if (!sockets)
		SKIP("the module has no sockets");
}

static void unload_leaves_no_trace(void)
{
	need_module_file();
	module_load();
	CHECK_OK(module_unload());
	CHECK(!module_loaded());
	CHECK_EQ(proto_sockets("SMC"), -1);
	CHECK_EQ(proto_sockets("SMC6"), -1);
	CHECK(access("/proc/sys/net/smc", F_OK) != 0);
	CHECK_ERRNO(socket(AF_SMC, SOCK_STREAM, 0), EAFNOSUPPORT);
}

/* Kilobytes that the kernel holds for itself. */
static long long kernel_memory(void)
{
	static const char *const names[] = { "SUnreclaim:", "Percpu:", "VmallocUsed:" };
	FILE *f = fopen("/proc/meminfo", "re");
	char name[64];
	long long kb, sum = 0;

	/*
	 * A kernel that keeps what was freed for a while, to watch it, gives that back as well; what
	 * waits until nobody reads it is freed in between.
	 */
	sh("for round in 1 2 3; do for cache in /sys/kernel/slab/*/shrink; do echo 1 >$cache; done 2>/dev/null; sleep 1; done");
	CHECK(f);
	while (fscanf(f, "%63s %lld%*[^\n]", name, &kb) == 2)
		for (size_t i = 0; i < ARRAY_SIZE(names); i++)
			if (!strcmp(name, names[i]))
				sum += kb;
	fclose(f);
	return sum;
}

static void reload(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		row("round %d", i);
		module_load();
		CHECK_OK(module_unload());
	}
	row("%s", "");
}

static void reload_20_times_leaks_nothing(void)
{
	need_module_file();
	/* What the kernel keeps from the first time is no leak. */
	reload(3);

	long long grown = 0;

	/* A leak shows each time. */
	for (int looks = 0; looks < 3; looks++) {
		long long before = kernel_memory();

		reload(ROUNDS);
		grown = kernel_memory() - before;
		note("kernel memory grew by %lld kB in %d rounds", grown, ROUNDS);
		if (grown < 2048)
			break;
	}
	CHECK(grown < 2048);
}

static pid_t start_churn(void)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	for (;;) {
		pid_t child = fork();

		if (!child)
			_exit(unshare(CLONE_NEWNET) ? 1 : 0);
		waitpid(child, NULL, 0);
	}
}

static void reload_20_times_with_namespace_churn_succeeds(void)
{
	pid_t churn;

	need_module_file();
	churn = start_churn();
	reload(ROUNDS);
	CHECK_OK(kill(churn, SIGKILL));
	waitpid(churn, NULL, 0);
}

static void reload_after_sockets_were_open_succeeds(void)
{
	need_module_file();
	for (int i = 0; i < 3; i++) {
		module_load();
		if (!has_sockets()) {
			CHECK_OK(module_unload());
			SKIP("the module has no sockets");
		}
		/* Their netfilter hooks are to go a second later. */
		CHECK_EQ(sh("echo 1 >/proc/sys/net/smc/hook_timeout"), 0);
		for (enum kind_id k = SMC4; k <= INETSMC6; k++) {
			int fd = CHECK_OK(kind_socket(k, 0));

			if (i)
				CHECK_OK(listen(fd, 5));
			close(fd);
		}
		/* Documented bound for whatever a socket leaves behind. */
		uint64_t end = now_us() + 10000000;

		while (module_unload()) {
			CHECK(now_us() < end);
			usleep(20000);
		}
	}
	/* Whatever had outlived the module would run by now. */
	usleep(1500000);
}

static const struct test_case cases[] = {
	CASE(load_registers_protocols_and_sysctls),
	CASE(unload_leaves_no_trace),
	CASE_LIMIT(reload_20_times_leaks_nothing, 150),
	CASE_LIMIT(reload_20_times_with_namespace_churn_succeeds, 60),
	CASE_LIMIT(reload_after_sockets_were_open_succeeds, 50),
};

const struct suite suite_load = {
	.name = "load", .cases = cases, .count = ARRAY_SIZE(cases), .prepare = prepare,
};
