//! Backends that wrap another backend, for tests of gpu-vmm and of applications.

mod fault_copy_stream;
mod fault_event;
mod fault_held;
mod fault_inject;
mod fault_multicast;
mod fault_plan;
mod late_work;

pub use fault_held::{FaultHandle, FaultReservation, Live};
pub use fault_inject::FaultInject;
pub use fault_multicast::FaultMulticast;
pub use fault_plan::time_in_driver;
pub use late_work::LateWork;
