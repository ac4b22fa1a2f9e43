//! `gpu-vmm report`: the summary, the page's source, and files that are not pool snapshots.

use crate::rig::{Folder, command, fails, stderr, stdout};
use gpu_vmm::pool::{
    BinStats, BlockSnapshot, BlockState, DriverCalls, FramesSnapshot, Moment, PagesSnapshot, PoolSnapshot,
    PoolStats, SpaceSnapshot,
};

const MIB: u64 = 1 << 20;

/// A tag that would end the script, and that contains a placeholder of the template.
pub(crate) const EVIL: &str = "</script><b id=evil>\u{1b}[2J<!--<script>{{data}}&lt;'\"";

fn block(offset: u64, size: u64, state: BlockState, stream: u64) -> BlockSnapshot {
    BlockSnapshot { offset: offset * MIB, size: size * MIB, state, stream }
}

fn pages(offset: u64, count: u64, frame: u32, used: bool) -> PagesSnapshot {
    PagesSnapshot { offset: offset * MIB, count, frame, used }
}

fn space(tag: &str, base: u64, blocks: Vec<BlockSnapshot>, pages: Vec<PagesSnapshot>) -> SpaceSnapshot {
    SpaceSnapshot { tag: tag.to_owned(), base, reserved: 64 << 30, suspended: false, blocks, pages }
}

/// A snapshot of a pool with three tags and all states. Its free frames 40 to 47 are mapped in two of the ranges.
pub(crate) fn snapshot() -> PoolSnapshot {
    use BlockState::{Bins, Cached, Free, Live, Pending};
    let weights = space(
        "weights",
        0x7000_0000_0000,
        vec![block(0, 64, Live, 0), block(64, 16, Free, 0), block(80, 16, Live, 0x5eed_0000)],
        vec![pages(0, 32, 0, true), pages(64, 8, 40, false), pages(80, 8, 32, true)],
    );
    let evil = space(
        EVIL,
        0x7100_0000_0000,
        vec![
            block(0, 2, Bins, 0),
            block(2, 6, Cached, 7),
            block(8, 8, Pending, 7),
            block(16, 16, Free, 0),
            block(32, 5, Live, 7),
            block(37, 64 * 1024 - 37, Free, 0),
        ],
        vec![pages(0, 8, 50, true), pages(16, 8, 40, false), pages(32, 3, 58, true)],
    );
    let mut asleep = space("", 0x7200_0000_0000, vec![block(0, 4, Live, 0)], Vec::new());
    asleep.suspended = true;
    let stats = PoolStats {
        live: 85 * MIB + 300_000,
        live_blocks: 17,
        cached: 6 * MIB,
        pending: 8 * MIB,
        kept: 24 * MIB,
        held: 130 * MIB,
        mapped: 138 * MIB,
        reserved: 192 << 30,
        peak_live: 120 * MIB,
        peak_held: 150 * MIB,
        allocations: 123_456,
        driver_calls: DriverCalls { create: 65, map: 70, unmap: 5, set_access: 40, other: 9 },
        bins: vec![BinStats { size: 1024, live: 3, free: 61 }, BinStats { size: 65536, live: 12, free: 4 }],
    };
    let moment = |at: u64| {
        let live = (at * 7919) % 90 * MIB;
        Moment { at: at as f64 * 0.05, live, pending: (at * 31) % 20 * MIB, held: 90 * MIB + at * MIB / 4 }
    };
    PoolSnapshot {
        version: PoolSnapshot::VERSION,
        device: "cuda 13.0, device 0: a <fast> GPU & \u{1b}[2Jmore".to_owned(),
        at: 8.125,
        page: 2 * MIB,
        stats,
        spaces: vec![weights, evil, asleep],
        unmapped: vec![FramesSnapshot { frame: 64, count: 4 }],
        timeline: (0..160).map(moment).collect(),
    }
}

