//! Files of weights, in the format of safetensors.
//!
//! A file that a lease has saved has the whole region, byte for byte, and what the format cannot say (the address, the layout with
//! strides, the notes) in its metadata. Other readers of the format find the parts as tensors, and what lies between them as tensors
//! of bytes.

use crate::layout::Layout;
use gpu_vmm_core::Bytes;
use gpu_vmm_core::dlpack::{DLDataType, DLDataTypeCode, TensorView};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The key of this crate's own metadata.
const KEY: &str = "gpu_vmm";

/// The names of tensors that hold what lies between parts.
const GAP: &str = "gpu_vmm.gap.";

/// The limit of a header, as in the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;

/// The data of a file begins at a multiple of this.
const PAGE: usize = 4096;

/// The alignment of tensors of other programs' files, in bytes: as frameworks align their own.
const ALIGNMENT: u64 = 256;

/// What a file says about its contents.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(super) name: Option<String>,
    pub(super) address: Option<u64>,
    pub(super) layout: Layout,
    /// The size of the region that the contents need.
    pub(super) size: Bytes,
    /// Where the data begins in the file.
    pub(super) begin: u64,
    /// The places of the data in the region, in the order in which it lies in the file: offset and length.
    pub(super) places: Vec<(Bytes, Bytes)>,
}

