//! Regions that give their memory back and get it again: with their contents, beside a plain copy between an allocation of
//! the device's and page-locked memory; and without them, beside the driver's own unmap, release, create, map and set
//! access.
//!
//! `cargo bench --bench suspend` on a machine with an NVIDIA GPU; on another it says so. By environment:
//!
//! | variable | default | |
//! |---|---|---|
//! | `SUSPEND_GIB` | 32, or what fits twice into the device and into the host | size of the region |
//! | `SUSPEND_RING_GIB` | 4 | the same for contents that go through a ring |
//! | `SUSPEND_RING_THREADS` | 4 | threads of the ring |
//! | `SUSPEND_DIR` | the system's temporary folder | where the file is |
//! | `SUSPEND_TURNS` | 5 | how often each is done |
#![allow(unsafe_code)]

mod measure;
mod raw;

use cudarc::driver::sys;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{Address, Backend, Bytes, DeviceId, Done, Region, Result, Ring, Stash, Workbench};
use measure::{Summary, check, in_turn, on_cuda};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);
const GIB: Bytes = Bytes::gib(1);

fn main() {
    on_cuda(run);
}

fn run(cuda: &CudaBackend) -> Result<()> {
    let size = Bytes::gib(setting("SUSPEND_GIB").unwrap_or(default_size(cuda)?));
    let turns = setting("SUSPEND_TURNS").unwrap_or(5) as usize;

    println!("contents of {size} to page-locked memory and back; GB/s, of the median");
    println!(
        "{:>8} {:<20} {:>24} {:>24} {:>10} {:>10} {:>8} {:>8}",
        "handle", "way", "plain copy, ms", "with the library, ms", "plain", "library", "median", "quarter"
    );
    pinned(cuda, size, turns)?;

    println!("without contents, {size}: suspend and resume; µs, median [middle half]");
    println!(
        "{:>8} {:>32} {:>32} {:>8} {:>8}",
        "handle", "driver alone", "with the library", "median", "quarter"
    );
    for piece in [GIB, Bytes::mib(64), Bytes::mib(2)] {
        without(cuda, size, piece, 4 * turns)?;
    }

    let size = Bytes::gib(setting("SUSPEND_RING_GIB").unwrap_or(4));
    let threads = setting("SUSPEND_RING_THREADS").unwrap_or(4) as usize;
    let ring = std::sync::Arc::new(Ring::new(cuda, threads, Ring::<CudaBackend>::CHUNK)?);
    let directory = std::env::var_os("SUSPEND_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    println!(
        "contents of {size} through a ring of {} and {threads} threads; GB/s, of the median",
        ring.size()
    );
    through(cuda, "pageable memory", &Stash::pageable(std::sync::Arc::clone(&ring)), size, turns)?;
    let file = Stash::file(&directory, ring);
    through(cuda, &format!("a file in {}", directory.display()), &file, size, turns)
}

/// A number of the environment's.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok().filter(|number| *number > 0)
}

/// As many GiB as there can be twice on the device and twice in the host, at most 32.
fn default_size(cuda: &CudaBackend) -> Result<u64> {
    let device = cuda.memory_info(DEVICE)?.free.saturating_sub(GIB);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok());
    let host = Bytes::kib(available.unwrap_or(0)).saturating_sub(Bytes::gib(8));
    Ok((device.min(host).0 / 2 / GIB.0).clamp(1, 32))
}

/// A region in pieces of this size, with a pattern.
fn region(cuda: &CudaBackend, size: Bytes, piece: Bytes) -> Result<Region<CudaBackend>> {
    let mut region = Region::builder(cuda).reserve(size).build()?;
    while region.end() < size {
        region.grow_to(region.end() + piece)?;
    }
    region.write_pattern(DEVICE, Bytes::ZERO, size, 1)?; // makes the device's context
    Ok(region)
}

/// Nothing is queued on any memory here.
fn idle() -> Done<'static> {
    // SAFETY: all that is started is waited for.
    unsafe { Done::promised() }
}

