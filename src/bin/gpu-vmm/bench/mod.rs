//! What gpu-vmm costs on this machine, beside the driver's own calls and what a program can do without it.
//!
//! | file | subject |
//! |---|---|
//! | `report` | what a run gives, as JSON and read again |
//! | `text`, `markdown` | the report for people, and for a page |
//! | `plot` | times against sizes, as a picture |

mod markdown;
mod plot;
mod report;
mod text;

use crate::args::{BenchArguments, refusal};
use crate::output::{Output, write_whole};
use crate::progress::Progress;
use crate::{Answer, choose, machine};
use gpu_vmm::{AnyBackend, Backend, DeviceId, Workbench};
use gpu_vmm_bench::{About, Options, Told, about};
use gpu_vmm_conformance::report::Environment;
use report::{Measured, Report};
use text::Text;

pub(crate) fn run(asked: &BenchArguments) -> Answer {
    if asked.list {
        return list(asked.filter.as_deref());
    }
    if let Some(file) = &asked.show {
        return write(&report::read(file)?, asked);
    }
    let wanted = wanted(asked.filter.as_deref())?;
    if let Some(file) = &asked.plot
        && !wanted.iter().any(|about| about.name == "growth")
    {
        let text = format!("--plot {} draws `growth`, which --filter leaves out", file.display());
        return Err(refusal("bench", text).into());
    }
    let backend = choose::backend(asked.backend)?;
    let device = choose::device(&backend, asked.device);
    backend.device("bench", device)?;
    let mut environment = Environment::of(backend.vendor().name(), &backend, device);
    environment.filter = asked.filter.clone();
    let report = measure(&backend, device, environment, wanted.len(), asked)?;
    write(&report, asked)?;
    let failed: Vec<&str> =
        report.pairs.iter().filter(|pair| pair.failed.is_some()).map(|pair| &*pair.name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// The pairs that are asked for.
fn wanted(filter: Option<&str>) -> Answer<Vec<About>> {
    let mut all = about::<AnyBackend>();
    all.retain(|about| filter.is_none_or(|text| about.name.contains(text)));
    match filter {
        Some(filter) if all.is_empty() => {
            let text = format!("no pair has {filter:?} in its name; `gpu-vmm bench --list` has all names");
            Err(refusal("bench", text).into())
        }
        _ => Ok(all),
    }
}

fn list(filter: Option<&str>) -> Answer {
    let mut output = Output::default();
    wanted(filter)?.iter().try_for_each(|about| output.paragraph(&format!("{:<11}", about.name), about.what))
}

/// Runs the pairs; for people each figure is printed when it is there.
fn measure(
    backend: &AnyBackend,
    device: DeviceId,
    environment: Environment,
    pairs: usize,
    asked: &BenchArguments,
) -> Answer<Report> {
    let is_for_people = !asked.json && !asked.markdown;
    let mut text = is_for_people.then(Text::default);
    let mut report = Report { environment, pairs: Vec::new() };
    if let Some(text) = &mut text {
        text.opening(&report.environment)?;
    }
    let mut progress = Progress::new(true);
    progress.begin_pairs(backend.vendor().name(), pairs);
    let mut printed = Ok(());
    let mut tell = |told: Told| {
        let mut print = |what: &mut dyn FnMut(&mut Text) -> Answer| {
            if let Some(text) = &mut text
                && printed.is_ok()
            {
                printed = progress.aside(|| what(text));
            }
        };
        match told {
            Told::Begins(about) => {
                progress.pair(about.name, report.pairs.len());
                report.pairs.push(Measured::new(about));
                print(&mut |text| text.begins(about.name, about.what));
            }
            Told::Row(row) => {
                print(&mut |text| text.row(&row));
                report.last(|pair| pair.rows.push(row));
            }
            Told::Curve(curve) => report.last(|pair| pair.curves.push(curve)),
            Told::Skipped(reason) => {
                print(&mut |text| text.ended("skipped", &reason));
                report.last(|pair| pair.skipped = Some(reason));
            }
            Told::Failed(error) => {
                print(&mut |text| text.ended("FAILED", &error));
                report.last(|pair| pair.failed = Some(error));
            }
        }
    };
    let options = Options {
        filter: asked.filter.as_deref(),
        turns: asked.turns.map(|turns| turns as usize),
        memory: Some(machine::free(backend, device)?),
        torch: asked.torch.as_deref(),
    };
    on(backend, device, &options, &mut tell)?;
    drop(progress);
    printed?;
    Ok(report)
}

/// Runs the pairs on a backend by its own type, and by the one that is chosen at run time beside it.
fn on(
    any: &AnyBackend,
    device: DeviceId,
    options: &Options<'_>,
    tell: &mut dyn FnMut(Told),
) -> Result<(), String> {
    fn run<B: Workbench>(
        backend: &B,
        any: &AnyBackend,
        device: DeviceId,
        options: &Options<'_>,
        tell: &mut dyn FnMut(Told),
    ) -> Result<(), String> {
        gpu_vmm_bench::run(backend, any, device, options, tell)
    }
    match any {
        #[cfg(feature = "cuda")]
        AnyBackend::Cuda(backend) => run(backend, any, device, options, tell),
        #[cfg(feature = "hip")]
        AnyBackend::Hip(backend) => run(backend, any, device, options, tell),
        #[cfg(feature = "host")]
        AnyBackend::Host(backend) => run(backend, any, device, options, tell),
        other => Err(format!("no benchmarks are known for {}", other.vendor())),
    }
}

/// Writes a report in the ways that are asked for; the text of a run has been written while it ran.
fn write(report: &Report, asked: &BenchArguments) -> Answer {
    if let Some(file) = &asked.plot {
        write_whole(file, &plot::svg(report)?)?;
    }
    let mut output = Output::default();
    if asked.json {
        return output.json(report);
    }
    if asked.markdown {
        return output.line(markdown::page(report));
    }
    let mut text = Text::default();
    if asked.show.is_some() {
        text.whole(report)?;
    }
    text.closing(report)
}
