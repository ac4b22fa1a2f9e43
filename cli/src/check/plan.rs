//! The steps of a check, each a run of another subcommand, and the time that each may take.

use crate::args::{BackendChoice, CheckArguments};
use clap::ValueEnum;
use gpu_vmm::{AnyBackend, Vendor};
use std::time::Duration;

/// The measurements of the short benchmark.
const PAIRS: &[&str] = &["calls", "fresh", "growth", "kept", "pool"];

/// The number of samples of each side in the short benchmark.
const SAMPLES: &str = "5";

/// The size of the memory that is grown.
const GROWN: &str = "256MiB";

/// The number of operations of the soak: a few seconds on a GPU.
const SOAK_OPERATIONS: &str = "2000000";

/// The part of the time, of 10, that the conformance suite leaves to the benchmark.
const LEFT_TO_BENCH: u32 = 2;

/// How much longer than its own limit the suite may take to write its report.
const SUITE_GRACE: Duration = Duration::from_secs(20);

/// What a step's output becomes in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Info,
    Grow,
    Conformance,
    Bench,
    Soak,
    Endurance,
}

/// A step of the check.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) part: Part,
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    pub(super) settings: &'static [(&'static str, &'static str)],
    /// The maximum time, if the whole check has as much left.
    most: Duration,
}

