// SPDX-License-Identifier: GPL-2.0
/* Wrappers for rust/kapi/net/. */

struct net *smc_helper_sock_net(const struct sock *sk)
{
	return sock_net(sk);
}

struct net *smc_helper_get_net(struct net *net)
{
	return get_net(net);
}

struct net *smc_helper_maybe_get_net(struct net *net)
{
	return maybe_get_net(net);
}

void smc_helper_put_net(struct net *net)
{
	put_net(net);
}

bool smc_helper_net_eq(const struct net *a, const struct net *b)
{
	return net_eq(a, b);
}

void *smc_helper_net_generic(const struct net *net, unsigned int id)
{
	return net_generic(net, id);
}

void smc_helper_sock_hold(struct sock *sk)
{
	sock_hold(sk);
}

void smc_helper_sock_put(struct sock *sk)
{
	sock_put(sk);
}

void smc_helper_lock_sock(struct sock *sk)
{
	lock_sock(sk);
}

void smc_helper_sk_callback_lock(struct sock *sk)
{
	write_lock_bh(&sk->sk_callback_lock);
}

void smc_helper_sk_callback_unlock(struct sock *sk)
{
	write_unlock_bh(&sk->sk_callback_lock);
}

int smc_helper_sock_error(struct sock *sk)
{
	return sock_error(sk);
}

long smc_helper_sock_rcvtimeo(const struct sock *sk, bool noblock)
{
	return sock_rcvtimeo(sk, noblock);
}

/* How long a read looks for data before it sleeps (SO_BUSY_POLL), in microseconds. */
unsigned int smc_helper_sk_busy_us(const struct sock *sk)
{
#ifdef CONFIG_NET_RX_BUSY_POLL
	return READ_ONCE(sk->sk_ll_usec);
#else
	return 0;
#endif
}

/* A pause between two looks; whether the processor may go on with them. */
bool smc_helper_pause_looking(void)
{
	cpu_relax();
	return !need_resched() && !signal_pending(current);
}

long smc_helper_sock_sndtimeo(const struct sock *sk, bool noblock)
{
	return sock_sndtimeo(sk, noblock);
}

int smc_helper_sock_intr_errno(long timeo)
{
	return sock_intr_errno(timeo);
}

bool smc_helper_current_signal_pending(void)
{
	return signal_pending(current);
}

int smc_helper_sk_state_load(const struct sock *sk)
{
	return inet_sk_state_load(sk);
}

void smc_helper_sk_data_ready(struct sock *sk)
{
	sk->sk_data_ready(sk);
}

void smc_helper_sk_state_change(struct sock *sk)
{
	sk->sk_state_change(sk);
}

/* For sockets of which somebody has found no room: the kernel's own mark for that is TCP's. */
void smc_helper_sk_wake_writable(struct sock *sk)
{
	struct socket_wq *wq;

	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq))
		wake_up_interruptible_poll(&wq->wait,
					   EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND);
	sk_wake_async_rcu(sk, SOCK_WAKE_IO, POLL_OUT);
	rcu_read_unlock();
}

void smc_helper_sk_wake_async(struct sock *sk, int how, int band)
{
	sk_wake_async(sk, how, band);
}

void smc_helper_sk_urgent(struct sock *sk)
{
	/* The file of a socket that is being closed goes after the lock was taken once more. */
	read_lock_bh(&sk->sk_callback_lock);
	sk_send_sigurg(sk);
	read_unlock_bh(&sk->sk_callback_lock);
}

/* The owner of a TCP socket is found by its file: let it be that of the socket in front. */
void smc_helper_sock_show_file(struct socket *sock, const struct sock *front)
{
	struct socket *shown = front ? front->sk_socket : NULL;

	lock_sock(sock->sk);
	WRITE_ONCE(sock->file, shown ? shown->file : NULL);
	release_sock(sock->sk);
}

