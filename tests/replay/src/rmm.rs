//! Reads the log of RMM's `logging_resource_adaptor`: a table with the columns Thread, Time, Action, Pointer, Size and Stream.
//!
//! Sizes are requested ones. RMM's own memory resources align blocks to 256 bytes. The log has nothing about the memory that they held.

use crate::builder::Builder;
use crate::error::Wrong;
use crate::event::Trace;
use crate::recording::Recording;
use gpu_vmm_core::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};

type Answer<T = ()> = Result<T, Wrong>;

/// The first line of each log, in all versions since 0.14.
pub(crate) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

const ALIGNMENT: Bytes = Bytes(256);

/// The legacy default stream under its own name, `cudaStreamLegacy`.
const LEGACY: u64 = 1;

/// The default stream of the calling thread, `cudaStreamPerThread`.
const PER_THREAD: u64 = 2;

const DAY: u64 = 24 * 3600 * 1_000_000;

/// A row of the log.
#[derive(Clone, Copy)]
struct Row {
    line: u32,
    time: u64,
    frees: bool,
    pointer: u64,
    bytes: u64,
    stream: u64,
}

/// Reads one line after the other.
pub(crate) struct Log {
    rows: Vec<Row>,
    recording: Recording,
    last_line: u32,
    last_time: Option<u64>,
    first_time: u64,
    days: u64,
    /// The stream numbers of each thread's own default stream.
    threads: HashMap<u64, u64>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            rows: Vec::new(),
            recording: Recording::new("RMM", None, ALIGNMENT),
            last_line: 0,
            last_time: None,
            first_time: 0,
            days: 0,
            threads: HashMap::new(),
        }
    }

    /// Reads the line with this number. The first one is the header.
    pub(crate) fn line(&mut self, number: u32, text: &[u8]) -> Answer {
        self.last_line = number;
        let text = String::from_utf8_lossy(text);
        let text = text.trim();
        // Logs that were appended to one another have several headers.
        if text.is_empty() || text == HEADER {
            return Ok(());
        }
        let wrong = |why: String| Wrong::NotARow { text: crate::parse::shown(text.as_bytes()), why };
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        let cells: [&str; 6] = cells.try_into().map_err(|cells: Vec<_>| {
            wrong(format!("it has {} cells, expected {}", cells.len(), COLUMNS.len()))
        })?;
        let [thread, time, action, pointer, bytes, stream] = cells;
        let cell = |name: &str, expected: &str| wrong(format!("{name} should be {expected}"));
        let thread = thread.parse().map_err(|_| cell("Thread", "a number"))?;
        let time =
            time_of(time).ok_or_else(|| cell("Time", "of the form 13:59:30.123456 or 13:59:30:123456"))?;
        let pointer = pointer_of(pointer).ok_or_else(|| cell("Pointer", "hexadecimal, or (nil)"))?;
        let bytes = bytes.parse().map_err(|_| cell("Size", "a number below 2^64"))?;
        let stream = pointer_of(stream).ok_or_else(|| cell("Stream", "hexadecimal"))?;
        let frees = match action {
            "allocate" => false,
            "free" => true,
            "allocate failure" => {
                self.recording.failed += 1;
                return Ok(());
            }
            other => {
                self.recording.count_unknown(other);
                return Ok(());
            }
        };
        let time = self.since_first(time);
        // An allocation of nothing has no block.
        if bytes > 0 && pointer > 0 {
            let stream = self.stream(thread, stream);
            self.rows.push(Row { line: number, time, frees, pointer, bytes, stream });
        }
        Ok(())
    }

    /// Returns the number of a stream in the trace.
    fn stream(&mut self, thread: u64, stream: u64) -> u64 {
        match stream {
            LEGACY => 0,
            PER_THREAD => {
                let next = u64::MAX - self.threads.len() as u64;
                *self.threads.entry(thread).or_insert(next)
            }
            other => other,
        }
    }

    /// Returns the microseconds since the first row. The log has no date, so a time that is half a day earlier is of the next day.
    fn since_first(&mut self, time: u64) -> u64 {
        let Some(last) = self.last_time else {
            (self.last_time, self.first_time) = (Some(time), time);
            return 0;
        };
        let mut now = time + self.days * DAY;
        if now + DAY / 2 < last {
            self.days += 1;
            now += DAY;
        }
        // Threads may log in another order than they have read the clock.
        let now = now.max(last);
        self.last_time = Some(now);
        now - self.first_time
    }

    /// Returns the whole trace.
    pub(crate) fn finish(mut self) -> Result<Trace, (u32, Wrong)> {
        let mut replay = Replay {
            builder: Builder::new(),
            live: HashMap::new(),
            times: Vec::with_capacity(self.rows.len()),
            next: 0,
        };
        for row in before(&self.rows).into_values() {
            self.recording.blocks_before += 1;
            self.recording.bytes_before = self.recording.bytes_before.saturating_add(row.bytes);
            replay.allocate(&Row { time: 0, ..row }).map_err(|wrong| (row.line, wrong))?;
        }
        for row in &self.rows {
            replay.row(row, &mut self.recording).map_err(|wrong| (row.line, wrong))?;
        }
        self.recording.times = replay.times;
        let mut trace = replay.builder.finish();
        trace.recording = Some(self.recording);
        Ok(trace)
    }
}

