// SPDX-License-Identifier: GPL-2.0

//! How a connection ends: shutdown, close, abort, a dead link, a peer that never answers.
//!
//! [`Machine::transition`] decides; this file carries out what it asks for. A connection whose socket has gone stays in
//! the table of its link group until both sides have said their last word and nothing is on its way, bounded by a timer
//! that is armed anew as long as the peer takes data.
//!
//! RFC 7609, sections 4.8.1 and 4.8.2.
//!
//! [`Machine::transition`]: crate::proto::close::Machine::transition

use kernel::{
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Core,
    QUEUE, //
};
use crate::{
    kapi::{
        trace,
        work::cancel_delayed, //
    },
    net_ctx::Counter,
    proto::{
        cdc::ConnFlags,
        close::{
            Actions,
            Event,
            Send,
            SocketError,
            Tcp,
            Timer, //
        },
        conn::{
            Conn,
            PeerClose, //
        },
        ids::AlertToken, //
    },
};

/// How long a peer may leave an orphan waiting without taking any data.
const ORPHAN_MS: u32 = 60_000;

/// How long a reset of the TCP connection waits for what the peer has sent by RDMA before it, which takes another way.
const RESET_MS: u32 = 250;

/// What the socket has to do with its TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpEnd {
    /// Shut it in both directions.
    Shutdown,
    /// Reset it.
    Reset,
}

/// What a poller may know.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ready {
    /// Bytes that can be read.
    pub(crate) unread: u32,
    /// An urgent byte lies behind some of them, which TCP counts among them.
    pub(crate) mark_ahead: bool,
    /// Data can be written, or writing fails at once.
    pub(crate) writable: bool,
    /// Both directions have ended.
    pub(crate) hangup: bool,
    /// The peer's direction has ended.
    pub(crate) read_hangup: bool,
    /// Urgent data waits.
    pub(crate) urgent: bool,
}

/// What is to be done after the core's lock has been dropped.
#[derive(Default)]
struct Then {
    /// A plan is due.
    push: bool,
    /// The socket is to look.
    wake: bool,
    /// The socket's error.
    error: Option<Error>,
    /// The connection is over.
    over: bool,
    /// What becomes of the TCP connection.
    tcp: Option<Tcp>,
    /// What has come is not taken.
    refuse: bool,
}

impl Core {
    /// Whether the application may send.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` before the handshake ended, `EPIPE` afterwards.
    pub(super) fn may_send(&self) -> Result {
        let Some(conn) = self.conn.as_ref() else {
            return Err(ENOTCONN);
        };
        let peer = conn.peer_close();
        if conn.is_dead() || peer.abort || !self.machine.state().may_send() {
            return Err(EPIPE);
        }
        Ok(())
    }

    /// The answer to a reader when nothing is there: the end of the stream, or come again.
    pub(super) fn nothing_to_read(&self) -> Result {
        if self.no_more_data() {
            Ok(())
        } else {
            Err(EAGAIN)
        }
    }

    /// Whether nothing will ever arrive any more.
    fn no_more_data(&self) -> bool {
        let Some(conn) = self.conn.as_ref() else {
            return self.ended;
        };
        conn.is_dead()
            || self.machine.is_read_shut()
            || conn.peer_close().any()
            || self.machine.state().is_over()
    }

    /// What a poller may know.
    fn ready(&self) -> Ready {
        let Some(conn) = self.conn.as_ref() else {
            return Ready::default();
        };
        let ended = self.no_more_data();
        let may_send = self.may_send().is_ok();
        let state = self.machine.state();
        Ready {
            unread: conn.readable_len(),
            mark_ahead: conn.is_mark_ahead(),
            writable: !may_send || self.has_room(conn),
            hangup: state.is_over() || ended && !state.may_send(),
            read_hangup: ended,
            urgent: conn.urgent_valid(),
        }
    }

    /// Whether both directions have ended, for whatever reason: there is no connection any more.
    fn is_closed(&self) -> bool {
        self.ended
            || self.conn.as_ref().is_some_and(|conn| {
                let state = self.machine.state();
                conn.is_dead() || state.is_over() || conn.peer_close().any() && !state.may_send()
            })
    }