/* Options that getsockopt() reads from the sock in front: it shows those of the TCP sock. */
void smc_helper_sk_mirror_options(struct sock *to, const struct sock *from,
				  bool buffers)
{
	static const enum sock_flags flags[] = {
		SOCK_URGINLINE, SOCK_KEEPOPEN, SOCK_LINGER, SOCK_BROADCAST,
		SOCK_DBG, SOCK_RCVTSTAMP, SOCK_RCVTSTAMPNS, SOCK_LOCALROUTE,
		SOCK_RXQ_OVFL, SOCK_ZEROCOPY, SOCK_WIFI_STATUS, SOCK_NOFCS,
		SOCK_FILTER_LOCKED, SOCK_SELECT_ERR_QUEUE, SOCK_TXTIME,
		SOCK_TSTAMP_NEW, SOCK_RCVMARK, SOCK_RCVPRIORITY,
	};

	/* Flags are changed by read and write, not atomically. */
	lock_sock(to);
	for (unsigned int i = 0; i < ARRAY_SIZE(flags); i++)
		sock_valbool_flag(to, flags[i], sock_flag(from, flags[i]));
	to->sk_reuse = from->sk_reuse;
	to->sk_reuseport = from->sk_reuseport;
	to->sk_no_check_tx = from->sk_no_check_tx;
	to->sk_userlocks = from->sk_userlocks;
	if (buffers || (from->sk_userlocks & SOCK_SNDBUF_LOCK))
		WRITE_ONCE(to->sk_sndbuf, READ_ONCE(from->sk_sndbuf));
	if (buffers || (from->sk_userlocks & SOCK_RCVBUF_LOCK))
		WRITE_ONCE(to->sk_rcvbuf, READ_ONCE(from->sk_rcvbuf));
	WRITE_ONCE(to->sk_rcvtimeo, READ_ONCE(from->sk_rcvtimeo));
	WRITE_ONCE(to->sk_sndtimeo, READ_ONCE(from->sk_sndtimeo));
	WRITE_ONCE(to->sk_lingertime, READ_ONCE(from->sk_lingertime));
	WRITE_ONCE(to->sk_mark, READ_ONCE(from->sk_mark));
	WRITE_ONCE(to->sk_priority, READ_ONCE(from->sk_priority));
	WRITE_ONCE(to->sk_bound_dev_if, READ_ONCE(from->sk_bound_dev_if));
	WRITE_ONCE(to->sk_tsflags, READ_ONCE(from->sk_tsflags));
	WRITE_ONCE(to->sk_bind_phc, READ_ONCE(from->sk_bind_phc));
	WRITE_ONCE(to->sk_max_pacing_rate, READ_ONCE(from->sk_max_pacing_rate));
	WRITE_ONCE(to->sk_incoming_cpu, READ_ONCE(from->sk_incoming_cpu));
	WRITE_ONCE(to->sk_txrehash, READ_ONCE(from->sk_txrehash));
	to->sk_clockid = from->sk_clockid;
	to->sk_txtime_deadline_mode = from->sk_txtime_deadline_mode;
	to->sk_txtime_report_errors = from->sk_txtime_report_errors;
#ifdef CONFIG_NET_RX_BUSY_POLL
	WRITE_ONCE(to->sk_ll_usec, READ_ONCE(from->sk_ll_usec));
	WRITE_ONCE(to->sk_prefer_busy_poll, READ_ONCE(from->sk_prefer_busy_poll));
	WRITE_ONCE(to->sk_busy_poll_budget, READ_ONCE(from->sk_busy_poll_budget));
#endif
	release_sock(to);
}

/*
 * The mark of SO_RCVLOWAT, of what was set on the TCP sock, goes to the one in
 * front; what reads the TCP sock itself is to know of every byte. Somebody else
 * may have moved it: then it is 1 by now, which counts if that was meant.
 */
