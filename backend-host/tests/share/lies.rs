//! Invalid descriptions: each is refused before anything is imported, with an error that names the problem.

use crate::bench::{far, full, machine, piece, seen};
use crate::child::alone;
use crate::forger::{Description, Forger, Say};
use crate::left::Left;
use crate::{LONG, ONE, UNIT, units};
use gpu_vmm_core::{Bytes, Detail, DeviceUuid, Error, Operation, Placement, WaitFor};
use gpu_vmm_host::HostBackend;
use gpu_vmm_share::PeerError;
use gpu_vmm_share::manifest::{SharedMapping, SharedPiece};
use gpu_vmm_share::{Event, Exporter, ImportOptions, ImportedRegion};
use gpu_vmm_testkit::FaultInject;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

type Lie = fn(&mut Description);

/// Invalid descriptions at any point of an exchange, and a part of each error's text.
const LIES: &[(Lie, &str)] = &[
    (|it| it.begin.origin.vendor = "hip".to_owned(), "vendor is hip; here it is host"),
    (|it| it.begin.origin.library.push('0'), "version of gpu-vmm is"),
    (|it| it.begin.revision += 1, "was expected"),
    (|it| it.begin.pieces += 1, "were announced, and"),
    (|it| it.begin.pieces -= 1, "pieces were announced, and"),
    (|it| it.begin.mappings += 1, "were announced, and"),
    (|it| it.begin.mappings -= 1, "mappings were announced, and"),
    (|it| it.begin.pieces = u32::MAX, "4294967295 pieces are announced, and the limit is 131072"),
    (|it| it.begin.mappings = u32::MAX, "4294967295 mappings are announced, and the limit is 262144"),
    (|it| it.begin.removed = u32::MAX, "4294967295 mappings to be removed are announced"),
    (|it| it.begin.removed += 1, "were announced, and"),
    (|it| it.begin.end -= UNIT.0, "and its last mapping at"),
    (|it| it.begin.end += UNIT.0, "and its last mapping at"),
    (|it| it.begin.end = u64::MAX, "and its last mapping at"),
    (|it| it.begin.base = u64::MAX - UNIT.0, "end beyond 2^64"),
    (|it| it.pieces[1].id = it.pieces[0].id, "or more was expected"),
    (|it| it.pieces[0].id = u32::MAX, "arrived, and 4294967296 or more was expected"),
    (|it| it.pieces[0].size = 0, "the size 0x0 must be a nonzero multiple of the granularity 0x10000"),
    (|it| it.pieces[0].size -= 1, "must be a nonzero multiple of the granularity 0x10000"),
    (|it| it.pieces[0].size = 0u64.wrapping_sub(UNIT.0), "end beyond 2^64"),
    (|it| it.pieces[0].size = 1 << 62, "overlaps that from"),
    (|it| it.pieces[2].size = 1 << 62, "and its last mapping at"),
    (|it| it.pieces[0].granularity = 0, "multiple of the granularity 0x0"),
    (|it| it.pieces[0].granularity = 3, "multiple of the granularity 0x3"),
    (|it| it.pieces[0].granularity = 4096, "granularity is 4 KiB; here it is 64 KiB"),
    (|it| it.pieces[0].granularity = UNIT.0 * 2, "granularity is 128 KiB; here it is 64 KiB"),
    (|it| it.pieces[2].device = DeviceUuid([1; 16]), "this process does not see it"),
    (|it| it.pieces[0].kind.handle_types |= 1 << 20, "unknown handle types"),
    (|it| it.mappings[1].offset = it.mappings[0].offset, "overlaps that from"),
    (|it| it.mappings[1].offset = it.mappings[0].offset + UNIT.0, "overlaps that from"),
    (|it| it.mappings[1].offset += 4096, "not a multiple of its granularity 0x10000"),
    (|it| it.mappings[1].offset = 0u64.wrapping_sub(UNIT.0), "end beyond 2^64"),
    (|it| it.mappings[1].piece = 1000, "is of piece 1000, which was not sent"),
    (|it| it.map(Bytes(1 << 47), it.pieces[0].id), "and its last mapping at"),
    (
        |it| {
            it.map(Bytes(1 << 47), it.pieces[0].id);
            it.begin.end = (1 << 47) + it.pieces[0].size;
        },
        "beyond an address space of 128 TiB",
    ),
    (
        |it| {
            let idle = it.pieces[2].id;
            it.mappings.retain(|mapping| mapping.piece != idle);
            it.begin.end -= units(2).0;
        },
        "is mapped nowhere",
    ),
    (|it| drop(it.descriptors.pop()), "2 descriptors came with a part of a description, which has 3"),
    (
        |it| it.descriptors.push(Arc::clone(&it.descriptors[0])),
        "4 descriptors came with a part of a description, which has 3",
    ),
    (
        |it| it.descriptors[2] = Arc::new(File::open("/dev/null").unwrap().into()),
        "not a memfd of sealed size",
    ),
    (
        |it| it.descriptors[1] = Arc::new(std::os::unix::net::UnixStream::pair().unwrap().0.into()),
        "not a memfd of sealed size",
    ),
    (|it| it.descriptors.swap(0, 1), "has 64 KiB, not 128 KiB"),
    (|it| it.removed.push(units(1).0), ", where none begins"),
];