    /// Whether the connection has ended and nothing of it is on its way.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.me.is_some() && self.conn.as_ref().is_none_or(Conn::is_settled)
    }

    /// What has come, so many bytes and the peer's close flags, one event each; says whether the socket has to look.
    pub(super) fn peer_says(&mut self, bytes: u32, close: PeerClose) -> PeerSaid {
        let mut all = PeerSaid::default();
        // An abort says all there is to say.
        let events = [
            (bytes > 0 && !close.abort, Event::Data),
            (close.sending_done && !close.abort, Event::PeerDone),
            (close.closed && !close.abort, Event::PeerClosed),
            (close.abort, Event::PeerAbort),
        ];
        for (set, event) in events {
            if set {
                let then = self.event(event);
                if let (true, Some(conn)) = (then.refuse, self.conn.as_mut()) {
                    conn.refuse(bytes);
                }
                all.wake |= then.wake;
                all.push |= then.push;
                all.error = all.error.or(then.error);
            }
        }
        all
    }

    /// Arms or stops the orphan timer. Under the lock, so that no timer is armed for a connection that has left its link
    /// group: that would run when the module has gone.
    fn set_timer(&self, timer: Timer) {
        let Some(me) = &self.me else {
            return;
        };
        match timer {
            Timer::Arm => {
                QUEUE.enqueue_delayed::<Connection, 1>(me.clone(), msecs_to_jiffies(ORPHAN_MS));
            }
            Timer::Stop => {
                cancel_delayed::<Connection, 1>(me);
            }
        }
    }

    /// Runs an event through the machine and carries out what belongs under the lock. An event that does not fit the
    /// state changes nothing.
    fn event(&mut self, event: Event) -> Then {
        match self.step(event) {
            Ok(actions) => self.apply_actions(&actions),
            Err(_) => Then::default(),
        }
    }

    /// Runs an event through the machine; counters and tracepoints learn of it.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` for an event that does not fit the state, which it leaves as it is.
    fn step(&mut self, event: Event) -> Result<Actions> {
        let old = self.machine.state();
        let outcome = self.machine.transition(event).map_err(|_| ENOTCONN)?;
        let new = self.machine.state();
        if let (Some(me), true) = (&self.me, old != new) {
            let token = me.token().map_or(0, AlertToken::get);
            let (old_number, new_number) = (old.number(), new.number());
            trace::conn_state(&**me, me.ctx().cookie(), token, old_number, new_number);
            let aborted = match event {
                Event::PeerAbort | Event::Unheard => Some(Counter::ABORT_PEER),
                Event::LocalAbort => Some(self.giving_up),
                Event::Timeout => Some(Counter::ABORT_TIMEOUT),
                Event::Close { unread: true } | Event::Data if new.is_over() => {
                    Some(Counter::ABORT_UNREAD)
                }
                _ => None,
            };
            if let (Some(counter), false) = (aborted, old.is_over()) {
                me.ctx().stats().bump(counter);
            }
        }
        Ok(outcome.actions)
    }

    /// Carries out what belongs under the lock, and says what is left.
    fn apply_actions(&mut self, actions: &Actions) -> Then {
        let mut then = Then {
            wake: actions.wake,
            tcp: actions.tcp,
            refuse: actions.refuse,
            error: actions.error.map(|error| match error {
                SocketError::Reset => ECONNRESET,
                SocketError::Aborted => ECONNABORTED,
                SocketError::Pipe => EPIPE,
            }),
            ..Then::default()
        };
        if let (Some(send), Some(conn)) = (actions.send, self.conn.as_mut()) {
            let mut flags = ConnFlags::default();
            match send {
                Send::Done => flags.sending_done = true,
                Send::Closed => flags.closed = true,
                Send::Abort => flags.abort = true,
            }
            conn.request_close(flags);
            then.push = true;
        }
        if let Some(timer) = actions.timer {
            self.waiting = self.conn.as_ref().map_or(0, Conn::unfinished);
            self.set_timer(timer);
        }
        self.ended |= actions.finish;
        then.over = self.is_over();
        then
    }
}

