//! Snapshots with made-up descriptions and contents, of memory that no region of this device could have.

use super::ring;
use crate::case::cases;
use crate::library::folder::Folder;
use crate::library::tools::refused;
use crate::subject::{Subject, skip};
use gpu_vmm_core::{AccessMap, Bytes, Detail, Granularity};
use gpu_vmm_snapshot::{
    Description, MappingRecord, MemoryRecord, RegionRecord, Restore, SnapshotFile, SnapshotWriter,
    WriteOptions,
};
use gpu_vmm_testkit::TestKit;

cases! { "snapshot":
    /// A snapshot with more memory than the device has is refused before anything is reserved, even if no single piece
    /// exceeds the device.
    more_than_the_device_has,
    /// A region at an address that the device cannot map is restored elsewhere, or refused.
    between_the_devices_units,
    /// Pieces smaller than the device's granularity are joined into one, unless one of them is an alias.
    aliases_of_less_than_a_unit,
    /// Reservations smaller than the unit in which the device reserves addresses are joined into one.
    reservations_of_less_than_a_unit,
}

/// One region with pieces of one size, which are mapped one behind the other.
struct Described<'a> {
    size: Bytes,
    /// The index of the piece at each place.
    places: &'a [usize],
    /// The sizes of its reservations; one for all of it if there are none.
    reservations: &'a [Bytes],
    /// The distance of the region's address from a unit of addresses.
    shift: Bytes,
    /// The value of each byte of each piece.
    value: u8,
}

/// Writes a snapshot with this description.
fn described<B: TestKit>(
    subject: &Subject<B>,
    folder: &Folder,
    Described { size, places, reservations, shift, value }: Described<'_>,
) -> SnapshotFile {
    let unit = Granularity::new(Bytes(1 << size.0.trailing_zeros())).unwrap();
    let count = places.iter().max().unwrap() + 1;
    let record = |(place, memory): (u64, &usize)| MappingRecord {
        offset: Bytes(place * size.0),
        memory: *memory,
        access: AccessMap::NONE,
    };
    let mut description = Description::of(&subject.backend).unwrap();
    let properties = subject.properties();
    description.memories = vec![MemoryRecord { size, granularity: unit, properties }; count];
    let room = subject.backend.reservation_unit().round_up(Bytes(size.0 * places.len() as u64)).unwrap();
    description.regions = vec![RegionRecord {
        tag: "described".to_owned(),
        address: subject.hole(room.0 / subject.unit().0 + 1) + shift,
        reservations: if reservations.is_empty() { vec![room] } else { reservations.to_vec() },
        granularity: unit,
        alignment: unit.into(),
        memory: properties,
        access: AccessMap::NONE,
        extend_by: Bytes::ZERO,
        guard: Bytes::ZERO,
        portable: false,
        below: None,
        mappings: (0..).zip(places).map(record).collect(),
    }];
    let writer = SnapshotWriter::create(folder.file("a"), &description, WriteOptions::default()).unwrap();
    let bytes = vec![value; writer.block_size().min(size).0 as usize];
    for memory in 0..count {
        for block in 0..writer.blocks(memory) {
            writer.write_block(memory, block, &bytes).unwrap();
        }
    }
    writer.finish().unwrap();
    SnapshotFile::open(folder.file("a")).unwrap()
}

fn more_than_the_device_has<B: TestKit>(subject: &Subject<B>) {
    /// The most that can be written quickly, since zeros take no room.
    const MOST: Bytes = Bytes::gib(4);
    let total = subject.backend.devices()[subject.device.0 as usize].total_memory;
    if total > MOST {
        skip(format!("the device has {total}, which takes long to describe"));
    }
    let folder = Folder::new();
    let piece = Bytes((total.0 / 4).next_multiple_of(Bytes::mib(2).0));
    let five =
        Described { size: piece, places: &[0, 1, 2, 3, 4], reservations: &[], shift: Bytes::ZERO, value: 0 };
    let file = described(subject, &folder, five);
    let requested = Bytes(5 * piece.0);
    let answer = Restore::new().regions(&file, &ring(&subject.backend));
    refused!(@Restore answer, Detail::ExceedsDevice { .. }, requested, format!("{total:#}"));
}

fn between_the_devices_units<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let half = Bytes(subject.granularity().0 / 2);
    let file = described(
        subject,
        &folder,
        Described { size: half, places: &[0, 1], reservations: &[], shift: half, value: 7 },
    );
    let was = file.description().regions[0].address;
    let answer = Restore::new().regions(&file, &ring(&subject.backend));
    refused!(@Restore answer, Detail::Unaligned { .. }, was, subject.granularity());
    let restored = super::restore_one(&subject.backend, &Restore::new().relocate(), &file);
    assert!(restored.has_moved() && restored.was.base == was, "{restored:?}");
    assert!(restored.region.address().is_aligned_to(subject.granularity()));
}

fn aliases_of_less_than_a_unit<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let half = Bytes(subject.granularity().0 / 2);
    let halves = |places| Described { size: half, places, reservations: &[], shift: Bytes::ZERO, value: 7 };
    let file = described(subject, &folder, halves(&[0, 1, 2, 3]));
    let restored = super::restore_one(&subject.backend, &Restore::new(), &file).region;
    assert_eq!(restored.mappings().map(|one| one.length).collect::<Vec<_>>(), [subject.granules(1); 2]);
    drop(restored);
    let file = described(subject, &folder, halves(&[0, 1, 0, 1]));
    let answer = Restore::new().regions(&file, &ring(&subject.backend));
    refused!(@Restore answer, Detail::Unsupported { .. }, "it is mapped more than once", subject.granules(1));
}

fn reservations_of_less_than_a_unit<B: TestKit>(subject: &Subject<B>) {
    let (folder, size) = (Folder::new(), subject.granules(1));
    let two = Described { size, places: &[0, 1], reservations: &[size; 2], shift: Bytes::ZERO, value: 7 };
    let file = described(subject, &folder, two);
    let restored = super::restore_one(&subject.backend, &Restore::new(), &file).region;
    let unit = subject.backend.reservation_unit();
    let expected = if unit.divides(size) { vec![size; 2] } else { vec![unit.round_up(size + size).unwrap()] };
    assert_eq!(restored.reservations().map(|range| range.size).collect::<Vec<_>>(), expected);
}
