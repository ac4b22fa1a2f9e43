//! The stack machine that a pickle is a program for, without the instructions that call code.

use super::PickleError;
use super::input::Input;
use super::opcode as op;
use super::values::{LONGEST_TEXT, Value, Values};
use std::io::Read;

type Result<T = ()> = std::result::Result<T, PickleError>;

/// The most values in all containers together, each of which takes 16 bytes. A container counts as a few.
const MAX_VALUES: usize = 1 << 28;

/// What an empty container takes, in values.
const CONTAINER: usize = 3;

/// The most that the number of a remembered value may exceed their count. Python numbers them without gaps.
const MAX_GAP: usize = 16;

/// The longest line of a number, a name or a text of protocol 0.
const LONGEST_LINE: usize = 64 << 10;

/// The newest protocol, of Python 3.8 and later.
const NEWEST: u8 = 5;

pub(super) struct Machine<R> {
    input: Input<R>,
    values: Values,
    stack: Vec<Value>,
    /// The sizes of the stack at each mark.
    marks: Vec<usize>,
    /// The values that the pickle refers to again.
    memo: Vec<Value>,
    count: usize,
    /// The place of the current opcode.
    at: u64,
}

impl<R: Read> Machine<R> {
    pub(super) fn new(from: R) -> Self {
        let (stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new());
        Self { input: Input::new(from), values: Values::new(), stack, marks, memo, count: 0, at: 0 }
    }

    pub(super) fn run(mut self) -> Result<Values> {
        loop {
            self.at = self.input.at;
            let opcode = self.input.byte()?;
            if opcode == op::STOP {
                self.values.root = self.pop()?;
                return Ok(self.values);
            }
            self.step(opcode)?;
            // Everything that is kept counts, on the stack and in the memo too.
            if self.count + self.stack.len() + self.memo.len() + self.marks.len() > MAX_VALUES {
                return Err(self.wrong(format!("there are more than {MAX_VALUES} values; record fewer events, by max_entries of _record_memory_history")));
            }
        }
    }

    fn step(&mut self, opcode: u8) -> Result {
        match opcode {
            op::PROTO => match self.input.byte()? {
                known if known <= NEWEST => Ok(()),
                newer => {
                    Err(self.wrong(format!("the pickle has protocol {newer}; up to {NEWEST} can be read")))
                }
            },
            op::FRAME => self.input.bytes::<8>().map(drop),
            op::MARK => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::POP => match self.marks.last() {
                Some(mark) if *mark == self.stack.len() => self.pop_mark().map(drop),
                _ => self.pop().map(drop),
            },
            op::POP_MARK => self.pop_mark().map(drop),
            op::DUP => self.top().map(|value| self.stack.push(value)),
            op::EMPTY_LIST => self.container(Value::List, Vec::new()),
            op::EMPTY_TUPLE => self.container(Value::Tuple, Vec::new()),
            op::EMPTY_DICT => self.container(Value::Dict, Vec::new()),
            op::LIST => self.pop_mark().and_then(|items| self.container(Value::List, items)),
            op::TUPLE => self.pop_mark().and_then(|items| self.container(Value::Tuple, items)),
            op::DICT => self.pop_mark().and_then(|items| self.new_dict(items)),
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => self.short_tuple(usize::from(opcode - op::TUPLE1) + 1),
            op::APPEND => self.pop().and_then(|item| self.append(&[item])),
            op::APPENDS => self.pop_mark().and_then(|items| self.append(&items)),
            op::SETITEM => self.set_item(),
            op::SETITEMS => self.pop_mark().and_then(|items| self.set_items(&items)),
            op::EMPTY_SET => self.push(Value::Set),
            op::FROZENSET => self.pop_mark().and_then(|_| self.push(Value::Set)),
            op::ADDITEMS => self.pop_mark().map(drop),
            op::GET | op::BINGET | op::LONG_BINGET => self.place(opcode).and_then(|place| self.get(place)),
            op::PUT | op::BINPUT | op::LONG_BINPUT => self.place(opcode).and_then(|place| self.put(place)),
            op::MEMOIZE => self.put(self.memo.len()),
            _ => self.scalar(opcode),
        }
    }

