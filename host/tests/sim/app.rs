// SPDX-License-Identifier: GPL-2.0

//! Applications: what they write, read and call, and how they end.

use crate::proto::close::Event;
use crate::proto::cursor::RingSize;

use super::conn::class;
use super::sock::{Phase, Tcp};
use super::world::{Ev, World};

/// How an application ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Writes all, shuts its direction, reads to the end, closes.
    Half,
    /// Writes all, reads to the end, closes.
    Wait,
    /// Writes all and closes, whatever comes.
    Close,
    /// Writes all and shuts both directions.
    Both,
    /// Gives up in the middle.
    Abort,
    /// Calls what it likes, also what makes no sense.
    Wild,
    /// Closes in the middle.
    Sudden,
}

/// The application.
#[derive(Clone, Debug)]
pub struct App {
    pub to_write: u64,
    pub chunk: u64,
    pub ending: Ending,
    /// Bytes after which it ends suddenly.
    pub sudden: u64,
    pub ended: bool,
    pub eof: bool,
    pub writer_sleeps: bool,
    pub reader_sleeps: bool,
    pub scheduled: bool,
    pub urgent: bool,
    /// It sleeps for so long once, in microseconds.
    pub nap: u64,
    /// It does so after it has written all.
    pub late_nap: bool,
    /// It waits for nothing but its peer's end of the TCP connection.
    pub fin_sent: bool,
    pub fin_got: bool,
}