/// Returns the rows that free a block which was allocated before the log began, by pointer.
fn before(rows: &[Row]) -> BTreeMap<u64, Row> {
    let mut known = HashSet::new();
    let first_of_pointer = |row: &&Row| known.insert(row.pointer);
    rows.iter().filter(first_of_pointer).filter(|row| row.frees).map(|row| (row.pointer, *row)).collect()
}

struct Replay {
    builder: Builder,
    /// The ID of the block at each pointer.
    live: HashMap<u64, u64>,
    times: Vec<u64>,
    next: u64,
}

impl Replay {
    fn row(&mut self, row: &Row, recording: &mut Recording) -> Answer {
        if row.frees {
            return self.free(row);
        }
        // RMM logs a free before it and an allocation after it, so the log lacks the free of a block that is still there.
        recording.frees_implied += u64::from(self.live.contains_key(&row.pointer));
        self.free(row)?;
        self.allocate(row)
    }

    fn allocate(&mut self, row: &Row) -> Answer {
        self.next += 1;
        self.builder.allocate(row.line, self.next, row.bytes, row.stream)?;
        self.live.insert(row.pointer, self.next);
        self.times.push(row.time);
        Ok(())
    }

    /// Frees the block at the pointer of a row, if there is one.
    fn free(&mut self, row: &Row) -> Answer {
        let Some(id) = self.live.remove(&row.pointer) else { return Ok(()) };
        self.builder.free(row.line, id)?;
        self.times.push(row.time);
        Ok(())
    }
}

/// Parses hours, minutes, seconds and microseconds. The last separator was a colon before version 21.06.
fn time_of(text: &str) -> Option<u64> {
    let mut numbers = text.split([':', '.']).map(|part| {
        let digits = !part.is_empty() && part.len() <= 6 && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse::<u64>().ok()).flatten()
    });
    let mut part = || numbers.next().flatten();
    let (hours, minutes, seconds, fraction) = (part()?, part()?, part()?, part()?);
    let digits = text.rsplit([':', '.']).next()?.len() as u32;
    let possible = hours < 24 && minutes < 60 && seconds < 61 && numbers.next().is_none();
    let micros = fraction * 10_u64.pow(6 - digits);
    possible.then_some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros)
}

/// Parses a pointer as C and C++ print it: hexadecimal, with `0x` or without.
fn pointer_of(text: &str) -> Option<u64> {
    if text == "(nil)" {
        return Some(0);
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests;