/// This crate's own metadata.
#[derive(Serialize, Deserialize)]
struct Own {
    /// Of this metadata.
    version: u32,
    name: String,
    address: u64,
    parts: BTreeMap<String, Part>,
    notes: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Part {
    offset: u64,
    /// As DLPack has it: code, bits, lanes.
    dtype: (u8, u8, u16),
    shape: Vec<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strides: Option<Vec<i64>>,
}

/// Reads a file's header, which is untrusted.
///
/// # Errors
///
/// What is wrong with the file, or the system's error.
pub(crate) fn read(file: &File) -> Result<Contents, String> {
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).map_err(|error| error.to_string());
    let mut length = [0; 8];
    read(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    let begin = length.saturating_add(8);
    if length > MAX_HEADER || begin > size {
        return Err(format!("its header would have {length} bytes, of a file of {size}"));
    }
    let mut header = vec![0; length as usize];
    read(&mut header, 8)?;
    let header: Metadata = serde_json::from_slice(&header)
        .map_err(|error| format!("its header is not one of safetensors: {error}"))?;
    let data = header.data_len() as u64;
    if data != size - begin {
        return Err(format!("its header describes {data} bytes, and {} follow it", size - begin));
    }
    match header.metadata().as_ref().and_then(|texts| texts.get(KEY)) {
        Some(own) => own_contents(own, begin, Bytes(data)),
        None => foreign_contents(&header, begin),
    }
}

/// Returns the contents of a file that this crate has written.
fn own_contents(own: &str, begin: u64, size: Bytes) -> Result<Contents, String> {
    let own: Own = serde_json::from_str(own).map_err(|error| format!("its metadata {KEY:?}: {error}"))?;
    if own.version != 1 {
        return Err(format!("its metadata {KEY:?} has version {}, and 1 is known here", own.version));
    }
    let view = |part: Part| {
        let (code, bits, lanes) = part.dtype;
        let dtype = DLDataType { code: DLDataTypeCode(code), bits, lanes };
        TensorView { strides: part.strides, ..TensorView::new(Bytes(part.offset), dtype, part.shape) }
    };
    let parts = own.parts.into_iter().map(|(name, part)| (name, view(part))).collect();
    Ok(Contents {
        name: Some(own.name),
        address: Some(own.address),
        layout: Layout { parts, notes: own.notes },
        size,
        begin,
        places: vec![(Bytes::ZERO, size)],
    })
}

/// Returns the contents of another program's file: its tensors one after the other, aligned.
fn foreign_contents(header: &Metadata, begin: u64) -> Result<Contents, String> {
    let (mut at, mut places, mut layout) = (0_u64, Vec::new(), Layout::default());
    let known = header.metadata().iter().flatten();
    layout.notes.extend(known.map(|(key, text)| (key.clone(), text.clone())));
    for name in header.offset_keys() {
        let Some(TensorInfo { dtype, shape, data_offsets: (from, to) }) = header.info(&name) else {
            continue;
        };
        let dtype = of_dtype(*dtype).ok_or_else(|| format!("its tensor {name:?} is of {dtype:?}"))?;
        let shape: Result<Vec<i64>, _> = shape.iter().map(|size| i64::try_from(*size)).collect();
        let shape = shape.map_err(|_| format!("its tensor {name:?} has 2^63 elements or more"))?;
        let length = (to - from) as u64;
        layout.parts.insert(name, TensorView::new(Bytes(at), dtype, shape));
        places.push((Bytes(at), Bytes(length)));
        // Its bytes are in the file, so that no sum overflows.
        at = (at + length).next_multiple_of(ALIGNMENT);
    }
    Ok(Contents { name: None, address: None, layout, size: Bytes(at), begin, places })
}

/// Returns the header of a file of a region, with its length in front.
pub(super) fn header(name: &str, address: u64, size: Bytes, layout: &Layout) -> Result<Vec<u8>, String> {
    let mut tensors: Vec<(String, TensorInfo)> = Vec::new();
    let mut end = 0;
    let gap = |from: u64, to: u64, tensors: &mut Vec<(String, TensorInfo)>| {
        if from < to {
            let (shape, data_offsets) = (vec![(to - from) as usize], (from as usize, to as usize));
            tensors.push((format!("{GAP}{from}"), TensorInfo { dtype: Dtype::U8, shape, data_offsets }));
        }
    };
    let mut plain: Vec<_> =
        layout.parts.iter().filter_map(|(name, view)| Some((name, plain(view)?))).collect();
    plain.sort_by_key(|(_, info)| info.data_offsets);
    for (name, info) in plain {
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        // A part that shares bytes with an earlier one is in the metadata alone, and so is one beyond the region.
        if from >= end && to <= size.0 && !name.starts_with(GAP) && name != "__metadata__" {
            gap(end, from, &mut tensors);
            tensors.push((name.clone(), info));
            end = to;
        }
    }
    gap(end, size.0, &mut tensors);
    let part = |view: &TensorView| Part {
        offset: view.offset.0,
        dtype: (view.dtype.code.0, view.dtype.bits, view.dtype.lanes),
        shape: view.shape.clone(),
        strides: view.strides.clone(),
    };
    let own = Own {
        version: 1,
        name: name.to_owned(),
        address,
        parts: layout.parts.iter().map(|(name, view)| (name.clone(), part(view))).collect(),
        notes: layout.notes.clone(),
    };
    let own = serde_json::to_string(&own).map_err(|error| error.to_string())?;
    let metadata = Metadata::new(Some(HashMap::from([(KEY.to_owned(), own)])), tensors);
    let metadata = metadata.map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    // The format permits spaces at the end.
    let whole = (text.len() + 8).next_multiple_of(PAGE);
    text.resize(whole - 8, b' ');
    if text.len() as u64 > MAX_HEADER {
        return Err(format!(
            "its header would have {} bytes, and the format permits {MAX_HEADER}",
            text.len()
        ));
    }
    Ok([(text.len() as u64).to_le_bytes().as_slice(), &text].concat())
}

/// Returns a part as the format has tensors, if it can: elements that follow each other, of a type of the format.
fn plain(view: &TensorView) -> Option<TensorInfo> {
    let dtype = to_dtype(view.dtype)?;
    let shape: Vec<usize> =
        view.shape.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?;
    let count = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))?;
    let mut together = 1_i64;
    for (place, size) in view.shape.iter().enumerate().rev() {
        let stride = view.strides.as_ref().map(|strides| strides.get(place).copied());
        if stride.is_some_and(|stride| stride != Some(together)) && *size > 1 {
            return None;
        }
        together = together.checked_mul((*size).max(1))?;
    }
    let from = usize::try_from(view.offset.0).ok()?;
    let to = from.checked_add(count.checked_mul(dtype.bitsize() / 8)?)?;
    Some(TensorInfo { dtype, shape, data_offsets: (from, to) })
}

/// The types of elements in both formats. DLPack has numbers for 8-bit floating-point types that this crate has no names for.
const DTYPES: [(Dtype, u8, u8); 16] = [
    (Dtype::BOOL, 6, 8),
    (Dtype::U8, 1, 8),
    (Dtype::I8, 0, 8),
    (Dtype::F8_E5M2, 12, 8),
    (Dtype::F8_E4M3, 10, 8),
    (Dtype::F8_E8M0, 14, 8),
    (Dtype::I16, 0, 16),
    (Dtype::U16, 1, 16),
    (Dtype::F16, 2, 16),
    (Dtype::BF16, 4, 16),
    (Dtype::I32, 0, 32),
    (Dtype::U32, 1, 32),
    (Dtype::F32, 2, 32),
    (Dtype::F64, 2, 64),
    (Dtype::I64, 0, 64),
    (Dtype::U64, 1, 64),
];

