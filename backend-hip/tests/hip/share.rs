//! Memory as a file descriptor.

use crate::rig::{Rig, ZERO, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{Backend, Bytes, Detail, Feature, Handle, MemoryCalls, Properties, Reservation};
use gpu_vmm_hip::{HipHandle, HipReservation};
use gpu_vmm_testkit::TestKit;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "share::failed_import_keeps_file_position", needs: Needs::Device, run: position_stays },
    Test { name: "share::full_descriptor_table_is_system_error", needs: Needs::Device, run: full_table },
    Test { name: "share::foreign_descriptor_is_refused", needs: Needs::Device, run: something_else },
    Test { name: "share::wrong_size_error_has_both_sizes", needs: Needs::Device, run: other_size },
    Test { name: "share::a_dma_buf_is_of_one_mapping", needs: Needs::Device, run: dma_buf },
];

fn shareable(rig: &Rig) -> impl Handle + use<> {
    // SAFETY: a unit.
    unsafe { rig.backend.create(rig.unit(), &Properties::on(ZERO).shareable()) }.unwrap()
}

/// Imports a descriptor and checks that the pattern is in its memory.
fn import_has(rig: &Rig, fd: BorrowedFd<'_>, seed: u64) {
    let unit = rig.unit();
    let mut reservation = rig.reserve(unit);
    // SAFETY: the descriptor names a unit, exported here.
    unsafe {
        let handle = rig.backend.import(fd, unit, &Properties::on(ZERO).shareable()).unwrap();
        rig.counts_import();
        assert_eq!(handle.size(), unit);
        reservation.map(Bytes::ZERO, &handle).unwrap();
        reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
        assert_eq!(rig.backend.count_wrong(ZERO, reservation.range().base, unit, seed).unwrap(), 0);
        reservation.unmap(Bytes::ZERO, unit).unwrap();
    }
}

/// Creates shareable memory with a pattern, mapped in an empty reservation of a unit.
fn patterned(rig: &Rig, reservation: &mut HipReservation, seed: u64) -> HipHandle {
    let unit = rig.unit();
    // SAFETY: the handle fits the empty reservation.
    let handle = unsafe {
        let handle = rig.backend.create(unit, &Properties::on(ZERO).shareable()).unwrap();
        reservation.map(Bytes::ZERO, &handle).unwrap();
        reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
        handle
    };
    rig.writes_all(ZERO, reservation, Bytes::ZERO, unit, seed);
    handle
}

/// Exports shareable memory with a pattern.
fn exported(rig: &Rig, seed: u64) -> OwnedFd {
    let unit = rig.unit();
    let mut reservation = rig.reserve(unit);
    // SAFETY: one whole mapping, which no work uses when it is unmapped.
    unsafe {
        let handle = patterned(rig, &mut reservation, seed);
        reservation.unmap(Bytes::ZERO, unit).unwrap();
        handle.export().unwrap()
    }
}

fn something_else(rig: &Rig) {
    const HIP: &str = "hipMemImportFromShareableHandle";
    let null = File::open("/dev/null").unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    // SAFETY: a text with its zero byte; the result is a new descriptor.
    let memory =
        unsafe { File::from_raw_fd(libc::memfd_create(c"no memory of HIP's".as_ptr(), libc::MFD_CLOEXEC)) };
    memory.set_len(rig.unit().0).unwrap();
    for (fd, call) in [
        (null.as_fd(), "lseek"),
        (file.as_fd(), "lseek"),
        (socket.as_fd(), HIP),
        (pipe.as_fd(), HIP),
        (memory.as_fd(), HIP),
    ] {
        // SAFETY: the import must fail, which the test checks; nothing is mapped.
        let answer = unsafe { rig.backend.import(fd, rig.unit(), &Properties::on(ZERO).shareable()) };
        let error = answer.expect_err("the descriptor has no memory of HIP's");
        assert_eq!(error.driver_error().map(|source| source.call), Some(call), "{error}");
    }
}