void smc_helper_sk_take_rcvlowat(struct sock *to, struct sock *tcp, bool one)
{
	lock_sock(tcp);
	if (one || tcp->sk_rcvlowat != 1)
		WRITE_ONCE(to->sk_rcvlowat, tcp->sk_rcvlowat);
	WRITE_ONCE(tcp->sk_rcvlowat, 1);
	/* What came in between woke nobody. */
	if (!skb_queue_empty(&tcp->sk_receive_queue))
		tcp->sk_data_ready(tcp);
	release_sock(tcp);
}

/* Whether TCP_NODELAY is on. */
bool smc_helper_sk_has_nodelay(const struct sock *tcp)
{
	/* A bit field, read without its lock: who sets it says so afterwards. */
	return data_race(tcp_sk(tcp)->nonagle & TCP_NAGLE_OFF);
}

/* Whether nothing is there to read, and nothing has happened that a reader would be told. */
bool smc_helper_sk_is_silent(const struct sock *sk)
{
	return skb_queue_empty_lockless(&sk->sk_receive_queue) &&
	       !READ_ONCE(sk->sk_err) &&
	       !(READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN);
}

/* Whether a call that receives is asked how much is left. */
bool smc_helper_wants_unread(const struct msghdr *msg, const struct sock *tcp)
{
	return msg->msg_get_inq || tcp_sk(tcp)->recvmsg_inq;
}

/* What a call that receives says of the bytes that are left, to those who asked for it. */
void smc_helper_tell_unread(struct msghdr *msg, const struct sock *tcp,
			    int unread)
{
	if (msg->msg_get_inq)
		msg->msg_inq = unread;
	if (tcp_sk(tcp)->recvmsg_inq)
		put_cmsg(msg, SOL_TCP, TCP_CM_INQ, sizeof(unread), &unread);
}

bool smc_helper_sk_has_errors(const struct sock *sk)
{
	return !skb_queue_empty_lockless(&sk->sk_error_queue);
}

/* The report of a call with MSG_ZEROCOPY, which is made before and sent after it. */
struct ubuf_info *smc_helper_zerocopy_begin(struct sock *sk, size_t size)
{
	struct ubuf_info *uarg;

	lock_sock(sk);
	uarg = msg_zerocopy_realloc(sk, size, NULL, false);
	release_sock(sk);
	return uarg;
}

void smc_helper_zerocopy_end(struct sock *sk, struct ubuf_info *uarg, bool sent)
{
	struct ubuf_info_msgzc *zc = uarg_to_msgzc(uarg);

	lock_sock(sk);
	zc->zerocopy = 0;
	/* The number of a call that sent nothing is taken back, unless a later call has one. */
	if (!sent && (u32)(zc->id + zc->len) == (u32)atomic_read(&sk->sk_zckey))
		msg_zerocopy_put_abort(uarg, true);
	else
		net_zcopy_put(uarg);
	release_sock(sk);
}

void smc_helper_sock_support_zerocopy(struct socket *sock)
{
	set_bit(SOCK_SUPPORT_ZC, &sock->flags);
}

void smc_helper_sock_poll_wait(struct file *file, struct socket *sock,
			       struct poll_table_struct *wait)
{
	sock_poll_wait(file, sock, wait);
}

wait_queue_head_t *smc_helper_sk_sleep(struct sock *sk)
{
	return sk_sleep(sk);
}

/*
 * Wakes a task whose entry leaves the queue first: the woken one finds it gone, and need not wait for the lock of the
 * queue, which the waker holds a while longer. The entry may not be touched once it has left.
 */
static int smc_wake_leaving(struct wait_queue_entry *entry, unsigned int mode,
			    int sync, void *key)
{
	struct wait_queue_entry waker = { .private = entry->private };
	struct task_struct *task = entry->private;
	int woken;

	get_task_struct(task);
	list_del_init_careful(&entry->entry);
	woken = default_wake_function(&waker, mode, sync, key);
	put_task_struct(task);
	return woken;
}

