// SPDX-License-Identifier: GPL-2.0

//! The states of a socket and what closing from either side does to them.
//!
//! The numbers of the states are an interface: the diagnosis tools print them. All changes go
//! through [`Machine::transition`]; what it returns is acted upon after the lock is dropped.

/// State of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Data in both directions.
    Active,
    /// Fresh, or connecting, or a child whose handshake is not over.
    Init,
    /// Done.
    Closed,
    /// Listening.
    Listen,
    /// We have said that we close or write no more.
    PeerCloseWait1,
    /// And the peer has said that it writes no more.
    PeerCloseWait2,
    /// The peer has said that it closes or writes no more; we may still write.
    AppCloseWait1,
    /// And we have said that we write no more.
    AppCloseWait2,
    /// Both have closed on the wire; the application still holds the socket.
    AppFinCloseWait,
    /// We closed after the peer's first word; it has to say the last one.
    PeerFinCloseWait,
    /// We have aborted.
    PeerAbortWait,
    /// The peer has aborted; the application still holds the socket.
    ProcessAbort,
}

impl State {
    /// Every state, in ascending order of its number.
    pub const ALL: [Self; 12] = [
        Self::Active,
        Self::Init,
        Self::Closed,
        Self::Listen,
        Self::PeerCloseWait1,
        Self::PeerCloseWait2,
        Self::AppCloseWait1,
        Self::AppCloseWait2,
        Self::AppFinCloseWait,
        Self::PeerFinCloseWait,
        Self::PeerAbortWait,
        Self::ProcessAbort,
    ];

    /// The number that tools know; the first four are those of TCP.
    pub const fn number(self) -> u8 {
        match self {
            Self::Active => 1,
            Self::Init => 2,
            Self::Closed => 7,
            Self::Listen => 10,
            Self::PeerCloseWait1 => 20,
            Self::PeerCloseWait2 => 21,
            Self::AppCloseWait1 => 22,
            Self::AppCloseWait2 => 23,
            Self::AppFinCloseWait => 24,
            Self::PeerFinCloseWait => 25,
            Self::PeerAbortWait => 26,
            Self::ProcessAbort => 27,
        }
    }

    /// The state of a number.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.number() == n)
    }

    /// Whether the application may send.
    pub const fn may_send(self) -> bool {
        matches!(self, Self::Active | Self::AppCloseWait1)
    }

    /// Whether the connection is over for the application: nothing more arrives, nothing can be sent.
    pub const fn is_over(self) -> bool {
        matches!(
            self,
            Self::Closed | Self::PeerAbortWait | Self::ProcessAbort
        )
    }

    /// Whether the peer still has to act before the connection can go.
    pub const fn waits_for_peer(self) -> bool {
        matches!(
            self,
            Self::PeerCloseWait1
                | Self::PeerCloseWait2
                | Self::PeerFinCloseWait
                | Self::PeerAbortWait
        )
    }
}

/// What happens to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// `listen()`.
    Listen,
    /// The handshake ended in SMC or in fallback.
    Established,
    /// The handshake failed for good.
    HandshakeFailed,
    /// The inner connection of a fallback socket is shut in both directions.
    FallbackEnded,
    /// The last descriptor is closed.
    Close {
        /// Received data has not been read.
        unread: bool,
    },
    /// `shutdown(SHUT_RD)`.
    ShutdownRead,
    /// `shutdown(SHUT_WR)`.
    ShutdownWrite,
    /// `shutdown(SHUT_RDWR)`.
    ShutdownBoth,
    /// The peer has written data.
    Data,
    /// There are data for a peer that has closed: see [`super::conn::Conn::is_unheard`].
    Unheard,
    /// The peer writes no more.
    PeerDone,
    /// The peer has closed.
    PeerClosed,
    /// The peer has aborted.
    PeerAbort,
    /// We give up: the link group is gone (RFC 7609, section 4.8.3), or the peer broke a rule.
    LocalAbort,
    /// Our abort message is out, or cannot be sent any more.
    AbortDone,
    /// The timer that [`Actions::timer`] armed has run out.
    Timeout,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 17] = [
        Self::Listen,
        Self::Established,
        Self::HandshakeFailed,
        Self::FallbackEnded,
        Self::Close { unread: false },
        Self::Close { unread: true },
        Self::ShutdownRead,
        Self::ShutdownWrite,
        Self::ShutdownBoth,
        Self::Data,
        Self::Unheard,
        Self::PeerDone,
        Self::PeerClosed,
        Self::PeerAbort,
        Self::LocalAbort,
        Self::AbortDone,
        Self::Timeout,
    ];
}

