// SPDX-License-Identifier: GPL-2.0

//! The life of one link, what its end means for the group, and how silence on it is judged.

use crate::proto::ids::Role;

/// How long the answer to TEST LINK may take.
pub const TEST_ANSWER_MS: u64 = 2_000;

/// How long what was posted may stay under way without any of it arriving.
///
/// A path that is dead fails sooner, by its retries. This is for a peer that offers no receive buffer: the device asks
/// it again without end, and its other messages may show that it lives.
pub const STUCK_MS: u64 = 60_000;

/// How much longer a client keeps a group without a connection than a server: longer than a handshake, so that the
/// client does not end a group that the server, who decides whether a new one may join, has just chosen.
const CLIENT_LINGERS_ON_MS: u32 = 10_000;

/// How long a group stays without a connection that is to linger for so many seconds.
pub const fn linger_ms(role: Role, seconds: u32) -> u32 {
    let ms = seconds.saturating_mul(1000);
    match role {
        Role::Server => ms,
        Role::Client => ms.saturating_add(CLIENT_LINGERS_ON_MS),
    }
}

/// What silence on a link asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Silence {
    /// Nothing yet.
    Fine,
    /// Send TEST LINK and note the time.
    Test,
    /// The peer has not answered: the link is lost.
    Lost,
}

/// What a link shows of its peer; all in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// How long ago something came from it.
    pub heard: u64,
    /// How long ago it was asked whether it is there, if it has not been heard of since.
    pub tested: Option<u64>,
    /// How long ago something that was posted has arrived there, if more is under way.
    pub stuck: Option<u64>,
}

/// Judges the silence on a link. After `idle_ms` without a word the peer is asked whether it is there; never, if that is
/// zero.
///
/// The question stands behind all that was posted before it: as long as some of that arrives, the answer is waited for.
pub const fn judge_silence(signs: Signs, idle_ms: u64) -> Silence {
    let unanswered = match (signs.tested, signs.stuck) {
        (Some(tested), Some(stuck)) if stuck < tested => Some(stuck),
        (tested, _) => tested,
    };
    match (unanswered, signs.stuck) {
        (Some(ms), _) if ms > TEST_ANSWER_MS => Silence::Lost,
        (_, Some(ms)) if ms > STUCK_MS => Silence::Lost,
        (Some(_), _) => Silence::Fine,
        (None, _) if idle_ms > 0 && signs.heard >= idle_ms => Silence::Test,
        (None, _) => Silence::Fine,
    }
}

/// State of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// The column is free.
    #[default]
    Unused,
    /// Its queue pair exists; CONFIRM LINK has not been exchanged.
    Activating,
    /// It carries connections.
    Active,
    /// It carries nothing any more; its queue pair is being taken apart.
    Ending,
}

impl LinkState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Unused, Self::Activating, Self::Active, Self::Ending];

    /// The number that tools know, for a link that is there for them: one on its way out is not.
    pub const fn number(self) -> Option<u32> {
        match self {
            Self::Activating => Some(2),
            Self::Active => Some(3),
            Self::Unused | Self::Ending => None,
        }
    }
}

/// What happens to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEvent {
    /// Its queue pair was made.
    Made,
    /// CONFIRM LINK was exchanged.
    Confirmed,
    /// Its addition was given up.
    GivenUp,
    /// The path is lost: a work request failed, a test was not answered, the port went.
    Lost,
    /// An exchange ends it.
    Deleted,
    /// Its queue pair is gone.
    Cleared,
}

impl LinkEvent {
    /// Every event.
    pub const ALL: [Self; 6] = [
        Self::Made,
        Self::Confirmed,
        Self::GivenUp,
        Self::Lost,
        Self::Deleted,
        Self::Cleared,
    ];
}

/// What follows for the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct LinkActions {
    /// Move its connections to another link; without one the group ends.
    pub evacuate: bool,
    /// The peer has to know: begin the exchange that ends it, or as a client ask for that.
    pub report: bool,
    /// Take the queue pair apart.
    pub clear: bool,
}

/// An event does not fit the state; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongLinkState;

impl LinkState {
    /// Takes in an event.
    ///
    /// # Errors
    ///
    /// Refuses an event that cannot happen in the state.
    pub fn on(&mut self, event: LinkEvent) -> Result<LinkActions, WrongLinkState> {
        let mut actions = LinkActions::default();
        let next = match (*self, event) {
            (Self::Unused, LinkEvent::Made) => Self::Activating,
            (Self::Activating, LinkEvent::Confirmed) => Self::Active,
            (Self::Activating, LinkEvent::Lost | LinkEvent::Deleted | LinkEvent::GivenUp) => {
                actions.clear = true;
                Self::Ending
            }
            (Self::Active, LinkEvent::Lost) => {
                actions.evacuate = true;
                actions.report = true;
                actions.clear = true;
                Self::Ending
            }
            (Self::Active, LinkEvent::Deleted) => {
                actions.evacuate = true;
                actions.clear = true;
                Self::Ending
            }
            (Self::Ending, LinkEvent::Lost | LinkEvent::Deleted | LinkEvent::GivenUp) => {
                Self::Ending
            }
            (Self::Ending, LinkEvent::Cleared) => Self::Unused,
            _ => return Err(WrongLinkState),
        };
        *self = next;
        Ok(actions)
    }
}

/// What a request to end one link leads to (RFC 7609, section 3.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deletion {
    /// Server: move the connections, ask the client over another link, wait for its answer for
    /// [`super::WAIT_MS`], and end the link whether it comes or not.
    Ask,
    /// Client: move the connections, answer over the link that carried the request, end the link.
    Answer,
    /// Client: answer that there is no such link.
    AnswerUnknown,
    /// Server: there is no such link, and a client's wish needs no answer.
    Ignore,
    /// It is the last link: the group ends.
    EndGroup,
}

/// Judges a request to end one link, from the peer or from us: whether there is such a link, and
/// how many others are active.
pub const fn judge_delete(role: Role, known: bool, others: usize) -> Deletion {
    match (role, known, others) {
        (Role::Server, false, _) => Deletion::Ignore,
        (Role::Client, false, _) => Deletion::AnswerUnknown,
        (_, true, 0) => Deletion::EndGroup,
        (Role::Server, true, _) => Deletion::Ask,
        (Role::Client, true, _) => Deletion::Answer,
    }
}