/// The times of a part of what is timed.
#[derive(Default)]
struct Clock(Vec<Duration>);

impl Clock {
    fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<()> {
        let start = Instant::now();
        work()?;
        self.0.push(start.elapsed());
        Ok(())
    }

    /// Those of the last turns: the first ones were for warming up.
    fn summary(mut self, turns: usize) -> Summary {
        Summary::of(self.0.split_off(self.0.len() - turns))
    }
}

fn gigabytes(size: Bytes, time: &Summary) -> f64 {
    size.0 as f64 / time.median.as_secs_f64() / 1e9
}

fn millis(time: &Summary) -> String {
    format!("{:.1}", time.median.as_secs_f64() * 1e3)
}

fn pinned(cuda: &CudaBackend, size: Bytes, turns: usize) -> Result<()> {
    let stash = Stash::pinned(cuda, size)?;
    let copies = Copies::new(cuda, size)?;
    // What has been freed just now is scrubbed by the driver before it can be had again: a resume that comes at once
    // waits for that.
    for (piece, asleep) in [(GIB, 0), (GIB, 500), (Bytes::mib(64), 0), (Bytes::mib(64), 500)] {
        let mut region = region(cuda, size, piece)?;
        let mut clocks = [(); 4].map(|()| Clock::default());
        let [plain_out, plain_in, out, back] = &mut clocks;
        let plain = || {
            plain_out.time(|| copies.out())?;
            plain_in.time(|| copies.back())
        };
        let with = || {
            out.time(|| region.suspend(&stash, idle()))?;
            std::thread::sleep(Duration::from_millis(asleep));
            back.time(|| region.resume())
        };
        in_turn(turns, plain, with)?;
        let [plain_out, plain_in, out, back] = clocks.map(|clock| clock.summary(turns));
        let resume =
            if asleep == 0 { "resume at once".to_owned() } else { format!("resume after {asleep} ms") };
        for (way, plain, with) in [("suspend", plain_out, out), (&*resume, plain_in, back)] {
            let speeds = [&plain, &with].map(|time| gigabytes(size, time));
            let [median, quarter] = plain.over(&with);
            println!(
                "{piece:>8} {way:<20} {:>24} {:>24} {:>10.2} {:>10.2} {median:>8.4} {quarter:>8.4}",
                millis(&plain),
                millis(&with),
                speeds[0],
                speeds[1],
            );
        }
        assert_eq!(region.count_wrong(DEVICE, Bytes::ZERO, size, 1)?, 0, "the contents are back");
    }
    copies.end(cuda)
}

/// The plain copy: an allocation of the device's, as much page-locked memory, and a stream.
struct Copies {
    context: sys::CUcontext,
    stream: sys::CUstream,
    plain: Address,
    size: Bytes,
    /// As much as one copy has: a single allocation of all of it may not be had.
    piece: Bytes,
    pinned: Vec<*mut u8>,
}

