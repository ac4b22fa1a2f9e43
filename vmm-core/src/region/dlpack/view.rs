//! The elements of a region that a tensor contains, and the range of bytes that they cover.

use super::abi::DLDataType;
use crate::types::{Bytes, Detail, Error, Operation, Result};

/// The maximum number of dimensions of a tensor of a region. Consumers support no more.
const MAX_DIMENSIONS: usize = 32;

/// A part of a region as a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorView {
    /// The offset of the first element in the region: a multiple of the element's size.
    pub offset: Bytes,
    /// The type of an element, whose size must be whole bytes.
    pub dtype: DLDataType,
    /// The number of elements in each dimension. Without dimensions the tensor is one element; with a size of zero it has no
    /// element.
    pub shape: Vec<i64>,
    /// The distance in elements between neighbours in each dimension, or `None` for elements that follow each other, the last
    /// dimension first. A stride may be zero, which repeats the same element. It must not be negative in a dimension
    /// of several elements.
    pub strides: Option<Vec<i64>>,
    /// True if consumers must not write the tensor.
    pub read_only: bool,
}

/// A view that is valid in itself, without regard to the region.
#[derive(Debug)]
pub(super) struct LaidOut {
    pub(super) shape: Box<[i64]>,
    pub(super) strides: Box<[i64]>,
    /// The length from the first byte of the first element to the last byte of the farthest element.
    pub(super) length: Bytes,
}

impl TensorView {
    /// Returns a view for reading and writing of elements that follow each other, the last dimension first.
    #[must_use]
    pub fn new(offset: Bytes, dtype: DLDataType, shape: impl Into<Vec<i64>>) -> Self {
        Self { offset, dtype, shape: shape.into(), strides: None, read_only: false }
    }

    /// Checks everything that does not depend on the region.
    pub(super) fn lay_out(&self, operation: Operation) -> Result<LaidOut> {
        self.measured().map_err(|reason| Error::new(operation, Detail::BadTensor { reason }))
    }

    fn measured(&self) -> Result<LaidOut, String> {
        let element = self.element()?;
        if !self.offset.0.is_multiple_of(element) {
            let below = Bytes(self.offset.0 - self.offset.0 % element);
            return Err(format!(
                "the offset {} is not a multiple of the element's {element} bytes; the next lower multiple is {below}",
                self.offset
            ));
        }
        let dimensions = self.shape.len();
        if dimensions > MAX_DIMENSIONS {
            return Err(format!("{dimensions} dimensions are more than {MAX_DIMENSIONS}"));
        }
        if let Some((at, size)) = self.shape.iter().enumerate().find(|(_, size)| **size < 0) {
            return Err(format!("dimension {at} has the size {size}; it must be zero or more"));
        }
        let compact = self.compact()?;
        let strides = match &self.strides {
            None => compact,
            Some(strides) if strides.len() == dimensions => strides.clone(),
            Some(strides) => {
                let given = strides.len();
                return Err(format!(
                    "there are {given} strides for {dimensions} dimensions; give one for each, or none"
                ));
            }
        };
        let length = self.reach(&strides, element)?;
        Ok(LaidOut { shape: self.shape.clone().into(), strides: strides.into(), length })
    }

    /// The size of an element in bytes.
    fn element(&self) -> Result<u64, String> {
        let DLDataType { bits, lanes, .. } = self.dtype;
        if bits == 0 || bits % 8 != 0 || lanes == 0 {
            return Err(format!(
                "an element of {lanes} lanes of {bits} bits; the bits must be 8 or a multiple of it, \
                 and the lanes 1 or more"
            ));
        }
        Ok(u64::from(bits / 8) * u64::from(lanes))
    }

    /// The strides of elements that follow each other. A dimension of size zero counts as size 1.
    fn compact(&self) -> Result<Vec<i64>, String> {
        let mut strides = vec![1; self.shape.len()];
        let mut together: i64 = 1;
        for (stride, size) in strides.iter_mut().zip(&self.shape).rev() {
            *stride = together;
            together = together
                .checked_mul((*size).max(1))
                .ok_or_else(|| format!("the shape {:?} has more than 2^63 - 1 elements", self.shape))?;
        }
        Ok(strides)
    }

    /// The number of bytes from the first byte of the first element to the last byte of the farthest element.
    fn reach(&self, strides: &[i64], element: u64) -> Result<Bytes, String> {
        if self.shape.contains(&0) {
            return Ok(Bytes::ZERO);
        }
        let mut farthest = Some(0_u64);
        for (at, (size, stride)) in self.shape.iter().zip(strides).enumerate() {
            let steps = size.unsigned_abs() - 1;
            if steps == 0 {
                continue;
            }
            let stride = u64::try_from(*stride).map_err(|_| {
                format!(
                    "dimension {at} of size {size} has the stride {stride}, which leads below the offset {}; it must be \
                     zero or more",
                    self.offset
                )
            })?;
            farthest = farthest.and_then(|sum| sum.checked_add(steps.checked_mul(stride)?));
        }
        let length = farthest.and_then(|last| last.checked_add(1)?.checked_mul(element));
        length.map(Bytes).ok_or_else(|| {
            format!(
                "the shape {:?} with the strides {strides:?} reaches over more than 2^64 - 1 bytes",
                self.shape
            )
        })
    }
}
