// SPDX-License-Identifier: GPL-2.0
/* Wrappers for rust/kapi/rdma/ and rust/kapi/pages.rs. */
#include <linux/pci.h>
#include <net/addrconf.h>
#include <net/ip6_route.h>
#include <net/route.h>

struct in_device *smc_helper___in_dev_get_rcu(const struct net_device *dev)
{
	return __in_dev_get_rcu(dev);
}

struct page *smc_helper_alloc_pages(gfp_t gfp, unsigned int order)
{
	return alloc_pages(gfp, order);
}

struct net *smc_helper_dev_net(const struct net_device *dev)
{
	return dev_net(dev);
}

u64 smc_helper_ib_dma_map_page(struct ib_device *dev, struct page *page,
			       unsigned long offset, size_t size,
			       enum dma_data_direction direction)
{
	return ib_dma_map_page(dev, page, offset, size, direction);
}

u64 smc_helper_ib_dma_map_single(struct ib_device *dev, void *ptr, size_t size,
				 enum dma_data_direction direction)
{
	return ib_dma_map_single(dev, ptr, size, direction);
}

int smc_helper_ib_dma_mapping_error(struct ib_device *dev, u64 addr)
{
	return ib_dma_mapping_error(dev, addr);
}

bool smc_helper_ib_dma_need_sync(struct ib_device *dev, u64 addr)
{
	return !ib_uses_virt_dma(dev) && dma_need_sync(dev->dma_device, addr);
}

void smc_helper_ib_dma_sync_single_for_cpu(struct ib_device *dev, u64 addr,
					   size_t size,
					   enum dma_data_direction direction)
{
	ib_dma_sync_single_for_cpu(dev, addr, size, direction);
}

void smc_helper_ib_dma_sync_single_for_device(struct ib_device *dev, u64 addr,
					      size_t size,
					      enum dma_data_direction direction)
{
	ib_dma_sync_single_for_device(dev, addr, size, direction);
}

void smc_helper_ib_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
				  enum dma_data_direction direction)
{
	ib_dma_unmap_page(dev, addr, size, direction);
}

void smc_helper_ib_dma_unmap_single(struct ib_device *dev, u64 addr,
				    size_t size,
				    enum dma_data_direction direction)
{
	ib_dma_unmap_single(dev, addr, size, direction);
}

int smc_helper_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			    const struct ib_recv_wr **bad_wr)
{
	return ib_post_recv(qp, wr, bad_wr);
}

int smc_helper_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			    const struct ib_send_wr **bad_wr)
{
	return ib_post_send(qp, wr, bad_wr);
}

void smc_helper_ib_update_fast_reg_key(struct ib_mr *mr, u8 newkey)
{
	ib_update_fast_reg_key(mr, newkey);
}

void smc_helper_init_completion(struct completion *x)
{
	init_completion(x);
}

void smc_helper_init_irq_work(struct irq_work *work,
			      void (*func)(struct irq_work *work))
{
	init_irq_work(work, func);
}

/* What the network interface of a port shows; false if there is none. */
bool smc_helper_rdma_port_interface(struct ib_device *device, u32 port, u32 *mtu, bool *up)
{
	struct net_device *ndev = ib_device_get_netdev(device, port);

	if (!ndev)
		return false;
	*mtu = READ_ONCE(ndev->mtu);
	*up = netif_running(ndev) && netif_carrier_ok(ndev);
	dev_put(ndev);
	return true;
}

bool smc_helper_rdma_protocol_roce_eth_encap(const struct ib_device *device,
					     u32 port)
{
	return rdma_protocol_roce_eth_encap(device, port);
}

bool smc_helper_netif_running(const struct net_device *dev)
{
	return netif_running(dev);
}

void *smc_helper_page_address(struct page *page)
{
	return page_address(page);
}

void smc_helper_rdma_ah_set_dmac(struct rdma_ah_attr *attr, const u8 *mac)
{
	memcpy(rdma_ah_retrieve_dmac(attr), mac, ETH_ALEN);
}