/// The byte at a position of the stream of one side of a pair.
pub fn pattern(sock: usize, pos: u64) -> u8 {
    let x = (pos ^ ((sock as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x.to_be_bytes()[0] ^ x.to_be_bytes()[3]
}

impl World {
    /// Wakes whoever sleeps.
    pub fn wake(&mut self, s: usize, reader: bool, writer: bool) {
        let app = &mut self.socks[s].app;
        let mut up = false;
        if reader && app.reader_sleeps {
            app.reader_sleeps = false;
            up = true;
        }
        if writer && app.writer_sleeps {
            app.writer_sleeps = false;
            up = true;
        }
        if up {
            self.schedule(s);
        }
    }

    /// The application runs soon.
    pub fn schedule(&mut self, s: usize) {
        let app = &mut self.socks[s].app;
        if !app.scheduled {
            app.scheduled = true;
            self.soon(self.plan.delays.think, Ev::App(s));
        }
    }

    pub fn app(&mut self, s: usize) {
        self.socks[s].app.scheduled = false;
        match self.socks[s].phase {
            Phase::Smc => self.app_smc(s),
            Phase::Tcp => self.app_tcp(s),
            Phase::Failed if self.socks[s].machine.is_open() => {
                self.event(s, Event::Close { unread: false });
            }
            Phase::Fresh | Phase::Failed => {}
            // It does not wait for the end of the handshake.
            _ if self.socks[s].app.ending == Ending::Sudden => self.give_up_early(s),
            _ => {}
        }
    }

    /// A fallen back connection: both end it.
    fn app_tcp(&mut self, s: usize) {
        if !self.socks[s].app.fin_sent {
            self.socks[s].app.fin_sent = true;
            self.tcp_send(s, Tcp::Fin);
        }
        if self.socks[s].app.fin_got && self.socks[s].machine.is_open() {
            self.event(s, Event::FallbackEnded);
            self.event(s, Event::Close { unread: false });
        }
    }

    fn app_smc(&mut self, s: usize) {
        if !self.socks[s].machine.is_open() {
            return;
        }
        let sock = &self.socks[s];
        let wild = sock.app.ending == Ending::Wild;
        if sock.error.is_some() || sock.machine.state().is_over() {
            if wild && self.rng.one_in(2) {
                self.wild_call(s);
                return self.schedule(s);
            }
            return self.close(s);
        }
        let start = sock.start(true);
        let sent = sock.written - start;
        let so_far = sent.max(sock.read - sock.start(false));
        let app = &sock.app;
        match app.ending {
            Ending::Abort if so_far >= app.sudden => {
                self.excuse(s, "an application gave up");
                self.event(s, Event::LocalAbort);
                return self.schedule(s);
            }
            Ending::Sudden if so_far >= app.sudden => {
                self.excuse(s, "an application closed suddenly");
                return self.close(s);
            }
            _ => {}
        }
        let tired = if app.late_nap {
            app.ended
        } else {
            so_far >= app.sudden.min(app.to_write)
        };
        if app.nap > 0 && tired {
            let nap = std::mem::take(&mut self.socks[s].app.nap);
            if nap >= 50_000_000 {
                self.excuse(s, "an application slept for long");
            }
            // Nothing wakes it.
            self.socks[s].app.scheduled = true;
            return self.at(self.now + nap, Ev::App(s));
        }
        if wild && self.rng.one_in(6) {
            self.wild_call(s);
            return self.schedule(s);
        }
        let mut busy = self.app_write(s);
        busy |= self.app_read(s);
        let sock = &self.socks[s];
        let all = sock.written - start >= sock.app.to_write || !self.may_write(s);
        if all && !sock.app.ended {
            self.socks[s].app.ended = true;
            busy = true;
            match self.socks[s].app.ending {
                Ending::Half => {
                    self.event(s, Event::ShutdownWrite);
                }
                Ending::Close => {
                    self.excuse(s, "an application closed without reading");
                    return self.close(s);
                }
                Ending::Both => {
                    self.excuse(s, "an application shut both directions");
                    self.event(s, Event::ShutdownBoth);
                }
                Ending::Abort | Ending::Sudden => {
                    self.excuse(s, "an application ended early");
                    return self.close(s);
                }
                Ending::Wild => self.excuse(s, "an application is wild"),
                Ending::Wait => {}
            }
        }
        let wild_end = wild && self.socks[s].app.ended;
        if self.socks[s].app.ended && self.socks[s].app.eof && (!wild || self.rng.one_in(8)) {
            return self.close(s);
        }
        if wild_end {
            self.wild_call(s);
            if self.rng.one_in(12) {
                return self.close(s);
            }
            return self.schedule(s);
        }
        if self.socks[s].error.is_some() || self.socks[s].machine.state().is_over() {
            busy = true;
        }
        if busy {
            self.schedule(s);
        }
    }

    /// Any call at any time.
    fn wild_call(&mut self, s: usize) {
        self.excuse(s, "an application is wild");
        match self.rng.below(14) {
            0..=4 => {
                self.event(s, Event::ShutdownWrite);
                if self.rng.one_in(4) {
                    self.close(s);
                }
            }
            5..=8 => {
                self.event(s, Event::ShutdownBoth);
                if self.rng.one_in(2) {
                    self.close(s);
                }
            }
            9 => {
                self.event(s, Event::LocalAbort);
            }
            10 | 12 => self.close(s),
            11 => {
                self.event(s, Event::ShutdownRead);
            }
            _ => {}
        }
    }

    fn may_write(&self, s: usize) -> bool {
        let sock = &self.socks[s];
        let conn = sock.conn.as_ref().unwrap();
        let peer = conn.peer_close();
        !conn.is_dead() && !peer.abort && sock.machine.state().may_send()
    }

    pub fn unread(&self, s: usize) -> bool {
        self.socks[s]
            .conn
            .as_ref()
            .is_some_and(|c| c.readable_len() > 0)
    }

    fn app_write(&mut self, s: usize) -> bool {
        let start = self.socks[s].start(true);
        let left = self.socks[s]
            .app
            .to_write
            .saturating_sub(self.socks[s].written - start);
        if left == 0
            || !self.may_write(s)
            || self.socks[s].app.writer_sleeps
            || self.socks[s].app.ended
        {
            return false;
        }
        let want = self.rng.range(1, self.socks[s].app.chunk).min(left) as u32;
        let urgent = self.socks[s].app.urgent && self.rng.one_in(4);
        let sock = &mut self.socks[s];
        let conn = sock.conn.as_mut().unwrap();
        if urgent && conn.urgent_outstanding() {
            sock.app.writer_sleeps = true;
            return false;
        }
        let quiet = conn.unfinished() == 0 && conn.posted() == 0;
        let other = 1 - sock.ring_now;
        let change = match other {
            // More than the small one has room for.
            1 => want > conn.send_space() && !conn.keeps_ring_before(),
            _ => quiet && want as usize <= sock.rings[0].len() && self.rng.one_in(3),
        };
        if change {
            self.reach.hit(
                "conn",
                class(conn),
                if other == 1 { "grow" } else { "shrink" },
            );
            let size = RingSize::new(sock.rings[other].len() as u32).unwrap();
            conn.switch_ring(size).unwrap();
            if other == 0 {
                // Somebody else gets it.
                sock.rings[1].fill(0xee);
            }
            sock.ring_now = other;
        }
        let ranges = conn.reserve_write(want);
        let mut at = sock.written;
        for r in ranges.iter() {
            for b in &mut sock.rings[sock.ring_now][r.offset as usize..(r.offset + r.len) as usize]
            {
                *b = pattern(s, at);
                at += 1;
            }
        }
        if ranges.total() == 0 {
            sock.app.writer_sleeps = true;
            self.reach.hit("conn", class(conn), "write waits");
            return false;
        }
        self.reach.hit("conn", class(conn), "write");
        conn.commit_write(ranges.total()).unwrap();
        sock.written = at;
        self.sum.bytes += u64::from(ranges.total());
        if urgent && ranges.total() == want {
            self.reach.hit("conn", class(conn), "mark urgent");
            conn.mark_urgent().unwrap();
        }
        self.push(s);
        true
    }

    fn app_read(&mut self, s: usize) -> bool {
        if self.socks[s].app.eof || self.socks[s].app.reader_sleeps {
            return false;
        }
        let most = self.rng.range(1, self.socks[s].app.chunk);
        let sock = &mut self.socks[s];
        let peer = sock.peer;
        let conn = sock.conn.as_mut().unwrap();
        let bytes = &self.verbs.rmbs[sock.rmb.unwrap()].bytes;
        let mut got = 0u32;
        // Urgent bytes are read where they stand.
        for r in conn.readable().iter() {
            for b in &bytes[r.offset as usize..(r.offset + r.len) as usize] {
                if u64::from(got) >= most {
                    break;
                }
                assert_eq!(
                    *b,
                    pattern(peer, sock.read),
                    "byte {} of socket {s}",
                    sock.read
                );
                sock.read += 1;
                got += 1;
            }
        }
        if got > 0 {
            self.reach.hit("conn", class(conn), "read");
            let push = conn.consume(got).unwrap().push;
            if push {
                self.reach.hit("effect", "read", "push");
                self.push(s);
            }
            return true;
        }
        let close = conn.peer_close();
        let ended = close.sending_done || close.closed || conn.is_dead();
        if ended {
            sock.app.eof = true;
            return true;
        }
        sock.app.reader_sleeps = true;
        false
    }

    pub fn close(&mut self, s: usize) {
        if self.socks[s].machine.is_open() {
            let unread = self.unread(s);
            if unread && self.socks[s].error.is_none() {
                self.excuse(s, "an application closed over unread data");
            }
            self.socks[s].app.ended = true;
            self.event(s, Event::Close { unread });
        }
    }
}
