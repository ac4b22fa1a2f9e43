//! The report of `replay` for people.

use crate::CliResult;
use crate::output::{Output, about, counted, duration, shown};
use crate::replay::Report;
use gpu_vmm::Bytes;
use gpu_vmm_replay::{CallTimes, Outcome, Recording, Round};
use std::fmt::Write;

pub(crate) fn write(report: &Report, output: &mut Output) -> CliResult {
    let outcome = &report.outcome;
    output.line(&report.trace)?;
    output.paragraph("  trace         ", &trace(outcome))?;
    if let Some(recording) = &report.recorded {
        output.paragraph("  recorded      ", &recorded(recording))?;
    }
    output.paragraph("  replayed      ", &place(report))?;
    output.paragraph("  requested     ", &format!("up to {}", about(Bytes(outcome.peak_asked))))?;
    output.paragraph("  held          ", &held(report))?;
    output.paragraph("  cold          ", &round(&outcome.cold))?;
    if let Some(warm) = &outcome.warm {
        output.paragraph("  warm          ", &format!("{} (round {})", round(warm), outcome.rounds))?;
    }
    for (label, times) in [("allocation", &outcome.alloc_ns), ("free", &outcome.free_ns)] {
        if let Some(times) = times {
            output.paragraph(&format!("  {label:<14}"), &calls(times))?;
        }
    }
    let operations = count(outcome.operations_per_second);
    output.paragraph("  throughput    ", &format!("{operations} allocations and frees per second"))?;
    let timer = format!(
        "One more round timed each call; {} for reading the clock are subtracted.",
        nanos(outcome.timer_ns)
    );
    output.line("")?;
    output.paragraph("", &timer)
}

fn trace(outcome: &Outcome) -> String {
    let Outcome { allocations, frees, freed_for_later, streams, .. } = outcome;
    let later = match freed_for_later {
        0 => String::new(),
        some => format!(" ({some} of them reusable only later)"),
    };
    let [allocations, frees] =
        [(allocations, "allocation"), (frees, "free")].map(|(number, what)| counted(number, what));
    format!("{allocations}, {frees}{later}, {}", counted(streams, "stream"))
}

/// Describes what the recorder's file has beside the allocations.
fn recorded(recording: &Recording) -> String {
    let Recording { source, device, blocks_before, bytes_before, peak_held, failed, .. } = recording;
    let mut text = format!("by {source}");
    if let Some(device) = device {
        let _ = write!(text, " on device {device}");
    }
    let _ = match peak_held {
        Some(held) => write!(text, ", whose allocator held up to {}", about(Bytes(*held))),
        None => write!(text, "; the file does not say what its allocator held"),
    };
    let before = format!(
        "{} of {} existed before the first event",
        counted(blocks_before, "block"),
        about(Bytes(*bytes_before))
    );
    let private = format!("{} of private pools", counted(recording.private, "allocation"));
    let implied = format!(
        "{} without a recorded free ended with the next use of the addresses",
        counted(recording.frees_implied, "block")
    );
    let failed_text = format!("{} failed and left out", counted(failed, "allocation"));
    for (count, part) in [
        (*blocks_before, before),
        (recording.private, private),
        (recording.frees_implied, implied),
        (*failed, failed_text),
    ] {
        if count > 0 {
            text = text + "; " + &part;
        }
    }
    for (kind, count) in &recording.unknown {
        let _ = write!(text, "; {} of the unknown kind `{}` left out", counted(count, "event"), shown(kind));
    }
    text
}

fn place(report: &Report) -> String {
    let Report { backend, device, device_name, allocator, outcome, .. } = report;
    let each = if outcome.threads == 1 { "" } else { ", each with the whole trace" };
    let threads = format!("{}{each}", counted(outcome.threads, "thread"));
    format!("by the {allocator} on {backend}, device {device} ({device_name}), {threads}")
}

fn held(report: &Report) -> String {
    let Outcome { peak_held, ratio, device_took, .. } = &report.outcome;
    let device = if report.allocator == "pool" {
        format!("; the device's free memory decreased by {}", about(Bytes(*device_took)))
    } else {
        ", measured by the device's free memory".to_owned()
    };
    let recorded =
        report.recorded.as_ref().and_then(|recording| Some((recording.source, recording.peak_held?)));
    let compared = match recorded {
        Some((source, theirs)) if theirs > 0 => {
            format!(", {:.4} times what {source}'s allocator held", *peak_held as f64 / theirs as f64)
        }
        _ => String::new(),
    };
    format!("up to {} ({ratio:.4} times requested{compared}){device}", about(Bytes(*peak_held)))
}

fn round(round: &Round) -> String {
    let held = round.held.map(|held| format!(", {} held after it", about(Bytes(held)))).unwrap_or_default();
    format!("{}, {}{held}", nanos(round.total_ns), counted(round.driver_calls, "driver call"))
}

fn calls(times: &CallTimes) -> String {
    let [median, p99, p999, max] = [times.median, times.p99, times.p999, times.max].map(nanos);
    format!(
        "median {median}, 99 % within {p99}, 99.9 % within {p999}, longest {max}, {} on average",
        nanos(times.mean.round() as u64)
    )
}

fn nanos(time: u64) -> String {
    if time < 1000 { format!("{time} ns") } else { duration(time as f64 / 1e3) }
}

