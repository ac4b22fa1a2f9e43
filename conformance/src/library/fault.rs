//! Faults: a device accesses memory that it may not. Only the faulting process sees its end or its errors.
//!
//! Regions refuse such work before it reaches the device. So these cases call the backend directly, in a second process. CUDA
//! ends the device's context, and every later call there returns an error; HIP ends the process; the host's simulated devices
//! check first, and return an error.
#![allow(unsafe_code)] // work that must fault

use crate::case::cases;
use crate::fork_server::Child;
use crate::library::flights::{finish, start_longer};
use crate::library::sharing::{give, shareable, take};
use crate::library::tools::{has, mapped, write};
use crate::peer::Peer;
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{Access, Address, Bytes, Detail, Error, PhysicalMemory, Region, Vendor, WaitFor};
use gpu_vmm_testkit::{PATTERN_WORD, TestKit, Walked};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

cases! { "fault":
    /// A kernel that writes to read-only memory is stopped, and every later call in its process fails, or the process ends.
    writing_to_read_only with writes_to_read_only,
    /// A kernel that reads memory that its device cannot access is stopped.
    reading_without_access with reads_without_access,
    /// A kernel that reads unmapped addresses is stopped.
    reading_unmapped_addresses with reads_unmapped_addresses,
    /// A kernel that writes to an unmapped former mapping is stopped.
    writing_after_unmap with writes_after_unmap,
    /// A kernel that reads another device's memory is stopped once access has been withdrawn, although it could read it before.
    reading_a_peer_after_withdrawal with reads_a_peer_after_withdrawal,
    /// A kernel that follows a linked list to unmapped addresses is stopped.
    walking_out_of_memory with walks_out_of_memory,
    /// Memory that a process shares with a faulting process is unharmed.
    shared_memory_outlives_a_fault with faults_with_shared_memory,
    /// Work of another process on the same device continues while one process faults.
    work_of_others_goes_on with writes_to_read_only,
    /// Waiting for work in flight when its device dies returns an error, and its region can still be closed; an event that
    /// marks the work is done.
    in_flight_when_the_device_dies with dies_in_flight,
    /// Waiting for work that was queued behind the faulting work does not hang.
    queued_when_the_device_dies with dies_with_more_queued,
    /// A kernel that writes the word directly before a guarded region is stopped.
    writing_before_a_guarded_region with writes_before_a_guarded_region,
    /// A kernel that reads the word directly behind a guarded region is stopped.
    reading_behind_a_guarded_region with reads_behind_a_guarded_region,
    /// A process whose CPU reads the byte directly behind a guarded region of host memory ends.
    the_cpu_behind_a_guarded_region with touches_behind_a_guarded_region,
    /// A kernel can read memory that is read-only for its device.
    reading_read_only_works,
    /// A region refuses accesses that its device may not make, and the device stays usable.
    regions_refuse_before_the_device_does,
    /// A copy by the CPU on behalf of a device fails if the device may not read the source.
    copying_without_access,
}

const SEED: u64 = 500;

/// The report of a process that survived a fault.
#[derive(Debug, Serialize, Deserialize)]
struct Survived {
    /// The error of the faulting work, and whether it reports the loss of the device.
    error: String,
    is_lost: bool,
    /// Whether a correct call after it reports the loss too.
    after_it_lost: bool,
    /// The error of a release that failed.
    not_given_back: Option<String>,
}

/// Creates a region with one unit that contains the pattern.
fn region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    write(subject, &mut region, SEED);
    region
}

/// Returns true if the error reports the loss of the device.
fn is_lost<T>(answer: &gpu_vmm_core::Result<T>) -> bool {
    matches!(answer.as_ref().map_err(Error::detail), Err(Detail::DeviceLost { .. }))
}

/// Disables core files: a fault may end the process.
fn no_core_file() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).unwrap();
}

/// Runs faulting work in the second process, and reports its result if the process survives.
fn fault<B: TestKit>(
    subject: &Subject<B>,
    peer: &Peer,
    mut region: Region<B>,
    work: impl FnOnce(&B, &Region<B>) -> gpu_vmm_core::Result<()>,
) {
    no_core_file();
    // The setup succeeded; the fault comes next.
    peer.send(());
    peer.receive::<()>();
    let answer = work(&subject.backend, &region);
    let error = answer.as_ref().expect_err("the device was not stopped").to_string();
    let mut other = [0; 8];
    let after = subject.region(1).build().and_then(|mut healthy| {
        healthy.grow_to(subject.unit())?;
        healthy.write(Bytes(0), &[1; 8])?;
        healthy.read(Bytes(0), &mut other)
    });
    let grown = region.grow_to(subject.units(2)).map(drop);
    let closed = region.close(WaitFor::all_devices());
    let dropped = subject.backend.drop_log().take_last();
    peer.send(Survived {
        error,
        is_lost: is_lost(&answer),
        after_it_lost: is_lost(&after) || is_lost(&grown),
        not_given_back: closed.err().or(dropped).map(|error| error.to_string()),
    });
}

