//! The `snapshot` subcommand: the contents of a snapshot, verified. No driver is opened.

mod text;

use crate::CliResult;
use crate::args::SnapshotArguments;
use crate::output::Output;
use crate::progress::Progress;
use gpu_vmm::snapshot::{
    Description, EarlierSnapshot, MappingRecord, RegionRecord, SnapshotFile, SnapshotStats,
};
use gpu_vmm::{Access, AccessMap, Bytes, Error, Properties, Result};
use serde::Serialize;

/// The result of `gpu-vmm snapshot`, as `--json` prints it.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    pub(crate) file: String,
    pub(crate) id: String,
    /// The time of its creation, in seconds since the beginning of 1970 (UTC).
    pub(crate) created: u64,
    /// The version of gpu-vmm that wrote it.
    pub(crate) version: String,
    pub(crate) backend: String,
    pub(crate) driver: String,
    /// The earlier snapshot that it is based on.
    pub(crate) since: Option<FileReport>,
    /// The files in the same folder that hold some of its blocks.
    pub(crate) needs: Vec<FileReport>,
    pub(crate) devices: Vec<DeviceReport>,
    pub(crate) regions: Vec<RegionReport>,
    /// The size of all memory on the devices.
    pub(crate) content_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) blocks: Blocks,
    /// Whether every block matches its checksum.
    pub(crate) verified: bool,
    /// Why `verified` is false.
    pub(crate) error: Option<String>,
}

#[derive(Serialize, Debug)]
pub(crate) struct FileReport {
    pub(crate) file: String,
    pub(crate) id: String,
}

#[derive(Serialize, Debug)]
pub(crate) struct DeviceReport {
    pub(crate) device: u32,
    pub(crate) name: String,
    pub(crate) uuid: Option<String>,
    pub(crate) granularity_bytes: u64,
    pub(crate) total_bytes: u64,
}

#[derive(Serialize, Debug)]
pub(crate) struct RegionReport {
    pub(crate) tag: String,
    pub(crate) address: String,
    pub(crate) reserved_bytes: u64,
    pub(crate) mapped_bytes: u64,
    pub(crate) guard_bytes: u64,
    pub(crate) portable: bool,
    /// The address below which the region stays; none without a limit.
    pub(crate) below: Option<String>,
    pub(crate) parts: Vec<PartReport>,
}

/// Consecutive mappings with the same type of memory and the same access.
#[derive(Serialize, Debug)]
pub(crate) struct PartReport {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) mappings: u64,
    pub(crate) memory: String,
    pub(crate) access: Vec<AccessReport>,
}

#[derive(Serialize, Debug)]
pub(crate) struct AccessReport {
    pub(crate) device: String,
    /// `read` or `read and write`.
    pub(crate) access: String,
}

/// The numbers of blocks by how they are stored.
#[derive(Serialize, Debug)]
pub(crate) struct Blocks {
    pub(crate) all: u64,
    pub(crate) zero: u64,
    pub(crate) unchanged: u64,
    pub(crate) stored: u64,
    pub(crate) compressed: u64,
}

pub(crate) fn run(options: &SnapshotArguments) -> CliResult {
    let file = SnapshotFile::open(&options.file)?;
    let mut output = Output::default();
    let mut report = Report::new(&file);
    if !options.json {
        text::opening(&report, &mut output)?;
    }
    let verified = verify(&file, &mut Progress::new(!options.json));
    report.verified = verified.is_ok();
    report.error = verified.as_ref().err().map(Error::to_string);
    if options.json {
        output.json(&report)?;
    } else {
        text::verdict(&report, &mut output)?;
    }
    Ok(verified.map(drop)?)
}

fn verify(file: &SnapshotFile, progress: &mut Progress) -> Result<SnapshotStats> {
    progress.begin("checking", file.stats().contents);
    let progress = &*progress;
    file.verify(&|done| progress.advance(done))
}

impl Report {
    fn new(file: &SnapshotFile) -> Self {
        let description = file.description();
        let stats = file.stats();
        Self {
            file: file.path().display().to_string(),
            id: description.id.to_string(),
            created: description.created,
            version: description.library.clone(),
            backend: description.vendor.clone(),
            driver: description.driver.clone(),
            since: description.parent.as_ref().map(FileReport::from),
            needs: file.needed().iter().map(FileReport::from).collect(),
            devices: description
                .devices
                .iter()
                .map(|device| DeviceReport {
                    device: device.id.0,
                    name: device.name.clone(),
                    uuid: device.uuid.map(|uuid| uuid.to_string()),
                    granularity_bytes: device.granularity.bytes().0,
                    total_bytes: device.total_memory.0,
                })
                .collect(),
            regions: description.regions.iter().map(|one| RegionReport::new(one, description)).collect(),
            content_bytes: stats.contents.0,
            file_bytes: stats.file.0,
            block_bytes: file.block_size().0,
            blocks: Blocks {
                all: stats.blocks,
                zero: stats.zero,
                unchanged: stats.unchanged,
                stored: stats.stored,
                compressed: stats.compressed,
            },
            verified: false,
            error: None,
        }
    }
}

