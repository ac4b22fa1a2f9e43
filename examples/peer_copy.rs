//! A device gets access to another one's memory, copies from it, and loses the access again.
//!
//! ```text
//! cargo run --release --example peer_copy
//! ```

mod two_devices;

use gpu_vmm::{Access, Backend, Bytes, Detail, Error, Region, Result};
use std::time::Instant;
use two_devices::{FIRST, SECOND};

const SIZE: Bytes = Bytes::mib(256);

fn main() -> Result<()> {
    let backend = two_devices::open(SIZE + SIZE)?;
    println!("on {} with {} devices", backend.vendor(), backend.devices().len());

    // Memory of the first device, and a target on the second one.
    let mut source = Region::builder(&backend).on(FIRST).reserve(SIZE).build()?;
    let mut target = Region::builder(&backend).on(SECOND).reserve(SIZE).build()?;
    source.grow_to(SIZE)?;
    target.grow_to(SIZE)?;
    source.write_pattern(FIRST, Bytes(0), SIZE, 7)?;

    // Each region grants access to named devices; no other device has it. A grant takes nearly 10 ms for 1 GiB on an H200, so
    // grant it once, not for each copy.
    let refused = target.copy_from(Bytes(0), &source, Bytes(0), SIZE);
    assert!(matches!(refused.as_ref().map_err(Error::detail), Err(Detail::NoAccess { .. })), "{refused:?}");
    println!("before: {}", refused.err().map(|error| error.to_string()).unwrap_or_default());
    source.set_access(Bytes(0), SIZE, SECOND, Access::Read)?;

    target.copy_from(Bytes(0), &source, Bytes(0), SIZE)?; // the first copy also warms up
    let start = Instant::now();
    target.copy_from(Bytes(0), &source, Bytes(0), SIZE)?;
    let speed = SIZE.0 as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("{SECOND} copied {SIZE} from {FIRST} at {speed:.0} GB/s");
    assert_eq!(target.count_wrong(SECOND, Bytes(0), SIZE, 7)?, 0);

    // The second device's kernels can also read in place. Revoking the access waits for that device's work. The hardware stops
    // a later kernel that reads nevertheless.
    assert_eq!(source.count_wrong(SECOND, Bytes(0), SIZE, 7)?, 0);
    source.set_access(Bytes(0), SIZE, SECOND, Access::None)?;
    assert!(target.copy_from(Bytes(0), &source, Bytes(0), SIZE).is_err());
    println!("after: {} at offset 0 of {FIRST}'s memory for {SECOND}", source.access(Bytes(0), SECOND));
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
