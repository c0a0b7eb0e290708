// SPDX-License-Identifier: GPL-2.0
/*
 * smc_diff: runs scripts of socket calls and says what each call returned.
 *
 *   smc_diff [-j JOBS] [-q MS] FLAVOUR FILE
 *
 * A script is a case: a line "== NAME [raw]" and lines of steps, several on a
 * line with ";" between them. A step is "END OPERATION [ARGUMENT...]". Ends are
 * letters: c to h stand where clients stand, the others where servers do. A
 * case begins with a connected pair, client c, server s, listener l, unless it
 * is "raw". A letter followed by "&" runs its step in a thread of its own, and
 * "END join" says what came of it. The operations are in diff_ops.c.
 *
 * After each step the program waits until nothing has changed for MS
 * milliseconds; then it says what poll() answers for every end, and which
 * signals came. So two runs can be compared line by line, whatever their speed.
 *
 * Output: for each case "case NAME", lines "NUMBER<TAB>STEP<TAB>RESULT",
 * "mode MODE" for every connection, and "end", or "killed", or "stuck" when it
 * could not even be killed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "diff.h"

static const struct diff_flavour flavours[] = {
	{ "tcp", TCP4, TCP4, false, -1 },
	{ "tcp-near", TCP4, TCP4, true, -1 },
	{ "fallback", INETSMC4, INETSMC4, true, SMC_RS_MODE_TCP },
	{ "fallback-client", INETSMC4, TCP4, false, SMC_RS_MODE_TCP },
	{ "fallback-server", TCP4, INETSMC4, false, SMC_RS_MODE_TCP },
	{ "smcr", INETSMC4, INETSMC4, false, SMC_RS_MODE_SMCR },
};

const struct diff_flavour *flavour;

#define CASE_LIMIT_S 20
#define SETTLE_LIMIT_MS 3000

unsigned int quiet_ms = 12;
static struct end ends[26];
static int place[2] = { -1, -1 };
static int report = STDOUT_FILENO;
static unsigned int step_number;

/* Signals whose arrival is part of a result. */
static const int watched[] = { SIGPIPE, SIGURG, SIGIO, SIGUSR1 };
static atomic_int arrived[ARRAY_SIZE(watched)];

void say(struct out *o, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(o->text + o->len, sizeof(o->text) - o->len, fmt, ap);
	va_end(ap);
	if (n > 0)
		o->len += n;
	if (o->len >= sizeof(o->text))
		o->len = sizeof(o->text) - 1;
}

void say_result(struct out *o, long long ret)
{
	int err = errno;

	if (ret == -1)
		say(o, "-1 %s", errno_name(err));
	else
		say(o, "%lld", ret);
}

void say_bytes(struct out *o, const unsigned char *buf, size_t len)
{
	uint32_t sum = 2166136261u;

	if (len <= 32) {
		say(o, " \"");
		for (size_t i = 0; i < len; i++)
			say(o, buf[i] > ' ' && buf[i] < 127 ? "%c" : "\\x%02x", buf[i]);
		say(o, "\"");
		return;
	}
	for (size_t i = 0; i < len; i++)
		sum = (sum ^ buf[i]) * 16777619u;
	say(o, " sum=%08x", sum);
}

void say_addr(struct out *o, const struct sockaddr_storage *ss, socklen_t len)
{
	unsigned int port;

	say(o, " len=%u", len);
	if (len < sizeof(sa_family_t))
		return;
	say(o, " family=%d", ss->ss_family);
	if (ss->ss_family != AF_INET || len < sizeof(struct sockaddr_in))
		return;
	port = addr_port(ss);
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
		if (port && ends[i].addr_len && addr_port(&ends[i].addr) == port) {
			say(o, " port=%c", 'a' + (int)i);
			return;
		}
	say(o, " port=%s", port ? "some" : "0");
}

void stream_fill(const struct end *e, unsigned char *buf, size_t len)
{
	char base = e->server ? 'A' : 'a';

	for (size_t i = 0; i < len; i++) {
		uint64_t at = e->tx + i;

		buf[i] = base + (at + at / 26 + at / 676) % 26;
	}
}

struct end *end_named(char name)
{
	if (name < 'a' || name > 'z')
		bad_script("no such end", (char[]){ name, '\0' });
	return &ends[name - 'a'];
}

void stand_at(bool server)
{
	int ns = place[server || flavour->near];

	if (ns >= 0 && setns(ns, CLONE_NEWNET))
		bad_script("setns", strerror(errno));
}

