//! One contiguous range of addresses with the memory of two devices in it, which both can use throughout.
//!
//! ```text
//! cargo run --example multi_device_range
//! ```

mod two_devices;

use gpu_vmm::{Access, Backend, Bytes, Region, Result};
use two_devices::{FIRST, SECOND};

/// How much memory each device gives.
const EACH: Bytes = Bytes::mib(32);

fn main() -> Result<()> {
    let backend = two_devices::open(EACH + EACH)?;
    println!("on {} with {} devices", backend.vendor(), backend.devices().len());

    // Growth gives the memory that it adds to these devices. Each one that is named costs time at every step, so a
    // region gives access to its own device alone if nothing is said.
    let mut region = Region::builder(&backend)
        .reserve(EACH + EACH)
        .access(FIRST, Access::ReadWrite)
        .access(SECOND, Access::ReadWrite)
        .build()?;
    region.grow_to_on(FIRST, EACH)?;
    region.grow_to_on(SECOND, EACH + EACH)?;
    for mapping in region.mappings() {
        println!("  {} at offset {} are of {}", mapping.length, mapping.offset, mapping.memory.device());
    }

    // To whoever uses the address there is no border: a write across it lands in both devices.
    let text = b"half of this is on one device, half on the other";
    let across = EACH - Bytes(text.len() as u64 / 2);
    region.write(across, text)?;
    let mut back = [0; 48];
    region.read(across, &mut back)?;
    println!("across the border: {:?}", String::from_utf8_lossy(&back));
    assert_eq!(&back, text);

    // Each device reads what the other one wrote. (A pattern is a test's tool: word after word from a seed.)
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