/// Returns whether the case forges the announced counts, which must stay as they are.
fn is_about_counts(words: &str) -> bool {
    words.contains("announced")
}

/// Returns a real exporter's description of a region.
fn truth() -> Description {
    let (mut forger, channel) = Forger::new();
    let _exporter = Exporter::share(channel, &full(&machine())).unwrap();
    Description::hear(&mut forger)
}

fn told(truth: &Description, lie: Lie, words: &str) -> Description {
    let mut description = truth.clone();
    lie(&mut description);
    if is_about_counts(words) { description } else { description.counted() }
}

fn check(error: &Error, words: &str) {
    let kind = matches!(error.extension(), Some(PeerError::BadMessage { .. }))
        || matches!(error.detail(), Detail::Mismatch { .. } | Detail::Driver { .. });
    assert!(kind && error.to_string().contains(words), "{error:?} has no {words:?}");
}

#[test]
fn a_description_that_is_true_is_taken() {
    let (mut forger, channel) = Forger::new();
    truth().say(&mut forger);
    let imported = ImportOptions::new().receive(&machine(), channel).unwrap();
    assert_eq!(seen(imported.region()), seen(&full(&machine())));
    assert_eq!(forger.hear().0, Say::Applied { revision: 0 });
}

#[test]
fn false_region_description_is_refused() {
    alone("lies::false_region_description_is_refused", || {
        let truth = truth();
        let there = FaultInject::new(machine());
        let before = Left::now(&there);
        for (lie, words) in LIES {
            let (mut forger, channel) = Forger::new();
            told(&truth, *lie, words).say(&mut forger);
            there.fail(u64::MAX, 0);
            let error = ImportOptions::new().receive(&there, channel).unwrap_err();
            check(&error, words);
            if !matches!(error.detail(), Detail::Driver { .. }) {
                assert_eq!(there.stop(), 0, "the driver was asked: {error}");
            }
            let (answer, _) = forger.hear();
            assert!(matches!(&answer, Say::Refused { revision: 0, why } if error.to_string() == *why));
            drop(forger);
            assert_eq!(Left::now(&there), before, "{error}");
        }
    });
}

/// Imports the region that `truth` describes.
fn taken_in(there: &FaultInject<HostBackend>) -> (Forger, ImportedRegion<FaultInject<HostBackend>>) {
    let (mut forger, channel) = Forger::new();
    truth().say(&mut forger);
    let imported = ImportOptions::new().at(far(9)).receive(there, channel).unwrap();
    forger.hear();
    (forger, imported)
}

