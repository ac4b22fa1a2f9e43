//! The pool on host memory and on layers that delay or fail calls: what threads, streams and failures do to it.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic

mod accounts;
mod alloc_cached;
mod alloc_mapped;
mod asked;
mod asked_first;
mod calls;
mod captures;
mod chosen;
mod endurance;
mod faults;
mod fence;
mod forked;
mod found;
mod granted;
mod kinds;
mod last_freed;
mod lend;
mod locks;
mod lost;
mod mapping;
mod meanwhile;
mod moved;
mod pages;
mod peers;
#[cfg(feature = "snapshot")]
mod saved;
mod scrub;
mod shareable;
mod shortage;
mod slots;
mod suspended;
mod threads;
mod waits;
