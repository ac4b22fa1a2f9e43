//! For each quirk that gpu-vmm-hip handles: a case that succeeds with the workaround, and its error without.

use crate::addresses;
use crate::child::Case;
use crate::flow;
use crate::host;
use crate::rig::{Must, ONE, Rig, UNIT, ZERO, units};
use gpu_vmm_core::{Access, Bytes, PhysicalMemory, Properties, SyncCalls, WaitFor};
use gpu_vmm_hip::HipBackend;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

pub(crate) struct Row {
    pub(crate) quirk: &'static str,
    pub(crate) versions: &'static [&'static str],
    pub(crate) case: Case,
    /// The message without the workaround.
    pub(crate) without: &'static str,
}

/// The quirk; versions that have it; the case; the message without the workaround.
macro_rules! row {
    ($quirk:literal, $versions:expr, $case:expr $(, [$setting:ident = $value:literal])?, $without:literal) => {
        Row {
            quirk: $quirk,
            versions: $versions,
            case: Case {
                name: stringify!($case),
                settings: &[$((stringify!($setting), $value))?],
                run: $case,
            },
            without: $without,
        }
    };
}

const SIX: &[&str] = &["6.1", "6.2", "6.3", "6.4.1"];
const ALL: &[&str] = &["6.1", "6.2", "7.0", "7.1", "7.12", "7.14", "7.15", "7.16"];
const HOST: &[&str] = &["7.2", "7.12", "7.14", "7.15"];
const IMPORTS: &[&str] = &["7.14", "7.15", "7.16"];

pub(crate) const ROWS: &[Row] = &[
    row!("free-races", SIX, flow::rounds, "lost in HIP's tables"),
    row!("access-sums", &["7.0", "7.1", "7.2"], flow::unequal_steps, "hipErrorInvalidValue"),
    row!("copy-by-source", SIX, flow::between, "Memory access fault by GPU node-0"),
    row!("copy-by-source", &["6.3"], owner_may_not, "Memory access fault by GPU node-0"),
    row!("pinned-copies-by-first", SIX, flow::staged, "Memory access fault by GPU node-0"),
    row!("memory-stays-until-free", &["7.1", "7.2"], addresses::returned, "memory did not come back"),
    row!("import-wants-pointer", &["6.2", "6.3", "6.4.1"], flow::shared, "through the pointer"),
    row!("import-form-unknown", &["7.0"], flow::shared, "through the pointer"),
    row!("import-reads-later", &["7.14", "7.15"], flow::shared, "hipErrorInvalidValue"),
    row!("import-checks-nothing", IMPORTS, no_dma_buf, "was imported"),
    row!("import-is-not-exported", IMPORTS, import_exported, "does not export imported memory"),
    row!("export-is-kept", &["7.14"], exported_twice, "Bad file descriptor"),
    row!("export-is-kept", &["7.14"], exported_and_ended, "another descriptor was closed"),
    row!("granularity-too-small", ALL, one_byte, "maps no less than 2 MiB"),
    row!("owner-last", &["7.14", "7.15"], flow::peers, "wrong words"),
    row!("owner-last", &["7.14", "7.15"], flow::late_peer, "wrong words"),
    row!(
        "create-on-current-device",
        &["7.0", "7.1", "7.12", "7.14", "7.15"],
        flow::on_its_device,
        "free memory after"
    ),
    row!(
        "import-on-current-device",
        &["6.2", "6.4.1", "7.1", "7.15"],
        flow::shared,
        "the device that HIP reports"
    ),
    row!("import-descriptor-zero", &["7.1", "7.12", "7.15"], descriptor_zero, "hipErrorInvalidValue"),
    row!("alignment-ignored", ALL, aligned, "alignment"),
    row!(
        "map-reports-nothing",
        &["6.1", "6.2", "7.0", "7.1", "7.12"],
        no_descriptors,
        "nothing was mapped and no error reported"
    ),
    row!("unmap-one-mapping", &["6.1", "6.3"], several_unmapped, "memory did not come back"),
    row!("unmap-on-current-device", &["7.0", "7.1", "7.12"], queued, "Page not present"),
    row!("host-access-not-reported", HOST, host::access, "hipMemGetAccess"),
    row!("host-access-leaves-a-hole", HOST, host::closed_again, "nothing is at the addresses"),
    row!("host-access-faults", &["7.15", "7.16"], host::unusable, [HOST_FAULTS = "1"], "SIGBUS"),
    row!("retain-does-not-count", &["6.2", "7.0", "7.2"], flow::adopted, "is not a handle, or was released"),
    row!("retain-of-plain-crashes", &["7.12", "7.14"], flow::plain_is_not_adopted, "follows a null pointer"),
    row!("error-sticks", &["7.0", "7.1", "7.12", "7.15"], no_error_is_left, "hipGetLastError"),
];

