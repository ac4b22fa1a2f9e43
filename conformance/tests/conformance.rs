//! The conformance suite under `cargo test`, on every backend that this machine has.
//!
//! A test's name is `backend::group::case`, and `backend::driver::group::rule` for the driver layer: `host::grow::within`,
//! `host::driver::map::twice`. If a backend is unavailable, its cases are ignored, with the reason.
//! `GPU_VMM_TEST_BACKENDS=cuda,host` chooses backends; a chosen backend that is unavailable fails. Cases run in this process,
//! where a debugger sees them, except for cases that may end theirs. With `GPU_VMM_STOP_AT_FAILURE` set, no case runs after
//! one that failed.
#![allow(unsafe_code)] // the suite forks before anything else
#![allow(clippy::expect_used)] // a test program may panic

use gpu_vmm::{AnyBackend, Backend, DeviceId, Operation, Vendor};
use gpu_vmm_conformance::{Event, Item, Layer, Outcome, Suite, Target, Verdict};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The device that cases run on.
const DEVICE: DeviceId = DeviceId(0);

fn main() {
    // SAFETY: this is the first call, so there is one thread and no driver is open.
    let suite = unsafe { Suite::start_built_in() }.expect("a process to fork from");
    let mut arguments = Arguments::from_args();
    let mut trials = Vec::new();
    let one_failure = std::env::var_os("GPU_VMM_STOP_AT_FAILURE").is_some();
    let has_failed = Arc::new(AtomicBool::new(false));
    for (target, found) in chosen(&suite) {
        if found.as_ref().is_ok_and(|backend| backend.vendor() != Vendor::Host) {
            // Cases count a real device's memory, and HIP serves one call at a time anyway.
            arguments.test_threads = Some(1);
        }
        let rules = Arc::new(Rules::new(&suite, &target, |name| is_asked_for(&arguments, name)));
        for item in suite.items() {
            let name = name(&target, &item);
            let (suite, target, found, rules) =
                (suite.clone(), Arc::clone(&target), found.clone(), Arc::clone(&rules));
            let has_failed = Arc::clone(&has_failed);
            trials.push(Trial::ignorable_test(name, move || {
                if one_failure && has_failed.load(Ordering::Relaxed) {
                    return Ok(Completion::ignored_with("another case has failed"));
                }
                let answer = match found {
                    Ok(_) if item.layer == Layer::Driver => completion(rules.outcome(&suite, &item)),
                    Ok(backend) => completion(outcome(&suite, &target, &backend, &item)),
                    Err(reason) => Ok(Completion::ignored_with(reason)),
                };
                has_failed.fetch_or(answer.is_err(), Ordering::Relaxed);
                answer
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Returns an item's name as a test.
fn name(target: &Arc<dyn Target<AnyBackend>>, item: &Item) -> String {
    let layer = if item.layer == Layer::Driver { "driver::" } else { "" };
    format!("{}::{layer}{}", target.name(), item.name)
}

/// Returns true if libtest-mimic runs the test of this name.
fn is_asked_for(arguments: &Arguments, name: &str) -> bool {
    let is =
        |pattern: &String| if arguments.exact { name == pattern } else { name.contains(pattern.as_str()) };
    arguments.filter.as_ref().is_none_or(is) && !arguments.skip.iter().any(is)
}

/// The rules of the driver layer on one target. They all run with the first one that is requested: a separate run would
/// open the driver again for each rule.
struct Rules {
    target: Arc<dyn Target<AnyBackend>>,
    items: Vec<Item>,
    outcomes: OnceLock<Result<HashMap<usize, Outcome>, String>>,
}

impl Rules {
    fn new(
        suite: &Suite<AnyBackend>,
        target: &Arc<dyn Target<AnyBackend>>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Self {
        let all = suite.items().into_iter();
        let items =
            all.filter(|item| item.layer == Layer::Driver && is_wanted(&name(target, item))).collect();
        Self { target: Arc::clone(target), items, outcomes: OnceLock::new() }
    }

    fn outcome(&self, suite: &Suite<AnyBackend>, item: &Item) -> Outcome {
        let run = || run(suite, &self.target, &self.items);
        match self.outcomes.get_or_init(run) {
            Ok(outcomes) => outcomes.get(&item.index).cloned().unwrap_or_else(did_not_run),
            Err(reason) => Outcome::failed(reason.clone()),
        }
    }
}

/// Runs items in processes of their own.
fn run(
    suite: &Suite<AnyBackend>,
    target: &Arc<dyn Target<AnyBackend>>,
    items: &[Item],
) -> Result<HashMap<usize, Outcome>, String> {
    let mut outcomes = HashMap::new();
    suite.run(target, DEVICE, items, None, &mut |event| {
        if let Event::Ended(item, outcome, _) = event {
            outcomes.insert(item.index, outcome.clone());
        }
    })?;
    Ok(outcomes)
}

fn did_not_run() -> Outcome {
    Outcome::failed("it did not run")
}

type Chosen = (Arc<dyn Target<AnyBackend>>, Result<AnyBackend, String>);

/// Returns the chosen targets, each with its open backend or the reason why it is unavailable.
fn chosen(suite: &Suite<AnyBackend>) -> Vec<Chosen> {
    let chosen = std::env::var("GPU_VMM_TEST_BACKENDS").ok();
    let chosen: Option<Vec<&str>> = chosen.as_deref().map(|names| names.split(',').collect());
    let is_wanted =
        |name: &str| chosen.as_ref().map(|names| names.iter().any(|wanted| name.starts_with(wanted)));
    let mut found = Vec::new();
    for target in suite.targets() {
        let wanted = is_wanted(target.name());
        if wanted == Some(false) {
            continue;
        }
        let opened = target.open().and_then(|backend| match backend.device(Operation::QueryDevice, DEVICE) {
            Ok(_) => Ok(backend),
            Err(error) => Err(error.to_string()),
        });
        if let (Some(true), Err(reason)) = (wanted, &opened) {
            eprintln!("GPU_VMM_TEST_BACKENDS names {}, which is unavailable: {reason}", target.name());
            std::process::exit(1);
        }
        found.push((Arc::clone(target), opened));
    }
    found
}

fn outcome(
    suite: &Suite<AnyBackend>,
    target: &Arc<dyn Target<AnyBackend>>,
    backend: &AnyBackend,
    item: &Item,
) -> Outcome {
    if !item.isolated {
        return suite.run_here(target, backend, DEVICE, item);
    }
    match run(suite, target, &[*item]) {
        Ok(mut outcomes) => outcomes.remove(&item.index).unwrap_or_else(did_not_run),
        Err(reason) => Outcome::failed(reason),
    }
}

fn completion(outcome: Outcome) -> Result<Completion, Failed> {
    match outcome.verdict {
        Verdict::Failed => Err(outcome.note.into()),
        Verdict::Deviates if outcome.is_new_deviation() => {
            Err(format!("a deviation that no quirk explains: {}", outcome.note).into())
        }
        Verdict::Skipped => Ok(Completion::ignored_with(outcome.note)),
        _ => Ok(Completion::Completed),
    }
}
