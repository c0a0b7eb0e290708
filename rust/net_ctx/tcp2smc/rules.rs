// SPDX-License-Identifier: GPL-2.0

//! A list of programs and ports, as an operator writes it.
//!
//! Words with blanks between: `comm:NAME` for a program by the name of its first thread, `cgroup:NUMBER` for all in a
//! control group (the number is that of its folder's inode), `port:NUMBER` or `port:FIRST-LAST`.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::kapi::probe::{
    NewSocket,
    COMMAND_LEN, //
};

/// A list.
#[derive(Default)]
pub(super) struct Rules {
    /// The list as it was written.
    text: KVec<u8>,
    /// Names of programs, padded with zeroes.
    commands: KVec<[u8; COMMAND_LEN]>,
    /// Numbers of control groups.
    cgroups: KVec<u64>,
    /// First and last port of each range.
    ports: KVec<(u16, u16)>,
}

impl Rules {
    /// Reads a list.
    ///
    /// # Errors
    ///
    /// `EINVAL` for anything that is no list; `ENOMEM`.
    pub(super) fn parse(text: &[u8]) -> Result<Arc<Self>> {
        let mut rules = Self::default();
        for word in text.split(u8::is_ascii_whitespace) {
            if word.is_empty() {
                continue;
            }
            rules.add(word)?;
            if !rules.text.is_empty() {
                rules.text.push(b' ', GFP_KERNEL)?;
            }
            rules.text.extend_from_slice(word, GFP_KERNEL)?;
        }
        Ok(Arc::new(rules, GFP_KERNEL)?)
    }

    /// Reads one word.
    fn add(&mut self, word: &[u8]) -> Result {
        let colon = word.iter().position(|c| *c == b':').ok_or(EINVAL)?;
        let (kind, value) = word.split_at_checked(colon).ok_or(EINVAL)?;
        let value = value.get(1..).ok_or(EINVAL)?;
        match kind {
            b"comm" => {
                // The name ends with a zero.
                if value.is_empty() || value.len() >= COMMAND_LEN {
                    return Err(EINVAL);
                }
                let mut name = [0; COMMAND_LEN];
                for (to, from) in name.iter_mut().zip(value) {
                    *to = *from;
                }
                self.commands.push(name, GFP_KERNEL)?;
            }
            b"cgroup" => {
                self.cgroups
                    .push(number(value, u64::MAX).ok_or(EINVAL)?, GFP_KERNEL)?;
            }
            b"port" => {
                let (first, last) = match value.iter().position(|c| *c == b'-') {
                    Some(dash) => {
                        let (first, last) = value.split_at_checked(dash).ok_or(EINVAL)?;
                        (first, last.get(1..).ok_or(EINVAL)?)
                    }
                    None => (value, value),
                };
                let (first, last) = (port(first).ok_or(EINVAL)?, port(last).ok_or(EINVAL)?);
                if first > last {
                    return Err(EINVAL);
                }
                self.ports.push((first, last), GFP_KERNEL)?;
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    /// Writes the list. Does not allocate: the vector has room for any list.
    pub(super) fn write(&self, to: &mut KVec<u8>) -> Result {
        for byte in self.text.iter() {
            to.push_within_capacity(*byte).map_err(|_| EINVAL)?;
        }
        Ok(())
    }

    /// Whether the list names the running program.
    pub(super) fn name_program(&self, call: &NewSocket) -> bool {
        (!self.commands.is_empty() && self.commands.contains(&call.command()))
            || self.cgroups.iter().any(|id| call.in_cgroup(*id))
    }

    /// Whether the running program is meant by a list that means all when it names none.
    pub(super) fn allow_program(&self, call: &NewSocket) -> bool {
        (self.commands.is_empty() && self.cgroups.is_empty()) || self.name_program(call)
    }

    /// Whether the list names a port.
    pub(super) fn name_port(&self, port: u16) -> bool {
        self.ports
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Whether a port is meant by a list that means all when it names none.
    pub(super) fn allow_port(&self, port: u16) -> bool {
        self.ports.is_empty() || self.name_port(port)
    }
}

/// A decimal number of at most `max`.
fn number(digits: &[u8], max: u64) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        let digit = u64::from(digit.wrapping_sub(b'0'));
        value = value.checked_mul(10)?.checked_add(digit)?;
    }
    (value <= max).then_some(value)
}

/// A port.
fn port(digits: &[u8]) -> Option<u16> {
    number(digits, u64::from(u16::MAX)).and_then(|value| u16::try_from(value).ok())
}
