// SPDX-License-Identifier: GPL-2.0

//! `listen(2)` and `accept(2)`.

use kernel::{
    ffi::c_int,
    new_mutex,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc,
        Mutex, //
    },
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

use crate::{
    kapi::net::{
        Open,
        SockRef,
        SocketOps, //
    },
    proto::reason::DeclineReason, //
};

use super::{
    accept_queue::{
        AcceptQueue,
        Child,
        Taken,
        Way, //
    },
    socket::SmcSock,
    state::{
        Report,
        State, //
    },
    HANDSHAKES, //
};

/// `listen(2)`.
pub(super) fn listen(sk: Open<'_, SmcSock>, backlog: c_int) -> Result {
    let tcp = &sk.attached()?.tcp;
    let length = usize::try_from(backlog).unwrap_or(0);
    let mut state = sk.state.lock();
    match &mut *state {
        State::Init | State::Failed if !may_listen(&sk) => {
            if matches!(*state, State::Failed) {
                drop(SmcSock::transition(&sk, &mut state, State::Init)?);
            }
            let why = (DeclineReason::NOTWANTED, 0);
            SmcSock::become_tcp(&sk, &mut state, tcp, why, Report::Done)?;
            drop(state);
            SmcSock::forward(sk, |tcp| tcp.listen(backlog))
        }
        State::Init | State::Failed => {
            let queue = AcceptQueue::new(sk.hold(), tcp.clone(), sk.ctx.clone(), length)?;
            // Without the option connections go by TCP.
            let _ = sk
                .ctx
                .want_option(sk.net())
                .and_then(|()| tcp.ask_on_accept());
            tcp.listen(backlog).inspect_err(|_| {
                queue.close();
                tcp.forget_option();
            })?;
            queue.set_limited(sk.limit_hs.load(Relaxed) != 0);
            queue.set_deferring(sk.defer_s.load(Relaxed));
            let to = State::Listening {
                tcp: tcp.clone(),
                queue,
            };
            if matches!(*state, State::Failed) {
                drop(SmcSock::transition(&sk, &mut state, State::Init)?);
            }
            drop(SmcSock::transition(&sk, &mut state, to)?);
            // What happened before the state changed was not noticed.
            sk.queue_work(&HANDSHAKES);
            Ok(())
        }
        State::Listening { queue, .. } => {
            tcp.listen(backlog)?;
            queue.set_backlog(length);
            sk.queue_work(&HANDSHAKES);
            Ok(())
        }
        State::Tcp { .. } => {
            drop(state);
            SmcSock::forward(sk, |tcp| tcp.listen(backlog))
        }
        State::Connecting { .. } | State::Smc { .. } | State::Closed => Err(EINVAL),
    }
}

/// Whether a listener may offer SMC: a converted one only on the ports that the operator wants.
fn may_listen(sk: &Open<'_, SmcSock>) -> bool {
    if !sk.converted {
        return true;
    }
    let port = sk
        .attached()
        .and_then(|attached| attached.tcp.local_addr())
        .map_or(0, |addr| addr.port());
    sk.ctx.tcp2smc().may_use_port(port)
}

/// `accept(2)`: waits for a connection.
pub(super) fn accept(sk: Open<'_, SmcSock>, nonblocking: bool) -> Result<Child> {
    let mut patience = sk.read_patience(nonblocking);
    // An accepted connection is a new socket.
    SmcSock::may_create(sk.net())?;
    let Some(queue) = queue_of(&sk)? else {
        // The state is not locked here: others may shut the listener down while this one waits.
        let new = sk.attached()?.tcp.wait_accept(&mut patience)?;
        let way = Way::Tcp {
            reason: None,
            peer_diagnosis: 0,
        };
        return Ok(Child::new(Arc::new(new, GFP_KERNEL)?, way));
    };
    sk.wait(&mut patience, true, || {
        if let Err(err) = SmcSock::may_create(sk.net()) {
            return Some(Err(err));
        }
        if let Some(child) = queue.pop().transpose() {
            return Some(child.map(|child| child.corked(sk.corked.load(Relaxed) != 0)));
        }
        match &*sk.state.lock() {
            State::Listening { queue: now, .. } if Arc::ptr_eq(now, &queue) => None,
            _ => Some(Err(EINVAL)),
        }
    })?
}

/// Where a listener's connections wait: nothing when the listener is one of TCP.
///
/// # Errors
///
/// `EINVAL` when it is no listener.
fn queue_of(sk: &Open<'_, SmcSock>) -> Result<Option<Arc<AcceptQueue>>> {
    match &*sk.state.lock() {
        State::Listening { queue, .. } => Ok(Some(queue.clone())),
        State::Tcp { .. } => Ok(None),
        _ => Err(EINVAL),
    }
}

/// A connection has arrived at the TCP listener of `sk`. Any context.
pub(super) fn arrived(sk: &SockRef<SmcSock>) {
    let arrival = Arc::pin_init(
        pin_init!(Arrival {
            work <- new_work!("smc_af::arrival"),
            sk <- new_mutex!(Some(sk.clone()), "smc_af::arrival"),
        }),
        GFP_ATOMIC,
    );
    match arrival {
        Ok(arrival) => {
            HANDSHAKES.enqueue(arrival);
        }
        // Without memory the socket's own work item takes it in.
        Err(_) => sk.queue_work(&HANDSHAKES),
    }
}

/// Takes in a connection that has arrived, and has its handshake.
///
/// Its memory is not given back before the handshake is over: a work queue takes a new item at the address of one that
/// runs for the same one, and has it wait for that.
#[pin_data]
struct Arrival {
    /// Runs it.
    #[pin]
    work: Work<Self>,
    /// The listener, until the connection is taken. Nothing is taken inside.
    #[pin]
    sk: Mutex<Option<SockRef<SmcSock>>>,
}

kernel::impl_has_work! {
    impl HasWork<Self> for Arrival { self.work }
}

impl WorkItem for Arrival {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let listener = this.sk.lock().take();
        // The listener may go while the handshake goes on.
        let taken = listener.map_or(Taken::Nothing, |sk| {
            let (tcp, queue) = match &*sk.state.lock() {
                State::Listening { tcp, queue } => (tcp.clone(), queue.clone()),
                _ => return Taken::Nothing,
            };
            queue.take_one(&tcp, sk.buffers(), sk.memcg().as_ref())
        });
        if let Taken::Handshake(handshake) = taken {
            handshake.carry_out();
        }
    }
}
