//! The report of `replay` for people.

use crate::Answer;
use crate::output::{Output, about, counted, duration};
use crate::replay::Report;
use gpu_vmm::Bytes;
use gpu_vmm_replay::{CallTimes, Outcome, Round};

pub(crate) fn write(report: &Report, output: &mut Output) -> Answer {
    let outcome = &report.outcome;
    output.line(&report.trace)?;
    output.paragraph("  trace         ", &trace(outcome))?;
    output.paragraph("  replayed      ", &place(report))?;
    output.paragraph("  requested     ", &format!("up to {}", about(Bytes(outcome.peak_asked))))?;
    output.paragraph("  held          ", &held(outcome, report.allocator == "pool"))?;
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

fn place(report: &Report) -> String {
    let Report { backend, device, device_name, allocator, outcome, .. } = report;
    let each = if outcome.threads == 1 { "" } else { ", each with the whole trace" };
    let threads = format!("{}{each}", counted(outcome.threads, "thread"));
    format!("by the {allocator} on {backend}, device {device} ({device_name}), {threads}")
}

fn held(outcome: &Outcome, by_account: bool) -> String {
    let Outcome { peak_held, ratio, device_took, .. } = outcome;
    let device = if by_account {
        format!("; the device's free memory decreased by {}", about(Bytes(*device_took)))
    } else {
        ", measured by the device's free memory".to_owned()
    };
    format!("up to {} ({ratio:.4} times requested){device}", about(Bytes(*peak_held)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 12_340_000].map(nanos), ["0 ns", "999 ns", "1.0 µs", "12.34 ms"]);
        assert_eq!([12.0, 12_345.0, 12_345_678.0].map(count), ["12", "12.3 thousand", "12.35 million"]);
    }
}