/// Device 1 reads memory of device 0, which itself has no access: HIP 6 would have device 0 do it.
fn owner_may_not(rig: &mut Rig) {
    let mut region = rig.region(2).build().must("addresses");
    region.map(Bytes::ZERO, &rig.memory(ZERO, 1)).must("mapped");
    region.set_access(Bytes::ZERO, units(1), ONE, Access::ReadWrite).must("access");
    fails!(region.count_wrong(ONE, Bytes::ZERO, units(1), 0), Unsupported); // HIP would fault
}

/// The smallest memory can be used.
fn one_byte(rig: &mut Rig) {
    let mut region = rig.region(2).build().must("addresses");
    region.grow_to(Bytes(1)).must("growth");
    region.write(Bytes::ZERO, &[1]).must("written");
}

/// Memory of one unit that can be exported.
fn shareable(rig: &Rig) -> PhysicalMemory<HipBackend> {
    PhysicalMemory::create(&rig.backend, units(1), Properties::on(ZERO).shareable()).must("memory")
}

/// The runtime would notice only when access is set.
fn no_dma_buf(rig: &mut Rig) {
    let (pipe, _end) = std::io::pipe().unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    for fd in [pipe.as_fd(), socket.as_fd()] {
        // SAFETY: the import must fail; nothing is mapped.
        let imported =
            unsafe { PhysicalMemory::import(&rig.backend, fd, units(1), Properties::on(ZERO).shareable()) };
        let Err(error) = imported else { panic!("a descriptor of no memory was imported") };
        let call = error.driver_error().map(|source| source.call);
        assert_eq!(call, Some("fstatfs"), "{error}");
    }
}

fn import_exported(rig: &mut Rig) {
    let memory = shareable(rig);
    let fd = memory.export().must("exported");
    // SAFETY: memory of this size and device, as just exported.
    let imported = unsafe { PhysicalMemory::import(&rig.backend, fd.as_fd(), units(1), memory.properties()) };
    let again = imported.must("imported").export().must("exported again");
    let inode = |fd: OwnedFd| std::fs::File::from(fd).metadata().unwrap().ino();
    assert_eq!(inode(again), inode(fd), "the same memory");
}

fn exported_twice(rig: &mut Rig) {
    let memory = shareable(rig);
    for _ in 0..3 {
        let fd = memory.export().must("exported");
        // SAFETY: memory of this size and device, as just exported.
        let imported =
            unsafe { PhysicalMemory::import(&rig.backend, fd.as_fd(), units(1), memory.properties()) };
        drop(imported.must("imported"));
    }
}

/// The runtime closes the descriptor with the memory: no other file may have its number by then.
fn exported_and_ended(rig: &mut Rig) {
    let memory = shareable(rig);
    drop(memory.export().must("exported"));
    let others = [(); 8].map(|()| std::fs::File::open("/dev/null").unwrap());
    drop(memory);
    for other in others {
        // SAFETY: the kernel refuses a number that is not open.
        let flags = unsafe { libc::fcntl(other.as_raw_fd(), libc::F_GETFD) };
        std::mem::forget(other);
        assert_ne!(flags, -1, "another descriptor was closed");
    }
}

