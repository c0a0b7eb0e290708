// SPDX-License-Identifier: GPL-2.0

//! Seeds, vectors and the checks that every decoder passes.

use std::fmt::Debug;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

/// The seed of this run: `SMC_SEED`, or a fixed number, so that a run without it repeats itself.
pub fn seed() -> u64 {
    match std::env::var("SMC_SEED") {
        Ok(s) => s.parse().expect("SMC_SEED is a decimal number"),
        Err(_) => 0x5eed_0001,
    }
}

/// A small generator with a printable state.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Any array of bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// A vector of any bytes.
    pub fn vec(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    /// Below `n`, which is not zero.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Between both, inclusive.
    pub fn range(&mut self, lo: u64, hi: u64) -> u64 {
        lo + self.below(hi - lo + 1)
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Runs a property with `n` seeds, or with `SMC_CASES`; the one that fails is printed.
pub fn property(what: &str, n: u64, f: impl Fn(&mut Rng)) {
    let n = match std::env::var("SMC_CASES") {
        Ok(s) => s.parse().expect("SMC_CASES is a decimal number"),
        Err(_) => n,
    };
    let first = seed();
    for k in 0..n {
        let s = first.wrapping_add(k);
        seeded(what, s, || f(&mut Rng::new(s)));
    }
}

/// Runs a test and prints the seed when it fails.
pub fn seeded<R>(what: &str, seed: u64, f: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(r) => r,
        Err(e) => {
            eprintln!("{what}: failed; repeat with SMC_SEED={seed}");
            std::panic::resume_unwind(e);
        }
    }
}

/// The files of a folder of this package, by name.
pub fn files(folder: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut out: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{dir:?}: {e}"))
        .map(|e| e.unwrap().path())
        .collect();
    out.sort();
    out
}

/// Runs a fuzz target on its corpus.
pub fn replay(target: &str, body: fn(&[u8])) {
    let inputs = files(&format!("fuzz/corpus/{target}"));
    assert!(inputs.len() >= 10, "{target}: {} inputs", inputs.len());
    for path in inputs {
        println!("{path:?}");
        body(&std::fs::read(&path).unwrap());
    }
}

/// Reads a vector: hexadecimal digits, `#` starts a comment.
pub fn vector(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("vectors")
        .join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let digits: String = text
        .lines()
        .map(|l| l.split('#').next().unwrap())
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .collect();
    assert!(digits.len() % 2 == 0, "{name}: odd number of digits");
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}

/// The whole matrix of a state machine is what `matrices/NAME.txt` says: a line for each state and
/// event. `SMC_BLESS` writes it anew; the difference is then to be read.
pub fn written_down(name: &str, got: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/proto/matrices")
        .join(format!("{name}.txt"));
    if std::env::var_os("SMC_BLESS").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    for (n, (g, w)) in got.lines().zip(want.lines()).enumerate() {
        assert_eq!(g, w, "{name}, line {}", n + 1);
    }
    assert_eq!(got.lines().count(), want.lines().count(), "{name}");
}

/// Every proper prefix of a message is refused.
pub fn refuses_truncations<T: Debug, E: Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, E>,
) {
    for n in 0..bytes.len() {
        let r = decode(&bytes[..n]);
        assert!(r.is_err(), "accepted {n} of {} bytes: {r:?}", bytes.len());
    }
}

/// Every value of every byte is decoded without a panic; `must_fail` names the offsets at which
/// each change has to be refused.
pub fn survives_corruption<T: Debug, E: Debug>(
    bytes: &[u8],
    must_fail: &[std::ops::Range<usize>],
    decode: impl Fn(&[u8]) -> Result<T, E>,
) {
    let mut copy = bytes.to_vec();
    for at in 0..bytes.len() {
        for v in 0..=255 {
            if v == bytes[at] {
                continue;
            }
            copy[at] = v;
            let r = decode(&copy);
            if must_fail.iter().any(|range| range.contains(&at)) {
                assert!(r.is_err(), "accepted byte {at} = {v:#04x}: {r:?}");
            }
        }
        copy[at] = bytes[at];
    }
}

/// Setting reserved bits changes nothing about what is decoded (RFC 7609, appendix A.2).
pub fn ignores_reserved<T: Debug + PartialEq, E: Debug>(
    bytes: &[u8],
    reserved: &[(std::ops::Range<usize>, u8)],
    decode: impl Fn(&[u8]) -> Result<T, E>,
) {
    let want = decode(bytes).unwrap();
    for (range, mask) in reserved {
        for at in range.clone() {
            for bit in 0..8 {
                if mask & (1 << bit) == 0 {
                    continue;
                }
                let mut copy = bytes.to_vec();
                copy[at] ^= 1 << bit;
                assert_eq!(decode(&copy).unwrap(), want, "byte {at} bit {bit}");
            }
        }
    }
}
