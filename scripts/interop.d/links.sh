# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2154 # variables of interop, which reads this
#
# The second links of interop: devices that come and go, refusals, and connections that move.

# Runs a command over two more wires, with devices on them, usually one on each of them at either side.
with_devices() { # C's, ours, setting of this side to be 1 meanwhile, or ""; command
	local devices=$1 setting=$3 before number status=0 address=10.88.1.${address##*.}
	if [[ $me == ours ]]; then devices=$2; fi
	shift 3
	# C takes a second device of the same subnet only.
	ip address flush dev eth2 scope global
	ip address add "10.88.1.1${own_address##*.}/24" dev eth2 noprefixroute
	# The first device would be one more.
	if [[ $devices != "1 2" ]]; then device delete || status=1; fi
	for number in $devices; do device add "$number" || status=1; done
	if [[ -n $setting ]]; then
		before=$(sysctl -n "net.smc.$setting")
		sysctl -qw "net.smc.$setting=1"
	fi
	vm-barrier "$name-$client-1"
	"$@" || status=1
	vm-barrier "$name-$client-2"
	if [[ -n $setting ]]; then sysctl -qw "net.smc.$setting=$before"; fi
	# Deleting a device of C waits for a peer that is there.
	if [[ $me == c ]]; then vm-barrier "$name-$client-3"; fi
	for number in 1 2; do
		if [[ -e /sys/class/infiniband/rxe$number ]]; then device delete $number || status=1; fi
	done
	if [[ ! -e /sys/class/infiniband/rxe0 ]]; then device add || status=1; fi
	if [[ $me == ours ]]; then vm-barrier "$name-$client-3"; fi
	return "$status"
}

# Messages of LLC that have crossed the wires, told by the first byte and two bits of the flags.
on_wire() { # sender, first byte, flags
	local from="(src host 10.88.0.2 or src host 10.88.1.2 or src host 10.88.1.12)"
	if [[ $1 == c ]]; then from="not $from"; fi
	tcpdump -nr /mnt/out/wire.pcap "udp[20] = $2 and udp[23] & 0xc0 = $3 and $from" 2>/tmp/on_wire | wc -l
}

# The server offers a second link, the client refuses it, and connections do not notice.
refused() {
	local status=0 server=c offers=0 refusals=0
	if [[ $client == c ]]; then server=ours; fi
	if [[ $me == ours ]]; then
		offers=$(on_wire $server 0x22 0)
		refusals=$(on_wire "$client" 0x22 0xc0)
	fi
	dance "mode:smcr swap:1000 wait:2000 sync swap:300000 close" "mode:smcr swap:1000 wait:2000 sync swap:300000 close" ||
		status=1
	group_is single || status=1
	transfer 300000 4 smcr || status=1
	if [[ $me == ours ]]; then
		sleep 2 # what was captured last has to be written
		offers=$(($(on_wire $server 0x22 0) - offers))
		refusals=$(($(on_wire "$client" 0x22 0xc0) - refusals))
		if ((offers < 1 || refusals < 1)); then
			say "$server has offered a link $offers times, $client has refused it $refusals times"
			status=1
		fi
	fi
	group_is single || status=1
	return "$status"
}

# The newest group of this side becomes one of such a kind before long.
group_is() { # single|symmetric
	local i
	for ((i = 0; i < 600; i++)); do # a side asks again after 16 s, or 32
		if "$progs/smc_peer" lgrs | tail -n 1 | grep -q "type=$1 "; then return 0; fi
		sleep 0.1
	done
	say "the group is not $1:"
	"$progs/smc_peer" lgrs | sed "s/^/# $me: /"
	dmesg | tail -n 20 | sed "s/^/# $me: /"
	return 1
}

second_link() { # single|symmetric
	local status=0
	transfer 1000 1 smcr || status=1
	group_is "$1" || status=1
	transfer 1000000 8 smcr || status=1
	return "$status"
}

# A side without traffic loses a link, tells the other one, and gets it back.
link_goes() { # side
	local status=0 what want
	transfer 1000 2 smcr || status=1
	group_is symmetric || status=1
	for what in delete add; do
		vm-barrier "$name-$client-before-$what"
		# As the server C waits for ever for what is on its way on a link that goes.
		sleep 2
		if [[ $me == "$1" ]]; then device $what 2 || status=1; fi
		want=single
		if [[ $what == add ]]; then want=symmetric; fi
		group_is $want || status=1
		vm-barrier "$name-$client-after-$what"
		transfer 1000000 4 smcr || status=1
	done
	return "$status"
}

# Connections that stay open meanwhile, each by a program of its own, whose steps wait for files here.
open_connections() { # count, steps that both sides do, with a mark 1
	local count=$1 i j conn
	shift
	rm -rf /tmp/open
	mkdir /tmp/open
	dancers=()
	for ((i = 0; i < count; i++)); do
		port=$((port + 2))
		conn=listen
		if is_client; then conn=connect; fi
		(cd /tmp/open && exec "$progs/smc_dance" $conn "$address" $port smc "$@") >/tmp/open/log.$port 2>&1 &
		dancers+=($!)
		# One after the other: it is not about many at once.
		for ((j = 0; j < 200; j++)); do
			if [[ -e /tmp/open/1.$port ]]; then break; fi
			sleep 0.1
		done
	done
}

# All open connections of this side have come to a mark.
reached() { # name
	local i files
	for ((i = 0; i < 600; i++)); do
		files=(/tmp/open/"$1".*)
		if [[ -e ${files[0]} && ${#files[@]} == "${#dancers[@]}" ]]; then
			return
		fi
		if ! kill -0 "${dancers[@]}" 2>/dev/null; then break; fi
		sleep 0.1
	done
	say "not all connections have come to $1"
	return 1
}

# Those of both sides have come to a mark.
marked() { # name
	local status=0
	reached "$1" || status=1
	vm-barrier "$name-$client-$1"
	return "$status"
}

# The end of the open connections.
close_connections() {
	local pid log status=0
	touch /tmp/open/the_end
	for pid in "${dancers[@]}"; do wait "$pid" || status=1; done
	for log in /tmp/open/log.*; do
		if ((status)); then note_file "$log"; fi
	done
	return "$status"
}

# Which devices the open connections used at a mark; C does not say.
used_devices() { # what is expected, at which turn
	local got
	if [[ $me == c ]]; then return; fi
	got=$(for log in /tmp/open/log.*; do sed -n 's/^link .*device=\([^ ]*\).*/\1/p' "$log" | sed -n "$2p"; done | sort | uniq | xargs)
	if [[ $got != "$1" ]]; then
		say "at turn $2 the connections use $got, not $1"
		return 1
	fi
}

# Idle connections lose the link of a device at one side, and go on over the other one.
idle_lose() { # side, number of the device, mark that they come to, device that is left
	local status=0
	if [[ $me == "$1" ]]; then device delete "$2" || status=1; fi
	group_is single || status=1
	vm-barrier "$name-$client-lost-$2"
	touch "/tmp/open/$3"
	marked "$3" || status=1
	used_devices "$4" "$3" || status=1
	return "$status"
}

# Idle connections on two links lose the one, which comes back, and then the other one.
failover() { # side
	local status=0 act=$1
	transfer 1000 2 smcr || status=1
	group_is symmetric || status=1
	open_connections 4 mode:smcr swap:20000 link mark:1 await:2 swap:1000000 link mark:2 await:3 swap:1000000 \
		link mark:3 await:the_end close
	marked 1 || status=1
	sleep 2 # what was sent is complete
	used_devices "rxe1 rxe2" 1 || status=1
	idle_lose "$act" 2 2 rxe1 || status=1
	if [[ $me == "$act" ]]; then device add 2 || status=1; fi
	group_is symmetric || status=1
	vm-barrier "$name-$client-back-2"
	sleep 1
	idle_lose "$act" 1 3 rxe2 || status=1
	close_connections || status=1
	return "$status"
}

# The same once, with data on its way in both directions.
failover_in_mid_transfer() { # side
	local status=0
	transfer 1000 2 smcr || status=1
	group_is symmetric || status=1
	open_connections 4 mode:smcr swap:20000 link mark:1 await:2 swap:200000 mark:flow swap:4000000 link mark:2 \
		await:the_end close
	marked 1 || status=1
	used_devices "rxe1 rxe2" 1 || status=1
	touch /tmp/open/2
	reached flow || status=1
	if [[ $me == "$1" ]]; then device delete 2 || status=1; fi
	group_is single || status=1
	marked 2 || status=1
	used_devices rxe1 2 || status=1
	close_connections || status=1
	return "$status"
}
