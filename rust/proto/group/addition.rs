// SPDX-License-Identifier: GPL-2.0

//! How a link comes into a group, step by step, for both roles (RFC 7609, section 3.5.5.1).
//!
//! ```text
//!   server   Offering ──▶ (Keys ──▶) Confirming ──▶ Linked
//!   client               (Keys ──▶) Confirming ──▶ Linked
//! ```
//!
//! A first contact begins with `Confirming`. `Keys` exists in version 1 only: later versions carry
//! the keys in ADD LINK itself. The caller makes the queue pairs and writes the messages; this says
//! which message goes where, what is awaited and for how long, and what has come of it. From any step
//! it may go to `Over`, when the link does not come about.

use super::flow::{
    Awaited,
    WAIT_FIRST_LINK_MS,
    WAIT_MS,
    WAIT_NEW_LINK_MS,
    WAIT_PRESSED_MS, //
};
use crate::proto::ids::Role;
use crate::proto::llc::{
    Opcode,
    Version, //
};

/// Which of the two links a message goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The one that is there already.
    Old,
    /// The one that is being added.
    New,
}

/// A message of the exchange. Whether it is a request or an answer follows from the role: the
/// server asks, the client answers, and a client's [`Say::Delete`] is a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// ADD LINK with our end of the new link; in version 2 with our keys.
    AddLink,
    /// ADD LINK CONTINUATION, as [`super::TokenExchange::message`] gives it.
    Keys,
    /// CONFIRM LINK.
    Confirm,
    /// DELETE LINK for the new link, which has failed.
    Delete,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Kind of the message.
    pub opcode: Opcode,
    /// Whether it is an answer.
    pub response: bool,
    /// The link on which it comes.
    pub via: Via,
    /// For how long, in milliseconds.
    pub limit_ms: u32,
    /// From the moment on at which a connection needs the exchange to be over, where that is less.
    pub pressed_ms: Option<u32>,
}

impl Wait {
    /// What [`super::Flows::expect`] is told; the links are given by their columns.
    pub const fn awaited(&self, old: usize, new: usize) -> Awaited {
        Awaited {
            opcode: self.opcode,
            response: self.response,
            link: Some(match self.via {
                Via::Old => old,
                Via::New => new,
            }),
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The link is active.
    Linked,
    /// There is no such link; what was made for it goes.
    GivenUp,
}

/// What to do now, in this order: with `end` [`End::Linked`] make the link active, or if that cannot be
/// done say so by [`AddEvent::LinkGone`] and forget the rest; then tell [`super::Flows::expect`] what
/// is awaited, then send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Order {
    /// A message to send.
    pub say: Option<(Say, Via)>,
    /// What is awaited after it.
    pub wait: Option<Wait>,
    /// The exchange has ended.
    pub end: Option<End>,
}

/// Where an addition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The server has offered and waits for the answer.
    Offering,
    /// Keys are being told (version 1).
    Keys,
    /// CONFIRM LINK or its answer has to come.
    Confirming,
    /// It has come. Nothing follows, unless the link has gone by then.
    Linked,
    /// Nothing follows.
    Over,
}

/// What happens to an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddEvent {
    /// The client takes the offer, and our end of the link is connected.
    Accepted,
    /// The client takes the offer, but our end cannot be connected to its.
    OutOfReach,
    /// The client does not take it.
    Refused,
    /// ADD LINK CONTINUATION has come and [`super::TokenExchange::arrived`] took it.
    Keys {
        /// Another one is to come: on the server it is our turn, on the client it will be the
        /// peer's after the answer that [`super::TokenExchange::message`] has given.
        more: bool,
    },
    /// The same one has come again.
    KeysAgain,
    /// CONFIRM LINK or its answer has come and was right.
    Confirmed,
    /// What was awaited did not come in time.
    TimedOut,
    /// The link went on which it would have come, or the new one when it was confirmed.
    LinkGone,
    /// Our side cannot go on, or a message was wrong.
    Failed,
}

/// A link on its way into the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// Our side.
    role: Role,
    /// Layout of the messages.
    version: Version,
    /// It is the first link of its group.
    first: bool,
    /// Where it stands.
    step: Step,
    /// The peer's last message has come twice.
    repeated: bool,
}

impl Addition {
    /// The first link of a group: queue pairs were named in the handshake. The server begins.
    pub fn first_contact(role: Role, version: Version) -> (Self, Order) {
        let this = Self {
            role,
            version,
            first: true,
            step: Step::Confirming,
            repeated: false,
        };
        let order = match role {
            Role::Server => this.ask_confirm(),
            Role::Client => this.await_confirm(),
        };
        (this, order)
    }

