//! Backends that wrap another backend: for tests, and for trying an application against trouble.

mod fault_inject;

pub use fault_inject::{FaultInject, FaultReservation};
