//! The `check` subcommand: everything that a report about a machine needs, in one file and in limited time.

mod child;
mod file;
mod kernel;
mod plan;
mod private;
mod summary;

use crate::CliResult;
use crate::args::CheckArguments;
use crate::destination::{Destination, checked};
use crate::output::{Output, counted};
use child::Program;
use file::{Check, Done};
use plan::{Part, Step};
use private::Private;
use std::time::Instant;

/// The data that is left out of the file.
const LEFT_OUT: &str = "It has no host name, user name, home or working folder, hardware address, serial number or UUID. \
 Nothing is sent and nothing is installed. Read it before you attach it.";

pub(crate) fn run(options: &CheckArguments) -> CliResult {
    let mut output = Output::default();
    let steps = plan::steps(options);
    tell_plan(options, &steps, &mut output)?;
    if options.plan {
        return Ok(());
    }
    let target = checked("check", "--out", Some(&options.out), &[])?.ok_or("--out names no file")?;
    let program =
        Program::this().map_err(|error| format!("this program cannot be started again: {error}"))?;
    let mut run = Run::new(options, target);
    output.line("")?;
    for step in steps {
        run.step(&program, step, &mut output)?;
    }
    run.finish(&mut output)
}

/// Prints what will be done and written.
fn tell_plan(options: &CheckArguments, steps: &[Step], output: &mut Output) -> CliResult {
    let time = humantime::format_duration(options.time);
    output.paragraph(
        "",
        &format!("This check takes at most {time}, and runs these commands, each in a process of its own:"),
    )?;
    for step in steps {
        output.paragraph("  gpu-vmm ", &step.arguments.join(" "))?;
    }
    if options.soak {
        output.paragraph("", "The soak takes up to 10 minutes more.")?;
    }
    if let Some(time) = options.endurance {
        let time = humantime::format_duration(time);
        output.paragraph("", &format!("The endurance takes {time} more."))?;
    }
    let out = options.out.display();
    output.paragraph(
        "",
        &format!("It also reads the kernel's messages about the GPU, and writes one file, {out}. {LEFT_OUT}"),
    )
}

/// A check that runs.
struct Run<'a> {
    options: &'a CheckArguments,
    target: Destination,
    private: Private,
    check: Check,
    began: Instant,
    /// When the check began, by the kernel's clock.
    since: f64,
}

impl<'a> Run<'a> {
    fn new(options: &'a CheckArguments, target: Destination) -> Self {
        Self {
            options,
            target,
            private: Private::of_this_process(),
            check: Check::new(options.time),
            began: Instant::now(),
            since: kernel::now(),
        }
    }

    /// Runs a step. The file is written before it, with the results of the steps before: a driver can take the machine down.
    fn step(&mut self, program: &Program, mut step: Step, output: &mut Output) -> CliResult {
        let left = self.options.time.saturating_sub(self.began.elapsed());
        let limit = step.limit(left, self.options.time);
        let mut done = Done::began(&step.name, &step.arguments);
        match limit {
            None => "not run: no time was left".clone_into(&mut done.ended),
            Some(limit) => {
                self.check.steps.push(done);
                self.save(false)?;
                let began = Instant::now();
                let ran = program.run(&step.arguments, step.settings, limit);
                done = self.check.steps.pop().ok_or("the step is lost")?;
                let stdout = done.end(ran, began.elapsed());
                self.keep(step.part, &stdout);
            }
        }
        output.paragraph(&format!("  {:<14}{:>8.1} s  ", done.name, done.seconds), &done.ended)?;
        self.check.steps.push(done);
        Ok(())
    }

    /// Keeps a step's report, if it is complete.
    fn keep(&mut self, part: Part, stdout: &[u8]) {
        let check = &mut self.check;
        match part {
            Part::Info => check.info.extend(serde_json::from_slice(stdout).ok()),
            Part::Grow => check.grow = serde_json::from_slice(stdout).ok(),
            Part::Conformance => check.conformance = serde_json::from_slice(stdout).ok(),
            Part::Bench => check.bench.extend(serde_json::from_slice(stdout).ok()),
            Part::Soak => check.soak = serde_json::from_slice(stdout).ok(),
            Part::Endurance => check.endurance = serde_json::from_slice(stdout).ok(),
        }
    }

    /// Writes the file as it is now. A pipe gets it once, at the end.
    fn save(&mut self, is_last: bool) -> CliResult<serde_json::Value> {
        self.check.seconds = self.began.elapsed().as_millis() as f64 / 1e3;
        self.check.kernel = kernel::messages(self.since);
        self.check.summary = summary::lines(&self.check);
        let mut value = serde_json::to_value(&self.check)?;
        self.private.remove_from(&mut value);
        if is_last || self.target.is_replaced() {
            self.target.add(&format!("{}\n", serde_json::to_string_pretty(&value)?))?;
            self.target.complete()?;
        }
        Ok(value)
    }

    /// Writes the complete file, and prints the summary as it is in it.
    fn finish(mut self, output: &mut Output) -> CliResult {
        let value = self.save(true)?;
        if !self.target.is_stdout() {
            output.line("")?;
            output.paragraph(
                "",
                &format!("Attach {} to an issue, with these ten lines:", self.options.out.display()),
            )?;
            output.line("")?;
            for line in value["summary"].as_array().into_iter().flatten() {
                output.line(line.as_str().unwrap_or_default())?;
            }
        }
        let bad = self.check.steps.iter().filter(|step| !step.is_good).count();
        if bad == 0 {
            Ok(())
        } else {
            Err(format!(
                "{bad} of {} did not end well; the file says how",
                counted(self.check.steps.len(), "step")
            )
            .into())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser;
    use serde_json::{Value, json};

    #[test]
    fn each_report_is_its_own_part() {
        let Command::Check(options) = Arguments::try_parse_from(["gpu-vmm", "check"]).unwrap().command else {
            panic!()
        };
        let mut run = Run::new(&options, Destination::check("/dev/null".as_ref()).unwrap());
        let mut suite = crate::conformance::text::sample();
        for (part, seconds) in [(Part::Conformance, 1.5), (Part::Soak, 2.5)] {
            suite.summary.seconds = seconds;
            run.keep(part, &serde_json::to_vec(&suite).unwrap());
        }
        for text in ["{\"pair\": 1}", "{\"pair\"", "{\"pair\": 2}"] {
            run.keep(Part::Bench, text.as_bytes());
        }
        run.keep(Part::Info, b"[1]");
        run.keep(Part::Grow, b"{\"bytes\": 3}");
        let Check { info, grow, conformance, bench, soak, .. } = &run.check;
        let seconds = [conformance, soak].map(|report| report.as_ref().unwrap().summary.seconds);
        assert_eq!(seconds, [1.5, 2.5]);
        assert_eq!((info, grow), (&vec![json!([1])], &Some(json!({"bytes": 3}))));
        assert_eq!(bench, &[json!({"pair": 1}), json!({"pair": 2})], "one that is cut off is left out");
        for part in [Part::Grow, Part::Conformance, Part::Soak, Part::Info] {
            run.keep(part, b"{");
        }
        let Check { info, grow, conformance, soak, .. } = &run.check;
        assert!(grow.is_none() && conformance.is_none() && soak.is_none());
        assert_eq!(info.iter().collect::<Vec<&Value>>(), [&json!([1])]);
    }
}