int make_socket(struct end *e, int flags)
{
	stand_at(e->server);
	return kind_socket(e->server ? flavour->server : flavour->client, flags);
}

const char *server_text(void)
{
	return place[1] >= 0 && !flavour->near ? "10.77.0.2" : "127.0.0.1";
}

static void on_signal(int sig)
{
	for (size_t i = 0; i < ARRAY_SIZE(watched); i++)
		if (watched[i] == sig)
			atomic_fetch_add(&arrived[i], 1);
}

/* What could still change: poll answers, bytes to read, threads, signals. */
struct look {
	short events[26];
	int unread[26];
	unsigned int running, signals;
};

static void look_around(struct look *now)
{
	struct pollfd p[26];

	memset(now, 0, sizeof(*now));
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
		p[i] = (struct pollfd){ .fd = ends[i].fd,
					.events = POLLIN | POLLPRI | POLLOUT | POLLRDHUP };
	if (poll(p, ARRAY_SIZE(ends), 0) < 0)
		return;
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
		now->events[i] = p[i].revents;
		if (ends[i].fd >= 0 && ioctl(ends[i].fd, FIONREAD, &now->unread[i]))
			now->unread[i] = -1;
		now->running = now->running << 1 | (ends[i].job.started && ends[i].job.running);
	}
	for (size_t i = 0; i < ARRAY_SIZE(watched); i++)
		now->signals = now->signals << 4 | (arrived[i] & 15);
}

static void settle(struct look *now)
{
	uint64_t start = now_us(), since = start;
	struct look before;

	look_around(&before);
	for (;;) {
		poll(NULL, 0, quiet_ms / 4 + 1);
		look_around(now);

		uint64_t t = now_us();

		if (memcmp(&before, now, sizeof(before))) {
			before = *now;
			since = t;
		}
		if (t - since >= quiet_ms * 1000ull || t - start >= SETTLE_LIMIT_MS * 1000ull)
			return;
	}
}

static void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void tell(const char *fmt, ...)
{
	char line[3000];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (n > 0 && write(report, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1) < 0)
		_exit(3);
}

void tell_mode(int fd)
{
	struct smc_rs_info info;
	int rc;

	if (flavour->mode < 0)
		return;
	rc = smc_info(fd, &info);
	if (!rc)
		tell("mode %s %s\n", mode_name(info.mode), reason_name(info.fallback_reason));
}

/* Splits a step into words; the first is the end. */
static int words_of(char *line, char **word, int most)
{
	int n = 0;

	for (char *w = strtok(line, " \t"); w && n < most; w = strtok(NULL, " \t"))
		word[n++] = w;
	return n;
}

static void run_words(struct end *e, char **word, int n, struct out *o)
{
	const struct op *op = op_find(word[1]);

	if (!op)
		bad_script("no such operation", word[1]);
	op->run(e, word + 2, n - 2, o);
}

static void *job_thread(void *arg)
{
	struct end *e = arg;
	char line[400], *word[24], *save = NULL;
	int n = 0;

	e->job.tid = gettid();
	strcpy(line, e->job.line);
	for (char *w = strtok_r(line, " \t", &save); w && n < 24; w = strtok_r(NULL, " \t", &save))
		word[n++] = w;
	run_words(e, word, n, &e->job.out);
	e->job.running = false;
	return NULL;
}

/* Whether a thread of this process waits in the kernel. */
static bool thread_sleeps(pid_t tid)
{
	char path[64], line[300] = "";
	const char *state;
	FILE *f;

	if (!tid)
		return false;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	if (!f)
		return false;
	state = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	fclose(f);
	return state && !strncmp(state, ") S", 3);
}

static void job_start(struct end *e, const char *step, struct out *o)
{
	if (e->job.started) {
		say(o, "busy");
		return;
	}
	memset(&e->job.out, 0, sizeof(e->job.out));
	snprintf(e->job.line, sizeof(e->job.line), "%s", step);
	e->job.tid = 0;
	e->job.running = true;
	e->job.started = true;
	if (pthread_create(&e->job.thread, NULL, job_thread, e))
		bad_script("pthread_create", strerror(errno));
	/* It counts as started when it waits in its call, or has done it. */
	for (int asleep = 0; e->job.running && asleep < 3; poll(NULL, 0, 1))
		asleep = thread_sleeps(e->job.tid) ? asleep + 1 : 0;
	say(o, "started");
}

