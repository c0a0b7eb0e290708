// SPDX-License-Identifier: GPL-2.0

//! What the core costs per message: write, plan, encode, decode, take in, read, complete.

use std::hint::black_box;
use std::time::Instant;

use smc_proto_host::proto::cdc::Message;
use smc_proto_host::proto::conn::{Conn, Params};
use smc_proto_host::proto::cursor::RingSize;
use smc_proto_host::proto::ids::AlertToken;
use smc_proto_host::proto::size::update_limit;

fn conn(ring: u32) -> Conn {
    let size = RingSize::new(ring).unwrap();
    Conn::new(Params {
        send_ring: size,
        peer_ring: size,
        recv_ring: size,
        peer_token: AlertToken::new(1).unwrap(),
        update_limit: update_limit(ring),
        max_chain: 0,
    })
}

/// Sends one plan of `from` to `to`.
fn pass(from: &mut Conn, to: &mut Conn) -> bool {
    let Some(plan) = from.plan_tx(true) else {
        return false;
    };
    let bytes = black_box(plan.cdc.encode());
    let _ = to.on_cdc(&Message::decode(&bytes).unwrap()).unwrap();
    let _ = from.tx_done(plan.token);
    true
}

fn main() {
    const ROUNDS: u32 = 2_000_000;
    for (name, len) in [("64 B", 64), ("4 KiB", 4096), ("32 KiB", 32 * 1024)] {
        let (mut a, mut b) = (conn(65_536), conn(65_536));
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let n = black_box(a.reserve_write(len)).total();
            a.commit_write(n).unwrap();
            pass(&mut a, &mut b);
            let n = black_box(b.readable()).total();
            let _ = b.consume(n).unwrap();
            pass(&mut b, &mut a);
        }
        let ns = start.elapsed().as_nanos() / u128::from(ROUNDS);
        println!("{name:>7}: {ns} ns for both ends of one message");
    }
}
