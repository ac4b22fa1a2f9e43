//! Pickles as Python writes them, damaged ones, and ones that would run code.

use super::*;

fn read_all(bytes: &[u8]) -> Values {
    read(bytes).unwrap_or_else(|error| panic!("{error:?}"))
}

fn refused(bytes: &[u8]) -> (u64, String) {
    match read(bytes) {
        Err(PickleError::Wrong { at, why }) => (at, why),
        other => panic!("{other:?}"),
    }
}

/// `pickle.dumps({"a": [1, 256, 65536, -1, 2**40, 2**70, 1.5, None, True, "é", b"x", (1, 2), ()], "b": {}}, 4)`.
const PROTOCOL_4: &[u8] = b"\x80\x04\x95P\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01M\x00\x01J\x00\x00\x01\x00J\xff\xff\xff\xff\
    \x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@G?\xf8\x00\x00\x00\x00\x00\x00N\x88\x8c\x02\xc3\xa9\x94C\x01x\x94K\x01K\
    \x02\x86\x94)e\x8c\x01b\x94}\x94u.";

/// The same with protocol 0, without the bytes.
const PROTOCOL_0: &[u8] = b"(dp0\nVa\np1\n(lp2\nI1\naI256\naI65536\naI-1\naL1099511627776L\naL1180591620717411303424L\naF1.5\naNaI01\naV\\xe9\np3\n\
    a(I1\nI2\ntp4\na(tasVb\np5\n(dp6\ns.";

#[test]
fn protocols_have_the_same_values() {
    let numbers = [1, 256, 65536, -1, 1 << 40].map(Value::Int);
    for (bytes, rest) in [(PROTOCOL_4, 13), (PROTOCOL_0, 12)] {
        let values = read_all(bytes);
        let pairs = values.pairs(values.root).unwrap();
        assert_eq!([values.str(pairs[0]), values.str(pairs[2])], [Some("a"), Some("b")]);
        let items = values.items(pairs[1]).unwrap();
        assert_eq!((&items[..5], items.len()), (&numbers[..], rest));
        assert_eq!(items[5..9], [Value::LargeInt, Value::Float, Value::None, Value::Bool]);
        assert!(matches!(items[9], Value::Text(_)));
        let pair = values.items(items[rest - 2]).unwrap();
        assert_eq!(pair, [Value::Int(1), Value::Int(2)]);
        assert_eq!(values.items(items[rest - 1]), Some(&[][..]));
        assert_eq!(values.pairs(pairs[3]), Some(&[][..]));
    }
}

#[test]
fn code_is_refused_with_its_name() {
    for (bytes, at, name) in [
        (&b"\x80\x02cposix\nsystem\nU\x04trueR."[..], 2, "GLOBAL of `posix.system`"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.", 17, "STACK_GLOBAL of `posix.system`"),
        (b"(iposix\nsystem\n.", 1, "INST of `posix.system`"),
        (b"\x80\x02K\x01K\x02R.", 6, "REDUCE"),
        (b"\x80\x02}}b.", 4, "BUILD"),
        (b"\x80\x02))\x81.", 4, "NEWOBJ"),
        (b"\x80\x02\x82\x01.", 2, "EXT1"),
        (b"\x80\x02Pid\n.", 2, "PERSID"),
        (b"\x80\x05\x97.", 2, "NEXT_BUFFER"),
    ] {
        let (found, why) = refused(bytes);
        assert_eq!(found, at, "{why}");
        assert!(why.starts_with(&format!("the opcode {name} refers to code")), "{why}");
    }
}

#[test]
fn every_cut_is_reported() {
    for length in 0..PROTOCOL_4.len() {
        match read(&PROTOCOL_4[..length]) {
            Err(PickleError::Truncated { length: at }) => assert_eq!(at, length as u64),
            other => panic!("{length}: {other:?}"),
        }
    }
}

#[test]
fn no_changed_byte_panics() {
    for place in 0..PROTOCOL_4.len() {
        for byte in 0..=255 {
            let mut changed = PROTOCOL_4.to_vec();
            changed[place] = byte;
            let _ = read(&changed[..]);
        }
    }
}

#[test]
fn damage_is_reported_with_its_place() {
    for (bytes, at, expected) in [
        (&b"\x80\x06."[..], 0, "protocol 6; up to 5"),
        (b"\x80\x02\xff.", 2, "0xff is not an opcode"),
        (b"\x80\x02.", 2, "needs a value, and there is none"),
        (b"\x80\x02e.", 2, "needs a mark, and there is none"),
        (b"\x80\x02K\x01K\x02a.", 6, "items are added to an integer, expected a list"),
        (b"\x80\x02](K\x01K\x02u.", 8, "keys are added to a list, expected a dict"),
        (b"\x80\x02}(K\x01u.", 6, "the last key of a dict has no value"),
        (b"\x80\x02h\x07.", 2, "value 7 is referred to before it occurs"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", 3, "value 4294967295 is remembered after 0 others"),
        (b"\x80\x02(K\x01\x86.", 5, "needs a value"),
        (b"I1x\n.", 0, "should be a decimal number"),
    ] {
        let (found, why) = refused(bytes);
        assert!(found == at && why.contains(expected), "{bytes:?}: {found}: {why}");
    }
}

/// Lists in lists, 200,000 deep, and a list that contains itself.
#[test]
fn nesting_takes_no_stack() {
    let deep = [&b"\x80\x02"[..], &[b']'; 200_000], &[b'a'; 199_999], b"."].concat();
    let values = read_all(&deep);
    let (mut depth, mut value) = (1, values.root);
    while let Some([inner]) = values.items(value) {
        (depth, value) = (depth + 1, *inner);
    }
    assert_eq!(depth, 200_000);
    let itself = read_all(b"\x80\x02]q\x00h\x00a.");
    assert_eq!(itself.items(itself.root), Some(&[itself.root][..]));
}

/// Each of 40 lists has the one before twice: as a tree these are 2^40 values.
#[test]
fn repeated_values_are_not_copied() {
    let mut bytes = b"\x80\x02]q\x00".to_vec();
    for level in 0..40 {
        bytes.extend([b'h', level, b'h', level, 0x86, b'q', level + 1]);
    }
    bytes.push(b'.');
    assert_eq!(read_all(&bytes).containers.len(), 41);
}

#[test]
fn wrong_lengths_take_no_memory() {
    for bytes in [
        &b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc."[..],
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x80\x04X\xff\xff\xff\xffabc.",
        b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
    ] {
        assert!(
            matches!(read(bytes), Err(PickleError::Truncated { length }) if length == bytes.len() as u64)
        );
    }
}

#[test]
fn long_texts_are_no_names() {
    let text = |length: u32| {
        let bytes = [&b"\x80\x02X"[..], &length.to_le_bytes(), &vec![b'x'; length as usize], b"."].concat();
        read_all(&bytes)
    };
    let (kept, dropped) = (text(256), text(100_000));
    assert_eq!(kept.str(kept.root).map(str::len), Some(256));
    assert_eq!((dropped.root, dropped.str(dropped.root)), (Value::LongText, None));
}