static void step(const char *text, bool hurry)
{
	char line[400], *word[24];
	struct out o = { .len = 0 };
	const struct op *op = NULL;
	struct look now;
	int n;

	step_number++;
	snprintf(line, sizeof(line), "%s", text);
	n = words_of(line, word, ARRAY_SIZE(word));
	if (n < 2)
		bad_script("too short a step", text);

	struct end *e = end_named(word[0][0]);

	if (word[0][1] == '&') {
		job_start(e, text, &o);
	} else {
		op = op_find(word[1]);
		run_words(e, word, n, &o);
	}
	if (hurry || (op && op->quiet)) {
		tell("%u\t%s\t%s\n", step_number, text, o.text);
		return;
	}
	settle(&now);
	say(&o, " |");
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
		if (ends[i].fd < 0)
			continue;
		say(&o, " %c=", 'a' + (int)i);
		say_events(&o, (unsigned short)now.events[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(watched); i++)
		if (atomic_exchange(&arrived[i], 0))
			say(&o, " !%s", sigabbrev_np(watched[i]));
	tell("%u\t%s\t%s\n", step_number, text, o.text);
}

struct script {
	char name[80];
	bool raw;
	char **steps;
	size_t count;
};

static void run_case(const struct script *s)
{
	static const char *const start[] = {
		"l socket", "l bind", "l listen 8", "c socket", "c connect l", "s accept l",
	};
	struct sigaction sa = { .sa_handler = on_signal };

	for (size_t i = 0; i < ARRAY_SIZE(watched); i++)
		sigaction(watched[i], &sa, NULL);
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
		ends[i] = (struct end){ .name = 'a' + i, .fd = -1, .epoll = -1,
					.pipe = { -1, -1 },
					.server = !strchr("cdefgh", 'a' + (int)i) };
	}
	for (size_t i = 0; !s->raw && i < ARRAY_SIZE(start); i++)
		step(start[i], i + 1 < ARRAY_SIZE(start));
	for (size_t i = 0; i < s->count; i++)
		step(s->steps[i], false);
	tell("end\n");
}

/* Cases that run now. */
struct slot {
	pid_t pid;
	int fd;
	uint64_t until;
	char *text;
	size_t len;
	const struct script *script;
};

static void slot_start(struct slot *slot, const struct script *s)
{
	const char *slow = getenv("SMC_SLOW");
	unsigned int times = slow && atoi(slow) > 1 ? atoi(slow) : 1;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		bad_script("pipe", strerror(errno));
	fflush(NULL);
	*slot = (struct slot){ .fd = fds[0], .script = s,
			       .until = now_us() + CASE_LIMIT_S * 1000000ull * times };
	slot->pid = fork();
	if (slot->pid < 0)
		bad_script("fork", strerror(errno));
	if (!slot->pid) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		report = fds[1];
		run_case(s);
		_exit(0);
	}
	setpgid(slot->pid, slot->pid);
	close(fds[1]);
}

/* Where the threads of a process wait in the kernel. */
static void show_stack(pid_t pid)
{
	char cmd[200], line[200];
	FILE *f;

	snprintf(cmd, sizeof(cmd), "cat /proc/%d/task/*/stack 2>&1", pid);
	f = popen(cmd, "r");
	while (f && fgets(line, sizeof(line), f))
		printf("note %s", line);
	if (f)
		pclose(f);
}

/* Whether a process that was killed ends. */
static bool wait_end(pid_t pid, int *status)
{
	uint64_t end = now_us() + 5000000;

	while (waitpid(pid, status, WNOHANG) == 0) {
		if (now_us() > end) {
			show_stack(pid);
			return false;
		}
		poll(NULL, 0, 2);
	}
	return true;
}

static void slot_end(struct slot *slot, const char *how)
{
	int status = 0;

	kill(-slot->pid, SIGKILL);
	if (!wait_end(slot->pid, &status))
		how = "stuck\n";
	if (WIFEXITED(status) && WEXITSTATUS(status) == 3) {
		fprintf(stderr, "smc_diff: case %s cannot be run\n", slot->script->name);
		exit(3);
	}
	printf("case %s\n%.*s%s", slot->script->name, (int)slot->len, slot->text ?: "", how);
	fflush(stdout);
	close(slot->fd);
	free(slot->text);
	*slot = (struct slot){ .fd = -1 };
}