/// Which flag to send to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send {
    /// We write no more.
    Done,
    /// We have closed.
    Closed,
    /// We have aborted, or answer an abort.
    Abort,
}

/// What an application learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketError {
    /// ECONNRESET.
    Reset,
    /// ECONNABORTED.
    Aborted,
    /// EPIPE.
    Pipe,
}

/// What becomes of the inner TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Shut it in both directions, so that address and port are cleaned up in order.
    Shutdown,
    /// Reset it.
    Reset,
}

/// What to do with the timer for a peer that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Arm it, or arm it anew.
    Arm,
    /// Stop it.
    Stop,
}

/// What a transition asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Actions {
    /// Flag to send: give it to [`super::conn::Conn::request_close`] and ask for a plan.
    pub send: Option<Send>,
    /// Error to set on the socket.
    pub error: Option<SocketError>,
    /// What becomes of the inner TCP connection.
    pub tcp: Option<Tcp>,
    /// The data that has come is not taken: see [`super::conn::Conn::refuse`].
    pub refuse: bool,
    /// The timer for orphans.
    pub timer: Option<Timer>,
    /// Wake everyone who waits on the socket.
    pub wake: bool,
    /// The connection has ended: release it as soon as its flags are sent and its plans are
    /// back. Comes exactly once in the life of a socket.
    pub finish: bool,
}

/// What a transition did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// The new state.
    pub state: State,
    /// What to do.
    pub actions: Actions,
}

/// An event does not fit the state; nothing has changed. For the calls of an application this is
/// ENOTCONN or EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTransition {
    /// The state.
    pub from: State,
    /// The event.
    pub event: Event,
}

