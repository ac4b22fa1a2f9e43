//! One piece of memory at several addresses: a ring buffer that never has to be cut at its end.
//!
//! The same memory is mapped twice, one mapping behind the other. What runs over the end of the first is at the
//! beginning of the memory, and still follows on in addresses: a copy or a kernel sees one piece.
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

    // Up to five bytes before the end, then over it.
    let filler = vec![b'.'; ring.capacity().0 as usize - 5];
    ring.push(&filler)?;
    ring.pop(filler.len())?;
    ring.push(b"hello, ring")?;

    // One read, though the memory ends behind "hello".
    let text = ring.pop(11)?;
    println!("read in one piece: {:?}", String::from_utf8_lossy(&text));
    assert_eq!(text, b"hello, ring");

    // The same bytes from the other address: the rest of the text is at the very beginning.
    let mut start = [0; 6];
    ring.region.read(Bytes(0), &mut start)?;
    println!("at offset 0: {:?}", String::from_utf8_lossy(&start));
    assert_eq!(&start, b", ring");
    Ok(())
}

/// A queue of bytes in a device's memory. For the sake of brevity, it is the caller who sees to it that it does not
/// run over.
struct Ring<B: Backend> {
    region: Region<B>,
    /// How many bytes have gone out and come in since the beginning.
    read: u64,
    written: u64,
}

impl<B: Backend> Ring<B> {
    fn new(backend: &B, device: DeviceId, capacity: Bytes) -> Result<Self> {
        // The memory by itself has no address. Its size is rounded up to the granularity.
        let memory = PhysicalMemory::create(backend, capacity, Properties::on(device))?;
        let size = memory.size();
        let mut region = Region::builder(backend).on(device).reserve(size + size).build()?;
        region.map(Bytes(0), &memory)?;
        region.map(size, &memory)?;
        // A new mapping can be used by nobody until that is said.
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
