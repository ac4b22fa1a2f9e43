//! A region as dma-bufs, for network cards.

use crate::case::cases;
use crate::library::tools::{capability, refused};
use crate::subject::{Subject, skip};
use gpu_vmm_core::{Bytes, Detail, Error, Feature, Region};
use gpu_vmm_testkit::TestKit;
use rustix::fs::{SeekFrom, seek};
use rustix::io::{FdFlags, fcntl_getfd};

cases! { "share":
    /// Dma-bufs cover a whole region of several handles in order and without a gap, as one dma-buf or one for each mapping;
    /// otherwise the error has the capability's reason.
    a_region_as_dma_bufs,
    /// A dma-buf range must consist of whole mappings without a hole.
    dma_bufs_of_wrong_parts,
    /// Dma-bufs cover a region of two reservations, and no dma-buf crosses the border between them.
    dma_bufs_across_a_border,
    /// Dma-bufs cover a guarded region, at the offsets that the region reports.
    dma_bufs_behind_a_guard,
    /// No dma-buf covers memory of two devices.
    dma_bufs_of_two_devices,
}

/// A region with three mappings of one, two and three granules.
fn filled<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.space(8).build().unwrap();
    for granules in [1, 3, 6] {
        region.grow_to(subject.granules(granules)).unwrap();
    }
    region
}

/// The ranges of a region's dma-bufs. Skips the case if the device does not support dma-bufs.
fn parts<B: TestKit>(
    subject: &Subject<B>,
    region: &Region<B>,
    offset: Bytes,
    length: Bytes,
) -> Vec<(Bytes, Bytes)> {
    let capability = capability(subject, Feature::DmaBuf);
    let found = match region.dma_bufs(offset, length).map_err(Error::into_detail) {
        Ok(found) => found,
        Err(Detail::Unsupported { reason, .. }) => {
            assert!(!capability.available && !reason.is_empty(), "{reason}, and {capability:?}");
            skip(reason)
        }
        Err(error) => panic!("{error}"),
    };
    assert!(capability.available, "the export works, and {capability:?}");
    let mut at = offset;
    for one in &found {
        assert_eq!(one.offset, at);
        assert_eq!(fcntl_getfd(&one.fd).unwrap(), FdFlags::CLOEXEC);
        assert_eq!(seek(&one.fd, SeekFrom::End(0)).unwrap(), one.length.0, "a dma-buf reports another size");
        at += one.length;
    }
    assert_eq!(at, offset + length, "the dma-bufs do not cover the range");
    found.iter().map(|one| (one.offset, one.length)).collect()
}

fn a_region_as_dma_bufs<B: TestKit>(subject: &Subject<B>) {
    let region = filled(subject);
    let whole = parts(subject, &region, Bytes(0), region.end());
    assert!(whole.len() == 1 || whole.len() == 3, "neither one dma-buf nor one for each mapping: {whole:?}");
    let last = parts(subject, &region, subject.granules(3), subject.granules(3));
    assert_eq!(last, [(subject.granules(3), subject.granules(3))]);
}

fn dma_bufs_of_wrong_parts<B: TestKit>(subject: &Subject<B>) {
    let region = filled(subject);
    let (one, end) = (subject.granules(1), region.end());
    refused!(region.dma_bufs(Bytes(0), Bytes(0)), Detail::ZeroSize);
    refused!(region.dma_bufs(Bytes(0), one + one), Detail::PartialMapping { .. });
    refused!(region.dma_bufs(Bytes(0), end + one), Detail::NotMapped { .. });
    refused!(region.dma_bufs(Bytes(1), one), Detail::Unaligned { .. });
    refused!(region.dma_bufs(region.reserved(), one), Detail::OutOfRange { .. });
}

fn dma_bufs_across_a_border<B: TestKit>(subject: &Subject<B>) {
    let place = gpu_vmm_core::Placement::Exact(subject.hole(2));
    let mut region = subject.region(1).at(place).extend_by(subject.unit()).build().unwrap();
    for units in 1..=2 {
        region.grow_to(subject.units(units)).unwrap();
    }
    assert_eq!(region.reservations().len(), 2);
    let unit = subject.unit();
    assert_eq!(parts(subject, &region, Bytes(0), region.end()), [(Bytes(0), unit), (unit, unit)]);
}

fn dma_bufs_behind_a_guard<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).guarded().build().unwrap();
    for units in 1..=2 {
        region.grow_to(subject.units(units)).unwrap();
    }
    assert!(region.guard() > Bytes(0));
    let unit = subject.unit();
    for offset in [Bytes(0), unit] {
        let expected = [(offset, unit)];
        assert_eq!(parts(subject, &region, offset, unit), expected);
    }
}

fn dma_bufs_of_two_devices<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let mut region = subject.space(4).build().unwrap();
    for (at, owner) in [(0, one), (1, one), (2, other), (3, one)] {
        region.map(subject.granules(at), &subject.piece_on(owner, 1)).unwrap();
    }
    let found = parts(subject, &region, Bytes(0), subject.granules(4));
    let begins: Vec<_> = found.iter().map(|(offset, _)| *offset).collect();
    assert!([2, 3].iter().all(|at| begins.contains(&subject.granules(*at))), "{found:?}");
}