/// Observes a fault of a second process from this one, which has memory of its own on the device.
fn watch<B: TestKit>(subject: &Subject<B>) {
    watch_loss(subject, subject.backend.vendor() == Vendor::Cuda);
}

/// Does the same, and checks whether a surviving process has lost its device.
fn watch_loss<B: TestKit>(subject: &Subject<B>, is_lost: bool) {
    subject.needs_kernels();
    subject.needs_faults();
    let mut own = region(subject);
    see_fault(subject, subject.child(), is_lost, || {});
    assert!(has(subject, &own, SEED), "this process's memory is unharmed");
    own.grow_to(subject.units(2)).unwrap();
    write(subject, &mut own, SEED + 1);
    assert!(has(subject, &own, SEED + 1), "this process's device works");
}

/// Lets the second process fault directly after `before` runs here, and checks that the result is as documented for this
/// vendor.
fn see_fault<B: TestKit, T>(
    subject: &Subject<B>,
    mut child: Child,
    is_lost: bool,
    before: impl FnOnce() -> T,
) -> T {
    child.receive::<()>();
    let done = before();
    child.send(());
    let vendor = subject.backend.vendor();
    if vendor == Vendor::Hip && subject.backend.pattern_by() == "a kernel" {
        // The runtime's own handler ends the process.
        child.finish_by(libc::SIGABRT);
        return done;
    }
    let survived: Survived = child.receive();
    child.finish();
    assert_eq!(survived.is_lost, is_lost, "{survived:?}");
    assert_eq!(survived.after_it_lost, is_lost, "the loss of a device is for good: {survived:?}");
    assert_eq!(survived.not_given_back, None, "{survived:?}");
    done
}

fn writing_to_read_only<B: TestKit>(subject: &Subject<B>) {
    watch(subject);
}

fn writes_to_read_only<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut region = region(subject);
    region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
    fault(subject, peer, region, |backend, region| {
        // SAFETY: the device may not write there: the fault is intended, and no other memory is accessed.
        unsafe { backend.write_pattern(subject.device, region.address(), subject.unit(), SEED) }
    });
}

fn reading_without_access<B: TestKit>(subject: &Subject<B>) {
    watch(subject);
}

fn reads_without_access<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    // Memory that was never accessible, in a region whose first unit is accessible.
    let mut region = region(subject);
    region.map(subject.unit(), &subject.memory(1)).unwrap();
    fault(subject, peer, region, |backend, region| {
        let at = region.address() + subject.unit();
        // SAFETY: the device may not read there: the fault is intended.
        unsafe { backend.count_wrong(subject.device, at, subject.unit(), SEED) }.map(drop)
    });
}

fn reading_unmapped_addresses<B: TestKit>(subject: &Subject<B>) {
    watch(subject);
}

fn reads_unmapped_addresses<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    fault(subject, peer, region(subject), |backend, region| {
        let at = region.address() + subject.unit();
        // SAFETY: nothing is mapped in this reserved unit: the fault is intended.
        unsafe { backend.count_wrong(subject.device, at, subject.unit(), SEED) }.map(drop)
    });
}

fn writing_after_unmap<B: TestKit>(subject: &Subject<B>) {
    watch(subject);
}

fn writes_after_unmap<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut region = region(subject);
    let _ = region.shrink_to(Bytes(0), WaitFor::all_devices()).unwrap();
    fault(subject, peer, region, |backend, region| {
        // SAFETY: no memory is mapped there now: the fault is intended.
        unsafe { backend.write_pattern(subject.device, region.address(), subject.unit(), SEED) }
    });
}

fn walking_out_of_memory<B: TestKit>(subject: &Subject<B>) {
    watch(subject);
}

fn walks_out_of_memory<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    // A node whose successor is at an unmapped address.
    let mut region = region(subject);
    let node = [(region.address() + subject.unit()).0, 1].map(u64::to_ne_bytes);
    region.write(Bytes(0), node.as_flattened()).unwrap();
    // SAFETY: the list has one node.
    let walked = unsafe { subject.backend.walk_list(subject.device, region.address(), 1) }.unwrap();
    assert_eq!(walked, Walked { nodes: 1, sum: 1 });
    fault(subject, peer, region, |backend, region| {
        // SAFETY: there is no second node: the fault is intended.
        unsafe { backend.walk_list(subject.device, region.address(), 2) }.map(drop)
    });
}

