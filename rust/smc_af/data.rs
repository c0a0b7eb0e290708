// SPDX-License-Identifier: GPL-2.0

//! `sendmsg(2)`, `recvmsg(2)` and the like.

use kernel::{
    num::casts::u32_as_usize,
    prelude::*,
    sync::atomic::Relaxed, //
};

use crate::{
    kapi::{
        net::{
            flag,
            Open,
            Patience,
            RecvMsg,
            SendMsg, //
        },
        trace, //
    },
    net_ctx::{
        Counter,
        RingEvent,
        Way, //
    },
    proto::reason::DeclineReason,
    smc_cdc::{
        Connection,
        Moved,
        RecvMode,
        SendMode, //
    },
};

use super::{
    socket::SmcSock,
    state::{
        Mode,
        Report,
        State, //
    },
};

/// `sendmsg(2)`.
pub(super) fn sendmsg(sk: Open<'_, SmcSock>, msg: &mut SendMsg<'_>) -> Result<usize> {
    let mut patience = sk.write_patience(msg.nonblocking());
    let nosignal = msg.flags() & flag::MSG_NOSIGNAL != 0;
    loop {
        match sk.mode() {
            Mode::Tcp => return SmcSock::forward(sk, |tcp| tcp.sendmsg(msg)),
            // It opens a connection, and there is one.
            Mode::Smc if msg.flags() & flag::MSG_FASTOPEN != 0 => return Err(EISCONN),
            Mode::Smc => {
                let conn = SmcSock::connection(&sk)?;
                let sent = send(sk, conn, msg, &mut patience);
                sk.ctx.stats().call(Way::Send, sent.as_ref().ok().copied());
                if let Ok(bytes) = sent {
                    trace::sent(&sk, bytes, || conn.device_name());
                }
                return sent;
            }
            Mode::Init if msg.flags() & flag::MSG_FASTOPEN != 0 => fall_back_for_option(sk)?,
            _ if msg.flags() & flag::MSG_FASTOPEN != 0 => return Err(EINVAL),
            Mode::Connecting => connected(sk, &mut patience)?,
            Mode::Init | Mode::Failed | Mode::Listening | Mode::Closed => {
                return Err(sk.broken_pipe(nosignal, EPIPE));
            }
        }
    }
}

/// `recvmsg(2)`.
pub(super) fn recvmsg(sk: Open<'_, SmcSock>, msg: &mut RecvMsg<'_>) -> Result<usize> {
    if msg.flags() & flag::MSG_ERRQUEUE != 0 {
        // Reports about what was sent wait on the TCP socket, also those of a connection over RDMA.
        return SmcSock::forward(sk, |tcp| tcp.recvmsg(msg));
    }
    let mut patience = sk.read_patience(msg.nonblocking());
    loop {
        match sk.mode() {
            Mode::Tcp | Mode::Init | Mode::Listening => {
                return SmcSock::forward(sk, |tcp| tcp.recvmsg(msg));
            }
            Mode::Smc => {
                let conn = SmcSock::connection(&sk)?;
                msg.clear_name();
                let got = receive(sk, conn, msg, &mut patience);
                if let Ok(bytes) = got {
                    trace::received(&sk, bytes, || conn.device_name());
                    msg.tell_unread(&sk.attached()?.tcp, || conn.left_to_read());
                }
                sk.ctx
                    .stats()
                    .call(Way::Receive, got.as_ref().ok().copied());
                return got;
            }
            Mode::Connecting => connected(sk, &mut patience)?,
            Mode::Failed | Mode::Closed => {
                sk.take_err()?;
                return Ok(0);
            }
        }
    }
}

/// Waits until a connect is over.
fn connected(sk: Open<'_, SmcSock>, patience: &mut Patience) -> Result {
    sk.wait(patience, false, || {
        (sk.mode() != Mode::Connecting).then_some(())
    })
}

/// A fresh socket becomes one of TCP, because the application wants something that only TCP has.
pub(super) fn fall_back_for_option(sk: Open<'_, SmcSock>) -> Result {
    let tcp = &sk.attached()?.tcp;
    let mut state = sk.state.lock();
    if matches!(*state, State::Tcp { .. }) {
        return Ok(());
    }
    tcp.show_file(&sk);
    SmcSock::fall_back(
        &sk,
        &mut state,
        tcp,
        DeclineReason::OPTUNSUPP,
        0,
        Report::Done,
    )
}

/// Sends over RDMA, waiting for room as the application allows.
fn send(
    sk: Open<'_, SmcSock>,
    conn: &Connection,
    msg: &mut SendMsg<'_>,
    patience: &mut Patience,
) -> Result<usize> {
    let flags = msg.flags();
    let mode = SendMode {
        cork: flags & flag::MSG_MORE != 0 || sk.corked.load(Relaxed) != 0,
        urgent: flags & flag::MSG_OOB != 0,
    };
    let wanted = msg.len();
    count_send(&sk, conn, wanted, mode.urgent);
    let tcp = &sk.attached()?.tcp;
    let report = if flags & flag::MSG_ZEROCOPY != 0 && wanted > 0 && tcp.wants_zerocopy() {
        Some(tcp.zerocopy_report(wanted)?)
    } else {
        None
    };
    let mut sent: usize = 0;
    let outcome = loop {
        match conn.try_send(msg.iter(), mode) {
            Ok(more) => {
                sent = sent.saturating_add(more.bytes);
                if sent >= wanted || more.fault {
                    break Ok(());
                }
            }
            Err(err) if err == EAGAIN => (),
            Err(err) => break Err(err),
        }
        count_full(&sk, conn);
        if patience.is_over() {
            break Err(EAGAIN);
        }
        let room = sk.wait(patience, false, || {
            (conn.may_try_send(mode) || sk.err() != 0).then_some(())
        });
        if let Err(err) = room {
            break Err(err);
        }
        if sk.err() != 0 {
            break Err(EPIPE);
        }
    };
    if let (Some(report), true) = (report, sent > 0) {
        report.send();
    }
    match outcome {
        Err(err) if sent == 0 => Err(sk.broken_pipe(flags & flag::MSG_NOSIGNAL != 0, err)),
        _ => Ok(sent),
    }
}