/* Reads what a case has said. */
static void slot_read(struct slot *slot)
{
	char buf[16384];
	ssize_t n = read(slot->fd, buf, sizeof(buf));

	if (n > 0) {
		slot->text = realloc(slot->text, slot->len + n + 1);
		if (!slot->text)
			bad_script("realloc", strerror(errno));
		memcpy(slot->text + slot->len, buf, n);
		slot->len += n;
	}
	if (n == 0 || (slot->len >= 4 && !memcmp(slot->text + slot->len - 4, "end\n", 4)))
		slot_end(slot, n == 0 ? "killed\n" : "");
}

static void run_all(const struct script *scripts, size_t count, unsigned int jobs)
{
	struct slot slots[16];
	size_t next = 0, active = 0;

	for (size_t i = 0; i < ARRAY_SIZE(slots); i++)
		slots[i].fd = -1;
	while (next < count || active) {
		struct pollfd p[ARRAY_SIZE(slots)];

		for (size_t i = 0; i < jobs && next < count; i++)
			if (slots[i].fd < 0)
				slot_start(&slots[i], &scripts[next++]);
		for (size_t i = 0; i < ARRAY_SIZE(slots); i++)
			p[i] = (struct pollfd){ .fd = slots[i].fd, .events = POLLIN };
		poll(p, ARRAY_SIZE(slots), 500);
		active = 0;
		for (size_t i = 0; i < ARRAY_SIZE(slots); i++) {
			if (slots[i].fd < 0)
				continue;
			if (p[i].revents)
				slot_read(&slots[i]);
			else if (now_us() > slots[i].until)
				slot_end(&slots[i], "killed\n");
			active += slots[i].fd >= 0;
		}
	}
}

static struct script *read_scripts(const char *path, size_t *count)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
	struct script *all = NULL;
	char *line = NULL;
	size_t room = 0;

	if (!f)
		bad_script(path, strerror(errno));
	*count = 0;
	while (getline(&line, &room, f) > 0) {
		line[strcspn(line, "#\n")] = '\0';
		if (!strncmp(line, "== ", 3)) {
			char tag[80] = "";

			all = realloc(all, (*count + 1) * sizeof(*all));
			all[*count] = (struct script){ .count = 0 };
			sscanf(line + 3, "%79s %79s", all[*count].name, tag);
			all[*count].raw = !strcmp(tag, "raw");
			(*count)++;
			continue;
		}
		for (char *save = NULL, *part = strtok_r(line, ";", &save); part;
		     part = strtok_r(NULL, ";", &save)) {
			struct script *s = &all[*count - 1];
			size_t len;

			part += strspn(part, " \t");
			len = strlen(part);
			while (len && strchr(" \t", part[len - 1]))
				part[--len] = '\0';
			if (!len)
				continue;
			if (!*count)
				bad_script("a step before the first case", part);
			s->steps = realloc(s->steps, (s->count + 1) * sizeof(*s->steps));
			s->steps[s->count++] = strdup(part);
		}
	}
	free(line);
	if (f != stdin)
		fclose(f);
	return all;
}

static int usage(FILE *to)
{
	fprintf(to, "usage: smc_diff [-j JOBS] [-q QUIET_MS] FLAVOUR FILE\nflavours:");
	for (size_t i = 0; i < ARRAY_SIZE(flavours); i++)
		fprintf(to, " %s", flavours[i].name);
	fprintf(to, "\n");
	return to == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "SMC_NS_CLIENT", "SMC_NS_SERVER" };
	unsigned int jobs = 1;
	struct script *scripts;
	size_t count;
	int opt;

	while ((opt = getopt(argc, argv, "j:q:h")) != -1) {
		switch (opt) {
		case 'j':
			jobs = atoi(optarg);
			break;
		case 'q':
			quiet_ms = atoi(optarg);
			break;
		default:
			return usage(opt == 'h' ? stdout : stderr);
		}
	}
	if (argc - optind != 2 || jobs < 1 || jobs > 16)
		return usage(stderr);
	for (size_t i = 0; i < ARRAY_SIZE(flavours); i++)
		if (!strcmp(flavours[i].name, argv[optind]))
			flavour = &flavours[i];
	if (!flavour)
		return usage(stderr);
	for (int i = 0; i < 2; i++) {
		const char *ns = getenv(names[i]);
		char path[200];

		if (!ns || !ns[0])
			continue;
		snprintf(path, sizeof(path), "/run/netns/%s", ns);
		place[i] = open(path, O_RDONLY | O_CLOEXEC);
		if (place[i] < 0)
			bad_script(path, strerror(errno));
	}
	scripts = read_scripts(argv[optind + 1], &count);
	run_all(scripts, count, jobs);
	return 0;
}
