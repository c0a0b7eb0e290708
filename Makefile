# SPDX-License-Identifier: GPL-2.0
#
# What a user calls.  What Kbuild builds is in Kbuild.

SHELL := /bin/bash
.DEFAULT_GOAL := module

# A prepared kernel tree with Rust metadata to build for, instead of the lab's.
KDIR ?=
# The module that "install" installs.
KO ?= smc_rs.ko
# Passed on to the kernel's build.
KBUILD_ARGS := $(if $(V),V=$(V)) $(if $(CLIPPY),CLIPPY=$(CLIPPY))
CHECKOUT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))

.PHONY: help
help: ## show this list
	@echo "Targets (those that use the lab need root; the lab is made on first use):"
	@sed -n -E 's/^([a-z-]+):[^#]*## (.*)$$/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14
	@echo "Variables:"
	@echo "  KDIR=DIR    build for the prepared kernel tree DIR, without the lab"
	@echo "  BENCH='...' options for bench (see scripts/bench --help)"
	@echo "  APPS='...'  programs and options for apps (see scripts/apps --help)"
	@echo "  NET='...'   names and options for net-selftests (see scripts/net-selftests --help)"
	@echo "  V=1         show the commands"
	@echo "  FUZZ_SECONDS=N FUZZ_TARGETS=\"...\" MUTANTS=\"cursor.rs ...\": see host/fuzz/run and host/mutants --help"
	@echo "  SMC_LAB=DIR where the lab is kept (see scripts/lab --help)"

.PHONY: lab
lab: ## make the lab: a Debian root with all tools, the kernel, Rust metadata
	@scripts/lab build

.PHONY: module
ifeq ($(KDIR),)
module: lab ## build smc_rs.ko (the default), for the lab's kernel or for KDIR
	@scripts/lab module $(CHECKOUT) $(KBUILD_ARGS)
	@scripts/lab run make -s build/libsmc-run.so
else
module:
	@test -e "$(KDIR)/rust/libkernel.rmeta" || { \
		echo "KDIR: $(KDIR) has no rust/libkernel.rmeta: it is not prepared for Rust modules" >&2; \
		echo "KDIR: remedy: 'make LLVM=... modules_prepare' with CONFIG_RUST=y there" >&2; exit 1; }
	$(MAKE) -C $(KDIR) M=$(CHECKOUT) $(KBUILD_ARGS) modules
endif

.PHONY: install
install: ## install the module (with KDIR, for that kernel), tools and manuals
ifeq ($(KDIR),)
	@test -e "$(KO)" || { echo "install: build the module first: make" >&2; exit 1; }
	@{ command -v modinfo && command -v depmod; } >/dev/null || { echo "install: there is no modinfo or depmod here" >&2; \
		echo "install: remedy: apt install kmod, and run this as root" >&2; exit 1; }
	@release=$$(modinfo -F vermagic "$(KO)") && release=$${release%% *} && test -n "$$release" && \
	dir="$(INSTALL_MOD_PATH)/lib/modules/$$release" && \
	{ test -d "$$dir" || { echo "install: there is no kernel $$release here ($$dir)" >&2; \
		echo "install: remedy: install that kernel, or build with make KDIR=... for yours" >&2; exit 1; }; } && \
	install -D -m 644 "$(KO)" "$$dir/updates/smc_rs.ko" && \
	depmod $(if $(INSTALL_MOD_PATH),-b "$(INSTALL_MOD_PATH)") "$$release" && \
	echo "installed $$dir/updates/smc_rs.ko"
else
	$(MAKE) -C $(KDIR) M=$(CHECKOUT) modules_install
endif
ifeq ($(INSTALL_MOD_PATH),)
	@$(MAKE) --no-print-directory install-tools
endif

# Where the tools go: PREFIX, below DESTDIR.
PREFIX ?= /usr/local
TOOLS := smc-doctor smc-top smc-run smc-unload smc-persist

