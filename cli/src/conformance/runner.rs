//! The runs, one for each target.
//!
//! Drivers are opened only in processes of the suite, so that a crash while opening one is reported like an error.

use super::Text;
use crate::args::{ConformanceArguments, TargetChoice};
use crate::output::Output;
use crate::progress::Progress;
use crate::{CliResult, choose, say};
use gpu_vmm::{AnyBackend, DeviceId, Vendor};
use gpu_vmm_conformance::report::{Environment, Report};
use gpu_vmm_conformance::{Event, Item, Outcome, Suite, Target, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a case has no verdict of its own that `--time` left out.
pub(crate) const TIME_OVER: &str = "the time given by --time was over";

/// The cases to run, and the text output.
pub(super) struct Runner<'a> {
    suite: Suite<AnyBackend>,
    items: Vec<Item>,
    options: &'a ConformanceArguments,
    text: Option<Text>,
}

impl<'a> Runner<'a> {
    /// Prepares runs; their text goes to `output`, if there is one.
    pub(super) fn new(
        suite: Suite<AnyBackend>,
        items: Vec<Item>,
        options: &'a ConformanceArguments,
        output: Option<Output>,
    ) -> Self {
        let hint = options.out.is_none();
        Self { suite, items, options, text: output.map(|output| Text::new(output, options.verbose, hint)) }
    }

    /// Runs on all chosen targets and completes the text.
    pub(super) fn reports(mut self) -> CliResult<Vec<Report>> {
        let reports = self.ran()?;
        self.text.as_mut().map_or(Ok(()), Text::complete)?;
        Ok(reports)
    }

    fn ran(&mut self) -> CliResult<Vec<Report>> {
        let named = match self.options.backend {
            TargetChoice::Any => AnyBackend::preferred()?,
            other => other.vendor(),
        };
        let found = match (self.options.backend, named) {
            (_, Some(vendor)) => {
                self.look(vendor).map_err(|reason| format!("{vendor}: {reason}; see `gpu-vmm info`"))?
            }
            (TargetChoice::All, None) => return self.all(),
            (_, None) => choose::best(|vendor| self.look(vendor))?,
        };
        Ok(vec![self.on(&found)?.map_err(|reason| format!("{}: {reason}", found.target))?])
    }

    /// Runs on every available target, and says why the others cannot run.
    fn all(&mut self) -> CliResult<Vec<Report>> {
        let mut reports = Vec::new();
        for vendor in AnyBackend::BUILT_IN {
            let ran = match self.look(*vendor) {
                Ok(found) => self.on(&found)?,
                Err(reason) => Err(reason),
            };
            match (ran, &mut self.text) {
                (Ok(report), _) => reports.push(report),
                (Err(reason), Some(text)) => text.not_run(vendor.name(), &reason)?,
                (Err(reason), None) => say(&format!("{vendor} did not run: {reason}")),
            }
        }
        if reports.is_empty() {
            Err("no backend can be used; see `gpu-vmm info`".into())
        } else {
            Ok(reports)
        }
    }

    /// Returns the environment of a vendor, with the default device.
    fn look(&self, vendor: Vendor) -> Result<Environment, String> {
        self.suite.look(self.target(vendor.name())?)
    }

    fn target(&self, name: &str) -> Result<&Arc<dyn Target<AnyBackend>>, String> {
        let found = self.suite.targets().find(|target| target.name() == name);
        found.ok_or_else(|| format!("this program was built without the feature `{name}`"))
    }

    /// Runs on one target. Returns its report, or why there is none.
    fn on(&mut self, found: &Environment) -> CliResult<Result<Report, String>> {
        let began = Instant::now();
        let device = DeviceId(self.options.device.unwrap_or(found.device));
        let target = Arc::clone(self.target(&found.target)?);
        let mut progress = Progress::new(true);
        progress.begin_cases(target.name(), self.items.len());
        let (text, filter) = (&mut self.text, &self.options.filter);
        let mut report = None;
        let mut written = Ok(());
        let deadline = self.options.time.map(|limit| began + limit);
        let ran =
            self.suite.run(&target, device, &self.items, deadline, &mut |event| match (event, &mut report) {
                (Event::Opened(environment), _) => {
                    let environment = Environment { filter: filter.clone(), ..environment.clone() };
                    tell(&mut written, text, &progress, |text| text.opening(&environment));
                    report = Some(Report::new(environment));
                }
                (Event::Begins(item), _) => progress.case(item.name),
                (Event::Ended(item, outcome, time), Some(report)) => {
                    report.add(item, outcome, time);
                    progress.case_ended();
                    if text.as_ref().is_some_and(|text| text.is_due(report)) {
                        tell(&mut written, text, &progress, |text| text.grown(report));
                    }
                }
                (Event::Ended(..), None) => {}
            });
        let Some(mut report) = report else {
            return Ok(Err(ran.err().unwrap_or_else(|| "nothing was run".to_owned())));
        };
        let outcome = match ran {
            Err(reason) => Outcome::failed(format!("it did not run: {reason}")),
            Ok(()) => Outcome::new(Verdict::Skipped, TIME_OVER),
        };
        let left = &self.items[report.cases.len()..];
        left.iter().for_each(|item| report.add(item, &outcome, Duration::ZERO));
        report.took(began.elapsed());
        drop(progress);
        written?;
        self.text.as_mut().map_or(Ok(()), |text| text.closing(&report))?;
        Ok(Ok(report))
    }
}

/// Prints text during a run, unless an earlier print failed.
fn tell(
    written: &mut CliResult,
    text: &mut Option<Text>,
    progress: &Progress,
    what: impl FnOnce(&mut Text) -> CliResult,
) {
    if let (Ok(()), Some(text)) = (&written, text) {
        *written = progress.aside(|| what(text));
    }
}
