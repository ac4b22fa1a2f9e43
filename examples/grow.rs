//! Memory that grows and keeps its address, its contents and every pointer into it.
//!
//! ```text
//! cargo run --example grow
//! ```

use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, DeviceVec, Region, Result, WaitFor};

fn main() -> Result<()> {
    // The best backend: a GPU, or host memory on a machine without one.
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);

    // A region is a range of addresses, which take no memory: reserve the largest size that it could ever need. It is empty yet.
    let mut region = Region::builder(&backend).reserve(Bytes::gib(1)).build()?;
    let address = region.address();
    println!("{} of addresses are reserved at {address}", region.reserved());

    // Growth maps memory after the existing memory. Sizes are rounded up to the granularity.
    region.grow_to(Bytes(1))?;
    println!("requested one byte, got {}", region.end());
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

    // The address is the same, no byte was copied, and the contents are unchanged.
    assert_eq!(region.address(), address);
    let mut text = [0; 25];
    region.read(Bytes(0), &mut text)?;
    println!("at {address}: {:?}", String::from_utf8_lossy(&text));
    assert_eq!(&text, b"written before the growth");

    // Shrinking releases memory from the end. A device might still use it, so the caller states what to wait for.
    let shrunk = region.shrink_to(Bytes::mib(8), WaitFor::all_devices())?;
    println!("shrunk to {}: {} released", shrunk.end, shrunk.removed);

    // A typed vector on a region, which grows as elements are added.
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
