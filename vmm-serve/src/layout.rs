//! What lies where in a region.

use crate::error::ServeError;
use gpu_vmm_core::Bytes;
use gpu_vmm_core::dlpack::{DLDataType, DLDataTypeCode, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The limit of an encoded layout, in bytes: some 250,000 parts. Decoded, the smallest parts take twenty times their bytes.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

/// The named parts of a region, such as the tensors of a model, and a program's own notes about the contents.
///
/// The server keeps the layout and does not look into it. A layout that a client receives comes from another process:
/// [`TensorRegion::dlpack`](gpu_vmm_core::dlpack::TensorRegion::dlpack) checks each part before it becomes a tensor.
///
/// ```
/// # mod gpu_vmm { pub use gpu_vmm_serve as serve; pub use gpu_vmm_core::{Bytes, dlpack}; }
/// use gpu_vmm::Bytes;
/// use gpu_vmm::dlpack::{DLDataType, TensorView};
/// use gpu_vmm::serve::Layout;
///
/// let mut layout = Layout::default();
/// layout.parts.insert("bias".to_owned(), TensorView::new(Bytes(0), DLDataType::F32, [128]));
/// layout.notes.insert("quantization".to_owned(), "none".to_owned());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The parts by their names.
    pub parts: BTreeMap<String, TensorView>,
    /// Texts that the programs agree upon, such as a digest of a model's configuration.
    pub notes: BTreeMap<String, String>,
}

/// The form in which a part is encoded.
#[derive(Serialize, Deserialize)]
struct Encoded {
    offset: u64,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
}

impl Layout {
    /// Encodes the layout.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ServeError> {
        let parts: BTreeMap<&str, Encoded> =
            self.parts.iter().map(|(name, view)| (name.as_str(), Encoded::of(view))).collect();
        let bytes = postcard::to_allocvec(&(parts, &self.notes));
        let bytes =
            bytes.map_err(|error| ServeError::bad(format!("the layout cannot be encoded: {error}")))?;
        if bytes.len() as u64 > MAX_BYTES {
            let (size, most) = (Bytes(bytes.len() as u64), Bytes(MAX_BYTES));
            return Err(ServeError::bad(format!("the layout takes {size}, and the limit is {most}")));
        }
        Ok(bytes)
    }

    /// Returns the layout as another client receives it: to read.
    pub(crate) fn as_received(&self) -> Self {
        let mut layout = self.clone();
        layout.parts.values_mut().for_each(|view| view.read_only = true);
        layout
    }

    /// Decodes a layout of another process.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        type Whole = (BTreeMap<String, Encoded>, BTreeMap<String, String>);
        let (parts, notes) = match postcard::take_from_bytes::<Whole>(bytes) {
            Ok((whole, [])) => whole,
            Ok((_, rest)) => return Err(format!("{} bytes follow the end of the layout", rest.len())),
            Err(error) => return Err(format!("its layout is none: {error}")),
        };
        Ok(Self { parts: parts.into_iter().map(|(name, part)| (name, part.view())).collect(), notes })
    }
}

impl Encoded {
    fn of(view: &TensorView) -> Self {
        let DLDataType { code, bits, lanes } = view.dtype;
        let (shape, strides) = (view.shape.clone(), view.strides.clone());
        Self { offset: view.offset.0, code: code.0, bits, lanes, shape, strides }
    }

    fn view(self) -> TensorView {
        let dtype = DLDataType { code: DLDataTypeCode(self.code), bits: self.bits, lanes: self.lanes };
        let (shape, strides) = (self.shape, self.strides);
        TensorView { offset: Bytes(self.offset), dtype, shape, strides, read_only: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let strided = TensorView {
            strides: Some(vec![8, 1]),
            read_only: true,
            ..TensorView::new(Bytes::mib(3), DLDataType::BF16, [4, 8])
        };
        let plain = TensorView { read_only: true, ..TensorView::new(Bytes(0), DLDataType::I64, []) };
        Layout {
            parts: [("a.weight".to_owned(), strided), (String::new(), plain)].into(),
            notes: [("digest".to_owned(), "07".to_owned())].into(),
        }
    }

    #[test]
    fn layout_is_the_same_when_decoded() {
        assert_eq!(Layout::decode(&layout().encode().unwrap()), Ok(layout()));
    }

    #[test]
    fn damaged_layout_is_refused() {
        let whole = layout().encode().unwrap();
        for end in 0..whole.len() {
            Layout::decode(&whole[..end]).unwrap_err();
        }
        let longer = [whole.as_slice(), &[0]].concat();
        assert_eq!(Layout::decode(&longer).unwrap_err(), "1 bytes follow the end of the layout");
        // A length of 2^63 allocates nothing.
        Layout::decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).unwrap_err();
    }

    #[test]
    fn oversized_layout_is_refused() {
        let long = "x".repeat(MAX_BYTES as usize);
        let layout = Layout { notes: [("long".to_owned(), long)].into(), ..Layout::default() };
        let error = layout.encode().unwrap_err().to_string();
        assert!(error.ends_with("and the limit is 16 MiB"), "{error}");
    }
}