/// Counts what is known before a call sends `wanted` bytes.
fn count_send(sk: &SmcSock, conn: &Connection, wanted: usize, urgent: bool) {
    let stats = sk.ctx.stats();
    if urgent {
        stats.bump(Counter::URGENT);
    }
    if wanted > u32_as_usize(conn.send_ring()) {
        stats.ring(Way::Send, RingEvent::SMALL);
    }
    if wanted > u32_as_usize(conn.peer_ring()) {
        stats.ring(Way::Send, RingEvent::SMALL_PEER);
    }
}

/// Counts that the send ring is full, and why.
fn count_full(sk: &SmcSock, conn: &Connection) {
    let stats = sk.ctx.stats();
    stats.ring(Way::Send, RingEvent::FULL);
    // What has not left waits for room at the peer.
    let (_, unsent) = conn.out_queue();
    if unsent > 0 {
        stats.ring(Way::Send, RingEvent::FULL_PEER);
    }
}

/// Receives over RDMA, waiting for bytes as the application allows.
fn receive(
    sk: Open<'_, SmcSock>,
    conn: &Connection,
    msg: &mut RecvMsg<'_>,
    patience: &mut Patience,
) -> Result<usize> {
    let flags = msg.flags();
    if flags & flag::MSG_OOB != 0 {
        let byte = conn.take_urgent(flags & flag::MSG_PEEK != 0)?;
        msg.report(flag::MSG_OOB);
        if msg.len() == 0 {
            msg.report(flag::MSG_TRUNC);
            return Ok(0);
        }
        if flags & flag::MSG_TRUNC == 0 && msg.iter().copy_to_iter(&[byte]) == 0 {
            return Err(EFAULT);
        }
        return Ok(1);
    }
    let peek = flags & flag::MSG_PEEK != 0;
    let skip = if peek {
        sk.peek_offset().unwrap_or(0)
    } else {
        0
    };
    let mode = RecvMode {
        peek,
        discard: flags & flag::MSG_TRUNC != 0,
        skip,
    };
    let room = msg.len();
    let stats = sk.ctx.stats();
    if room > u32_as_usize(conn.receive_ring()) {
        stats.ring(Way::Receive, RingEvent::SMALL);
    }
    if conn.readable_len() == conn.receive_ring() {
        stats.ring(Way::Receive, RingEvent::FULL);
    }
    let enough = if flags & flag::MSG_WAITALL != 0 {
        room
    } else {
        room.min(u32_as_usize(sk.rcvlowat()))
    };
    // As with TCP a call without room waits for bytes too.
    if mode.peek && enough > 1 {
        // A peek begins at the same byte each time: it has to find all it wants at once.
        let all = enough
            .saturating_add(u32_as_usize(skip))
            .min(u32_as_usize(conn.receive_ring()));
        let _ = sk.wait(patience, false, || {
            let ready = conn.ready();
            let there = u32_as_usize(conn.readable_len());
            (there >= all || ready.read_hangup || ready.hangup || ready.urgent || sk.err() != 0)
                .then_some(())
        });
    }
    patience.look_first(sk.busy_us());
    let mut got: usize = 0;
    let outcome = loop {
        match conn.try_recv(msg.iter(), room.saturating_sub(got), mode) {
            // An error waits for a call that has nothing else to say.
            Ok(Moved { bytes: 0, .. }) if got > 0 || conn.peer_is_done() => break Ok(()),
            Ok(Moved { bytes: 0, .. }) => break sk.take_err(),
            Ok(more) => {
                got = got.saturating_add(more.bytes);
                if got >= enough || mode.peek || more.fault || conn.at_mark() {
                    break Ok(());
                }
            }
            Err(err) if err == EAGAIN => (),
            Err(err) => break Err(err),
        }
        if sk.err() != 0 {
            break if got > 0 { Ok(()) } else { sk.take_err() };
        }
        if patience.is_over() {
            break Err(EAGAIN);
        }
        let bytes = sk.wait(patience, false, || {
            let ready = conn.ready();
            (ready.unread > skip || ready.read_hangup || ready.hangup || sk.err() != 0)
                .then_some(())
        });
        if let Err(err) = bytes {
            break Err(err);
        }
    };
    let moved = i32::try_from(got).unwrap_or(i32::MAX);
    sk.move_peek_offset(if peek { moved } else { moved.saturating_neg() });
    match outcome {
        Err(err) if got == 0 => Err(err),
        _ => Ok(got),
    }
}
