//! What `grow` says, for people and for programs.

use crate::Answer;
use crate::copying::Copying;
use crate::output::{Output, about, counted, duration};
use gpu_vmm::{Address, Bytes, Growth, Vendor};
use serde::Serialize;
use std::time::Duration;

const HOST_PAGES: &str = "The kernel gives pages of host memory when an address is first touched: for memory that \
    is new or remapped that is counted on neither side, for the target of a copy it is part of copying.";

/// The result of `gpu-vmm grow`, as `--json` prints it.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    pub(crate) backend: &'static str,
    /// The device's ordinal.
    pub(crate) device: u32,
    pub(crate) device_name: String,
    pub(crate) granularity_bytes: u64,
    /// How many addresses there were before the first step.
    pub(crate) reserved_bytes: u64,
    pub(crate) reserve_micros: f64,
    pub(crate) final_bytes: u64,
    pub(crate) verified_bytes: u64,
    /// Who wrote and checked the pattern.
    pub(crate) verified_by: &'static str,
    /// Words of 8 bytes that are not what was written.
    pub(crate) wrong_words: u64,
    /// All steps together.
    pub(crate) total_micros: f64,
    /// Allocating, copying and freeing for the same steps; none where there was no room.
    pub(crate) copy_micros: Option<f64>,
    /// Why there was no room.
    pub(crate) copy_skipped: Option<String>,
    /// How often `total_micros` is in `copy_micros`.
    pub(crate) copy_ratio: Option<f64>,
    pub(crate) steps: Vec<Step>,
}

/// One step of growth.
#[derive(Serialize, Debug)]
pub(crate) struct Step {
    /// The size after it.
    pub(crate) bytes: u64,
    /// `within`, `extended` or `remapped`.
    pub(crate) how: &'static str,
    /// Where the memory begins after it.
    pub(crate) address: String,
    /// Growth alone, without the filling.
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

    /// The step as a line of a table.
    pub(crate) fn line(&self) -> String {
        let Self { bytes, how, address, micros } = self;
        format!("{:>10}  {how:<8}  {address:<18} {:>12}", about(Bytes(*bytes)), duration(*micros))
    }
}

impl Report {
    /// Takes in what the comparison came to.
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

    /// What follows the table of steps.
    pub(crate) fn summary(&self, output: &mut Output) -> Answer {
        let Self { verified_by, wrong_words, total_micros, .. } = self;
        let verified = Bytes(self.verified_bytes);
        output.line("")?;
        let checked = match wrong_words {
            0 => format!("checked by {verified_by}: all of the {verified} are as they were written"),
            1 => format!("checked by {verified_by}: 1 word of 8 bytes in {verified} is wrong"),
            wrong => format!("checked by {verified_by}: {wrong} words of 8 bytes in {verified} are wrong"),
        };
        output.paragraph("", &checked)?;
        let count = counted(self.steps.len(), "step");
        let mut total = |label: &str, micros, text: String| {
            output.paragraph(&format!("{label:<22}{:>12}  ", duration(micros)), &text)
        };
        total(&format!("growth in {count}:"), *total_micros, "create, map, set access".to_owned())?;
        let by_copying = "the same by copying:";
        if let Some(copy) = self.copy_micros {
            let times =
                self.copy_ratio.map(|ratio| format!("; {ratio:.1} times as long")).unwrap_or_default();
            total(by_copying, copy, format!("allocate, copy, free{times}"))?;
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

/// To the nanosecond, which is what the clock gives.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// The first lines, before any step.
pub(crate) fn opening(output: &mut Output, report: &Report, base: Address, plan: &str) -> Answer {
    let Report { backend, device, device_name, .. } = report;
    output.paragraph("", &format!("{backend} device {device}: {device_name}"))?;
    let reserved = about(Bytes(report.reserved_bytes));
    output.paragraph("", &format!("{plan}; {reserved} of addresses reserved at {base}"))?;
    output.line("")?;
    output.line(Step::HEADING)
}
