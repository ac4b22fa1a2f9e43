//! An arena: an allocation only advances the end, and a reset frees all of them at once. The arena grows in place, so every
//! address stays valid, and it returns memory that it no longer needs to the device.
//!
//! ```text
//! cargo run --release --example arena
//! ```

use gpu_vmm::{Address, AnyBackend, Backend, Bytes, DeviceId, OffsetRange, Region, Result, WaitFor};

/// The arena grows by at least this size, so that a shrink can release memory in such steps.
const STEP: Bytes = Bytes::mib(16);

struct Arena<B: Backend> {
    region: Region<B>,
    used: Bytes,
}

impl<B: Backend> Arena<B> {
    /// Creates an arena that can grow to the size of the device's memory.
    fn new(backend: &B, device: DeviceId) -> Result<Self> {
        Ok(Self { region: Region::builder(backend).on(device).build()?, used: Bytes::ZERO })
    }

    /// Allocates at a multiple of 256 bytes.
    fn alloc(&mut self, size: Bytes) -> Result<OffsetRange> {
        let offset = self.used;
        let end = offset + Bytes(size.0.next_multiple_of(256));
        if end > self.region.end() {
            self.region.grow_to(end.max(self.region.end() + STEP))?;
        }
        self.used = end;
        Ok(OffsetRange { offset, length: size })
    }

    fn address(&self, block: OffsetRange) -> Address {
        self.region.address() + block.offset
    }

    /// Frees all allocations beyond `used` bytes, and releases memory beyond `keep` bytes. Returns the size of the released memory.
    fn reset(&mut self, used: Bytes, keep: Bytes) -> Result<Bytes> {
        self.used = self.used.min(used);
        let size = self.used.max(keep).min(self.region.end());
        Ok(self.region.shrink_to(size, WaitFor::all_devices())?.removed)
    }
}

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    let mut arena = Arena::new(&backend, DeviceId(0))?;
    let weights = arena.alloc(Bytes::mib(5))?;
    arena.region.write(weights.offset, b"weights")?;
    let (address, mark) = (arena.address(weights), arena.used);
    for step in 0..3 {
        let blocks = (1..=10).map(|size| arena.alloc(Bytes::mib(size))).collect::<Result<Vec<_>>>()?;
        blocks.iter().try_for_each(|block| arena.region.fill(block.offset, block.length, step))?;
        assert_eq!(arena.address(weights), address);
        let held = arena.region.mapped();
        let removed = arena.reset(mark, Bytes::ZERO)?;
        println!("step {step}: {held} were mapped, {removed} returned to the device");
        assert!(removed > Bytes::ZERO && arena.region.mapped() == held - removed);
    }
    let mut found = [0; 7];
    arena.region.read(weights.offset, &mut found)?;
    assert_eq!(&found, b"weights");
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
