// SPDX-License-Identifier: GPL-2.0

//! The simulator's own tests: thousands of seeds, and an account of what they have reached.
//!
//! `SMC_SEED=n SMC_CASES=1 cargo test --test sim` runs one seed again, with `SMC_TRACE=1` event by
//! event.

#[path = "../../../rust/proto/mod.rs"]
mod proto;

#[path = "../proto/common.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod common;

mod legal;

#[path = "mod.rs"]
mod sim;

use std::time::{Duration, Instant};

use sim::{Reach, Summary};

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let v = std::env::var(name).ok()?;
    Some(
        v.parse()
            .unwrap_or_else(|_| panic!("{name} is a decimal number")),
    )
}

/// How many seeds run by themselves.
const SEEDS: u64 = 4000;

/// Runs seeds; the first that fails ends the test.
fn run(first: u64, n: u64) -> (Vec<Summary>, Reach) {
    let seeds: Vec<u64> = (first..first + n).collect();
    let results = sim::in_parallel(seeds.clone(), |seed| sim::attempt(*seed));
    let mut reach = Reach::default();
    let mut sums = vec![];
    let mut failed = vec![];
    for (seed, result) in seeds.into_iter().zip(results) {
        match result {
            Ok((s, r)) => {
                sums.push(s);
                reach.merge(r);
            }
            Err(e) => {
                if failed.len() < 5 {
                    println!("seed {seed} failed; repeat with SMC_SEED={seed} SMC_CASES=1: {e}");
                }
                failed.push(seed);
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} seeds failed: {:.20?}",
        failed.len(),
        failed
    );
    (sums, reach)
}

#[test]
fn both_hosts_come_to_a_good_end_whatever_happens() {
    sim::keep_panics();
    let chosen = number("SMC_SEED").is_some() || number("SMC_CASES").is_some();
    let n = number("SMC_CASES").unwrap_or(SEEDS);
    let (sums, reach) = run(number("SMC_SEED").unwrap_or(0), n);
    reach.print();

    let total = |f: fn(&Summary) -> u64| sums.iter().map(f).sum::<u64>();
    let runs = sums.len();
    let mut events: Vec<u64> = sums.iter().map(|s| s.events).collect();
    events.sort_unstable();
    let median = events[runs / 2];
    let crowds = sums.iter().filter(|s| s.conns >= 256).count();
    let full = sums
        .iter()
        .filter(|s| s.most_in_group == 255 && s.server_groups > 1)
        .count();
    println!(
        "\n{runs} runs: {} events, median {median}, most {}; {} connections, {} ends by SMC-R, \
         {} moved to another link, {} bytes; {crowds} runs with 256 connections or more, in {full} \
         a group was full and another one followed",
        total(|s| s.events),
        events[runs - 1],
        total(|s| s.conns),
        total(|s| s.smc),
        total(|s| s.failovers),
        total(|s| s.bytes),
    );
    if chosen && std::env::var_os("SMC_ACCOUNT").is_none() {
        // The account is for the seeds that everybody runs.
        return;
    }
    assert!(median >= 300);
    assert!(crowds * 100 >= runs);
    assert!(full * 200 >= runs);
    let missing = legal::missing(&reach);
    assert!(missing.is_empty(), "never reached: {missing:#?}");
}

#[test]
fn a_seed_repeats_itself() {
    sim::keep_panics();
    for seed in [3, 7, 100] {
        let (a, first) = sim::attempt(seed).unwrap();
        let (b, second) = sim::attempt(seed).unwrap();
        assert_eq!(a, b);
        assert_eq!(first, second);
    }
}

#[test]
fn what_fuzzing_found_interesting_comes_to_a_good_end() {
    common::replay("hosts", sim::operate);
}

#[test]
fn random_operations_come_to_a_good_end() {
    common::property("operations", 300, |rng| {
        let len = rng.below(200);
        sim::operate(&rng.vec(len));
    });
}

/// Runs fresh seeds for `SMC_SOAK_MINUTES`, or `SMC_SOAK_SEEDS` of them, with a line every minute.
#[test]
#[ignore = "takes as long as it is told to: make soak"]
fn soak() {
    sim::keep_panics();
    let minutes = number("SMC_SOAK_MINUTES").unwrap_or(u64::MAX / 60);
    let seeds = number("SMC_SOAK_SEEDS").unwrap_or(u64::MAX);
    let first = number("SMC_SEED").unwrap_or(SEEDS);
    let start = Instant::now();
    let mut said = start;
    let (mut done, mut events) = (0, 0);
    while done < seeds && start.elapsed() < Duration::from_secs(minutes.saturating_mul(60)) {
        let n = 200.min(seeds - done);
        let (sums, _) = run(first + done, n);
        done += n;
        events += sums.iter().map(|s| s.events).sum::<u64>();
        if said.elapsed() >= Duration::from_secs(60) || done == seeds {
            said = Instant::now();
            println!(
                "soak: {done} seeds from {first} on, {events} events, {} s",
                start.elapsed().as_secs()
            );
        }
    }
    println!("soak: all of {done} seeds from {first} on came to a good end, {events} events");
}