.PHONY: install-tools
install-tools: build/libsmc-run.so ## install the tools and manuals alone, below PREFIX (/usr/local)
	@install -d "$(DESTDIR)$(PREFIX)/sbin" "$(DESTDIR)$(PREFIX)/lib/smc-rs" \
		"$(DESTDIR)$(PREFIX)/share/man/man7" "$(DESTDIR)$(PREFIX)/share/man/man8" \
		"$(DESTDIR)$(PREFIX)/lib/systemd/system" "$(DESTDIR)$(PREFIX)/share/doc/smc-rs/examples"
	@install -m 755 $(TOOLS:%=scripts/%) "$(DESTDIR)$(PREFIX)/sbin/"
	@install -m 644 scripts/smcinfo.py scripts/smcreasons.py build/libsmc-run.so "$(DESTDIR)$(PREFIX)/lib/smc-rs/"
	@install -m 644 docs/man/*.7 "$(DESTDIR)$(PREFIX)/share/man/man7/"
	@install -m 644 docs/man/*.8 "$(DESTDIR)$(PREFIX)/share/man/man8/"
	@sed 's|@PREFIX@|$(PREFIX)|' scripts/install.d/smc-persist.service \
		>"$(DESTDIR)$(PREFIX)/lib/systemd/system/smc-persist.service"
	@install -m 644 scripts/install.d/*.conf docs/netlink-specs/*.yaml "$(DESTDIR)$(PREFIX)/share/doc/smc-rs/examples/"
	@echo "installed $(TOOLS) in $(DESTDIR)$(PREFIX)/sbin"

build/libsmc-run.so: scripts/smc_run_preload.c
	@mkdir -p build
	$(CC) -O2 -Wall -Wextra -shared -fPIC -o $@ $<

.PHONY: check
check: ## build, lint and test everything; the last line counts the results
	@scripts/check

.PHONY: check-debug
check-debug: lab ## all selftests on a kernel full of checks; hours, and a kernel build the first time
	@scripts/check-debug

.PHONY: interop
interop: module ## the C implementation of SMC and this module talk to each other, all cases
	@scripts/interop --long

.PHONY: apps
apps: module ## programs that others wrote talk SMC-R without being told (APPS='iperf3 redis ...')
	@scripts/apps $(APPS)

.PHONY: net-selftests
net-selftests: module ## the kernel's own selftests of TCP sockets, over TCP and over SMC (NET='tcp_inq ...' or --long)
	@scripts/net-selftests $(NET)

.PHONY: format
format: lab ## format the Rust sources in the kernel's style
	@find rust host -name target -prune -o -name '*.rs' ! -name '*_generated.rs' -print 2>/dev/null | \
		xargs -r scripts/lab run rustfmt --edition 2021 --config-path .rustfmt.toml

# The lab's root has no home of its own for cargo's output: it goes where "check" puts it too.
IN_HOST = scripts/lab run env CARGO_TARGET_DIR="$$(scripts/lab path target)"

.PHONY: fuzz
fuzz: lab ## fuzz the protocol core, FUZZ_SECONDS (120) for each of FUZZ_TARGETS (all)
	@$(IN_HOST) host/fuzz/run $(if $(FUZZ_SECONDS),-s $(FUZZ_SECONDS)) $(FUZZ_TARGETS)

.PHONY: mutants
mutants: lab ## change the core in small ways; each must be noticed by a test (hours; MUTANTS=FILE...)
	@$(IN_HOST) host/mutants $(MUTANTS)

.PHONY: coverage
coverage: lab ## lines of the protocol core that the host tests reach; fails below 95 %
	@$(IN_HOST) host/coverage

ifneq ($(wildcard scripts/demo),)
.PHONY: demo
demo: module ## two virtual machines send each other files by RDMA
	@scripts/demo
endif

.PHONY: bench
bench: lab ## measure it beside TCP, C SMC-R and raw verbs (an hour and a half)
	@scripts/bench $(BENCH)

.PHONY: stress
stress: module ## socket calls at random, links lost, thousands of connections; SEED=N, STRESS='...' (scripts/stress --help)
	@scripts/stress $(if $(SEED),--seed $(SEED)) $(STRESS)

.PHONY: soak
soak: ## the simulator of the protocol with fresh seeds, for HOURS=8 or SEEDS=N (host/soak --help)
	@host/soak

.PHONY: clean
clean: ## remove what a build made here (the lab stays: scripts/lab clean)
	@find . \( -name .git -o -name target \) -prune -o -type f \( -name '*.o' -o -name '*.ko' -o -name '*.mod' \
		-o -name '*.mod.c' -o -name '.*.cmd' -o -name '.*.d' -o -name '*.rmeta' -o -name '*_generated.rs' \
		-o -name modules.order -o -name Module.symvers \) -exec rm -f {} +
	@rm -rf host/target host/fuzz/target build .tmp_*
	@if [ -e selftests/Makefile ]; then $(MAKE) --no-print-directory -C selftests clean; fi
