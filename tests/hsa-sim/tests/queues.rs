//! Queues to which several threads write packets, as HIP's streams that share one do.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // calls C functions
#![allow(clippy::unwrap_used)] // tests may panic

mod support;

use gpu_vmm_hsa_sim::abi::{PacketKind, SignalHandle, Status};
use gpu_vmm_hsa_sim::work::{queue, signal};
use support::*;

/// Threads take numbers in sequence and ring in any order: `hsa.h` lets the doorbell of such a queue be set to any value, so
/// that no packet is lost if the lower number is rung last.
#[test]
fn last_doorbell_hides_no_packet() {
    let _alone = alone();
    let queue = queue_of(gpu());
    let waits_for = |gate: SignalHandle, done: SignalHandle| {
        write_packet(queue, PacketKind::BARRIER_AND, &[(8, gate.0), (56, done.0)])
    };
    let nothing = SignalHandle(0);
    // The first packet holds the queue up until both have rung.
    let (gate, [first, second]) = (signal_of_one(), [(); 2].map(|()| signal_of_one()));
    let numbers = [waits_for(gate, first), waits_for(nothing, second)];
    ring(queue, numbers[1]);
    ring(queue, numbers[0]);
    signal::hsa_signal_store_relaxed(gate, 0);
    [first, second, gate].into_iter().for_each(wait);
    // SAFETY: created above, and idle.
    assert_eq!(unsafe { queue::hsa_queue_destroy(queue) }, Status::SUCCESS);
}
