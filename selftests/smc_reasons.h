/* SPDX-License-Identifier: GPL-2.0 */
/* Why connections go by TCP: written by scripts/reasons. */
#define SMC_REASONS(row) \
	row(0x01010000, "out of memory") \
	row(0x02010000, "the first message over RDMA did not come through") \
	row(0x02020000, "the peer's second link did not come in time") \
	row(0x03000000, "the two ends are configured in different ways") \
	row(0x03010000, "the other side did not answer the SMC option") \
	row(0x03020000, "an IPsec policy covers the connection") \
	row(0x03030000, "no usable SMC device on this side") \
	row(0x03030001, "no usable SMC-D device on this side") \
	row(0x03030002, "no usable RDMA device on this side") \
	row(0x03030003, "the hardware lacks version 2 of SMC-D") \
	row(0x03030004, "the peer's offer lacks version 2") \
	row(0x03030005, "the peer's offer lacks version 2 of SMC-D") \
	row(0x03030006, "no system enterprise id in common") \
	row(0x03030007, "no usable device for version 2 of SMC-D") \
	row(0x03030008, "no enterprise id in common") \
	row(0x03030009, "the peer confirmed another release than was agreed") \
	row(0x0303000a, "no agreement on the number of connections") \
	row(0x0303000b, "no agreement on the number of links") \
	row(0x03040000, "the peer wants a mode that is not supported") \
	row(0x03050000, "the peer wants eyecatchers in its buffers") \
	row(0x03060000, "Fast Open was asked for") \
	row(0x03070000, "the two hosts are in different subnets") \
	row(0x03080000, "the VLAN could not be determined") \
	row(0x03090000, "the SMC-D device refused the VLAN") \
	row(0x030a0000, "no link of the link group works") \
	row(0x030b0000, "the link that the server named is not known") \
	row(0x030c0000, "the two hosts have no version of SMC in common") \
	row(0x030d0000, "the SMC-D device has no buffers left") \
	row(0x030e0000, "no route for RDMA to the peer's device") \
	row(0x030f0000, "one side reaches the other through a gateway, the other directly") \
	row(0x03f00000, "net.smc.tcp2smc_allow or _deny excludes the port") \
	row(0x04000000, "the two ends differ about their link groups") \
	row(0x05000000, "the peer declined") \
	row(0x09990000, "internal error") \
	row(0x09990001, "the peer's memory key could not be stored") \
	row(0x09990002, "the link could not be made ready") \
	row(0x09990003, "a buffer could not be registered")