/// What follows from what the peer has said.
#[derive(Default)]
pub(super) struct PeerSaid {
    /// The socket is to look.
    pub(super) wake: bool,
    /// A plan is due.
    pub(super) push: bool,
    /// The socket's error.
    pub(super) error: Option<Error>,
}

impl Connection {
    /// The handshake has ended; the peer may have closed already.
    pub(super) fn become_active(&self) {
        let then = self.handle(Event::Established);
        self.run_actions(then);
    }

    /// `shutdown(SHUT_RD)`: nothing goes over the wire, the peer may go on writing.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the connection is over.
    pub(crate) fn shutdown_read(&self) -> Result {
        self.call(Event::ShutdownRead).map(|_| ())
    }

    /// `shutdown(SHUT_WR)`: the end of the data follows the data.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the state has no such direction any more.
    pub(crate) fn shutdown_write(&self) -> Result {
        self.call(Event::ShutdownWrite).map(|_| ())
    }

    /// `shutdown(SHUT_RDWR)`.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the connection is over.
    pub(crate) fn shutdown_both(&self) -> Result<TcpEnd> {
        self.call(Event::ShutdownBoth)
    }

    /// The socket goes. What is left to send is sent without it.
    pub(crate) fn close(&self) -> TcpEnd {
        *self.waker.lock() = None;
        // An urgent byte counts until reading has passed it, even if it was taken.
        let unread = self.readable_len() > 0 || self.at_mark();
        self.call(Event::Close { unread })
            .unwrap_or(TcpEnd::Shutdown)
    }

    /// The application gives the connection up and keeps the socket, which learns no more of it; the peer sees an abort.
    pub(crate) fn disconnect(&self) {
        *self.waker.lock() = None;
        // As with TCP what the peer has room for has left by now; and the peer sees no clean end before the abort.
        self.push();
        self.abort();
        // Whatever becomes of the TCP connection is the caller's.
        let _ = self.close();
    }

    /// Gives the connection up: the application sees `ECONNABORTED`, the peer an abort.
    pub(crate) fn abort(&self) {
        let then = self.handle(Event::LocalAbort);
        self.run_actions(then);
    }

    /// The peer's TCP connection was reset: it has aborted, whatever could not be said by RDMA (RFC 7609, section 4.8.2).
    ///
    /// With TCP the reset comes behind the data. Here data and the peer's own abort may still be on the way, so that the
    /// reset counts a moment later.
    pub(crate) fn tcp_was_reset(&self) {
        let waits = {
            let core = self.core.lock();
            let may_come = core
                .conn
                .as_ref()
                .is_some_and(|conn| !conn.is_dead() && !conn.peer_close().any());
            match &core.me {
                Some(me) if may_come => {
                    QUEUE.enqueue_delayed::<Connection, 5>(me.clone(), msecs_to_jiffies(RESET_MS));
                    true
                }
                _ => false,
            }
        };
        if !waits {
            self.peer_aborted();
        }
    }

    /// There are data, and the peer has closed.
    pub(super) fn nobody_listens(&self) {
        let then = self.handle(Event::Unheard);
        if then.wake {
            self.wake(|w| w.state());
        }
    }

    /// The peer has given the connection up.
    fn peer_aborted(&self) {
        let then = self.handle(Event::PeerAbort);
        self.run_actions(then);
    }

    /// The peer broke a rule of the protocol: it loses this connection, nothing else.
    pub(super) fn peer_lied(&self) {
        self.core.lock().giving_up = Counter::ABORT_VIOLATION;
        self.abort();
    }

    /// The link group has ended: nothing can be sent, nothing will arrive.
    pub(super) fn link_died(&self) {
        let (first, second, _bound) = {
            let mut core = self.core.lock();
            if let Some(conn) = core.conn.as_mut() {
                conn.kill();
            }
            core.giving_up = Counter::ABORT_LINK;
            let first = core.event(Event::LocalAbort);
            self.tell_error(first.error);
            (first, core.event(Event::AbortDone), core.bound.take())
        };
        self.run_actions(first);
        self.run_actions(second);
        // An orphan or a handshake has nobody else to end it.
        let over = {
            let mut core = self.core.lock();
            core.ended = true;
            core.me.is_some()
        };
        self.wake(|w| w.state());
        if over {
            self.finish();
        }
    }

