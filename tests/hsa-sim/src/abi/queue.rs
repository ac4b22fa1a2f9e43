//! The memory layout of queues and signals. HIP reads and writes them there without a call.

use super::SignalHandle;
use std::sync::atomic::{AtomicI64, AtomicU64};

/// `amd_queue_t`: `hsa_queue_t`, followed by ROCr's own fields, which HIP reads.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Queue {
    /// One producer, several, or cooperative.
    pub kind: u32,
    /// The packets that it accepts: 1, kernel dispatches.
    pub features: u32,
    /// The ring of packets.
    pub base: *mut u8,
    /// The signal whose value is the number of the last packet with work.
    pub doorbell: SignalHandle,
    /// The number of packets in the ring: a power of two.
    pub size: u32,
    /// Reserved.
    pub reserved1: u32,
    /// The queue's unique number.
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
    /// The number of the next packet to be processed.
    pub read_index: AtomicU64,
    /// Scratch memory and the remaining fields; all zero.
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
    /// When the work of the signal began, in nanoseconds.
    pub start: AtomicU64,
    /// When the work ended.
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
