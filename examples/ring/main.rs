//! A ring of numbers between two processes: a single-producer single-consumer queue in a region that each process maps at an
//! address of its own. Both access it with atomics. When the ring is full, the producer grows the region, and the consumer
//! continues to read until it applies the growth. If the consumer dies, the producer ends with an error that reports it.
//!
//! ```text
//! cargo run --release --example ring
//! ```
#![allow(unsafe_code)] // the CPU accesses the region's memory through its address

#[cfg(test)]
mod tests;

use gpu_vmm::share::{Channel, Event, Exporter, ImportOptions, ReleaseOutcome::Released};
use gpu_vmm::{Access, AnyBackend, Backend, Bytes, DeviceId, Location, Properties, Region, Vendor, WaitFor};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::{env, error::Error, process::Command, slice, time::Duration};

const NUMBERS: u64 = 600_000;
/// The environment variable that makes this program the consumer, on the producer's backend.
const CONSUMER_ON: &str = "GPU_VMM_EXAMPLE_CONSUMER_ON";

/// Returns the count of numbers written, the count of numbers read, and the slots. The counts occupy the first 2 MiB, so that
/// growth can double the slots.
fn ring<B: Backend>(region: &Region<B>) -> (&AtomicU64, &AtomicU64, &[AtomicU64]) {
    // SAFETY: the region has host memory from its address to its end, mapped with access for the CPU. Growing or shrinking it
    // takes a mutable borrow, which ends this one. While both processes run, they access it only with atomics.
    let words = unsafe { slice::from_raw_parts(region.address().as_ptr(), region.end().0 as usize / 8) };
    (&words[0], &words[8], &words[Bytes::mib(2).0 as usize / 8..])
}

fn main() -> Result<(), Box<dyn Error>> {
    let Ok(vendor) = env::var(CONSUMER_ON) else { return produce() };
    consume(&AnyBackend::open(&*vendor)?)
}

fn produce() -> Result<(), Box<dyn Error>> {
    let best = AnyBackend::open_best()?;
    // HIP 6.4 and 7.2 have no memory that the CPU can access and processes can share. The host backend always has it.
    let backend = if best.vendor() == Vendor::Hip { AnyBackend::open("host")? } else { best };
    // CUDA has such memory on NUMA nodes of the host.
    let location = if backend.vendor() == Vendor::Host { Location::Host } else { Location::HostNode(0) };
    let builder = Region::builder(&backend).access(DeviceId::HOST, Access::ReadWrite);
    let mut region = builder.memory(Properties::on(DeviceId(0)).located(location).shareable()).build()?;
    region.grow_to(Bytes::mib(4))?;
    region.fill(Bytes(0), region.end(), 0)?;

    // The consumer is this program again, with the other end of a channel as its standard input.
    let mut program = Command::new(env::args_os().next().ok_or("no program name")?);
    let (channel, _) = Channel::spawn(program.env(CONSUMER_ON, backend.vendor().to_string()))?;
    let mut exporter = Exporter::share(channel, &region)?;
    for number in 0..NUMBERS {
        if number - ring(&region).1.load(Acquire) == ring(&region).2.len() as u64 {
            // Copies the old slots to the new ones: a reader finds each number modulo the old size and modulo the new size. So the
            // consumer can apply the growth between any two numbers. Until it has, no slot is overwritten.
            region.grow_to(region.end() * 2 - Bytes::mib(2))?;
            let (old, new) = ring(&region).2.split_at(ring(&region).2.len() / 2);
            new.iter().zip(old).for_each(|(new, old)| new.store(old.load(Relaxed), Relaxed));
            exporter.publish(&region)?;
            exporter.wait_applied(Duration::from_secs(30))?;
        }
        let (written, _, slots) = ring(&region);
        slots[number as usize % slots.len()].store(number, Relaxed);
        written.store(number + 1, Release);
    }
    assert_eq!(exporter.wait_released(Duration::from_secs(30))?, Released, "the consumer has ended early");
    println!("producer: {NUMBERS} numbers through a ring that has grown to {}", region.end());
    Ok(())
}

fn consume(backend: &AnyBackend) -> Result<(), Box<dyn Error>> {
    let import = ImportOptions::new().access(DeviceId::HOST, Access::ReadWrite).reserve(Bytes::mib(64));
    let mut shared = import.receive(backend, Channel::from_stdin()?)?;
    while ring(shared.region()).1.load(Relaxed) < NUMBERS {
        let (written, read, slots) = ring(shared.region());
        // At most 1000 numbers in a millisecond, which is slower than the producer.
        let next = read.load(Relaxed)..written.load(Acquire).min(read.load(Relaxed) + 1000);
        next.clone().for_each(|one| assert_eq!(slots[one as usize % slots.len()].load(Relaxed), one));
        read.store(next.end, Release);
        assert_ne!(shared.next(Duration::from_millis(1))?, Some(Event::Gone), "the producer is gone");
        shared.apply(WaitFor::all_devices())?;
    }
    Ok(shared.release(WaitFor::all_devices())?)
}
