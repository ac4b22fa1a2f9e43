//! Snapshots of a few entries each: rings, private pools, missing entries and damaged fields. `tests/recorded.rs` has whole ones.

use crate::event::Event;
use crate::{Recording, Trace};

/// Returns a pickled text, number, list or dict.
fn text(text: &str) -> String {
    format!("V{text}\n")
}

fn int(number: i64) -> String {
    format!("I{number}\n")
}

fn list(items: &[String]) -> String {
    format!("({}l", items.concat())
}

fn dict(fields: &[(&str, String)]) -> String {
    let fields: String = fields.iter().map(|(name, value)| text(name) + value).collect();
    format!("({fields}d")
}

/// An entry with times from 10 on.
fn entry(action: &str, address: i64, bytes: i64) -> String {
    on_stream(action, address, bytes, 0)
}

fn on_stream(action: &str, address: i64, bytes: i64, stream: i64) -> String {
    dict(&[
        ("action", text(action)),
        ("addr", int(address)),
        ("size", int(bytes)),
        ("stream", int(stream)),
        ("time_us", int(10)),
    ])
}

fn in_pool(action: &str, address: i64, bytes: i64, pool: i64) -> String {
    let pool = format!("({}{}t", int(0), int(pool));
    dict(&[("action", text(action)), ("addr", int(address)), ("size", int(bytes)), ("pool_id", pool)])
}

/// A segment at 4096 whose blocks have a requested size, and are in use if that is not 0.
fn segment(blocks: &[(i64, i64)]) -> String {
    let blocks: Vec<String> = blocks
        .iter()
        .map(|(size, requested)| {
            let state = if *requested > 0 { "active_allocated" } else { "inactive" };
            dict(&[("size", int(*size)), ("requested_size", int(*requested)), ("state", text(state))])
        })
        .collect();
    let total = int(1 << 21);
    dict(&[("address", int(4096)), ("total_size", total), ("stream", int(0)), ("blocks", list(&blocks))])
}

fn snapshot(segments: &[String], traces: &[Vec<String>]) -> Vec<u8> {
    let traces: Vec<String> = traces.iter().map(|entries| list(entries)).collect();
    let root = dict(&[("segments", list(segments)), ("device_traces", list(&traces))]);
    [b"\x80\x02", root.as_bytes(), b"."].concat()
}

fn read(segments: &[String], entries: &[String]) -> Trace {
    Trace::read("it", None, &snapshot(segments, &[entries.to_vec()])[..]).unwrap()
}

fn recording(trace: &Trace) -> &Recording {
    trace.recording().unwrap()
}

fn error(bytes: &[u8]) -> String {
    Trace::read("it", None, bytes).unwrap_err().to_string()
}

const fn allocate(slot: u32, bytes: u64) -> Event {
    Event::Allocate { slot, stream: 0, bytes }
}

#[test]
fn blocks_before_the_ring_come_first() {
    let trace = read(
        &[segment(&[(512, 300), (1024, 0), (512, 400), (1 << 20, 0)])],
        &[
            entry("free_requested", 1 << 20, 70),
            entry("free_completed", 1 << 20, 70),
            entry("free_completed", 2 << 20, 80),
            entry("alloc", 5632, 400),
        ],
    );
    // 400 bytes at 5632 are a block of the trace; 300 at 4096 are not, and neither are those that are freed.
    let free = |slot| Event::Free { slot };
    assert_eq!(
        trace.events,
        [allocate(0, 300), allocate(1, 70), allocate(2, 80), free(1), free(2), allocate(2, 400)]
    );
    assert_eq!((recording(&trace).blocks_before, recording(&trace).bytes_before), (3, 450));
    assert_eq!((trace.peak_asked(), trace.freed_for_later()), (700, 0));
}

#[test]
fn later_completion_is_a_fence() {
    let trace = read(
        &[],
        &[
            on_stream("alloc", 512, 1, 99),
            on_stream("alloc", 1024, 2, -1),
            entry("free_requested", 512, 1),
            entry("free_requested", 1024, 2),
            entry("free_completed", 1024, 2),
            entry("free_completed", 512, 1),
        ],
    );
    assert_eq!(trace.streams, [0, 99, u64::MAX]);
    let expected =
        [Event::FreeAfter { slot: 0, fence: 0 }, Event::Free { slot: 1 }, Event::Done { fence: 0 }];
    assert_eq!(trace.events[2..], expected);
}