impl From<&EarlierSnapshot> for FileReport {
    fn from(earlier: &EarlierSnapshot) -> Self {
        Self { file: earlier.file.clone(), id: earlier.id.to_string() }
    }
}

impl RegionReport {
    fn new(region: &RegionRecord, description: &Description) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        for mapping in &region.mappings {
            let Some(next) = Part::of(mapping, description) else { continue };
            match parts.last_mut() {
                Some(last) if last.is_followed_by(&next) => {
                    last.length += next.length;
                    last.mappings += 1;
                }
                _ => parts.push(next),
            }
        }
        Self {
            tag: region.tag.clone(),
            address: region.address.to_string(),
            reserved_bytes: region.reserved().0,
            mapped_bytes: parts.iter().map(|part| part.length.0).sum(),
            guard_bytes: region.guard.0,
            portable: region.portable,
            below: region.below.map(|limit| limit.to_string()),
            parts: parts.iter().map(Part::report).collect(),
        }
    }
}

/// The mappings of a future [`PartReport`].
struct Part {
    offset: Bytes,
    length: Bytes,
    mappings: u64,
    properties: Properties,
    access: AccessMap,
}

impl Part {
    fn of(mapping: &MappingRecord, description: &Description) -> Option<Self> {
        let memory = description.memories.get(mapping.memory)?;
        let (length, properties) = (memory.size, memory.properties);
        Some(Self { offset: mapping.offset, length, mappings: 1, properties, access: mapping.access })
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.offset + self.length == next.offset
            && (self.properties, self.access) == (next.properties, next.access)
    }

    fn report(&self) -> PartReport {
        let one = |device: String, access: Access| AccessReport { device, access: access.to_string() };
        PartReport {
            offset: self.offset.0,
            bytes: self.length.0,
            mappings: self.mappings,
            memory: self.properties.to_string(),
            access: self.access.grants().map(|grant| one(grant.device.to_string(), grant.access)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use gpu_vmm::snapshot::{MemoryRecord, SnapshotId};
    use gpu_vmm::{Address, Alignment, DeviceId, Granularity};

    #[test]
    fn equal_adjacent_mappings_are_one_part() {
        let granularity = Granularity::new(Bytes::kib(64)).unwrap();
        let memory = |units: u64, device| MemoryRecord {
            size: Bytes::kib(64 * units),
            granularity,
            properties: Properties::on(DeviceId(device)),
        };
        let description = Description {
            id: SnapshotId([0; 16]),
            parent: None,
            created: 0,
            library: String::new(),
            vendor: String::new(),
            driver: String::new(),
            devices: Vec::new(),
            regions: Vec::new(),
            memories: vec![memory(2, 0), memory(1, 0), memory(1, 1)],
            pool: None,
        };
        let [read, write] =
            [Access::Read, Access::ReadWrite].map(|access| AccessMap::NONE.with(DeviceId(0), access));
        let mapping =
            |unit: u64, memory, access| MappingRecord { offset: Bytes::kib(64 * unit), memory, access };
        let region = RegionRecord {
            tag: "kv".to_owned(),
            address: Address(0x7000),
            reservations: vec![Bytes::mib(1), Bytes::mib(2)],
            granularity,
            alignment: Alignment::from(granularity),
            memory: Properties::on(DeviceId(0)),
            access: AccessMap::NONE,
            extend_by: Bytes::ZERO,
            guard: Bytes::mib(4),
            portable: true,
            below: Some(Address(1 << 40)),
            mappings: vec![
                mapping(0, 0, read),
                mapping(2, 1, read),
                mapping(3, 1, write),
                mapping(4, 2, write),
                mapping(6, 2, write),
            ],
        };
        let found = RegionReport::new(&region, &description);
        let parts: Vec<_> =
            found.parts.iter().map(|part| (part.offset >> 16, part.bytes >> 16, part.mappings)).collect();
        assert_eq!(parts, [(0, 3, 2), (3, 1, 1), (4, 1, 1), (6, 1, 1)]);
        assert_eq!(found.mapped_bytes >> 16, 6);
        assert_eq!((found.reserved_bytes, found.guard_bytes), (Bytes::mib(3).0, Bytes::mib(4).0));
        assert!(found.portable && found.tag == "kv" && found.address == "0x7000");
        assert_eq!(found.below.as_deref(), Some("0x10000000000"));
        let of_parts: Vec<_> =
            found.parts.iter().map(|part| (part.memory.as_str(), part.access[0].access.as_str())).collect();
        let [one, other] = ["device memory of device 0", "device memory of device 1"];
        let [read, write] = ["read", "read and write"];
        assert_eq!(of_parts, [(one, read), (one, write), (other, write), (other, write)]);
    }
}
