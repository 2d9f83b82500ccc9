//! One malformed input per kind of error: what is found, and what the message says about it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Raw, small_model, split_part};
use monel_gguf::{Error, Gguf};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;

/// One tensor `w` of four F32, with this shape, type and offset.
fn one_tensor(shape: &[u64], ty: u32, offset: u64) -> Raw {
    Raw::new(1, 0).tensor(b"w", shape, ty, offset).data(64)
}

fn model() -> Gguf {
    Gguf::from_bytes(small_model()).unwrap()
}

/// The error of opening a path in an otherwise empty directory with these files, which is gone when this returns.
fn opened(files: &[(&str, Vec<u8>)], path: &str) -> Error {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    Gguf::open(directory.path().join(path)).unwrap_err()
}

/// A file that goes on far behind its written part, without taking room on the disk.
fn sparse(start: Raw, length: u64) -> Error {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&start.0).unwrap();
    file.as_file().set_len(length).unwrap();
    Gguf::open(file.path()).unwrap_err()
}

fn shrunk() -> Error {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), small_model()).unwrap();
    let model = Gguf::open(file.path()).unwrap();
    File::options().write(true).open(file.path()).unwrap().set_len(100).unwrap();
    model.data(&model.tensors()[1]).unwrap_err()
}

fn foreign() -> Error {
    let mut tensor = model().tensors()[1].clone();
    tensor.offset += 32;
    model().data(&tensor).unwrap_err()
}

/// Variant, how to get it, and what the message must say.
type Case = (&'static str, fn() -> Error, &'static str);