fn descriptor_zero(rig: &mut Rig) {
    let properties = Properties::on(ZERO).shareable();
    let memory = PhysicalMemory::create(&rig.backend, units(1), properties).must("memory");
    let fd = memory.export().must("exported");
    // SAFETY: no other code uses the child's standard input.
    let zero = unsafe {
        assert_eq!(libc::dup2(fd.as_raw_fd(), 0), 0);
        BorrowedFd::borrow_raw(0)
    };
    // SAFETY: memory of this size and device, as just exported.
    let imported = unsafe { PhysicalMemory::import(&rig.backend, zero, units(1), properties) };
    drop(imported.must("imported from descriptor 0"));
}

fn aligned(rig: &mut Rig) {
    let gib = Bytes::gib(1);
    let mut region = rig.region(4).alignment(gib).build().must("aligned addresses");
    assert!(region.address().is_aligned_to(gib));
    region.grow_to(units(2)).must("growth");
    flow::check(&mut region, ZERO, Bytes::ZERO, units(2), 1);
}

/// A map needs a descriptor for a moment.
fn no_descriptors(rig: &mut Rig) {
    let mut region = rig.region(2).build().must("addresses");
    let memory = rig.memory(ZERO, 1);
    // SAFETY: the system checks the limit, which is the number of the next free descriptor.
    let answer = unsafe {
        let next = libc::dup(0);
        libc::close(next);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let few = libc::rlimit { rlim_cur: next as libc::rlim_t, ..limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few), 0);
        let answer = region.map(Bytes::ZERO, &memory);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        answer
    };
    let Err(error) = answer else { panic!("nothing was mapped and no error reported") };
    assert!(error.to_string().contains("hipMemMap"), "{error}");
    assert_eq!(region.mapped(), Bytes::ZERO);
    region.map(Bytes::ZERO, &memory).must("and again with descriptors");
    region.set_access(Bytes::ZERO, units(1), ZERO, Access::ReadWrite).must("access");
    flow::check(&mut region, ZERO, Bytes::ZERO, units(1), 2);
    // HIP never drops its reference for the map that failed.
    rig.left.handles += 1;
    rig.left.physical += 1;
}

fn several_unmapped(rig: &mut Rig) {
    let before = rig.free(ZERO);
    let mut region = rig.region(8).build().must("addresses");
    for end in [1, 3, 6] {
        region.grow_to(units(end)).must("growth");
    }
    region.unmap(Bytes::ZERO, units(6), WaitFor::all_devices()).must("unmapped");
    assert_eq!(rig.free(ZERO), before, "memory did not come back");
}

/// Device 1 has queued work when its memory is unmapped from a thread whose device is 0: HIP waits for the null stream of the
/// current device.
fn queued(rig: &mut Rig) {
    let mut region = rig.region(2).on(ONE).build().must("addresses");
    region.grow_to(units(2)).must("growth");
    rig.hip("hipSetDevice", [1, 0, 0]);
    rig.hip("hipMemset", [region.address().0 as usize, 7, UNIT]);
    rig.hip("hipSetDevice", [0; 3]);
    // SAFETY: on these versions the unmapping itself waits for the queued work.
    let done = unsafe { WaitFor::nothing() };
    region.unmap(Bytes::ZERO, units(2), done).must("unmapped");
    rig.backend.synchronize(ONE).must("nothing is left to do");
}

fn no_error_is_left(rig: &mut Rig) {
    let free = rig.free(ZERO);
    let memory = PhysicalMemory::create(&rig.backend, free, Properties::on(ZERO)).must("all of it");
    PhysicalMemory::create(&rig.backend, units(1), Properties::on(ZERO)).expect_err("no more");
    drop(memory);
    drop(rig.memory(ZERO, 1));
    assert_eq!(rig.hip("hipGetLastError", [0; 3]), 0, "hipGetLastError reports our failure to others");
}
