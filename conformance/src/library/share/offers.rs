//! A region as data that any network or file can carry, and data that is wrong.

use crate::case::cases;
use crate::leaks;
use crate::library::sharing::shareable;
use crate::library::tools::{capability, has, mapped, write};
use crate::peer::Peer;
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Bytes, Error, Feature, Properties, Region};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{ImportMethod, ImportOptions, Offer, Offered};
use gpu_vmm_testkit::TestKit;
use serde_json::Value;

cases! { "share":
    /// A region that is offered as bytes is mapped by another process as one range at the same address, and each process
    /// reads the other's writes.
    an_offer_between_processes with takes_an_offer,
    /// One piece of memory can be offered and imported like a region; an offer of several pieces is not imported as one.
    one_piece_is_offered,
    /// An offer is valid while the offered memory is held; after that, importing it is an error.
    an_offer_ends,
    /// An offer by fabric handles works exactly if the device's capabilities report fabric handles.
    fabric_as_the_capabilities_say,
    /// An offer with wrong sizes, devices, mappings or descriptors is an error, and leaks no memory, descriptor or addresses.
    offers_that_lie,
    /// An offer's bytes that are cut at any length, or changed at any byte, are an error or an offer that can be inspected
    /// safely.
    bytes_that_are_no_offer,
}

const SEED: u64 = 1300;

/// A region of two exportable pieces in a row.
pub(super) fn region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let (one, two) = (shareable(subject, 1), shareable(subject, 2));
    mapped(subject, &[&one, &two])
}

/// Imports a region. Skips the case if the process may not access the other process's descriptors.
pub(super) fn import<B: TestKit>(subject: &Subject<B>, offer: &Offer, import: &ImportOptions) -> Region<B> {
    let region = or_skip(offer.import(&subject.backend, import));
    region.mappings().for_each(|_| leaks::counts_import());
    region
}

fn an_offer_between_processes<B: TestKit>(subject: &Subject<B>) {
    let memory = Properties::on(subject.device).shareable();
    let place = gpu_vmm_core::Placement::Exact(subject.hole(4));
    let mut region = subject.region(4).memory(memory).at(place).build().unwrap();
    for units in [1, 3] {
        or_skip(region.grow_to(subject.units(units)));
    }
    write(subject, &mut region, SEED);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    let mut child = subject.child();
    child.send(offered.offer().to_bytes().unwrap());
    child.receive::<()>();
    assert!(has(subject, &region, SEED + 1), "the other process's write is not visible");
    child.finish();
}

fn takes_an_offer<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let offer = Offer::from_bytes(&peer.receive::<Vec<u8>>()).unwrap();
    assert_eq!(offer.memory(), subject.units(3));
    let mut region = import(subject, &offer, &ImportOptions::new().same_address());
    assert!(has(subject, &region, SEED));
    write(subject, &mut region, SEED + 1);
    peer.send(());
}

fn one_piece_is_offered<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 2);
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    let offered = or_skip(Offered::of_memory(&subject.backend, &memory, ImportMethod::Process));
    let imported = or_skip(offered.offer().import_memory(&subject.backend));
    leaks::counts_import();
    assert_eq!((imported.size(), imported.device()), (memory.size(), memory.device()));
    assert!(has(subject, &mapped(subject, &[&imported]), SEED));
    let several = or_skip(Offered::new(&region(subject), ImportMethod::Process));
    let answer = several.offer().import_memory(&subject.backend);
    assert!(
        matches!(answer.as_ref().map_err(Error::extension), Err(Some(PeerError::BadMessage { .. }))),
        "{answer:?}"
    );
}

fn an_offer_ends<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    let offer = offered.offer().clone();
    drop(import(subject, &offer, &ImportOptions::new()));
    drop((offered, region));
    offer.import(&subject.backend, &ImportOptions::new()).map(drop).unwrap_err();
}

fn fabric_as_the_capabilities_say<B: TestKit>(subject: &Subject<B>) {
    let capability = capability(subject, Feature::FabricHandle);
    let memory = Properties::on(subject.device).exported_as(gpu_vmm_core::HandleTypes::FABRIC);
    let mut region = subject.region(1).memory(memory).build().unwrap();
    match region.grow_to(subject.unit()).and_then(|_| Offered::new(&region, ImportMethod::Fabric)) {
        Ok(offered) => {
            assert!(capability.available, "the offer works, and {capability:?}");
            write(subject, &mut region, SEED);
            assert!(has(subject, &import(subject, offered.offer(), &ImportOptions::new()), SEED));
        }
        Err(error) => {
            assert!(!capability.available && !capability.note.is_empty(), "{error}, and {capability:?}");
        }
    }
}

