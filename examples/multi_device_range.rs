//! One contiguous range of addresses with memory of two devices. Both devices can access all of it.
//!
//! ```text
//! cargo run --example multi_device_range
//! ```

mod two_devices;

use gpu_vmm::{Access, Backend, Bytes, Region, Result};
use two_devices::{FIRST, SECOND};

/// The size of each device's memory in the range.
const EACH: Bytes = Bytes::mib(32);

fn main() -> Result<()> {
    let backend = two_devices::open(EACH + EACH)?;
    println!("on {} with {} devices", backend.vendor(), backend.devices().len());

    // Each growth grants these devices access to the new memory. Each device takes time at every growth, so by default a region
    // grants access only to its own device.
    let mut region = Region::builder(&backend)
        .reserve(EACH + EACH)
        .access(FIRST, Access::ReadWrite)
        .access(SECOND, Access::ReadWrite)
        .build()?;
    region.grow_to_on(FIRST, EACH)?;
    region.grow_to_on(SECOND, EACH + EACH)?;
    for mapping in region.mappings() {
        println!("  {} at offset {} on {}", mapping.length, mapping.offset, mapping.memory.device());
    }

    // Users of the addresses see no border: a write across it goes to both devices.
    let text = b"half of this is on one device, half on the other";
    let across = EACH - Bytes(text.len() as u64 / 2);
    region.write(across, text)?;
    let mut back = [0; 48];
    region.read(across, &mut back)?;
    println!("across the border: {:?}", String::from_utf8_lossy(&back));
    assert_eq!(&back, text);

    // Each device reads the other one's writes. (The pattern, words computed from a seed, is a tool for tests.)
    for (writer, reader) in [(FIRST, SECOND), (SECOND, FIRST)] {
        let seed = u64::from(writer.0);
        region.write_pattern(writer, Bytes(0), region.end(), seed)?;
        let wrong = region.count_wrong(reader, Bytes(0), region.end(), seed)?;
        println!("{writer} wrote {}, {reader} read it back: {wrong} words are wrong", region.end());
        assert_eq!(wrong, 0);
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
