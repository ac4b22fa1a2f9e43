//! Memory shared between processes and machines.
//!
//! Memory that leaves its process must be created [shareable](gpu_vmm_core::Properties::shareable), or for [fabric
//! handles](gpu_vmm_core::HandleTypes::FABRIC). A description travels with it. It contains what the driver does not report to
//! the importer: the vendor, the device's UUID, the size, the granularity and the properties. All data from the other process
//! is untrusted and checked before any driver call.
//!
//! | to share | use |
//! |---|---|
//! | a region that changes, with processes of this machine | [`Exporter`] and [`ImportOptions::receive`], over a [`Channel`] |
//! | one piece of memory | [`Channel::send_memory`] and [`Channel::receive_memory`] |
//! | a region or a piece of memory as plain data, over MPI or any network | [`Offered`] and [`Offer`] |
//!
//! The memory lives until the last process that holds it releases it. Channels exist on Linux, offers by fabric handles on
//! every system. Sharing does not order the accesses of the processes: a message on a channel waits for no work on a device.
//!
//! ```
//! # #[cfg(target_os = "linux")]
//! # fn example<B: gpu_vmm_core::Backend>(backend: &B, region: &gpu_vmm_core::Region<B>) -> gpu_vmm_core::Result<()> {
//! # mod gpu_vmm { pub use gpu_vmm_share as share; }
//! use gpu_vmm::share::{Exporter, ImportOptions, Channel};
//!
//! let (ours, theirs) = Channel::pair()?;
//! let mut exporter = Exporter::share(ours, region)?;
//! // In the other process:
//! let imported = ImportOptions::new().read_only().receive(backend, theirs)?;
//! assert_eq!(imported.region().end(), region.end());
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

// Without channels, no changes are published.
mod error;
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod exporter_state;
#[cfg(target_os = "linux")]
pub mod extend;
mod import;
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod importer_state;
pub mod manifest;
mod offer;
// The modules from here on need a socket.
#[cfg(target_os = "linux")]
mod exporter;
#[cfg(target_os = "linux")]
mod importer;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod message;
#[cfg(target_os = "linux")]
mod sources;
#[cfg(target_os = "linux")]
mod wire;
// Linux only: `SOCK_SEQPACKET` with descriptors, and the credentials of the peer.
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod codec;
#[cfg(target_os = "linux")]
mod credentials;
#[cfg(all(any(test, fuzzing), target_os = "linux"))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(target_os = "linux")]
mod listener;
#[cfg(target_os = "linux")]
mod pidfd;
#[cfg(target_os = "linux")]
mod socket;

#[cfg(target_os = "linux")]
pub use channel::Channel;
#[cfg(target_os = "linux")]
pub use credentials::{Allowed, Credentials};
pub use error::PeerError;
#[cfg(target_os = "linux")]
pub use exporter::{Exporter, ReleaseOutcome};
pub use import::ImportOptions;
#[cfg(target_os = "linux")]
pub use importer::{Change, Event, ImportedRegion};
#[cfg(target_os = "linux")]
pub use listener::Listener;
pub use offer::{ImportMethod, Offer, Offered};
#[cfg(windows)]
pub mod win32;

/// Compiles the example in the README.
#[cfg(all(doctest, target_os = "linux"))]
#[doc = include_str!("../README.md")]
struct Readme;
