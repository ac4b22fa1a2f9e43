//! System calls that fail: each in a process of its own, in which a filter makes the kernel refuse them.

use crate::child::alone;
use crate::range::{Range, create, create_as, free};
use crate::{GRANULE, ONE};
use gpu_vmm_core::{
    Address, AddressRange, Backend, Bytes, CopyCalls, Detail, Error, Evidence, Feature, Handle, MemoryCalls,
    Operation, Properties, Region, Stream, SyncCalls,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::TestKit;
use libc::{c_long, sock_filter, sock_fprog};
use std::os::fd::AsFd;

/// Makes this system call of this thread fail with `errno` from here on. Returns false if the kernel takes no filter.
pub(crate) fn refuse(call: c_long, errno: i32) -> bool {
    filter(call, &[], errno)
}

/// Makes this system call fail if its argument of this number has one of these bits.
fn refuse_with(call: c_long, argument: u32, bits: u32, errno: i32) -> bool {
    // The arguments are 64 bits each, behind 16 bytes. The lower half is the first one on the machines that this runs on.
    let load = step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 16 + 8 * argument, 0, 0);
    filter(call, &[load, step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits, 0, 1)], errno)
}

fn step(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Makes this system call fail if the condition holds: steps of which the last skips one step if it does not.
fn filter(call: c_long, condition: &[sock_filter], errno: i32) -> bool {
    let others = condition.len() as u8 + 1;
    let mut program = vec![
        // The number of the system call is the first word of a filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, others),
    ];
    program.extend_from_slice(condition);
    program.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0));
    program.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    let filter = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls take numbers and a filter that lives until they return, and copy it.
    let told = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if !told {
        eprintln!("this kernel takes no seccomp filter: nothing tested");
    }
    told
}

fn machine() -> HostBackend {
    HostConfig::new().memory(Bytes::mib(64)).open().unwrap()
}

pub(crate) fn assert_answer(error: &Error, call: &str, name: &str) {
    let source = error.driver_error().unwrap();
    assert_eq!((source.call, source.name.as_ref()), (call, name), "{error}");
}

#[test]
fn missing_memfd_is_an_ordinary_error() {
    alone("faults::missing_memfd_is_an_ordinary_error", || {
        let host = machine();
        if !refuse(libc::SYS_memfd_create, libc::ENOSYS) {
            return;
        }
        let error = HostBackend::open().unwrap_err();
        assert_answer(&error, "memfd_create", "ENOSYS");
        let what = "the file behind physical memory";
        assert!(matches!(error.detail(), Detail::Driver { context, .. } if context == what), "{error}");
        let error = create_as(&host, GRANULE, Properties::on(ONE).shareable()).unwrap_err();
        assert_answer(&error, "memfd_create", "ENOSYS");
        assert!(matches!(error.detail(), Detail::Driver { context, .. } if context == "2 MiB on device 0"));
        assert_eq!(free(&host, ONE), Bytes::mib(64));
    });
}

#[test]
fn kernel_enomem_is_out_of_memory() {
    alone("faults::kernel_enomem_is_out_of_memory", || {
        let host = machine();
        if !refuse(libc::SYS_ftruncate, libc::ENOMEM) {
            return;
        }
        for properties in [Properties::on(ONE), Properties::on(ONE).shareable()] {
            let error = create_as(&host, GRANULE, properties).unwrap_err();
            assert_answer(&error, "ftruncate", "ENOMEM");
            let Detail::OutOfMemory { free, total, .. } = error.detail() else { panic!("{error:?}") };
            assert_eq!((*free, *total), (Bytes::mib(64), Bytes::mib(64)));
        }
    });
}