/// Formats a number for people.
fn count(number: f64) -> String {
    match number {
        small if small < 1e4 => format!("{small:.0}"),
        middle if middle < 1e6 => format!("{:.1} thousand", middle / 1e3),
        large => format!("{:.2} million", large / 1e6),
    }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::output::{WIDTH, lines_of};
    use gpu_vmm::DeviceId;
    use gpu_vmm_replay::{Options, Plain, Trace};

    /// Returns a report with chosen figures. Only a replay makes an outcome.
    fn report(allocator: &'static str, threads: usize) -> Report {
        let backend = gpu_vmm::host::HostConfig::new().memory(Bytes::mib(16)).open().unwrap();
        let trace = Trace::read("a trace", None, &b"a 1 4096 0\nf 1\n"[..]).unwrap();
        let plain = Plain::new(&backend, DeviceId(0)).unwrap();
        let options = Options { threads: 1, rounds: 2, progress: &|_| {}, at_peak: &|| {} };
        let mut outcome = gpu_vmm_replay::replay(&trace, &plain, options).unwrap();
        (outcome.threads, outcome.rounds) = (threads, 3);
        (outcome.allocations, outcome.frees, outcome.freed_for_later, outcome.streams) = (7, 1, 0, 1);
        (outcome.peak_asked, outcome.peak_held, outcome.ratio) = (2 << 20, 3 << 20, 1.5);
        (outcome.device_took, outcome.timer_ns, outcome.operations_per_second) = (5 << 20, 25, 9999.4);
        let cold = &mut outcome.cold;
        (cold.total_ns, cold.driver_calls, cold.held) = (2_000_000, 2000, Some(4 << 20));
        let warm = outcome.warm.as_mut().unwrap();
        (warm.total_ns, warm.driver_calls, warm.held) = (1000, 1, None);
        let times = outcome.alloc_ns.as_mut().unwrap();
        (times.median, times.p99, times.p999, times.max, times.mean) = (10, 20, 3000, 4_000_000, 12.5);
        outcome.free_ns = None;
        let (trace, device_name) = ("a.trace".to_owned(), "a GPU".to_owned());
        Report { trace, backend: "cuda", device: 2, device_name, allocator, recorded: None, outcome }
    }

    #[test]
    fn each_figure_is_in_its_line() {
        let lines = lines_of(WIDTH, |output| write(&report("pool", 1), output));
        let expected = [
            "a.trace",
            "  trace         7 allocations, 1 free, 1 stream",
            "  replayed      by the pool on cuda, device 2 (a GPU), 1 thread",
            "  requested     up to 2 MiB",
            "  held          up to 3 MiB (1.5000 times requested); the device's free memory decreased by 5 MiB",
            "  cold          2.00 ms, 2000 driver calls, 4 MiB held after it",
            "  warm          1.0 µs, 1 driver call (round 3)",
            "  allocation    median 10 ns, 99 % within 20 ns, 99.9 % within 3.0 µs, longest 4.00 ms, 13 ns on",
            "                average",
            "  throughput    9999 allocations and frees per second",
            "",
            "One more round timed each call; 25 ns for reading the clock are subtracted.",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn driver_replay_has_no_account() {
        let mut report = report("driver", 4);
        (report.outcome.warm, report.outcome.freed_for_later) = (None, 6);
        let lines = lines_of(WIDTH, |output| write(&report, output));
        let expected = [
            "  trace         7 allocations, 1 free (6 of them reusable only later), 1 stream",
            "  replayed      by the driver on cuda, device 2 (a GPU), 4 threads, each with the whole trace",
            "  requested     up to 2 MiB",
            "  held          up to 3 MiB (1.5000 times requested), measured by the device's free memory",
        ];
        assert_eq!(lines[1..5], expected);
        assert!(lines[6].starts_with("  allocation"), "there is no warm round: {lines:?}");
    }

    #[test]
    fn recorded_program_is_compared_with() {
        let mut report = report("pool", 1);
        // Two devices, the second one with three entries.
        let snapshot = b"\x80\x02(U\x0ddevice_traces((l((U\x06actionU\x05allocU\x04addrI512\nU\x04sizeI9\nd\
                         (U\x06actionU\x04jumpd(U\x06actionU\x03oomdlld.";
        let mut recording = Trace::read("it", None, &snapshot[..]).unwrap().recording().unwrap().clone();
        recording.peak_held = Some(4 << 20);
        (recording.blocks_before, recording.bytes_before) = (1, 7);
        (recording.private, recording.frees_implied) = (2, 3);
        report.recorded = Some(recording.clone());
        let lines = lines_of(WIDTH, |output| write(&report, output));
        let expected = [
            "  recorded      by PyTorch on device 1, whose allocator held up to 4 MiB; 1 block of 7 B existed",
            "                before the first event; 2 allocations of private pools; 3 blocks without a recorded",
            "                free ended with the next use of the addresses; 1 allocation failed and left out; 1",
            "                event of the unknown kind `jump` left out",
            "  replayed      by the pool on cuda, device 2 (a GPU), 1 thread",
            "  requested     up to 2 MiB",
            "  held          up to 3 MiB (1.5000 times requested, 0.7500 times what PyTorch's allocator held);",
            "                the device's free memory decreased by 5 MiB",
        ];
        assert_eq!(lines[2..10], expected);
        recording.peak_held = None;
        (recording.blocks_before, recording.private, recording.frees_implied, recording.failed) =
            (0, 0, 0, 0);
        recording.unknown.clear();
        report.recorded = Some(recording);
        let lines = lines_of(WIDTH, |output| write(&report, output));
        assert_eq!(
            lines[2],
            "  recorded      by PyTorch on device 1; the file does not say what its allocator held"
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 12_340_000].map(nanos), ["0 ns", "999 ns", "1.0 µs", "12.34 ms"]);
        assert_eq!([12.0, 12_345.0, 12_345_678.0].map(count), ["12", "12.3 thousand", "12.35 million"]);
        assert_eq!(
            [9999.4, 1e4, 999_949.0, 1e6].map(count),
            ["9999", "10.0 thousand", "999.9 thousand", "1.00 million"]
        );
    }
}
