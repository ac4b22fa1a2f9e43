//! The `bench` subcommand: the cost of gpu-vmm compared with the driver's own calls and with programs that do without
//! it.

mod machines;
mod markdown;
mod plot;
mod report;
mod text;

use crate::args::{BenchArguments, refusal};
use crate::destination::{Destination, checked};
use crate::output::Output;
use crate::progress::Progress;
use crate::{CliResult, choose, machine};
use gpu_vmm::{AnyBackend, Backend, DeviceId, Operation, Vendor};
use gpu_vmm_bench::{About, Options, Update, about};
use gpu_vmm_conformance::report::Environment;
use report::{Measured, Report};
use std::path::{Path, PathBuf};
use text::Text;

pub(crate) fn run(options: &BenchArguments) -> CliResult {
    if options.list {
        return list(options.filter.as_deref());
    }
    let files = Files::checked(options)?;
    if options.show.len() > 1 && !options.markdown {
        let text = "several reports are shown side by side with --markdown alone; name one with --show";
        return Err(refusal("bench", text.to_owned()).into());
    }
    let shown = options.show.iter().map(|file| report::read(file)).collect::<CliResult<Vec<_>>>()?;
    if let Some(first) = shown.first() {
        draw(first, files.plot)?;
        return if shown.len() > 1 {
            Output::default().line(machines::page(&shown))
        } else {
            write(first, options)
        };
    }
    let wanted = wanted(options.filter.as_deref())?;
    if let Some(file) = &options.plot
        && !wanted.iter().any(|about| about.name == "growth")
    {
        let text = format!("--plot {} draws `growth`, which --filter leaves out", file.display());
        return Err(refusal("bench", text).into());
    }
    if options.torch.is_some() && !wanted.iter().any(|about| about.name == "pool") {
        let text =
            "--torch has no effect: PyTorch's allocator is measured in `pool`, which --filter leaves out";
        return Err(refusal("bench", text.to_owned()).into());
    }
    let backend = choose::backend(options.on.backend)?;
    if options.torch.is_some() && backend.vendor() == Vendor::Host {
        let text = "--torch has no effect on host memory: PyTorch's allocator is measured on GPUs";
        return Err(refusal("bench", text.to_owned()).into());
    }
    if let Some(folder) = &options.torch
        && !folder.is_dir()
    {
        return Err(format!(
            "--torch {} is not a folder; name the folder of PyTorch's libraries",
            folder.display()
        )
        .into());
    }
    let device = choose::device(&backend, options.on.device);
    backend.device(Operation::QueryDevice, device)?;
    let mut environment = Environment::of(backend.vendor().name(), &backend, device);
    environment.filter = options.filter.clone();
    let report = measure(&backend, device, environment, wanted.len(), options, files.out)?;
    draw(&report, files.plot)?;
    write(&report, options)?;
    let failed: Vec<&str> =
        report.pairs.iter().filter(|pair| pair.failed.is_some()).map(|pair| &*pair.name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// The files to write.
struct Files {
    out: Option<Destination>,
    plot: Option<Destination>,
}

impl Files {
    fn checked(options: &BenchArguments) -> CliResult<Self> {
        let inputs: Vec<&Path> = options.show.iter().map(PathBuf::as_path).collect();
        let out = checked("bench", "--out", options.out.as_deref(), &inputs)?;
        let plot = checked("bench", "--plot", options.plot.as_deref(), &inputs)?;
        if let (Some(one), Some(two)) = (&out, &plot)
            && one.is_same(two)
        {
            let text = "--out and --plot are the same file; name another file for one of them";
            return Err(refusal("bench", text.to_owned()).into());
        }
        Ok(Self { out, plot })
    }
}

/// Returns the pairs to measure.
fn wanted(filter: Option<&str>) -> CliResult<Vec<About>> {
    let mut all = about::<AnyBackend>();
    all.retain(|about| filter.is_none_or(|text| about.name.contains(text)));
    match filter {
        Some(filter) if all.is_empty() => {
            let text = format!("no pair has {filter:?} in its name; `gpu-vmm bench --list` lists all names");
            Err(refusal("bench", text).into())
        }
        _ => Ok(all),
    }
}

fn list(filter: Option<&str>) -> CliResult {
    let mut output = Output::default();
    wanted(filter)?.iter().try_for_each(|about| output.paragraph(&format!("{:<11}", about.name), about.what))
}

/// Runs the pairs. In text format, each figure is printed as soon as it is measured.
fn measure(
    backend: &AnyBackend,
    device: DeviceId,
    environment: Environment,
    pairs: usize,
    options: &BenchArguments,
    file: Option<Destination>,
) -> CliResult<Report> {
    let text = (!options.json && !options.markdown).then(Text::default);
    let mut progress = Progress::new(true);
    progress.begin_pairs(backend.vendor().name(), pairs);
    let report = Report { environment, pairs: Vec::new() };
    let mut listener = Listener { report, text, progress, file, ended: Ok(()) };
    listener.print(|text, report| text.opening(&report.environment));
    let options = Options {
        filter: options.filter.as_deref(),
        samples: options.samples.map(|samples| samples as usize),
        memory: Some(machine::free(backend, device)?),
        torch: options.torch.as_deref(),
    };
    gpu_vmm_bench::run(backend, device, &options, &mut |update| listener.hear(update))?;
    listener.save(true);
    listener.ended?;
    Ok(listener.report)
}

/// Receives the figures: adds them to the report, prints them, and writes the file.
struct Listener {
    report: Report,
    text: Option<Text>,
    progress: Progress,
    file: Option<Destination>,
    /// The first error of a write.
    ended: CliResult,
}

impl Listener {
    fn hear(&mut self, update: Update) {
        match update {
            Update::Begins(about) => {
                self.save(false);
                self.progress.pair(about.name, self.report.pairs.len());
                self.report.pairs.push(Measured::new(about));
                self.print(|text, _| text.begins(about.name, about.what));
            }
            Update::Row(row) => {
                self.print(|text, _| text.row(&row));
                self.report.last(|pair| pair.rows.push(row));
            }
            Update::Curve(curve) => self.report.last(|pair| pair.curves.push(curve)),
            Update::Skipped(reason) => {
                self.print(|text, _| text.ended("skipped", &reason));
                self.report.last(|pair| pair.skipped = Some(reason));
            }
            Update::Failed(error) => {
                self.print(|text, _| text.ended("FAILED", &error));
                self.report.last(|pair| pair.failed = Some(error));
            }
        }
    }

    fn print(&mut self, what: impl FnOnce(&mut Text, &Report) -> CliResult) {
        if let (Some(text), Ok(())) = (&mut self.text, &self.ended) {
            self.ended = self.progress.aside(|| what(text, &self.report));
        }
    }

    /// Writes the current results. A regular file keeps its old content until the first pair is complete, and a pipe
    /// gets the report once, at the end.
    fn save(&mut self, is_last: bool) {
        if let (Some(file), Ok(())) = (&mut self.file, &self.ended)
            && (is_last || (file.is_replaced() && !self.report.pairs.is_empty()))
        {
            self.ended = report::write(file, &self.report);
        }
    }
}

/// Draws the growth, if a file for the picture was named.
fn draw(report: &Report, file: Option<Destination>) -> CliResult {
    let Some(mut file) = file else { return Ok(()) };
    file.add(&plot::svg(report)?)?;
    file.complete()
}

/// Writes a report in the requested format; the text of a run was printed while it ran.
fn write(report: &Report, options: &BenchArguments) -> CliResult {
    let mut output = Output::default();
    if options.json {
        return output.json(report);
    }
    if options.markdown {
        return output.line(markdown::page(report));
    }
    let mut text = Text::default();
    if !options.show.is_empty() {
        text.whole(report)?;
    }
    text.closing(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm_bench::{Curve, Row, Side, Spread, Unit};

    fn listener(file: Option<Destination>) -> Listener {
        let environment = crate::conformance::text::sample().environment;
        let report = Report { environment, pairs: Vec::new() };
        Listener { report, text: None, progress: Progress::new(false), file, ended: Ok(()) }
    }

    fn about(name: &'static str) -> Update {
        Update::Begins(About { name, what: "what it is" })
    }

    #[test]
    fn result_belongs_to_the_latest_pair() {
        let mut listener = listener(None);
        let side = || Side { name: "side".to_owned(), took: Spread::exact(1.0) };
        let row = Row {
            what: "row".to_owned(),
            ours: side(),
            baseline: side(),
            unit: Unit::Bytes,
            ratio: Spread::exact(1.0),
            samples: 1,
            target: None,
        };
        let curve = Curve { what: "way".to_owned(), who: "who".to_owned(), points: vec![(1, 2.0)] };
        listener.hear(Update::Row(row.clone()));
        assert!(listener.report.pairs.is_empty(), "no pair has begun");
        for update in [
            about("one"),
            Update::Row(row.clone()),
            Update::Curve(curve.clone()),
            about("two"),
            Update::Skipped("no room".to_owned()),
            about("three"),
            Update::Failed("a call failed".to_owned()),
        ] {
            listener.hear(update);
        }
        let [one, two, three] = &listener.report.pairs[..] else { panic!("{:?}", listener.report) };
        assert_eq!((one.name.as_str(), one.what.as_str()), ("one", "what it is"));
        assert_eq!((&one.rows, &one.curves), (&vec![row], &vec![curve]));
        assert_eq!((&one.skipped, &one.failed), (&None, &None));
        assert_eq!((two.skipped.as_deref(), &two.failed, two.rows.len()), (Some("no room"), &None, 0));
        assert_eq!((&three.skipped, three.failed.as_deref()), (&None, Some("a call failed")));
    }

    #[test]
    fn file_is_written_between_pairs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let mut listener = listener(Some(Destination::check(&path).unwrap()));
        let there = || report::read(&path).map(|report| report.pairs.len()).ok();
        listener.hear(about("one"));
        assert_eq!(there(), None, "nothing is measured yet");
        listener.hear(about("two"));
        assert_eq!(there(), Some(1));
        listener.save(true);
        assert_eq!(there(), Some(2));
        assert!(listener.ended.is_ok());
    }
}