const CASES: &[Case] = &[
    ("InFile", || opened(&[("a.gguf", vec![])], "a.gguf"), "a.gguf: the file is empty"),
    ("Io", || opened(&[], "none.gguf"), "none.gguf: cannot open the file: "),
    ("NotAFile", || opened(&[], "."), "this is a directory, not a file"),
    ("Empty", || Raw(vec![]).error(), "the file is empty"),
    (
        "NotGguf",
        || Raw(b"version https://git-lfs.github.com/spec/v1\nsize 7\n".to_vec()).error(),
        "this is a git-lfs pointer to a file of 7 bytes",
    ),
    ("NotGguf", || Raw(b"PK\x03\x04".to_vec()).error(), "zip archive"),
    ("NotGguf", || Raw(b"GGXF".to_vec()).error(), "must start with the bytes \"GGUF\""),
    ("BigEndian", || Raw(b"GGUF\0\0\0\x03".to_vec()).error(), "big-endian (version 3"),
    (
        "UnsupportedVersion",
        || Raw(b"GGUF\x01\0\0\0".to_vec()).error(),
        "version 1 at byte 4 is not supported: expected 2 or 3",
    ),
    ("UnsupportedVersion", || Raw(b"GGUF\x04\0\0\0".to_vec()).error(), "version 4 at byte 4"),
    ("UnsupportedVersion", || Raw(b"GGUF\0\0\0\0".to_vec()).error(), "version 0 at byte 4"),
    ("Truncated", || Raw(b"GGU".to_vec()).error(), "the magic \"GGUF\" at byte 0 takes 4 bytes, 3 are left"),
    (
        "Truncated",
        || Raw::new(0, 1).key("k", 10).bytes(&[0; 3]).error(),
        "the u64 of key \"k\" at byte 37 takes 8 bytes, 3 are left",
    ),
    (
        "HeaderTooLarge",
        || sparse(Raw::new(0, 1).key("k", 9).u32(0).u64(2 << 30), 3 << 30),
        "over the limit of 268435456 bytes",
    ),
    (
        "HeaderTooLarge",
        || sparse(Raw::new(0, 1).key("k", 9).u32(8).u64(1 << 28), 3 << 30),
        "over the limit of 268435456 bytes",
    ),
    (
        "MetadataCount",
        || Raw::new(0, u64::MAX).bytes(&[0; 28]).error(),
        "18446744073709551615 metadata entries announced at byte 16, but the file has room for at most 2",
    ),
    (
        "TensorCount",
        || Raw::new(1 << 60, 0).bytes(&[0; 50]).error(),
        "announced at byte 8, but the file has room for at most 2",
    ),
    (
        "StringTooLong",
        || Raw::new(0, 1).u64(u64::MAX).bytes(&[0; 20]).error(),
        "metadata key 0 at byte 24 is 18446744073709551615 bytes long, but only 20 bytes are left",
    ),
    (
        "StringTooLong",
        || Raw::new(0, 1).key("k", 8).u64(9).bytes(b"endless").error(),
        "the string of key \"k\" at byte 37 is 9 bytes long, but only 7",
    ),
    (
        "StringTooLong",
        || Raw::new(0, 1).key("k", 9).u32(8).u64(2).string(b"a").u64(1).error(),
        "string 1 of the array of key \"k\" at byte 58 is 1 bytes long, but only 0",
    ),
    (
        "ArrayTooLong",
        || Raw::new(0, 1).key("k", 9).u32(4).u64(1 << 62).error(),
        "the array of key \"k\" at byte 41 has 4611686018427387904 elements of type u32, but only 0",
    ),
    (
        "ArrayTooLong",
        || Raw::new(0, 1).key("k", 9).u32(8).u64(2).bytes(&[0; 15]).error(),
        "2 elements of type string, but only 15",
    ),
    (
        "UnknownValueType",
        || Raw::new(0, 1).key("k", 13).bytes(&[0]).error(),
        "key \"k\" has the unknown value type 13 at byte 33: expected 0 (u8) to 12 (f64)",
    ),
    ("UnknownValueType", || Raw::new(0, 1).key("k", 9).u32(99).u64(0).error(), "value type 99 at byte 37"),
    ("InvalidBool", || Raw::new(0, 1).key("k", 7).bytes(&[2]).error(), "key \"k\" has the bool 2 at byte 37"),
    (
        "InvalidBool",
        || Raw::new(0, 1).key("k", 9).u32(7).u64(3).bytes(&[0, 1, 9]).error(),
        "the bool 9 at byte 51",
    ),
    (
        "NestedTooDeep",
        || (0..9).fold(Raw::new(0, 1).key("k", 9), |raw, _| raw.u32(9).u64(1)).error(),
        "nests arrays over 8 deep at byte 133",
    ),
    ("Key", || Raw::new(0, 1).key("", 0).bytes(&[0; 9]).error(), "metadata key 0 at byte 24 is empty"),
    (
        "Key",
        || Raw::new(0, 1).string(b"a\xff").u32(0).bytes(&[0]).error(),
        "is not UTF-8 (wrong from its byte 1 on): \"a\u{fffd}\"",
    ),
    (
        "Key",
        || Raw::new(0, 1).string(&[b'k'; 65536]).u32(0).bytes(&[0]).error(),
        "is 65536 bytes long: expected at most 65535",
    ),
    (
        "DuplicateKey",
        || Raw::new(0, 2).key_u32("k", 1).key_u32("k", 1).error(),
        "metadata key \"k\" appears twice, the second time at byte 41",
    ),
    (
        "InvalidAlignment",
        || Raw::new(0, 1).key_u32("general.alignment", 0).error(),
        "general.alignment is 0: expected a power of two",
    ),
    (
        "InvalidAlignment",
        || Raw::new(0, 1).key_u32("general.alignment", 48).error(),
        "general.alignment is 48",
    ),
    (
        "WrongType",
        || Raw::new(0, 1).key("general.alignment", 8).string(b"32").error(),
        "\"general.alignment\" is of type string: expected u32",
    ),
    (
        "TensorName",
        || Raw::new(1, 0).tensor(b"\xc3(", &[1], 0, 0).data(4).error(),
        "the name of tensor 0 at byte 24 is not UTF-8",
    ),
    (
        "TensorName",
        || Raw::new(1, 0).tensor(b"", &[1], 0, 0).data(4).error(),
        "the name of tensor 0 at byte 24 is empty",
    ),
    (
        "DuplicateTensor",
        || Raw::new(2, 0).tensor(b"w", &[1], 0, 0).tensor(b"w", &[1], 0, 32).data(64).error(),
        "tensor \"w\" appears twice, the second time at byte 57",
    ),
    (
        "UnknownTensorType",
        || one_tensor(&[4], 43, 0).error(),
        "tensor \"w\" has the unknown type 43 at byte 45: expected one of the 35 known types, up to 42",
    ),
    ("UnknownTensorType", || one_tensor(&[4], 4, 0).error(), "this type was withdrawn"),
    (
        "Shape",
        || one_tensor(&[1; 5], 0, 0).error(),
        "tensor \"w\" (described at byte 33) has 5 dimensions: expected at most 4",
    ),
    ("Shape", || one_tensor(&[4, 0], 0, 0).error(), "has the length 0 in dimension 1"),
    (
        "Shape",
        || one_tensor(&[33], 2, 0).error(),
        "has rows of 33 values: expected a multiple of 32, the block of type Q4_0",
    ),
    (
        "Shape",
        || one_tensor(&[1 << 32, 1 << 32], 0, 0).error(),
        "has the shape [4294967296, 4294967296] of type F32, whose size does not fit 63 bits",
    ),
    ("Shape", || one_tensor(&[1 << 62], 0, 0).error(), "does not fit 63 bits"),
    (
        "MisalignedTensor",
        || one_tensor(&[4], 0, 16).error(),
        "at offset 16 (given at byte 49): expected a multiple of the alignment 32",
    ),
    (
        "TensorPastEnd",
        || one_tensor(&[17], 0, 0).error(),
        "68 bytes at offset 0 of a data section that starts at byte 64, but the file ends at byte 128",
    ),
    ("TensorPastEnd", || one_tensor(&[4], 0, 64).error(), "16 bytes at offset 64"),
    ("TensorPastEnd", || one_tensor(&[4], 0, u64::MAX - 31).error(), "offset 18446744073709551584"),
    (
        "OverlappingTensors",
        || Raw::new(2, 0).tensor(b"late", &[8], 0, 32).tensor(b"early", &[9], 0, 0).data(96).error(),
        "tensors \"early\" and \"late\" overlap: the first ends at offset 36 of the data section, the second starts at 32",
    ),
    (
        "OverlappingTensors",
        || Raw::new(2, 0).tensor(b"a", &[1], 0, 0).tensor(b"b", &[1], 0, 0).data(32).error(),
        "the first ends at offset 4 of the data section, the second starts at 0",
    ),
    (
        "SplitName",
        || opened(&[("a.gguf", split_part(1, 2, 2, "w"))], "a.gguf"),
        "this is part 2 of 2 of a split model, but its name isn't as expected: it must end in \"-00002-of-00002.gguf\"",
    ),
    (
        "SplitPartMissing",
        || opened(&[("a-00002-of-00002.gguf", split_part(1, 2, 2, "w"))], "a-00002-of-00002.gguf"),
        "part 1 of 2 of this split model cannot be opened: ",
    ),
    (
        "SplitNumber",
        || Raw(split_part(2, 2, 2, "w")).error(),
        "split.no is 2, but split.count is 2: expected a number from 0 to 1",
    ),
    (
        "SplitMismatch",
        || Gguf::from_parts([split_part(1, 2, 2, "b"), split_part(0, 2, 2, "a")]).unwrap_err(),
        "split.no is 1 and split.count 2, expected 0 and 2",
    ),
    (
        "SplitTensorCount",
        || Gguf::from_parts([split_part(0, 2, 3, "a"), split_part(1, 2, 3, "b")]).unwrap_err(),
        "have 2 tensors together, but split.tensors.count is 3",
    ),
    (
        "SplitAlone",
        || Raw(split_part(0, 2, 2, "a")).error(),
        "this is part 1 of 2 of a split model: all parts are needed",
    ),
    (
        "DuplicateTensor",
        || Gguf::from_parts([split_part(0, 2, 2, "a"), split_part(1, 2, 2, "a")]).unwrap_err(),
        "tensor \"a\" appears twice",
    ),
    ("Empty", || Gguf::from_parts([(); 0].map(|()| [0u8; 0])).unwrap_err(), "empty"),
    (
        "MissingKey",
        || model().metadata().require_u32("gone").unwrap_err(),
        "metadata key \"gone\" is missing: expected a value of type u32",
    ),
    (
        "WrongType",
        || model().metadata().get_f32("ids").unwrap_err(),
        "metadata key \"ids\" is of type array of 2 i32: expected f32",
    ),
    (
        "OutOfRange",
        || model().metadata().get_array_u32("ids").unwrap_err(),
        "metadata key \"ids\" holds -2, which is no array of u32",
    ),
    (
        "NotUtf8",
        || {
            let raw = Raw::new(0, 1).key("k", 8).string(b"ab\xff");
            Gguf::from_bytes(raw.0).unwrap().metadata().get_str("k").unwrap_err()
        },
        "metadata key \"k\" is not UTF-8 from byte 2",
    ),
    ("MissingTensor", || model().require_tensor("gone").unwrap_err(), "tensor \"gone\" is missing"),
    ("ForeignTensor", foreign, "tensor \"norm\" (part 0, 20 bytes at offset 128) is not in this model"),
    (
        "RangePastEnd",
        || model().parts()[0].bytes(0..1 << 40).unwrap_err(),
        "bytes 0 to 1099511627776 were asked for",
    ),
    (
        "RangePastEnd",
        || model().parts()[0].bytes(Range { start: 2, end: 1 }).unwrap_err(),
        "bytes 2 to 1 were asked for",
    ),
    ("FileShrunk", shrunk, "the file was cut after it was opened: it had "),
];

