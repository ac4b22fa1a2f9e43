//! Memory that grows and keeps its address, its contents, and every pointer into it.
//!
//! ```text
//! cargo run --example grow
//! ```

use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, DeviceVec, Region, Result, WaitFor};

fn main() -> Result<()> {
    // The best there is: a GPU, or the host's memory on a machine that has none.
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);

    // A region is a range of addresses. They cost nothing, so reserve what could ever be needed. Nothing is in it yet.
    let mut region = Region::builder(&backend).reserve(Bytes::gib(1)).build()?;
    let address = region.address();
    println!("{} of addresses are reserved from {address} on", region.reserved());

    // Growth puts memory behind the memory that is there. Sizes are rounded up to the granularity.
    region.grow_to(Bytes(1))?;
    println!("one byte asked for, {} are there", region.end());
    region.write(Bytes(0), b"written before the growth")?;

    for size in [Bytes::mib(8), Bytes::mib(32)] {
        let growth = region.grow_to(size)?;
        println!(
            "grown to {}: {} more, {}, at {}",
            growth.end,
            growth.added,
            growth.how.name(),
            growth.address
        );
    }

    // The address is the same, no byte was copied, and what was written is there.
    assert_eq!(region.address(), address);
    let mut text = [0; 25];
    region.read(Bytes(0), &mut text)?;
    println!("at {address}: {:?}", String::from_utf8_lossy(&text));
    assert_eq!(&text, b"written before the growth");

    // Memory goes back from the end. A device might still be at work on it, so say how you know that it is not.
    let shrunk = region.shrink_to(Bytes::mib(8), WaitFor::all_devices())?;
    println!("shrunk to {}: {} given back", shrunk.end, shrunk.removed);

    // The same as a vector with a type, which grows as it is pushed to.
    let mut numbers = DeviceVec::<u32, _>::new(&backend, DeviceId(0))?;
    numbers.extend_from_slice(&[1, 2, 3])?;
    let pointer = numbers.as_device_ptr();
    numbers.resize(5_000_000, 7)?;
    assert_eq!(numbers.as_device_ptr(), pointer);
    println!("{} numbers at {}, the last is {}", numbers.len(), pointer.address(), numbers.get(4_999_999)?);
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