/// The state of a socket with what has been said on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The state.
    state: State,
    /// The peer has said that it writes no more.
    peer_done: bool,
    /// The peer has closed.
    peer_closed: bool,
    /// We have asked for `closed` to be sent.
    sent_closed: bool,
    /// An application holds the socket.
    open: bool,
    /// It reads no more.
    read_shut: bool,
    /// `finish` has been given out.
    finished: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// A fresh socket that an application holds, or will hold after accept.
    pub const fn new() -> Self {
        Self {
            state: State::Init,
            peer_done: false,
            peer_closed: false,
            sent_closed: false,
            open: true,
            read_shut: false,
            finished: false,
        }
    }

    /// The state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the peer has ended its data in order, whatever came afterwards.
    pub const fn peer_done(&self) -> bool {
        self.peer_done
    }

    /// Whether the peer has closed.
    pub const fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether an application holds the socket.
    pub const fn is_open(&self) -> bool {
        self.open
    }

    /// Whether the application has shut the direction in which it reads.
    pub const fn is_read_shut(&self) -> bool {
        self.read_shut
    }

    /// Takes in an event.
    ///
    /// # Errors
    ///
    /// Refuses an event that cannot happen in the state; nothing changes then.
    pub fn transition(&mut self, event: Event) -> Result<Outcome, InvalidTransition> {
        let mut next = *self;
        let mut actions = Actions::default();
        let state = match event {
            Event::Listen => match self.state {
                State::Init | State::Listen => Some(State::Listen),
                _ => None,
            },
            Event::Established => self.established(),
            Event::HandshakeFailed => match self.state {
                // The peer may have closed before our side of the handshake failed.
                State::Init | State::AppCloseWait1 | State::ProcessAbort => Some(State::Closed),
                _ => None,
            },
            Event::FallbackEnded => match self.state {
                State::Init | State::Active | State::Closed => Some(State::Closed),
                _ => None,
            },
            Event::Close { unread } => {
                next.open = false;
                next.close(unread, &mut actions)
            }
            Event::ShutdownRead | Event::ShutdownWrite | Event::ShutdownBoth
                if self.has_ended() =>
            {
                None
            }
            Event::ShutdownRead => {
                next.read_shut = true;
                Some(self.state)
            }
            Event::ShutdownWrite => Some(self.shutdown_write(&mut actions)),
            Event::ShutdownBoth => {
                // What has arrived can still be read, so that nothing is lost yet.
                next.read_shut = true;
                next.close(false, &mut actions)
            }
            Event::Data => self.data(&mut actions),
            Event::Unheard => self.unheard(&mut actions),
            Event::PeerDone => {
                next.peer_done = true;
                self.peer_flag(false, &mut actions)
            }
            Event::PeerClosed => {
                next.peer_done = true;
                next.peer_closed = true;
                self.peer_flag(true, &mut actions)
            }
            Event::PeerAbort => self.peer_abort(&mut actions),
            Event::LocalAbort => self.local_abort(&mut actions),
            Event::AbortDone => match self.state {
                State::PeerAbortWait => Some(State::Closed),
                s => Some(s),
            },
            Event::Timeout => self.timeout(&mut actions),
        };
        let state = state.ok_or(InvalidTransition {
            from: self.state,
            event,
        })?;

        // Waiting for a peer is bounded once no application holds the socket (RFC 7609, section
        // 4.8.1), and always after an abort (section 4.8.2).
        let waiting =
            |s: State, open: bool| s.waits_for_peer() && (!open || s == State::PeerAbortWait);
        match (waiting(self.state, self.open), waiting(state, next.open)) {
            (false, true) => actions.timer = Some(Timer::Arm),
            (true, false) => actions.timer = Some(Timer::Stop),
            (true, true) if self.state != state => actions.timer = Some(Timer::Arm),
            _ => {}
        }
        if state == State::Closed && !next.finished {
            next.finished = true;
            actions.finish = true;
        }
        actions.wake |= state != self.state;
        next.state = state;
        *self = next;
        Ok(Outcome { state, actions })
    }

    /// The handshake has ended; the peer may have been faster than that.
    fn established(&self) -> Option<State> {
        match self.state {
            State::Init => Some(State::Active),
            s @ (State::AppCloseWait1 | State::ProcessAbort) => Some(s),
            _ => None,
        }
    }

    /// Whether there is no direction left that could be shut, or none yet.
    const fn has_ended(&self) -> bool {
        matches!(
            self.state,
            State::Init
                | State::Listen
                | State::Closed
                | State::PeerFinCloseWait
                | State::PeerAbortWait
                | State::ProcessAbort
        )
    }

    /// `close()` and `shutdown(SHUT_RDWR)`: we are done in both directions.
    fn close(&mut self, unread: bool, actions: &mut Actions) -> Option<State> {
        let was_sent = self.sent_closed;
        let say_closed = |actions: &mut Actions| {
            if !was_sent {
                actions.send = Some(Send::Closed);
            }
        };
        Some(match self.state {
            State::Init | State::Listen => State::Closed,
            State::Active | State::PeerCloseWait1 | State::AppCloseWait1 if unread => {
                // Closing over unread data is an abort (RFC 7609, section 4.8.1, 3A), until both directions have ended.
                actions.send = Some(Send::Abort);
                actions.tcp = Some(Tcp::Reset);
                State::PeerAbortWait
            }
            State::Active => {
                say_closed(actions);
                self.sent_closed = true;
                // Whoever closes first ends TCP first too, and so gets its TIME_WAIT.
                actions.tcp = Some(Tcp::Shutdown);
                State::PeerCloseWait1
            }
            s @ (State::PeerCloseWait1 | State::PeerCloseWait2) => {
                say_closed(actions);
                self.sent_closed = true;
                actions.tcp = Some(Tcp::Shutdown);
                s
            }
            State::AppCloseWait1 | State::AppCloseWait2 => {
                say_closed(actions);
                self.sent_closed = true;
                actions.tcp = Some(Tcp::Shutdown);
                if self.peer_closed {
                    State::Closed
                } else {
                    State::PeerFinCloseWait
                }
            }
            State::AppFinCloseWait => {
                say_closed(actions);
                self.sent_closed = true;
                actions.tcp = Some(Tcp::Shutdown);
                State::Closed
            }
            State::PeerFinCloseWait => State::PeerFinCloseWait,
            State::ProcessAbort => {
                // The answer is usually out already; saying it twice does no harm.
                actions.send = Some(Send::Abort);
                State::Closed
            }
            State::PeerAbortWait | State::Closed => State::Closed,
        })
    }

    /// `shutdown(SHUT_WR)`.
    fn shutdown_write(&self, actions: &mut Actions) -> State {
        match self.state {
            State::Active => {
                actions.send = Some(Send::Done);
                State::PeerCloseWait1
            }
            State::AppCloseWait1 => {
                actions.send = Some(Send::Done);
                State::AppCloseWait2
            }
            s => s,
        }
    }

    /// The peer writes no more, or has closed.
    fn peer_flag(&self, closed: bool, actions: &mut Actions) -> Option<State> {
        // Readers learn that no more will come.
        actions.wake = true;
        match self.state {
            State::Init | State::Active => Some(State::AppCloseWait1),
            State::PeerCloseWait1 | State::PeerCloseWait2 if closed => {
                Some(if !self.open && self.sent_closed {
                    State::Closed
                } else {
                    State::AppFinCloseWait
                })
            }
            State::PeerCloseWait1 | State::PeerCloseWait2 => Some(State::PeerCloseWait2),
            State::PeerFinCloseWait if closed => Some(State::Closed),
            State::Listen => None,
            s => {
                actions.wake = matches!(s, State::AppCloseWait1 | State::AppCloseWait2);
                Some(s)
            }
        }
    }

    /// The peer has aborted.
    fn peer_abort(&self, actions: &mut Actions) -> Option<State> {
        let next = match self.state {
            State::Listen => return None,
            s @ (State::ProcessAbort | State::Closed) => return Some(s),
            State::PeerAbortWait => return Some(State::Closed),
            State::Init | State::Active | State::AppCloseWait1 | State::AppFinCloseWait => {
                State::ProcessAbort
            }
            State::PeerCloseWait1 | State::PeerCloseWait2 if self.open => State::ProcessAbort,
            State::PeerCloseWait1
            | State::PeerCloseWait2
            | State::AppCloseWait2
            | State::PeerFinCloseWait => State::Closed,
        };
        Self::abort(self.reset_error(), actions);
        Some(next)
    }

    /// Data has come. Where nobody will read it and nothing is left to say, the peer must not take it for delivered: it
    /// is reset, as with TCP (RFC 9293 on half-closed connections).
    fn data(&self, actions: &mut Actions) -> Option<State> {
        match self.state {
            State::Listen => None,
            State::PeerCloseWait1 if self.read_shut || !self.open => {
                actions.refuse = true;
                Self::abort(SocketError::Reset, actions);
                Some(State::PeerAbortWait)
            }
            s => Some(s),
        }
    }

    /// There are data for a peer that has closed. It reads no more: what is left of the connection ends as if its reset
    /// had come, as with TCP.
    fn unheard(&self, actions: &mut Actions) -> Option<State> {
        match self.state {
            State::Listen => None,
            State::AppCloseWait1 | State::AppCloseWait2 | State::AppFinCloseWait
                if self.open && self.peer_closed =>
            {
                Self::abort(self.reset_error(), actions);
                Some(State::PeerAbortWait)
            }
            s => Some(s),
        }
    }

    /// What an application learns of a reset. Who has been told that the peer writes no more learns of it where it
    /// writes itself, as with TCP.
    const fn reset_error(&self) -> SocketError {
        match self.state {
            State::AppCloseWait1 => SocketError::Pipe,
            _ => SocketError::Reset,
        }
    }

    /// We give up.
    fn local_abort(&self, actions: &mut Actions) -> Option<State> {
        match self.state {
            State::Listen => None,
            // A handshake has its own way to end.
            s @ (State::Init | State::PeerAbortWait | State::Closed) => Some(s),
            _ => {
                Self::abort(SocketError::Aborted, actions);
                Some(State::PeerAbortWait)
            }
        }
    }

    /// The connection ends at once, at both sides, and the application learns why.
    fn abort(error: SocketError, actions: &mut Actions) {
        actions.send = Some(Send::Abort);
        actions.error = Some(error);
        actions.tcp = Some(Tcp::Reset);
    }

    /// The peer did not answer.
    fn timeout(&self, actions: &mut Actions) -> Option<State> {
        match self.state {
            State::PeerCloseWait1 | State::PeerCloseWait2 | State::PeerFinCloseWait
                if !self.open =>
            {
                Self::abort(SocketError::Aborted, actions);
                Some(State::Closed)
            }
            State::PeerAbortWait => Some(State::Closed),
            // It ran out while it was being stopped.
            s => Some(s),
        }
    }
}
