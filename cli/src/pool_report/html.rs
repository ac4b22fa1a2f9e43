//! A pool snapshot as a page: one file with everything it needs. The numbers are text, and the script draws the rest
//! from the data.

use super::frames::{Frames, frames};
use super::{largest, mapped, recorded_name, state_name, summary, unused};
use crate::output::{about, counted};
use crate::replay::history::History;
use gpu_vmm::pool::{Moment, PoolSnapshot, SpaceSnapshot};
use gpu_vmm::{Address, Bytes};
use serde::Serialize;
use std::fmt::Write;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPTS: [&str; 6] = [
    include_str!("page/common.js"),
    include_str!("page/view.js"),
    include_str!("page/rows.js"),
    include_str!("page/spaces.js"),
    include_str!("page/frames.js"),
    include_str!("page/timeline.js"),
];

/// The data for the script.
#[derive(Serialize)]
struct Data<'a> {
    page: u64,
    spaces: Vec<Space<'a>>,
    frames: Vec<Frames>,
    timeline: Vec<(f64, u64, u64, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Replay>,
}

/// A replay's moments: the time, the requested memory, and what the pool and the recorded allocator held.
#[derive(Serialize)]
struct Replay {
    seconds: bool,
    recorded: String,
    moments: Vec<(f64, u64, u64, Option<u64>)>,
}

#[derive(Serialize)]
struct Space<'a> {
    tag: &'a str,
    /// Addresses and streams are texts, because they exceed a script's integer range.
    base: String,
    reserved: u64,
    /// Offset, size, state, and the index of the stream in `streams`.
    blocks: Vec<(u64, u64, &'static str, usize)>,
    streams: Vec<String>,
}

/// Returns the page, or why it cannot be made.
pub(super) fn page(snapshot: &PoolSnapshot, history: Option<&History>) -> Result<String, String> {
    let data = Data {
        page: snapshot.page,
        spaces: snapshot.spaces.iter().map(Space::new).collect(),
        frames: frames(snapshot)?,
        timeline: snapshot
            .timeline
            .iter()
            .map(|Moment { at, live, pending, held }| (*at, *live, *pending, *held))
            .collect(),
        replay: history.map(Replay::new),
    };
    let data = serde_json::to_string(&data).map_err(|error| error.to_string())?;
    Ok(fill(
        PAGE,
        &[
            ("style", STYLE),
            ("device", &escaped(&snapshot.device)),
            ("at", &format!("{:.3} s after the pool was created", snapshot.at)),
            ("page", &Bytes(snapshot.page).to_string()),
            ("stats", &stats(snapshot)),
            ("replay", &history.map(replay).unwrap_or_default()),
            ("spaces", &spaces(snapshot)),
            ("bins", &bins(snapshot)),
            ("largest", &largest_blocks(snapshot)),
            // No text can end the element with the data: in JSON `<` occurs only in strings.
            ("data", &data.replace('<', "\\u003c")),
            ("script", &SCRIPTS.concat()),
        ],
    ))
}

impl Replay {
    fn new(history: &History) -> Self {
        let moments = history.moments.iter();
        Self {
            seconds: history.seconds,
            recorded: format!("held by {}", recorded_name(history)),
            moments: moments.map(|one| (one.at, one.requested, one.held, one.recorded)).collect(),
        }
    }
}

impl<'a> Space<'a> {
    fn new(space: &'a SpaceSnapshot) -> Self {
        let mut streams: Vec<u64> = space.blocks.iter().map(|block| block.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let stream = |raw| streams.binary_search(&raw).unwrap_or(0);
        let blocks = space
            .blocks
            .iter()
            .map(|block| (block.offset, block.size, state_name(block.state), stream(block.stream)))
            .collect();
        Self {
            tag: &space.tag,
            base: Address(space.base).to_string(),
            reserved: space.reserved,
            blocks,
            streams: streams.into_iter().map(stream_name).collect(),
        }
    }
}

fn stream_name(raw: u64) -> String {
    if raw == 0 { "default".to_owned() } else { format!("{raw:#x}") }
}

/// Replaces each `{{name}}` by its value. Values are inserted unchanged.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after.split_once("}}").unwrap_or((after, ""));
        filled.push_str(before);
        filled.extend(values.iter().filter(|(one, _)| *one == name).map(|(_, value)| *value));
        rest = behind;
    }
    filled + rest
}

/// Escapes a text for the content of an element or an attribute. Removes control characters, which no page may contain.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            control if control.is_control() => {}
            other => escaped.push(other),
        }
    }
    escaped
}

/// Formats a size for people, with the exact number as a tooltip.
fn amount(bytes: u64) -> String {
    format!("<span title=\"{bytes} bytes\">{}</span>", about(Bytes(bytes)))
}

