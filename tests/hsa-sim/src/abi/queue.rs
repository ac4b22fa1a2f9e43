//! Queues and signals as they lie in memory, where HIP reads and writes them without calling anything.

use super::SignalHandle;
use std::sync::atomic::{AtomicI64, AtomicU64};

/// `amd_queue_t`: `hsa_queue_t`, followed by what ROCr keeps behind it and HIP looks at.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Queue {
    /// One producer, several, or cooperative.
    pub kind: u32,
    /// What packets it takes: 1, kernel dispatches.
    pub features: u32,
    /// The ring of packets.
    pub base: *mut u8,
    /// The signal that says up to which packet there is work.
    pub doorbell: SignalHandle,
    /// How many packets the ring has: a power of two.
    pub size: u32,
    /// Reserved.
    pub reserved1: u32,
    /// A number of its own.
    pub id: u64,
    /// `caps` of `amd_queue_t`.
    pub caps: u32,
    /// Reserved.
    pub reserved2: [u32; 3],
    /// The number of the next packet to be written.
    pub write_index: AtomicU64,
    /// Where group memory appears in the address space.
    pub group_aperture_hi: u32,
    /// Where private memory appears in the address space.
    pub private_aperture_hi: u32,
    /// The highest compute unit's number.
    pub max_cu_id: u32,
    /// The highest wave's number.
    pub max_wave_id: u32,
    /// Doorbell fields of earlier hardware.
    pub legacy: [u64; 6],
    /// The number of the next packet to be done.
    pub read_index: AtomicU64,
    /// Scratch memory and what follows; all zero.
    pub rest: [u64; 320],
}

/// `amd_signal_t`.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Signal {
    /// 1: a user's signal; -1: a doorbell.
    pub kind: AtomicI64,
    /// The signal's value.
    pub value: AtomicI64,
    /// Unused here, as are the events.
    pub mailbox: u64,
    /// Unused here.
    pub event_id: u32,
    /// Reserved.
    pub reserved1: u32,
    /// When the work that the signal stands for began, in nanoseconds.
    pub start: AtomicU64,
    /// When it ended.
    pub end: AtomicU64,
    /// Unused here: a doorbell's queue.
    pub queue: u64,
    /// Reserved.
    pub reserved3: [u32; 2],
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Queue, id) == 32 && offset_of!(Queue, write_index) == 56);
    assert!(offset_of!(Queue, read_index) == 128);
    assert!(size_of::<Signal>() == 64 && offset_of!(Signal, value) == 8 && offset_of!(Signal, start) == 32);
};