void smc_helper_rdma_ah_set_grh(struct rdma_ah_attr *attr, union ib_gid *dgid,
				u32 flow_label, u8 sgid_index, u8 hop_limit,
				u8 traffic_class)
{
	rdma_ah_set_grh(attr, dgid, flow_label, sgid_index, hop_limit,
			traffic_class);
}

void smc_helper_rdma_ah_set_port_num(struct rdma_ah_attr *attr, u32 port_num)
{
	rdma_ah_set_port_num(attr, port_num);
}

enum rdma_ah_attr_type smc_helper_rdma_ah_find_type(struct ib_device *dev,
						    u32 port_num)
{
	return rdma_ah_find_type(dev, port_num);
}

void smc_helper_sg_set_dma_page(struct scatterlist *sg, struct page *page,
				unsigned int len, u64 addr)
{
	sg_set_page(sg, page, len, 0);
	sg_dma_address(sg) = addr;
	sg_dma_len(sg) = len;
}

/*
 * Whether a softirq that is raised here runs without ksoftirqd: in an interrupt
 * or a softirq, or with softirqs off.  Where an irq_work has no interrupt of its
 * own it would come later than ksoftirqd.
 */
bool smc_helper_softirq_comes_at_once(void)
{
	return in_interrupt() || !arch_irq_work_has_interrupt();
}

void smc_helper_pin_this_module(void)
{
	__module_get(THIS_MODULE);
}

/* The number of the network interface of a port, 0 without one in net. */
u32 smc_helper_ib_netdev_index(struct ib_device *dev, u32 port,
			       const struct net *net)
{
	struct net_device *ndev = ib_device_get_netdev(dev, port);
	u32 index = ndev && net_eq(dev_net(ndev), net) ? ndev->ifindex : 0;

	dev_put(ndev);
	return index;
}

/*
 * The names of an interface and of the lowest one below it, and the VLAN of its
 * frames; RCU is read-locked.
 */
static void names_of(struct net_device *dev, char *name, char *base, u16 *vlan)
{
	struct net_device *next;
	struct list_head *iter;

	strscpy(name, dev->name, IFNAMSIZ);
	*vlan = 0xffff;
	do {
		if (*vlan == 0xffff && is_vlan_dev(dev))
			*vlan = vlan_dev_vlan_id(dev);
		iter = &dev->adj_list.lower;
		next = netdev_next_lower_dev_rcu(dev, &iter);
		dev = next ?: dev;
	} while (next);
	strscpy(base, dev->name, IFNAMSIZ);
}

/*
 * The interface by which packets take a route: for those that stay on this
 * machine the one that has the address. RCU is read-locked.
 */
static struct net_device *dev_of(struct net *net, struct rtable *rt,
				 __be32 local)
{
	struct net_device *dev = dst_dev_rcu(&rt->dst);

	if (dev->flags & IFF_LOOPBACK)
		dev = __ip_dev_find(net, local, false) ?: dev;
	return dev;
}

/*
 * The names of the interface by which packets from local to peer leave net, and
 * of the lowest one below it, and the VLAN of its frames.
 */
bool smc_helper_route_names(struct net *net, __be32 local, __be32 peer,
			    char *name, char *base, u16 *vlan)
{
	struct rtable *rt = ip_route_output(net, peer, local, 0, 0,
					    RT_SCOPE_UNIVERSE);

	if (IS_ERR(rt))
		return false;
	rcu_read_lock();
	names_of(dev_of(net, rt, local), name, base, vlan);
	rcu_read_unlock();
	ip_rt_put(rt);
	return true;
}

/*
 * The subnets of that interface, each by an address in it and the length of its
 * prefix, at most so many: first those of our own address. Returns how many.
 */