/// The name of the error's variant.
fn variant(error: &Error) -> String {
    let debug = format!("{error:?}");
    debug.chars().take_while(|c| c.is_alphanumeric()).collect()
}

#[test]
fn every_malformed_input_has_its_own_error() {
    for (expected, make, says) in CASES {
        let error = make();
        let found = if *expected == "InFile" { variant(&error) } else { variant(error.cause()) };
        let message = error.to_string();
        assert_eq!(found, *expected, "{message}");
        assert!(message.contains(says), "expected \"{says}\" in \"{message}\"");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn every_kind_of_error_has_a_case() {
    let source = include_str!("../src/error.rs");
    let (_, from_enum) = source.split_once("pub enum Error {").unwrap();
    let (body, _) = from_enum.split_once("\n}\n").unwrap();
    let names = body
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(char::is_uppercase));
    let variants: BTreeSet<&str> = names.map(|line| line.trim_end_matches([' ', '{', ','])).collect();
    let tested: BTreeSet<&str> = CASES.iter().map(|case| case.0).collect();
    let untested: Vec<_> = variants.difference(&tested).collect();
    // A header has a limit, so that memory for one array does not run out in a test.
    assert_eq!(untested, [&"OutOfMemory"]);
    assert!(tested.is_subset(&variants));
}

#[test]
fn errors_about_files_name_the_file() {
    let error = shrunk();
    assert!(matches!(&error, Error::InFile { path, .. } if path.is_absolute()), "{error}");
    let missing = opened(&[("m-00001-of-00002.gguf", split_part(0, 2, 2, "w"))], "m-00001-of-00002.gguf");
    let Error::SplitPartMissing { part, .. } = missing.cause() else { panic!("{missing}") };
    assert_eq!(part.file_name(), PathBuf::from("m-00002-of-00002.gguf").file_name());
}

#[test]
fn a_device_is_refused_and_not_read() {
    if cfg!(unix) {
        let error = Gguf::open("/dev/null").unwrap_err();
        assert!(matches!(error.cause(), Error::NotAFile { kind: "a pipe or device" }), "{error}");
    }
}
