//! Valid and invalid pool snapshots.

use super::frames::{Frames, MappedAt, frames};
use super::read::content;
use super::*;
use gpu_vmm::pool::{FramesSnapshot, PagesSnapshot, PoolStats};

const MIB: u64 = 1 << 20;

fn block(offset: u64, size: u64, state: BlockState) -> BlockSnapshot {
    BlockSnapshot { offset: offset * MIB, size: size * MIB, state, stream: 0 }
}

fn pages(offset: u64, count: u64, frame: u32, used: bool) -> PagesSnapshot {
    PagesSnapshot { offset: offset * MIB, count, frame, used }
}

/// Returns a snapshot of two ranges; frames 4 to 7 are free and mapped in both.
fn snapshot() -> PoolSnapshot {
    let space = |tag: &str, base, blocks, pages| SpaceSnapshot {
        tag: tag.to_owned(),
        base,
        reserved: 1 << 30,
        suspended: false,
        blocks,
        pages,
    };
    let one = space(
        "one",
        1 << 40,
        vec![block(0, 8, BlockState::Live), block(8, 8, BlockState::Free)],
        vec![pages(0, 4, 0, true), pages(8, 4, 4, false)],
    );
    let two = space("two", 2 << 40, vec![block(4, 4, BlockState::Pending)], vec![pages(0, 3, 5, false)]);
    PoolSnapshot {
        version: PoolSnapshot::VERSION,
        page: 2 * MIB,
        stats: PoolStats { live: 8 * MIB, held: 20 * MIB, ..PoolStats::default() },
        spaces: vec![one, two],
        unmapped: vec![FramesSnapshot { frame: 9, count: 2 }],
        ..PoolSnapshot::default()
    }
}

fn reread(snapshot: &PoolSnapshot) -> Result<PoolSnapshot, String> {
    content(&serde_json::to_vec(snapshot).unwrap()).map(|(snapshot, _)| snapshot)
}

#[test]
fn frames_know_all_of_their_addresses() {
    let part = |first, count, places: &[(usize, u64, bool)]| Frames {
        first,
        count,
        places: places.iter().map(|(space, offset, used)| MappedAt(*space, offset * MIB, *used)).collect(),
    };
    let expected = [
        part(0, 4, &[(0, 0, true)]),
        part(4, 1, &[(0, 8, false)]),
        part(5, 3, &[(0, 10, false), (1, 0, false)]),
        part(9, 2, &[]),
    ];
    assert_eq!(frames(&snapshot()).unwrap(), expected);
}

#[test]
fn impossible_numbers_are_told_with_place() {
    let wrong = |change: &dyn Fn(&mut PoolSnapshot), expected: &str| {
        let mut snapshot = snapshot();
        change(&mut snapshot);
        let why = reread(&snapshot).unwrap_err();
        assert!(why.contains(expected), "{expected:?} is not in {why:?}");
    };
    wrong(&|one| one.version = 2, "it has version 2, but this gpu-vmm reads version 1");
    wrong(
        &|one| one.spaces[0].base = u64::MAX,
        "1 GiB of addresses exceeds the address space, in range 0, tagged \"one\"",
    );
    wrong(
        &|one| one.spaces[0].blocks[1].offset = 7 * MIB,
        "the block at offset 7 MiB begins before the end of the previous one, 8 MiB, in range 0",
    );
    wrong(
        &|one| one.spaces[0].blocks[1].size = 1 << 30,
        "the block at offset 8 MiB exceeds the end of the range, 1 GiB",
    );
    wrong(&|one| one.spaces[0].blocks[1].size = u64::MAX, "exceeds the end of the range");
    wrong(&|one| one.spaces[1].blocks[0].size = 0, "the block at offset 4 MiB has size 0, in range 1");
    wrong(
        &|one| one.spaces[0].pages[1].offset = 2 * MIB,
        "the mapping at offset 2 MiB begins before the end",
    );
    wrong(&|one| one.page = 1 << 63, "the mapping at offset 0 B exceeds the end of the range");
    wrong(&|one| one.page = 0, "has size 0");
    wrong(
        &|one| one.spaces[0].pages[0].count = u64::MAX,
        "18446744073709551615 frames from number 0 on are not possible",
    );
    wrong(&|one| one.unmapped[0].count = 0, "0 frames from number 9 on are not possible");
}

/// Other tools read these files too. Older ones have another name for the statistics and no list of unmapped memory.
#[test]
fn file_format_is_stable_for_tools() {
    let states =
        [BlockState::Live, BlockState::Cached, BlockState::Pending, BlockState::Bins, BlockState::Free];
    let names = states.map(|state| serde_json::to_value(state).unwrap());
    assert_eq!(serde_json::json!(names), serde_json::json!(states.map(state_name)));
    let mut snapshot = snapshot();
    snapshot.unmapped.clear();
    let text = serde_json::to_string(&snapshot).unwrap();
    let older = text.replace("\"stats\":", "\"account\":").replace("\"unmapped\":[],", "");
    assert!(older.contains("account") && !older.contains("unmapped"), "{older}");
    assert_eq!(content(older.as_bytes()), Ok((snapshot, None)));
}

#[test]
fn twenty_largest_blocks_in_order() {
    let mut snapshot = snapshot();
    let blocks = (0..15).map(|place| block(4 * place, 1 + place % 2, BlockState::Cached));
    snapshot.spaces[0].blocks = blocks.clone().collect();
    snapshot.spaces[1].blocks = blocks.clone().collect();
    let listed: Vec<(&str, u64, u64)> = largest(&snapshot)
        .iter()
        .map(|(space, block)| (space.tag.as_str(), block.offset / MIB, block.size / MIB))
        .collect();
    let of = |tag: &'static str, size| {
        blocks
            .clone()
            .filter(move |block| block.size == size * MIB)
            .map(move |block| (tag, block.offset / MIB, size))
    };
    let expected: Vec<_> =
        of("one", 2).chain(of("two", 2)).chain(of("one", 1)).chain(of("two", 1)).take(20).collect();
    assert_eq!(listed, expected);
}

#[test]
fn ranges_reach_but_never_exceed_limits() {
    let with = |frame, count| {
        let mut snapshot = snapshot();
        snapshot.unmapped = vec![FramesSnapshot { frame, count }];
        reread(&snapshot).map(drop)
    };
    assert_eq!(with(u32::MAX, 1), Ok(()));
    assert_eq!(with(u32::MAX, 2), Err("2 frames from number 4294967295 on are not possible".to_owned()));
    let mut last = snapshot();
    last.spaces[0].base = u64::MAX - (1 << 30);
    assert!(reread(&last).is_ok());
    last.spaces[0].base += 1;
    assert!(reread(&last).is_err());
    let mut full = snapshot();
    full.spaces[0].blocks = vec![block(1, 1023, BlockState::Live)];
    assert!(reread(&full).is_ok(), "a block can end with its range");
    full.spaces[0].blocks[0].offset += 1;
    assert!(reread(&full).is_err());
}
