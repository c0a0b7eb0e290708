// SPDX-License-Identifier: GPL-2.0

//! The simulator finds faults: each fault of `planted.rs`, switched on alone in the core that both
//! hosts run, makes a seed fail.

use std::cell::Cell;

include!(concat!(env!("OUT_DIR"), "/planted_core.rs"));
include!("../../planted.rs");

#[path = "../proto/common.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod common;

#[path = "../sim/mod.rs"]
#[allow(dead_code, reason = "shared with the simulator's own tests")]
mod sim;

thread_local! {
    /// Number of the fault that is switched on.
    static ON: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Asked by the core.
fn planted(n: usize) -> bool {
    ON.get() == n
}

/// Within how many seeds a fault has to be found.
const SEEDS: u64 = 12000;

/// The seed that finds a fault, and what is said then.
fn find(n: usize) -> Option<(u64, String)> {
    ON.set(n);
    let found = (0..SEEDS).find_map(|seed| sim::attempt(seed).err().map(|e| (seed, e)));
    ON.set(usize::MAX);
    found
}

#[test]
fn every_planted_fault_is_found() {
    sim::keep_panics();
    for (fault, fits) in PLANTED.iter().zip(FITS) {
        assert!(fits, "no longer there in {}: {}", fault.file, fault.right);
    }
    let faults: Vec<usize> = match std::env::var("SMC_FAULT") {
        Ok(v) => vec![v.parse().expect("SMC_FAULT is a decimal number")],
        Err(_) => (0..PLANTED.len()).collect(),
    };
    let found = sim::in_parallel(faults, |n| (*n, find(*n)));
    let mut missed = vec![];
    for (n, found) in found {
        let fault = &PLANTED[n];
        match found {
            Some((seed, why)) => {
                // Behind the place.
                let why = why.split_once(":\n").map_or(&*why, |(_, w)| w);
                let why: String = why.chars().take(60).collect();
                let why = why.replace('\n', " ");
                println!("{n:2} {:<48} seed {seed:4}: {why}", fault.what);
            }
            None => {
                println!("{n:2} {:<48} NOT FOUND", fault.what);
                missed.push(fault.what);
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn the_copy_without_a_fault_is_good() {
    sim::keep_panics();
    for seed in 0..40 {
        if let Err(e) = sim::attempt(seed) {
            panic!("seed {seed}: {e}");
        }
    }
}
