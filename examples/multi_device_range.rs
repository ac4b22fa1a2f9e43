//! One contiguous range of addresses with the memory of two devices in it, which both can use throughout.
//!
//! ```text
//! cargo run --example multi_device_range
//! ```

use gpu_vmm::host::HostConfig;
use gpu_vmm::{Access, AnyBackend, Backend, Bytes, DeviceId, Region, Result};

const FIRST: DeviceId = DeviceId(0);
const SECOND: DeviceId = DeviceId(1);

/// How much memory each device gives.
const EACH: Bytes = Bytes::mib(32);

fn main() -> Result<()> {
    let backend = two_devices()?;
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

/// The best backend, if it has two devices that can reach each other; else host memory that plays two.
fn two_devices() -> Result<AnyBackend> {
    let best = AnyBackend::open_best()?;
    if best.devices().len() >= 2 && best.can_access(FIRST, SECOND)? && best.can_access(SECOND, FIRST)? {
        return Ok(best);
    }
    println!("{} has no two devices that reach each other; host memory plays them", best.vendor());
    Ok(HostConfig::new().devices(2).memory(Bytes::mib(64)).open()?.into())
}

#[test]
fn runs() -> Result<()> {
    main()
}
