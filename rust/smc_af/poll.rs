// SPDX-License-Identifier: GPL-2.0

//! `poll(2)`, `select(2)` and `epoll(7)`.
//!
//! A poller always waits on both sockets, the outer one and the TCP socket, so that it is woken in every phase: it need
//! not be moved when the connection falls back.

use crate::kapi::net::{
    events,
    Open,
    PollTable, //
};

use super::{
    socket::SmcSock,
    state::{
        Mode,
        State, //
    },
};

/// Answers a poller and adds it to the waiters.
pub(super) fn poll(sk: Open<'_, SmcSock>, table: &PollTable<'_>) -> u32 {
    let Ok(attached) = sk.attached() else {
        return events::ERR | events::HUP;
    };
    let tcp = &attached.tcp;
    sk.poll_wait(table);
    // The mode is read after the caller is among the waiters of the outer socket: a change after this wakes it.
    let mode = sk.mode();
    if mode == Mode::Init {
        return tcp.poll(table);
    }
    if mode == Mode::Tcp {
        SmcSock::agree_on_err(&sk, tcp);
        return tcp.poll(table);
    }
    tcp.poll_wait(table);
    let error = if sk.err() != 0 || tcp.has_errors() {
        events::ERR
    } else {
        0
    };
    let mask = match mode {
        Mode::Failed => events::IN | events::OUT | events::HUP | events::RDHUP,
        Mode::Init | Mode::Connecting | Mode::Tcp => 0,
        Mode::Listening => listening(sk),
        Mode::Smc => connected(sk),
        Mode::Closed => events::HUP,
    };
    mask | error
}

/// What a listener answers.
fn listening(sk: Open<'_, SmcSock>) -> u32 {
    match &*sk.state.lock() {
        State::Listening { queue, .. } if queue.is_ready() => events::IN,
        _ => 0,
    }
}

/// What a connection over RDMA answers.
fn connected(sk: Open<'_, SmcSock>) -> u32 {
    let Ok(conn) = SmcSock::connection(&sk) else {
        return events::HUP;
    };
    let ready = conn.ready();
    // More than the ring holds never comes.
    let enough = sk.rcvlowat().min(conn.receive_ring());
    let there = ready.unread.saturating_add(u32::from(ready.mark_ahead));
    let mut mask = 0;
    for (set, bits) in [
        (there >= enough, events::IN),
        (ready.writable, events::OUT),
        (ready.hangup, events::HUP),
        (ready.read_hangup, events::RDHUP | events::IN),
        (ready.urgent, events::PRI),
    ] {
        if set {
            mask |= bits;
        }
    }
    mask
}
