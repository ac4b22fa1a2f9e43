//! `gpu-vmm snapshot`: its output for a file, and its errors for an invalid one.

use crate::rig::{Folder, command, fails, json, stderr, stdout};
use gpu_vmm::snapshot::{
    Description, DeviceRecord, MappingRecord, MemoryRecord, RegionRecord, SnapshotFile, SnapshotId,
    SnapshotWriter, WriteOptions,
};
use gpu_vmm::{Access, AccessMap, Address, Alignment, Bytes, DeviceId, DeviceUuid, Granularity, Properties};
use std::os::unix::fs::FileExt;

/// Returns a region of three mappings, of which two are adjacent and alike, and a region without mappings.
fn description() -> Description {
    let granularity = Granularity::new(Bytes::kib(64)).unwrap();
    let device = DeviceId(3);
    let access = AccessMap::NONE.with(device, Access::ReadWrite).with(DeviceId::HOST, Access::Read);
    let mapping = |offset, memory| MappingRecord { offset: Bytes::kib(offset), memory, access };
    let region = |tag: &str, address, mappings| RegionRecord {
        tag: tag.to_owned(),
        address: Address(address),
        reservations: vec![Bytes::mib(1), Bytes::mib(1)],
        granularity,
        alignment: Alignment::from(granularity),
        memory: Properties::on(device),
        access: AccessMap::NONE,
        extend_by: Bytes::ZERO,
        guard: Bytes::ZERO,
        portable: false,
        below: None,
        mappings,
    };
    let memory = MemoryRecord { size: Bytes::kib(128), granularity, properties: Properties::on(device) };
    Description {
        id: SnapshotId([0x1f; 16]),
        parent: None,
        created: 1_700_000_000,
        library: "0.1.0".to_owned(),
        vendor: "cuda".to_owned(),
        driver: "13.0".to_owned(),
        devices: vec![DeviceRecord {
            id: device,
            name: "A\u{1b}[2J GPU".to_owned(),
            uuid: Some(DeviceUuid([0xab; 16])),
            granularity,
            total_memory: Bytes::gib(80),
        }],
        regions: vec![
            region("weights", 0x1000_0000_0000, vec![mapping(0, 0), mapping(128, 1), mapping(512, 0)]),
            region("", 0x2000_0000_0000, Vec::new()),
        ],
        memories: vec![memory; 2],
        pool: None,
    }
}

/// Writes four blocks of 64 KiB: zeros, two that can be compressed, and one filled with `last`.
pub(crate) fn write(path: &str, last: u8, since: Option<&str>) {
    let since = since.map(|path| SnapshotFile::open(path).unwrap());
    write_as(path, last, WriteOptions { compress: true, since: since.as_ref(), block: None });
}