/// Returns a valid change of the region: it removes two mappings and adds mappings like the region's, 16 units further.
fn true_change(truth: &Description) -> Description {
    let mut change = truth.clone();
    change.begin.revision = 1;
    change.removed = vec![units(3).0, units(6).0];
    for piece in &mut change.pieces {
        piece.id += 3;
    }
    for mapping in &mut change.mappings {
        mapping.piece += 3;
        mapping.offset += units(16).0;
    }
    change.begin.end += units(16).0;
    change.counted()
}

#[test]
fn false_change_is_refused_region_stays() {
    alone("lies::false_change_is_refused_region_stays", || {
        let truth = true_change(&truth());
        let there = FaultInject::new(machine());
        let (mut forger, mut imported) = taken_in(&there);
        truth.say(&mut forger);
        imported.next(LONG).unwrap();
        imported.apply(WaitFor::all_devices()).unwrap();
        drop((forger, imported));

        let before = Left::now(&there);
        let later: &[(Lie, &str)] = &[
            (|it| it.begin.revision = 0, "revision 0 arrived, and 1 was expected"),
            (|it| it.begin.revision = u64::MAX, "arrived, and 1 was expected"),
            (|it| it.pieces[0].id = 2, "piece 2 arrived, and 3 or more was expected"),
            (|it| it.removed.push(units(3).0), "is removed twice"),
            (|it| it.removed.push(units(5).0), ", where none begins"),
            (|it| it.mappings[0].offset = units(4).0, "overlaps that from"),
            (|it| it.map(units(1), 3), "overlaps that from"),
        ];
        for (lie, words) in LIES.iter().chain(later) {
            let description = told(&truth, *lie, words);
            let (mut forger, mut imported) = taken_in(&there);
            let state = seen(imported.region());
            description.say(&mut forger);
            let told = imported.next(LONG).and_then(|event| {
                assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
                imported.apply(WaitFor::all_devices())
            });
            let error = told.unwrap_err();
            check(&error, words);
            assert_eq!(seen(imported.region()), state);
            let after = imported.next(Duration::from_millis(1)).unwrap();
            if matches!(error.detail(), Detail::Driver { .. }) {
                // The description was valid, so the exchange continues.
                assert_eq!(after, None);
                drop(imported);
            } else {
                assert_eq!((after, forger.hear().0), (Some(Event::Gone), Say::Kept));
                assert!(!imported.is_behind(), "there is nothing to apply: {error}");
                assert!(!imported.is_connected(), "although the socket is open: {error}");
                imported.release(WaitFor::all_devices()).unwrap();
                assert_eq!(forger.heard(), None, "the last message was that it keeps the memory");
            }
            drop((forger, description));
            assert_eq!(Left::now(&there), before, "{error}");
        }
    });
}

#[test]
fn unmapped_piece_is_forgotten() {
    let truth = true_change(&truth());
    let there = FaultInject::new(machine());
    // The change removes the only mappings of pieces 1 and 2, and one of two mappings of piece 0.
    for (piece, known) in [(0, true), (1, false), (2, false), (3, true)] {
        let (mut forger, mut imported) = taken_in(&there);
        truth.say(&mut forger);
        imported.next(LONG).unwrap();
        let mut next = truth.clone();
        next.begin.revision = 2;
        (next.removed, next.pieces, next.descriptors) = (Vec::new(), Vec::new(), Vec::new());
        next.mappings = vec![SharedMapping { offset: units(60).0, piece }];
        next.begin.end = units(62).0;
        next.counted().say(&mut forger);
        match imported.next(LONG) {
            Ok(event) => assert!(known && matches!(event, Some(Event::Changed(_))), "piece {piece}"),
            Err(error) => assert!(!known && error.to_string().contains("was not sent"), "{error}"),
        }
    }
}

