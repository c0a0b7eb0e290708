#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Two machines on one wire, each with a module of its own.  Runs on both at the
# same time, with the machine's name, a or b, as its argument; a is 10.88.0.1 and
# b is 10.88.0.2, on eth0.  "vm-barrier NAME" waits until the other machine has
# come to NAME as well: scripts/vm --pair provides all this.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

pair_role "${1-}"
script_start
need_command ip rdma nft sha256sum vm-barrier
[[ -x $here/smc_xfer ]] || tap_skip_all "smc_xfer is not built, run make -C selftests"
log_start
need_module
work=$(mktemp -d)
trap 'rdma link delete rxe0 2>/dev/null; rdma link delete rxe1 2>/dev/null; ip link delete smcp1 2>/dev/null; nft delete table inet smcp 2>/dev/null; rm -rf "$work"; cleanup' EXIT
log=$work/log
# What a sends, and what b sends.
seq 1 300000 >"$work/a"
seq 400001 700000 >"$work/b"
if [[ $role == a ]]; then other=b; else other=a; fi
payload=$(stat -c %s "$work/$role")
incoming=$(stat -c %s "$work/$other")
want=$(sha256sum <"$work/$other")
want=${want%% *}

counted() { # prints: RDMA bytes sent, received, TCP bytes
	local sent=0 rcvd=0 tcp dir
	for dir in /sys/class/infiniband/rxe*/ports/1/hw_counters; do
		sent=$((sent + $(<"$dir/sent_bytes")))
		rcvd=$((rcvd + $(<"$dir/rcvd_bytes")))
	done
	tcp=$(nft list counter inet smcp tcp_bytes)
	tcp=${tcp##*bytes }
	echo "$sent $rcvd ${tcp%%[!0-9]*}"
}

# Both machines go through the same transfers; a listens.  The status is that of
# this machine's program.
transfer() { # name, options of a, options of b
	local status=0 pid
	vm-barrier "$1-begin"
	read -r sent rcvd tcp < <(counted)
	if [[ $role == a ]]; then
		# shellcheck disable=SC2086 # the options are words
		"$here/smc_xfer" --listen 10.88.0.1 -e -t 60 $2 >"$log" 2>&1 &
		pid=$!
		busywait 10000 grep -q ready "$log" || note "it does not listen"
		vm-barrier "$1-ready"
	else
		vm-barrier "$1-ready"
		# shellcheck disable=SC2086 # as above
		"$here/smc_xfer" --connect 10.88.0.1 -e -t 60 $3 >"$log" 2>&1 &
		pid=$!
	fi
	case $1 in
	unload) unload_meanwhile ;;
	failover) lose_interface ;;
	esac
	wait "$pid" || status=$?
	vm-barrier "$1-end"
	if [[ -d /sys/class/infiniband/rxe0 ]] && module_loaded; then
		read -r sent_now rcvd_now tcp_now < <(counted)
	fi
	return "$status"
}

# This machine's connections: so many, of this mode, all with the right bytes.
arrived() { # connections, mode
	[[ $(grep -c "^conn .* mode=$2 .* received=$incoming received_sha256=$want" "$log") == "$1" ]]
}

# Counters outside of the module say that RDMA carried the bytes.
by_rdma() { # connections
	((sent_now - sent >= payload * $1 && rcvd_now - rcvd >= incoming * $1 && tcp_now - tcp < 4096 * $1))
}

by_tcp() {
	((tcp_now - tcp >= payload + incoming && sent_now - sent < 32768 && rcvd_now - rcvd < 32768))
}

verdict() { # name, status of all checks
	if [[ $2 == 0 ]]; then
		tap_result ok "$1"
	else
		sed 's/^/# /' "$log"
		note "RDMA sent $sent to $sent_now, received $rcvd to $rcvd_now, TCP $tcp to $tcp_now"
		tap_result "not ok" "$1"
	fi
}

link_groups() {
	sed -n 's/^conn .* lgr=\([0-9]*\) .*/\1/p' "$log" | sort -u
}

files_cross() { # name of the case
	local status=0
	transfer "$1" "-s $work/a" "-s $work/b" && arrived 1 smcr && by_rdma 1 || status=1
	verdict "$1" "$status"
}

later_connections() {
	local status=0 before
	before=$(link_groups)
	transfer many "-n 6 -b $payload -s $work/a" "-n 6 -b $payload -s $work/b" && arrived 6 smcr && by_rdma 6 &&
		[[ $(link_groups) == "$before" ]] || status=1
	verdict pair_later_connections_reuse_the_link_group "$status"
}

