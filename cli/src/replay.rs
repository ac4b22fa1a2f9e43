//! The `replay` subcommand: a recorded program's allocations, replayed on a pool or on the driver itself.

pub(crate) mod history;
mod text;

use crate::args::{AllocatorChoice, ReplayArguments};
use crate::destination::{Destination, checked};
use crate::output::{Output, about};
use crate::progress::Progress;
use crate::{CliResult, choose, grow};
use gpu_vmm::pool::PoolSnapshot;
use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, Operation, Vendor};
use gpu_vmm_replay::{Allocator, Options, Outcome, Plain, Pooled, Recording, Streams, Trace};
use history::{History, Replayed};
use serde::Serialize;
use std::sync::{Mutex, PoisonError};

/// The result of `gpu-vmm replay`, as `--json` prints it.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    pub(crate) trace: String,
    pub(crate) backend: &'static str,
    /// The device's ordinal.
    pub(crate) device: u32,
    pub(crate) device_name: String,
    /// `pool` or `driver`.
    pub(crate) allocator: &'static str,
    /// What the file says beside the allocations, if another program's recorder wrote it.
    pub(crate) recorded: Option<Recording>,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

pub(crate) fn run(options: &ReplayArguments) -> CliResult {
    let snapshot = checked("replay", "--snapshot", options.snapshot.as_deref(), &[&options.trace])?;
    let mut progress = Progress::new(!options.json);
    let trace = read(options, &mut progress)?;
    let backend = open(options)?;
    let device = choose::device(&backend, options.on.device);
    let device_name = backend.device(Operation::QueryDevice, device)?.name.clone();
    if !options.force {
        check_room(&backend, device, &trace, options.threads)?;
    }
    grow::warm_up(&backend, device)?;

    let (allocator, outcome) = match options.allocator {
        AllocatorChoice::Pool => {
            ("pool", on_a_pool(&backend, device, &trace, options, snapshot, &mut progress)?)
        }
        AllocatorChoice::Driver => {
            let plain = Plain::new(&backend, device)?;
            ("driver", rounds(&trace, &plain, options, &mut progress, &|| {})?)
        }
    };
    drop(progress);
    let backend = backend.vendor().name();
    let recorded = trace.recording().cloned();
    let trace = options.trace.display().to_string();
    let report = Report { trace, backend, device: device.0, device_name, allocator, recorded, outcome };
    let mut output = Output::default();
    if options.json { output.json(&report) } else { text::write(&report, &mut output) }
}

fn read(options: &ReplayArguments, progress: &mut Progress) -> CliResult<Trace> {
    let (from, device) = (&options.trace, options.recorded_device);
    if from.as_os_str() == "-" {
        return Ok(Trace::read("on standard input", device, std::io::stdin().lock())?);
    }
    let size = std::fs::metadata(from).map_or(0, |found| found.len());
    progress.begin("reading the trace", Bytes(size));
    let progress = &*progress;
    Ok(Trace::open(from, device, &|done| progress.advance(done))?)
}

fn open(options: &ReplayArguments) -> CliResult<AnyBackend> {
    #[cfg(feature = "host")]
    if let Some(memory) = options.host_memory {
        return Ok(gpu_vmm::host::HostConfig::new().memory(memory).open()?.into());
    }
    choose::backend(options.on.backend)
}

/// Refuses a trace that the device cannot hold, before anything is allocated. None of the memory is used, so on the
/// host the limit is the backend's and not the memory that the machine can provide.
fn check_room(backend: &AnyBackend, device: DeviceId, trace: &Trace, threads: u32) -> CliResult {
    let need = Bytes(trace.peak_asked().saturating_mul(threads.into()));
    let memory = backend.memory_info(device)?;
    if need <= memory.free {
        return Ok(());
    }
    let each = match threads {
        1 => String::new(),
        _ => format!(" ({} by each of {threads} threads)", about(Bytes(trace.peak_asked()))),
    };
    let has = match need > memory.total {
        true => format!("{device} has {}", about(memory.total)),
        false => {
            format!("{} of the {} of {device} are free", about(memory.free), about(memory.total))
        }
    };
    let more = if backend.vendor() == Vendor::Host { ", or simulate more with --host-memory" } else { "" };
    let need = about(need);
    Err(format!("replay: the trace requests up to {need} at one time{each}, but {has}; begin anyway with --force{more}")
        .into())
}

