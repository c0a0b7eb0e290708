// SPDX-License-Identifier: GPL-2.0
/* Wrappers for rust/kapi/netlink/. */

int smc_helper_nla_put_text(struct sk_buff *skb, int type, const void *text,
			    size_t len)
{
	struct nlattr *attr = nla_reserve(skb, type, len + 1);

	if (!attr)
		return -EMSGSIZE;
	memcpy(nla_data(attr), text, len);
	((char *)nla_data(attr))[len] = 0;
	return 0;
}

int smc_helper_nla_put_u64_aligned(struct sk_buff *skb, int type, u64 value,
				   int pad)
{
	return nla_put_u64_64bit(skb, type, value, pad);
}

int smc_helper_nla_put_variable(struct sk_buff *skb, int type, u64 value)
{
	return nla_put_uint(skb, type, value);
}

void *smc_helper_nla_nest_begin(struct sk_buff *skb, int type)
{
	return nla_nest_start(skb, type);
}

void smc_helper_nla_nest_close(struct sk_buff *skb, void *nest)
{
	nla_nest_end(skb, nest);
}

/* The length and, in *value, the place of a parsed attribute; -1 without it. */
int smc_helper_genl_attribute(const struct genl_info *info, unsigned int type,
			      const void **value)
{
	const struct nlattr *attr = info->attrs ? info->attrs[type] : NULL;

	if (!attr)
		return -1;
	*value = nla_data(attr);
	return nla_len(attr);
}

void smc_helper_genl_explain(const struct genl_info *info, const char *text)
{
	if (info->extack)
		info->extack->_msg = text;
}

struct net *smc_helper_genl_net(const struct genl_info *info)
{
	return genl_info_net(info);
}

const struct genl_info *smc_helper_genl_dump_info(struct netlink_callback *cb)
{
	return genl_info_dump(cb);
}

u8 smc_helper_genl_dump_command(struct netlink_callback *cb)
{
	return ((struct genlmsghdr *)nlmsg_data(cb->nlh))->cmd;
}

u32 smc_helper_dump_port(const struct netlink_callback *cb)
{
	return NETLINK_CB(cb->skb).portid;
}

struct net *smc_helper_dump_net(const struct sk_buff *skb)
{
	return sock_net(skb->sk);
}

void smc_helper_genl_message_end(struct sk_buff *skb, void *payload)
{
	genlmsg_end(skb, payload);
}

void smc_helper_genl_message_cancel(struct sk_buff *skb, void *payload)
{
	genlmsg_cancel(skb, payload);
}

struct sk_buff *smc_helper_genl_reply_new(void)
{
	return genlmsg_new(GENLMSG_DEFAULT_SIZE, GFP_KERNEL);
}

/* Ends a reply of several parts. */
int smc_helper_genl_reply_done(struct sk_buff *skb, const struct genl_info *info)
{
	return nlmsg_put(skb, info->snd_portid, info->snd_seq, NLMSG_DONE, 0,
			 NLM_F_MULTI) ? 0 : -EMSGSIZE;
}

int smc_helper_genl_reply_send(struct sk_buff *skb, struct genl_info *info)
{
	return genlmsg_reply(skb, info);
}

bool smc_helper_genl_has_listeners(const struct genl_family *family,
				   struct net *net, unsigned int group)
{
	return genl_has_listeners(family, net, group) > 0;
}

struct sk_buff *smc_helper_genl_event_new(void)
{
	return genlmsg_new(GENLMSG_DEFAULT_SIZE, GFP_ATOMIC);
}

/* Gives the message away. */
int smc_helper_genl_multicast(const struct genl_family *family, struct net *net,
			      struct sk_buff *skb, unsigned int group)
{
	return genlmsg_multicast_netns(family, net, skb, 0, group, GFP_ATOMIC);
}

void smc_helper_reply_free(struct sk_buff *skb)
{
	nlmsg_free(skb);
}

/* Begins or goes on with a dump of sockets for the request in skb. */
int smc_helper_diag_dump_start(struct sk_buff *skb, const struct nlmsghdr *nlh,
			       int (*dump)(struct sk_buff *,
					   struct netlink_callback *),
			       struct module *owner)
{
	struct netlink_dump_control control = {
		.dump = dump,
		.module = owner,
		.min_dump_alloc = SKB_WITH_OVERHEAD(32768),
	};

	if (nlh->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
	    !(nlh->nlmsg_flags & NLM_F_DUMP))
		return 0;
	return __netlink_dump_start(sock_net(skb->sk)->diag_nlsk, skb, nlh,
				    &control);
}

/* The request of a dump, and in *len its length. */
const void *smc_helper_dump_request(const struct netlink_callback *cb,
				    size_t *len)
{
	*len = nlmsg_len(cb->nlh);
	return nlmsg_data(cb->nlh);
}

/* A message of a dump with a payload of len bytes, which is returned. */
void *smc_helper_diag_message_new(struct sk_buff *skb,
				  const struct netlink_callback *cb, size_t len)
{
	struct nlmsghdr *nlh = nlmsg_put(skb, NETLINK_CB(cb->skb).portid,
					 cb->nlh->nlmsg_seq,
					 cb->nlh->nlmsg_type, len, NLM_F_MULTI);

	return nlh ? nlmsg_data(nlh) : NULL;
}

void smc_helper_diag_message_end(struct sk_buff *skb, void *payload)
{
	nlmsg_end(skb, payload - NLMSG_HDRLEN);
}

void smc_helper_diag_message_cancel(struct sk_buff *skb, void *payload)
{
	nlmsg_cancel(skb, payload - NLMSG_HDRLEN);
}

u64 smc_helper_sock_number(struct sock *sk)
{
	return sock_i_ino(sk);
}

/* The owner of a socket, as who reads skb sees it. */
u32 smc_helper_sock_owner(const struct sk_buff *skb, struct sock *sk)
{
	return from_kuid_munged(sk_user_ns(skb->sk), sk_uid(sk));
}

bool smc_helper_sock_hold_alive(struct sock *sk)
{
	return refcount_inc_not_zero(&sk->sk_refcnt);
}

u64 smc_helper_net_cookie(const struct net *net)
{
	return net->net_cookie;
}

void smc_helper_percpu_count(u64 __percpu *counter, u64 by)
{
	this_cpu_add(*counter, by);
}

u64 smc_helper_percpu_total(const u64 __percpu *counter)
{
	u64 total = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		total += READ_ONCE(*per_cpu_ptr(counter, cpu));
	return total;
}
