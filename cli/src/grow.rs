//! The `grow` subcommand: memory that grows in steps, is filled, checked to the last byte, and compared with copying.

use crate::args::GrowArguments;
use crate::copying::{self, Copying};
use crate::output::{Output, about};
use crate::pattern::each_piece;
use crate::progress::Progress;
use crate::report::{Report, Step, micros, opening};
use crate::steps::Steps;
use crate::{CliResult, choose, machine};
use gpu_vmm::{
    AnyBackend, Backend, Bytes, Detail, DeviceId, Error, Growth, Operation, Placement, Region, Result,
    Vendor, WaitFor,
};
use gpu_vmm_testkit::TestKit;
use std::time::{Duration, Instant};

pub(crate) fn run(options: &GrowArguments) -> CliResult {
    let backend = choose::backend(options.on.backend)?;
    let device = choose::device(&backend, options.on.device);
    check_room(&backend, device, options.to)?;
    warm_up(&backend, device)?;

    let (mut region, mut report) = reserve(&backend, device, options)?;
    let steps = Steps::new(options.from, options.to, options.by, region.granularity());
    let mut output = Output::default();
    let mut progress = Progress::new(!options.json);
    if !options.json {
        let plan = format!("from {} to {} by {}", steps.from, steps.to, options.by);
        opening(&mut output, &report, region.address(), &plan)?;
    }

    progress.begin("growing and filling", steps.to);
    let mut total = Duration::ZERO;
    for size in steps.sizes() {
        let (growth, time) = grow_and_fill(&mut region, device, size, options.fixed, &progress)?;
        let step = Step::new(growth, time);
        if !options.json {
            progress.aside(|| output.line(step.line()))?;
        }
        total += time;
        report.steps.push(step);
    }
    report.total_micros = micros(total);
    check(&region, device, &mut report, &mut progress)?;
    region.close(WaitFor::all_devices())?;

    let copying = copying::measure(&backend, device, steps, &mut progress)?;
    drop(progress);
    report.compare(&copying);
    if options.json {
        output.json(&report)?;
    } else {
        report.summary(&mut output)?;
    }
    verdict(&report, &copying)
}

/// Makes each kind of call once before the measurement: drivers do much of their work at the first call of a kind (CUDA
/// creates a context, HIP compiles its kernels), and that is not growth.
pub(crate) fn warm_up(backend: &AnyBackend, device: DeviceId) -> Result<()> {
    let granularity = backend.device(Operation::Grow, device)?.granularity.bytes();
    let mut region = Region::builder(backend).on(device).reserve(granularity).build()?;
    region.grow_to(granularity)?;
    region.write_pattern(device, Bytes::ZERO, granularity, 0)?;
    region.close(WaitFor::all_devices())
}

/// Refuses a size that the device or the machine cannot hold, before anything is allocated.
fn check_room(backend: &AnyBackend, device: DeviceId, to: Bytes) -> CliResult {
    let operation = Operation::Grow;
    let total = backend.device(operation, device)?.total_memory;
    if to > total {
        return Err(Error::new(operation, Detail::ExceedsDevice { requested: to, device, total }).into());
    }
    // A GPU's driver returns an error. On the host, the kernel kills a program that uses more memory than there is.
    let free = machine::free(backend, device)?;
    if backend.vendor() == Vendor::Host && to > free {
        let (to, free) = (about(to), about(free));
        return Err(format!("{operation}: {to} exceeds the {free} of free memory on this machine").into());
    }
    Ok(())
}

/// Reserves the addresses and begins the report.
fn reserve(
    backend: &AnyBackend,
    device: DeviceId,
    options: &GrowArguments,
) -> CliResult<(Region<AnyBackend>, Report)> {
    let found = backend.device(Operation::Grow, device)?;
    let mut builder = Region::builder(backend).on(device);
    if let Some(size) = options.reserve {
        builder = builder.reserve(size);
    }
    if let Some(size) = options.extend_by {
        builder = builder.extend_by(size);
    }
    if let Some(address) = options.at {
        builder = builder.at(Placement::Exact(address));
    }
    let start = Instant::now();
    let region = builder.build()?;
    let reserve_micros = micros(start.elapsed());
    let report = Report {
        backend: backend.vendor().name(),
        device: device.0,
        device_name: found.name.clone(),
        granularity_bytes: region.granularity().bytes().0,
        reserved_bytes: region.reserved().0,
        reserve_micros,
        final_bytes: 0,
        verified_bytes: 0,
        verified_by: backend.pattern_by(),
        wrong_words: 0,
        total_micros: 0.0,
        copy_micros: None,
        copy_skipped: None,
        copy_ratio: None,
        steps: Vec::new(),
    };
    Ok((region, report))
}

