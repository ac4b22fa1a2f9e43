//! Random claims that are true, compared with a list of all mappings; and each way in which one of them can be false.
#![allow(clippy::unwrap_used)]

use super::*;
use gpu_vmm_core::{DeviceId, DeviceUuid, Properties};
use gpu_vmm_testkit::Random;

const UNIT: u64 = 2 << 20;
const OPERATION: Operation = Operation::ImportMemory;

fn piece(id: u32, units: u64) -> SharedPiece {
    SharedPiece {
        id,
        size: units * UNIT,
        granularity: UNIT,
        device: DeviceUuid([7; 16]),
        kind: Properties::on(DeviceId(0)).into(),
    }
}

/// The exporter's region: the mappings by offset, each with its piece and that piece's size.
#[derive(Clone, Default)]
struct Model {
    mappings: BTreeMap<u64, (u32, u64)>,
    next: u32,
}

impl Model {
    fn end(&self) -> u64 {
        self.mappings.last_key_value().map_or(0, |(offset, (_, size))| offset + size)
    }

    fn is_free(&self, offset: u64, size: u64) -> bool {
        self.mappings.iter().all(|(at, (_, length))| at + length <= offset || offset + size <= *at)
    }

    /// Changes some mappings, and returns the claim that says so.
    fn change(&mut self, random: &mut Random) -> Claim {
        let mut claim = Claim { base: 0x7000_0000_0000 + random.below(9) as u64 * UNIT, ..Claim::default() };
        for offset in self.mappings.keys().copied().collect::<Vec<_>>() {
            if random.below(4) == 0 {
                self.mappings.remove(&offset);
                claim.removed.push(offset);
            }
        }
        let known: Vec<(u32, u64)> = self.mappings.values().copied().collect();
        for _ in 0..random.below(5) {
            let offset = random.below(60) as u64 * UNIT;
            let is_new = known.is_empty() || random.below(2) == 0;
            let (id, size) = if is_new {
                (self.next, (1 + random.below(4) as u64) * UNIT)
            } else {
                known[random.below(known.len())]
            };
            if !self.is_free(offset, size) {
                continue;
            }
            if is_new {
                claim.pieces.push(piece(id, size / UNIT));
                // Numbers may be left out.
                self.next = id + 1 + random.below(3) as u32;
            }
            self.mappings.insert(offset, (id, size));
            claim.mappings.push(SharedMapping { offset, piece: id });
        }
        claim.end = self.end();
        claim
    }
}

fn state_after(claims: &[Claim]) -> ImporterState<u64> {
    let mut state = ImporterState::default();
    for claim in claims {
        state.check(OPERATION, claim).unwrap();
        state.record(claim, claim.pieces.iter().map(|piece| piece.size));
    }
    state
}

#[test]
fn claims_add_up_to_the_exporters_region() {
    for seed in 1..=40 {
        let (mut random, mut model, mut claims) = (Random(seed), Model::default(), Vec::new());
        for _ in 0..12 {
            claims.push(model.change(&mut random));
            let state = state_after(&claims);
            let found: Vec<_> = state.mappings().map(|(offset, id, size)| (offset.0, (id, *size))).collect();
            assert_eq!(found, model.mappings.clone().into_iter().collect::<Vec<_>>(), "seed {seed}");
            let used: BTreeSet<u32> = model.mappings.values().map(|(id, _)| *id).collect();
            assert!(state.pieces().map(|(id, _)| id).eq(used), "seed {seed}");
            assert_eq!((state.base().0, state.end().0), (claims[claims.len() - 1].base, model.end()));
        }
    }
}

/// Returns the fault of a claim, after one that maps pieces 0 and 1 at 0 and at 4 units, each of 2 units.
fn refusal(claim: &Claim) -> String {
    let first = Claim {
        base: UNIT,
        end: 6 * UNIT,
        pieces: vec![piece(0, 2), piece(1, 2)],
        mappings: [(0, 0), (4, 1)].map(|(at, piece)| SharedMapping { offset: at * UNIT, piece }).to_vec(),
        ..Claim::default()
    };
    let state = state_after(&[first]);
    let error = state.check(OPERATION, claim).unwrap_err();
    assert!(matches!(error.extension(), Some(PeerError::BadMessage { .. })), "{error}");
    assert_eq!(error.operation(), OPERATION);
    error.to_string()
}

