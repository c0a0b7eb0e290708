// SPDX-License-Identifier: GPL-2.0

//! One link of a group: its queue pair, how that is tied to the peer's, and how it is taken apart.
//!
//! A link has a column in its group, which gives it a state ([`LinkState`]); this file has its hardware. A link that is
//! to go is taken apart once, by whoever comes first, in a work item: [`Link::take_apart`]. It does not wait for what may
//! take its time: a device destroys a queue pair when it has got rid of its packets, which may be waiting somewhere below
//! it for an Ethernet address that nobody tells. That comes later, in a work item of the link: [`Link::release_later`].
//! Its place in the group stays until its connections have left it, which may take longer: [`Link::clear_later`].
//!
//! [`LinkState`]: crate::proto::group::LinkState

use kernel::{
    impl_has_work, new_condvar, new_mutex, new_work,
    num::casts::u32_as_usize,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        CondVar,
        Mutex,
        SetOnce, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use super::{
    gone,
    group::LinkGroup,
    loss::Cause,
    registrar::Registrar,
    registry,
    send::{
        SendQueue,
        Slots,
        LONG_LEN,
        SINGLE_SLOTS, //
    },
    WAIT_STEP_MS, //
};
use crate::{
    kapi::{
        event::Event,
        random,
        rdma::{
            Closing,
            Init,
            Message,
            Mr,
            Pd,
            Qp,
            QpConfig,
            QpEvents,
            RemoteEnd,
            Rtr, //
        },
        sync::BhLock,
    },
    new_bh_lock,
    proto::{
        cdc,
        conn::Short,
        ids::{
            Gid,
            LinkId,
            LinkUserId,
            Mac,
            MtuCode,
            Psn,
            Qpn, //
        },
        llc::{
            demux,
            Demux, //
        },
        size::WorkRequests,
    },
    smc_ib::{
        Path,
        Start, //
    },
};

/// Bytes of a receive buffer: a message, and the beginning of a longer one.
const RECV_LEN: usize = 128;

/// How long what was posted may take to come back when a link goes. Nothing depends on it but that chains which were
/// under way are reported one by one by the device: the end is as safe without.
const DRAIN_MS: u32 = 500;

/// What the peer has to know of our end of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalLink {
    /// Queue pair number.
    pub(crate) qpn: Qpn,
    /// First packet sequence number.
    pub(crate) psn: Psn,
    /// GID.
    pub(crate) gid: Gid,
    /// Ethernet address.
    pub(crate) mac: Mac,
    /// Path MTU of our port.
    pub(crate) mtu: MtuCode,
}

/// What we have to know of the peer's end of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerLink {
    /// Queue pair number.
    pub(crate) qpn: Qpn,
    /// First packet sequence number.
    pub(crate) psn: Psn,
    /// GID.
    pub(crate) gid: Gid,
    /// Ethernet address.
    pub(crate) mac: Mac,
    /// Path MTU that both agreed on.
    pub(crate) mtu: MtuCode,
}

/// The parts of the hardware that only sleeping code touches; the lock around it is level 3b.
struct Hardware {
    /// The protection domain, until it is taken apart.
    domain: Option<Arc<Pd>>,
    /// The queue pair while it cannot send; afterwards it is in the send queue.
    qp: Stage,
}

/// The queue pair before it can send.
enum Stage {
    /// Not here: not made yet, in the send queue, or gone.
    None,
    /// Does not know the peer.
    Init(Qp<Events, Init>),
    /// Receives.
    Receiving(Qp<Events, Rtr>),
    /// Does nothing any more, and all that was posted has come back.
    Drained(Closing<Events>),
}

