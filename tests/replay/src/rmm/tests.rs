//! Logs of several versions of RMM, and damaged ones.

use super::HEADER;
use crate::event::Event;
use crate::{Recording, Trace};

fn read(rows: &str) -> Trace {
    Trace::read("it", None, format!("{HEADER}\n{rows}").as_bytes()).unwrap()
}

fn recording(trace: &Trace) -> &Recording {
    trace.recording().unwrap()
}

const fn allocate(slot: u32, stream: u16, bytes: u64) -> Event {
    Event::Allocate { slot, stream, bytes }
}

#[test]
fn versions_differ_in_time_and_stream() {
    let free = Event::Free { slot: 0 };
    for rows in [
        // 0.14 to 0.18: a colon before the microseconds, decimal streams.
        "17,23:59:59:999999,allocate,0x7f0a00000000,100,0\n17,00:00:00:000002,allocate,0x7f0a00000100,7,94126\n\
         17,00:00:00:000003,free,0x7f0a00000000,100,0\n",
        // 21.06 to 24.10.
        "17,23:59:59.999999,allocate,0x7f0a00000000,100,0x0\n17,00:00:00.000002,allocate,0x7f0a00000100,7,0x16fae\n\
         17,00:00:00.000003,free,0x7f0a00000000,100,0x0\n",
        // 24.12 and later, with line ends of Windows.
        "17,23:59:59.999999,allocate,0x7f0a00000000,100,0\r\n17,00:00:00.000002,allocate,0x7f0a00000100,7,0x16fae\r\n\
         17,00:00:00.000003,free,0x7f0a00000000,100,0\r\n",
    ] {
        let trace = read(rows);
        assert_eq!(trace.events, [allocate(0, 0, 100), allocate(1, 1, 7), free], "{rows}");
        // Midnight passes after the first row.
        assert_eq!(recording(&trace).times, [0, 3, 4], "{rows}");
        assert_eq!((recording(&trace).source, recording(&trace).peak_held), ("RMM", None));
    }
}

#[test]
fn blocks_before_the_log_come_first() {
    let trace = read(
        "1,10:00:00.5,allocate,0x100,3,0\n1,10:00:01.5,free,0x200,50,0x9\n1,10:00:02.5,allocate,0x200,4,0\n1,10:00:03.5,free,0x100,3,0\n\
         1,10:00:03.5,free,0x200,4,0\n",
    );
    let free = |slot| Event::Free { slot };
    assert_eq!(
        trace.events,
        [allocate(0, 1, 50), allocate(1, 0, 3), free(0), allocate(0, 0, 4), free(1), free(0)]
    );
    assert_eq!((recording(&trace).blocks_before, recording(&trace).bytes_before), (1, 50));
    assert_eq!(recording(&trace).times, [0, 0, 1_000_000, 2_000_000, 3_000_000, 3_000_000]);
}

#[test]
fn per_thread_default_streams_are_different() {
    let trace = read(
        "1,10:00:00.000000,allocate,0x100,1,0x1\n1,10:00:00.000000,allocate,0x200,1,0x2\n2,10:00:00.000000,allocate,0x300,1,0x2\n\
         1,10:00:00.000000,allocate,0x400,1,0x2\n",
    );
    assert_eq!(trace.events, [allocate(0, 0, 1), allocate(1, 1, 1), allocate(2, 2, 1), allocate(3, 1, 1)]);
}

#[test]
fn rows_without_a_block_are_counted() {
    let trace = read(
        "1,10:00:00.000000,allocate,0x100,1,0\n1,10:00:00.000000,allocate failure,(nil),900,0\n1,10:00:00.000000,allocate,(nil),0,0\n\
         1,10:00:00.000000,free,0x0,0,0\n1,09:59:59.999999,resize,0x100,2,0\n\nThread,Time,Action,Pointer,Size,Stream\n\
         1,09:59:59.999999,allocate,0x100,3,0\n",
    );
    let facts = recording(&trace);
    assert_eq!(
        (facts.failed, &facts.unknown[..], facts.frees_implied),
        (1, &[("resize".to_owned(), 1)][..], 1)
    );
    assert_eq!(trace.events, [allocate(0, 0, 1), Event::Free { slot: 0 }, allocate(0, 0, 3)]);
    assert_eq!(facts.times, [0, 0, 0], "a clock that goes back is not another day");
}

#[test]
fn wrong_row_is_reported_with_its_line() {
    for (row, expected) in [
        ("1,2,3", "`1,2,3` is not a row of RMM's log: it has 3 cells, expected 6"),
        ("x,10:00:00.000000,free,0x1,1,0", "Thread should be a number"),
        ("1,10:00:00,free,0x1,1,0", "Time should be of the form 13:59:30.123456"),
        ("1,25:00:00.000000,free,0x1,1,0", "Time should be"),
        ("1,10:00:00.1234567,free,0x1,1,0", "Time should be"),
        ("1,10:00:00.000000,free,zz,1,0", "Pointer should be hexadecimal, or (nil)"),
        ("1,10:00:00.000000,free,0x1,-1,0", "Size should be a number below 2^64"),
        ("1,10:00:00.000000,free,0x1,1,", "Stream should be hexadecimal"),
    ] {
        let log = format!("{HEADER}\n1,10:00:00.000000,allocate,0x1,1,0\n{row}\n");
        let error = Trace::read("it", None, log.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("the trace it, line 3: ") && error.contains(expected), "{error}");
    }
    let much =
        format!("{HEADER}\n1,10:00:00.0,allocate,0x1,{0},0\n1,10:00:00.0,allocate,0x2,{0},0\n", u64::MAX);
    let error = Trace::read("it", None, much.as_bytes()).unwrap_err().to_string();
    assert!(
        error.contains("line 3: the blocks that are allocated here are more than 2^64 - 1 bytes"),
        "{error}"
    );
    let empty = Trace::read("it", None, HEADER.as_bytes()).unwrap_err().to_string();
    assert!(empty.contains("has no allocation"), "{empty}");
    let device = Trace::read("it", Some(0), format!("{HEADER}\n").as_bytes()).unwrap_err().to_string();
    assert!(device.contains("--recorded-device is for memory snapshots of PyTorch"), "{device}");
}
