//! Rule 1: the core keeps the books. Random operations on two regions, held against a model that knows what is where.

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Done, Physical, Region, Vendor, Workbench};

cases! { "books":
    /// nothing is unmapped twice.
    nothing_is_unmapped_twice,
    /// random operations.
    random_operations,
}

const UNITS: u64 = 12;

fn nothing_is_unmapped_twice<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.unmap(Bytes(0), subject.units(2), Done::when_devices_idle()).unwrap();
    let again = region.unmap(Bytes(0), subject.units(2), Done::when_devices_idle());
    assert!(matches!(again, Err(gpu_vmm_core::Error::NotMapped { .. })), "{again:?}");
}

/// What one piece of memory holds: the seed of the pattern in it, if it was ever written.
struct Memory {
    physical: Physical<B>,
    units: u64,
    seed: Option<u64>,
}

/// One mapping as the model knows it.
#[derive(Clone, Copy)]
struct Placed {
    start: u64,
    memory: usize,
    access: Access,
}

struct Model {
    region: Region<B>,
    placed: Vec<Placed>,
}

/// The generator of Marsaglia's xorshift family, so that a seed is all that a failure needs.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn random_operations<B: Workbench>(subject: &Subject<B>) {
    let (rounds, operations) = if subject.backend.vendor() == Vendor::Host { (20, 150) } else { (4, 100) };
    for round in 1..=rounds {
        let seed = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(round);
        let failed = std::panic::catch_unwind(|| one_round(subject, seed, operations));
        if let Err(panic) = failed {
            eprintln!("the seed was {seed:#x}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn one_round<B: Workbench>(subject: &Subject<B>, seed: u64, operations: u32) {
    let mut random = Random(seed);
    let before = subject.free()[0];
    let mut memories: Vec<Memory> =
        [1, 1, 2, 3, 4].map(|units| Memory { physical: subject.memory(units), units, seed: None }).into();
    let mut models: Vec<Model> = (0..2)
        .map(|_| Model { region: subject.region(UNITS).build().unwrap(), placed: Vec::new() })
        .collect();
    for _ in 0..operations {
        let model = &mut models[random.below(2) as usize];
        match random.below(6) {
            0 | 1 => map(subject, model, &memories, &mut random),
            2 => unmap(subject, model, &memories, &mut random),
            3 | 4 => set_access(subject, model, &memories, &mut random),
            _ => write(subject, model, &mut memories, &mut random),
        }
        models.iter().for_each(|model| check(subject, model, &memories));
        let held: u64 = memories.iter().map(|memory| memory.units).sum();
        assert_eq!(subject.free()[0], before - subject.units(held));
    }
}

fn map<B: Workbench>(subject: &Subject<B>, model: &mut Model, memories: &[Memory], random: &mut Random) {
    let (start, memory) = (random.below(UNITS), random.below(memories.len() as u64) as usize);
    let end = start + memories[memory].units;
    let free = model
        .placed
        .iter()
        .all(|placed| placed.start + memories[placed.memory].units <= start || end <= placed.start);
    let result = model.region.map(subject.units(start), &memories[memory].physical);
    assert_eq!(result.is_ok(), free && end <= UNITS, "map {start}..{end}: {result:?}");
    if result.is_ok() {
        model.placed.push(Placed { start, memory, access: Access::None });
        model.placed.sort_by_key(|placed| placed.start);
    }
}

/// A random part, and the mappings that make it up exactly, if they do.
fn part(model: &Model, memories: &[Memory], random: &mut Random) -> (u64, u64, Option<Vec<usize>>) {
    let (start, length) = (random.below(UNITS), 1 + random.below(6));
    let mut next = start;
    let mut whole = Vec::new();
    for (index, placed) in model.placed.iter().enumerate() {
        if placed.start == next && next < start + length {
            next += memories[placed.memory].units;
            whole.push(index);
        }
    }
    (start, length, (next == start + length).then_some(whole))
}

fn unmap<B: Workbench>(subject: &Subject<B>, model: &mut Model, memories: &[Memory], random: &mut Random) {
    let (start, length, whole) = part(model, memories, random);
    let result = model.region.unmap(subject.units(start), subject.units(length), Done::when_devices_idle());
    assert_eq!(result.is_ok(), whole.is_some(), "unmap {start}+{length}: {result:?}");
    for index in whole.into_iter().flatten().rev() {
        model.placed.remove(index);
    }
}

fn set_access<B: Workbench>(subject: &Subject<B>, model: &mut Model, memories: &[Memory], random: &mut Random) {
    let (start, length, whole) = part(model, memories, random);
    let access = [Access::None, Access::Read, RW][random.below(3) as usize];
    let result = model.region.set_access(subject.units(start), subject.units(length), subject.device, access);
    if result.is_err() && whole.is_some() && hip_cannot(&result) {
        return;
    }
    assert_eq!(result.is_ok(), whole.is_some(), "set access {start}+{length}: {result:?}");
    for index in whole.into_iter().flatten() {
        model.placed[index].access = access;
    }
}

/// HIP 7.0 to 7.2 cannot set access behind a hole where the mappings before it have other sizes; it says so.
fn hip_cannot(result: &gpu_vmm_core::Result<()>) -> bool {
    matches!(result, Err(gpu_vmm_core::Error::Unsupported { .. }))
}

fn write<B: Workbench>(subject: &Subject<B>, model: &mut Model, memories: &mut [Memory], random: &mut Random) {
    if model.placed.is_empty() {
        return;
    }
    let placed = model.placed[random.below(model.placed.len() as u64) as usize];
    let memory = &mut memories[placed.memory];
    let seed = random.below(1 << 40);
    let result =
        model.region.write_pattern(subject.device, subject.units(placed.start), subject.units(memory.units), seed);
    assert_eq!(result.is_ok(), placed.access == RW, "write at {}: {result:?}", placed.start);
    if result.is_ok() {
        memory.seed = Some(seed);
    }
}

fn check<B: Workbench>(subject: &Subject<B>, model: &Model, memories: &[Memory]) {
    let mapped: Vec<_> = model.region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
    let known = model
        .placed
        .iter()
        .map(|placed| (subject.units(placed.start), subject.units(memories[placed.memory].units)));
    assert_eq!(mapped, known.collect::<Vec<_>>());
    for placed in &model.placed {
        let (offset, memory) = (subject.units(placed.start), &memories[placed.memory]);
        assert_eq!(model.region.access(offset, subject.device), placed.access);
        if let (Some(seed), true) = (memory.seed, placed.access != Access::None) {
            assert_eq!(model.region.count_wrong(subject.device, offset, subject.units(memory.units), seed).unwrap(), 0);
        }
    }
}
