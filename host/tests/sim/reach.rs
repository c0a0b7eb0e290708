// SPDX-License-Identifier: GPL-2.0

//! What the simulator has reached: which machine met which event in which state, and which
//! effects came of it.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};

/// Counts by machine, state and event.
#[derive(Default, Debug, PartialEq)]
pub struct Reach {
    counts: BTreeMap<(&'static str, String, String), u64>,
    /// Filled anew for each entry, so that most of them cost no memory.
    key: (&'static str, String, String),
}

impl Reach {
    /// Counts an event.
    pub fn hit(&mut self, machine: &'static str, state: impl Debug, event: impl Debug) {
        self.key.0 = machine;
        self.key.1.clear();
        self.key.2.clear();
        write!(self.key.1, "{state:?}").unwrap();
        write!(self.key.2, "{event:?}").unwrap();
        // Words do not need their quotes.
        self.key.1.retain(|c| c != '"');
        self.key.2.retain(|c| c != '"');
        match self.counts.get_mut(&self.key) {
            Some(n) => *n += 1,
            None => {
                self.counts.insert(self.key.clone(), 1);
            }
        }
    }

    pub fn merge(&mut self, other: Self) {
        for (key, n) in other.counts {
            *self.counts.entry(key).or_default() += n;
        }
    }

    /// How often this happened.
    pub fn count(&self, machine: &'static str, state: &str, event: &str) -> u64 {
        let key = (machine, state.to_owned(), event.to_owned());
        self.counts.get(&key).copied().unwrap_or(0)
    }

    /// Prints everything, machine by machine.
    pub fn print(&self) {
        let mut last = ("", "");
        for ((machine, state, event), n) in &self.counts {
            if last.0 != *machine {
                print!("\n{machine}");
            }
            if last != (*machine, state) {
                print!("\n  {state:<28}");
            }
            print!(" {event}:{n}");
            last = (machine, state);
        }
        println!();
    }
}
