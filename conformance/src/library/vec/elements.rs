//! The elements of a vector.

use super::{count, empty};
use crate::case::cases;
use crate::library::tools::refused;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Detail, DeviceVec};
use gpu_vmm_testkit::{TestKit, write_pattern_words};

cases! { "vec":
    /// Elements that were added one by one are read back in order.
    push_and_read_back,
    /// Extending by a slice adds its elements, an empty slice takes no memory, and resizing adds one value many times.
    extend_and_resize,
    /// A vector that is created from a slice has its elements.
    made_of_a_slice,
    /// A vector that is shortened and lengthened again has the new value in the new elements.
    cut_and_made_longer,
    /// Elements are read and overwritten by index; indices beyond the end are refused.
    by_index,
    /// Kernels read the elements that the host added, and the host reads the elements that kernels wrote.
    kernels_see_the_elements,
    /// Elements of twelve bytes can cross the borders of mappings.
    odd_elements,
    /// Elements of any plain type are read back bit for bit.
    types,
    /// Counts whose bytes do not fit are refused, and the vector is unchanged.
    counts_that_do_not_fit,
}

fn push_and_read_back<B: TestKit>(subject: &Subject<B>) {
    let mut numbers = empty::<u64, B>(subject, 1);
    assert!(numbers.is_empty());
    assert!(numbers.to_vec().unwrap().is_empty());
    for number in 0..100 {
        numbers.push(number * 3).unwrap();
    }
    assert_eq!(numbers.len(), 100);
    assert_eq!(numbers.to_vec().unwrap(), (0..100).map(|number| number * 3).collect::<Vec<u64>>());
}

fn extend_and_resize<B: TestKit>(subject: &Subject<B>) {
    let mut numbers = empty::<u32, B>(subject, 4);
    numbers.extend_from_slice(&[]).unwrap();
    assert_eq!(numbers.capacity(), 0);
    numbers.extend_from_slice(&[1, 2]).unwrap();
    // A value of four equal bytes is filled; other values are copied.
    numbers.resize(4, 0x0101_0101).unwrap();
    let length = count::<u32, B>(subject, 2) + 1;
    numbers.resize(length, 0xdead_beef).unwrap();
    let mut expected = vec![0xdead_beef; length];
    expected[..4].copy_from_slice(&[1, 2, 0x0101_0101, 0x0101_0101]);
    assert!(numbers.to_vec().unwrap() == expected);
}

fn cut_and_made_longer<B: TestKit>(subject: &Subject<B>) {
    let mut numbers = empty::<u16, B>(subject, 1);
    numbers.resize(10, 0x1234).unwrap();
    numbers.resize(6, 0x9999).unwrap();
    assert_eq!(numbers.to_vec().unwrap(), [0x1234; 6]);
    numbers.resize(8, 0x5678).unwrap();
    numbers.push(1).unwrap();
    assert_eq!(
        numbers.to_vec().unwrap(),
        [0x1234, 0x1234, 0x1234, 0x1234, 0x1234, 0x1234, 0x5678, 0x5678, 1]
    );
}

fn by_index<B: TestKit>(subject: &Subject<B>) {
    let mut numbers = empty::<u16, B>(subject, 1);
    numbers.extend_from_slice(&[5, 6, 7]).unwrap();
    numbers.write(1, &[8]).unwrap();
    assert_eq!((numbers.get(0).unwrap(), numbers.get(1).unwrap()), (5, 8));
    for index in [3, 4, usize::MAX] {
        refused!(numbers.get(index), Detail::NoSuchElement { .. } | Detail::TooManyElements { .. });
    }
    let error = numbers.write(2, &[0, 0]).unwrap_err();
    assert_eq!(error.to_string(), "write: index 3 is not below the length 3");
    let mut two = [0; 2];
    numbers.read(1, &mut two).unwrap();
    assert_eq!(two, [8, 7]);
    refused!(numbers.read(2, &mut two), Detail::NoSuchElement { .. }, 3);
}

