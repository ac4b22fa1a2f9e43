//! The 64-bit ELF files of code objects: the segments to load, and the symbols of objects.

/// A segment to load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) in_file: usize,
    pub(super) address: usize,
    pub(super) size: usize,
}

/// A symbol of an object: a kernel's descriptor, or a variable.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) address: usize,
    pub(super) size: usize,
}

/// The required parts of a file.
#[derive(Debug)]
pub(super) struct Elf {
    pub(super) segments: Vec<Segment>,
    pub(super) objects: Vec<Object>,
}

const LOAD: u64 = 1;
const DYNAMIC_SYMBOLS: u64 = 11;
const OBJECT: u64 = 1;

/// Reads a little-endian number of `size` bytes.
fn number(file: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn place(file: &[u8], at: usize) -> Option<usize> {
    usize::try_from(number(file, at, 8)?).ok()
}

impl Elf {
    /// Parses a file; returns `None` if it has another format or is damaged.
    pub(super) fn parse(file: &[u8]) -> Option<Self> {
        if !file.starts_with(b"\x7fELF\x02") {
            return None;
        }
        let (programs, sections) = (place(file, 32)?, place(file, 40)?);
        let (program_count, section_count) = (number(file, 56, 2)? as usize, number(file, 60, 2)? as usize);
        let mut segments = Vec::new();
        for header in (0..program_count).map(|index| programs.saturating_add(index * 56)) {
            if number(file, header, 4)? == LOAD {
                let (in_file, address, size) =
                    (place(file, header + 8)?, place(file, header + 16)?, place(file, header + 32)?);
                file.get(in_file..in_file.checked_add(size)?)?;
                segments.push(Segment { in_file, address, size });
            }
        }
        let mut objects = Vec::new();
        for section in (0..section_count).map(|index| sections.saturating_add(index * 64)) {
            if number(file, section + 4, 4)? == DYNAMIC_SYMBOLS {
                let names = sections.saturating_add(number(file, section + 40, 4)? as usize * 64);
                objects.extend(table(file, section, place(file, names + 24)?)?);
            }
        }
        Some(Self { segments, objects })
    }
}

/// Returns the objects of one symbol table, whose names begin at `names`.
fn table(file: &[u8], section: usize, names: usize) -> Option<Vec<Object>> {
    let (start, size) = (place(file, section + 24)?, place(file, section + 32)?);
    let mut objects = Vec::new();
    for entry in (start..start.checked_add(size)?).step_by(24) {
        let (kind, defined_in) = (number(file, entry + 4, 1)? & 0xf, number(file, entry + 6, 2)?);
        if kind != OBJECT || defined_in == 0 {
            continue;
        }
        let name = file.get(names.checked_add(number(file, entry, 4)? as usize)?..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        objects.push(Object { name, address: place(file, entry + 8)?, size: place(file, entry + 16)? });
    }
    Some(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_is_refused() {
        assert!(Elf::parse(b"").is_none() && Elf::parse(b"not an ELF file").is_none());
        let mut file = vec![0; 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        assert!(Elf::parse(&file).is_some_and(|elf| elf.segments.is_empty() && elf.objects.is_empty()));
        // One program header, far beyond the end.
        file[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        file[56] = 1;
        assert!(Elf::parse(&file).is_none());
    }
}
