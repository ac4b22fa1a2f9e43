//! The memory behind an address changes, and the address does not: two buffers swap their memory without a copy, and an address
//! in a captured graph selects one of several banks of memory.
//!
//! ```text
//! cargo run --release --example swap
//! ```

use gpu_vmm::testkit::TestKit;
use gpu_vmm::{AnyBackend, Backend, BankedRegion, Bytes, DeviceId, Region, Result, WaitFor};
use std::time::Instant;

const DEVICE: DeviceId = DeviceId(0);
const SIZE: Bytes = Bytes::mib(64);

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}", backend.vendor());
    two_buffers(&backend)?;
    several_sets(&backend)
}

/// Two regions swap their memory.
fn two_buffers<B: TestKit>(backend: &B) -> Result<()> {
    let region = |seed| -> Result<Region<B>> {
        let mut region = Region::builder(backend).on(DEVICE).reserve(SIZE).build()?;
        region.grow_to(SIZE)?;
        region.write_pattern(DEVICE, Bytes(0), SIZE, seed)?;
        Ok(region)
    };
    let (mut front, mut back) = (region(1)?, region(2)?);
    let addresses = (front.address(), back.address());

    let start = Instant::now();
    front.swap_all(&mut back, WaitFor::all_devices())?;
    let took = start.elapsed();

    assert_eq!((front.address(), back.address()), addresses);
    assert_eq!(front.count_wrong(DEVICE, Bytes(0), SIZE, 2)?, 0);
    assert_eq!(back.count_wrong(DEVICE, Bytes(0), SIZE, 1)?, 0);
    let (front, back) = addresses;
    println!("two buffers of {SIZE}, at {front} and {back}:");
    println!("  each has the other's bytes after {took:.1?}, without a copy, and the addresses are the same");
    Ok(())
}

/// One address, three banks of memory. A graph that was captured with the address uses the selected bank.
fn several_sets<B: TestKit>(backend: &B) -> Result<()> {
    let mut slots = BankedRegion::build(Region::builder(backend).on(DEVICE).reserve(SIZE))?;
    let address = slots.address();
    let sets = [slots.add_bank(SIZE)?, slots.add_bank(SIZE)?, slots.add_bank(SIZE)?];
    for (set, seed) in sets.into_iter().zip(1..) {
        slots.select(set, WaitFor::all_devices())?;
        slots.write_pattern(DEVICE, Bytes(0), SIZE, seed)?;
    }
    println!("one address, {address}, and {} banks of {SIZE} for it:", sets.len());
    // Banks that are not selected keep their bytes. A program can wait for the graph's streams instead of the whole device.
    for (set, seed) in sets.into_iter().zip(1..) {
        slots.select(set, WaitFor::all_devices())?;
        assert_eq!(slots.region().count_wrong(DEVICE, Bytes(0), SIZE, seed)?, 0);
        println!("  {set} is selected and has the bytes that were written to it");
    }
    assert_eq!(slots.address(), address);
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
