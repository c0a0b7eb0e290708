// SPDX-License-Identifier: GPL-2.0

//! What fuzzing has found interesting, and the vectors, go through the fuzz targets again.

use std::path::Path;

use crate::common::{property, vector};
use crate::fuzz_bodies::TARGETS;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The files of a folder, by name.
fn files(name: &str) -> Vec<std::path::PathBuf> {
    let dir = folder(name);
    let mut out: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{dir:?}: {e}"))
        .map(|e| e.unwrap().path())
        .collect();
    out.sort();
    out
}

#[test]
fn every_corpus_is_replayed() {
    for (name, body) in TARGETS {
        let inputs = files(&format!("fuzz/corpus/{name}"));
        assert!(inputs.len() >= 10, "{name}: {} inputs", inputs.len());
        for path in inputs {
            let data = std::fs::read(&path).unwrap();

            body(&data);
        }
    }
}

#[test]
fn every_vector_goes_through_every_target() {
    for path in files("vectors") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let bytes = vector(name);
        for (target, body) in TARGETS {
            eprintln!("{target} {name}");
            body(&bytes);
            // The targets with a preamble of their own.
            body(&[&[0xff; 9][..], &bytes].concat());
            body(&[&[0][..], &bytes].concat());
        }
    }
}

#[test]
fn random_inputs_go_through_every_target() {
    for (target, body) in TARGETS {
        property(target, 200, |rng| {
            let len = rng.below(400);
            body(&rng.vec(len));
        });
    }
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let names: Vec<String> = {
        let mut n: Vec<String> = TARGETS.iter().map(|(n, _)| (*n).into()).collect();
        n.sort();
        n
    };
    let stems = |dir: &str| -> Vec<String> {
        files(dir)
            .iter()
            .map(|p| p.file_stem().unwrap().to_str().unwrap().into())
            .collect()
    };
    assert_eq!(stems("fuzz/fuzz_targets"), names);
    assert_eq!(stems("fuzz/corpus"), names);
    let manifest = std::fs::read_to_string(folder("fuzz/Cargo.toml")).unwrap();
    for n in names {
        assert!(manifest.contains(&format!("name = \"{n}\"")), "{n}");
    }
}
