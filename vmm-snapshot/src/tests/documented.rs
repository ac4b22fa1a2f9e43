//! A reader that knows only `docs/guide/snapshot-format.md`: it takes all offsets from the guide's tables.

use super::*;
use std::collections::BTreeMap;

const GUIDE: &str = include_str!("../../../docs/guide/snapshot-format.md");

/// Returns the table of a chapter: byte ranges by field.
fn places(chapter: &str) -> BTreeMap<String, std::ops::Range<usize>> {
    let text = GUIDE.split("\n## ").find(|part| part.starts_with(&format!("{chapter}\n"))).unwrap();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, at, bytes, what, _] = cells[..] else { return None };
        let (at, bytes): (usize, usize) = (at.parse().ok()?, bytes.parse().ok()?);
        Some((what.split([',', ':']).next().unwrap().to_owned(), at..at + bytes))
    });
    rows.collect()
}

fn size(chapter: &str) -> usize {
    let places = places(chapter);
    let mut ends: Vec<_> = places.values().map(|place| (place.start, place.end)).collect();
    ends.sort_unstable();
    // The fields have no gap and no overlap.
    assert!(ends.windows(2).all(|pair| pair[0].1 == pair[1].0) && ends[0].0 == 0, "{ends:?}");
    let size = ends.last().unwrap().1;
    let (name, per) = if chapter == "Entries" { ("entries", " for each block") } else { (chapter, " |") };
    let row = format!("| {} | {size}{per}", name.to_lowercase());
    assert!(GUIDE.contains(&row), "{row:?} is not in the guide");
    size
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Takes one postcard number off the buffer.
fn varint(rest: &mut &[u8]) -> u64 {
    let end = rest.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let (first, others) = rest.split_at(end);
    *rest = others;
    first.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
}

#[test]
fn what_is_documented_is_in_the_file() {
    let folder = Folder::new("documented");
    let path = folder.file("a");
    let stats = write(&path, &contents(1), small()).unwrap();
    let file = SnapshotFile::open(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let sum = |bytes: &[u8]| blake3::hash(bytes).as_bytes().to_vec();

    let (header, place) = (&bytes[..size("Header")], places("Header"));
    let of = |name: &str| &header[place[name].clone()];
    assert_eq!(of("`gpu-vmm snap`"), b"gpu-vmm snap");
    assert_eq!(number(of("version")), 1);
    assert_eq!(of("id"), file.description().id.0);
    assert_eq!(of("checksum of the 32 bytes before"), sum(&header[..32]));

    let (rest, footer) = bytes.split_at(bytes.len() - size("Footer"));
    let place = places("Footer");
    let of = |name: &str| &footer[place[name].clone()];
    assert_eq!(of("`gpu-vmm done`"), b"gpu-vmm done");
    assert_eq!((number(of("version")), of("id")), (1, &file.description().id.0[..]));
    assert_eq!((number(of("the bytes of the file")), bytes.len()), (bytes.len(), stats.file.0 as usize));
    let (head, count) = (number(of("the bytes of the head")), number(of("how many entries there are")));
    let index = &rest[number(of("where the head begins"))..];
    assert_eq!(of("checksum of the head and the entries"), sum(index));
    assert_eq!(of("checksum of the 96 bytes before"), sum(&footer[..96]));
    let (mut head, entries) = index.split_at(head);
    assert_eq!((entries.len(), count as u64), (count * size("Entries"), stats.blocks));

    // The first fields of the head.
    assert_eq!(varint(&mut head), BLOCK.0);
    assert_eq!((&head[..16], head[16]), (&file.description().id.0[..], 0));
    head = &head[17..];
    assert_eq!(varint(&mut head), file.description().created);
    assert_eq!(&head[..11], b"\x050.1.0\x04host");

    // Its last fields: both memories with their properties, and no needed file.
    let row = "| kind | device: number; host memory: maybe, of a node: maybe number; kinds of handle: number, \
        1 descriptor, 2 Win32, 8 fabric; compressible: bool; remote DMA: bool |";
    assert!(GUIDE.contains(row));
    let units = |count: u8| [0x80, 0x20 * count, 0x80, 0x20];
    let last = [&[2, 0x80, 0x80, 1, 0x80, 0x20, 0, 0, 0, 1, 0], &units(2)[..], &[2, 1, 1, 1, 0, 0, 1], &[0]];
    assert!(head.ends_with(&last.concat()), "{head:?}");
    // The properties of growth of the last region, after a granularity of 4 KiB and an alignment of 64 KiB.
    let kind = [0x80, 0x20, 0x80, 0x80, 4, 2, 0, 1, 0, 0];
    assert!(head.windows(kind.len()).any(|bytes| bytes == kind), "{head:?}");

    let place = places("Entries");
    let contents = contents(1).concat();
    for (entry, contents) in entries.chunks(size("Entries")).zip(contents.chunks(4096)) {
        let of = |name: &str| &entry[place[name].clone()];
        let stored = &bytes[number(of("where the block begins in its file"))..];
        let stored = &stored[..number(of("how many bytes it has in its file"))];
        assert_eq!((number(of("which file")), number(of("zero"))), (0, 0));
        match number(of("0 zeros")) {
            0 => assert!(contents.iter().all(|byte| *byte == 0) && entry.iter().all(|byte| *byte == 0)),
            1 => assert_eq!(stored, contents),
            2 => {
                assert_eq!(lz4_flex::block::decompress(stored, 4096).unwrap(), contents);
                assert_eq!(of("for a compressed block"), &sum(stored)[..8]);
            }
            kind => panic!("{kind}"),
        }
        assert!(stored.is_empty() || of("checksum of the contents") == sum(contents));
    }
    assert!(GUIDE.contains(&format!("in version {VERSION}. ")));
}