/// A link.
///
/// # Locking
///
/// `hardware` is level 3b, `send` level 7 (docs/locking.md).
#[pin_data]
pub(crate) struct Link {
    /// Its group. The group's column of the link makes this a circle, which the end of the link breaks.
    group: Arc<LinkGroup>,
    /// Its column in the group's tables.
    column: usize,
    /// Where our side begins.
    start: Start,
    /// Our first packet sequence number.
    psn: Psn,
    /// Our queue pair number.
    qpn: Atomic<u32>,
    /// The peer's end, once it is known.
    peer: SetOnce<PeerLink>,
    /// The peer's id of the link, for tools.
    peer_user_id: SetOnce<LinkUserId>,
    /// Number of the link, given by the server; 0 before it is known.
    id: Atomic<i32>,
    /// Most pieces that a range of a send ring may have.
    max_pieces: Atomic<i32>,
    /// Connections that use it.
    pub(super) conns: Atomic<i32>,
    /// The queue pair has failed: nothing can be told the peer over it.
    failed: Atomic<bool>,
    /// It is to go, and no connection takes it any more.
    lost: Atomic<bool>,
    /// The first [`Cause`] of that, as a number.
    cause: Atomic<i32>,
    /// When somebody said that the peer does not know it any more, on the group's clock.
    doubted: Atomic<i64>,
    /// Name of its device, which may be gone when that is asked for.
    device_name: [u8; 64],
    /// No router lies between.
    direct: Atomic<bool>,
    /// Somebody takes it apart, or has.
    ending: Atomic<bool>,
    /// Somebody takes what is left of it off the device, or has.
    pub(super) releasing: Atomic<bool>,
    /// Nobody needs its place in the group any more.
    vacant: Atomic<bool>,
    /// Somebody takes it off the tables, or has.
    pub(super) forgetting: Atomic<bool>,
    /// When the peer was last heard of, on the group's clock.
    pub(super) last_heard: Atomic<i64>,
    /// When the peer was last asked whether it is there.
    pub(super) test_sent: Atomic<i64>,
    /// Hardware objects.
    #[pin]
    hardware: Mutex<Hardware>,
    /// Slots and the sending queue pair.
    #[pin]
    pub(super) send: BhLock<SendQueue>,
    /// A slot that somebody waits for has been freed, or the queue was closed.
    #[pin]
    pub(super) queue_event: CondVar,
    /// Makes keys valid and invalid.
    #[pin]
    registrar: Registrar,
    /// Nothing is sent or received any more, and no completion comes that matters.
    #[pin]
    ended: Event,
    /// Nothing of it is left on the device.
    #[pin]
    pub(super) released: Event,
    /// Nor in the tables.
    #[pin]
    pub(super) cleared: Event,
    /// Offers slots.
    #[pin]
    serve_work: Work<Link, { Link::SERVE }>,
    /// Takes what is left of it off the device and the tables.
    #[pin]
    clear_work: Work<Link, { Link::CLEAR }>,
}

impl_has_work! {
    impl HasWork<Self, { Link::SERVE }> for Link { self.serve_work }
    impl HasWork<Self, { Link::CLEAR }> for Link { self.clear_work }
}

impl WorkItem<{ Link::SERVE }> for Link {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.serve_pending();
    }
}

impl WorkItem<{ Link::CLEAR }> for Link {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.group.release_link(&this);
        if this.vacant.load(Acquire) {
            this.group.forget_link(&this);
            this.group.column_freed();
        }
    }
}

/// What the queue pair of a link reports to.
///
/// It is a reference in a circle: link, queue pair, link. The end of the link breaks it, and every link ends.
pub(super) struct Events(Arc<Link>);

impl QpEvents for Events {
    fn received(&self, message: &Message<'_>) {
        let link = &self.0;
        let group = &link.group;
        link.heard();
        let Some(first) = message.head().first() else {
            return;
        };
        match demux(*first) {
            Demux::Cdc if group.is_given_up() => {}
            Demux::Cdc => {
                let Some(bytes) = message.head().first_chunk::<{ cdc::LEN }>() else {
                    return;
                };
                if let Some(sink) = cdc::Message::decode(bytes)
                    .ok()
                    .and_then(|m| group.conn(m.token))
                {
                    sink.on_cdc(bytes, link.column);
                }
            }
            Demux::Llc(_) => group.on_llc(link, message),
            Demux::Unknown { .. } => {
                pr_debug!("unknown message of group {:#x}\n", group.id());
            }
        }
    }

    fn written(&self, immediate: u32, len: u32) {
        let link = &self.0;
        link.heard();
        let short = Short::from_bits(immediate);
        if link.group.is_given_up() {
            return;
        }
        if let Some(sink) = link.group.conn_of_short(short.token) {
            sink.on_short(short, len, link.column);
        }
    }

    fn sent(&self, slot: usize, ok: bool) {
        self.0.on_sent(slot, ok);
    }

    fn broken(&self) {
        self.0.broken(Cause::Transport);
    }
}

impl Link {
    /// Number of the work that offers slots.
    pub(super) const SERVE: u64 = 1;

    /// Number of the work that clears what is left.
    const CLEAR: u64 = 2;

