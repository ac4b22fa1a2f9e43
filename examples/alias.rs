//! The same memory at two addresses: a ring buffer whose contents are always contiguous.
//!
//! The same memory is mapped twice, one mapping directly after the other. Data that crosses the end of the first mapping wraps to
//! the beginning of the memory, but its addresses are contiguous: a copy or a kernel needs no special case.
//!
//! ```text
//! cargo run --example alias
//! ```

use gpu_vmm::{Access, AnyBackend, Backend, Bytes, DeviceId, PhysicalMemory, Properties, Region, Result};

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}", backend.vendor());
    let mut ring = Ring::new(&backend, DeviceId(0), Bytes::mib(2))?;
    println!("a ring of {} at {}, mapped twice", ring.capacity(), ring.region.address());

    // Fill up to five bytes before the end, then write across it.
    let filler = vec![b'.'; ring.capacity().0 as usize - 5];
    ring.push(&filler)?;
    ring.pop(filler.len())?;
    ring.push(b"hello, ring")?;

    // One read, although the memory ends after "hello".
    let text = ring.pop(11)?;
    println!("one read: {:?}", String::from_utf8_lossy(&text));
    assert_eq!(text, b"hello, ring");

    // Through the first mapping, the rest of the text is at the beginning of the memory.
    let mut start = [0; 6];
    ring.region.read(Bytes(0), &mut start)?;
    println!("at offset 0: {:?}", String::from_utf8_lossy(&start));
    assert_eq!(&start, b", ring");
    Ok(())
}

/// A queue of bytes in device memory. The caller must not write more than its capacity: for brevity, it does not check.
struct Ring<B: Backend> {
    region: Region<B>,
    /// The total number of bytes read and written so far.
    read: u64,
    written: u64,
}

impl<B: Backend> Ring<B> {
    fn new(backend: &B, device: DeviceId, capacity: Bytes) -> Result<Self> {
        // Physical memory has no address. Its size is rounded up to the granularity.
        let memory = PhysicalMemory::create(backend, capacity, Properties::on(device))?;
        let size = memory.size();
        let mut region = Region::builder(backend).on(device).reserve(size + size).build()?;
        region.map(Bytes(0), &memory)?;
        region.map(size, &memory)?;
        // No device can access a new mapping before this call.
        region.set_access(Bytes(0), size + size, device, Access::ReadWrite)?;
        Ok(Self { region, read: 0, written: 0 })
    }

    fn capacity(&self) -> Bytes {
        Bytes(self.region.end().0 / 2)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.region.write(Bytes(self.written % self.capacity().0), bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn pop(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.region.read(Bytes(self.read % self.capacity().0), &mut bytes)?;
        self.read += count as u64;
        Ok(bytes)
    }
}

#[test]
fn runs() -> Result<()> {
    main()
}
