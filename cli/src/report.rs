//! The results of `grow`, for people and for programs.

use crate::CliResult;
use crate::copying::Copying;
use crate::output::{Output, about, counted, duration};
use gpu_vmm::{Address, Bytes, Growth, GrowthKind, Vendor};
use serde::Serialize;
use std::time::Duration;

const HOST_PAGES: &str = "The kernel provides pages of host memory when an address is first touched; neither side \
 counts that time.";

/// The result of `gpu-vmm grow`, as `--json` prints it.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    pub(crate) backend: &'static str,
    /// The device's ordinal.
    pub(crate) device: u32,
    pub(crate) device_name: String,
    pub(crate) granularity_bytes: u64,
    /// The size of the addresses before the first step.
    pub(crate) reserved_bytes: u64,
    pub(crate) reserve_micros: f64,
    pub(crate) final_bytes: u64,
    pub(crate) verified_bytes: u64,
    /// What wrote and checked the pattern.
    pub(crate) verified_by: &'static str,
    /// The number of 8-byte words that differ from the pattern.
    pub(crate) wrong_words: u64,
    /// All steps together.
    pub(crate) total_micros: f64,
    /// The time of allocating, copying and freeing for the same steps; none if there was not enough memory.
    pub(crate) copy_micros: Option<f64>,
    /// Why copying was not measured.
    pub(crate) copy_skipped: Option<String>,
    /// `copy_micros` divided by `total_micros`.
    pub(crate) copy_ratio: Option<f64>,
    pub(crate) steps: Vec<Step>,
}

/// One step of growth.
#[derive(Serialize, Debug)]
pub(crate) struct Step {
    /// The size after the step.
    pub(crate) bytes: u64,
    /// `within`, `extended` or `remapped`.
    pub(crate) how: &'static str,
    /// The address of the memory after the step.
    pub(crate) address: String,
    /// The time of growth, without the fill.
    pub(crate) micros: f64,
}

impl Step {
    pub(crate) fn new(growth: Growth, time: Duration) -> Self {
        Self {
            bytes: growth.end.0,
            how: growth.how.name(),
            address: growth.address.to_string(),
            micros: micros(time),
        }
    }

    pub(crate) const HEADING: &str = "      size  how       address                    time";

    /// Formats the step as a line of a table.
    pub(crate) fn line(&self) -> String {
        let Self { bytes, how, address, micros } = self;
        format!("{:>10}  {how:<8}  {address:<18} {:>12}", about(Bytes(*bytes)), duration(*micros))
    }
}

impl Report {
    /// Adds the result of copying.
    pub(crate) fn compare(&mut self, copying: &Copying) {
        match copying {
            Copying::Done { time, .. } => {
                let copy = micros(*time);
                self.copy_micros = Some(copy);
                self.copy_ratio = (self.total_micros > 0.0).then(|| copy / self.total_micros);
            }
            Copying::NoRoom(reason) => self.copy_skipped = Some(reason.clone()),
        }
    }

    /// Prints the lines after the table of steps.
    pub(crate) fn summary(&self, output: &mut Output) -> CliResult {
        let Self { verified_by, wrong_words, total_micros, .. } = self;
        let verified = Bytes(self.verified_bytes);
        output.line("")?;
        let checked = match wrong_words {
            0 => format!("checked by {verified_by}: all {verified} hold the pattern that was written"),
            1 => format!("checked by {verified_by}: 1 word of 8 bytes in {verified} is wrong"),
            wrong => format!("checked by {verified_by}: {wrong} words of 8 bytes in {verified} are wrong"),
        };
        output.paragraph("", &checked)?;
        let count = counted(self.steps.len(), "step");
        let mut total = |label: &str, micros, text: String| {
            output.paragraph(&format!("{label:<22}{:>12}  ", duration(micros)), &text)
        };
        let is_copied = self.steps.iter().any(|step| step.how == GrowthKind::Copied.name());
        let (by_copying, calls) = ("the same by copying:", "allocate, copy, free");
        let own = if is_copied { calls } else { "create, map, set access" };
        total(&format!("growth in {count}:"), *total_micros, own.to_owned())?;
        if let Some(copy) = self.copy_micros {
            let times =
                self.copy_ratio.map(|ratio| format!("; {ratio:.1} times as long")).unwrap_or_default();
            total(by_copying, copy, format!("{calls}{times}"))?;
        }
        if let Some(reason) = &self.copy_skipped {
            output.paragraph(&format!("{by_copying} "), &format!("not measured: {reason}"))?;
        }
        if self.backend == Vendor::Host.name() {
            output.paragraph("", HOST_PAGES)?;
        }
        Ok(())
    }
}

