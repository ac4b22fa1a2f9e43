//! The backend that the guide writes (`docs/guide/porting.md`), and its test kit: all that the conformance suite needs.

mod kit;
mod tiny;

pub use tiny::{Tiny, try_it};