/// The limit of file sizes holds for a memfd too. Beyond it, the kernel would end the process by a signal.
#[test]
fn a_file_that_cannot_grow_takes_nothing() {
    alone("faults::a_file_that_cannot_grow_takes_nothing", || {
        let host = machine();
        let limit = rustix::process::Rlimit { current: Some(Bytes::mib(4).0), maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
        for properties in [Properties::on(ONE), Properties::on(ONE).shareable()] {
            let error = create_as(&host, Bytes::mib(6), properties).unwrap_err();
            assert_answer(&error, "ftruncate", "EFBIG");
            assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
            assert_eq!(free(&host, ONE), Bytes::mib(64));
            create_as(&host, Bytes::mib(4), properties).unwrap();
        }
    });
}

/// Memory whose pages the kernel does not take back is not reused, since it would not read as zero.
#[test]
fn unreleasable_memory_stays_in_use() {
    alone("faults::unreleasable_memory_stays_in_use", || {
        let host = machine();
        let handle = create(&host, ONE, GRANULE).unwrap();
        let mut range = Range::new(&host, GRANULE);
        range.put(Bytes::ZERO, &handle);
        range.fill(ONE, Bytes::ZERO, GRANULE, 1).unwrap();
        range.unmap(Bytes::ZERO, GRANULE).unwrap();
        if !refuse(libc::SYS_fallocate, libc::EPERM) {
            return;
        }
        drop(handle);
        assert_eq!(host.drop_log().count(), 1);
        let error = host.drop_log().take_last().unwrap();
        assert_answer(&error, "fallocate", "EPERM");
        let Detail::Driver { context, .. } = error.detail() else { panic!("{error:?}") };
        assert_eq!(
            (error.operation(), &**context),
            (Operation::ReleaseMemory, "2 MiB at offset 0x0 of the store")
        );
        assert_eq!(free(&host, ONE), Bytes::mib(62));
        let next = create(&host, ONE, GRANULE).unwrap();
        range.put(Bytes::ZERO, &next);
        assert!(range.read(ONE, Bytes::ZERO, GRANULE.0 as usize).unwrap().iter().all(|byte| *byte == 0));
        range.unmap(Bytes::ZERO, GRANULE).unwrap();
    });
}

#[test]
fn refused_access_is_not_recorded() {
    alone("faults::refused_access_is_not_recorded", || {
        let host = machine();
        let handle = create(&host, ONE, GRANULE).unwrap();
        let mut range = Range::new(&host, GRANULE);
        range.map(Bytes::ZERO, &handle).unwrap();
        if !refuse(libc::SYS_mprotect, libc::EACCES) {
            return;
        }
        let error = range.grant(Bytes::ZERO, GRANULE, ONE, gpu_vmm_core::Access::ReadWrite).unwrap_err();
        assert_answer(&error, "mprotect", "EACCES");
        let part = AddressRange { base: range.at(Bytes::ZERO), size: GRANULE }.to_string();
        let Detail::Driver { context, .. } = error.detail() else { panic!("{error}") };
        assert_eq!((error.operation(), context), (Operation::SetAccess, &part));
        assert_eq!(range.access(Bytes::ZERO, ONE).unwrap(), gpu_vmm_core::Access::None);
        assert!(range.write(ONE, Bytes::ZERO, b"x").is_err());
        range.unmap(Bytes::ZERO, GRANULE).unwrap();
    });
}

#[test]
fn unreleased_addresses_are_logged() {
    alone("faults::unreleased_addresses_are_logged", || {
        let host = machine();
        let range = Range::new(&host, GRANULE);
        let kept = AddressRange { base: range.at(Bytes::ZERO), size: GRANULE }.to_string();
        let plain = host.allocate_plain(ONE, GRANULE).unwrap();
        if !refuse(libc::SYS_munmap, libc::EINVAL) {
            return;
        }
        drop(range);
        assert_eq!(host.drop_log().count(), 1);
        let error = host.drop_log().take_last().unwrap();
        assert_answer(&error, "munmap", "EINVAL");
        let Detail::Driver { context, .. } = error.detail() else { panic!("{error}") };
        assert_eq!((error.operation(), context), (Operation::FreeReservation, &kept));
        let error = Range::aligned(&host, GRANULE, Bytes::gib(1), None).err().unwrap();
        assert!(matches!(error.detail(), Detail::RollbackFailed { .. }), "{error}");
        // A plain allocation stays allocated, and can be used.
        // SAFETY: the allocation is this test's own, here and below.
        assert_answer(&unsafe { host.free_plain(ONE, plain, GRANULE) }.unwrap_err(), "munmap", "EINVAL");
        // SAFETY: as above.
        unsafe { host.fill(ONE, plain, GRANULE, 1) }.unwrap();
        assert_eq!(free(&host, ONE), Bytes::mib(62));
    });
}

/// A region of a device without virtual memory management is one plain allocation.
#[test]
fn unreleased_plain_memory_is_logged() {
    alone("faults::unreleased_plain_memory_is_logged", || {
        let host = HostConfig::new().without_virtual_memory().open().unwrap();
        let mut region = Region::builder(&host).reserve(GRANULE).build().unwrap();
        region.grow_to(GRANULE).unwrap();
        if !refuse(libc::SYS_munmap, libc::EINVAL) {
            return;
        }
        drop(region);
        assert_eq!(host.drop_log().count(), 1);
        let error = host.drop_log().take_last().unwrap();
        assert_answer(&error, "munmap", "EINVAL");
        assert_eq!(error.operation(), Operation::Free);
    });
}

#[test]
fn refused_mapping_changes_nothing() {
    alone("faults::refused_mapping_changes_nothing", || {
        let host = machine();
        let handles = [create(&host, ONE, GRANULE).unwrap(), create(&host, ONE, GRANULE).unwrap()];
        let mut range = Range::new(&host, Bytes::mib(4));
        range.put(Bytes::ZERO, &handles[0]);
        range.write(ONE, Bytes::ZERO, b"stays").unwrap();
        if !refuse(libc::SYS_mmap, libc::EAGAIN) {
            return;
        }
        let at = |offset| AddressRange { base: range.at(offset), size: GRANULE }.to_string();
        let (first, second) = (at(Bytes::ZERO), at(GRANULE));
        let refused = |error: &Error, operation, range: &str| {
            assert_answer(error, "mmap", "EAGAIN");
            let Detail::Driver { context, .. } = error.detail() else { panic!("{error}") };
            assert_eq!((error.operation(), &**context), (operation, range));
        };
        refused(&range.map(GRANULE, &handles[1]).unwrap_err(), Operation::Map, &second);
        assert!(range.access(GRANULE, ONE).is_err());
        refused(&range.unmap(Bytes::ZERO, GRANULE).unwrap_err(), Operation::Unmap, &first);
        refused(&host.allocate_plain(ONE, GRANULE).unwrap_err(), Operation::Allocate, "2 MiB");
        assert_eq!(range.read(ONE, Bytes::ZERO, 5).unwrap(), b"stays");
        assert_answer(&Range::aligned(&host, GRANULE, GRANULE, None).err().unwrap(), "mmap", "EAGAIN");
        drop(handles);
        assert_eq!(free(&host, ONE), Bytes::mib(62));
    });
}

/// A sandbox can refuse MAP_FIXED_NOREPLACE. A kernel before 4.17 ignores it and treats the address as a hint.
#[test]
fn refused_fixed_address_means_unsupported() {
    alone("faults::refused_fixed_address_means_unsupported", || {
        let host = machine();
        if !refuse_with(libc::SYS_mmap, 3, libc::MAP_FIXED_NOREPLACE as u32, libc::EINVAL) {
            return;
        }
        let all = host.capabilities(ONE).unwrap();
        let found = all.iter().find(|one| one.feature == Feature::FixedAddress).unwrap();
        assert_eq!((found.available, found.found_by), (false, Evidence::Trial));
        assert_eq!(found.note, "the kernel did not return a free address that was requested");
        // Address hints are advisory: the reservation succeeds elsewhere.
        let hint = 1 << 40;
        let range = Range::aligned(&host, GRANULE, GRANULE, Some(hint)).unwrap();
        assert_ne!(range.at(Bytes::ZERO), Address(hint));
    });
}

#[test]
fn unsealable_memory_takes_nothing() {
    alone("faults::unsealable_memory_takes_nothing", || {
        let host = machine();
        if !refuse(libc::SYS_fcntl, libc::EPERM) {
            return;
        }
        let error = create_as(&host, GRANULE, Properties::on(ONE).shareable()).unwrap_err();
        assert_answer(&error, "fcntl(F_ADD_SEALS)", "EPERM");
        let Detail::Driver { context, .. } = error.detail() else { panic!("{error}") };
        assert_eq!((error.operation(), &**context), (Operation::CreateMemory, "2 MiB on device 0"));
        assert_eq!(free(&host, ONE), Bytes::mib(64));
        create(&host, ONE, GRANULE).unwrap();
    });
}

#[test]
fn failed_duplication_error_names_the_size() {
    alone("faults::failed_duplication_error_names_the_size", || {
        let host = machine();
        let shareable = Properties::on(ONE).shareable();
        let handle = create_as(&host, GRANULE, shareable).unwrap();
        let fd = handle.export().unwrap();
        // SAFETY: the memory's size, and a device that exists.
        let import = || unsafe { host.import(fd.as_fd(), GRANULE, &shareable) }.map(drop);
        let refused = |error: &Error, operation, call, name| {
            assert_answer(error, call, name);
            let (Detail::Driver { context, .. } | Detail::OutOfDescriptors { context, .. }) = error.detail()
            else {
                panic!("{error}")
            };
            assert_eq!((error.operation(), &**context), (operation, "2 MiB"));
        };
        // Of the numbers of the calls that this backend makes, only the duplication's has this bit.
        assert_eq!(
            [libc::F_DUPFD_CLOEXEC, libc::F_ADD_SEALS, libc::F_GET_SEALS].map(|call| call & 4),
            [4, 0, 0]
        );
        if !refuse_with(libc::SYS_fcntl, 1, 4, libc::EMFILE) {
            return;
        }
        let call = "fcntl(F_DUPFD_CLOEXEC)";
        refused(&import().unwrap_err(), Operation::ImportMemory, call, "EMFILE");
        refused(&handle.export().unwrap_err(), Operation::ExportMemory, call, "EMFILE");
        refuse(libc::SYS_fstat, libc::EACCES);
        refused(&import().unwrap_err(), Operation::ImportMemory, "fstat", "EACCES");
        assert_eq!(free(&host, ONE), Bytes::mib(62));
    });
}

#[test]
fn work_without_a_thread_is_not_queued() {
    alone("faults::work_without_a_thread_is_not_queued", || {
        let host = machine();
        let handle = create(&host, ONE, GRANULE).unwrap();
        let mut range = Range::new(&host, GRANULE);
        range.put(Bytes::ZERO, &handle);
        if ![libc::SYS_clone3, libc::SYS_clone].iter().all(|call| refuse(*call, libc::EAGAIN)) {
            return;
        }
        // SAFETY: the granule is mapped until the work has been waited for.
        let started =
            unsafe { host.start_pattern_on(ONE, Stream::DEFAULT, range.at(Bytes::ZERO), GRANULE, 1, 1) };
        let error = started.unwrap_err();
        assert_answer(&error, "start a thread", "EAGAIN");
        let Detail::Driver { context, .. } = error.detail() else { panic!("{error}") };
        assert_eq!((error.operation(), &**context), (Operation::WritePattern, "for the work of streams"));
        host.synchronize(ONE).unwrap();
        assert!(range.read(ONE, Bytes::ZERO, GRANULE.0 as usize).unwrap().iter().all(|byte| *byte == 0));
        range.unmap(Bytes::ZERO, GRANULE).unwrap();
    });
}