fn stats(snapshot: &PoolSnapshot) -> String {
    let stats = &snapshot.stats;
    let calls = &stats.driver_calls;
    let of_calls = format!(
        "{} create, {} map, {} unmap, {} set access, {} other",
        calls.create, calls.map, calls.unmap, calls.set_access, calls.other
    );
    let peak = |bytes| format!("peak {}", amount(bytes));
    let mut list = String::new();
    for (id, label, value, note) in [
        ("live", "Live", amount(stats.live), counted(stats.live_blocks, "block")),
        ("held", "Held", amount(stats.held), peak(stats.peak_held)),
        ("unused", "Unused", unused(snapshot), "of held memory, without a live block".to_owned()),
        ("cached", "Cached", amount(stats.cached), "in thread caches".to_owned()),
        ("pending", "Pending", amount(stats.pending), "waiting for a stream or fence".to_owned()),
        ("kept", "Kept", amount(stats.kept), "held without a block".to_owned()),
        ("mapped", "Mapped", amount(stats.mapped), "addresses with memory".to_owned()),
        ("reserved", "Reserved", amount(stats.reserved), "addresses".to_owned()),
        ("peak-live", "Peak live", amount(stats.peak_live), "in rounded block sizes".to_owned()),
        ("allocations", "Allocations", stats.allocations.to_string(), "in total".to_owned()),
        ("driver-calls", "Driver calls", calls.total().to_string(), of_calls),
    ] {
        let _ = write!(
            list,
            "<div><dt>{label}</dt><dd id=\"{id}\">{value}</dd><dd class=\"note\">{note}</dd></div>"
        );
    }
    list
}

/// Returns the section of a replay, which the script draws into.
fn replay(history: &History) -> String {
    format!(
        "<section aria-labelledby=\"replay-title\">\n<h2 id=\"replay-title\">Replay</h2>\n<p class=\"note\">{}, on a pool that held nothing \
         before: {}</p>\n<ul class=\"legend\" id=\"replay-legend\"></ul>\n<div class=\"view\" id=\"replay\"></div>\n</section>\n",
        escaped(&history.trace),
        escaped(&summary(history))
    )
}

fn tag(space: &SpaceSnapshot) -> String {
    if space.tag.is_empty() { "<i>without a tag</i>".to_owned() } else { escaped(&space.tag) }
}

/// Returns a section for each range, which the script draws into.
fn spaces(snapshot: &PoolSnapshot) -> String {
    let mut sections = String::new();
    for (index, space) in snapshot.spaces.iter().enumerate() {
        let (base, tag) = (Address(space.base), tag(space));
        let (mapped, reserved) = (amount(mapped(space, snapshot.page)), amount(space.reserved));
        let suspended = if space.suspended { ", <b>suspended</b>" } else { "" };
        let _ = writeln!(
            sections,
            "<section class=\"space\"><h3><i class=\"swatch\" data-colour=\"{index}\"></i>{tag}</h3><p \
             class=\"note\">from <code>{base}</code>: {mapped} mapped of {reserved} of addresses, blocks and free \
             parts: {}{suspended}</p>\
            <div class=\"view\" data-space=\"{index}\"></div></section>",
            space.blocks.len()
        );
    }
    if sections.is_empty() { "<p class=\"none\">No addresses are reserved.</p>".to_owned() } else { sections }
}

fn bins(snapshot: &PoolSnapshot) -> String {
    let mut rows = String::new();
    for bin in &snapshot.stats.bins {
        let all = bin.live.saturating_add(bin.free);
        let part = if all == 0 { 0.0 } else { 100.0 * bin.live as f64 / all as f64 };
        let (size, taken) = (amount(bin.size), amount(bin.size.saturating_mul(bin.live)));
        let _ = writeln!(
            rows,
            "<tr><td>{size}</td><td>{}</td><td>{}</td><td>{taken}</td><td><meter min=\"0\" max=\"100\" value=\"{part:.0}\"></meter> \
             {part:.0} %</td></tr>",
            bin.live, bin.free
        );
    }
    if rows.is_empty() { "<tr><td colspan=\"5\" class=\"none\">None.</td></tr>".to_owned() } else { rows }
}