/// Returns the steps in their order.
pub(super) fn steps(options: &CheckArguments) -> Vec<Step> {
    let mut steps = Vec::new();
    let minute = Duration::from_secs(60);
    let wanted = |vendor: &&Vendor| options.on.backend.vendor().is_none_or(|named| named == **vendor);
    for vendor in AnyBackend::BUILT_IN.iter().filter(wanted) {
        let arguments = words(&["info", "--backend", vendor.name(), "--json"]);
        steps.push(Step::new(Part::Info, format!("info {vendor}"), arguments, minute));
    }
    let on = on(options);
    let step = |part, name: &str, first: &[&str], rest: &[&str], most| {
        Step::new(part, name.to_owned(), [words(first), on.clone(), words(rest)].concat(), most)
    };
    steps.push(step(Part::Grow, "grow", &["grow"], &["--to", GROWN, "--json"], minute * 2));
    steps.push(step(Part::Conformance, "conformance", &["conformance"], &["--format", "json"], options.time));
    for pair in PAIRS {
        let rest = ["--filter", pair, "--samples", SAMPLES, "--json"];
        steps.push(step(Part::Bench, &format!("bench {pair}"), &["bench"], &rest, minute * 3));
    }
    if options.soak {
        let rest = ["--filter", "library::pool::soak", "--format", "json"];
        let settings = &[("GPU_VMM_SOAK_OPERATIONS", SOAK_OPERATIONS)];
        steps.push(Step { settings, ..step(Part::Soak, "soak", &["conformance"], &rest, minute * 10) });
    }
    if let Some(time) = options.endurance {
        let seconds = format!("{}s", time.as_secs());
        let rest = ["--filter", "library::endurance", "--endurance", &seconds, "--format", "json"];
        // A program ends its last steps, and the pool's memory returns.
        steps.push(step(Part::Endurance, "endurance", &["conformance"], &rest, time + minute * 2));
    }
    steps
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the arguments that choose the backend and the device.
fn on(options: &CheckArguments) -> Vec<String> {
    let mut arguments = Vec::new();
    if let (true, Some(value)) =
        (options.on.backend != BackendChoice::Any, options.on.backend.to_possible_value())
    {
        arguments.extend(words(&["--backend", value.get_name()]));
    }
    if let Some(device) = options.on.device {
        arguments.extend(words(&["--device", &device.to_string()]));
    }
    arguments
}

impl Step {
    fn new(part: Part, name: String, arguments: Vec<String>, most: Duration) -> Self {
        Self { part, name, arguments, settings: &[], most }
    }

    /// Sets the time that the step may take: of the suite, its own limit. Returns the time after which it is killed, or
    /// `None` if nothing is left. The soak and the endurance have their own time.
    pub(super) fn limit(&mut self, left: Duration, whole: Duration) -> Option<Duration> {
        const LEAST: Duration = Duration::from_secs(1);
        match self.part {
            Part::Soak | Part::Endurance => Some(self.most),
            _ if left < LEAST => None,
            Part::Conformance => {
                let limit = left.saturating_sub(whole * LEFT_TO_BENCH / 10).max(LEAST);
                self.arguments.extend(words(&["--time", &format!("{}s", limit.as_secs())]));
                Some(limit + SUITE_GRACE)
            }
            _ => Some(left.min(self.most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser;

    fn planned(line: &str) -> Vec<Step> {
        let Command::Check(options) = Arguments::parse_from(line.split(' ')).command else {
            panic!("{line}")
        };
        steps(&options)
    }

    #[test]
    fn each_step_is_a_valid_command() {
        for line in ["gpu-vmm check", "gpu-vmm check --backend host --device 0 --soak --endurance"] {
            for mut step in planned(line) {
                step.limit(Duration::from_secs(60), Duration::from_secs(60)).unwrap();
                let words = ["gpu-vmm".to_owned()].into_iter().chain(step.arguments.iter().cloned());
                let read = Arguments::try_parse_from(words);
                assert!(read.is_ok(), "{step:?}: {read:?}");
            }
        }
    }

    #[test]
    fn steps_have_command_name_and_time() {
        let mut steps = planned("gpu-vmm check --backend host --device 3 --soak --endurance 5min");
        let hour = Duration::from_secs(3600);
        let on = "--backend host --device 3";
        let expected = [
            ("info host", "info --backend host --json".to_owned(), 60),
            ("grow", format!("grow {on} --to 256MiB --json"), 120),
            ("conformance", format!("conformance {on} --format json --time 2880s"), 2900),
            ("bench calls", format!("bench {on} --filter calls --samples 5 --json"), 180),
            ("bench fresh", format!("bench {on} --filter fresh --samples 5 --json"), 180),
            ("bench growth", format!("bench {on} --filter growth --samples 5 --json"), 180),
            ("bench kept", format!("bench {on} --filter kept --samples 5 --json"), 180),
            ("bench pool", format!("bench {on} --filter pool --samples 5 --json"), 180),
            ("soak", format!("conformance {on} --filter library::pool::soak --format json"), 600),
            (
                "endurance",
                format!("conformance {on} --filter library::endurance --endurance 300s --format json"),
                420,
            ),
        ];
        assert_eq!(steps.len(), expected.len());
        for (step, (name, command, seconds)) in steps.iter_mut().zip(expected) {
            assert_eq!(step.limit(hour, hour), Some(Duration::from_secs(seconds)), "{name}");
            assert_eq!((step.name.as_str(), step.arguments.join(" ")), (name, command));
            let settings: &[_] = if name == "soak" { &[("GPU_VMM_SOAK_OPERATIONS", "2000000")] } else { &[] };
            assert_eq!(step.settings, settings, "{name}");
        }
        // Without a name, every backend is asked, and the best one is used.
        let steps = planned("gpu-vmm check");
        let built: Vec<String> = steps
            .iter()
            .filter(|step| step.part == Part::Info)
            .map(|step| step.arguments.join(" "))
            .collect();
        let built_in = AnyBackend::BUILT_IN.iter().map(|vendor| format!("info --backend {vendor} --json"));
        assert_eq!(built, built_in.collect::<Vec<_>>());
        assert!(steps.iter().any(|step| step.arguments.join(" ") == "grow --to 256MiB --json"));
    }

    #[test]
    fn every_step_gets_a_second() {
        let second = Duration::from_secs(1);
        let mut steps = planned("gpu-vmm check --backend host");
        for step in &mut steps {
            assert_eq!(step.limit(second - Duration::from_millis(1), second * 600), None, "{step:?}");
            let all = if step.part == Part::Conformance { second + SUITE_GRACE } else { second };
            assert_eq!(step.limit(second, second * 600), Some(all), "{step:?}");
        }
    }

    #[test]
    fn each_measurement_exists_and_is_alone() {
        let names: Vec<&str> = gpu_vmm_bench::about::<AnyBackend>().iter().map(|about| about.name).collect();
        for pair in PAIRS {
            assert_eq!(names.iter().filter(|name| name.contains(pair)).count(), 1, "{pair}: {names:?}");
        }
    }

    #[test]
    fn suite_leaves_time_for_measurements() {
        let mut steps = planned("gpu-vmm check --backend host --soak");
        let (whole, left) = (Duration::from_secs(100), Duration::from_secs(90));
        for step in &mut steps {
            let limit = step.limit(left, whole).unwrap();
            match step.part {
                Part::Conformance => {
                    assert_eq!(limit, Duration::from_secs(70) + SUITE_GRACE);
                    assert_eq!(step.arguments.last().map(String::as_str), Some("70s"));
                }
                Part::Soak => assert!(limit > whole),
                _ => assert!(limit <= left),
            }
            let none = step.limit(Duration::ZERO, whole);
            assert_eq!(none.is_none(), step.part != Part::Soak, "{step:?}");
        }
    }
}
