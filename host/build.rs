// SPDX-License-Identifier: GPL-2.0

//! Makes a copy of the protocol core in which each fault of `planted.rs` can be switched on while
//! it runs, for the test `planted`. The core itself knows nothing of this.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

include!("planted.rs");

fn main() {
    let top = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let core = top.join("../rust/proto");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    println!("cargo::rerun-if-changed=../rust/proto");
    println!("cargo::rerun-if-changed=planted.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let mut fits = [true; PLANTED.len()];
    copy(&core, &core, &out.join("proto"), &mut fits);
    let mut text = String::new();
    // Warnings about the copy would be warnings about the faults.
    writeln!(text, "#[allow(warnings, clippy::all, clippy::restriction)]").unwrap();
    writeln!(text, "#[path = {:?}]", out.join("proto/mod.rs")).unwrap();
    writeln!(text, "mod proto;").unwrap();
    writeln!(text, "/// Whether each fault has its place in the core.").unwrap();
    writeln!(text, "const FITS: [bool; {}] = {fits:?};", fits.len()).unwrap();
    fs::write(out.join("planted_core.rs"), text).unwrap();
}

/// Copies a folder of the core, with faults.
fn copy(core: &Path, from: &Path, to: &Path, fits: &mut [bool]) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(core, &path, &target, fits);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(core).unwrap().to_str().unwrap();
            let mut text = fs::read_to_string(&path).unwrap();
            if name == "mod.rs" {
                // What the core denies itself the faults may do.
                let start = text.find("#![forbid").unwrap();
                let end = text.find("pub mod ").unwrap();
                text.replace_range(start..end, "");
            }
            for (n, fault) in PLANTED.iter().enumerate().filter(|(_, f)| f.file == name) {
                match plant(&text, n, fault) {
                    Some(new) => text = new,
                    None => fits[n] = false,
                }
            }
            fs::write(&target, text).unwrap();
        }
    }
}

/// Puts a fault beside what is right.
fn plant(text: &str, n: usize, fault: &Planted) -> Option<String> {
    let (before, rest) = fault.right.split_once("[[").unwrap();
    let (right, after) = rest.split_once("]]").unwrap();
    let whole = format!("{before}{right}{after}");
    let at = text.find(&whole)?;
    let wrong = fault.wrong;
    let choice = format!("if crate::planted({n}) {{ {wrong} }} else {{ {right} }}");
    // A statement stays one; an expression needs its bounds.
    let choice = if right.ends_with(';') {
        choice
    } else {
        format!("({choice})")
    };
    let mut new = text.to_owned();
    new.replace_range(at..at + whole.len(), &format!("{before}{choice}{after}"));
    Some(new)
}
