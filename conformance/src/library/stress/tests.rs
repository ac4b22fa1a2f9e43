//! The model detects each fault, and reduces the program to few operations.

use super::broken::{Broken, Fault};
use super::stress;
use crate::subject::Subject;
use crate::target::Target;
use gpu_vmm_core::{Bytes, DeviceId};
use gpu_vmm_host::HostConfig;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
struct Faulty(Fault);

impl Target<Broken> for Faulty {
    fn name(&self) -> &str {
        "broken"
    }

    fn open(&self) -> Result<Broken, String> {
        let host = HostConfig::new().devices(2).memory(Bytes::gib(1)).granularity(Bytes::kib(64)).open();
        Ok(Broken { host: host.map_err(|error| error.to_string())?, fault: self.0 })
    }

    fn is_fresh(&self) -> bool {
        true
    }

    fn foreign(&self) -> Option<Broken> {
        None
    }
}

/// Held while programs run: parallel programs would take the addresses behind each other's regions, and a failing program
/// would not fail again.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the programs of a seed on a backend with this fault.
fn found(fault: Fault, seed: u64) -> Result<usize, String> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Arc::new(Faulty(fault));
    let backend = target.open()?;
    let subject =
        Subject { backend, device: DeviceId(0), target, case: "stress", server: None, brief: false };
    stress(&subject, seed, 1000)
}

#[test]
fn what_is_right_holds() {
    for seed in 1..3 {
        let operations = found(Fault::None, seed).unwrap_or_else(|program| panic!("{program}"));
        assert!(operations > 500, "{operations}");
    }
}

/// Fails unless a program detects the fault, has at most `most` operations, and contains each of `calls`.
fn is_found(fault: Fault, most: usize, calls: &[&str]) {
    for seed in 1..3 {
        let program = found(fault, seed).expect_err("a program that fails");
        println!("{fault:?}, seed {seed}:\n{program}\n");
        let lines: Vec<&str> = program.lines().collect();
        assert!(lines.len() <= most + 1, "more than {most} operations:\n{program}");
        assert!(
            lines[lines.len() - 1].starts_with("// "),
            "the last line does not state the difference:\n{program}"
        );
        for call in calls {
            assert!(lines.iter().any(|line| line.contains(call)), "no {call} in\n{program}");
        }
    }
}

#[test]
fn forgotten_set_access_is_found() {
    is_found(Fault::ReadOnlyForgotten, 4, &["Region::builder(&backend)", "set_access(", "Access::Read)?;"]);
}

#[test]
fn misplaced_mapping_is_found() {
    is_found(Fault::MappedTooFar, 5, &["Region::builder(&backend)"]);
}

#[test]
fn short_fill_is_found() {
    is_found(Fault::FillTooShort, 5, &[".fill("]);
}

#[test]
fn a_pattern_that_goes_wrong_is_found() {
    is_found(Fault::PatternGoesWrong, 6, &[".write_pattern("]);
}

#[test]
fn forgotten_unmap_is_found() {
    is_found(Fault::LargeUnmapForgotten, 5, &["Region::builder(&backend)"]);
}