impl Copies {
    fn new(cuda: &CudaBackend, size: Bytes) -> Result<Self> {
        let plain = cuda.allocate_plain(DEVICE, size)?;
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: each pointer is good for what is written there. The primary context is not released: the benchmark ends
        // soon. It stays the thread's current one.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, DEVICE.0 as i32));
            check(sys::cuCtxPushCurrent_v2(context));
            check(sys::cuStreamCreate(&raw mut stream, 1));
        }
        let piece = size.min(GIB);
        let pin = |_| {
            let mut start = std::ptr::null_mut();
            // SAFETY: the pointer is good for one address, and a context is current.
            check(unsafe {
                sys::cuMemHostAlloc(&raw mut start, piece.0 as usize, sys::CU_MEMHOSTALLOC_PORTABLE)
            });
            // SAFETY: so many bytes are there; that they are there at all is seen to before anything is timed.
            unsafe { start.cast::<u8>().write_bytes(1, piece.0 as usize) };
            start.cast()
        };
        let pinned = (0..size.0.div_ceil(piece.0)).map(pin).collect();
        Ok(Self { context, stream, plain, size, piece, pinned })
    }

    /// Queues all copies, and waits.
    fn all(&self, copy: impl Fn(u64, *mut u8, usize) -> sys::CUresult) -> Result<()> {
        for (number, pinned) in (0..).zip(&self.pinned) {
            let offset = Bytes(self.piece.0 * number);
            let length = self.piece.min(self.size.saturating_sub(offset));
            check(copy(self.plain.0 + offset.0, *pinned, length.0 as usize));
        }
        // SAFETY: the stream is live, and its context current.
        check(unsafe { sys::cuStreamSynchronize(self.stream) });
        Ok(())
    }

    fn out(&self) -> Result<()> {
        // SAFETY: both sides have so many bytes, and are left alone until the stream has been waited for.
        self.all(|at, pinned, length| unsafe {
            sys::cuMemcpyDtoHAsync_v2(pinned.cast(), at, length, self.stream)
        })
    }

    fn back(&self) -> Result<()> {
        // SAFETY: as above.
        self.all(|at, pinned, length| unsafe {
            sys::cuMemcpyHtoDAsync_v2(at, pinned.cast(), length, self.stream)
        })
    }

    fn end(self, cuda: &CudaBackend) -> Result<()> {
        let mut popped = std::ptr::null_mut();
        // SAFETY: nothing is queued any more; each is given back once, in its context.
        unsafe {
            self.pinned.iter().for_each(|pinned| check(sys::cuMemFreeHost(pinned.cast())));
            check(sys::cuStreamDestroy_v2(self.stream));
            check(sys::cuCtxPopCurrent_v2(&raw mut popped));
            assert_eq!(popped, self.context);
            cuda.free_plain(DEVICE, self.plain, self.size)
        }
    }
}

fn without(cuda: &CudaBackend, size: Bytes, piece: Bytes, turns: usize) -> Result<()> {
    let mut region = region(cuda, size, piece)?;
    let room = Region::builder(cuda).reserve(size).build()?;
    let at = room.address();
    let mut handles = Vec::new();
    let make = |handles: &mut Vec<u64>| {
        handles.extend((0..size.0 / piece.0).map(|_| raw::create(piece)));
        for (number, handle) in (0..).zip(&*handles) {
            raw::map(at + Bytes(piece.0 * number), piece, *handle);
        }
        raw::open(at, size);
    };
    let end = |handles: &mut Vec<u64>| {
        raw::unmap(at, size);
        handles.drain(..).for_each(raw::release);
    };
    make(&mut handles);
    let alone = || {
        end(&mut handles);
        make(&mut handles);
        Ok(())
    };
    let stash = Stash::nothing();
    let with = || {
        region.suspend(&stash, idle())?;
        region.resume().map(drop)
    };
    let [alone, with] = in_turn(turns, alone, with)?;
    end(&mut handles);
    let [median, quarter] = with.over(&alone);
    println!("{piece:>8} {alone:>32} {with:>32} {median:>8.4} {quarter:>8.4}");
    Ok(())
}

/// There and back by one way, beside nothing.
fn through(
    cuda: &CudaBackend,
    way: &str,
    stash: &Stash<CudaBackend>,
    size: Bytes,
    turns: usize,
) -> Result<()> {
    let mut region = region(cuda, size, GIB)?;
    let [mut out, mut back] = [Clock::default(), Clock::default()];
    for _ in 0..=turns {
        if let Err(error) = out.time(|| region.suspend(stash, idle())) {
            println!("{way}: {error}");
            return Ok(());
        }
        back.time(|| region.resume())?;
    }
    let speeds = [out, back].map(|clock| gigabytes(size, &clock.summary(turns)));
    println!("{way}: suspend {:.2}, resume {:.2}", speeds[0], speeds[1]);
    assert_eq!(region.count_wrong(DEVICE, Bytes::ZERO, size, 1)?, 0, "the contents are back");
    Ok(())
}
