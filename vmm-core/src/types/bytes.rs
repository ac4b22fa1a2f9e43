//! Amounts of memory, as a separate type so that sizes, counts and addresses cannot be confused.

use std::fmt;
use std::str::FromStr;

/// An amount of memory, or an offset from the start of a range, in bytes.
///
/// Prints in the largest binary unit that divides the amount, and parses the same text:
///
/// ```
/// # use gpu_vmm_core as gpu_vmm;
/// use gpu_vmm::Bytes;
/// assert_eq!(Bytes::mib(2).to_string(), "2 MiB");
/// assert_eq!(Bytes(1000).to_string(), "1000 B");
/// assert_eq!("1.5GiB".parse::<Bytes>()?, Bytes::mib(1536));
/// # Ok::<(), gpu_vmm_core::ParseBytesError>(())
/// ```
///
/// The alternate form is for people: with more than four digits, the size in the largest unit that it fills, to one decimal.
///
/// ```
/// # use gpu_vmm_core::Bytes;
/// let memory = Bytes::mib(24_104);
/// assert_eq!((format!("{memory}"), format!("{memory:#}")), ("24104 MiB".to_owned(), "23.5 GiB".to_owned()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// Returns `n` kibibytes (2^10 bytes), saturating at 2^64 - 1 bytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// Returns `n` mebibytes (2^20 bytes), saturating at 2^64 - 1 bytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// Returns `n` gibibytes (2^30 bytes), saturating at 2^64 - 1 bytes.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the size of `count` values of type `T`, or `None` if it exceeds 2^64 - 1 bytes.
    #[must_use]
    pub fn of<T>(count: usize) -> Option<Self> {
        (count as u64).checked_mul(size_of::<T>() as u64).map(Self)
    }

    /// Converts the amount to a `usize`, or returns `None` if it does not fit.
    #[must_use]
    pub fn to_usize(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// Returns true for zero bytes.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the sum, or `None` if it exceeds 2^64 - 1.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Returns the difference, or zero if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the sum, or 2^64 - 1 if it exceeds that.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;
    /// Adds two amounts. Saturates at 2^64 - 1 bytes, so that no caller's number causes a panic.
    fn add(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl std::ops::Sub for Bytes {
    type Output = Self;
    /// Subtracts `other`. Saturates at zero, so that no caller's number causes a panic.
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl std::ops::Mul<u64> for Bytes {
    type Output = Self;
    /// Multiplies by `count`. Saturates at 2^64 - 1 bytes, so that no caller's number causes a panic.
    fn mul(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl std::ops::Mul<Bytes> for u64 {
    type Output = Bytes;
    /// Multiplies the amount; equal to `bytes * self`.
    fn mul(self, bytes: Bytes) -> Bytes {
        bytes * self
    }
}

impl std::ops::Div for Bytes {
    type Output = u64;
    /// Returns the quotient, rounded down. If `other` is zero, returns 2^64 - 1, so that no caller's number causes a panic.
    fn div(self, other: Self) -> u64 {
        self.0.checked_div(other.0).unwrap_or(u64::MAX)
    }
}

impl std::ops::Rem for Bytes {
    type Output = Self;
    /// Returns the remainder of a division, or zero if `other` is zero.
    fn rem(self, other: Self) -> Self {
        Self(self.0.checked_rem(other.0).unwrap_or(0))
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |sum, next| sum + next)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS
            .into_iter()
            .find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit))
            .unwrap_or(("B", 1));
        let exact = format!("{} {name}", self.0 / unit);
        let digits = exact.bytes().take_while(u8::is_ascii_digit).count();
        match UNITS.into_iter().find(|(_, unit)| self.0 >= *unit) {
            Some((name, unit)) if f.alternate() && digits > 4 => {
                f.pad(&format!("{:.1} {name}", self.0 as f64 / unit as f64))
            }
            _ => f.pad(&exact),
        }
    }
}

impl fmt::Debug for Bytes {
    /// Prints the exact size, also in the alternate form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_string())
    }
}

/// The error for a string that is not an amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an amount of memory: {why}; write a number with B, KiB, MiB, GiB or TiB, as in 2MiB"
)]
pub struct ParseBytesError {
    text: String,
    why: &'static str,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Parses `4096`, `2MiB`, `2 MiB`, `2M` or `1.5GiB`. Units are powers of two, in upper or lower case.
    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let error = |why| ParseBytesError { text: text.to_owned(), why };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1u64 << 40,
            _ => return Err(error("the unit is unknown")),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(unit).map(Self).ok_or(error("it is more than 2^64 - 1 bytes"));
        }
        let (whole, fraction) = number.split_once('.').ok_or(error("the number is missing or too large"))?;
        if whole.is_empty() && fraction.is_empty() {
            return Err(error("the number is missing"));
        }
        let parse = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>() };
        let (Ok(whole), Ok(tail)) = (parse(whole), parse(fraction)) else {
            return Err(error("the number cannot be read"));
        };
        let scale = 10u128.checked_pow(fraction.len() as u32).ok_or(error("it has too many decimals"))?;
        let bytes = u128::from(whole) * u128::from(unit) + u128::from(tail) * u128::from(unit) / scale;
        u64::try_from(bytes).map(Self).map_err(|_| error("it is more than 2^64 - 1 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_largest_unit_that_divides() {
        for (bytes, text) in [
            (Bytes(0), "0 B"),
            (Bytes(1), "1 B"),
            (Bytes(1536), "1536 B"),
            (Bytes::kib(3), "3 KiB"),
            (Bytes::gib(64), "64 GiB"),
            (Bytes::gib(2048), "2 TiB"),
        ] {
            assert_eq!(bytes.to_string(), text);
            assert_eq!(text.parse(), Ok(bytes));
        }
    }

    #[test]
    fn sizes_for_people_are_short() {
        for (bytes, text) in [
            (Bytes::gib(64), "64 GiB"),
            (Bytes(25_250_000_896), "23.5 GiB"),
            (Bytes(1_000_001), "976.6 KiB"),
            (Bytes(50_171), "49.0 KiB"),
            (Bytes(1536), "1536 B"),
            (Bytes::mib(1536), "1536 MiB"),
            (Bytes(u64::MAX), "16777216.0 TiB"),
        ] {
            assert_eq!(format!("{bytes:#}"), text);
            assert_eq!(format!("{bytes:#?}"), bytes.to_string());
        }
    }

    #[test]
    fn parses_usual_sizes_and_refuses_others() {
        assert_eq!("2M".parse(), Ok(Bytes::mib(2)));
        assert_eq!(" 0.5 gib ".parse(), Ok(Bytes::mib(512)));
        assert_eq!(".5k".parse(), Ok(Bytes(512)));
        assert_eq!("1.0625MiB".parse(), Ok(Bytes::kib(1088)));
        assert_eq!("1.50GiB".parse(), Ok(Bytes::mib(1536)));
        for (unit, bytes) in [("B", 1), ("kB", 1 << 10), ("mb", 1 << 20), ("G", 1 << 30), ("gb", 1 << 30)] {
            assert_eq!(format!("3 {unit}").parse(), Ok(Bytes(3 * bytes)));
        }
        for unit in ["T", "tb", "TiB"] {
            assert_eq!(format!("1.{unit}").parse(), Ok(Bytes::gib(1024)));
        }
        assert_eq!(u64::MAX.to_string().parse(), Ok(Bytes(u64::MAX)));
        let decimals = format!("0.{:040}", 1);
        let large = ["99999999999999999999", "17179869184GiB", "17179869184.0GiB"];
        for bad in ["", "x", "2 parsecs", "-1", "1.2.3", ".", &decimals].into_iter().chain(large) {
            let answer = bad.parse::<Bytes>();
            assert!(answer.is_err(), "{bad:?} was parsed as {answer:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let decimals = format!("0.{:040}", 1);
        for (text, why) in [
            ("2 parsecs", "the unit is unknown"),
            ("x", "the unit is unknown"),
            ("", "the number is missing or too large"),
            ("MiB", "the number is missing or too large"),
            ("99999999999999999999", "the number is missing or too large"),
            (". GiB", "the number is missing"),
            ("1.2.3", "the number cannot be read"),
            (&decimals, "it has too many decimals"),
            ("17179869184GiB", "it is more than 2^64 - 1 bytes"),
            ("17179869184.0GiB", "it is more than 2^64 - 1 bytes"),
        ] {
            let advice = "write a number with B, KiB, MiB, GiB or TiB, as in 2MiB";
            let expected = format!("{text:?} is not an amount of memory: {why}; {advice}");
            assert_eq!(text.parse::<Bytes>().map_err(|error| error.to_string()), Err(expected));
        }
    }

    #[test]
    fn partial_byte_is_left_out() {
        for (text, bytes) in [("0.3KiB", 307), ("1.9999", 1), ("0.0001MiB", 104)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn an_amount_is_its_number_of_bytes() {
        for number in [0, 1, 4096, u64::MAX] {
            assert_eq!((Bytes::from(number), Bytes(number).get()), (Bytes(number), number));
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        for huge in [Bytes::kib(u64::MAX), Bytes::mib(u64::MAX), Bytes::gib(u64::MAX)] {
            assert_eq!(huge, Bytes(u64::MAX));
        }
        assert_eq!([Bytes(u64::MAX), Bytes(1)].into_iter().sum::<Bytes>(), Bytes(u64::MAX));
        assert_eq!(
            (Bytes(3).checked_add(Bytes(4)), Bytes(u64::MAX).checked_add(Bytes(1))),
            (Some(Bytes(7)), None)
        );
    }

    #[test]
    fn products_and_quotients_saturate() {
        assert_eq!(Bytes::mib(3) * 4, Bytes::mib(12));
        assert_eq!(4 * Bytes::mib(3), Bytes::mib(12));
        assert_eq!(Bytes::gib(1) / Bytes::mib(300), 3);
        assert_eq!(Bytes::gib(1) % Bytes::mib(300), Bytes::mib(124));
        assert_eq!(Bytes(u64::MAX) * 2, Bytes(u64::MAX));
        assert_eq!((Bytes(7) / Bytes::ZERO, Bytes(7) % Bytes::ZERO), (u64::MAX, Bytes::ZERO));
        let mut left = Bytes(5);
        left -= Bytes(7);
        assert_eq!(left, Bytes::ZERO);
    }
}
