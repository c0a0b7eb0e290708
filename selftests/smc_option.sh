#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The TCP option under unusual conditions: no checksum offload, SYN cookies,
# connection tracking, loss, many connections at once; and when the hooks that
# write it come and go.

# shellcheck source-path=SCRIPTDIR source=lib_smc.sh
. "$(dirname "$0")/lib_smc.sh"

script_start
need_command ip tc nft ethtool sysctl python3
server="smco$$s"
client="smco$$c"
trap 'printf "netns del %s\n" "$server" "$client" "${server}h" | ip -force -batch - 2>/dev/null; cleanup' EXIT
log_start
need_module
tap_start $(($("$here/option_cases.py" "$server" "$client" count) + 1))
if ! { ip netns add "$server" && ip netns add "$client" &&
	ip link add veth0 netns "$server" type veth peer name veth0 netns "$client" &&
	ip -n "$server" addr add 10.79.0.1/24 dev veth0 &&
	ip -n "$client" addr add 10.79.0.2/24 dev veth0 &&
	ip -n "$server" addr add fd79::1/64 dev veth0 nodad &&
	ip -n "$client" addr add fd79::2/64 dev veth0 nodad &&
	ip -n "$server" link set veth0 up && ip -n "$client" link set veth0 up; }; then
	note "the namespaces cannot be made"
fi
tap_from "$here/option_cases.py" "$server" "$client"
log_check option_no_message_above_notice
tap_end
