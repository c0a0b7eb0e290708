// SPDX-License-Identifier: GPL-2.0

//! `shutdown(2)` and `close(2)`.

use kernel::prelude::*;

use crate::kapi::net::{
    Open,
    Shutdown, //
};

use super::{
    connect::end_tcp,
    socket::SmcSock,
    state::State, //
};

/// `shutdown(2)`.
pub(super) fn shutdown(sk: Open<'_, SmcSock>, how: Shutdown) -> Result {
    let tcp = &sk.attached()?.tcp;
    let mut state = sk.state.lock();
    match &*state {
        State::Listening { .. } => {
            if !how.reads() {
                return Ok(());
            }
            // As in TCP: the listener stops, and those who wait in `accept(2)` are told.
            let old = SmcSock::transition(&sk, &mut state, State::Init)?;
            drop(state);
            if let State::Listening { queue, .. } = old {
                queue.close();
            }
            tcp.forget_option();
            let outcome = tcp.shutdown(how);
            sk.wake_state();
            outcome
        }
        State::Smc { conn, .. } => {
            let conn = conn.clone();
            drop(state);
            if conn.is_closed() {
                return Err(ENOTCONN);
            }
            match how {
                // Nothing goes over the wire: the peer may go on writing.
                Shutdown::Read => conn.shutdown_read(),
                Shutdown::Write => {
                    conn.shutdown_write()?;
                    // The side that ends its direction first is the one that owns TIME_WAIT, as in TCP. An error means
                    // that the TCP connection has ended already.
                    let _ = tcp.shutdown(how);
                    Ok(())
                }
                Shutdown::Both => {
                    let end = conn.shutdown_both()?;
                    end_tcp(tcp, end);
                    Ok(())
                }
            }?;
            // Who waits on this side learns of it too.
            sk.wake_state();
            Ok(())
        }
        State::Tcp { .. } | State::Connecting { .. } | State::Init | State::Failed => {
            drop(state);
            SmcSock::forward(sk, |tcp| tcp.shutdown(how))
        }
        State::Closed => Err(ENOTCONN),
    }
}

/// The descriptor is closed. What is attached to it is dropped next, the TCP socket among it.
pub(super) fn release(sk: Open<'_, SmcSock>) {
    let Ok(attached) = sk.attached() else {
        return;
    };
    let tcp = &attached.tcp;
    // A work item may hold the TCP socket for longer than the file is there.
    tcp.forget_file();
    let old = {
        let mut state = sk.state.lock();
        SmcSock::transition(&sk, &mut state, State::Closed)
    };
    match old {
        Ok(State::Connecting { .. }) => {
            // This ends whatever the handshake waits for; its work item drops the last reference.
            let _ = tcp.shutdown(Shutdown::Both);
        }
        Ok(State::Listening { queue, .. }) => {
            // A work item may hold the TCP socket for a moment longer: the port refuses connections from here on.
            let _ = tcp.shutdown(Shutdown::Both);
            queue.close();
        }
        Ok(State::Smc { conn, .. }) => {
            if sk.linger().is_some_and(|patience| patience.is_over()) {
                // SO_LINGER without time: what was not sent is dropped, and the peer is told.
                conn.disconnect();
                tcp.abort();
            } else {
                linger(sk);
                end_tcp(tcp, conn.close());
            }
        }
        Ok(State::Init | State::Failed | State::Tcp { .. } | State::Closed) | Err(_) => (),
    }
}

/// Waits, as SO_LINGER wants it, until the peer has all data.
fn linger(sk: Open<'_, SmcSock>) {
    let Some(mut patience) = sk.linger() else {
        return;
    };
    let Ok(conn) = SmcSock::connection(&sk) else {
        return;
    };
    // A signal ends the wait, and so does the end of the time: the data is sent in the background then.
    let _ = sk.wait(&mut patience, false, || conn.is_drained().then_some(()));
}