    /// Makes a link with a queue pair in state INIT. May sleep.
    // Not part of its caller's frame on the stack.
    #[inline(never)]
    pub(super) fn new(
        group: &Arc<LinkGroup>,
        column: usize,
        start: &Start,
        id: Option<LinkId>,
    ) -> Result<Arc<Self>> {
        let device = start.device().enter().ok_or(ENODEV)?;
        let pd = Pd::new(&device)?;
        let queue = SendQueue::new()?;
        let owner = group.clone();
        let port = start.port();
        let now = group.now_ms();
        let link = Arc::pin_init(
            pin_init!(Self {
                group: owner,
                column,
                start: start.clone(),
                psn: Psn::truncate(random::random_u32()),
                qpn: Atomic::new(0),
                peer: SetOnce::new(),
                peer_user_id: SetOnce::new(),
                id: Atomic::new(id.map_or(0, |id| i32::from(id.get()))),
                max_pieces: Atomic::new(1),
                conns: Atomic::new(0),
                failed: Atomic::new(false),
                lost: Atomic::new(false),
                cause: Atomic::new(0),
                doubted: Atomic::new(0),
                device_name: start.device_name(),
                direct: Atomic::new(false),
                ending: Atomic::new(false),
                releasing: Atomic::new(false),
                vacant: Atomic::new(false),
                forgetting: Atomic::new(false),
                last_heard: Atomic::new(now),
                test_sent: Atomic::new(0),
                hardware <- new_mutex!(
                    Hardware {
                        domain: None,
                        qp: Stage::None,
                    },
                    "smc_llc::hardware"
                ),
                send <- new_bh_lock!(queue, "smc_llc::send"),
                queue_event <- new_condvar!("smc_llc::queue_event"),
                registrar <- Registrar::new(),
                ended <- Event::new(),
                released <- Event::new(),
                cleared <- Event::new(),
                serve_work <- new_work!("Link::serve_work"),
                clear_work <- new_work!("Link::clear_work"),
            }),
            GFP_KERNEL,
        )?;
        let (qp, slots) = link.new_qp(&pd, port)?;
        link.send.lock().set_slots(slots);
        link.registrar.open(&link, &pd, &link.start)?;
        link.qpn.store(qp.qpn(), Relaxed);
        link.max_pieces
            .store(i32::try_from(qp.max_pieces()).unwrap_or(1), Relaxed);
        {
            let mut hardware = link.hardware.lock();
            hardware.domain = Some(pd);
            hardware.qp = Stage::Init(qp);
        }
        Ok(link)
    }

    /// Makes the queue pair, as large as the namespace's settings want it, or smaller where there is no memory or the
    /// device does not do that.
    fn new_qp(self: &Arc<Self>, pd: &Arc<Pd>, port: u32) -> Result<(Qp<Events, Init>, Slots)> {
        let wish = self.group.ctx().settings().work_requests();
        let mut want = wish;
        let made = loop {
            let made = self.qp_for(pd, port, want);
            match (made, want.fewer()) {
                (Err(e), Some(fewer)) if e == ENOMEM || e == EINVAL => want = fewer,
                (made, _) => break made?,
            }
        };
        if want != wish {
            pr_info!(
                "a link of group {:#x} has {} send and {} receive work requests: there is no room for {} and {}\n",
                self.group.id(),
                want.send,
                want.receive,
                wish.send,
                wish.receive
            );
        }
        Ok(made)
    }

    /// Makes a queue pair of exactly this size.
    fn qp_for(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        port: u32,
        want: WorkRequests,
    ) -> Result<(Qp<Events, Init>, Slots)> {
        let chains = u32_as_usize(want.send);
        let slots = SendQueue::slots_for(chains)?;
        let config = QpConfig {
            chain_slots: chains,
            single_slots: SINGLE_SLOTS,
            long_len: LONG_LEN,
            recv_slots: u32_as_usize(want.receive),
            recv_len: RECV_LEN,
            port,
        };
        let qp = Qp::new(pd, config, Events(self.clone()))?;
        Ok((qp, slots))
    }

    /// Its group.
    pub(super) fn group(&self) -> &Arc<LinkGroup> {
        &self.group
    }

    /// What makes its keys valid and invalid.
    pub(super) fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    /// Its column in the group's tables.
    pub(super) fn column(&self) -> usize {
        self.column
    }

    /// Where our side begins.
    pub(crate) fn start(&self) -> &Start {
        &self.start
    }

    /// Number of the link, if it is known already.
    pub(super) fn known_id(&self) -> Option<LinkId> {
        LinkId::new(u8::try_from(self.id.load(Relaxed)).ok()?)
    }

    /// Number of the link; 1 where the server has not given it yet.
    pub(crate) fn id(&self) -> LinkId {
        self.known_id().unwrap_or(LinkId::FIRST)
    }

    /// Takes the number that the server gives the link.
    pub(super) fn set_id(&self, id: LinkId) {
        self.id.store(i32::from(id.get()), Relaxed);
    }

