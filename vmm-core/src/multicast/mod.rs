//! Multicast: one address for the memory of several devices. CUDA: `cuMulticast…`. HIP and the host backend have no equivalent,
//! so this is an extension next to the traits that all backends have.
//!
//! A multicast object combines memory of every device of a team. Only PTX's `multimem.…` instructions can use its address:
//! `multimem.st` writes to all devices, `multimem.red` adds to all, and `multimem.ld_reduce` reads all and returns the sum. The
//! NVSwitches execute them. They make the fastest all-reduce on NVLink.
//!
//! # The order
//!
//! The driver requires this order: add all devices, bind memory, map the object; then unmap, unbind and release. Each step is a
//! type, so no other order compiles:
//!
//! | type | what it can do |
//! |---|---|
//! | [`TeamBuilder`] | set the size, the devices of this process, and the number of devices of other processes |
//! | [`Team`] | the object exists and this process's devices are added; [export](Team::export) it, [complete](Team::complete) the team |
//! | [`Multicast`] | [bind](Multicast::bind) memory of each device, [map](Multicast::map) |
//! | [`MulticastRange`] | pass the [address](MulticastRange::address) to kernels; [unmap](MulticastRange::unmap) |
//!
//! Dropping any of them undoes all steps in the driver's order. The backend's [`DropLog`](crate::extend::DropLog) records errors.
//! Objects that the driver does not release stay until the process ends.
//!
//! ```
//! # use gpu_vmm_core as gpu_vmm;
//! use gpu_vmm::multicast::{MulticastBackend, Team};
//! use gpu_vmm::{Bytes, DeviceId, WaitFor, PhysicalMemory, Placement, Properties, Result};
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
//! Each process binds the memory of its own devices. One process [creates](TeamBuilder::create) the object, with the number of
//! devices [elsewhere](TeamBuilder::elsewhere), and exports it. The others [import](TeamBuilder::import) it with the same settings.
//! The driver's bind and map **block until the devices of all processes are added**, forever if one of them fails. So the processes
//! must exchange two messages: that each has its `Team`, before any calls [`Team::complete`], and that each has bound its memory,
//! before any maps. No process may unbind before all have stopped storing.
//!
//! # Granularity
//!
//! An object has a [granularity of its own](MulticastGranularity), which differs from the granularity of memory.
//!
//! # Requirements, and tested machines
//!
//! Multicast needs GPUs that NVSwitch connects and whose `CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED` is 1, a driver of CUDA 12.1 or
//! later, and `nvidia-fabricmanager` if the fabric is managed. The [capability](crate::Feature::Multicast) repeats the driver's
//! attribute and is never tried: objects are few and belong to the whole host, and a fault in one has put the GPUs of a shared host
//! out of service. For the same reason **this module has never run on hardware**. It was tested over a fake NVIDIA driver that
//! checks arguments and the order of calls as `cuda.h` documents them (`tests/fake-cuda`).

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