void smc_helper_init_wait_leaving(struct wait_queue_entry *entry)
{
	init_wait_func(entry, smc_wake_leaving);
}

/*
 * Sleeps as long as the entry is queued. Whether it is, is looked at after the state was set, and the waker takes it out
 * before it looks at the state: one of the two sees the other.
 */
long smc_helper_wait_queued(struct wait_queue_entry *entry, long timeout)
{
	set_current_state(TASK_INTERRUPTIBLE);
	if (!list_empty_careful(&entry->entry))
		timeout = schedule_timeout(timeout);
	__set_current_state(TASK_RUNNING);
	return timeout;
}

bool smc_helper_wait_is_queued(struct wait_queue_entry *entry)
{
	return !list_empty_careful(&entry->entry);
}

void smc_helper_add_wait_as(wait_queue_head_t *queue,
			    struct wait_queue_entry *entry, bool exclusive)
{
	if (exclusive)
		add_wait_queue_exclusive(queue, entry);
	else
		add_wait_queue(queue, entry);
	/* Who has something to tell looks for waiters without the lock: whatever is looked at now is looked at later. */
	smp_mb();
}

void smc_helper_init_waitqueue_func_entry(struct wait_queue_entry *entry,
					  wait_queue_func_t func)
{
	init_waitqueue_func_entry(entry, func);
	INIT_LIST_HEAD(&entry->entry);
}

u32 smc_helper_key_to_poll(void *key)
{
	return (__force u32)key_to_poll(key);
}

void smc_helper_module_get(struct module *module)
{
	__module_get(module);
}

int smc_helper_copy_from_sockptr(void *to, sockptr_t from, size_t len)
{
	return copy_from_sockptr(to, from, len);
}

int smc_helper_get_user_int(int *to, const int __user *from)
{
	return get_user(*to, from);
}

int smc_helper_put_user_int(int value, int __user *to)
{
	return put_user(value, to);
}

unsigned long smc_helper_copy_to_user(void __user *to, const void *from,
				      unsigned long len)
{
	return copy_to_user(to, from, len);
}

bool smc_helper_sk_has_xfrm_policy(struct sock *sk)
{
	bool has = false;
#ifdef CONFIG_XFRM
	struct dst_entry *dst = sk_dst_get(sk);

	/* One of its own, or one of the namespace that its route goes by. */
	has = rcu_access_pointer(sk->sk_policy[0]) ||
	      rcu_access_pointer(sk->sk_policy[1]) || (dst && dst_xfrm(dst));
	dst_release(dst);
#endif
	return has;
}

bool smc_helper_skb_is_plain_tcp(const struct sk_buff *skb, bool v6)
{
	const struct dst_entry *dst = skb_dst(skb);
	u8 protocol = v6 ? ipv6_hdr(skb)->nexthdr : ip_hdr(skb)->protocol;

	return protocol == IPPROTO_TCP && !(dst && dst_xfrm(dst));
}

void smc_helper_sock_set_flag(struct sock *sk, int flag)
{
	sock_set_flag(sk, flag);
}

void smc_helper_sock_custom_sockopt(struct socket *sock)
{
	set_bit(SOCK_CUSTOM_SOCKOPT, &sock->flags);
}

void smc_helper_iov_iter_kvec(struct iov_iter *iter, unsigned int direction,
			      const struct kvec *kvec, unsigned long segs,
			      size_t count)
{
	iov_iter_kvec(iter, direction, kvec, segs, count);
}

void smc_helper_sock_inode_copy_uid(struct socket *to, struct socket *from)
{
	SOCK_INODE(to)->i_uid = SOCK_INODE(from)->i_uid;
}

long smc_helper_msecs_to_jiffies(unsigned int ms)
{
	return msecs_to_jiffies(ms);
}

