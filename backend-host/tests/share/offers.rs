//! Memory that is shared without a socket: offers by process, as bytes and through serde.

use crate::bench::{empty, far, full, machine, piece, put, seen};
use crate::child::alone;
use crate::left::Left;
use crate::{ONE, TWO, UNIT, units};
use gpu_vmm_core::{Access, BackingStore, Bytes, Detail, PhysicalMemory, Properties, WaitFor};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::manifest::{Origin, SharedMapping, SharedPiece};
use gpu_vmm_share::{ImportMethod, ImportOptions, Offer, Offered};
use gpu_vmm_testkit::FaultInject;

#[test]
fn offer_imports_as_its_region() {
    let (here, there) = (machine(), machine());
    let region = full(&here);
    let offered = Offered::new(&region, ImportMethod::Process).unwrap();
    let bytes = offered.offer().to_bytes().unwrap();
    let offer = Offer::from_bytes(&bytes).unwrap();
    assert_eq!((&offer, offer.memory()), (offered.offer(), units(5)));
    let taken =
        offer.import(&there, &ImportOptions::new().read_only().at(far(10)).reserve(units(20))).unwrap();
    assert_eq!(seen(&taken), seen(&region));
    assert_eq!((taken.reserved(), taken.access(Bytes(0), ONE)), (units(20), Access::Read));
    let devices: Vec<_> = taken.mappings().map(|one| one.memory.device()).collect();
    assert_eq!(devices, [ONE, ONE, ONE, TWO]);
    // It can be imported several times, and the memory outlives the process that offered it.
    let again = offer.import(&there, &ImportOptions::new()).unwrap();
    let state = seen(&region);
    drop((offered, region, here));
    assert_eq!((seen(&taken), seen(&again)), (state.clone(), state));
}

#[test]
fn memory_that_cannot_be_offered_is_not() {
    let here = machine();
    let alone = PhysicalMemory::create(&here, UNIT, Properties::on(ONE)).unwrap();
    let error = Offered::of_memory(&here, &alone, ImportMethod::Process).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("shareable")),
        "{error}"
    );
    let error = Offered::new(&full(&here), ImportMethod::Fabric).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("one machine")),
        "{error}"
    );
    let mut suspended = empty(&here);
    put(&mut suspended, 0, &piece(&here, ONE, 1), 1);
    suspended.suspend(&BackingStore::nothing(), WaitFor::all_devices()).unwrap();
    let error = Offered::new(&suspended, ImportMethod::Process).unwrap_err();
    assert!(matches!(error.detail(), Detail::Suspended { .. }), "{error}");
    let foreign = Offered::of_memory(&machine(), &alone, ImportMethod::Process).unwrap_err();
    assert!(matches!(foreign.detail(), Detail::ForeignHandle { .. }), "{foreign}");
}

#[test]
fn cut_offer_is_refused() {
    let bytes = Offered::new(&full(&machine()), ImportMethod::Process).unwrap().offer().to_bytes().unwrap();
    for length in 0..bytes.len() {
        let error = Offer::from_bytes(&bytes[..length]).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::BadMessage { .. })), "{length}: {error}");
    }
    for (offer, words) in [
        ([&bytes[..], &[0]].concat(), "1 bytes follow the offer"),
        (
            [b"gpu-vmm\x02", &bytes[8..]].concat(),
            "and these bytes begin with [67, 70, 75, 2d, 76, 6d, 6d, 02]",
        ),
        (vec![0; 33 << 20], "an offer of 34603008 bytes"),
    ] {
        let error = Offer::from_bytes(&offer).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Whichever way it came: `serde` reads an offer without a check.
#[test]
fn an_offer_that_contradicts_itself_is_refused() {
    let (here, there) = (machine(), machine());
    let offered = Offered::of_memory(&here, &piece(&here, ONE, 1), ImportMethod::Process).unwrap();
    let bytes = offered.offer().to_bytes().unwrap();
    let (header, body) = bytes.split_at(8);
    type Claim = (Origin, u64, u64, Vec<SharedPiece>, Vec<SharedMapping>);
    let ((origin, base, _, pieces, _), handles): (Claim, &[u8]) = postcard::take_from_bytes(body).unwrap();
    let lie: Claim = (origin, base, 0, pieces, Vec::new());
    let lie = [&postcard::to_allocvec(&lie).unwrap(), handles].concat();
    let offer: Offer = postcard::from_bytes(&lie).unwrap();
    for error in [
        Offer::from_bytes(&[header, &lie].concat()).unwrap_err(),
        offer.import_memory(&there).unwrap_err(),
        offer.import(&there, &ImportOptions::new()).unwrap_err(),
    ] {
        assert!(matches!(error.extension(), Some(PeerError::BadMessage { .. })), "{error}");
        assert!(error.to_string().ends_with("piece 0 is mapped nowhere"), "{error}");
    }
}

#[test]
fn foreign_offer_is_refused() {
    let (here, there) = (machine(), machine());
    let offered = Offered::of_memory(&here, &piece(&here, ONE, 1), ImportMethod::Process).unwrap();
    let bytes = offered.offer().to_bytes().unwrap();
    let (header, body) = bytes.split_at(8);
    let (own, rest): (Origin, &[u8]) = postcard::take_from_bytes(body).unwrap();
    for (origin, expected) in [
        (Origin { vendor: "cuda".to_owned(), ..own.clone() }, "vendor"),
        (Origin { library: "0.0.0".to_owned(), ..own.clone() }, "version of gpu-vmm"),
    ] {
        let changed = [header, &postcard::to_allocvec(&origin).unwrap(), rest].concat();
        let offer = Offer::from_bytes(&changed).unwrap();
        for error in [
            offer.import_memory(&there).unwrap_err(),
            offer.import(&there, &ImportOptions::new()).unwrap_err(),
        ] {
            assert!(matches!(error.detail(), Detail::Mismatch { what, .. } if *what == expected), "{error}");
        }
    }
}

#[test]
fn offer_with_changed_byte_leaks_nothing() {
    alone("offers::offer_with_changed_byte_leaks_nothing", || {
        let host = FaultInject::new(machine());
        let region = full(&host);
        let offered = Offered::new(&region, ImportMethod::Process).unwrap();
        let bytes = offered.offer().to_bytes().unwrap();
        let before = Left::now(&host);
        let mut refused = 0;
        for place in 0..bytes.len() {
            for change in [1, 0x10, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] ^= change;
                let taken =
                    Offer::from_bytes(&changed).and_then(|it| it.import(&host, &ImportOptions::new()));
                refused += usize::from(taken.is_err());
                drop(taken);
                assert_eq!(Left::now(&host), before, "byte {place} with {change:#x}");
            }
        }
        // The base can be any address if the region may be anywhere.
        assert!(refused > bytes.len() * 3, "{refused} of {} refused", bytes.len() * 4);
    });
}

#[test]
fn failed_offer_leaves_nothing() {
    alone("offers::failed_offer_leaves_nothing", || {
        let here = machine();
        let mut region = full(&here);
        put(&mut region, 10, &piece(&here, ONE, 1), 5);
        let offered = Offered::new(&region, ImportMethod::Process).unwrap();
        let there = FaultInject::new(machine());
        let before = Left::now(&there);
        for failed in 0.. {
            there.fail(failed, 1);
            let taken = offered.offer().import(&there, &ImportOptions::new());
            if there.stop() <= failed {
                assert_eq!(seen(&taken.unwrap()), seen(&region));
                assert!(failed > 10, "{failed} calls");
                break;
            }
            taken.unwrap_err();
            assert_eq!(Left::now(&there), before, "call {failed}");
        }
    });
}