fn kernels_see_the_elements<B: TestKit>(subject: &Subject<B>) {
    let mut words = empty::<u64, B>(subject, 3);
    let mut pattern = vec![0; count::<u64, B>(subject, 2) + 100];
    write_pattern_words(&mut pattern, 1, 0);
    for part in pattern.chunks(1 + pattern.len() / 3) {
        words.extend_from_slice(part).unwrap();
    }
    let length = Bytes::of::<u64>(words.len()).unwrap();
    subject.check(words.region(), Bytes(0), length, 1);
    let pointer = words.as_device_ptr();
    assert_eq!(pointer.address(), words.region().address());
    assert_eq!(pointer.as_raw() as u64, pointer.address().0);
    let (expected, mut region) = (pattern.len(), words.into_region());
    subject.write(&mut region, Bytes(0), length, 2);
    write_pattern_words(&mut pattern, 2, 0);
    let mut back = vec![0_u64; expected];
    region.read(Bytes(0), bytemuck::cast_slice_mut(&mut back)).unwrap();
    assert!(back == pattern);
}

fn odd_elements<B: TestKit>(subject: &Subject<B>) {
    // Twelve bytes do not divide a granule.
    let mut points = empty::<[f32; 3], B>(subject, 4);
    let inside = count::<[f32; 3], B>(subject, 1);
    points.resize(inside, [1.0, 2.0, 3.0]).unwrap();
    points.push([4.0, 5.0, 6.0]).unwrap();
    points.push([7.0, 8.0, 9.0]).unwrap();
    assert_eq!(points.get(inside - 1).unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(points.get(inside).unwrap(), [4.0, 5.0, 6.0]);
    assert_eq!(points.get(inside + 1).unwrap(), [7.0, 8.0, 9.0]);
    assert!(points.region().end() > subject.granularity());
}

fn types<B: TestKit>(subject: &Subject<B>) {
    fn back<T: bytemuck::Pod, B: TestKit>(subject: &Subject<B>, values: &[T]) -> Vec<u8> {
        let mut vector = empty::<T, B>(subject, 1);
        vector.extend_from_slice(values).unwrap();
        let all = vector.to_vec().unwrap();
        assert_eq!((all.len(), vector.len()), (values.len(), values.len()));
        bytemuck::cast_slice(&all).to_vec()
    }
    assert_eq!(back(subject, &[0_u8, 1, 255]), [0, 1, 255]);
    assert_eq!(back(subject, &[i64::MIN, -1]), bytemuck::cast_slice::<i64, u8>(&[i64::MIN, -1]));
    let floats = [f64::NAN, -0.0, f64::MIN_POSITIVE];
    assert_eq!(back(subject, &floats), bytemuck::cast_slice::<f64, u8>(&floats));
    let arrays = [[1_u16, 2, 3], [4, 5, 6]];
    assert_eq!(back(subject, &arrays), bytemuck::cast_slice::<[u16; 3], u8>(&arrays));
    assert_eq!(back(subject, &[u128::MAX - 7]), (u128::MAX - 7).to_ne_bytes());
}

fn counts_that_do_not_fit<B: TestKit>(subject: &Subject<B>) {
    let mut numbers = empty::<u64, B>(subject, 1);
    for count in [usize::MAX, usize::MAX / 8 + 1] {
        refused!(numbers.reserve(count), Detail::TooManyElements { .. });
        refused!(numbers.resize(count, 1), Detail::TooManyElements { .. });
    }
    numbers.push(1).unwrap();
    refused!(numbers.reserve(usize::MAX), Detail::TooManyElements { .. });
    refused!(numbers.reserve(1 << 58), Detail::ExceedsAddressSpace { .. } | Detail::ExceedsDevice { .. });
    assert_eq!(numbers.to_vec().unwrap(), [1]);
}

fn made_of_a_slice<B: TestKit>(subject: &Subject<B>) {
    let mut vec = DeviceVec::from_slice(&subject.backend, subject.device, &[3_u32, 1, 4]).unwrap();
    vec.push(1).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3, 1, 4, 1]);
    assert!(DeviceVec::<u64, B>::from_slice(&subject.backend, subject.device, &[]).unwrap().is_empty());
}