fn largest_blocks(snapshot: &PoolSnapshot) -> String {
    let mut rows = String::new();
    for (space, block) in largest(snapshot) {
        // The check of the file has excluded an overflow.
        let address = Address(space.base.saturating_add(block.offset));
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td><code>{address}</code></td><td><code>{}</code></td></tr>",
            amount(block.size),
            state_name(block.state),
            tag(space),
            stream_name(block.stream)
        );
    }
    if rows.is_empty() { "<tr><td colspan=\"5\" class=\"none\">None.</td></tr>".to_owned() } else { rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_vmm::pool::{BinStats, BlockSnapshot, BlockState, DriverCalls, PagesSnapshot, PoolStats};

    #[test]
    fn inserted_page_data_is_not_expanded() {
        assert_eq!(fill("<{{a}}|{{b}}|{{c}}>", &[("a", "{{b}}"), ("b", "x")]), "<{{b}}|x|>");
        assert_eq!(fill("none", &[]), "none");
    }

    #[test]
    fn texts_are_no_markup() {
        assert_eq!(escaped("</script><b a='\"&\u{1b}"), "&lt;/script&gt;&lt;b a=&#39;&quot;&amp;");
    }

    #[test]
    fn tables_have_all_bins_and_blocks() {
        let block = |size, state, stream| BlockSnapshot { offset: 4096, size, state, stream };
        let space = |tag: &str, suspended, blocks| SpaceSnapshot {
            tag: tag.to_owned(),
            base: 0x7000,
            reserved: 8 << 20,
            suspended,
            blocks,
            pages: vec![PagesSnapshot { offset: 0, count: 3, frame: 0, used: true }],
        };
        let snapshot = PoolSnapshot {
            page: 1 << 20,
            spaces: vec![
                space("<kv>", true, vec![block(5000, BlockState::Cached, 16)]),
                space("", false, vec![block(7 << 20, BlockState::Live, 0)]),
            ],
            stats: PoolStats {
                bins: vec![
                    BinStats { size: 1024, live: 3, free: 5 },
                    BinStats { size: 2048, live: 0, free: 0 },
                ],
                ..PoolStats::default()
            },
            ..PoolSnapshot::default()
        };
        let rows = bins(&snapshot);
        let rows: Vec<&str> = rows.lines().collect();
        let meter = |part: u64| format!("<meter min=\"0\" max=\"100\" value=\"{part}\"></meter> {part} %");
        let expected = [("1 KiB", 1024, 3, 5, "3 KiB", 3072, 38), ("2 KiB", 2048, 0, 0, "0 B", 0, 0)];
        assert_eq!(rows.len(), expected.len());
        for (row, (size, bytes, live, free, taken, of, part)) in rows.iter().zip(expected) {
            let amount = |shown: &str, bytes: u64| format!("<span title=\"{bytes} bytes\">{shown}</span>");
            let cells =
                [amount(size, bytes), live.to_string(), free.to_string(), amount(taken, of), meter(part)];
            assert_eq!(*row, format!("<tr><td>{}</td></tr>", cells.join("</td><td>")));
        }
        let rows = largest_blocks(&snapshot);
        let rows: Vec<&str> = rows.lines().collect();
        assert!(rows[0].contains(">7 MiB<") && rows[0].ends_with(
            "<td>live</td><td><i>without a tag</i></td><td><code>0x8000</code></td><td><code>default</code></td></tr>"
        ), "{rows:?}");
        assert!(rows[1].ends_with(
            "<td>cached</td><td>&lt;kv&gt;</td><td><code>0x8000</code></td><td><code>0x10</code></td></tr>"
        ), "{rows:?}");
        let sections = spaces(&snapshot);
        let sections: Vec<&str> = sections.lines().collect();
        let asleep = [
            " data-colour=\"0\"",
            "&lt;kv&gt;",
            "<code>0x7000</code>",
            "3 MiB",
            "8 MiB",
            ": 1, <b>suspended</b><",
        ];
        assert!(asleep.iter().all(|part| sections[0].contains(part)), "{sections:?}");
        assert!(
            sections[1].contains("data-space=\"1\"") && !sections[1].contains("suspended"),
            "{sections:?}"
        );
    }

    #[test]
    fn each_amount_has_its_own_label() {
        let stats = PoolStats {
            live: 1,
            live_blocks: 2,
            cached: 3,
            pending: 4,
            kept: 5,
            held: 6,
            mapped: 7,
            reserved: 8,
            peak_live: 9,
            peak_held: 10,
            allocations: 11,
            driver_calls: DriverCalls { create: 12, map: 13, unmap: 14, set_access: 15, other: 16 },
            bins: Vec::new(),
        };
        let text = super::stats(&PoolSnapshot { stats, ..PoolSnapshot::default() });
        let bytes = |number: u64| format!("<span title=\"{number} bytes\">{number} B</span>");
        for (id, label, value, note) in [
            ("live", "Live", bytes(1), "2 blocks".to_owned()),
            ("held", "Held", bytes(6), format!("peak {}", bytes(10))),
            ("unused", "Unused", "83.3 %".to_owned(), "of held memory, without a live block".to_owned()),
            ("cached", "Cached", bytes(3), "in thread caches".to_owned()),
            ("pending", "Pending", bytes(4), "waiting for a stream or fence".to_owned()),
            ("kept", "Kept", bytes(5), "held without a block".to_owned()),
            ("mapped", "Mapped", bytes(7), "addresses with memory".to_owned()),
            ("reserved", "Reserved", bytes(8), "addresses".to_owned()),
            ("peak-live", "Peak live", bytes(9), "in rounded block sizes".to_owned()),
            ("allocations", "Allocations", "11".to_owned(), "in total".to_owned()),
            (
                "driver-calls",
                "Driver calls",
                "70".to_owned(),
                "12 create, 13 map, 14 unmap, 15 set access, 16 other".to_owned(),
            ),
        ] {
            let part = format!("<dt>{label}</dt><dd id=\"{id}\">{value}</dd><dd class=\"note\">{note}</dd>");
            assert!(text.contains(&part), "{part} is not in {text}");
        }
    }

    #[test]
    fn replay_is_drawn_if_there_is_one() {
        let moment =
            |at, recorded| gpu_vmm_replay::Moment { at, requested: 1 << 20, held: 3 << 20, recorded };
        let mut history = History {
            trace: "<i>.pickle".to_owned(),
            source: Some("PyTorch".to_owned()),
            seconds: true,
            moments: vec![moment(0.0, Some(5 << 20)), moment(1.5, Some(4 << 20))],
        };
        let text = page(&PoolSnapshot::default(), Some(&history)).unwrap();
        let note = "&lt;i&gt;.pickle, on a pool that held nothing before: requested up to 1 MiB; PyTorch&#39;s allocator held up to 5 MiB, \
                    the pool held up to 3 MiB</p>";
        assert!(text.contains(note), "{text}");
        let data = "\"replay\":{\"seconds\":true,\"recorded\":\"held by PyTorch's allocator\",\"moments\":[[0.0,1048576,3145728,5242880],\
                    [1.5,1048576,3145728,4194304]]}";
        assert!(text.contains(data), "{text}");
        (history.source, history.moments) = (None, vec![moment(7.0, None)]);
        let text = page(&PoolSnapshot::default(), Some(&history)).unwrap();
        assert!(text.contains("requested up to 1 MiB; the pool held up to 3 MiB</p>"), "{text}");
        assert!(text.contains("\"moments\":[[7.0,1048576,3145728,null]]"), "{text}");
        let without = page(&PoolSnapshot::default(), None).unwrap();
        assert!(!without.contains("replay-title"), "{without}");
    }

    #[test]
    fn page_data_has_blocks_with_streams() {
        let block = |offset, state, stream| BlockSnapshot { offset, size: 512, state, stream };
        let blocks = vec![
            block(0, BlockState::Live, 16),
            block(512, BlockState::Bins, 0),
            block(1024, BlockState::Pending, u64::MAX),
            block(4096, BlockState::Free, 16),
        ];
        let space = SpaceSnapshot {
            tag: "<kv>".to_owned(),
            base: 0x7000,
            reserved: 1 << 20,
            suspended: false,
            blocks,
            pages: vec![PagesSnapshot { offset: 0, count: 1, frame: 3, used: true }],
        };
        let snapshot = PoolSnapshot {
            device: "a <GPU>".to_owned(),
            at: 8.1254,
            page: 1 << 20,
            spaces: vec![space],
            timeline: vec![Moment { at: 0.5, live: 1, pending: 2, held: 3 }],
            ..PoolSnapshot::default()
        };
        let page = page(&snapshot, None).unwrap_or_default();
        assert!(
            page.contains("a &lt;GPU&gt;") && page.contains("8.125 s after the pool was created"),
            "{page}"
        );
        let data = concat!(
            r#"{"page":1048576,"spaces":[{"tag":"\u003ckv>","base":"0x7000","reserved":1048576,"#,
            r#""blocks":[[0,512,"live",1],[512,512,"bins",0],[1024,512,"pending",2],[4096,512,"free",1]],"#,
            r#""streams":["default","0x10","0xffffffffffffffff"]}],"#,
            r#""frames":[{"first":3,"count":1,"places":[[0,0,true]]}],"timeline":[[0.5,1,2,3]]}"#
        );
        assert!(page.contains(data), "{page}");
    }

    const NAMES: [&str; 11] =
        ["style", "device", "at", "page", "stats", "replay", "spaces", "bins", "largest", "data", "script"];

    #[test]
    fn the_page_has_a_place_for_everything() {
        for name in NAMES {
            assert!(PAGE.contains(&format!("{{{{{name}}}}}")), "{name}");
        }
        // The device occurs twice.
        assert_eq!(PAGE.matches("{{").count(), NAMES.len() + 1);
    }
}
