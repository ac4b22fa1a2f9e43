//! The simulated part of the HSA interface: types and numbers, written from the public headers.
#![allow(unsafe_code)] // a C list as a slice

mod packet;
mod queue;
mod status;
mod structures;

pub use packet::{PacketKind, word};
pub use queue::{Queue, Signal};
pub use status::Status;
pub use structures::{AccessDescription, Pitched, PointerInfo};

/// HSA's handles are structures with one 64-bit number, passed by value.
macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident)*) => { $(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        pub struct $name(pub u64);
    )* };
}

handles! {
    /// `hsa_agent_t`
    Agent
    /// `hsa_amd_memory_pool_t`
    Pool
    /// `hsa_isa_t`
    Isa
    /// `hsa_signal_t`
    SignalHandle
    /// `hsa_amd_vmem_alloc_handle_t`
    VmemHandle
    /// `hsa_code_object_reader_t`
    Reader
    /// `hsa_executable_t`
    Executable
    /// `hsa_executable_symbol_t`
    Symbol
    /// `hsa_loaded_code_object_t`
    LoadedCode
}

/// `hsa_access_permission_t`, whose bits are read (1) and write (2).
pub mod permission {
    /// No access.
    pub const NONE: u32 = 0;
    /// Reading.
    pub const READ: u32 = 1;
    /// Writing.
    pub const WRITE: u32 = 2;
    /// Both.
    pub const READ_WRITE: u32 = 3;
}

/// `hsa_amd_pointer_type_t`.
pub mod pointer_type {
    /// Unknown to the runtime.
    pub const UNKNOWN: u32 = 0;
    /// Memory of a pool.
    pub const HSA: u32 = 1;
    /// Locked host memory.
    pub const LOCKED: u32 = 2;
    /// Reserved addresses where nothing is mapped.
    pub const RESERVED: u32 = 5;
    /// A mapping of the virtual memory API.
    pub const VMEM: u32 = 6;
}

/// `hsa_signal_condition_t`.
pub mod condition {
    /// Equal.
    pub const EQ: u32 = 0;
    /// Not equal.
    pub const NE: u32 = 1;
    /// Less than.
    pub const LT: u32 = 2;
    /// Greater than or equal.
    pub const GTE: u32 = 3;
}

/// Returns a C list as a slice, which is empty if the list is null.
///
/// # Safety
///
/// The list is null or has `count` items that do not change while the slice is used.
pub(crate) unsafe fn list<'a, T>(items: *const T, count: usize) -> &'a [T] {
    if items.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: not null, and the caller guarantees `count` items.
    unsafe { std::slice::from_raw_parts(items, count) }
}
