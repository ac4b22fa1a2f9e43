//! gpu-vmm's multicast over the fake driver alone: no test of this project creates a multicast object with NVIDIA's own
//! driver, since that can put the GPUs of a shared host out of service.

pub(crate) mod checks;
pub(crate) mod failures;
pub(crate) mod life;
pub(crate) mod processes;

use crate::child::library;
use crate::rig::Cuda;
use gpu_vmm_core::multicast::{Multicast, MulticastBackend, Team, TeamBuilder};
use gpu_vmm_core::{Backend, Bytes, DeviceId, PhysicalMemory, Properties, Region, WaitFor};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_testkit::TestKit;

const ONE: DeviceId = DeviceId(0);
const TWO: DeviceId = DeviceId(1);
const BOTH: [DeviceId; 2] = [ONE, TWO];

/// The fake driver's granularity of memory, and of multicast.
const GRANULE: Bytes = Bytes::mib(2);
const UNIT: Bytes = Bytes::mib(4);
/// The size of the tests' objects.
const SIZE: Bytes = Bytes::mib(64);

/// Opens the backend on the fake driver. Fails if another driver was loaded.
fn open(cuda: &Cuda) -> CudaBackend {
    assert!(cuda.has("fake_cuda_violations"));
    let backend = CudaBackend::open().unwrap();
    assert_eq!(backend.driver().library, library().to_str().unwrap());
    assert!(backend.devices().iter().all(|device| device.name == "fake CUDA (no NVIDIA GPU)"));
    backend
}

fn idle() -> WaitFor<'static> {
    WaitFor::all_devices()
}

/// Starts building a team of both devices.
fn both<B: MulticastBackend>(backend: &B) -> TeamBuilder<'_, B> {
    Team::builder(backend).size(SIZE).device(ONE).device(TWO)
}

/// Creates memory of a device.
fn memory<B: Backend>(backend: &B, device: DeviceId) -> PhysicalMemory<B> {
    PhysicalMemory::create(backend, SIZE, Properties::on(device)).unwrap()
}

/// Creates an object to which both devices have bound memory, all of it.
fn bound<B: MulticastBackend>(backend: &B) -> Multicast<B> {
    let mut object = both(backend).create().unwrap().complete();
    for device in BOTH {
        object.bind(Bytes::ZERO, &memory(backend, device), Bytes::ZERO, SIZE).unwrap();
    }
    object
}

/// Returns how many words in a device's memory differ from the pattern of `seed`, as its own device reads them.
fn wrong_words<B: TestKit>(backend: &B, memory: &PhysicalMemory<B>, seed: u64) -> u64 {
    let mut region = Region::builder(backend).reserve(memory.size()).build().unwrap();
    region.map(Bytes::ZERO, memory).unwrap();
    region.set_access(Bytes::ZERO, memory.size(), memory.device(), gpu_vmm_core::Access::ReadWrite).unwrap();
    region.count_wrong(memory.device(), Bytes::ZERO, memory.size(), seed).unwrap()
}

/// Checks that nothing but contexts is left, and that no violation was counted.
#[track_caller]
fn check_nothing_is_left(cuda: &Cuda, backend: &CudaBackend) {
    cuda.check_what_is_left();
    assert_eq!(
        (cuda.violations(), backend.drop_log().count()),
        (0, 0),
        "{:?}",
        backend.drop_log().take_last()
    );
}
