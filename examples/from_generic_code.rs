//! Code for all vendors: the backend is chosen at run time, or at compile time without any dispatch.
//!
//! ```text
//! cargo run --example from_generic_code
//! ```

use gpu_vmm::host::HostBackend;
use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, DeviceVec, Result};

/// Running totals in memory of any backend. A library that takes a backend looks like this: it needs no feature and no `cfg`
/// for a vendor.
struct Totals<B: Backend> {
    totals: DeviceVec<u64, B>,
}

impl<B: Backend> Totals<B> {
    fn new(backend: &B, device: DeviceId) -> Result<Self> {
        Ok(Self { totals: DeviceVec::new(backend, device)? })
    }

    fn add(&mut self, value: u64) -> Result<()> {
        let last = match self.totals.len() {
            0 => 0,
            length => self.totals.get(length - 1)?,
        };
        self.totals.push(last + value)
    }
}

fn use_it<B: Backend>(backend: &B) -> Result<()> {
    let mut totals = Totals::new(backend, DeviceId(0))?;
    for value in 1..=10 {
        totals.add(value)?;
    }
    let memory: Bytes = totals.totals.region().mapped();
    println!("on {}: {:?} in {memory}", backend.vendor(), totals.totals.to_vec()?);
    assert_eq!(totals.totals.get(9)?, 55);
    Ok(())
}

fn main() -> Result<()> {
    // The best backend of this machine: an enum over the vendors that are built in, with one branch per call.
    use_it(&AnyBackend::open_best()?)?;
    // One vendor, known to the compiler. `gpu_vmm::cuda::CudaBackend` and `gpu_vmm::hip::HipBackend` work the same way.
    use_it(&HostBackend::open()?)
}

#[test]
fn runs() -> Result<()> {
    main()
}