#[test]
fn frees_that_are_not_recorded_are_implied() {
    // Without any frees, as `skip_actions` allows, a block ends when another one has a part of its addresses.
    let trace = read(
        &[],
        &[
            entry("alloc", 512, 600),
            entry("alloc", 4096, 8),
            entry("alloc", 1024, 10),
            entry("alloc", 512, 5),
        ],
    );
    assert_eq!((trace.allocations(), trace.frees(), recording(&trace).frees_implied), (4, 1, 1));
    // Without the completions, memory is reusable at the request.
    let trace = read(&[], &[entry("alloc", 512, 1), entry("free_requested", 512, 1), entry("alloc", 512, 1)]);
    assert_eq!((trace.frees(), trace.freed_for_later()), (1, 0));
    // Without the requests, a block is freed at its completion.
    let trace = read(&[], &[entry("alloc", 512, 1), entry("free_completed", 512, 1), entry("alloc", 512, 1)]);
    assert_eq!((trace.frees(), trace.freed_for_later(), recording(&trace).frees_implied), (1, 0, 0));
}

#[test]
fn private_pools_keep_their_blocks() {
    let trace = read(
        &[],
        &[
            in_pool("segment_alloc", 0, 1 << 21, 1),
            in_pool("alloc", 512, 8000, 1),
            in_pool("free_requested", 512, 8000, 1),
            in_pool("free_completed", 512, 8000, 1),
            in_pool("alloc", 65536, 8000, 0),
            in_pool("alloc", 16384, 7000, 1),
            in_pool("alloc", 32768, 7000, 2),
            in_pool("free_requested", 16384, 7000, 1),
            in_pool("free_completed", 16384, 7000, 1),
            in_pool("segment_free", 0, 1 << 21, 1),
            in_pool("alloc", 512, 8000, 1),
        ],
    );
    let expected = [
        allocate(0, 8000),
        allocate(1, 8000),
        // The pool's second request has its first block; another pool's has not.
        allocate(2, 7000),
        Event::Free { slot: 0 },
        allocate(0, 8000),
    ];
    assert_eq!((&trace.events[..], recording(&trace).private), (&expected[..], 4));
}

#[test]
fn held_memory_is_counted_from_the_end() {
    let trace = read(
        &[segment(&[])],
        &[
            entry("segment_free", 1 << 30, 20 << 20),
            entry("alloc", 512, 1),
            entry("segment_map", 2 << 30, 1 << 20),
            entry("segment_unmap", 2 << 30, 2 << 20),
            entry("alloc", 1024, 1),
        ],
    );
    // 2 MiB at the end: 23 MiB before the first entry.
    let mib = |count: u64| count << 20;
    assert_eq!(recording(&trace).held, [(0, mib(23)), (0, mib(3)), (1, mib(4)), (1, mib(2))]);
    assert_eq!(recording(&trace).peak_held, Some(mib(23)));
    assert_eq!(recording(&read(&[], &[entry("alloc", 512, 1)])).peak_held, None);
}

#[test]
fn other_entries_are_counted_or_left_out() {
    let prefix = |action| {
        dict(&[
            ("action", text(action)),
            ("addr", int(512)),
            ("size", int(5000)),
            ("internal_metadata", text("mallocWithAddress")),
        ])
    };
    let trace = read(
        &[],
        &[
            entry("alloc", 512, 1),
            dict(&[("action", text("oom")), ("device_free", int(5)), ("size", int(9))]),
            dict(&[("action", text("snapshot"))]),
            dict(&[("action", text("annotate"))]),
            dict(&[("action", text("teleport"))]),
            dict(&[("action", text("teleport"))]),
            prefix("alloc"),
            prefix("free_requested"),
            prefix("free_completed"),
        ],
    );
    assert_eq!((trace.allocations(), trace.frees(), recording(&trace).failed), (1, 0, 1));
    assert_eq!(recording(&trace).unknown, [("teleport".to_owned(), 2)]);
}