fn on_a_pool(
    backend: &AnyBackend,
    device: DeviceId,
    trace: &Trace,
    options: &ReplayArguments,
    snapshot: Option<Destination>,
    progress: &mut Progress,
) -> CliResult<Outcome> {
    let streams = Streams::of(backend, device, trace.streams())?;
    let recording = trace.recording();
    let page = options.page.or_else(|| recording.and_then(|recording| recording.page));
    let pool = || -> CliResult<Pooled<'_, AnyBackend>> {
        let pooled = Pooled::new(backend, device, &streams, page)?;
        Ok(match recording {
            Some(recording) => pooled.aligned(recording.alignment),
            None => pooled,
        })
    };
    let pooled = pool()?;
    let Some(file) = snapshot else { return rounds(trace, &pooled, options, progress, &|| {}) };
    let mut file = Output::to(Some(file));
    let snapshot = Mutex::new(PoolSnapshot::default());
    let take = || *snapshot.lock().unwrap_or_else(PoisonError::into_inner) = pooled.pool().snapshot();
    let outcome = rounds(trace, &pooled, options, progress, &take)?;
    // Its memory is needed for the pool that begins with nothing.
    drop(pooled);
    let history = History::of(options.trace.display().to_string(), trace, &pool()?)?;
    let pool = snapshot.into_inner().unwrap_or_else(PoisonError::into_inner);
    file.json(&Replayed { pool, replay: Some(history) })?;
    file.complete()?;
    Ok(outcome)
}

fn rounds(
    trace: &Trace,
    allocator: &impl Allocator,
    options: &ReplayArguments,
    progress: &mut Progress,
    at_peak: &(dyn Fn() + Sync),
) -> CliResult<Outcome> {
    progress.begin_rounds(trace.events() * u64::from(options.threads));
    let shown = &*progress;
    let options = Options {
        threads: options.threads as usize,
        rounds: options.rounds,
        progress: &|at| shown.round(format!("round {} of {}", at.round, at.of), at.done),
        at_peak,
    };
    Ok(gpu_vmm_replay::replay(trace, allocator, options)?)
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;
    use gpu_vmm::host::HostConfig;
    use gpu_vmm::{PhysicalMemory, Properties};

    #[test]
    fn too_little_memory_error_has_amounts() {
        let backend: AnyBackend = HostConfig::new().memory(Bytes::mib(16)).open().unwrap().into();
        let device = DeviceId(0);
        let trace = Trace::read("a trace", None, &b"a 1 8388608 0\nf 1\n"[..]).unwrap();
        let room = |threads| check_room(&backend, device, &trace, threads).map_err(|error| error.to_string());
        let refused = |text: &str| {
            let begin = "replay: the trace requests up to";
            Err(format!("{begin} {text}; begin anyway with --force, or simulate more with --host-memory"))
        };
        assert_eq!([1, 2].map(room), [Ok(()), Ok(())], "exactly as much as there is");
        assert_eq!(
            room(3),
            refused("24 MiB at one time (8 MiB by each of 3 threads), but device 0 has 16 MiB")
        );
        let _taken = PhysicalMemory::create(&backend, Bytes::mib(10), Properties::on(device)).unwrap();
        assert_eq!(room(1), refused("8 MiB at one time, but 6 MiB of the 16 MiB of device 0 are free"));
        assert_eq!(
            room(2),
            refused(
                "16 MiB at one time (8 MiB by each of 2 threads), but 6 MiB of the 16 MiB of device 0 are free"
            )
        );
    }
}