int smc_helper_inet6_register_protosw(struct inet_protosw *p)
{
#if IS_ENABLED(CONFIG_IPV6)
	return inet6_register_protosw(p);
#else
	return 0;
#endif
}

void smc_helper_inet6_unregister_protosw(struct inet_protosw *p)
{
#if IS_ENABLED(CONFIG_IPV6)
	inet6_unregister_protosw(p);
#endif
}

bool smc_helper_tcp_has_auth(const struct sock *sk)
{
#ifdef CONFIG_TCP_MD5SIG
	if (rcu_access_pointer(tcp_sk(sk)->md5sig_info))
		return true;
#endif
#ifdef CONFIG_TCP_AO
	if (rcu_access_pointer(tcp_sk(sk)->ao_info))
		return true;
#endif
	return false;
}

bool smc_helper_inet_rsk_smc_ok(const struct request_sock *req)
{
	return inet_rsk(req)->smc_ok;
}

/* Connections that wait at a listener: for their last acknowledgement, or to be accepted. */
u32 smc_helper_listener_waiting(struct sock *sk)
{
	return READ_ONCE(sk->sk_ack_backlog) +
	       reqsk_queue_len(&inet_csk(sk)->icsk_accept_queue);
}

void smc_helper_tcp_wait_for_data_to_ack(struct sock *sk)
{
	inet_csk_enter_pingpong_mode(sk);
}

/* What came last is acknowledged, and what comes now like the first data of a connection: each segment at once. */
void smc_helper_tcp_ack_like_new(struct sock *sk)
{
	tcp_sock_set_quickack(sk, 1);
	lock_sock(sk);
	inet_csk(sk)->icsk_ack.ato = 0;
	release_sock(sk);
}

void smc_helper_tcp_ack_as_usual(struct sock *sk)
{
	inet_csk_exit_pingpong_mode(sk);
}

void smc_helper_inet_rsk_set_smc_ok(struct request_sock *req, bool ok)
{
	inet_rsk(req)->smc_ok = ok;
}

void __percpu *smc_helper_alloc_percpu_zeroed(size_t size, size_t align)
{
	return __alloc_percpu(size, align);
}

void smc_helper_free_percpu_memory(void __percpu *memory)
{
	free_percpu(memory);
}

void *smc_helper_get_cpu_memory(void __percpu *memory)
{
	return get_cpu_ptr(memory);
}

void smc_helper_put_cpu_memory(void __percpu *memory)
{
	put_cpu_ptr(memory);
}

bool smc_helper_skb_cloned(const struct sk_buff *skb)
{
	return skb_cloned(skb);
}

int smc_helper_skb_tailroom(const struct sk_buff *skb)
{
	return skb_tailroom(skb);
}

unsigned int smc_helper_skb_headlen(const struct sk_buff *skb)
{
	return skb_headlen(skb);
}

int smc_helper_skb_transport_offset(const struct sk_buff *skb)
{
	return skb_transport_offset(skb);
}

int smc_helper_skb_network_offset(const struct sk_buff *skb)
{
	return skb_network_offset(skb);
}

unsigned char *smc_helper_skb_transport_header(const struct sk_buff *skb)
{
	return skb_transport_header(skb);
}

unsigned int smc_helper_tcp_hdrlen(const struct sk_buff *skb)
{
	return tcp_hdrlen(skb);
}

u8 smc_helper_skb_ip_summed(const struct sk_buff *skb)
{
	return skb->ip_summed;
}

void smc_helper_nf_hook_ops_free(struct nf_hook_ops *ops)
{
	kfree_rcu(ops, rcu);
}

/* The memory cgroup of a socket, with a reference; null without one. */
struct mem_cgroup *smc_helper_smc_sk_memcg_get(const struct sock *sk)
{
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg = mem_cgroup_from_sk(sk);

	if (memcg && css_tryget(&memcg->css))
		return memcg;
#endif
	return NULL;
}