plain_peer() { # name of the case, the machine with TCP sockets
	local status=0 mode=tcp options_a="-s $work/a" options_b="-s $work/b"
	if [[ $2 == a ]]; then options_a+=" -f tcp"; else options_b+=" -f tcp"; fi
	[[ $2 != "$role" ]] || mode='[a-z]*'
	transfer "$1" "$options_a" "$options_b" && arrived 1 "$mode" && by_tcp || status=1
	if [[ $2 != "$role" ]] && ! grep -q 'reason=0x03010000' "$log"; then status=1; fi
	verdict "$1" "$status"
}

# While the transfer runs, on b alone.
unload_meanwhile() {
	[[ $role == b ]] || return 0
	busywait 10000 connected || note "there is no connection"
	if rmmod smc_rs 2>/dev/null; then note "rmmod was not refused" && refused=; fi
	"$SMC_UNLOAD" -q -t 40 >"$work/unload" 2>&1 || unloaded=
}

# shellcheck disable=SC2317 # busywait calls it
connected() {
	local now
	read -r now _ < <(counted)
	((now - sent > 1000000))
}

# shellcheck disable=SC2317 # as above
unreferenced() {
	[[ $(module_refcount) == 0 ]]
}

unload() {
	local status=0 began=$SECONDS
	refused=1
	unloaded=1
	# More than there is time for.
	if transfer unload "--no-hash -b 134217728 -R 134217728" "--no-hash -b 134217728 -R 134217728"; then
		note "the transfer came to an end"
		status=1
	fi
	((SECONDS - began < 55)) || status=1
	if [[ $role == a ]]; then
		busywait 10000 unreferenced || status=1
	else
		[[ -n $refused && -n $unloaded ]] && ! module_loaded || status=1
		[[ $status == 0 ]] || sed 's/^/# /' "$work/unload"
		module_load
	fi
	verdict pair_unload_during_a_transfer_ends_it_on_both_sides "$status"
}

# A second device on either machine, on an interface of its own over the same wire.
second_device() {
	local own=10.89.0.1
	[[ $role == a ]] || own=10.89.0.2
	# Who asks for an address of one interface must not be told that of the other.
	sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
	ip link add smcp1 link eth0 type macvlan mode bridge && ip addr add "$own/24" dev smcp1 &&
		ip link set smcp1 up && rdma link add rxe1 type rxe netdev smcp1
}

# Queue pairs of the module to a peer, on a device: those that can send, but for the
# one of each link that registers keys and never sends.
# shellcheck disable=SC2317 # busywait calls what calls it
ready_on() { # device
	rdma resource show qp | grep "^link $1/1 .*state RTS.*\[smc_rs\]" | grep -cv ' rq-psn 0 ' || :
}

# shellcheck disable=SC2317 # busywait calls it
both_links() {
	[[ $(ready_on rxe0) == 1 && $(ready_on rxe1) == 1 ]]
}

# shellcheck disable=SC2317 # as above
one_link() {
	[[ $(ready_on rxe1) == 0 ]]
}

# While the transfer runs: b loses an interface, which a can learn from b alone.
lose_interface() {
	[[ $role == a ]] || busywait 10000 connected || note "there is no connection"
	[[ $role == a ]] || ip link set smcp1 down
	vm-barrier failover-lost
	busywait 1000 one_link || moved=
}

failover() {
	local status=0
	moved=1
	transfer warm "-s $work/a" "-s $work/b" || status=1
	busywait 15000 both_links || {
		note "there is no second link"
		status=1
	}
	vm-barrier failover-linked
	transfer failover "-n 12 -b $payload -s $work/a" "-n 12 -b $payload -s $work/b" && arrived 12 smcr &&
		by_rdma 12 || status=1
	[[ -n $moved ]] || {
		note "the other link is still there"
		status=1
	}
	[[ $role == a ]] || ip link set smcp1 up
	busywait 15000 both_links || {
		note "the second link does not come back"
		status=1
	}
	verdict pair_interface_lost_on_one_side_moves_connections_of_both "$status"
}

sent=0 rcvd=0 tcp=0 sent_now=0 rcvd_now=0 tcp_now=0 refused='' unloaded='' moved=''
tap_start 8
pair_device_up
nft -f - <<-'RULES'
	table inet smcp {
		counter tcp_bytes { }
		chain in { type filter hook input priority 0; meta l4proto tcp counter name tcp_bytes; }
		chain out { type filter hook output priority 0; meta l4proto tcp counter name tcp_bytes; }
	}
RULES
files_cross pair_files_cross_both_ways_by_rdma
later_connections
plain_peer pair_client_with_plain_tcp_is_served b
plain_peer pair_server_with_plain_tcp_is_reached a
unload
# A group has two links only where there was a device for the second one when it was made.
second_device || note "no second RDMA device"
vm-barrier second-device
files_cross pair_files_cross_after_the_module_was_loaded_again
failover
log_check pair_no_message_above_notice
tap_end
