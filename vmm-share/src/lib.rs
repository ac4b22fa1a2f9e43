//! Memory between processes, and between machines.
//!
//! Memory that is to leave its process is created [shareable](gpu_vmm_core::Properties::shareable), or for
//! [fabric handles](gpu_vmm_core::HandleTypes::FABRIC). With it goes what no driver tells the one who takes it in: whose driver it
//! is, which device by its UUID, the size, the granularity, the properties. All of it is checked before the driver is asked,
//! and what another process says is believed in nothing.
//!
//! | to share | with |
//! |---|---|
//! | a region that changes, with processes of this machine | [`Exporter`] and [`ImportOptions::receive`], over a [`Channel`] |
//! | one piece of memory | [`Channel::send_memory`] and [`Channel::receive_memory`] |
//! | a region or a piece as plain data, over MPI or any network | [`Offered`] and [`Offer`] |
//!
//! The memory lives until the last process that holds it has let go of it, whoever made it. Channels are there on Linux;
//! offers by fabric handles everywhere.
//!
//! ```
//! # #[cfg(target_os = "linux")]
//! # fn example<B: gpu_vmm_core::Backend>(backend: &B, region: &gpu_vmm_core::Region<B>) -> gpu_vmm_core::Result<()> {
//! use gpu_vmm_share::{Exporter, ImportOptions, Channel};
//!
//! let (ours, theirs) = Channel::pair()?;
//! let mut exporter = Exporter::share(ours, region)?;
//! // And in the other process:
//! let imported = ImportOptions::new().read_only().receive(backend, theirs)?;
//! assert_eq!(imported.region().end(), region.end());
//! # Ok(())
//! # }
//! ```

// Where there are no channels, nobody hears of changes.
mod error;
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod exporter_state;
mod import;
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod importer_state;
pub mod manifest;
mod offer;
// What comes after this needs a socket.
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
// Linux and not every Unix: a socket of packets with descriptors beside them, and the other end's credentials.
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
pub use offer::{By, Offer, Offered};
#[cfg(windows)]
pub mod win32;
