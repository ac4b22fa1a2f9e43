//! A region moves from one GPU to another and keeps its address, so that every pointer into it stays valid.
//!
//! ```text
//! cargo run --release --example move_device
//! ```

mod two_devices;

use gpu_vmm::{Access, Backend, Bytes, MovePath, Region, Result, StagingRing, WaitFor};
use std::time::Instant;
use two_devices::{FIRST, SECOND};

const SIZE: Bytes = Bytes::mib(64);

fn main() -> Result<()> {
    let backend = two_devices::open(SIZE + SIZE)?;
    println!("on {} with {} devices", backend.vendor(), backend.devices().len());

    let mut region = Region::builder(&backend).on(FIRST).reserve(SIZE + SIZE).build()?;
    region.grow_to(SIZE)?;
    region.write_pattern(FIRST, Bytes(0), SIZE, 7)?;
    let address = region.address();

    // If the second device can access the first one's memory, it copies directly. Otherwise the bytes go through page-locked host
    // memory; creating the ring in advance saves the time of pinning.
    let ring = StagingRing::new(&backend, 2, Bytes::mib(16))?;
    let start = Instant::now();
    let moved = region.move_to_device(SECOND, MovePath::Fastest(Some(&ring)), WaitFor::all_devices())?;
    println!("{SIZE} at {address} moved from {FIRST} to {SECOND} in {:.1?}:", start.elapsed());
    println!("  {} from device to device, {} through the host", moved.by_peer, moved.through_host);

    // The address and the bytes are unchanged. The second device has the access now, and the first device has none.
    assert_eq!(region.address(), address);
    assert_eq!(region.count_wrong(SECOND, Bytes(0), SIZE, 7)?, 0);
    assert_eq!(region.access(Bytes(0), FIRST), Access::None);

    // From now on the region grows with the second device's memory.
    region.grow_to(SIZE + SIZE)?;
    assert!(region.mappings().all(|mapping| mapping.memory.device() == SECOND));

    // Back again, this time always through the host.
    region.move_to_device(FIRST, MovePath::Ring(&ring), WaitFor::all_devices())?;
    assert_eq!(region.count_wrong(FIRST, Bytes(0), SIZE, 7)?, 0);
    assert_eq!(region.address(), address);
    println!("and back to {FIRST}, through the host; the address and every byte are as before");
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
