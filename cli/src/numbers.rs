//! Numbers on the command line.

use gpu_vmm::Bytes;

/// Parses a size that is not zero.
pub(crate) fn some_bytes(text: &str) -> Result<Bytes, String> {
    negative(text, "a size is at least one byte, as in 64MiB")?;
    match text.parse() {
        Ok(Bytes::ZERO) => Err("it must be at least one byte".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
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