#[test]
fn unexpected_message_ends_the_exchange() {
    let truth = truth();
    let cases: &[(&[usize], &str)] = &[
        (&[1], "a part of a description came instead of a shared region"),
        (&[3], "the end of a description came instead of a shared region"),
        (&[0, 0], "the beginning of a description came instead of the rest of a description"),
        (&[0, 3], "were announced, and (0, 0, 0) came"),
        (&[0, 1, 1], "3 pieces were announced, and 6 came"),
    ];
    for (order, words) in cases {
        let (mut forger, channel) = Forger::new();
        let messages = truth.messages();
        for place in *order {
            let (message, descriptors) = &messages[*place];
            forger.say(message, descriptors);
        }
        check(&ImportOptions::new().receive(&machine(), channel).unwrap_err(), words);
    }
    for (message, words) in [
        (Say::ReleaseRequested, "a request to release the memory came"),
        (Say::Applied { revision: 0 }, "an answer to a description came"),
        (Say::Pieces(Vec::new()), "a message with no pieces"),
        (Say::Mappings(Vec::new()), "a message with no mappings"),
        (Say::Removed(Vec::new()), "a message with no mappings to be removed"),
        (Say::Removed(vec![0]), "0 mappings to be removed were announced, and 1 came"),
    ] {
        let (mut forger, channel) = Forger::new();
        forger.say(&truth.messages()[0].0, &[]);
        forger.say(&message, &[]);
        check(&ImportOptions::new().receive(&machine(), channel).unwrap_err(), words);
    }
}

#[test]
fn endless_description_ends_at_the_limit() {
    let truth = truth();
    let wait = Duration::from_millis(20);
    for whole in 1..truth.messages().len() {
        let (mut forger, mut channel) = Forger::new();
        channel.set_wait(wait);
        for (message, descriptors) in &truth.messages()[..whole] {
            forger.say(message, descriptors);
        }
        let error = ImportOptions::new().receive(&machine(), channel).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::TimedOut { waited, .. }) if *waited == wait),
            "{error}"
        );
    }
}

#[test]
fn unaligned_memory_units_are_refused() {
    // A machine with a larger granularity than the exporter's.
    let larger = gpu_vmm_host::HostConfig::new()
        .devices(2)
        .memory(Bytes::mib(64))
        .granularity(Bytes(UNIT.0 * 2))
        .open()
        .unwrap();
    let (mut forger, channel) = Forger::new();
    let mut description = truth();
    for SharedPiece { granularity, .. } in &mut description.pieces {
        *granularity = UNIT.0 * 2;
    }
    description.say(&mut forger);
    let error = ImportOptions::new().receive(&larger, channel).unwrap_err();
    check(&error, "the size 0x10000 must be a nonzero multiple of the granularity 0x20000");
    // Pieces of the right size, at unaligned offsets.
    let host = machine();
    let (mut forger, channel) = Forger::new();
    let memory = piece(&host, ONE, 2);
    let piece = SharedPiece {
        granularity: UNIT.0 * 2,
        ..SharedPiece::of(Operation::Allocate, &host, 0, &memory).unwrap()
    };
    description.pieces = vec![piece];
    description.mappings = vec![SharedMapping { offset: UNIT.0, piece: 0 }];
    description.descriptors = vec![Arc::new(memory.export().unwrap())];
    description.begin.end = UNIT.0 * 3;
    description.counted().say(&mut forger);
    let error = ImportOptions::new().receive(&larger, channel).unwrap_err();
    check(&error, "piece 0 is mapped at offset 0x10000, which is not a multiple of its granularity 0x20000");
}

#[test]
fn impossible_region_address_is_refused() {
    for base in [1, 4096, 1 << 62] {
        let (mut forger, channel) = Forger::new();
        let mut description = truth();
        description.begin.base = base;
        description.say(&mut forger);
        let error = ImportOptions::new().same_address().receive(&machine(), channel).unwrap_err();
        let kind = matches!(
            error.detail(),
            Detail::Unaligned { .. } | Detail::AddressTaken { .. } | Detail::Driver { .. }
        );
        assert!(kind, "{error}");
    }
    // If the region may be at other addresses, this does not matter.
    let (mut forger, channel) = Forger::new();
    let mut description = truth();
    description.begin.base = 1;
    description.say(&mut forger);
    let import = ImportOptions::new().at(Placement::Anywhere);
    let imported = import.receive(&machine(), channel).unwrap();
    assert_eq!(seen(imported.region()).len(), 4);
}
