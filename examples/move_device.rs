//! A region that goes from one GPU to another and keeps its address, so that every pointer into it stays right.
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

    // Where the second device can reach the first one's memory it copies out of it. Elsewhere the bytes go through
    // page-locked memory of the host: a ring that is made ahead saves the time that pinning takes.
    let ring = StagingRing::new(&backend, 2, Bytes::mib(16))?;
    let start = Instant::now();
    let moved = region.move_to_device(SECOND, MovePath::Fastest(Some(&ring)), WaitFor::all_devices())?;
    println!("{SIZE} at {address} went from {FIRST} to {SECOND} in {:.1?}:", start.elapsed());
    println!("  {} from device to device, {} through the host", moved.by_peer, moved.through_host);

    // The pointer, the bytes and the access are as they were, but for whose they are. The first device has none.
    assert_eq!(region.address(), address);
    assert_eq!(region.count_wrong(SECOND, Bytes(0), SIZE, 7)?, 0);
    assert_eq!(region.access(Bytes(0), FIRST), Access::None);

    // It grows with the second device's memory from now on.
    region.grow_to(SIZE + SIZE)?;
    assert!(region.mappings().all(|mapping| mapping.memory.device() == SECOND));

    // And back, through the host whether it has to or not.
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