/// Grows by one step, which is timed, and then fills the new memory.
fn grow_and_fill(
    region: &mut Region<AnyBackend>,
    device: DeviceId,
    size: Bytes,
    fixed: bool,
    progress: &Progress,
) -> Result<(Growth, Duration)> {
    let before = region.end();
    let start = Instant::now();
    let growth = match fixed {
        true => region.grow_to(size),
        false => region.grow_or_move(size, WaitFor::all_devices()),
    }?;
    let time = start.elapsed();
    each_piece(before, growth.end, progress, |offset, length, seed| {
        region.write_pattern(device, offset, length, seed).map(|()| 0)
    })?;
    Ok((growth, time))
}

/// Checks every byte of the region, by the device.
fn check(
    region: &Region<AnyBackend>,
    device: DeviceId,
    report: &mut Report,
    progress: &mut Progress,
) -> CliResult {
    let end = region.end();
    progress.begin("checking", end);
    report.wrong_words = each_piece(Bytes::ZERO, end, progress, |offset, length, seed| {
        region.count_wrong(device, offset, length, seed)
    })?;
    report.final_bytes = end.0;
    report.verified_bytes = end.0;
    Ok(())
}

/// Returns an error if words are wrong, in the region or in the copy.
fn verdict(report: &Report, copying: &Copying) -> CliResult {
    let refuse = |wrong, what| {
        let differs = if wrong == 1 { "differs" } else { "differ" };
        Err(format!("verification failed: {wrong} of the 8-byte words {what} {differs} from the pattern")
            .into())
    };
    match (report.wrong_words, copying) {
        (0, Copying::Done { wrong_words: wrong @ 1.., .. }) => refuse(*wrong, "of the copy"),
        (0, _) => Ok(()),
        (wrong, _) => refuse(wrong, "of the memory that grew"),
    }
}

#[cfg(all(test, feature = "host"))]
mod tests {
    use super::*;
    use clap::Parser;
    use gpu_vmm::host::HostConfig;

    #[test]
    fn lost_byte_is_a_failure() {
        let backend: AnyBackend = HostConfig::new().memory(Bytes::mib(16)).open().unwrap().into();
        let device = DeviceId(0);
        let options = crate::args::Arguments::parse_from(["gpu-vmm", "grow", "--reserve", "4MiB"]).command;
        let crate::args::Command::Grow(options) = options else { panic!("{options:?}") };
        let (mut region, mut report) = reserve(&backend, device, &options).unwrap();
        let mut progress = Progress::new(false);
        for size in [Bytes::mib(2), Bytes::mib(4), Bytes::mib(12)] {
            grow_and_fill(&mut region, device, size, false, &progress).unwrap();
        }
        let mut judge = |region: &Region<AnyBackend>| {
            check(region, device, &mut report, &mut progress).unwrap();
            let copying = Copying::NoRoom(String::new());
            (report.verified_bytes, verdict(&report, &copying).map_err(|error| error.to_string()))
        };
        assert_eq!(judge(&region), (Bytes::mib(12).0, Ok(())));

        let mut byte = [0];
        let last = Bytes::mib(12) - Bytes(1);
        region.read(last, &mut byte).unwrap();
        region.write(last, &[!byte[0]]).unwrap();
        let text =
            "verification failed: 1 of the 8-byte words of the memory that grew differs from the pattern";
        assert_eq!(judge(&region), (Bytes::mib(12).0, Err(text.to_owned())));

        // Words of the copy count if the region's words are right, and several differ.
        report.wrong_words = 0;
        let copied = |wrong_words| {
            let copying = Copying::Done { time: Duration::ZERO, wrong_words };
            verdict(&report, &copying).map_err(|error| error.to_string())
        };
        assert_eq!(copied(0), Ok(()));
        let text = "verification failed: 2 of the 8-byte words of the copy differ from the pattern";
        assert_eq!(copied(2), Err(text.to_owned()));
    }

    #[test]
    fn growth_ends_at_device_memory() {
        let backend: AnyBackend = HostConfig::new().memory(Bytes::mib(16)).open().unwrap().into();
        let room = |to| check_room(&backend, DeviceId(0), to).map_err(|error| error.to_string());
        assert_eq!(room(Bytes::mib(16)), Ok(()));
        assert!(
            room(Bytes::mib(18))
                .unwrap_err()
                .starts_with("grow: the requested 18 MiB exceeds the memory of device 0")
        );
        let properties = gpu_vmm::Properties::on(DeviceId(0));
        let taken = gpu_vmm::PhysicalMemory::create(&backend, Bytes::mib(6), properties).unwrap();
        let text = "grow: 12 MiB exceeds the 10 MiB of free memory on this machine";
        assert_eq!(room(Bytes::mib(12)), Err(text.to_owned()));
        assert_eq!(room(Bytes::mib(10)), Ok(()));
        drop(taken);
    }
}