/// Returns microseconds with the clock's resolution of nanoseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Prints the lines before the steps.
pub(crate) fn opening(output: &mut Output, report: &Report, base: Address, plan: &str) -> CliResult {
    let Report { backend, device, device_name, .. } = report;
    output.paragraph("", &format!("{backend} device {device}: {device_name}"))?;
    let reserved = about(Bytes(report.reserved_bytes));
    output.paragraph("", &format!("{plan}; {reserved} of addresses reserved at {base}"))?;
    output.line("")?;
    output.line(Step::HEADING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{WIDTH, lines_of};

    fn report(backend: &'static str, how: GrowthKind) -> Report {
        let growth = Growth { how, address: Address(0x7000), end: Bytes::mib(4), added: Bytes::mib(4) };
        Report {
            backend,
            device: 1,
            device_name: "a GPU".to_owned(),
            granularity_bytes: 2 << 20,
            reserved_bytes: 8 << 20,
            reserve_micros: 1.0,
            final_bytes: 4 << 20,
            verified_bytes: 4 << 20,
            verified_by: "a kernel",
            wrong_words: 0,
            total_micros: 2000.0,
            copy_micros: None,
            copy_skipped: None,
            copy_ratio: None,
            steps: vec![Step::new(growth, Duration::from_nanos(1500))],
        }
    }

    fn summary(report: &Report) -> Vec<String> {
        lines_of(WIDTH, |output| report.summary(output))
    }

    #[test]
    fn step_line_has_size_kind_time() {
        let step = &report("cuda", GrowthKind::Extended).steps[0];
        assert_eq!((step.bytes, step.how, step.micros), (4 << 20, "extended", 1.5));
        assert_eq!(step.line(), "     4 MiB  extended  0x7000                   1.5 µs");
        let lines = lines_of(WIDTH, |output| {
            opening(output, &report("cuda", GrowthKind::Within), Address(0x7000), "a plan")
        });
        let expected =
            ["cuda device 1: a GPU", "a plan; 8 MiB of addresses reserved at 0x7000", "", Step::HEADING];
        assert_eq!(lines, expected);
    }

    #[test]
    fn summary_compares_times_or_says_why() {
        let mut report = report("cuda", GrowthKind::Within);
        report.compare(&Copying::Done { time: Duration::from_millis(5), wrong_words: 0 });
        assert_eq!((report.copy_micros, report.copy_ratio), (Some(5000.0), Some(2.5)));
        let checked = "checked by a kernel: all 4 MiB hold the pattern that was written";
        let grown = "growth in 1 step:          2.00 ms  create, map, set access";
        let copied = "the same by copying:       5.00 ms  allocate, copy, free; 2.5 times as long";
        assert_eq!(summary(&report), ["", checked, grown, copied]);

        report.total_micros = 0.0;
        report.compare(&Copying::Done { time: Duration::from_millis(5), wrong_words: 0 });
        assert_eq!(report.copy_ratio, None, "nothing is that many times as long as no time");

        (report.total_micros, report.copy_micros) = (2000.0, None);
        report.compare(&Copying::NoRoom("it is full".to_owned()));
        assert_eq!(summary(&report), ["", checked, grown, "the same by copying: not measured: it is full"]);
    }

    #[test]
    fn wrong_words_and_copies_are_reported() {
        let mut report = report("host", GrowthKind::Copied);
        for (wrong, text) in
            [(1, "1 word of 8 bytes in 4 MiB is wrong"), (7, "7 words of 8 bytes in 4 MiB are wrong")]
        {
            report.wrong_words = wrong;
            let lines = summary(&report);
            assert_eq!(lines[1], format!("checked by a kernel: {text}"));
            assert_eq!(lines[2], "growth in 1 step:          2.00 ms  allocate, copy, free");
            assert_eq!(lines[3..].join(" "), HOST_PAGES, "on host memory alone");
        }
    }
}