    /// Our id of the link, for tools.
    pub(super) fn user_id(&self) -> LinkUserId {
        let number = self.group.id().wrapping_add(u32::from(self.id().get()));
        LinkUserId::from_number(number)
    }

    /// The peer's id of the link, for tools; zero before it has told it.
    pub(super) fn peer_user_id(&self) -> LinkUserId {
        self.peer_user_id.copy().unwrap_or_default()
    }

    /// Takes note of the peer's id of the link.
    pub(super) fn set_peer_user_id(&self, id: LinkUserId) {
        self.peer_user_id.populate(id);
    }

    /// Our end.
    pub(crate) fn local(&self) -> LocalLink {
        LocalLink {
            qpn: Qpn::truncate(self.qpn.load(Relaxed)),
            psn: self.psn,
            gid: self.start.gid(),
            mac: self.start.mac(),
            mtu: self.start.mtu(),
        }
    }

    /// The peer's end, once it is known.
    pub(crate) fn peer(&self) -> Option<PeerLink> {
        self.peer.copy()
    }

    /// Whether no router lies between.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }

    /// Whether it is the same link.
    pub(crate) fn is(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }

    /// Most pieces that a range of a send ring may have.
    pub(super) fn max_pieces(&self) -> usize {
        usize::try_from(self.max_pieces.load(Relaxed)).unwrap_or(1)
    }

    /// The protection domain.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the link goes.
    pub(super) fn domain(&self) -> Result<Arc<Pd>> {
        self.hardware.lock().domain.clone().ok_or_else(gone)
    }

    /// Whether the queue pair can send.
    pub(super) fn can_send(&self) -> bool {
        self.send.lock().qp.is_some()
    }

    /// Ties the queue pair to the peer's, which it can receive from then on. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a peer that cannot be reached from our GID; `ENOTCONN` when the link goes, or is tied already; what
    /// the device says.
    pub(super) fn connect(&self, path: &Path, peer: &PeerLink) -> Result {
        if !self.start.speaks_with(peer.gid) {
            return Err(EINVAL);
        }
        let mut hardware = self.hardware.lock();
        let Stage::Init(qp) = core::mem::replace(&mut hardware.qp, Stage::None) else {
            return Err(gone());
        };
        let mtu = self.start.mtu().agree(peer.mtu).ok_or(EINVAL)?;
        let end = RemoteEnd {
            qpn: peer.qpn.get(),
            psn: peer.psn.get(),
            gid: peer.gid.0,
            mac: path.destination(peer.mac).0,
            mtu: mtu.get(),
            sgid_index: self.start.gid_index(),
            hop_limit: path.hop_limit(),
        };
        self.peer.populate(*peer);
        self.direct.store(path.direct(), Relaxed);
        hardware.qp = Stage::Receiving(qp.into_rtr(&end)?);
        Ok(())
    }

    /// Lets the queue pair send. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the link goes, or sends already; what the device says.
    pub(super) fn begin_sending(&self) -> Result {
        let mut hardware = self.hardware.lock();
        let Stage::Receiving(qp) = core::mem::replace(&mut hardware.qp, Stage::None) else {
            return Err(gone());
        };
        let qp = qp.into_rts(self.psn.get())?;
        self.send.lock().qp = Some(qp);
        Ok(())
    }

    /// Notes that the peer has been heard of. Softirq.
    fn heard(&self) {
        self.last_heard.store(self.group.now_ms(), Relaxed);
    }

    /// Nothing can be told the peer over it any more. Any context.
    pub(super) fn broken(self: &Arc<Self>, cause: Cause) {
        if !self.failed.xchg(true, Full) {
            self.lose(cause);
        }
    }

    /// Whether nothing can be told the peer over it.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// The link is to go: a work item of the group does the rest. Any context.
    pub(super) fn lose(self: &Arc<Self>, cause: Cause) {
        // Whoever sees that it is lost, sees why.
        let _ = self.cause.cmpxchg(0, cause.number(), Full);
        if !self.lost.xchg(true, Full) {
            // Connections that come from another link.
            self.queue_event.notify_all();
            self.group.look_after_losses();
        }
    }

    /// Why it is to go, if it is for such a cause.
    pub(super) fn cause(&self) -> Option<Cause> {
        Cause::from_number(self.cause.load(Acquire))
    }

    /// Somebody says that the peer does not know the link any more: the peer is asked, and until something is heard no
    /// new connection takes it. Any context.
    pub(super) fn doubt(self: &Arc<Self>) {
        let now = self.group.now_ms();
        self.doubted.store(now, Release);
        self.ask_whether_there(now);
    }