/// A snapshot of many blocks, as in a pool that has run for a long time.
pub(crate) fn large(blocks: u64) -> PoolSnapshot {
    let states =
        [BlockState::Live, BlockState::Free, BlockState::Pending, BlockState::Live, BlockState::Cached];
    let one =
        |index: u64| block(index * 4, 1 + index * 7919 % 4, states[(index * index % 5) as usize], index % 16);
    let mapping = |index: u64| pages(index * 4, 2, (index * 2) as u32, !index.is_multiple_of(3));
    let mut snapshot = snapshot();
    snapshot.spaces[0].reserved = blocks * 4 * MIB;
    snapshot.spaces[0].blocks = (0..blocks).map(one).collect();
    snapshot.spaces[0].pages = (0..blocks).map(mapping).collect();
    snapshot.timeline = (0..blocks)
        .map(|at| Moment { at: at as f64 / 1e3, live: at * MIB, pending: at % 9 * MIB, held: 2 * at * MIB })
        .collect();
    snapshot
}

/// Writes the snapshot to a file.
pub(crate) fn write(folder: &Folder, snapshot: &PoolSnapshot) -> String {
    let file = folder.file("pool.json");
    std::fs::write(&file, serde_json::to_vec(snapshot).unwrap()).unwrap();
    file
}

