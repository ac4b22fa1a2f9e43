//! The values of a pickle. Containers refer to their parts by number, so that no depth of nesting and no cycle makes any code recurse.

use std::collections::HashMap;

/// A value. The numbers are places in [`Values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    None,
    Bool,
    /// An integer that fits.
    Int(i64),
    /// Another integer.
    LargeInt,
    Float,
    Text(u32),
    /// A text of more than [`LONGEST_TEXT`] bytes, which is not kept.
    LongText,
    Bytes,
    List(u32),
    Tuple(u32),
    Dict(u32),
    Set,
}

/// Longer texts are not kept: none of the names that a reader looks for is as long.
pub(crate) const LONGEST_TEXT: usize = 256;

/// All texts and containers of a pickle, and the value that it stands for.
#[derive(Debug)]
pub(crate) struct Values {
    texts: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
    /// The items of lists and tuples; the keys and values of dicts in turn.
    pub(super) containers: Vec<Vec<Value>>,
    pub(crate) root: Value,
}

impl Values {
    pub(super) fn new() -> Self {
        Self { texts: Vec::new(), numbers: HashMap::new(), containers: Vec::new(), root: Value::None }
    }

    /// Returns the value of a text. Equal texts have one number.
    pub(super) fn text(&mut self, text: &str) -> Value {
        if text.len() > LONGEST_TEXT {
            return Value::LongText;
        }
        if let Some(number) = self.numbers.get(text) {
            return Value::Text(*number);
        }
        let number = self.texts.len() as u32; // the limit of values is below 2^32
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        Value::Text(number)
    }

    /// Returns the number of a text, if the pickle has it.
    pub(crate) fn number(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    /// Returns a text that is kept.
    pub(crate) fn str(&self, value: Value) -> Option<&str> {
        let Value::Text(number) = value else { return None };
        self.texts.get(number as usize).map(AsRef::as_ref)
    }

    /// Returns the items of a list or a tuple.
    pub(crate) fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(place) | Value::Tuple(place) => {
                self.containers.get(place as usize).map(Vec::as_slice)
            }
            _ => None,
        }
    }

    /// Returns the keys and values of a dict, in turn.
    pub(crate) fn pairs(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Dict(place) => self.containers.get(place as usize).map(Vec::as_slice),
            _ => None,
        }
    }

    /// Describes a value for an error.
    pub(crate) fn kind(&self, value: Value) -> &'static str {
        match value {
            Value::None => "None",
            Value::Bool => "a bool",
            Value::Int(_) => "an integer",
            Value::LargeInt => "an integer of more than 64 bits",
            Value::Float => "a float",
            Value::Text(_) | Value::LongText => "a str",
            Value::Bytes => "bytes",
            Value::List(_) => "a list",
            Value::Tuple(_) => "a tuple",
            Value::Dict(_) => "a dict",
            Value::Set => "a set",
        }
    }
}
