# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Shared by the smc_*.sh scripts: results as TAP, two network namespaces joined
# by a pair of veth devices, RDMA devices on them, and what the kernel said.
#
# Environment:
#   SMC_KO            module file to load (default: smc_rs.ko beside selftests/,
#                     else modprobe finds it)
#   SMC_UNLOAD        the script smc-unload (default: the one in scripts/)
#   SMC_CASES         run only these cases of a program (names, blanks between)
#   SMC_TIMES         print how long each case took
#   SMC_RDMA_OPTIONAL 1: that the first connection falls back is no failure
#                     (cases that need SMC-R are skipped then in any case)
#   SMC_SLOW          how many times slower than usual the machine is (a whole
#                     number): time limits are that much longer
#   SMC_ALLOWED       what the kernel may say above notice level (a regular expression)
#   SMC_CONNECTIONS   how many connections smc_netlink lists at once (default: 300)
#   SMC_SEED          what smc_links and smc_storm do at random (default: the time)
#   SMC_FAILOVERS     how many times smc_links loses a link at random (default: 3)
#   SMC_CROWD         how many connections smc_crowd has at once (default: 20)
#   SMC_STORM         how many connections smc_storm makes (default: 2000)
#   SMC_AS_TCP        use TCP sockets in place of SMC sockets, to test the tests

ksft_pass=0
ksft_fail=1
ksft_skip=4

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SMC_KO=${SMC_KO:-$here/../smc_rs.ko}
SMC_UNLOAD=${SMC_UNLOAD:-$here/../scripts/smc-unload}
export SMC_KO SMC_UNLOAD

tap_number=0
tap_failed=0
tap_passed=0

# Namespaces and devices of this script alone.
ns_client=smct$$c
ns_server=smct$$s
dev_client=$ns_client
dev_server=$ns_server
have_net=
loaded_here=
log_mark=
# NAME=VALUE, with which module_load loads the module.
module_parameters=()
aliases=/run/modprobe.d/smct$$.conf

tap_start() { # number of cases
	printf 'TAP version 13\n1..%d\n' "$1"
}

tap_result() { # ok|"not ok"|skip, name [reason]
	tap_number=$((tap_number + 1))
	case $1 in
	skip) printf 'ok %d %s # SKIP %s\n' "$tap_number" "$2" "${3-}" ;;
	ok)
		printf 'ok %d %s\n' "$tap_number" "$2"
		tap_passed=$((tap_passed + 1))
		;;
	*)
		printf 'not ok %d %s\n' "$tap_number" "$2"
		tap_failed=$((tap_failed + 1))
		;;
	esac
}

# The whole script cannot run.
tap_skip_all() { # reason
	printf 'TAP version 13\n1..0 # SKIP %s\n' "$1"
	exit "$ksft_skip"
}

# Runs a program that prints results of its own, and makes them this script's.
tap_from() { # command...
	local line
	while read -r line; do
		case $line in
		'ok '*) tap_result ok "${line#ok * }" ;;
		'not ok '*) tap_result "not ok" "${line#not ok * }" ;;
		*) printf '%s\n' "$line" ;;
		esac
	done < <("$@" 2>&1)
}

tap_end() {
	if ((tap_failed)); then
		exit "$ksft_fail"
	elif ((tap_passed == 0)); then
		exit "$ksft_skip"
	fi
	exit "$ksft_pass"
}

note() {
	printf '# %s\n' "$*"
}

# Polls until a command succeeds.
busywait() { # milliseconds command...
	local end=$((${EPOCHREALTIME/./} + $1 * 1000 * ${SMC_SLOW:-1}))
	shift
	until "$@"; do
		((${EPOCHREALTIME/./} < end)) || return 1
		pause
	done
}

# A tenth of a second without starting a program.
pause_fd=
pause() {
	[[ -n $pause_fd ]] || exec {pause_fd}<> <(:)
	read -rt 0.1 -u "$pause_fd" || :
}

need_root() {
	((EUID == 0)) || tap_skip_all "needs root"
}

need_command() {
	local c
	for c; do
		command -v "$c" >/dev/null || tap_skip_all "needs $c"
	done
}

need_cases_program() {
	[[ -x $here/smc_cases ]] || tap_skip_all "smc_cases is not built, run make -C selftests"
}

module_loaded() {
	[[ -d /sys/module/smc_rs ]]
}

