//! The summary of a check in ten lines, for an issue.

use super::file::Check;
use crate::output::{about, counted, duration};
use gpu_vmm::Bytes;
use gpu_vmm_conformance::Verdict;
use gpu_vmm_conformance::report::{CaseReport, Report};
use serde_json::Value;

/// The number of names that a line lists; the others are counted.
const MAX_NAMES: usize = 4;

/// Returns the ten lines.
pub(super) fn lines(check: &Check) -> Vec<String> {
    let Check { gpu_vmm, commit, features, time, seconds, limit_seconds, .. } = check;
    let good = check.steps.iter().filter(|step| step.is_good).count();
    let bad = check.steps.iter().filter(|step| !step.is_good);
    let bad: Vec<String> = bad.map(|step| format!("{} ({})", step.name, step.ended)).collect();
    let steps = counted(check.steps.len(), "step");
    let report = check.conformance.as_ref();
    let environment = report.map(|report| &report.environment);
    let unknown = || "unknown: the conformance suite did not run".to_owned();
    vec![
        format!("gpu-vmm check {time}: {gpu_vmm}, commit {commit}, features {features}"),
        format!(
            "steps: {good} of {steps} ended well in {seconds:.0} s of {limit_seconds:.0} s{}",
            listed("; not", &bad)
        ),
        format!("backends: {}", backends(&check.info)),
        format!(
            "driver: {}",
            environment.map_or_else(unknown, |found| format!(
                "{}: {}; {}",
                found.target, found.ran_on, found.driver
            ))
        ),
        format!(
            "device: {}",
            environment.and_then(|found| found.chosen()).map_or_else(unknown, |device| {
                format!("{}, {}", device.name, about(Bytes(device.memory_bytes)))
            })
        ),
        format!("system: {}; {}{}", check.system, check.machine, versions(check)),
        format!("grow: {}; bench: {}", grow(check.grow.as_ref()), bench(&check.bench)),
        format!("conformance: {}", report.map_or_else(|| "no report".to_owned(), conformance)),
        format!(
            "contradictions to the quirks: {}",
            report.map_or_else(|| "unknown".to_owned(), contradictions)
        ),
        format!("kernel: {}{}", kernel(check), long_runs(check)),
    ]
}

/// Formats a list with a label; empty without entries.
fn listed(label: &str, entries: &[String]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let shown = entries[..entries.len().min(MAX_NAMES)].join(", ");
    match entries.len().saturating_sub(MAX_NAMES) {
        0 => format!("{label} {shown}"),
        more => format!("{label} {shown} and {more} more"),
    }
}

fn backends(info: &[Value]) -> String {
    let backends = info.iter().filter_map(|info| info["backends"].as_array()).flatten();
    let each: Vec<String> = backends
        .map(|backend| {
            let name = backend["backend"].as_str().unwrap_or_default();
            let devices = backend["devices"].as_array().map_or(0, Vec::len);
            match backend["found"] == true {
                true => format!("{name} with {}", counted(devices, "device")),
                false => format!("no {name}"),
            }
        })
        .collect();
    if each.is_empty() { "unknown".to_owned() } else { each.join(", ") }
}

fn versions(check: &Check) -> String {
    let each: Vec<String> =
        check.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    if each.is_empty() { String::new() } else { format!("; {}", each.join(", ")) }
}

fn grow(grow: Option<&Value>) -> String {
    let Some(report) = grow else { return "no report".to_owned() };
    let number = |name: &str| report[name].as_f64();
    let size = about(Bytes(report["final_bytes"].as_u64().unwrap_or_default()));
    let time = number("total_micros").map(duration).unwrap_or_default();
    let ratio = number("copy_ratio").map(|ratio| format!(", {ratio:.1} times as long by copying"));
    let wrong = report["wrong_words"].as_u64().filter(|wrong| *wrong > 0);
    let wrong = wrong.map(|wrong| format!(", {wrong} WRONG words")).unwrap_or_default();
    format!("{size} in {time}{}{wrong}", ratio.unwrap_or_default())
}