fn write_as(path: &str, last: u8, options: WriteOptions<'_>) {
    let options = WriteOptions { block: Some(Bytes::kib(64)), ..options };
    let mut description = description();
    description.id = SnapshotId::new().unwrap();
    let writer = SnapshotWriter::create(path, &description, options).unwrap();
    for (memory, block, byte) in [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, last)] {
        writer.write_block(memory, block, &[byte; 65536]).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_good_snapshot_is_shown_and_checked() {
    let folder = Folder::new("snapshot-good");
    let file = folder.file("a");
    write(&file, 3, None);
    let output = command(&["snapshot", &file]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    for part in [
        "  written       2023-11-14 22:13:20 UTC by gpu-vmm 0.1.0, cuda with driver 13.0\n",
        "  device 3      A[2J GPU, 80 GiB, abababab-abab-abab-abab-abababababab\n",
        "\nregion 0x100000000000 weights\n  384 KiB mapped of 2 MiB of addresses\n",
        "  at 0 B            256 KiB in 2 mappings  device memory of device 3; device 3: read and write, the",
        "  at 512 KiB        128 KiB  device memory of device 3; device 3: read and write, the host: read\n",
        "\nregion 0x200000000000 without a tag\n  0 B mapped of 2 MiB of addresses\n",
        "\n4 blocks of 64 KiB: 1 is zeros, 0 unchanged since earlier, 3 stored, 3 of them compressed\n",
        "256 KiB of memory in a file of ",
        "\nchecked: every block matches its checksum\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn a_snapshot_in_json_has_every_member() {
    let folder = Folder::new("snapshot-json");
    let [first, second] = ["a", "b"].map(|name| folder.file(name));
    write(&first, 3, None);
    write(&second, 4, Some(&first));
    let one = json(&command(&["snapshot", "--json", &first]).output().unwrap());
    let two = json(&command(&["snapshot", "--json", &second]).output().unwrap());
    assert_eq!((&one["verified"], &one["error"]), (&true.into(), &serde_json::Value::Null));
    assert_eq!(
        (&one["backend"], &one["driver"], &one["version"]),
        (&"cuda".into(), &"13.0".into(), &"0.1.0".into())
    );
    assert_eq!((&one["created"], &one["block_bytes"]), (&1_700_000_000.into(), &65536.into()));
    assert_eq!(one["content_bytes"], 4 * 65536);
    assert_eq!(one["file_bytes"], std::fs::metadata(&first).unwrap().len());
    assert_eq!(one["regions"][0]["address"], "0x100000000000");
    assert_eq!(one["regions"][0]["parts"][0]["mappings"], 2);
    assert_eq!(one["regions"][0]["parts"][1]["access"][1]["device"], "the host");
    let device = serde_json::json!({
        "device": 3,
        "name": "A\u{1b}[2J GPU",
        "uuid": "abababab-abab-abab-abab-abababababab",
        "granularity_bytes": 65536,
        "total_bytes": Bytes::gib(80).0,
    });
    assert_eq!(one["devices"], serde_json::json!([device]));
    let region = &one["regions"][0];
    let names = ["tag", "reserved_bytes", "mapped_bytes", "guard_bytes", "portable"];
    let members = serde_json::json!(names.map(|name| &region[name]));
    assert_eq!(members, serde_json::json!(["weights", Bytes::mib(2).0, 393_216, 0, false]));
    let part = serde_json::json!({
        "offset": 524_288,
        "bytes": 131_072,
        "mappings": 1,
        "memory": "device memory of device 3",
        "access": [{"device": "device 3", "access": "read and write"}, {"device": "the host", "access": "read"}],
    });
    assert_eq!((&region["parts"][1], region["parts"].as_array().map(Vec::len)), (&part, Some(2)));
    assert_eq!(one["regions"].as_array().map(Vec::len), Some(2));
    let count = |report: &serde_json::Value| {
        ["all", "zero", "unchanged", "stored", "compressed"]
            .map(|name| report["blocks"][name].as_u64().unwrap())
    };
    assert_eq!((count(&one), count(&two)), ([4, 1, 0, 3, 3], [4, 1, 2, 1, 1]));
    let third = folder.file("c");
    write_as(&third, 3, WriteOptions::default());
    let three = json(&command(&["snapshot", "--json", &third]).output().unwrap());
    assert_eq!((count(&three), &three["file"]), ([4, 1, 0, 3, 0], &third.as_str().into()));
    assert_eq!((&two["since"], &two["needs"][0]), (&two["needs"][0], &two["since"]));
    assert_eq!((&two["since"]["id"], &two["since"]["file"]), (&one["id"], &"a".into()));
    let text = stdout(&command(&["snapshot", &second]).output().unwrap());
    let earlier = format!("{} in a", one["id"].as_str().unwrap());
    assert!(text.contains(&format!("  since         {earlier}\n  needs         {earlier}\n")), "{text}");
    assert!(text.contains("1 is zeros, 2 unchanged since earlier, 1 stored, 1 of them compressed"), "{text}");
}

#[test]
fn bad_snapshot_error_has_the_place() {
    let folder = Folder::new("snapshot-bad");
    let [first, second] = ["a", "b"].map(|name| folder.file(name));
    fails(&["snapshot", &first], 1, "open snapshot: ");
    write(&first, 3, None);
    write(&second, 4, Some(&first));

    std::fs::File::options().write(true).open(&first).unwrap().write_all_at(&[9], 70).unwrap();
    for file in [&first, &second] {
        let output = command(&["snapshot", file]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let expected = format!(
            "{first} is not a valid snapshot: block 1 of memory 0 is not what was written (at byte 64)"
        );
        assert_eq!(stderr(&output), format!("gpu-vmm: error: read snapshot: {expected}\n"));
        let text = stdout(&output);
        assert!(text.contains("weights") && !text.contains("checked"), "{text}");
        let output = command(&["snapshot", "--json", file]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["verified"], false);
        assert!(report["error"].as_str().unwrap().contains(&expected), "{report}");
    }

    std::fs::remove_file(&first).unwrap();
    let output = command(&["snapshot", &second]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("it needs the earlier snapshot"), "{}", stderr(&output));
    std::fs::write(&first, "no snapshot, and a text that is long enough to be the header of one").unwrap();
    fails(&["snapshot", &first], 1, "it does not begin like a snapshot (at byte 0)");
    fails(&["snapshot"], 2, "the following required arguments were not provided");
}
