// SPDX-License-Identifier: GPL-2.0

//! What fuzzing has found interesting, and the vectors, go through the fuzz targets again.

use crate::common::{files, property, replay, vector};
use crate::fuzz_bodies::TARGETS;

#[test]
fn every_corpus_is_replayed() {
    for (name, body) in TARGETS {
        replay(name, body);
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
fn every_vector_says_where_it_comes_from() {
    for path in files("vectors") {
        let text = std::fs::read_to_string(&path).unwrap();
        let head: Vec<&str> = text.lines().take_while(|l| l.starts_with('#')).collect();
        let head = head.join(" ");
        let built = head.contains("built by hand")
            && (head.contains("RFC 7609") || head.contains("Linux") || head.contains("version 2"));
        assert!(
            built || head.contains("Captured by host/capture"),
            "{path:?}"
        );
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
    // The simulator of whole hosts has its own tests, which replay its corpus.
    let mut names: Vec<&str> = TARGETS.iter().map(|(n, _)| *n).collect();
    names.push("hosts");
    names.sort_unstable();
    let stems = |dir: &str| -> Vec<String> {
        files(dir)
            .iter()
            .map(|p| p.file_stem().unwrap().to_str().unwrap().into())
            .collect()
    };
    assert_eq!(stems("fuzz/fuzz_targets"), names);
    assert_eq!(stems("fuzz/corpus"), names);
    let manifest = include_str!("../../fuzz/Cargo.toml");
    for n in names {
        assert!(manifest.contains(&format!("name = \"{n}\"")), "{n}");
    }
}
