// SPDX-License-Identifier: GPL-2.0

//! `setsockopt(2)`, `getsockopt(2)` and `ioctl(2)`.
//!
//! Every option is set on the TCP socket, which checks it and needs it if the connection falls back. `SOL_SOCKET` options
//! are mirrored on the outer sock, as the kernel's own code looks for them there. What says how the application reads and
//! writes, `SO_RCVLOWAT`, `SO_PEEK_OFF` and `TCP_CORK`, stays there until it does so on the TCP socket: the handshake does
//! before.

use kernel::{
    ffi::c_int,
    prelude::*,
    sync::atomic::Relaxed, //
};
use zerocopy::IntoBytes;

use crate::{
    kapi::net::{
        put_int,
        Open,
        OptionIn,
        OptionOut, //
    },
    net_ctx::Counter, //
};

use super::{
    data::fall_back_for_option,
    info,
    socket::SmcSock,
    state::{
        Mode,
        State, //
    },
};

/// Option levels.
const SOL_SOCKET: c_int = 1;
/// See [`SOL_SOCKET`].
const SOL_TCP: c_int = 6;
/// See [`SOL_SOCKET`].
const SOL_SMC: c_int = 286;

/// Whether a listener limits the handshakes in progress.
const SMC_LIMIT_HS: c_int = 1;
/// What a connection is and how it fares.
const SMC_RS_INFO: c_int = 0x100;

/// Options of TCP that matter here.
const TCP_NODELAY: c_int = 1;
/// See [`TCP_NODELAY`].
const TCP_CORK: c_int = 3;
/// See [`TCP_NODELAY`].
const TCP_DEFER_ACCEPT: c_int = 9;
/// See [`TCP_NODELAY`].
const TCP_FASTOPEN: c_int = 23;
/// See [`TCP_NODELAY`].
const TCP_FASTOPEN_CONNECT: c_int = 30;
/// See [`TCP_NODELAY`].
const TCP_ULP: c_int = 31;
/// See [`TCP_NODELAY`].
const TCP_FASTOPEN_KEY: c_int = 33;
/// See [`TCP_NODELAY`].
const TCP_FASTOPEN_NO_COOKIE: c_int = 34;

/// Options of sockets that matter here.
const SO_OOBINLINE: c_int = 10;

/// See [`SO_OOBINLINE`].
const SO_RCVLOWAT: c_int = 18;

/// See [`SO_OOBINLINE`].
const SO_PEEK_OFF: c_int = 42;