int smc_helper_route_subnets(struct net *net, __be32 local, __be32 peer,
			     __be32 *addrs, u8 *lens, int most)
{
	struct rtable *rt = ip_route_output(net, peer, local, 0, 0,
					    RT_SCOPE_UNIVERSE);
	const struct in_ifaddr *ifa;
	struct in_device *in_dev;
	int own, n = 0;

	if (IS_ERR(rt))
		return 0;
	rcu_read_lock();
	in_dev = __in_dev_get_rcu(dev_of(net, rt, local));
	for (own = 1; in_dev && own >= 0; own--) {
		in_dev_for_each_ifa_rcu(ifa, in_dev) {
			if (n == most || inet_ifa_match(local, ifa) != own)
				continue;
			addrs[n] = ifa->ifa_address;
			lens[n++] = inet_mask_len(ifa->ifa_mask);
		}
	}
	rcu_read_unlock();
	ip_rt_put(rt);
	return n;
}

#if IS_ENABLED(CONFIG_IPV6)
/* Which way packets go by IPv6, by way of the interface via if that is not 0. */
static struct dst_entry *route6(struct net *net, int via,
				const struct in6_addr *local,
				const struct in6_addr *peer)
{
	struct flowi6 fl6 = {
		.flowi6_oif = via,
		.saddr = *local,
		.daddr = *peer,
	};

	return ip6_route_output(net, NULL, &fl6);
}

/* As dev_of. */
static struct net_device *dev_of6(struct net *net, struct dst_entry *dst,
				  const struct in6_addr *local)
{
	struct net_device *dev = dst_dev_rcu(dst);

	if (dev->flags & IFF_LOOPBACK)
		dev = ipv6_dev_find(net, local, NULL) ?: dev;
	return dev;
}
#endif

/* The same names for IPv6. */
bool smc_helper_route_names6(struct net *net, int via,
			     const struct in6_addr *local,
			     const struct in6_addr *peer, char *name,
			     char *base, u16 *vlan)
{
#if IS_ENABLED(CONFIG_IPV6)
	struct dst_entry *dst = route6(net, via, local, peer);
	bool found = !dst->error;

	if (found) {
		rcu_read_lock();
		names_of(dev_of6(net, dst, local), name, base, vlan);
		rcu_read_unlock();
	}
	dst_release(dst);
	return found;
#else
	return false;
#endif
}

/* The same subnets for IPv6. */
int smc_helper_route_subnets6(struct net *net, int via,
			      const struct in6_addr *local,
			      const struct in6_addr *peer,
			      struct in6_addr *addrs, u8 *lens, int most)
{
	int n = 0;
#if IS_ENABLED(CONFIG_IPV6)
	struct dst_entry *dst = route6(net, via, local, peer);
	struct inet6_ifaddr *ifa;
	struct inet6_dev *idev;

	if (!dst->error) {
		rcu_read_lock();
		idev = __in6_dev_get(dev_of6(net, dst, local));
		if (idev) {
			read_lock_bh(&idev->lock);
			list_for_each_entry(ifa, &idev->addr_list, if_list) {
				if (n == most)
					break;
				addrs[n] = ifa->addr;
				lens[n++] = ifa->prefix_len;
			}
			read_unlock_bh(&idev->lock);
		}
		rcu_read_unlock();
	}
	dst_release(dst);
#endif
	return n;
}

/* Whether one of an interface's IPv6 prefixes contains addr. */
bool smc_helper_has_prefix6(struct net_device *dev, const struct in6_addr *addr)
{
#if IS_ENABLED(CONFIG_IPV6)
	return ipv6_chk_prefix(addr, dev);
#else
	return false;
#endif
}

/* What a device on the PCI bus is; false for one that is on no such bus. */
bool smc_helper_ib_pci_about(const struct ib_device *dev, u16 *vendor,
			     u16 *device, char *name, size_t len)
{
#ifdef CONFIG_PCI
	if (dev->dev.parent && dev_is_pci(dev->dev.parent)) {
		const struct pci_dev *pdev = to_pci_dev(dev->dev.parent);

		*vendor = pdev->vendor;
		*device = pdev->device;
		strscpy(name, pci_name(pdev), len);
		return true;
	}
#endif
	return false;
}