/// The name of a wrong statement, and the change of an offer that makes it.
type Lie = (&'static str, fn(&mut Value, Bytes));

/// The wrong statements that are tested.
const LIES: &[Lie] = &[
    ("a piece is half as large", |offer, unit| offer["pieces"][1]["size"] = unit.0.into()),
    ("a piece is twice as large", |offer, unit| {
        offer["pieces"][1]["size"] = (unit.0 * 4).into();
        offer["end"] = (unit.0 * 5).into();
    }),
    ("a piece is empty", |offer, _| offer["pieces"][0]["size"] = 0.into()),
    ("a size that is not a multiple of the granularity", |offer, _| offer["pieces"][0]["size"] = 4097.into()),
    ("a size of 2^64 - 1", |offer, _| offer["pieces"][0]["size"] = u64::MAX.into()),
    ("another granularity", |offer, unit| offer["pieces"][0]["granularity"] = (unit.0 * 2).into()),
    ("a granularity of zero", |offer, _| offer["pieces"][0]["granularity"] = 0.into()),
    ("another device", |offer, _| offer["pieces"][0]["device"][3] = 77.into()),
    ("an unknown handle type", |offer, _| offer["pieces"][0]["kind"]["handle_types"] = 64.into()),
    ("another vendor", |offer, _| offer["origin"]["vendor"] = "another".into()),
    ("another version", |offer, _| offer["origin"]["library"] = "0.0.0".into()),
    ("two pieces with the same id", |offer, _| offer["pieces"][1]["id"] = offer["pieces"][0]["id"].clone()),
    ("a mapping of an unknown piece", |offer, _| offer["mappings"][0]["piece"] = 99.into()),
    ("mappings that overlap", |offer, _| offer["mappings"][1]["offset"] = 0.into()),
    ("an unaligned mapping", |offer, _| offer["mappings"][1]["offset"] = 4096.into()),
    ("a mapping at the end of the address space", |offer, unit| {
        offer["mappings"][1]["offset"] = (u64::MAX - unit.0 + 1).into();
    }),
    ("another end", |offer, unit| offer["end"] = unit.0.into()),
    ("a missing piece", |offer, _| drop(offer["pieces"].as_array_mut().unwrap().pop())),
    ("a missing handle", |offer, _| drop(offer["handles"]["Process"].as_array_mut().unwrap().pop())),
    ("another process", |offer, _| each_handle(offer, "pid", |_| 1.into())),
    ("an unknown process", |offer, _| each_handle(offer, "pid", |_| 0x3fff_ffff.into())),
    ("a descriptor that is not open", |offer, _| each_handle(offer, "number", |_| 1_000_000.into())),
    ("standard input", |offer, _| each_handle(offer, "number", |_| 0.into())),
    ("a file with another inode", |offer, _| {
        each_handle(offer, "file", |old| {
            let mut file = old.clone();
            file["inode"] = (old["inode"].as_u64().unwrap() + 1).into();
            file
        });
    }),
];

/// Wrong statements that contradict the rest of the offer: its bytes are refused when they are read.
const CONTRADICTIONS: [&str; 5] = [
    "two pieces with the same id",
    "a mapping of an unknown piece",
    "mappings that overlap",
    "a missing piece",
    "a missing handle",
];

/// Wrong statements about the second piece that contradict nothing, so the first piece is imported before they are noticed.
const NOTICED_LATE: [&str; 2] = ["a piece is half as large", "a piece is twice as large"];

fn each_handle(offer: &mut Value, field: &str, change: impl Fn(&Value) -> Value) {
    for handle in offer["handles"]["Process"].as_array_mut().unwrap() {
        assert!(!handle[field].is_null(), "a handle has no {field}: {handle}");
        handle[field] = change(&handle[field]);
    }
}

/// The number of descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn offers_that_lie<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject);
    write(subject, &mut region, SEED);
    let offered = or_skip(Offered::new(&region, ImportMethod::Process));
    let truth = serde_json::to_value(offered.offer()).unwrap();
    drop(import(subject, &serde_json::from_value(truth.clone()).unwrap(), &ImportOptions::new()));
    let (free, open) = (subject.free_here(), descriptors());
    // If imports leak, one that precedes the error would look like a leak below.
    let leaks = subject.has_quirk("import-leaks");
    for (lie, tell) in LIES.iter().filter(|(lie, _)| !(leaks && NOTICED_LATE.contains(lie))) {
        let mut changed = truth.clone();
        tell(&mut changed, subject.unit());
        assert_ne!(changed, truth, "{lie}");
        let offer: Offer = serde_json::from_value(changed).unwrap();
        if CONTRADICTIONS.contains(lie) {
            let answer = Offer::from_bytes(&offer.to_bytes().unwrap());
            assert!(
                matches!(answer.as_ref().map_err(Error::extension), Err(Some(PeerError::BadMessage { .. }))),
                "{lie}: {answer:?}"
            );
        }
        let answer = offer.import(&subject.backend, &ImportOptions::new());
        assert!(answer.is_err(), "{lie}: {answer:?}");
    }
    if subject.backend.vendor() != gpu_vmm_core::Vendor::Host {
        // Cases on host memory run in parallel.
        assert_eq!(descriptors(), open, "descriptors are left open");
    }
    if !leaks {
        assert!(subject.free_here() + subject.granularity() > free, "memory is missing");
    }
    assert!(has(subject, &region, SEED), "the memory has changed");
}

fn bytes_that_are_no_offer<B: TestKit>(subject: &Subject<B>) {
    let region = region(subject);
    let bytes = match Offered::new(&region, ImportMethod::Process) {
        Ok(offered) => offered.offer().to_bytes().unwrap(),
        Err(error) => skip(error.to_string()),
    };
    for length in 0..bytes.len() {
        assert!(Offer::from_bytes(&bytes[..length]).is_err(), "{length} bytes of {}", bytes.len());
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        // An offer that can be read is only data; an import checks what it says.
        if let Ok(offer) = Offer::from_bytes(&changed) {
            let _ = offer.memory();
        }
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(Offer::from_bytes(&longer).is_err(), "an offer with an extra byte was accepted");
}