fn bench(bench: &[Value]) -> String {
    let pairs: Vec<&Value> = bench.iter().filter_map(|report| report["pairs"].as_array()).flatten().collect();
    let with = |member: &str| pairs.iter().filter(|pair| pair[member].is_string()).count();
    let (skipped, failed) = (with("skipped"), with("failed"));
    let mut text = format!("{} measured", counted(pairs.len() - skipped - failed, "pair"));
    for (count, what) in [(skipped, "skipped"), (failed, "FAILED")] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

fn names(report: &Report, which: impl Fn(&CaseReport) -> bool) -> Vec<String> {
    report.cases.iter().filter(|case| which(case)).map(|case| case.name.clone()).collect()
}

fn conformance(report: &Report) -> String {
    let summary = &report.summary;
    let late = report.cases.iter().filter(|case| case.note == crate::conformance::TIME_OVER).count();
    let failed = names(report, |case| case.verdict == Verdict::Failed);
    format!(
        "{} in {:.0} s: {} passed, {} as documented, {} more lenient, {} deviations, {} skipped{}, {} FAILED{}",
        counted(report.cases.len(), "case"),
        summary.seconds,
        summary.passed,
        summary.as_documented,
        summary.more_lenient,
        summary.deviations,
        summary.skipped,
        if late > 0 { format!(" ({late} without time)") } else { String::new() },
        summary.failed,
        listed(":", &failed),
    )
}

fn contradictions(report: &Report) -> String {
    let new = names(report, CaseReport::is_new_deviation);
    let unseen: Vec<String> =
        report.cases.iter().flat_map(CaseReport::unseen_quirks).map(str::to_owned).collect();
    if new.is_empty() && unseen.is_empty() {
        return "none".to_owned();
    }
    let count = counted(new.len(), "NEW deviation");
    format!(
        "{count}{}; {}{}",
        listed(":", &new),
        counted(unseen.len(), "listed quirk"),
        listed(" not seen:", &unseen)
    )
}

fn kernel(check: &Check) -> String {
    match &check.kernel.unreadable {
        Some(reason) => format!("messages cannot be read ({reason})"),
        None => format!("{} about the GPU during the check", counted(check.kernel.during.len(), "message")),
    }
}

/// Formats the long runs that were asked for.
fn long_runs(check: &Check) -> String {
    let runs = [("soak", &check.soak), ("endurance", &check.endurance)];
    let ran = runs.iter().filter_map(|(name, report)| Some((name, &report.as_ref()?.summary)));
    ran.map(|(name, summary)| match summary.failed {
        0 => format!("; {name}: passed in {:.0} s", summary.seconds),
        failed => format!("; {name}: {failed} FAILED in {:.0} s", summary.seconds),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::file::Done;
    use crate::check::kernel::Messages;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn summary_always_has_ten_lines() {
        let mut check = Check::new(Duration::from_secs(600));
        let none = lines(&check);
        assert_eq!(none.len(), 10, "{none:#?}");
        assert_eq!(none[6], "grow: no report; bench: 0 pairs measured");
        check.conformance = Some(crate::conformance::text::sample());
        check.soak = check.conformance.clone();
        check.grow = Some(
            json!({"final_bytes": 1 << 28, "total_micros": 1500.0, "copy_ratio": 9.04, "wrong_words": 2}),
        );
        check.info = vec![
            json!({"backends": [{"backend": "hip", "found": true, "devices": [1]}]}),
            json!({"backends": [{"backend": "cuda", "found": false, "devices": []}]}),
        ];
        check.bench = vec![json!({"pairs": [{"name": "a"}, {"failed": "no"}, {"skipped": "no"}]})];
        let lines = lines(&check);
        assert_eq!((lines.len(), lines[2].as_str()), (10, "backends: hip with 1 device, no cuda"));
        assert_eq!(
            lines[6],
            "grow: 256 MiB in 1.50 ms, 9.0 times as long by copying, 2 WRONG words; bench: 1 pair measured, 1 skipped, 1 FAILED"
        );
        assert!(lines[7].contains("13 cases") && lines[7].contains("2 FAILED: "), "{}", lines[7]);
        assert!(lines[8].contains("1 NEW deviation: "), "{}", lines[8]);
        assert!(lines[9].contains("soak: 2 FAILED"), "{}", lines[9]);
        assert_eq!(
            lines[3],
            "driver: hip: SIMULATED, no GPU: the vendor's own driver over a simulated HSA runtime; 7.2.53211 \
             (number 70253211), libamdhip64.so.7"
        );
        assert_eq!(lines[4], "device: Simulated GPU, 1 GiB");
        let cases = "conformance: 13 cases in 4 s: 2 passed, 2 as documented, 1 more lenient, 2 deviations, 4 skipped, 2 FAILED: \
                     grow::moves, map::hangs";
        assert_eq!(lines[7], cases);
        let quirks = "contradictions to the quirks: 1 NEW deviation: map::unreserved; 0 listed quirks";
        assert_eq!(lines[8], quirks);
        assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:#?}");
    }

    #[test]
    fn what_is_missing_or_late_is_said() {
        let mut check = Check::new(Duration::from_secs(600));
        check.versions =
            [("nvidia", "1.2"), ("rocm", "7.0")].map(|(name, of)| (name.to_owned(), of.to_owned())).into();
        (check.seconds, check.kernel) = (12.6, Messages::default());
        let none = lines(&check);
        let begin = format!("gpu-vmm check {}: {}, commit ", check.time, check.gpu_vmm);
        assert!(none[0].starts_with(&begin) && none[0].ends_with(&format!(", features {}", check.features)));
        assert_eq!(none[1], "steps: 0 of 0 steps ended well in 13 s of 600 s");
        for (line, name) in [(3, "driver"), (4, "device")] {
            assert_eq!(none[line], format!("{name}: unknown: the conformance suite did not run"));
        }
        assert!(none[5].ends_with("; nvidia 1.2, rocm 7.0"), "{}", none[5]);
        assert_eq!(
            [2, 7, 8].map(|line| none[line].as_str()),
            ["backends: unknown", "conformance: no report", "contradictions to the quirks: unknown",]
        );
        assert_eq!(none[9], "kernel: 0 messages about the GPU during the check");

        check.steps = [("grow", true), ("bench pool", false)]
            .map(|(name, is_good)| Done { is_good, ended: "status 1".to_owned(), ..Done::began(name, &[]) })
            .into();
        check.kernel.unreadable = Some("why".to_owned());
        let mut report = crate::conformance::text::sample();
        report.cases.retain(|case| case.verdict != Verdict::Failed && !case.is_new_deviation());
        crate::conformance::TIME_OVER.clone_into(&mut report.cases[2].note);
        (report.summary.failed, report.environment.quirks) = (0, Vec::new());
        (check.soak, check.conformance) = (Some(report.clone()), Some(report.clone()));
        check.endurance = Some(report);
        let some = lines(&check);
        assert_eq!(some[1], "steps: 1 of 2 steps ended well in 13 s of 600 s; not bench pool (status 1)");
        assert!(some[7].contains("4 skipped (1 without time), 0 FAILED"), "{}", some[7]);
        assert_eq!(some[8], "contradictions to the quirks: none");
        assert_eq!(
            some[9],
            "kernel: messages cannot be read (why); soak: passed in 4 s; endurance: passed in 4 s"
        );
        check.grow =
            Some(json!({"final_bytes": 1 << 20, "total_micros": 10.0, "copy_ratio": null, "wrong_words": 0}));
        assert_eq!(lines(&check)[6], "grow: 1 MiB in 10.0 µs; bench: 0 pairs measured");
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..6).map(|index| index.to_string()).collect();
        assert_eq!(listed(":", &names), ": 0, 1, 2, 3 and 2 more");
        assert_eq!(listed(":", &names[..4]), ": 0, 1, 2, 3");
        assert_eq!(listed(":", &names[..1]), ": 0");
        assert_eq!(listed(":", &[]), "");
    }
}
