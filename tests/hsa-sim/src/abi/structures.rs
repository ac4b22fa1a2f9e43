//! Structures that calls read and write.

use super::Agent;

/// `hsa_amd_memory_access_desc_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDescription {
    /// The agent's access: see [`permission`](super::permission).
    pub permissions: u32,
    /// The agent.
    pub agent: Agent,
}

/// `hsa_amd_pointer_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct PointerInfo {
    /// The structure's own size as the caller knows it.
    pub size: u32,
    /// See [`pointer_type`](super::pointer_type).
    pub kind: u32,
    /// The agents' address of the memory.
    pub agent_base: usize,
    /// The host's address of the memory.
    pub host_base: usize,
    /// The memory's size.
    pub bytes: usize,
    /// The pointer that the program attached to it.
    pub user_data: usize,
    /// The agent that owns the memory.
    pub owner: Agent,
    /// The flags of its pool.
    pub global_flags: u32,
    /// Whether it is registered with the driver.
    pub registered: bool,
}

/// `hsa_pitched_ptr_t`: rows of a box.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pitched {
    /// The first byte.
    pub base: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Bytes from one slice to the next.
    pub slice: usize,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<AccessDescription>() == 16 && offset_of!(AccessDescription, agent) == 8);
    assert!(size_of::<PointerInfo>() == 56 && offset_of!(PointerInfo, owner) == 40);
    assert!(size_of::<Pitched>() == 24);
};