    /// Pushes a value that is no container.
    fn scalar(&mut self, opcode: u8) -> Result {
        let value = match opcode {
            op::NONE => Value::None,
            op::NEWTRUE | op::NEWFALSE => Value::Bool,
            op::BININT => Value::Int(i32::from_le_bytes(self.input.bytes()?).into()),
            op::BININT1 => Value::Int(self.input.byte()?.into()),
            op::BININT2 => Value::Int(u16::from_le_bytes(self.input.bytes()?).into()),
            op::LONG1 | op::LONG4 => self.long(opcode)?,
            op::INT | op::LONG => self.decimal()?,
            op::BINFLOAT => self.input.bytes::<8>().map(|_| Value::Float)?,
            op::FLOAT => self.input.line(LONGEST_LINE).map(|_| Value::Float)?,
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                let length = self.input.byte()?.into();
                self.text(length)?
            }
            op::BINUNICODE | op::BINSTRING => {
                let length = u32::from_le_bytes(self.input.bytes()?).into();
                self.text(length)?
            }
            op::BINUNICODE8 => {
                let length = u64::from_le_bytes(self.input.bytes()?);
                self.text(length)?
            }
            // Escapes stay as they are: names that a reader looks for have none.
            op::UNICODE | op::STRING => {
                let line = self.input.line(LONGEST_LINE)?;
                let text = String::from_utf8_lossy(&line);
                self.values.text(text.trim_matches(['\'', '"']))
            }
            op::SHORT_BINBYTES => {
                let length = self.input.byte()?.into();
                self.skipped(length)?
            }
            op::BINBYTES => {
                let length = u32::from_le_bytes(self.input.bytes()?).into();
                self.skipped(length)?
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let length = u64::from_le_bytes(self.input.bytes()?);
                self.skipped(length)?
            }
            _ => return Err(self.refused(opcode)),
        };
        self.push(value)
    }

    fn push(&mut self, value: Value) -> Result {
        self.stack.push(value);
        Ok(())
    }

    /// Removes the last value. One below a mark belongs to the mark's container.
    fn pop(&mut self) -> Result<Value> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > bottom {
            true => self.stack.pop().ok_or_else(|| self.empty()),
            false => Err(self.empty()),
        }
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>> {
        let mark = self
            .marks
            .pop()
            .ok_or_else(|| self.wrong("an opcode needs a mark, and there is none".to_owned()))?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn top(&self) -> Result<Value> {
        self.stack.last().copied().ok_or_else(|| self.empty())
    }

    fn empty(&self) -> PickleError {
        self.wrong("an opcode needs a value, and there is none".to_owned())
    }

    fn wrong(&self, why: String) -> PickleError {
        PickleError::Wrong { at: self.at, why }
    }

    fn container(&mut self, kind: fn(u32) -> Value, items: Vec<Value>) -> Result {
        let place = self.values.containers.len() as u32; // the limit of values is below 2^32
        self.count += CONTAINER + items.len();
        self.values.containers.push(items);
        self.push(kind(place))
    }

    fn new_dict(&mut self, items: Vec<Value>) -> Result {
        self.even(&items)?;
        self.container(Value::Dict, items)
    }

    fn short_tuple(&mut self, length: usize) -> Result {
        let bottom = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() < bottom + length {
            return Err(self.empty());
        }
        let items = self.stack.split_off(self.stack.len() - length);
        self.container(Value::Tuple, items)
    }

    fn append(&mut self, items: &[Value]) -> Result {
        match self.top()? {
            Value::List(place) => self.extend(place, items),
            other => {
                Err(self.wrong(format!("items are added to {}, expected a list", self.values.kind(other))))
            }
        }
    }

    fn set_item(&mut self) -> Result {
        let value = self.pop()?;
        let key = self.pop()?;
        self.set_items(&[key, value])
    }

    fn set_items(&mut self, items: &[Value]) -> Result {
        self.even(items)?;
        match self.top()? {
            Value::Dict(place) => self.extend(place, items),
            other => {
                Err(self.wrong(format!("keys are added to {}, expected a dict", self.values.kind(other))))
            }
        }
    }

    fn even(&self, items: &[Value]) -> Result {
        match items.len() % 2 {
            0 => Ok(()),
            _ => Err(self.wrong("the last key of a dict has no value".to_owned())),
        }
    }

    fn extend(&mut self, place: u32, items: &[Value]) -> Result {
        self.count += items.len();
        if let Some(container) = self.values.containers.get_mut(place as usize) {
            container.extend_from_slice(items);
        }
        Ok(())
    }

    /// Reads the number of a remembered value.
    fn place(&mut self, opcode: u8) -> Result<usize> {
        Ok(match opcode {
            op::BINGET | op::BINPUT => self.input.byte()?.into(),
            op::LONG_BINGET | op::LONG_BINPUT => u32::from_le_bytes(self.input.bytes()?) as usize,
            _ => match self.decimal()? {
                Value::Int(number) if number >= 0 => number as usize,
                _ => return Err(self.wrong("the number of a remembered value is not possible".to_owned())),
            },
        })
    }

    fn get(&mut self, place: usize) -> Result {
        let value = self.memo.get(place).copied();
        let why = || format!("value {place} is referred to before it occurs");
        let value = value.ok_or_else(|| self.wrong(why()))?;
        self.push(value)
    }

    fn put(&mut self, place: usize) -> Result {
        let (value, count) = (self.top()?, self.memo.len());
        if place > count + MAX_GAP {
            return Err(self.wrong(format!("value {place} is remembered after {count} others, with a gap")));
        }
        if place >= count {
            self.memo.resize(place + 1, Value::None);
        }
        self.memo[place] = value;
        Ok(())
    }

    fn text(&mut self, length: u64) -> Result<Value> {
        // One byte more than is kept tells that the text is longer.
        let bytes = self.input.first(length, LONGEST_TEXT + 1)?;
        Ok(if bytes.len() > LONGEST_TEXT {
            Value::LongText
        } else {
            self.values.text(&String::from_utf8_lossy(&bytes))
        })
    }

    fn skipped(&mut self, length: u64) -> Result<Value> {
        self.input.first(length, 0).map(|_| Value::Bytes)
    }

    /// Reads an integer of any length, in two's complement.
    fn long(&mut self, opcode: u8) -> Result<Value> {
        let length = match opcode {
            op::LONG1 => self.input.byte()?.into(),
            _ => u64::from(u32::from_le_bytes(self.input.bytes()?)),
        };
        let bytes = self.input.first(length, 9)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        if length > 8 {
            return Ok(Value::LargeInt);
        }
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole[..bytes.len()].copy_from_slice(&bytes);
        Ok(Value::Int(i64::from_le_bytes(whole)))
    }

    /// Reads a line with a decimal number; `00` and `01` are False and True.
    fn decimal(&mut self) -> Result<Value> {
        let line = self.input.line(LONGEST_LINE)?;
        if line == b"00" || line == b"01" {
            return Ok(Value::Bool);
        }
        let digits = line.strip_suffix(b"L").unwrap_or(&line);
        let text = std::str::from_utf8(digits).unwrap_or_default();
        if let Ok(number) = text.parse() {
            return Ok(Value::Int(number));
        }
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        match !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            true => Ok(Value::LargeInt),
            false => Err(self.wrong("a line should be a decimal number".to_owned())),
        }
    }

    fn refused(&mut self, opcode: u8) -> PickleError {
        let Some(name) = op::refused(opcode) else {
            return self.wrong(format!("{opcode:#04x} is not an opcode of a pickle"));
        };
        let what = match name {
            "GLOBAL" | "INST" => self.global(),
            "STACK_GLOBAL" => self.stack_global(),
            _ => None,
        };
        let of = what.map(|what| format!(" of `{what}`")).unwrap_or_default();
        self.wrong(format!(
            "the opcode {name}{of} refers to code or to other files; a memory snapshot has numbers, texts, lists and dicts alone, and \
             nothing else is read"
        ))
    }

    /// Returns the class or function that the two lines after an opcode name.
    fn global(&mut self) -> Option<String> {
        let mut part = || Some(shown(&self.input.line(LONGEST_TEXT).ok()?));
        Some(format!("{}.{}", part()?, part()?))
    }

    /// Returns the class or function that the last two values name.
    fn stack_global(&self) -> Option<String> {
        let [.., module, name] = self.stack[..] else { return None };
        let part = |value| Some(shown(self.values.str(value)?.as_bytes()));
        Some(format!("{}.{}", part(module)?, part(name)?))
    }
}

/// Returns a name of the file without control characters, which a terminal would obey.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().filter(|char| !char.is_control()).take(60).collect()
}