fn position_stays(rig: &Rig) {
    let mut file = File::open("/proc/self/exe").unwrap();
    for position in [0, 7] {
        file.seek(SeekFrom::Start(position)).unwrap();
        // SAFETY: the import must fail; nothing is mapped.
        let answer =
            unsafe { rig.backend.import(file.as_fd(), rig.unit(), &Properties::on(ZERO).shareable()) };
        assert!(answer.is_err());
        assert_eq!(file.stream_position().unwrap(), position);
    }
}

/// Nothing is wrong with the driver: the caller must close files, or raise the limit.
fn full_table(rig: &Rig) {
    let (memory, fd) = (shareable(rig), exported(rig, 8));
    // HIP keeps the descriptors that it opens for its first import.
    import_has(rig, fd.as_fd(), 8);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the structure alone.
    let filled = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let few = libc::rlimit { rlim_cur: limit.rlim_cur.min(512), ..limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few), 0);
        let filled: Vec<OwnedFd> = std::iter::from_fn(|| fd.try_clone().ok()).collect();
        // SAFETY: the import must fail; nothing is mapped.
        let imported = rig.backend.import(fd.as_fd(), rig.unit(), &Properties::on(ZERO).shareable());
        let exported = memory.export();
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        let error = imported.expect_err("no descriptor is left");
        assert_eq!(
            error.driver_error().map(|source| (source.call, source.code)),
            Some(("dup", libc::EMFILE.into())),
            "{error}"
        );
        assert!(exported.expect_err("no descriptor is left").driver_error().is_some());
        filled
    };
    drop(filled);
    drop(memory.export().unwrap());
    import_has(rig, fd.as_fd(), 8);
}

fn other_size(rig: &Rig) {
    let fd = exported(rig, 5);
    for said in [rig.units(2), rig.units(3)] {
        // SAFETY: the size is wrong on purpose; nothing is mapped.
        let answer = unsafe { rig.backend.import(fd.as_fd(), said, &Properties::on(ZERO).shareable()) };
        let text = answer.expect_err("it is not that large").to_string();
        assert!(text.contains(&rig.unit().to_string()) && text.contains(&said.to_string()), "{text}");
    }
    let memory = rig.units(2);
    // SAFETY: two units, exported at once.
    let larger =
        unsafe { rig.backend.create(memory, &Properties::on(ZERO).shareable()) }.unwrap().export().unwrap();
    // SAFETY: as above.
    let answer = unsafe { rig.backend.import(larger.as_fd(), rig.unit(), &Properties::on(ZERO).shareable()) };
    answer.expect_err("it is larger");
    import_has(rig, fd.as_fd(), 5);
}

/// Memory that was not created as shareable has a dma-buf too. It must not leak, as it does with HIP's own function.
fn dma_buf(rig: &Rig) {
    let mut reservation = rig.reserve(rig.units(3));
    // SAFETY: the handles are adjacent in the empty reservation, and no work uses them when they are unmapped.
    unsafe {
        for (place, count) in [(0, 1), (1, 2)] {
            reservation.map(rig.units(place), &rig.create(ZERO, rig.units(count))).unwrap();
            reservation.set_access(rig.units(place), rig.units(count), &[read_write(ZERO)]).unwrap();
        }
        rig.writes_all(ZERO, &reservation, Bytes::ZERO, rig.unit(), 61);
        let all = rig.backend.capabilities(ZERO).unwrap();
        assert!(all.iter().any(|one| one.feature == Feature::DmaBuf && one.available), "{all:?}");
        let fds = [(0, 1), (1, 2)]
            .map(|(place, count)| reservation.dma_buf(ZERO, rig.units(place), rig.units(count)).unwrap());
        for (fd, size) in fds.iter().zip([rig.unit(), rig.units(2)]) {
            assert!(fd.as_raw_fd() > 2 && libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) == libc::FD_CLOEXEC);
            assert_eq!(libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END), size.0 as i64);
        }
        import_has(rig, fds[0].as_fd(), 61);
        let error = reservation.dma_buf(ZERO, Bytes::ZERO, rig.units(3)).expect_err("two mappings");
        assert!(
            matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("one mapping")),
            "{error}"
        );
        reservation.unmap(Bytes::ZERO, rig.unit()).unwrap();
        reservation.unmap(rig.unit(), rig.units(2)).unwrap();
    }
}