    /// The server offers a further link.
    pub fn offer(version: Version) -> (Self, Order) {
        let this = Self {
            role: Role::Server,
            version,
            first: false,
            step: Step::Offering,
            repeated: false,
        };
        let order = Order {
            say: Some((Say::AddLink, Via::Old)),
            wait: Some(Wait {
                opcode: Opcode::AddLink,
                response: true,
                via: Via::Old,
                limit_ms: WAIT_MS,
                pressed_ms: None,
            }),
            end: None,
        };
        (this, order)
    }

    /// The client takes an offer, after its end of the link can receive.
    pub fn accept(version: Version) -> (Self, Order) {
        let mut this = Self {
            role: Role::Client,
            version,
            first: false,
            step: Step::Keys,
            repeated: false,
        };
        let wait = match version {
            Version::V1 => this.await_keys(),
            Version::V2 => {
                this.step = Step::Confirming;
                this.await_confirm()
            }
        };
        let order = Order {
            say: Some((Say::AddLink, Via::Old)),
            ..wait
        };
        (this, order)
    }

    /// Where it stands.
    pub const fn step(&self) -> Step {
        self.step
    }

    /// Our side.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Takes in an event and says what to do. An event that does not fit where it stands is a
    /// broken rule: the link is given up. Nothing follows once it is over.
    pub fn on(&mut self, event: AddEvent) -> Order {
        match (self.step, event) {
            (Step::Over, _) => Order::default(),
            (Step::Linked, AddEvent::LinkGone) => self.give_up(),
            (Step::Linked, _) => Order::default(),
            (Step::Offering, AddEvent::Accepted) => match self.version {
                Version::V1 => {
                    self.step = Step::Keys;
                    self.tell_keys()
                }
                Version::V2 => {
                    self.step = Step::Confirming;
                    self.ask_confirm()
                }
            },
            // It waits for more otherwise, and takes no other offer meanwhile.
            (Step::Offering, AddEvent::OutOfReach) => {
                self.step = Step::Confirming;
                self.give_up()
            }
            (Step::Keys, AddEvent::Keys { more }) => self.keys(more),
            // Not for ever: each time the wait begins anew.
            (Step::Keys, AddEvent::KeysAgain) if !self.repeated => {
                self.repeated = true;
                self.await_keys()
            }
            (Step::Confirming, AddEvent::Confirmed) => {
                self.step = Step::Linked;
                Order {
                    say: (self.role == Role::Client).then_some((Say::Confirm, Via::New)),
                    wait: None,
                    end: Some(End::Linked),
                }
            }
            _ => self.give_up(),
        }
    }

    /// A continuation message of the peer.
    fn keys(&mut self, more: bool) -> Order {
        self.repeated = false;
        if more {
            return self.tell_keys();
        }
        self.step = Step::Confirming;
        match self.role {
            Role::Server => self.ask_confirm(),
            Role::Client => Order {
                say: Some((Say::Keys, Via::Old)),
                ..self.await_confirm()
            },
        }
    }

    /// The next keys of ours go out.
    const fn tell_keys(&self) -> Order {
        Order {
            say: Some((Say::Keys, Via::Old)),
            ..self.await_keys()
        }
    }

    /// Waits for the peer's next keys.
    const fn await_keys(&self) -> Order {
        Order {
            say: None,
            wait: Some(Wait {
                opcode: Opcode::AddLinkCont,
                response: matches!(self.role, Role::Server),
                via: Via::Old,
                limit_ms: WAIT_MS,
                pressed_ms: None,
            }),
            end: None,
        }
    }

    /// The server asks over the new link.
    const fn ask_confirm(&self) -> Order {
        Order {
            say: Some((Say::Confirm, Via::New)),
            wait: Some(Wait {
                opcode: Opcode::ConfirmLink,
                response: true,
                via: Via::New,
                limit_ms: if self.first {
                    WAIT_MS
                } else {
                    WAIT_NEW_LINK_MS
                },
                pressed_ms: if self.first {
                    None
                } else {
                    Some(WAIT_PRESSED_MS)
                },
            }),
            end: None,
        }
    }

    /// The client waits for that.
    const fn await_confirm(&self) -> Order {
        Order {
            say: None,
            wait: Some(Wait {
                opcode: Opcode::ConfirmLink,
                response: false,
                via: Via::New,
                limit_ms: if self.first {
                    WAIT_FIRST_LINK_MS
                } else {
                    WAIT_NEW_LINK_MS
                },
                // It is the server that gives up, and says so.
                pressed_ms: None,
            }),
            end: None,
        }
    }

    /// The link does not come about. The peer is told when it may believe in it already; a first
    /// contact is declined in the handshake instead.
    fn give_up(&mut self) -> Order {
        let believed = matches!(self.step, Step::Confirming | Step::Linked);
        let tell = believed && !self.first;
        self.step = Step::Over;
        Order {
            say: tell.then_some((Say::Delete, Via::Old)),
            wait: None,
            end: Some(End::GivenUp),
        }
    }
}
