//! Queues: rings of packets that HIP writes, each with a thread that executes them in order.
//!
//! Rules: `hsa_queue_*` in `hsa.h`; the layout is from `amd_hsa_queue.h`. A packet is ready when the doorbell has its
//! number and its header is no longer invalid; when it is finished, its header becomes invalid again.
#![allow(unsafe_code)] // exported to C, and the ring is shared with the program
#![allow(clippy::too_many_arguments)] // as in the header

use super::packets::{Outcome, process};
use super::signal::{self, value};
use super::wait_until;
use crate::abi::{Agent, PacketKind, Queue, Status};
use crate::agent;
use crate::memory::pages::Pages;
use crate::report::thread;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue's memory, which its worker and the program share until it is destroyed.
struct Ring {
    queue: NonNull<Queue>,
    _packets: Pages,
    stop: AtomicBool,
}

// SAFETY: fields that change after the creation are atomic, and headers transfer the ownership of packets.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn queue(&self) -> &Queue {
        // SAFETY: allocated when this was created, freed when it is dropped.
        unsafe { self.queue.as_ref() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        signal::destroy(self.queue().doorbell);
        // SAFETY: it came from a box, and only this frees it.
        drop(unsafe { Box::from_raw(self.queue.as_ptr()) });
    }
}

struct Worker {
    ring: Arc<Ring>,
    thread: std::thread::JoinHandle<()>,
}

fn workers() -> MutexGuard<'static, Vec<Worker>> {
    static WORKERS: Mutex<Vec<Worker>> = Mutex::new(Vec::new());
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(agent: usize, ring: &Ring) {
    let queue = ring.queue();
    loop {
        let number = queue.read_index.load(SeqCst);
        let place = (number % u64::from(queue.size)) as usize * PacketKind::PACKET;
        // SAFETY: the place is within the ring, and aligned as its page is; headers are read and written atomically.
        let header = unsafe { &*queue.base.add(place).cast::<AtomicU16>() };
        let written = || PacketKind(header.load(Acquire) as u8) != PacketKind::INVALID;
        let go = wait_until(
            || vec![queue.doorbell],
            None,
            || {
                if ring.stop.load(SeqCst) {
                    return Some(false);
                }
                let rung = value(queue.doorbell) >= number as i64;
                (rung && number < queue.write_index.load(SeqCst) && written()).then_some(true)
            },
        );
        if !go {
            return;
        }
        // SAFETY: within the ring; the writer of the header wrote the packet before it.
        let packet = unsafe { queue.base.add(place).cast::<[u8; PacketKind::PACKET]>().read() };
        if process(agent, &packet, &ring.stop) == Outcome::Stopped {
            return;
        }
        header.store(u16::from(PacketKind::INVALID.0), Release);
        queue.read_index.fetch_add(1, SeqCst);
    }
}

fn create(agent: usize, size: u32, kind: u32) -> Result<*mut Queue, Status> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let packets =
        Pages::anonymous(size as usize * PacketKind::PACKET).map_err(|_| Status::OUT_OF_RESOURCES)?;
    let base = packets.pointer();
    for packet in 0..size as usize {
        // SAFETY: within the new pages.
        unsafe { base.add(packet * PacketKind::PACKET).write(PacketKind::INVALID.0) };
    }
    // SAFETY: integers, atomics and a pointer, for which zero is valid.
    let mut queue: Box<Queue> = unsafe { Box::new(std::mem::zeroed()) };
    queue.kind = kind;
    queue.features = 1;
    queue.base = base;
    queue.doorbell = signal::create(signal::DOORBELL, -1);
    queue.size = size;
    queue.id = NUMBERS.fetch_add(1, SeqCst);
    let queue = NonNull::from(Box::leak(queue));
    let ring = Arc::new(Ring { queue, _packets: packets, stop: AtomicBool::new(false) });
    let works = Arc::clone(&ring);
    let thread = thread("hsa-sim queue", move || work(agent, &works));
    workers().push(Worker { ring, thread });
    trace!("queue_create(agent {agent}, {size} packets)");
    Ok(queue.as_ptr())
}

hsa! {
    /// Creates a queue of a GPU.
    pub unsafe fn hsa_queue_create(
        agent: Agent,
        size: u32,
        kind: u32,
        _callback: *const c_void,
        _data: *mut c_void,
        _private_segment: u32,
        _group_segment: u32,
        out: Option<&mut MaybeUninit<*mut Queue>>,
    ) {
        let Some(agent) = agent::index(agent).filter(|agent| *agent > 0) else { return Status::INVALID_AGENT };
        let Some(out) = out.filter(|_| size.is_power_of_two()) else { return Status::INVALID_ARGUMENT };
        match create(agent, size, kind) {
            Ok(queue) => {
                out.write(queue);
                Status::SUCCESS
            }
            Err(status) => status,
        }
    }

    /// Stops a queue after the current packet, and frees it.
    pub unsafe fn hsa_queue_destroy(queue: *mut Queue) {
        let mut workers = workers();
        let Some(place) = workers.iter().position(|worker| worker.ring.queue.as_ptr() == queue) else {
            return Status::INVALID_QUEUE;
        };
        let worker = workers.remove(place);
        drop(workers);
        worker.ring.stop.store(true, SeqCst);
        worker.thread.thread().unpark();
        let _ = worker.thread.join();
        Status::SUCCESS
    }

    /// Does nothing: all compute units are used anyway.
    pub unsafe fn hsa_amd_queue_cu_set_mask(_queue: *const Queue, _count: u32, _mask: *const u32) {
        Status::SUCCESS
    }

    /// Does nothing: all queues are equal.
    pub unsafe fn hsa_amd_queue_set_priority(_queue: *const Queue, _priority: u32) {
        Status::SUCCESS
    }
}

/// Defines the functions that move or read an index of a queue.
macro_rules! indices {
    ($($(#[$meta:meta])* $name:ident($queue:ident $(, $count:ident)?) $body:block)*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// The queue was created and not destroyed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(queue: *const Queue $(, $count: u64)?) -> u64 {
            // SAFETY: the caller's guarantee.
            let $queue = unsafe { &*queue };
            $body
        }
    )* };
}

indices! {
    /// Takes the next `count` packets for writing, and returns the number of the first one.
    hsa_queue_add_write_index_screlease(queue, count) {
        queue.write_index.fetch_add(count, SeqCst)
    }
    /// Returns the number of the next packet to be written.
    hsa_queue_load_write_index_relaxed(queue) {
        queue.write_index.load(SeqCst)
    }
    /// Returns the number of the next packet to be written.
    hsa_queue_load_write_index_scacquire(queue) {
        queue.write_index.load(SeqCst)
    }
    /// Returns the number of the next packet to be processed.
    hsa_queue_load_read_index_relaxed(queue) {
        queue.read_index.load(SeqCst)
    }
    /// Returns the number of the next packet to be processed.
    hsa_queue_load_read_index_scacquire(queue) {
        queue.read_index.load(SeqCst)
    }
}