# The modules that ours needs; insmod does not load them.
module_needs() {
	local needs
	[[ -r $SMC_KO ]] || return 0
	needs=$(modinfo -F depends "$SMC_KO")
	# shellcheck disable=SC2086 # several words
	[[ -z $needs ]] || modprobe -a ${needs//,/ }
}

module_load() {
	if [[ -r $SMC_KO ]]; then
		module_needs && insmod "$SMC_KO" "${module_parameters[@]}"
	else
		modprobe smc_rs "${module_parameters[@]}"
	fi
}

module_refcount() {
	local n=-1
	[[ ! -r /sys/module/smc_rs/refcnt ]] || read -r n </sys/module/smc_rs/refcnt
	printf '%s' "$n"
}

need_module() {
	[[ -z ${SMC_AS_TCP-} ]] || return 0
	if ! module_loaded; then
		if ! module_load; then
			[[ -r $SMC_KO ]] || tap_skip_all "there is no module smc_rs"
			tap_start 1
			tap_result "not ok" module_loads
			tap_end
		fi
		loaded_here=1
	fi
	grep -q '^SMC ' /proc/net/protocols || tap_skip_all "the module has no sockets"
}

# Two namespaces. With "rdma", an rxe device in each, where there is rxe.
net_up() { # tcp|rdma
	local name
	have_net=1
	ip -batch - <<-BATCH || return
		netns add $ns_client
		netns add $ns_server
	BATCH
	ip -batch - <<-BATCH || return
		link add veth0 netns $ns_client type veth peer name veth0 netns $ns_server
	BATCH
	# What goes down keeps its addresses of IPv6, as it does those of IPv4.
	for name in "$ns_client" "$ns_server"; do
		ip netns exec "$name" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/keep_addr_on_down' || return
	done
	ip -n "$ns_client" -batch - <<-BATCH || return
		addr add 10.77.0.1/24 dev veth0
		addr add fd77::1/64 dev veth0 nodad
		addr add fe80::77:1/64 dev veth0 nodad
		link set lo up
		link set veth0 up
	BATCH
	ip -n "$ns_server" -batch - <<-BATCH || return
		addr add 10.77.0.2/24 dev veth0
		addr add fd77::2/64 dev veth0 nodad
		addr add fe80::77:2/64 dev veth0 nodad
		link set lo up
		link set veth0 up
	BATCH
	export SMC_NS_CLIENT=$ns_client SMC_NS_SERVER=$ns_server
	if [[ $1 == rdma ]]; then
		modprobe -q rdma_rxe || :
		if command -v rdma >/dev/null &&
			ip netns exec "$ns_client" rdma link add "$dev_client" type rxe netdev veth0 &&
			ip netns exec "$ns_server" rdma link add "$dev_server" type rxe netdev veth0; then
			export SMC_DEV_CLIENT=$dev_client SMC_DEV_SERVER=$dev_server
		else
			note "no rxe devices here"
		fi
	fi
	# All TCP is counted, and the segments with option 254: the SMC option is
	# the only user of that experimental kind here.
	if command -v nft >/dev/null; then
		ip netns exec "$ns_server" nft -f - <<-'RULES' || note "no nftables counters here"
			table inet smct {
				counter tcp_bytes { }
				counter smc_syn { }
				chain in {
					type filter hook input priority 0;
					meta l4proto tcp counter name tcp_bytes
					tcp flags & syn == syn tcp option 254 exists counter name smc_syn
				}
				chain out {
					type filter hook output priority 0;
					meta l4proto tcp counter name tcp_bytes
					tcp flags & syn == syn tcp option 254 exists counter name smc_syn
				}
			}
		RULES
	fi
}

# A second wire and a second RDMA device in each of the two namespaces.
net_second() {
	ip -batch - <<-BATCH || return
		link add veth1 netns $ns_client type veth peer name veth1 netns $ns_server
	BATCH
	ip -n "$ns_client" -batch - <<-BATCH || return
		addr add 10.78.0.1/24 dev veth1
		addr add fd78::1/64 dev veth1 nodad
		link set veth1 up
	BATCH
	ip -n "$ns_server" -batch - <<-BATCH || return
		addr add 10.78.0.2/24 dev veth1
		addr add fd78::2/64 dev veth1 nodad
		link set veth1 up
	BATCH
	if [[ -n ${SMC_DEV_CLIENT-} ]] &&
		ip netns exec "$ns_client" rdma link add "${dev_client}2" type rxe netdev veth1 &&
		ip netns exec "$ns_server" rdma link add "${dev_server}2" type rxe netdev veth1; then
		export SMC_DEV_CLIENT2=${dev_client}2 SMC_DEV_SERVER2=${dev_server}2
	fi
}

net_down() {
	[[ -n $have_net ]] || return 0
	have_net=
	[[ -z ${SMC_DEV_CLIENT2-} ]] || rdma link delete "${dev_client}2" 2>/dev/null || :
	[[ -z ${SMC_DEV_SERVER2-} ]] || rdma link delete "${dev_server}2" 2>/dev/null || :
	[[ -z ${SMC_DEV_CLIENT-} ]] || rdma link delete "$dev_client" 2>/dev/null || :
	[[ -z ${SMC_DEV_SERVER-} ]] || rdma link delete "$dev_server" 2>/dev/null || :
	ip netns del "$ns_client" 2>/dev/null || :
	ip netns del "$ns_server" 2>/dev/null || :
}

# Lets each RDMA device belong to one namespace, as long as the script runs; what
# is there before has to go, as there may be no namespace but the machine's then.
isolated=
devices_isolated() {
	modprobe -q rdma_rxe || :
	busywait 20000 rdma system set netns exclusive 2>/dev/null && isolated=1
}

# Where an SMC socket loads what: by alias neither this module, which is loaded
# and unloaded here by name, nor another implementation.
modprobe_rules() {
	mkdir -p "${aliases%/*}" && cat >"$aliases"
}

cleanup() {
	local status=$?
	trap - EXIT
	rm -f "$aliases"
	net_down
	if [[ -n $loaded_here ]] && module_loaded; then
		busywait 10000 rmmod smc_rs 2>/dev/null || note "the module cannot be unloaded"
	fi
	[[ -z $isolated ]] || busywait 20000 rdma system set netns shared 2>/dev/null ||
		note "the RDMA devices still belong to namespaces"
	exit "$status"
}

script_start() {
	set -uo pipefail
	need_root
	trap cleanup EXIT
	trap 'exit 1' INT TERM
	modprobe_rules <<<$'blacklist smc\nblacklist smc_rs'
}

# For the scripts that run on two machines at once: which one is this, a or b?
pair_role() { # the script's first argument
	role=$1
	if [[ $role != [ab] ]]; then
		echo "usage: ${0##*/} a|b" >&2
		exit 2
	fi
}

# The RDMA device of a machine that has one wire, eth0.
pair_device_up() {
	modprobe -q rdma_rxe || :
	[[ -d /sys/class/infiniband/rxe0 ]] || rdma link add rxe0 type rxe netdev eth0 || note "no RDMA device"
}

# From here on the kernel's complaints are ours.
log_start() {
	log_mark="smc selftest $$ ${EPOCHREALTIME/./}"
	printf '<6>%s\n' "$log_mark" >/dev/kmsg 2>/dev/null || log_mark=
}

# Lines above notice level since log_start, without those that every module
# from outside the kernel tree causes, and what the RDMA core says about an rxe
# device whose network device has gone, rxe about a path that is dead, or the
# kernel about where bpftrace looks for tracepoints.
log_lines() {
	local usual='loading out-of-tree module taints kernel|module verification failed|ib_query_port failed \(-19\)'
	usual+='|non-flush error status = 12|Automounting of tracing to debugfs'
	usual+=${SMC_ALLOWED:+|$SMC_ALLOWED}
	dmesg --level=emerg,alert,crit,err,warn,info --decode --nopager 2>/dev/null |
		sed "1,/$log_mark/d" |
		grep -E '^[a-z]+ *:(emerg|alert|crit|err|warn) *:' |
		grep -vE "$usual"
}

log_check() { # name of the case [regular expression of what the case itself makes others say]
	local lines
	if [[ -z $log_mark ]] || ! command -v dmesg >/dev/null; then
		tap_result skip "$1" "the kernel's log cannot be read"
		return
	fi
	lines=$(log_lines)
	[[ -z ${2-} ]] || lines=$(grep -Ev -- "$2" <<<"$lines")
	if [[ -z $lines ]]; then
		tap_result ok "$1"
	else
		printf '%s\n' "$lines" | head -40 | sed 's/^/# /'
		tap_result "not ok" "$1"
	fi
}

# Number of cases that a suite will report.
cases_count() { # suite
	if [[ -n ${SMC_CASES-} ]]; then
		local name wanted n=0
		while read -r name; do
			for wanted in $SMC_CASES; do
				[[ $name != "$wanted" ]] || n=$((n + 1))
			done
		done < <("$here/smc_cases" --list "$1")
		echo "$n"
	else
		"$here/smc_cases" --count "$1"
	fi
}

# Runs a suite of smc_cases and turns its lines into results.
cases_run() { # suite
	local line rest
	local -a only
	read -ra only <<<"${SMC_CASES-}"
	while IFS= read -r line; do
		case $line in
		'ok '*) tap_result ok "${line#ok }" ;;
		'not ok '*) tap_result "not ok" "${line#not ok }" ;;
		'skip '*)
			rest=${line#skip }
			tap_result skip "${rest%% - *}" "${rest#* - }"
			;;
		*) printf '%s\n' "$line" ;;
		esac
	done < <("$here/smc_cases" "$1" "${only[@]}" 2>&1)
}

# All of a script whose cases are a suite of smc_cases: two namespaces with an
# RDMA device each, or with "second" two of them.
suite_script() { # suite [second [regular expression of what it makes others say]]
	script_start
	need_command ip rdma nft
	need_cases_program
	log_start
	need_module
	tap_start $(($(cases_count "$1") + 1))
	net_up rdma || note "no namespaces here"
	[[ ${2-} != second ]] || net_second || note "no second wire here"
	cases_run "$1"
	net_down
	log_check "${1}_no_message_above_notice" "${3-}"
	tap_end
}
