#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Handshakes with a peer that is made by hand and says what it should not.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip rdma nft python3
server="smcl$$s"
client="smcl$$c"
trap 'rdma link delete "$server" 2>/dev/null; ip netns del "$server" 2>/dev/null; ip netns del "$client" 2>/dev/null; cleanup' EXIT
log_start
need_module
tap_start $(($("$here/clc_cases.py" "$server" "$client" count) + 1))
modprobe -q rdma_rxe
# The peer's kernel must not answer what it knows nothing of.
if ! { ip netns add "$server" && ip netns add "$client" &&
	ip link add veth0 netns "$server" type veth peer name veth0 netns "$client" &&
	ip -n "$server" addr add 10.76.0.1/24 dev veth0 &&
	ip -n "$client" addr add 10.76.0.2/24 dev veth0 &&
	ip -n "$server" link set veth0 up && ip -n "$client" link set veth0 up &&
	ip netns exec "$server" rdma link add "$server" type rxe netdev veth0 &&
	ip netns exec "$client" nft 'add table ip smcl; add chain ip smcl in { type filter hook prerouting priority -300; }; add rule ip smcl in meta l4proto tcp drop'; }; then
	note "the namespaces cannot be made"
fi
tap_from "$here/clc_cases.py" "$server" "$client"
log_check clc_no_message_above_notice
tap_end
