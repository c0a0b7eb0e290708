// SPDX-License-Identifier: GPL-2.0

//! A deterministic simulator: two hosts that are nothing but the core and what a shell must do,
//! joined by queue pairs and TCP connections that behave as badly as real ones. A seed decides
//! everything.

mod adding;
mod app;
mod checks;
mod closing;
mod conn;
mod ending;
mod group;
mod keys;
mod noise;
mod ops;
mod phases;
pub mod plan;
pub mod reach;
mod shake;
mod sock;
mod trouble;
mod verbs;
mod wire;
mod world;

use std::cell::RefCell;
use std::panic::catch_unwind;
use std::sync::Once;

pub use plan::Plan;
pub use reach::Reach;
pub use world::Summary;

use world::World;

thread_local! {
    /// What the last panic said.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// One run: what it did, or why it failed.
pub fn attempt(seed: u64) -> Result<(Summary, Reach), String> {
    let result = catch_unwind(|| {
        let mut w = World::new(Plan::of(seed));
        w.run();
        w.account()
    });
    result.map_err(|_| LAST_PANIC.take())
}

/// One run by a written list of operations; what does not hold is a panic.
pub fn operate(data: &[u8]) {
    World::new(Plan::written(data)).run();
}

/// Panics are kept instead of printed, for [`attempt`].
pub fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map_or("", |l| l.file());
            if place.ends_with("main.rs") {
                // A test of its own failed.
                return before(info);
            }
            let trace = match std::env::var_os("RUST_BACKTRACE") {
                Some(_) => std::backtrace::Backtrace::force_capture().to_string(),
                None => String::new(),
            };
            LAST_PANIC.with_borrow_mut(|p| *p = format!("{info}\n{trace}"));
        }));
    });
}

/// Works on all processors; the results come in the order of what was to be done.
pub fn in_parallel<T: Sync, R: Send>(todo: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = vec![];
                    loop {
                        let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        match todo.get(n) {
                            Some(t) => done.push((n, work(t))),
                            None => return done,
                        }
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|w| w.join().unwrap())
            .collect()
    });
    results.sort_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, r)| r).collect()
}