#[test]
fn a_picture_is_summed_up_for_people() {
    let folder = Folder::new("report-text");
    let output = command(&["report", &write(&folder, &snapshot())]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    for part in [
        "pool on cuda 13.0, device 0: a <fast> GPU & [2Jmore\n  8.125 s after it was created, pages of 2 MiB\n",
        "  live          85.3 MiB in 17 blocks\n  cached        6 MiB\n  pending       8 MiB\n  kept          24 MiB\n",
        "  held          130 MiB, 34.4 % of it unused\n  mapped        138 MiB\n  reserved      192 GiB\n",
        "  peaks         120 MiB live, 150 MiB held\n  allocations   123456\n",
        "  driver calls  189 (65 create, 70 map, 5 unmap, 40 set access, 9 other)\n",
        "\nrange 0x700000000000 weights\n  96 MiB mapped of 64 GiB of addresses\n  live             2 of     80 MiB\n",
        "  live             1 of      5 MiB\n  bins             1 of      2 MiB\n  cached           1 of      6 MiB\n",
        "  pending          1 of      8 MiB\n  free             2 of   64.0 GiB\n",
        "\nrange 0x720000000000 without a tag\n  0 B mapped of 64 GiB of addresses, suspended\n",
        "\nsmall blocks      live      free\n       1 KiB         3        61\n      64 KiB        12         4\n",
        "\nlargest blocks\n      64 MiB  live     0x700000000000     weights\n",
        "       8 MiB  pending  0x710000800000     </script><b id=evil>[2J<!--<script>{{data}}&lt;'\"\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn the_history_is_a_trace_of_counters() {
    let folder = Folder::new("report-perfetto");
    let (snapshot, out) = (snapshot(), folder.file("trace.json"));
    let file = write(&folder, &snapshot);
    let output = command(&["report", &file, "--perfetto", &out]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!((&trace["displayTimeUnit"], &events[0]["ph"]), (&"ms".into(), &"M".into()));
    assert_eq!(events[0]["args"]["name"], snapshot.device);
    assert_eq!(events.len(), 1 + 3 * snapshot.timeline.len());
    let last = snapshot.timeline.last().unwrap();
    for (name, bytes) in [("held", last.held), ("live", last.live), ("pending", last.pending)] {
        let event = events.iter().rfind(|event| event["name"] == name).unwrap();
        assert_eq!((&event["ph"], &event["args"]["bytes"]), (&"C".into(), &bytes.into()), "{event}");
        assert_eq!(event["ts"], last.at * 1e6, "{event}");
    }
    fails(&["report", &file, "--perfetto", &file], 2, "is the same file as the input");
    fails(&["report", &file, "--perfetto", &out, "--html", &out], 2, "cannot be used with");
}

#[test]
fn page_is_equal_in_both_outputs() {
    let folder = Folder::new("report-page");
    let file = write(&folder, &snapshot());
    let [out, link] = ["out.html", "link.html"].map(|name| folder.file(name));
    let output = command(&["report", &file, "--html", "-"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let page = stdout(&output);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    // An existing file is replaced, also behind a link.
    std::fs::write(&out, "something else, which was there before").unwrap();
    std::os::unix::fs::symlink("out.html", &link).unwrap();
    let output = command(&["report", &file, "--html", &link]).output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output), stdout(&output)),
        (Some(0), String::new(), String::new())
    );
    assert_eq!(std::fs::read_to_string(&out).unwrap(), page);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(folder.names(), ["link.html", "out.html", "pool.json"]);

    assert!(!page.contains("<b id=evil>") && !page.contains('\u{1b}'), "a tag is markup");
    assert_eq!(page.matches("</script>").count(), 2, "a tag ends the script");
    assert!(!page.contains("://"), "the page loads something");
}

#[test]
fn devices_are_written_not_replaced() {
    let folder = Folder::new("report-pipe");
    let output = command(&["report", &write(&folder, &snapshot()), "--html", "/dev/null"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let kind = std::fs::metadata("/dev/null").unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_char_device(&kind));
}

#[test]
fn empty_pool_has_summary_and_page() {
    let folder = Folder::new("report-empty");
    let file = write(&folder, &PoolSnapshot { version: PoolSnapshot::VERSION, ..PoolSnapshot::default() });
    for arguments in [&["report", &file][..], &["report", &file, "--html", "-"]] {
        let output = command(arguments).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    }
}

#[test]
fn invalid_pool_snapshot_error_has_reason() {
    let folder = Folder::new("report-bad");
    let [file, out] = ["pool.json", "out.html"].map(|name| folder.file(name));
    let refused = |expected: &str| {
        fails(&["report", &file], 1, expected);
        fails(&["report", &file, "--html", &out], 1, expected);
        assert!(!std::fs::exists(&out).unwrap());
    };
    refused(&format!("{file} cannot be read: No such file"));
    let wrong = |text: &str, expected: &str| {
        std::fs::write(&file, text).unwrap();
        refused(&format!("{file} is not a pool snapshot: {expected}"));
    };
    wrong("", "EOF while parsing a value at line 1 column 0");
    wrong("no JSON", "expected ident at line 1 column 2");
    wrong("[1]", "invalid length 1");
    wrong("{}", "missing field `version` at line 1 column 2");
    wrong("{\"version\": 2}", "it has version 2, but this gpu-vmm reads version 1");
    wrong("{\"version\": 1}", "missing field `device`");
    let text = serde_json::to_string(&snapshot()).unwrap();
    wrong(&text[..text.len() / 2], "EOF while parsing");
    let mut overlapping = snapshot();
    overlapping.spaces[0].blocks[1].offset = MIB;
    wrong(
        &serde_json::to_string(&overlapping).unwrap(),
        "the block at offset 1 MiB begins before the end of the previous one, 64 MiB, in range 0, tagged \"weights\"",
    );
    fails(&["report"], 2, "the following required arguments were not provided");

    // The text shows no frames, so that only the page is refused.
    let mut scattered = snapshot();
    let frames = |frame| FramesSnapshot { frame, count: 10_000 - u64::from(frame) };
    scattered.unmapped = (0..5_000).map(frames).collect();
    std::fs::write(&file, serde_json::to_string(&scattered).unwrap()).unwrap();
    assert_eq!(command(&["report", &file]).output().unwrap().status.code(), Some(0));
    let why = "its memory is mapped in more than 4194304 places";
    fails(&["report", &file, "--html", &out], 1, &format!("{file} is not a pool snapshot: {why}"));
    assert!(!std::fs::exists(&out).unwrap());
}
