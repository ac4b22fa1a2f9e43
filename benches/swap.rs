//! Two regions of 1 GiB that exchange their memory, beside the driver's own calls for it: unmap, map and set access for
//! both. Each side has two regions or ranges of its own, and works while the other waits.
//!
//! `cargo bench --bench swap` on a machine with an NVIDIA GPU; on another it says so. The driver's own time jumps, as in
//! `vmm_cycle`, so that the ratio of the lower quartiles stands beside that of the medians.
#![allow(unsafe_code)]

mod measure;
mod raw;

use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::{Address, Bytes, DeviceId, Done, Region, Result};
use measure::{in_turn, on_cuda};

const DEVICE: DeviceId = DeviceId(0);
const SIZE: Bytes = Bytes::gib(1);

fn main() {
    on_cuda(run);
}

fn run(cuda: &CudaBackend) -> Result<()> {
    println!("two ranges of {SIZE} exchange their memory; µs, median [middle half]");
    println!(
        "{:>8} {:>7} {:<14} {:>28} {:>28} {:>8} {:>8}",
        "handles", "swaps", "waits for", "driver alone", "with the library", "median", "quarter"
    );
    for (handles, swaps) in [(1, 400), (16, 400), (512, 40)] {
        // SAFETY: nothing is queued on the memory.
        measure(cuda, handles, swaps, ("nothing", unsafe { Done::promised() }))?;
    }
    measure(cuda, 1, 400, ("the device", Done::when_devices_idle()))
}

fn measure(cuda: &CudaBackend, handles: u64, swaps: usize, (waits, done): (&str, Done<'_>)) -> Result<()> {
    let piece = Bytes(SIZE.0 / handles);
    let mut regions = [region(cuda, piece)?, region(cuda, piece)?];
    let whole =
        |region: &mut Region<CudaBackend>, seed| region.write_pattern(DEVICE, Bytes::ZERO, SIZE, seed);
    whole(&mut regions[0], 1)?; // makes the device's context
    whole(&mut regions[1], 2)?;
    let rooms = [room(cuda)?, room(cuda)?];
    let mut by_hand = ByHand::new(rooms.each_ref().map(Region::address), piece, handles);
    let [one, other] = &mut regions;
    let alone = || {
        by_hand.swap();
        Ok(())
    };
    let mut count = 0;
    let with = || {
        count += 1;
        one.swap(Bytes::ZERO, other, Bytes::ZERO, SIZE, done)
    };
    let [alone, with] = in_turn(swaps, alone, with)?;
    let [median, quarter] = with.over(&alone);
    println!("{handles:>8} {swaps:>7} {waits:<14} {alone:>28} {with:>28} {median:>8.4} {quarter:>8.4}");
    by_hand.end();
    for (region, seed) in regions.iter().zip(if count % 2 == 0 { [1, 2] } else { [2, 1] }) {
        assert_eq!(region.count_wrong(DEVICE, Bytes::ZERO, SIZE, seed)?, 0, "after {count} swaps");
    }
    Ok(())
}

/// A region in pieces of this size.
fn region(cuda: &CudaBackend, piece: Bytes) -> Result<Region<CudaBackend>> {
    let mut region = room(cuda)?;
    while region.end() < SIZE {
        region.grow_to(region.end() + piece)?;
    }
    Ok(region)
}

/// Addresses.
fn room(cuda: &CudaBackend) -> Result<Region<CudaBackend>> {
    Region::builder(cuda).reserve(SIZE).build()
}

/// What has to be done without the library, and no more.
struct ByHand {
    at: [Address; 2],
    piece: Bytes,
    handles: [Vec<u64>; 2],
}

impl ByHand {
    fn new(at: [Address; 2], piece: Bytes, handles: u64) -> Self {
        let handles = at.map(|_| (0..handles).map(|_| raw::create(piece)).collect());
        let this = Self { at, piece, handles };
        this.map();
        this
    }

    fn map(&self) {
        for (at, handles) in self.at.iter().zip(&self.handles) {
            for (number, handle) in (0..).zip(handles) {
                raw::map(*at + Bytes(self.piece.0 * number), self.piece, *handle);
            }
        }
        self.at.iter().for_each(|at| raw::open(*at, SIZE));
    }

    fn unmap(&self) {
        self.at.iter().for_each(|at| raw::unmap(*at, SIZE));
    }

    fn swap(&mut self) {
        self.unmap();
        self.handles.swap(0, 1);
        self.map();
    }

    fn end(self) {
        self.unmap();
        self.handles.iter().flatten().for_each(|handle| raw::release(*handle));
    }
}
