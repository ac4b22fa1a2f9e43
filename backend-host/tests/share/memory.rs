//! One piece of memory over a channel.

use crate::bench::{RW, WithoutUuids, empty, machine, piece, put, seen};
use crate::forger::{Forger, Say};
use crate::{ONE, TWO, UNIT, units};
use gpu_vmm_core::{Bytes, Detail, Error, Operation, PhysicalMemory, Properties};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::manifest::{MemoryKind, Origin, SharedPiece};
use gpu_vmm_share::{Channel, Exporter, ImportMethod, Offered};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

#[test]
fn memory_arrives_with_properties_and_bytes() {
    let (here, there) = (machine(), machine());
    let memory = piece(&here, TWO, 3);
    let mut region = empty(&here);
    put(&mut region, 0, &memory, 5);
    let (mut ours, mut theirs) = Channel::pair().unwrap();
    ours.send_memory(&here, &memory).unwrap();
    let received = theirs.receive_memory(&there).unwrap();
    assert_eq!((received.size(), received.properties()), (units(3), memory.properties()));
    let mut other = empty(&there);
    other.map(Bytes(0), &received).unwrap();
    other.set_access(Bytes(0), units(3), TWO, RW).unwrap();
    assert_eq!(seen(&other), seen(&region));
    // And in the other direction, over the same channel.
    theirs.send_memory(&there, &received).unwrap();
    assert_eq!(ours.receive_memory(&here).unwrap().size(), units(3));
}

#[test]
fn unshareable_memory_is_not_sent() {
    let (here, there) = (machine(), machine());
    let (mut ours, mut theirs) = Channel::pair().unwrap();
    let alone = PhysicalMemory::create(&here, UNIT, Properties::on(ONE)).unwrap();
    assert!(matches!(
        ours.send_memory(&here, &alone).as_ref().map_err(Error::detail),
        Err(Detail::Unsupported { .. })
    ));
    let foreign = piece(&there, ONE, 1);
    assert!(matches!(
        ours.send_memory(&here, &foreign).as_ref().map_err(Error::detail),
        Err(Detail::ForeignHandle { .. })
    ));
    drop(ours);
    assert!(matches!(
        theirs.receive_memory(&there).as_ref().map_err(Error::extension),
        Err(Some(PeerError::Gone { .. }))
    ));
}

#[test]
fn memory_without_device_uuid_is_refused() {
    let (here, there) = (WithoutUuids::open(), machine());
    let memory = piece(&here, TWO, 2);
    let mut region = empty(&here);
    put(&mut region, 0, &memory, 5);
    let (mut ours, mut theirs) = Channel::pair().unwrap();
    let (exporting, _other) = Channel::pair().unwrap();
    for (error, operation) in [
        (ours.send_memory(&here, &memory).unwrap_err(), Operation::SendMemory),
        (Exporter::share(exporting, &region).map(drop).unwrap_err(), Operation::ShareRegion),
        (Offered::new(&region, ImportMethod::Process).map(drop).unwrap_err(), Operation::Offer),
        (
            Offered::of_memory(&here, &memory, ImportMethod::Process).map(drop).unwrap_err(),
            Operation::OfferMemory,
        ),
    ] {
        assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
        let why = "not supported: the driver reports no UUID for device 1";
        assert_eq!(error.to_string(), format!("{operation}: {why}"));
    }
    // Nothing was sent.
    drop(ours);
    let heard = theirs.receive_memory(&there).unwrap_err();
    assert!(matches!(heard.extension(), Some(PeerError::Gone { .. })), "{heard}");
    // Such a machine finds no device for the memory of another one.
    let (mut ours, mut theirs) = Channel::pair().unwrap();
    ours.send_memory(&there, &piece(&there, TWO, 2)).unwrap();
    let error = theirs.receive_memory(&here).unwrap_err();
    assert!(matches!(error.detail(), Detail::Mismatch { what: "device", .. }), "{error}");
}

/// Returns the importer's error for a message with these descriptors.
fn answer(message: &Say, descriptors: &[OwnedFd]) -> Error {
    let (mut forger, mut channel) = Forger::new();
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    forger.say(message, &descriptors);
    channel.receive_memory(&machine()).unwrap_err()
}

#[test]
fn false_piece_description_is_refused() {
    let here = machine();
    let memory = piece(&here, ONE, 2);
    let fd = || memory.export().unwrap();
    let origin = Origin::of(&here);
    let piece = SharedPiece::of(Operation::Allocate, &here, 0, &memory).unwrap();
    let said = |piece| Say::Memory { origin: origin.clone(), piece };
    let refused = |message: &Say, descriptors: &[OwnedFd], words: &str| {
        let error = answer(message, descriptors).to_string();
        assert!(error.contains(words), "{error:?} has no {words:?}");
    };
    refused(&Say::End, &[], "the end of a description came instead of a piece of memory");
    refused(&said(piece), &[], "0 descriptors came with a piece of memory, which has 1");
    refused(&said(piece), &[fd(), fd()], "2 descriptors came with a piece of memory, which has 1");
    refused(&said(SharedPiece { size: UNIT.0, ..piece }), &[fd()], "has 128 KiB, not 64 KiB");
    refused(
        &said(SharedPiece { size: 0, ..piece }),
        &[fd()],
        "the size 0x0 must be a nonzero multiple of the granularity 0x10000",
    );
    refused(&said(SharedPiece { size: u64::MAX, ..piece }), &[fd()], "multiple of the granularity 0x10000");
    refused(&said(SharedPiece { granularity: 0, ..piece }), &[fd()], "multiple of the granularity 0x0");
    refused(
        &said(SharedPiece { granularity: 4096, ..piece }),
        &[fd()],
        "granularity is 4 KiB; here it is 64 KiB",
    );
    let kind = MemoryKind { handle_types: 1 << 31, ..piece.kind };
    refused(&said(SharedPiece { kind, ..piece }), &[fd()], "unknown handle types 0x80000000");
    let elsewhere = gpu_vmm_core::DeviceUuid([9; 16]);
    refused(&said(SharedPiece { device: elsewhere, ..piece }), &[fd()], "this process does not see it");
    let vendor = Origin { vendor: "cuda".to_owned(), ..origin.clone() };
    refused(&Say::Memory { origin: vendor, piece }, &[fd()], "vendor is cuda; here it is host");
    let library = Origin { library: "0.0.1".to_owned(), ..origin.clone() };
    refused(&Say::Memory { origin: library, piece }, &[fd()], "version of gpu-vmm is 0.0.1");
    for other in [File::open("/dev/null").unwrap(), File::open("/proc/self/exe").unwrap()] {
        refused(&said(piece), &[other.into()], "not a memfd of sealed size");
    }
    refused(
        &said(piece),
        &[std::os::unix::net::UnixStream::pair().unwrap().0.into()],
        "not a memfd of sealed size",
    );
}