fn reading_a_peer_after_withdrawal<B: TestKit>(subject: &Subject<B>) {
    subject.two_devices();
    watch(subject);
}

fn reads_a_peer_after_withdrawal<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (device, owner) = subject.two_devices();
    let mut region = subject.region(2).on(owner).access(device, RW).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    write(subject, &mut region, SEED);
    assert!(has(subject, &region, SEED), "the device reads and writes memory that it has access to");
    region.set_access(Bytes(0), subject.unit(), device, Access::None).unwrap();
    fault(subject, peer, region, |backend, region| {
        // SAFETY: the device may no longer read there: the fault is intended.
        unsafe { backend.count_wrong(device, region.address(), subject.unit(), SEED) }.map(drop)
    });
}

fn shared_memory_outlives_a_fault<B: TestKit>(subject: &Subject<B>) {
    subject.needs_kernels();
    subject.needs_faults();
    let memory = shareable(subject, 1);
    let mut own = mapped(subject, &[&memory]);
    write(subject, &mut own, SEED);
    let mut child = subject.child();
    give(&mut child, &memory);
    see_fault(subject, child, subject.backend.vendor() == Vendor::Cuda, || {});
    assert!(has(subject, &own, SEED + 1), "the other process's writes before its fault are visible");
    write(subject, &mut own, SEED);
    assert!(has(subject, &own, SEED));
}

fn faults_with_shared_memory<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let memory: PhysicalMemory<B> = take(subject, peer);
    let mut region = subject.region(2).build().unwrap();
    region.map(Bytes(0), &memory).unwrap();
    region.set_access(Bytes(0), subject.unit(), subject.device, Access::ReadWrite).unwrap();
    write(subject, &mut region, SEED + 1);
    region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
    fault(subject, peer, region, |backend, region| {
        // SAFETY: the device may not write there: the fault is intended.
        unsafe { backend.write_pattern(subject.device, region.address(), subject.unit(), SEED + 2) }
    });
}

fn work_of_others_goes_on<B: TestKit>(subject: &Subject<B>) {
    let own = region(subject);
    let work = || start_longer(subject, &own, Bytes(0), SEED + 1, 3);
    // The time is measured before the other process uses a part of the device.
    finish(subject, &*start_longer(subject, &own, Bytes(0), SEED, 1));
    let flight = see_fault(subject, subject.child(), subject.backend.vendor() == Vendor::Cuda, work);
    finish(subject, &*flight);
    assert!(has(subject, &own, SEED + 1), "the work was done to its end");
}

fn in_flight_when_the_device_dies<B: TestKit>(subject: &Subject<B>) {
    // For work that continues after its call has returned, the host's simulated devices can report a fault only as the loss of
    // the device.
    watch_loss(subject, subject.backend.vendor() != Vendor::Hip);
}

fn dies_in_flight<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let region = region(subject);
    let mut event = subject.backend.event(subject.device).unwrap();
    fault(subject, peer, region, |backend, region| {
        let at = region.address() + subject.unit();
        // SAFETY: nothing is mapped in this reserved unit: the fault is intended.
        let flight = unsafe { backend.start_pattern(subject.device, at, subject.unit(), SEED, 4) }?;
        let marked = event.record(flight.stream());
        assert!(marked.is_ok() || is_lost(&marked), "{marked:?}");
        let waited = backend.synchronize_stream(subject.device, flight.stream());
        assert_eq!(is_lost(&waited), is_lost(&flight.is_done()), "waiting and querying agree");
        assert!(event.is_done().unwrap(), "a lost device does no more work");
        event.wait().unwrap();
        waited
    });
}

fn queued_when_the_device_dies<B: TestKit>(subject: &Subject<B>) {
    watch_loss(subject, subject.backend.vendor() != Vendor::Hip);
}

fn dies_with_more_queued<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let region = region(subject);
    fault(subject, peer, region, |backend, region| {
        let (unit, device) = (subject.unit(), subject.device);
        let at = region.address();
        // SAFETY: the unit is mapped, and this work is long enough that the rest is queued behind it.
        let flight = unsafe { backend.start_pattern(device, at, unit, SEED, 256) }?;
        for at in [at + unit, at] {
            // SAFETY: nothing is mapped in the second unit: the fault is intended.
            let queued = unsafe { backend.start_pattern_on(device, flight.stream(), at, unit, SEED, 1) };
            assert!(queued.is_ok() || is_lost(&queued), "{queued:?}");
        }
        backend.synchronize_stream(device, flight.stream())
    });
}

