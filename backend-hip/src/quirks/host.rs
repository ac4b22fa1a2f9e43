//! The entries about the host: its access to a device's memory, its own memory, and copies to and from that.

use super::versions::{UNFIXED, V6_1, V7_0, V7_2, V7_15, V7_16, quirk};
use gpu_vmm_core::Quirk;

pub(super) const ACCESS_APPEARS: Quirk = quirk(
    "host-access-appears",
    (V6_1, V7_2),
    "hipMemSetAccess for the host is refused, or before 7.0 sets the access of device 0",
    "access for the host is refused as Unsupported",
    "ROCm/rocm-systems PR #1606, #1620; simulated, 6.4.3",
);

pub(super) const ON_IMPORTS: Quirk = quirk(
    "host-access-on-imports",
    (V7_15, V7_16),
    "giving the host access to imported memory fails",
    "none: the error is told",
    "ROCm/rocm-systems #11185, PR #10879",
);

pub(crate) const HOST_ACCESS_UNTOLD: Quirk = quirk(
    "host-access-untold",
    (V7_2, UNFIXED),
    "hipMemGetAccess answers hipErrorInvalidValue for the host, whatever it may do",
    "what is set for the host is not asked back; whoever asks gets Unsupported",
    "simulated, 7.2.4",
);

pub(crate) const HOST_ACCESS_LEAVES_A_HOLE: Quirk = quirk(
    "host-access-leaves-a-hole",
    (V7_2, UNFIXED),
    "after hipMemUnmap of memory that the host had access to, nothing is at its addresses: the next mmap of the \
     process may get them, and hipMemAddressFree takes them away from it again",
    "the addresses are closed as soon as hipMemUnmap returns; only another thread's mmap can come between",
    "read in rocr-runtime of October 2024 and August 2025 (MappedHandleAllowedAgent::RemoveAccess)",
);

pub(super) const MEMORY_IS_THE_DEVICES: Quirk = quirk(
    "host-memory-is-the-devices",
    (V6_1, V7_15),
    "hipMemCreate refuses memory of the host, or from 7.0 on answers success and takes the current device's memory for it",
    "memory of the host is refused as Unsupported; from 7.15 on a granule is tried, and the device's free memory compared",
    "simulated, both: hipMemGetInfo",
);

pub(super) const PINNED_BY_FIRST: Quirk = quirk(
    "pinned-copies-by-first",
    (V6_1, V7_0),
    "a copy between mapped memory and page-locked memory of the host is done by device 0, whosever the memory is and on \
     whatever stream; without access it faults and ends the process",
    "another device's memory is copied through memory that is not locked; on a copy stream too, whose copies are then done when \
     they are queued",
    "simulated, 6.4.3; 7.2.4 takes the stream's device",
);