    /// Whether the peer has not been heard of since somebody said that it does not know the link any more.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Acquire) > self.last_heard.load(Relaxed)
    }

    /// Name of its device.
    pub(super) fn device_name(&self) -> &str {
        let end = self.device_name.iter().position(|b| *b == 0);
        let name = end.and_then(|end| self.device_name.get(..end));
        name.and_then(|name| core::str::from_utf8(name).ok())
            .unwrap_or_default()
    }

    /// Whether it is to go.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    /// Whether it has been taken apart: nothing is sent or received any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_set()
    }

    /// Whether somebody takes it apart, or has.
    pub(super) fn is_taken_apart(&self) -> bool {
        self.ending.load(Acquire)
    }

    /// Makes the key of a region valid, and waits for that. In a work item.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the link goes; `ETIMEDOUT`, and `EIO` when that failed, both of which end the link.
    pub(super) fn register(self: &Arc<Self>, region: &Arc<Mr>) -> Result {
        self.needs(self.registrar.register(region))
    }

    /// Makes the keys of regions invalid and gives them fresh ones that are valid, and waits for that; `renewed` is told
    /// of each with which that went well. In a work item.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub(super) fn renew(
        self: &Arc<Self>,
        regions: &[Arc<Mr>],
        renewed: impl FnMut(usize),
    ) -> Result {
        self.needs(self.registrar.renew(regions, renewed))
    }

    /// Makes the key of a region invalid, and waits for that. In a work item.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub(super) fn invalidate(self: &Arc<Self>, region: &Arc<Mr>) -> Result {
        self.needs(self.registrar.invalidate(region))
    }

    /// Without keys the link is good for nothing.
    fn needs(self: &Arc<Self>, result: Result) -> Result {
        if matches!(result, Err(e) if e == EIO || e == ETIMEDOUT) {
            self.broken(Cause::Keys);
        }
        result
    }

    /// Lets a work item offer free slots. Any context.
    pub(super) fn serve_later(self: &Arc<Self>) {
        registry::QUEUE.enqueue::<Link, { Link::SERVE }>(self.clone());
    }

    /// Takes the queue pair apart, once: afterwards nothing of the memory of connections is read or written. Every chain
    /// that was on its way has been reported. In a work item; takes little more than half a second at most where the
    /// device sends back what was posted.
    pub(super) fn take_apart(self: &Arc<Self>) {
        if self.ending.xchg(true, Full) {
            // Somebody else is at it, in bounded time.
            while !self.ended.wait_ms(WAIT_STEP_MS) {}
            return;
        }
        self.lost.store(true, Release);
        let sending = {
            let mut queue = self.send.lock();
            queue.close();
            queue.qp.take()
        };
        self.queue_event.notify_all();
        self.registrar.close();
        let (stage, domain) = {
            let mut hardware = self.hardware.lock();
            (
                core::mem::replace(&mut hardware.qp, Stage::None),
                hardware.domain.take(),
            )
        };
        // It may have begun to send between the two.
        let late = self.send.lock().qp.take();
        let mut closing = sending.or(late).map(Qp::into_closing);
        match stage {
            Stage::Init(qp) => closing = Some(qp.into_closing()),
            Stage::Receiving(qp) => closing = Some(qp.into_closing()),
            Stage::None | Stage::Drained(_) => {}
        }
        if let Some(mut closing) = closing {
            if closing.wait(DRAIN_MS) {
                self.hardware.lock().qp = Stage::Drained(closing);
            } else {
                pr_info!(
                    "a link of group {:#x} ends before its work requests came back\n",
                    self.group.id()
                );
                // Only its end shows that nothing comes.
                drop(closing);
            }
        }
        drop(domain);
        // What has not come back by now never will.
        self.report_lost_chains();
        self.ended.set();
    }

    /// Destroys the queue pair of a link that was taken apart. In a work item; sleeps until the device has got rid of its
    /// packets, which takes seconds where one waits for an Ethernet address.
    pub(super) fn destroy(&self) {
        // The lock is not held meanwhile: others ask for the domain, which is gone.
        let stage = core::mem::replace(&mut self.hardware.lock().qp, Stage::None);
        if let Stage::Drained(closing) = stage {
            drop(closing);
        }
    }

    /// Lets a work item take what is left of a link, which was taken apart, off the device.
    pub(super) fn release_later(self: &Arc<Self>) {
        registry::QUEUE.enqueue::<Link, { Link::CLEAR }>(self.clone());
    }

    /// The same, and then off the tables: its connections have left it. One that is still on its way to another link finds
    /// no key of the peer there any more.
    pub(super) fn clear_later(self: &Arc<Self>) {
        // ORDERING: Before the work item runs once more.
        self.vacant.store(true, Release);
        self.release_later();
    }
}
