//! GPU memory that outlives its program.
//!
//! A [`Server`] is a small process that creates memory, keeps it and lends it to programs by a Unix socket. Its regions have names,
//! such as `llama-70b/rank0/weights`, and each region has one address, at which every client maps it. A program that ends, or is
//! killed, loses its lease and nothing else: the next one opens the region and finds the contents at the same address.
//!
//! | to | use |
//! |---|---|
//! | keep memory | [`Server`], or the command `gpu-vmm serve` |
//! | connect | [`Client::connect`] |
//! | create a region and fill it | [`Client::create`], then [`Lease::commit`] |
//! | map a region to read it | [`Client::read`] |
//! | replace its contents, or some of them | [`Client::write`], [`Lease::renew`], [`Lease::commit`] |
//! | learn of new contents, and map them at the same addresses | [`Lease::next`], [`Lease::apply`] |
//! | say what lies where in a region | [`Layout`] |
//! | share a GPU among the pools of several programs | [`Client::connect_pool`], [`Quota`] |
//!
//! # Epochs
//!
//! The contents of a region change by whole epochs. A writer gets new memory for what it changes, so that readers go on with the
//! epoch that they have mapped, and commits it. The server then tells the readers, which map the new memory at the addresses of the
//! old one when they choose to: captured graphs and pointers stay valid. A writer that ends before its commit changes nothing. Old
//! memory is freed when the last reader has mapped the new one or has ended; until then it counts against the server's budget.
//!
//! # Trust
//!
//! A region belongs to the user that created it and has a [`Mode`], as a file has. Readers map the memory read-only by their own
//! driver's access rights. This prevents mistakes, not malice: a process that has a descriptor of the memory can map it to write, and
//! a descriptor cannot be taken back. Grant a user the right to read only if that user may also write. The server never hands out
//! the same memory as part of another region: memory that a region leaves is freed.
//!
//! All data from the other side is checked, by the server and by clients.
#![cfg(target_os = "linux")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod layout;
mod mode;
mod name;
mod protocol;
mod sealed;
mod server;
mod sizes;

pub use client::{
    Client, CreateOptions, Lease, LeaseEvent, Quota, QuotaOptions, RenewContents, Status, drop_region, status,
};
pub use error::ServeError;
pub use layout::Layout;
pub use mode::Mode;
pub use protocol::{ClientInfo, DeviceInfo, LeaseKind, ProgramInfo, ProgramReport, RegionInfo, ServerInfo};
pub use server::{Server, ServerOptions};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