#[test]
fn what_is_not_true_is_refused() {
    let at = |offset, piece| SharedMapping { offset, piece };
    let good = || Claim {
        base: UNIT,
        end: 10 * UNIT,
        removed: vec![0],
        pieces: vec![piece(2, 1), piece(5, 1)],
        mappings: vec![at(8 * UNIT, 2), at(9 * UNIT, 5), at(0, 1)],
    };
    type Lie = fn(&mut Claim);
    let lies: [(Lie, &str); 19] = [
        (|claim| claim.removed.push(UNIT), "removed at offset 0x200000, where none begins"),
        (|claim| claim.removed.push(0), "the mapping at offset 0x0 is removed twice"),
        (|claim| claim.removed.clear(), "the mapping at offset 0x0 overlaps that from 0x0 to 0x400000"),
        (|claim| claim.pieces[0].id = 1, "piece 1 arrived, and 2 or more was expected"),
        (|claim| claim.pieces[1].id = 2, "piece 2 arrived, and 3 or more was expected"),
        (|claim| claim.pieces[0].size = 0, "piece 2: the size 0x0 must be a nonzero multiple"),
        (|claim| claim.pieces[0].size += 1, "piece 2: the size 0x200001 must be"),
        (|claim| claim.pieces[0].granularity = 3 << 20, "of the granularity 0x300000, a power of two"),
        (|claim| _ = claim.mappings.remove(0), "piece 2 is mapped nowhere"),
        (|claim| _ = claim.pieces.remove(0), "at offset 0x1000000 is of piece 2, which was not sent"),
        (
            |claim| claim.mappings[0].offset += 4096,
            "offset 0x1001000, which is not a multiple of its granularity 0x200000",
        ),
        // The same for a piece of an earlier claim.
        (
            |claim| claim.mappings[2].offset = 4096,
            "offset 0x1000, which is not a multiple of its granularity",
        ),
        (|claim| claim.mappings[0].offset = 9 << 21, "the mapping at offset 0x1200000 overlaps"),
        (|claim| claim.mappings[2].offset = 3 << 21, "overlaps"),
        (|claim| claim.mappings[0].offset = 0u64.wrapping_sub(2 << 20), "end beyond 2^64"),
        (|claim| claim.end += 1, "ends at 0x1400001, and its last mapping at 0x1400000"),
        (|claim| claim.end = 0, "ends at 0x0"),
        (|claim| claim.base = 0u64.wrapping_sub(2 << 20), "begins at 0xffffffffffe00000"),
        (
            |claim| {
                claim.mappings[1].offset = 1 << 62;
                claim.end = (1 << 62) + (2 << 20);
            },
            "beyond an address space of",
        ),
    ];
    for (lie, part) in lies {
        let mut claim = good();
        lie(&mut claim);
        let text = refusal(&claim);
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

/// The limits themselves are permitted, and count the earlier pieces.
#[test]
fn the_most_pieces_and_mappings_are_permitted() {
    let of = |pieces: Range<u32>, mappings: Range<u64>, removed: Vec<u64>| {
        let last = u64::from(pieces.end - 1);
        Claim {
            base: 0,
            end: mappings.end * UNIT,
            removed,
            pieces: pieces.map(|id| piece(id, 1)).collect(),
            // Each piece has a mapping; further mappings are of the last.
            mappings: mappings
                .map(|at| SharedMapping { offset: at * UNIT, piece: at.min(last) as u32 })
                .collect(),
        }
    };
    let pieces = MAX_PIECES as u32;
    let half = of(0..pieces / 2, 0..u64::from(pieces) / 2, vec![]);
    let rest = |to: u32| of(pieces / 2..to, u64::from(pieces) / 2..u64::from(to), vec![]);
    let state = state_after(&[half]);
    state.check(OPERATION, &rest(pieces)).unwrap();
    let error = state.check(OPERATION, &rest(pieces + 1)).unwrap_err().to_string();
    assert!(error.contains("131073 pieces, and the limit is 131072"), "{error}");

    let most = MAX_MAPPINGS as u64;
    let state = state_after(&[of(0..1, 0..most, vec![])]);
    let more = |removed| Claim {
        end: (most + 1) * UNIT,
        removed,
        mappings: vec![SharedMapping { offset: most * UNIT, piece: 0 }],
        ..Claim::default()
    };
    let error = state.check(OPERATION, &more(vec![])).unwrap_err().to_string();
    assert!(error.contains("262145 mappings, and the limit is 262144"), "{error}");
    state.check(OPERATION, &more(vec![0])).unwrap();
}

#[test]
fn region_limits_and_overlaps_are_checked() {
    let check = |places: &[Range<u64>], end| check_places(OPERATION, places.to_vec(), UNIT, end);
    check(std::slice::from_ref(&(0..ADDRESS_SPACE.0)), ADDRESS_SPACE.0).unwrap();
    let beyond = ADDRESS_SPACE.0 + UNIT;
    let error = check(std::slice::from_ref(&(0..beyond)), beyond).unwrap_err().to_string();
    assert!(error.contains("beyond an address space of 128 TiB"), "{error}");
    let error = check(&[2..9, 0..3], 9).unwrap_err().to_string();
    assert!(error.ends_with("the mapping at offset 0x2 overlaps that from 0x0 to 0x3"), "{error}");
}
