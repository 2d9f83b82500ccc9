//! What is written is read back the same.
#![allow(clippy::unwrap_used)]

mod common;

use common::touch;
use monel_gguf::{Array, GgmlType, Gguf, GgufWriter, Metadata, StringArray, Value};
use proptest::prelude::*;

/// Numbers as stored, without NaN, which isn't equal to itself (its bits are compared in another test).
fn array() -> impl Strategy<Value = Array> {
    let strings = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..20);
    let leaf = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Array::U8),
        prop::collection::vec(any::<i8>(), 0..20).prop_map(Array::I8),
        prop::collection::vec(any::<u16>(), 0..20).prop_map(Array::U16),
        prop::collection::vec(any::<i16>(), 0..20).prop_map(Array::I16),
        prop::collection::vec(any::<u32>(), 0..20).prop_map(Array::U32),
        prop::collection::vec(any::<i32>(), 0..20).prop_map(Array::I32),
        prop::collection::vec(any::<u64>(), 0..20).prop_map(Array::U64),
        prop::collection::vec(any::<i64>(), 0..20).prop_map(Array::I64),
        prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::INFINITE, 0..20).prop_map(Array::F32),
        prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::ZERO, 0..20).prop_map(Array::F64),
        prop::collection::vec(any::<bool>(), 0..20).prop_map(Array::Bool),
        strings.prop_map(|strings| Array::String(strings.into_iter().collect())),
    ];
    leaf.prop_recursive(5, 30, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        prop::num::f32::NORMAL.prop_map(Value::F32),
        prop::num::f64::NORMAL.prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::String),
        array().prop_map(Value::Array),
        array().prop_map(Value::Array),
    ]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    prop::collection::vec(("[a-zäß]{1,8}(\\.[a-z_]{1,8}){0,2}", value()), 0..12).prop_map(|entries| {
        let mut metadata = Metadata::new();
        for (key, value) in entries {
            metadata.insert(&key, value);
        }
        metadata
    })
}

/// Type and shape, a few blocks long.
fn tensor() -> impl Strategy<Value = (GgmlType, Vec<u64>)> {
    let ty = prop::sample::select(GgmlType::ALL);
    (ty, prop::collection::vec(1u64..4, 0..=4)).prop_map(|(ty, mut shape)| {
        match shape.first_mut() {
            Some(row) => *row *= ty.block_len(),
            // A scalar of a quantized type does not exist.
            None if ty.is_quantized() => shape.push(ty.block_len()),
            None => {}
        }
        (ty, shape)
    })
}

fn data_of(index: usize, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|byte| (byte as usize * 7 + index * 31) as u8).collect()
}

/// Writes a model in pieces of `piece` bytes.
fn write(
    metadata: &Metadata,
    alignment: Option<u32>,
    tensors: &[(GgmlType, Vec<u64>)],
    piece: usize,
) -> Vec<u8> {
    let mut file = GgufWriter::new();
    file.set_all(metadata).unwrap();
    if let Some(alignment) = alignment {
        file.set("general.alignment", alignment).unwrap();
    }
    for (index, (ty, shape)) in tensors.iter().enumerate() {
        file.tensor(&format!("tensor.{index}"), *ty, shape).unwrap();
    }
    let mut data = file.start(Vec::new()).unwrap();
    for index in 0..tensors.len() {
        let bytes = data.next_tensor().unwrap().bytes;
        for piece in data_of(index, bytes).chunks(piece) {
            data.piece(piece).unwrap();
        }
    }
    data.finish().unwrap()
}