    /// Everything the application wrote has reached the peer.
    pub(crate) fn is_drained(&self) -> bool {
        let mut core = self.core.lock();
        let drained = core
            .conn
            .as_ref()
            .is_none_or(|conn| conn.is_dead() || conn.is_drained());
        core.wants_room |= !drained;
        drained
    }

    /// Whether the peer has ended its data in order. As with TCP a reader finds that end then, and no error that came
    /// afterwards.
    pub(crate) fn peer_is_done(&self) -> bool {
        self.core.lock().machine.peer_done()
    }

    /// Whether both directions have ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.core.lock().is_closed()
    }

    /// What a poller may know.
    pub(crate) fn ready(&self) -> Ready {
        let mut core = self.core.lock();
        let ready = core.ready();
        core.wants_room |= !ready.writable;
        ready
    }

    /// A call of the application that closes something.
    fn call(&self, event: Event) -> Result<TcpEnd> {
        let then = {
            let mut core = self.core.lock();
            let actions = core.step(event)?;
            let then = core.apply_actions(&actions);
            self.tell_error(then.error);
            then
        };
        let end = match then.tcp {
            Some(Tcp::Reset) => TcpEnd::Reset,
            _ => TcpEnd::Shutdown,
        };
        self.run_actions(then);
        Ok(end)
    }

    /// Runs an event through the machine.
    fn handle(&self, event: Event) -> Then {
        let mut core = self.core.lock();
        let then = core.event(event);
        self.tell_error(then.error);
        then
    }

    /// Gives the socket its error. Called under the core's lock: whoever finds there that the stream has ended finds
    /// the reason at the socket.
    pub(super) fn tell_error(&self, error: Option<Error>) {
        if let Some(error) = error {
            self.wake(|w| w.failed(error));
        }
    }

    /// Does what was decided under the lock.
    fn run_actions(&self, then: Then) {
        if then.push {
            self.push();
        }
        if then.wake {
            self.wake(|w| w.state());
        }
        if then.over {
            self.finish();
        }
    }

    /// Leaves the table of the link group: no callback comes any more. Done once. Any context.
    pub(super) fn finish(&self) {
        let (me, bound, peer) = {
            let mut core = self.core.lock();
            if let Some(conn) = core.conn.as_ref() {
                let close = conn.peer_close();
                if close.closed || close.abort {
                    self.rmb.peer_is_done(conn.written_by_peer());
                }
            }
            core.set_timer(Timer::Stop);
            core.stop_awaiting_rest();
            if let Some(me) = &core.me {
                cancel_delayed::<Connection, 4>(me);
                cancel_delayed::<Connection, 5>(me);
            }
            (core.me.take(), core.bound.take(), core.peer)
        };
        let Some(_me) = me else {
            return;
        };
        if let (Some(bound), Some(peer)) = (bound, peer) {
            self.group().leave_peer_rmb(bound.link(), peer.region());
        }
        if let Some(token) = self.token() {
            self.group().detach(token);
        }
    }
}

impl WorkItem<1> for Connection {
    type Pointer = Arc<Connection>;

    /// The peer has been silent for long.
    fn run(this: Arc<Connection>) {
        let then = {
            let mut core = this.core.lock();
            let left = core.conn.as_ref().map_or(0, Conn::unfinished);
            if left < core.waiting {
                core.waiting = left;
                core.set_timer(Timer::Arm);
                None
            } else {
                let then = core.event(Event::Timeout);
                this.tell_error(then.error);
                Some(then)
            }
        };
        if let Some(then) = then {
            this.run_actions(then);
        }
    }
}

impl WorkItem<5> for Connection {
    type Pointer = Arc<Connection>;

    /// What the peer sent before the reset of its TCP connection has had its time.
    fn run(this: Arc<Connection>) {
        this.peer_aborted();
    }
}
