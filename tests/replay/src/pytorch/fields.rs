//! The fields of dicts, with errors that name their place.

use crate::error::Wrong;
use crate::pickle::{Value, Values};

/// Finds fields in a pickle.
pub(super) struct Fields<'a> {
    pub(super) values: &'a Values,
}

/// A function that names a place for an error.
pub(super) trait Place: Fn() -> String {}
impl<T: Fn() -> String> Place for T {}

impl<'a> Fields<'a> {
    pub(super) const fn of(values: &'a Values) -> Self {
        Self { values }
    }

    /// Returns a field, if the dict has it. The last one of a name counts, as in Python.
    pub(super) fn find(&self, dict: Value, name: &str) -> Option<Value> {
        let key = Value::Text(self.values.number(name)?);
        let pairs = self.values.pairs(dict)?;
        pairs.chunks_exact(2).rev().find(|pair| pair[0] == key).map(|pair| pair[1])
    }

    pub(super) fn dict(&self, value: Value, place: impl Place) -> Result<(), Wrong> {
        self.values.pairs(value).map(drop).ok_or_else(|| self.other(value, "a dict", place))
    }

    pub(super) fn items(&self, value: Value, place: impl Place) -> Result<&'a [Value], Wrong> {
        self.values.items(value).ok_or_else(|| self.other(value, "a list", place))
    }

    fn other(&self, value: Value, expected: &str, place: impl Place) -> Wrong {
        Wrong::Layout(format!("{} is {}, expected {expected}", place(), self.values.kind(value)))
    }

    fn needed(&self, dict: Value, name: &str, place: impl Place) -> Result<Value, Wrong> {
        self.find(dict, name).ok_or_else(|| match self.dict(dict, &place) {
            Err(other) => other,
            Ok(()) => Wrong::Layout(format!("{} has no `{name}`", place())),
        })
    }

    pub(super) fn list(&self, dict: Value, name: &str, place: impl Place) -> Result<&'a [Value], Wrong> {
        let value = self.needed(dict, name, &place)?;
        self.items(value, || format!("`{name}` of {}", place()))
    }

    /// Returns a field that is an address, a size or a stream. PyTorch writes them as signed integers.
    pub(super) fn integer(&self, dict: Value, name: &str, place: impl Place) -> Result<u64, Wrong> {
        let value = self.needed(dict, name, &place)?;
        self.number(value, name, place)
    }

    /// The same for a field that some versions of PyTorch lack.
    pub(super) fn optional(&self, dict: Value, name: &str, place: impl Place) -> Result<Option<u64>, Wrong> {
        match self.find(dict, name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => self.number(value, name, place).map(Some),
        }
    }

    fn number(&self, value: Value, name: &str, place: impl Place) -> Result<u64, Wrong> {
        match value {
            Value::Int(number) => Ok(number.cast_unsigned()),
            _ => Err(self.other(value, "an integer", || format!("`{name}` of {}", place()))),
        }
    }

    pub(super) fn text(&self, dict: Value, name: &str, place: impl Place) -> Result<&'a str, Wrong> {
        let value = self.needed(dict, name, &place)?;
        self.values.str(value).ok_or_else(|| match value {
            Value::LongText => {
                Wrong::Layout(format!("`{name}` of {} is a very long text, expected a short one", place()))
            }
            _ => self.other(value, "a str", || format!("`{name}` of {}", place())),
        })
    }

    /// Returns the ID of a pool, a pair of numbers. The default pool has (0, 0), as do versions of PyTorch without such a field.
    pub(super) fn pair(&self, dict: Value, name: &str) -> (u64, u64) {
        match self.find(dict, name).and_then(|value| self.values.items(value)) {
            Some([Value::Int(one), Value::Int(other)]) => (one.cast_unsigned(), other.cast_unsigned()),
            _ => (0, 0),
        }
    }
}
