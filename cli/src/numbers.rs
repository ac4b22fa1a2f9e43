//! Numbers on the command line.

use gpu_vmm::Bytes;
use std::time::Duration;

/// Parses a size that is not zero.
pub(crate) fn some_bytes(text: &str) -> Result<Bytes, String> {
    negative(text, "a size is at least one byte, as in 64MiB")?;
    match text.parse() {
        Ok(Bytes::ZERO) => Err("it must be at least one byte".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a time of at least a second.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    const MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    negative(text, "a time is at least 1s, as in 10min")?;
    match humantime::parse_duration(text) {
        Ok(time) if time < Duration::from_secs(1) => Err("it must be at least 1s".to_owned()),
        Ok(time) if time > MAX => Err("it must be at most 7days".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(format!("{text:?} is not a time such as 90s, 10min or 1h: {error}")),
    }
}

/// Refuses a value that begins with a minus: another option instead of a value, or a negative number.
pub(crate) fn negative(text: &str, right: &str) -> Result<(), String> {
    match text.strip_prefix('-') {
        Some(rest) if rest.starts_with(|char: char| char.is_ascii_digit() || char == '.') => {
            Err(format!("it is negative; {right}"))
        }
        Some(_) => Err(format!("the value is missing before {text}; {right}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_and_largest_numbers_are_taken() {
        assert_eq!(some_bytes("1"), Ok(Bytes(1)));
        assert_eq!(some_bytes("18446744073709551615"), Ok(Bytes(u64::MAX)));
        assert_eq!(some_time("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(some_time("7days"), Ok(Duration::from_secs(604_800)));
        assert_eq!(some_time("999ms").unwrap_err(), "it must be at least 1s");
        assert_eq!(some_time("7days 1ms").unwrap_err(), "it must be at most 7days");
    }

    #[test]
    fn misplaced_option_is_no_negative_number() {
        assert_eq!(negative("5", "right"), Ok(()));
        for text in ["-5", "-.5"] {
            assert_eq!(negative(text, "right").unwrap_err(), "it is negative; right");
        }
        for text in ["-x", "-", "--5"] {
            assert_eq!(
                negative(text, "right").unwrap_err(),
                format!("the value is missing before {text}; right")
            );
        }
    }
}
