//! For crates that save memory of their own in snapshots: `gpu-vmm-pool`.

pub use crate::capture::{region_record, write_segments};
