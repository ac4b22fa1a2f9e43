//! The report of `replay` for people.

use crate::Answer;
use crate::output::{Output, about, duration};
use crate::replay::Report;
use gpu_vmm::Bytes;
use gpu_vmm_replay::{CallTimes, Outcome, Round};

pub(crate) fn write(report: &Report, output: &mut Output) -> Answer {
    let outcome = &report.outcome;
    output.line(&report.trace)?;
    output.paragraph("  trace         ", &trace(outcome))?;
    output.paragraph("  replayed      ", &place(report))?;
    output.line(format!("  asked for     {} at most", about(Bytes(outcome.peak_asked))))?;
    output.paragraph("  held          ", &held(outcome, report.allocator == "pool"))?;
    output.paragraph("  cold          ", &round(&outcome.cold))?;
    if let Some(warm) = &outcome.warm {
        output.paragraph("  warm          ", &format!("{} (round {})", round(warm), outcome.rounds))?;
    }
    for (label, times) in [("allocation", &outcome.alloc_ns), ("free", &outcome.free_ns)] {
        if let Some(times) = times {
            output.line(format!("  {label:<14}{}", calls(times)))?;
        }
    }
    output.line(format!(
        "  throughput    {} allocations and frees a second",
        count(outcome.operations_per_second)
    ))?;
    let timer = format!(
        "Each call was timed in a round of its own; {} for the timer are taken off.",
        nanos(outcome.timer_ns)
    );
    output.line("")?;
    output.paragraph("", &timer)
}

fn trace(outcome: &Outcome) -> String {
    let Outcome { allocations, frees, freed_for_later, streams, .. } = outcome;
    let later = match freed_for_later {
        0 => String::new(),
        some => format!(" ({some} of them to be used again later)"),
    };
    format!("{allocations} allocations, {frees} frees{later}, {}", number(*streams, "stream"))
}

fn place(report: &Report) -> String {
    let Report { backend, device, device_name, allocator, outcome, .. } = report;
    let threads = match outcome.threads {
        1 => "1 thread".to_owned(),
        several => format!("{several} threads, each all of it"),
    };
    format!("by the {allocator} on {backend}, device {device} ({device_name}), {threads}")
}

fn held(outcome: &Outcome, by_account: bool) -> String {
    let Outcome { peak_held, ratio, device_took, .. } = outcome;
    let device = if by_account {
        format!("; the device's free memory became {} less", about(Bytes(*device_took)))
    } else {
        ", by the device's free memory".to_owned()
    };
    format!("{} at most, {ratio:.4} times as much{device}", about(Bytes(*peak_held)))
}

fn round(round: &Round) -> String {
    let held = round.held.map(|held| format!(", {} held after it", about(Bytes(held)))).unwrap_or_default();
    format!("{}, {} driver calls{held}", nanos(round.total_ns), round.driver_calls)
}

fn calls(times: &CallTimes) -> String {
    let [median, p99, max] = [times.median, times.p99, times.max].map(nanos);
    format!(
        "median {median}, 99 % within {p99}, longest {max}, {} on average",
        nanos(times.mean.round() as u64)
    )
}

fn nanos(time: u64) -> String {
    if time < 1000 { format!("{time} ns") } else { duration(time as f64 / 1e3) }
}

fn number(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A number for people.
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
        assert_eq!(
            (number(1, "stream"), number(4, "stream")),
            ("1 stream".to_owned(), "4 streams".to_owned())
        );
    }
}