fn of_dtype(dtype: Dtype) -> Option<DLDataType> {
    let (_, code, bits) = DTYPES.into_iter().find(|(known, ..)| *known == dtype)?;
    Some(DLDataType::scalar(DLDataTypeCode(code), bits))
}

fn to_dtype(dtype: DLDataType) -> Option<Dtype> {
    let found =
        DTYPES.into_iter().find(|(_, code, bits)| dtype == DLDataType::scalar(DLDataTypeCode(*code), *bits));
    found.map(|(dtype, ..)| dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn foreign(header: &str, data: usize) -> File {
        let header = [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes()].concat();
        file(&[header, vec![0; data]].concat())
    }

    #[test]
    fn tensors_of_other_programs_are_aligned() {
        let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
        let found = read(&foreign(header, 11)).unwrap();
        assert_eq!(found.places, [(Bytes(0), Bytes(3)), (Bytes(256), Bytes(8))]);
        assert_eq!((found.size, found.begin), (Bytes(512), 8 + header.len() as u64));
        assert_eq!(found.layout.parts["b"], TensorView::new(Bytes(256), DLDataType::F32, [2]));
        assert_eq!(found.layout.notes["format"], "pt");
    }

    #[test]
    fn wrong_files_are_refused() {
        let tensor = |dtype: &str, shape: &str, range: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}}}"#)
        };
        for (found, words) in [
            (file(b"short"), "fill"),
            (file(&u64::MAX.to_le_bytes()), "header would have 18446744073709551615 bytes"),
            (file(&[200, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']), "header would have 200 bytes, of a file of 10"),
            (foreign("[]", 0), "not one of safetensors"),
            (foreign(&tensor("U8", "[4]", "[0,4]"), 3), "describes 4 bytes, and 3 follow"),
            (foreign(&tensor("U8", "[4]", "[0,4]"), 5), "describes 4 bytes, and 5 follow"),
            (foreign(&tensor("U8", "[4]", "[1,5]"), 5), "not one of safetensors"),
            (foreign(&tensor("F32", "[4]", "[0,4]"), 4), "not one of safetensors"),
            (foreign(&tensor("F4", "[4]", "[0,2]"), 2), "is of F4"),
            (foreign(r#"{"__metadata__":{"gpu_vmm":"{}"}}"#, 0), "its metadata"),
        ] {
            let error = read(&found).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn saved_region_is_valid_safetensors() {
        let view = |offset, dtype, shape: &[i64]| TensorView::new(Bytes(offset), dtype, shape.to_vec());
        let mut layout = Layout::default();
        layout.parts.insert("first".to_owned(), view(256, DLDataType::F32, &[2, 2]));
        layout.parts.insert("shared".to_owned(), view(264, DLDataType::F32, &[2]));
        let turned = TensorView { strides: Some(vec![1, 2]), ..view(512, DLDataType::I64, &[2, 2]) };
        layout.parts.insert("turned".to_owned(), turned);
        layout.parts.insert("beyond".to_owned(), view(4096, DLDataType::U8, &[1]));
        layout.notes.insert("digest".to_owned(), "x".to_owned());
        let header = header("model", 0x4000_0000_0000, Bytes(1024), &layout).unwrap();
        assert_eq!(header.len() % PAGE, 0);
        let whole = [header, vec![0; 1024]].concat();
        let found = read(&file(&whole)).unwrap();
        assert_eq!((found.layout, found.size), (layout, Bytes(1024)));
        assert_eq!((found.name.as_deref(), found.address), (Some("model"), Some(0x4000_0000_0000)));
        assert_eq!(found.places, [(Bytes(0), Bytes(1024))]);
        let others = safetensors::SafeTensors::deserialize(&whole).unwrap();
        let mut names = others.names();
        names.sort_unstable();
        assert_eq!(names, ["first", "gpu_vmm.gap.0", "gpu_vmm.gap.272"]);
        assert_eq!(others.tensor("first").unwrap().shape(), [2, 2]);
    }
}
