//! Multicast: one address for the memory of several devices. CUDA's `cuMulticast…`; HIP has nothing like it, and neither
//! has the host, so this is an extension beside the traits that all have.
//!
//! A multicast object is memory of every device of a team, bound side by side. Its address is for PTX's instructions
//! `multimem.…` alone: `multimem.st` writes to all of them, `multimem.red` adds to all, and `multimem.ld_reduce` reads
//! all and gives the sum. The NVSwitches do it. It is what all-reduces on NVLink are fastest by.
//!
//! # The order
//!
//! The driver wants: all devices added, then memory bound, then the object mapped; and back, unmapped, unbound, released.
//! Here each step is a type, so that there is no other order:
//!
//! | type | what can be done |
//! |---|---|
//! | [`TeamBuilder`] | say how large, which devices of this process, how many of others |
//! | [`Team`] | the object exists and this process's devices are added; [export](Team::export) it, say that it is [complete](Team::complete) |
//! | [`Multicast`] | [bind](Multicast::bind) memory of each device, [map](Multicast::map) |
//! | [`MulticastRange`] | hand the [address](MulticastRange::address) to kernels; [unmap](MulticastRange::unmap) |
//!
//! Dropping any of them goes back all the way in the driver's order. What fails there is in the backend's
//! [`DropLog`](crate::extend::DropLog), and what the driver would not let go of is left to it until the process ends.
//!
//! ```
//! use gpu_vmm_core::multicast::{MulticastBackend, Team};
//! use gpu_vmm_core::{Bytes, DeviceId, WaitFor, PhysicalMemory, Placement, Properties, Result};
//!
//! fn on_all<B: MulticastBackend>(backend: &B, devices: &[DeviceId]) -> Result<()> {
//!     let mut team = Team::builder(backend).size(Bytes::mib(64));
//!     for device in devices {
//!         team = team.device(*device);
//!     }
//!     let mut object = team.create()?.complete();
//!     for device in devices {
//!         let memory = PhysicalMemory::create(backend, object.size(), Properties::on(*device))?;
//!         object.bind(Bytes(0), &memory, Bytes(0), object.size())?;
//!     }
//!     let range = object.map(Placement::Anywhere)?;
//!     // … kernels use multimem instructions on range.address() …
//!     range.close(WaitFor::all_devices())
//! }
//! ```
//!
//! # Several processes
//!
//! Each process binds the memory of its own devices. One of them [creates](TeamBuilder::create) the object, saying how many
//! devices are [elsewhere](TeamBuilder::elsewhere), and exports it; the others [import](TeamBuilder::import) it with the same
//! settings. The driver's bind and map **block until the devices of all processes are added**, for ever if one of them could
//! not: so the processes tell each other that they have their `Team` before any calls [`Team::complete`], and that they have
//! bound before any maps. Going back, none may unbind before all have stopped storing.
//!
//! # Granularity
//!
//! An object has a [granularity of its own](MulticastGranularity), which is not that of memory.
//!
//! # What it needs, and what was seen of it
//!
//! GPUs that are joined by NVSwitch, and whose `CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED` is 1; a driver of CUDA 12.1; and
//! where the fabric is managed, `nvidia-fabricmanager`. The [capability](crate::Feature::Multicast) says what the driver
//! says and is never tried: objects are few, belong to the whole host, and a fault in them has taken the GPUs of a shared
//! host out of service. For the same reason **none of this has ever run on hardware here**. It was tested over a fake
//! NVIDIA driver that checks arguments and order as `cuda.h` has them (`tests/fake-cuda`).

mod bindings;
mod driver;
mod failed;
mod object;
mod range;
mod team;

pub use bindings::Binding;
pub use driver::{MulticastBackend, MulticastDriver, MulticastGranularity, NoMulticast};
pub use failed::Failed;
pub use object::Multicast;
pub use range::MulticastRange;
pub use team::{Team, TeamBuilder};
