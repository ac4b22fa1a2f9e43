//! Executes packets.
//!
//! Rules: `hsa_kernel_dispatch_packet_t` and the barrier packets of `hsa.h`, `hsa_amd_barrier_value_packet_t` of
//! `hsa_ext_amd.h`. Every packet begins when the previous one has ended, as if all had the barrier bit.

use super::signal::{complete, meets, value};
use super::{now, wait_until};
use crate::abi::{PacketKind, SignalHandle, word};
use crate::kernels;
use crate::report::stop;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

/// The result of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done,
    /// The queue is being destroyed.
    Stopped,
}

/// Executes a packet: waits for its conditions, and decrements its signal.
pub(crate) fn process(agent: usize, packet: &[u8; PacketKind::PACKET], stopping: &AtomicBool) -> Outcome {
    let wait = |signals: &[SignalHandle], ready: &dyn Fn() -> bool| {
        wait_until(
            || signals.to_vec(),
            None,
            || {
                if stopping.load(SeqCst) {
                    return Some(Outcome::Stopped);
                }
                ready().then_some(Outcome::Done)
            },
        )
    };
    let waited_for: Vec<SignalHandle> = (0..5)
        .map(|place| SignalHandle(word(packet, 8 + 8 * place)))
        .filter(|signal| signal.0 != 0)
        .collect();
    let zero = |signal: &SignalHandle| value(*signal) == 0;
    let start = now();
    let outcome = match PacketKind(packet[0]) {
        PacketKind::KERNEL => {
            kernels::dispatch(agent, word(packet, 32), word(packet, 40));
            Outcome::Done
        }
        PacketKind::BARRIER_AND => wait(&waited_for, &|| waited_for.iter().all(zero)),
        PacketKind::BARRIER_OR => wait(&waited_for, &|| waited_for.is_empty() || waited_for.iter().any(zero)),
        PacketKind::VENDOR if packet[2] == PacketKind::FORMAT_BARRIER_VALUE => {
            let signal = SignalHandle(word(packet, 8));
            let (compare, mask) = (word(packet, 16) as i64, word(packet, 24) as i64);
            let how = word(packet, 32) as u32;
            wait(&[signal], &|| signal.0 == 0 || meets(value(signal) & mask, how, compare))
        }
        // Cache control and the like.
        PacketKind::VENDOR => Outcome::Done,
        other => stop(format_args!("a packet of {other:?} is not simulated")),
    };
    complete(SignalHandle(word(packet, 56)), start);
    outcome
}