/// Creates a guarded region that is mapped to both ends.
fn guarded<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(1).guarded().build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    write(subject, &mut region, SEED);
    assert!(has(subject, &region, SEED));
    region
}

fn writing_before_a_guarded_region<B: TestKit>(subject: &Subject<B>) {
    watch(subject);
}

fn writes_before_a_guarded_region<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    fault(subject, peer, guarded(subject), |backend, region| {
        let before = Address(region.address().0 - PATTERN_WORD.0);
        // SAFETY: nothing is mapped in a guard: the fault is intended.
        unsafe { backend.write_pattern(subject.device, before, PATTERN_WORD, SEED) }
    });
}

fn reading_behind_a_guarded_region<B: TestKit>(subject: &Subject<B>) {
    watch(subject);
}

fn reads_behind_a_guarded_region<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    fault(subject, peer, guarded(subject), |backend, region| {
        // SAFETY: nothing is mapped in a guard: the fault is intended.
        unsafe { backend.count_wrong(subject.device, region.range().end(), PATTERN_WORD, SEED) }.map(drop)
    });
}

fn the_cpu_behind_a_guarded_region<B: TestKit>(subject: &Subject<B>) {
    if subject.backend.vendor() != Vendor::Host {
        skip("this case covers host memory only");
    }
    let mut child = subject.child();
    child.receive::<()>();
    child.send(());
    child.finish_by(libc::SIGSEGV);
}

fn touches_behind_a_guarded_region<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let region = guarded(subject);
    let last = (region.range().end().0 - 1) as usize;
    no_core_file();
    // SAFETY: the last byte of the region is mapped host memory.
    unsafe { std::ptr::with_exposed_provenance::<u8>(last).read_volatile() };
    // The setup succeeded; the fault comes next.
    peer.send(());
    peer.receive::<()>();
    // SAFETY: nothing is mapped there: the fault is intended.
    unsafe { std::ptr::with_exposed_provenance::<u8>(last + 1).read_volatile() };
}

fn reading_read_only_works<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject);
    region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
    assert!(has(subject, &region, SEED) && !has(subject, &region, SEED + 1));
    // SAFETY: the device may read the whole unit.
    let wrong =
        unsafe { subject.backend.count_wrong(subject.device, region.address(), subject.unit(), SEED) };
    assert_eq!(wrong.unwrap(), 0, "the backend agrees when called directly");
}

fn regions_refuse_before_the_device_does<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    write(subject, &mut region, SEED);
    region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
    region.map(subject.unit(), &subject.memory(1)).unwrap();
    let (device, unit) = (subject.device, subject.unit());
    let no_access = |answer: gpu_vmm_core::Result<()>| {
        let error = answer.unwrap_err();
        assert!(matches!(error.detail(), Detail::NoAccess { .. }), "{error}");
    };
    no_access(region.write_pattern(device, Bytes(0), unit, SEED));
    no_access(region.write(Bytes(0), &[0; 8]));
    no_access(region.fill(Bytes(0), unit, 0));
    no_access(region.count_wrong(device, unit, unit, SEED).map(drop));
    no_access(region.read(unit, &mut [0; 8]));
    // Half of the range is readable.
    no_access(region.count_wrong(device, Bytes(0), unit + unit, SEED).map(drop));
    let not_mapped = |answer: gpu_vmm_core::Result<()>| {
        let error = answer.unwrap_err();
        assert!(matches!(error.detail(), Detail::NotMapped { .. }), "{error}");
    };
    not_mapped(region.count_wrong(device, unit + unit, unit, SEED).map(drop));
    not_mapped(region.write_pattern(device, unit + unit, unit, SEED));
    not_mapped(region.fill(unit + unit, unit, 0));
    assert_eq!(region.count_wrong(device, Bytes(0), unit, SEED).unwrap(), 0, "the device still works");
}

fn copying_without_access<B: TestKit>(subject: &Subject<B>) {
    if subject.backend.vendor() != Vendor::Host {
        skip("a device that makes the copy itself is lost, or its process ends");
    }
    subject.needs_faults();
    let mut region = region(subject);
    region.map(subject.unit(), &subject.memory(1)).unwrap();
    let (at, unit) = (region.address(), subject.unit());
    // SAFETY: both units are mapped; the device may not read the second, and the backend must refuse the copy.
    unsafe { subject.backend.copy(subject.device, at, at + unit, unit) }.unwrap_err();
    assert_eq!(region.count_wrong(subject.device, Bytes(0), unit, SEED).unwrap(), 0, "bytes were copied");
}