proptest! {
    #[test]
    fn a_written_model_reads_back(
        metadata in metadata(),
        alignment in prop::option::of((0u32..13).prop_map(|shift| 1 << shift)),
        tensors in prop::collection::vec(tensor(), 0..8),
        piece in 1usize..200,
    ) {
        let file = write(&metadata, alignment, &tensors, piece);
        let model = Gguf::from_bytes(file.clone()).unwrap();
        let mut expected = metadata.clone();
        if let Some(alignment) = alignment {
            expected.insert("general.alignment", alignment);
        }
        prop_assert_eq!(model.metadata(), &expected);
        let step = u64::from(alignment.unwrap_or(32));
        prop_assert_eq!(u64::from(model.parts()[0].alignment()), step);
        prop_assert_eq!(file.len() as u64 % step, 0);
        prop_assert_eq!(model.tensors().len(), tensors.len());
        for (index, (found, (ty, shape))) in model.tensors().iter().zip(&tensors).enumerate() {
            prop_assert_eq!(&found.name, &format!("tensor.{index}"));
            prop_assert_eq!(found.ty, *ty);
            prop_assert_eq!(found.shape(), &shape[..]);
            prop_assert_eq!(found.offset % step, 0);
            prop_assert_eq!(found.bytes, shape.iter().product::<u64>() / ty.block_len() * ty.block_bytes());
            prop_assert_eq!(model.data(found).unwrap(), data_of(index, found.bytes));
        }
        touch(&model);
    }
}

#[test]
fn the_bits_of_floats_are_kept() {
    let quiet = f32::from_bits(0x7fc1_2345);
    let mut file = GgufWriter::new();
    file.set("one", quiet).unwrap().set("many", vec![-0.0f32, quiet]).unwrap();
    let model = Gguf::from_bytes(file.start(Vec::new()).unwrap().finish().unwrap()).unwrap();
    let one = model.metadata().require_f32("one").unwrap();
    // Through f64 and back, which keeps the payload of a NaN.
    assert_eq!(one.to_bits(), quiet.to_bits());
    let many = model.metadata().require_array_f32("many").unwrap();
    assert_eq!(many.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x8000_0000, quiet.to_bits()]);
}

#[test]
fn a_vocabulary_of_262144_strings_reads_back() {
    let tokens: StringArray = (0..262_144).map(|id| format!("token {id}")).collect();
    let mut file = GgufWriter::new();
    file.set("tokenizer.ggml.tokens", tokens.clone()).unwrap();
    let model = Gguf::from_bytes(file.start(Vec::new()).unwrap().finish().unwrap()).unwrap();
    let found = model.metadata().require_array_str("tokenizer.ggml.tokens").unwrap();
    assert_eq!(found, &tokens);
    assert_eq!(found.get_str(262_143), Some(Ok("token 262143")));
    assert_eq!(found.get(262_144), None);
}

#[test]
fn version_2_reads_as_version_3_does() {
    let mut file = common::small_model();
    let new = Gguf::from_bytes(file.clone()).unwrap();
    file[4] = 2;
    let old = Gguf::from_bytes(file).unwrap();
    assert_eq!((old.version(), new.version()), (2, 3));
    assert_eq!(old.metadata(), new.metadata());
    assert_eq!(old.tensors(), new.tensors());
}

#[test]
fn a_header_is_laid_out_as_the_format_says() {
    let mut file = GgufWriter::new();
    file.set("k", 0x0102_0304u32).unwrap().tensor("w", GgmlType::F16, &[3, 1]).unwrap();
    let mut data = file.start(Vec::new()).unwrap();
    data.tensor("w", b"abcdef").unwrap();
    let expected = common::Raw(b"GGUF".to_vec())
        .bytes(&[3, 0, 0, 0])
        .bytes(&[1, 0, 0, 0, 0, 0, 0, 0])
        .bytes(&[1, 0, 0, 0, 0, 0, 0, 0])
        .bytes(&[1, 0, 0, 0, 0, 0, 0, 0, b'k', 4, 0, 0, 0, 4, 3, 2, 1])
        .bytes(&[1, 0, 0, 0, 0, 0, 0, 0, b'w', 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
        .bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .bytes(&[0; 14])
        .bytes(b"abcdef")
        .bytes(&[0; 26]);
    assert_eq!(data.finish().unwrap(), expected.0);
}
