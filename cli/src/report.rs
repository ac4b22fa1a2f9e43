//! The results of `grow`, for people and for programs.

use crate::Answer;
use crate::copying::Copying;
use crate::output::{Output, about, counted, duration};
use gpu_vmm::{Address, Bytes, Growth, GrowthKind, Vendor};
use serde::Serialize;
use std::time::Duration;

const HOST_PAGES: &str = "The kernel provides pages of host memory when an address is first touched: for new or \
 remapped memory neither side counts that, for the target of a copy it is part of the copy.";

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
    pub(crate) fn summary(&self, output: &mut Output) -> Answer {
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
pub(crate) fn opening(output: &mut Output, report: &Report, base: Address, plan: &str) -> Answer {
    let Report { backend, device, device_name, .. } = report;
    output.paragraph("", &format!("{backend} device {device}: {device_name}"))?;
    let reserved = about(Bytes(report.reserved_bytes));
    output.paragraph("", &format!("{plan}; {reserved} of addresses reserved at {base}"))?;
    output.line("")?;
    output.line(Step::HEADING)
}