/// `setsockopt(2)`.
pub(super) fn set(
    sk: Open<'_, SmcSock>,
    level: c_int,
    name: c_int,
    value: &OptionIn<'_>,
) -> Result {
    match (level, name) {
        (SOL_SMC, SMC_LIMIT_HS) => {
            let on = value.read_int()? != 0;
            let state = sk.state.lock();
            sk.limit_hs.store(u32::from(on), Relaxed);
            if let State::Listening { queue, .. } = &*state {
                queue.set_limited(on);
            }
            return Ok(());
        }
        (SOL_SMC, _) => return Err(ENOPROTOOPT),
        (SOL_SOCKET, SO_PEEK_OFF) if sk.mode() != Mode::Tcp => {
            // The handshake reads from the TCP socket.
            sk.set_peek_offset(value.read_int()?);
            return Ok(());
        }
        // An upper protocol of TCP would see none of the data that goes by RDMA.
        (SOL_TCP, TCP_ULP) if !matches!(sk.mode(), Mode::Init | Mode::Tcp) => {
            return Err(EOPNOTSUPP);
        }
        (
            SOL_TCP,
            TCP_FASTOPEN | TCP_FASTOPEN_CONNECT | TCP_FASTOPEN_KEY | TCP_FASTOPEN_NO_COOKIE,
        ) => match sk.mode() {
            Mode::Tcp => (),
            // Data in a SYN would come before the handshake.
            Mode::Init => fall_back_for_option(sk)?,
            _ => return Err(EINVAL),
        },
        _ => (),
    }
    SmcSock::forward(sk, |tcp| tcp.set_option(level, name, value))?;
    // Options of one level may change those of another.
    sk.mirror(&sk.attached()?.tcp, sk.mode() == Mode::Tcp);
    match (level, name) {
        (SOL_TCP, TCP_NODELAY) => {
            let on = value.read_int()? != 0;
            SmcSock::hand_options_to(&sk.state.lock());
            if let (true, Ok(conn)) = (on, SmcSock::connection(&sk)) {
                sk.ctx.stats().bump(Counter::NODELAY);
                // What was held back is sent.
                conn.push();
            }
        }
        (SOL_TCP, TCP_ULP) => fall_back_for_option(sk)?,
        (SOL_TCP, TCP_DEFER_ACCEPT) => {
            let most_s = u32::try_from(value.read_int()?).unwrap_or(0);
            let state = sk.state.lock();
            sk.defer_s.store(most_s, Relaxed);
            if let State::Listening { queue, .. } = &*state {
                queue.set_deferring(most_s);
            }
        }
        (SOL_TCP, TCP_CORK) => {
            let on = value.read_int()? != 0;
            let tcp = &sk.attached()?.tcp;
            sk.corked.store(u32::from(on), Relaxed);
            if sk.mode() != Mode::Tcp {
                // No message of the handshake is held back.
                tcp.set_cork(false);
            }
            if on && sk.mode() == Mode::Tcp {
                // It may have become one of TCP in between.
                tcp.set_cork(true);
            }
            if on && sk.mode() == Mode::Smc {
                sk.ctx.stats().bump(Counter::CORK);
            }
            if let (false, Ok(conn)) = (on, SmcSock::connection(&sk)) {
                conn.push();
            }
        }
        (SOL_SOCKET, SO_RCVLOWAT) => {
            // TCP has checked it, but the handshake wants to know of every byte.
            let one = matches!(value.read_int()?, 0 | 1);
            let tcp = &sk.attached()?.tcp;
            sk.take_rcvlowat_of(tcp, one);
            if sk.mode() == Mode::Tcp {
                sk.hand_rcvlowat_to(tcp);
            }
        }
        (SOL_SOCKET, SO_OOBINLINE) => SmcSock::hand_options_to(&sk.state.lock()),
        _ => (),
    }
    Ok(())
}

/// `getsockopt(2)`, except `SOL_SOCKET`, which the kernel answers itself.
pub(super) fn get(
    sk: Open<'_, SmcSock>,
    level: c_int,
    name: c_int,
    out: &mut OptionOut<'_>,
) -> Result {
    match (level, name) {
        (SOL_SMC, SMC_LIMIT_HS) => out.write_int(i32::from(sk.limit_hs.load(Relaxed) != 0)),
        (SOL_SMC, SMC_RS_INFO) => out.write(info::of(sk).as_bytes()),
        (SOL_SMC, _) => Err(ENOPROTOOPT),
        (SOL_TCP, TCP_CORK) if sk.mode() != Mode::Tcp => {
            out.write_int(i32::from(sk.corked.load(Relaxed) != 0))
        }
        _ => SmcSock::forward(sk, |tcp| tcp.get_option(level, name, out)),
    }
}

/// Requests that ask for numbers of bytes.
const SIOCINQ: u32 = 0x541b;
/// See [`SIOCINQ`].
const SIOCOUTQ: u32 = 0x5411;
/// See [`SIOCINQ`].
const SIOCOUTQNSD: u32 = 0x894b;
/// Whether reading stands at the urgent mark.
const SIOCATMARK: u32 = 0x8905;

/// `ioctl(2)`.
pub(super) fn ioctl(sk: Open<'_, SmcSock>, cmd: u32, arg: usize, compat: bool) -> Result<c_int> {
    let mode = sk.mode();
    let ours = matches!(cmd, SIOCINQ | SIOCOUTQ | SIOCOUTQNSD | SIOCATMARK);
    if matches!(mode, Mode::Init | Mode::Listening | Mode::Tcp) || !ours {
        return SmcSock::forward(sk, |tcp| tcp.ioctl(cmd, arg, compat));
    }
    let answer = match mode {
        Mode::Smc => {
            let conn = SmcSock::connection(&sk)?;
            match cmd {
                SIOCINQ => conn.readable_len(),
                SIOCOUTQ => conn.out_queue().0,
                SIOCOUTQNSD => conn.out_queue().1,
                _ => u32::from(conn.at_mark()),
            }
        }
        _ => 0,
    };
    put_int(arg, i32::try_from(answer).unwrap_or(i32::MAX))?;
    Ok(0)
}
