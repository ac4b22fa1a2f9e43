//! Files with correct checksums and invalid contents, as an attacker can make them.

use super::*;
use crate::format::{Entry, Footer, Header, MAX_BLOCKS, MAX_HEAD, Stored, Wrong, hash};
use crate::fuzz;
use crate::records::Head;

/// A change, and a part of the error's text.
type Lie<T> = (fn(&mut T), &'static str);

fn good_head() -> Head {
    Head { block: BLOCK, description: description(), needed: Vec::new() }
}

/// Returns one uncompressed block, and the entries of six blocks: five of zeros, and this one as the third.
fn blocks() -> (Vec<u8>, Vec<Entry>) {
    let bytes = vec![5; 4096];
    let plain = Stored { hash: hash(&bytes), offset: 64, length: 4096, file: 0, compressed: None };
    let mut entries = vec![Entry::Zero; 6];
    entries[2] = Entry::Stored(plain);
    (bytes, entries)
}

fn file(head: &Head, blocks: &[u8], entries: &[Entry]) -> Vec<u8> {
    let entries: Vec<u8> = entries.iter().flat_map(|entry| entry.write()).collect();
    fuzz::assembled(blocks, &head.write().unwrap(), &entries)
}

#[test]
fn assembled_file_is_read() {
    let (bytes, entries) = blocks();
    fuzz::read_all(&file(&good_head(), &bytes, &entries)).unwrap();
}

#[test]
fn descriptions_that_lie_are_refused() {
    let (bytes, entries) = blocks();
    let changes: [Lie<Head>; 40] = [
        (|head| head.block = Bytes(0), "blocks of 0 B"),
        (|head| head.block = Bytes(4097), "blocks of 4097 B"),
        (|head| head.block = Bytes::mib(128), "blocks of 128 MiB"),
        (|head| head.block = Bytes::kib(8), "it has entries for 6 blocks, but its memory has 3"),
        (|head| head.description.memories[0].size = Bytes(u64::MAX - 4095), "region 0: a mapping"),
        (|head| head.description.memories[0].size = Bytes(1), "memory 0: a size of 1 B"),
        (|head| head.description.memories[0].size = Bytes(0), "memory 0: a size of 0 B"),
        (|head| head.description.memories[1].properties.device.0 = 1, "memory 1: memory of device 1"),
        (
            |head| {
                head.description.regions.clear();
                head.description.memories[0].size = Bytes(u64::MAX - 4095);
            },
            "its blocks of 4 KiB",
        ),
        (|head| head.description.memories.truncate(1), "region 0: there is no memory 1"),
        (|head| head.description.regions[0].mappings[0].offset = Bytes(1), "region 0: a mapping of 8 KiB"),
        (|head| head.description.regions[0].mappings[1].offset = BLOCK, "region 0: a mapping of 16 KiB"),
        (|head| head.description.regions[0].mappings.swap(0, 1), "region 0: a mapping of 8 KiB"),
        (|head| head.description.regions[0].mappings[1].offset = Bytes::kib(76), "region 0: a mapping at"),
        (|head| head.description.regions[1].reservations.clear(), "region 1: it has no addresses"),
        (|head| head.description.regions[1].reservations[0] = Bytes(0), "region 1: a reservation of 0 B"),
        (
            |head| head.description.regions[1].reservations = vec![Bytes(1 << 63); 3],
            "region 1: it is larger than any address space",
        ),
        (|head| head.description.regions[0].address = Address(0xffff_ffff_ffff_0000), "region 0: 80 KiB and"),
        (|head| head.description.regions[0].address = Address(0), "region 0: 80 KiB and a guard of 4 KiB"),
        (
            |head| {
                let region = &mut head.description.regions[0];
                (region.address, region.guard) = (Address(0xffff_ffff_fffe_0000), Bytes::kib(64));
            },
            "region 0: 80 KiB and a guard of 64 KiB",
        ),
        (|head| head.description.regions[0].address.0 += 4096, "is not aligned to 64 KiB"),
        (
            |head| head.description.regions[1].address.0 = 0x7000_0001_0000,
            "the addresses of two regions overlap",
        ),
        (
            |head| head.description.regions[0].guard = Bytes(5),
            "region 0: an alignment, an extension or a guard",
        ),
        (
            |head| head.description.regions[0].alignment = Alignment::new(Bytes(BLOCK.0 / 2)).unwrap(),
            "region 0: an alignment, an extension or a guard",
        ),
        (
            |head| head.description.regions[0].extend_by = Bytes(BLOCK.0 + 5),
            "region 0: an alignment, an extension or a guard",
        ),
        (|head| head.description.devices[1].id = DeviceId(DeviceId::LIMIT), "or an ordinal is out of range"),
        (
            |head| head.description.regions[0].access = AccessMap::NONE.with(DeviceId(1), Access::Read),
            "region 0: access for device 1",
        ),
        (
            |head| {
                let access = AccessMap::NONE.with(DeviceId(1), Access::Read);
                head.description.regions[0].mappings[0].access = access;
            },
            "region 0: access for device 1",
        ),
        (|head| head.description.regions[0].memory.device.0 = 1, "region 0: memory of device 1"),
        (
            |head| {
                let memory = &mut head.description.memories[0];
                (memory.granularity, memory.size) =
                    (Granularity::new(Bytes::kib(1)).unwrap(), Bytes::kib(15));
            },
            "region 0: a mapping of 15 KiB",
        ),
        (|head| head.description.devices[1].id = DeviceId(0), "two devices have the same ordinal"),
        (|head| head.description.devices[1].id = DeviceId::HOST, "or an ordinal is out of range"),
        (
            |head| head.needed.push(EarlierSnapshot { id: SnapshotId([1; 16]), file: "../a".to_owned() }),
            "\"../a\" is not a file name",
        ),
        (
            |head| {
                head.description.parent =
                    Some(EarlierSnapshot { id: SnapshotId([1; 16]), file: "..".to_owned() })
            },
            "\"..\" is not a file name",
        ),
        (
            |head| head.needed.push(EarlierSnapshot { id: SnapshotId([1; 16]), file: "a\0".to_owned() }),
            "\"a\\0\" is not a file name",
        ),
        (
            |head| head.needed.push(EarlierSnapshot { id: SnapshotId([1; 16]), file: "c:a".to_owned() }),
            "\"c:a\" is not a file name",
        ),
        (
            |head| head.needed.push(EarlierSnapshot { id: SnapshotId([1; 16]), file: "a\\b".to_owned() }),
            "\"a\\\\b\" is not a file name",
        ),
        (
            |head| head.needed.push(EarlierSnapshot { id: SnapshotId([1; 16]), file: ".".to_owned() }),
            "\".\" is not a file name",
        ),
        (
            |head| head.needed.push(EarlierSnapshot { id: SnapshotId([1; 16]), file: String::new() }),
            "\"\" is not a file name",
        ),
        (
            |head| {
                head.needed = vec![EarlierSnapshot { id: SnapshotId([1; 16]), file: "a".to_owned() }; 1025]
            },
            "needs too many",
        ),
    ];
    for (change, part) in changes {
        let mut head = good_head();
        change(&mut head);
        let what = fuzz::read_all(&file(&head, &bytes, &entries)).unwrap_err().to_string();
        assert!(what.contains(part), "{part:?} is missing in {what:?}");
    }
}

/// Each of these is the last number before a refusal.
#[test]
fn numbers_at_their_limits_are_read() {
    let (bytes, entries) = blocks();
    let changes: [fn(&mut Head); 6] = [
        // As many files as one snapshot can need.
        |head| head.needed = vec![EarlierSnapshot { id: SnapshotId([1; 16]), file: "a".to_owned() }; 1024],
        // The second region begins where the first one ends.
        |head| {
            head.description.regions[1].alignment = Alignment::new(BLOCK).unwrap();
            head.description.regions[1].address = head.description.regions[0].address + Bytes::kib(80);
        },
        |head| head.description.regions[0].alignment = Alignment::new(BLOCK).unwrap(),
        |head| head.description.regions[0].guard = Bytes::ZERO,
        |head| head.description.regions[0].address = Address(Bytes::kib(64).0),
        // The last mapping ends where the region ends.
        |head| head.description.regions[0].mappings[1].offset = Bytes::kib(64),
    ];
    for (place, change) in changes.into_iter().enumerate() {
        let mut head = good_head();
        change(&mut head);
        fuzz::read_all(&file(&head, &bytes, &entries)).unwrap_or_else(|error| panic!("{place}: {error}"));
    }
}

#[test]
fn bytes_behind_the_description_are_refused() {
    let (bytes, entries) = blocks();
    let entries: Vec<u8> = entries.iter().flat_map(|entry| entry.write()).collect();
    let longer = [good_head().write().unwrap(), vec![0]].concat();
    let what = fuzz::read_all(&fuzz::assembled(&bytes, &longer, &entries)).unwrap_err().to_string();
    assert!(what.contains("1 bytes follow its end"), "{what}");
}

#[test]
fn footers_that_lie_are_refused() {
    let header = Header { version: 1, id: SnapshotId([1; 16]) };
    let size = 64 + 4096 + 100 + 2 * Entry::BYTES as u64 + Footer::BYTES as u64;
    let at = size - Footer::BYTES as u64;
    let good = Footer {
        version: 1,
        id: header.id,
        index: 64 + 4096,
        head: 100,
        entries: 2,
        file: size,
        hash: [7; 32],
    };
    assert_eq!(Footer::read(&good.write(), header, size), Ok(good));
    let changes: [Lie<Footer>; 10] = [
        (|footer| footer.id.0[0] = 2, "its footer belongs to another snapshot"),
        (|footer| footer.file += 1, "but had"),
        (|footer| footer.entries = MAX_BLOCKS + 1, "is too large"),
        (|footer| footer.head = MAX_HEAD + 1, "is too large"),
        (|footer| footer.entries += 1, "do not add up"),
        (|footer| footer.head -= 1, "do not add up"),
        (|footer| footer.index -= 1, "do not add up"),
        (|footer| footer.index = u64::MAX, "do not add up"),
        // The head begins inside of the header.
        (|footer| (footer.index, footer.head) = (63, 4197), "do not add up"),
        (|footer| (footer.index, footer.head) = (0, 4260), "do not add up"),
    ];
    for (change, part) in changes {
        let mut footer = good;
        change(&mut footer);
        match Footer::read(&footer.write(), header, size) {
            Err(Wrong::Bad { at: found, what }) => {
                assert!(found == at && what.contains(part), "{part:?}: {what} at {found}")
            }
            other => panic!("{part:?}: {other:?}"),
        }
    }
}

#[test]
fn footers_at_their_limits_are_read() {
    let header = Header { version: 1, id: SnapshotId([1; 16]) };
    for (head, entries) in [(MAX_HEAD, 0), (0, MAX_BLOCKS)] {
        let index = Header::BYTES as u64;
        let file = index + head + entries * Entry::BYTES as u64 + Footer::BYTES as u64;
        let footer = Footer { version: 1, id: header.id, index, head, entries, file, hash: [7; 32] };
        assert_eq!(Footer::read(&footer.write(), header, file), Ok(footer));
    }
}

/// The file of one snapshot with the description of another, and a header of no version.
#[test]
fn headers_that_lie_are_refused() {
    let (bytes, entries) = blocks();
    let mut file = file(&good_head(), &bytes, &entries);
    let other = Header { version: 1, id: SnapshotId([1; 16]) };
    file[..Header::BYTES].copy_from_slice(&other.write());
    let what = fuzz::read_all(&file).unwrap_err().to_string();
    assert!(what.contains("its footer belongs to another snapshot"), "{what}");
    let end = file.len() - Footer::BYTES;
    file[end + 48..end + 64].copy_from_slice(&other.id.0);
    let sum = hash(&file[end..end + 96]);
    file[end + 96..].copy_from_slice(&sum);
    let what = fuzz::read_all(&file).unwrap_err().to_string();
    assert!(what.contains("its description belongs to another snapshot"), "{what}");

    let mut none = other.write();
    none[12] = 0;
    let sum = hash(&none[..32]);
    none[32..].copy_from_slice(&sum);
    let error = Header::read(&none).unwrap_err();
    assert!(matches!(&error, Wrong::Bad { at: 12, what } if what.contains("no version 0")), "{error:?}");
}

#[test]
fn entries_that_lie_are_refused() {
    let stored = |change: fn(&mut Stored)| {
        let (bytes, mut entries) = blocks();
        if let Entry::Stored(stored) = &mut entries[2] {
            change(stored);
        }
        fuzz::read_all(&file(&good_head(), &bytes, &entries)).unwrap_err().to_string()
    };
    let changes: [Lie<Stored>; 10] = [
        (|stored| stored.offset = 65, "bytes is invalid"),
        (|stored| stored.offset = 63, "bytes is invalid"),
        (|stored| stored.offset = u64::MAX, "bytes is invalid"),
        (|stored| stored.length = 4095, "bytes is invalid"),
        (|stored| stored.length = u32::MAX, "bytes is invalid"),
        (|stored| stored.file = 1, "bytes is invalid"),
        (|stored| stored.compressed = Some([0; 8]), "bytes is invalid"),
        (|stored| (stored.length, stored.compressed) = (0, Some([0; 8])), "bytes is invalid"),
        (|stored| (stored.length, stored.compressed) = (9, Some([0; 8])), "but it has others"),
        (|stored| stored.hash[31] ^= 1, "is not what was written"),
    ];
    for (change, part) in changes {
        let what = stored(change);
        assert!(what.contains(part), "{part:?} is missing in {what:?}");
    }
    let (bytes, mut entries) = blocks();
    entries.push(Entry::Zero);
    let what = fuzz::read_all(&file(&good_head(), &bytes, &entries)).unwrap_err().to_string();
    assert!(what.contains("it has entries for 7 blocks, but its memory has 6"), "{what}");
    // Unknown block kinds, and unused bytes that are not zero.
    let head = good_head().write().unwrap();
    for (at, value) in [(54, 3), (55, 1), (0, 1), (40, 1)] {
        let mut entries = vec![0; 6 * Entry::BYTES];
        entries[at] = value;
        let what = fuzz::read_all(&fuzz::assembled(&[], &head, &entries)).unwrap_err().to_string();
        assert!(what.contains("unknown block kind") || what.contains("is not zero"), "{what}");
    }
}

#[test]
fn compressed_bytes_that_lie_are_refused() {
    let contents = vec![5; 4096];
    let check = |bytes: &[u8], part: &str| {
        let (_, mut entries) = blocks();
        let mut check = [0; 8];
        check.copy_from_slice(&hash(bytes)[..8]);
        let length = bytes.len() as u32;
        let stored = Stored { hash: hash(&contents), offset: 64, length, file: 0, compressed: Some(check) };
        entries[2] = Entry::Stored(stored);
        let answer = fuzz::read_all(&file(&good_head(), bytes, &entries));
        let refused = answer.as_ref().err().is_some_and(|error| error.to_string().contains(part));
        assert_eq!(refused, !part.is_empty(), "{answer:?}");
    };
    check(&lz4_flex::block::compress(&contents), "");
    check(&lz4_flex::block::compress(&contents[1..]), "is not what was written");
    check(&lz4_flex::block::compress(&[5; 100_000]), "is not what was written");
    check(&[0xff; 100], "is not what was written");
    check(&[0], "is not what was written");
}

#[test]
fn the_reader_takes_any_bytes() {
    let mut random = Random(1);
    let head = good_head().write().unwrap();
    let (bytes, entries) = blocks();
    let entries: Vec<u8> = entries.iter().flat_map(|entry| entry.write()).collect();
    let mut good = 0;
    // Miri takes a thousand times as long.
    let rounds = if cfg!(miri) { 6 } else { 20_000 };
    for _ in 0..rounds {
        let [mut head, mut entries] = [head.clone(), entries.clone()];
        for _ in 0..random.below(4) {
            let changed = if random.below(2) == 0 { &mut head } else { &mut entries };
            let at = random.below(changed.len());
            match random.below(3) {
                0 => changed[at] = random.next() as u8,
                1 => changed[at] ^= 1 << random.below(8),
                _ => changed.truncate(at + 1),
            }
        }
        good += usize::from(fuzz::read_all(&fuzz::assembled(&bytes, &head, &entries)).is_ok());
        fuzz::decode(&random.bytes(300));
        let with_lengths = [&[255, 0][..], &head].concat();
        fuzz::decode(&with_lengths);
    }
    let is_some = good > rounds / 20 && good < rounds * 3 / 4;
    assert!(is_some || cfg!(miri), "{good} of {rounds}");
}

/// Each error names the byte at which the part begins that is wrong.
#[test]
fn each_error_has_the_wrong_place() {
    let (bytes, entries) = blocks();
    let good = file(&good_head(), &bytes, &entries);
    let (size, index) = (good.len(), Header::BYTES + bytes.len());
    let (end, list) = (size - Footer::BYTES, index + good_head().write().unwrap().len());
    let flipped = |at: usize| {
        let mut changed = good.clone();
        changed[at] ^= 1;
        changed
    };
    let with_entries = |entries: &[u8]| fuzz::assembled(&bytes, &good_head().write().unwrap(), entries);
    let written: Vec<u8> = entries.iter().flat_map(|entry| entry.write()).collect();
    let with_byte = |at: usize, value: u8| {
        let mut changed = written.clone();
        changed[at] = value;
        with_entries(&changed)
    };
    let without_blocks = Head { block: Bytes(0), ..good_head() };
    for (file, at, part) in [
        (good[..10].to_vec(), 10, "it has 10 bytes, fewer than a header"),
        (good[..100].to_vec(), 100, "it has 100 bytes: it is truncated"),
        (flipped(3), 0, "it does not begin like a snapshot"),
        (flipped(20), 32, "the checksum of its header is wrong"),
        (flipped(end), end, "it does not end like a snapshot: it is truncated, or bytes follow its end"),
        (flipped(size - 1), end + 96, "the checksum of its footer is wrong"),
        (flipped(index), index, "the checksum of its index is wrong"),
        (
            file(&without_blocks, &bytes, &entries),
            index,
            "its blocks of 0 B are of an invalid size or too many",
        ),
        (with_entries(&written[Entry::BYTES..]), list, "it has entries for 5 blocks, but its memory has 6"),
        (with_byte(2 * Entry::BYTES + 48, 1), list + 2 * Entry::BYTES, "the entry of a block of 4096 bytes"),
        (with_byte(Entry::BYTES + 54, 9), list + Entry::BYTES + 54, "unknown block kind 9"),
        (
            with_byte(Entry::BYTES + 55, 1),
            list + Entry::BYTES,
            "an unused field of a block entry is not zero",
        ),
        (with_entries(&[0; 6 * Entry::BYTES]), 64, "its entries cover 0 bytes of blocks, but it has others"),
        (with_byte(2 * Entry::BYTES, 0), 64, "a block is not what was written"),
    ] {
        let error = fuzz::read_all(&file).unwrap_err();
        let Some(SnapshotError::Invalid { at: found, what, .. }) = error.extension() else {
            panic!("{error}")
        };
        assert!(*found == at as u64 && what.contains(part), "{part:?} at {at}: {what:?} at {found}");
    }
}