#[test]
fn device_is_chosen_or_the_only_one() {
    let one = || vec![entry("alloc", 512, 1)];
    let two = snapshot(&[], &[one(), vec![], vec![entry("alloc", 512, 7), entry("alloc", 1024, 7)]]);
    let of = |device| Trace::read("it", device, &two[..]);
    assert_eq!([0, 2].map(|device| of(Some(device)).unwrap().peak_asked()), [1, 14]);
    let error = of(None).unwrap_err().to_string();
    assert_eq!(
        error,
        "the memory snapshot it: it has entries of devices 0, 2; choose one with --recorded-device"
    );
    let error = of(Some(1)).unwrap_err().to_string();
    assert!(error.contains("no entries of device 1; it has some of devices 0, 2"), "{error}");
    let last = snapshot(&[], &[vec![], one()]);
    let trace = Trace::read("it", None, &last[..]).unwrap();
    assert_eq!(recording(&trace).device, Some(1));
}

#[test]
fn segments_of_other_devices_are_left_out() {
    let of_device = |device: i64| {
        dict(&[
            ("device", int(device)),
            ("address", int(4096)),
            ("total_size", int(1 << 20)),
            ("blocks", list(&[dict(&[("size", int(512)), ("state", text("active_allocated"))])])),
        ])
    };
    let trace = read(&[of_device(0), of_device(1)], &[entry("alloc", 1 << 20, 1)]);
    // Blocks of old versions have no requested size.
    assert_eq!((recording(&trace).bytes_before, recording(&trace).peak_held), (512, Some(1 << 20)));
}

#[test]
fn wrong_field_is_reported_with_its_place() {
    let with = |entry: String| snapshot(&[], &[vec![self::entry("alloc", 512, 1), entry]]);
    for (bytes, expected) in [
        (
            b"\x80\x02(l.".to_vec(),
            "the pickle is a list, expected the dict that torch.cuda.memory._dump_snapshot writes",
        ),
        (b"\x80\x02(d.".to_vec(), "the snapshot has no `device_traces`"),
        (
            snapshot(&[], &[]),
            "`device_traces` has no entries; call torch.cuda.memory._record_memory_history()",
        ),
        (with(int(3)), "`device_traces[0][1]` is an integer, expected a dict"),
        (with(dict(&[])), "`device_traces[0][1]` has no `action`"),
        (
            with(dict(&[("action", int(1))])),
            "`action` of `device_traces[0][1]` is an integer, expected a str",
        ),
        (with(dict(&[("action", text("alloc"))])), "`device_traces[0][1]` has no `size`"),
        (with(entry("alloc", 512, 0)), "`size` of `device_traces[0][1]` is 0"),
        (with(entry("alloc", 512, -5)), "`size` of `device_traces[0][1]` is negative"),
        (
            with(dict(&[("action", text("alloc")), ("size", int(1)), ("addr", text("x"))])),
            "`addr` of `device_traces[0][1]` is a str, expected an integer",
        ),
        (
            snapshot(&[dict(&[("address", int(1)), ("blocks", int(1))])], &[vec![entry("alloc", 512, 1)]]),
            "`blocks` of `segments[0]` is an integer, expected a list",
        ),
        (
            snapshot(
                &[dict(&[("address", int(1)), ("blocks", list(&[dict(&[])]))])],
                &[vec![entry("alloc", 512, 1)]],
            ),
            "`segments[0][\"blocks\"][0]` has no `size`",
        ),
    ] {
        let error = error(&bytes);
        assert!(
            error.starts_with("the memory snapshot it: ") && error.contains(expected),
            "{expected:?}: {error}"
        );
    }
    let total = i64::MAX;
    let much = snapshot(
        &[],
        &[vec![entry("alloc", 0, total), entry("alloc", 1 << 62, total), entry("alloc", -9, total)]],
    );
    // The second overlaps the first; no sum overflows.
    assert!(Trace::read("it", None, &much[..]).is_ok());
    assert!(
        error(b"\x80\x02cposix\nsystem\n.")
            .starts_with("the trace it, byte 2: the opcode GLOBAL of `posix.system` refers to code")
    );
    assert!(error(b"\x80\x02}").ends_with("byte 3: the file ends in the middle of the pickle"));
}
