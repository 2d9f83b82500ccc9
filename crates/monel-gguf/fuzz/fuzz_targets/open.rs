//! Opens arbitrary bytes as a model and, if that works, looks at everything in it; then writes it again and expects the
//! copy to hold the same.
//!
//! Seeds: `cargo run -p monel-gguf --example seeds -- crates/monel-gguf/fuzz/corpus/open`
//! Run, from `crates/monel-gguf`: `RUSTC_BOOTSTRAP=1 cargo fuzz run open`
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use monel_gguf::{Advice, Array, Error, Gguf, GgufWriter, Metadata, WriteError};
use std::hint::black_box;

fuzz_target!(|bytes: &[u8]| -> Corpus {
    match Gguf::from_bytes(bytes.to_vec()) {
        Ok(model) => {
            touch(&model);
            check_copy(&model);
        }
        // Both halves of a split model, or none: the second use of the same names is refused.
        Err(Error::SplitAlone { .. }) => {
            let error = Gguf::from_parts([bytes.to_vec(), bytes.to_vec()]).expect_err("twice the same part");
            black_box(error.to_string());
        }
        Err(error) => {
            black_box(error.to_string());
        }
    }
    Corpus::Keep
});

fn touch(model: &Gguf) {
    for (key, value) in model.metadata().iter() {
        black_box(value.describe());
        if let Some(array) = value.as_array() {
            touch_array(array);
            assert_eq!(array.get(array.len()), None);
        }
        touch_typed(model.metadata(), key);
    }
    for tensor in model.tensors() {
        assert_eq!(model.tensor(&tensor.name), Some(tensor));
        assert_eq!(tensor.ty.row_bytes(tensor.elements()), Some(tensor.bytes));
        let data = model.data(tensor).expect("a tensor of an open model has its data");
        assert_eq!(data.len() as u64, tensor.bytes);
        black_box(data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        assert!(matches!(model.advise(tensor, Advice::DontNeed), Ok(false)));
    }
}

fn touch_array(array: &Array) {
    for index in 0..array.len() {
        black_box(array.get(index));
    }
    match array {
        Array::String(strings) => {
            assert_eq!(strings.iter().map(<[u8]>::len).sum::<usize>(), strings.total_bytes());
            black_box(
                (0..strings.len())
                    .filter(|&index| strings.get_str(index).is_some_and(|text| text.is_ok()))
                    .count(),
            );
        }
        Array::Array(arrays) => arrays.iter().for_each(touch_array),
        _ => {}
    }
}

fn touch_typed(metadata: &Metadata, key: &str) {
    fn shown<T>(result: Result<T, Error>) {
        if let Err(error) = result {
            black_box(error.to_string());
        }
    }
    shown(metadata.get_str(key));
    shown(metadata.get_bool(key));
    shown(metadata.get_u32(key));
    shown(metadata.get_i64(key));
    shown(metadata.get_f32(key));
    shown(metadata.get_array_str(key));
    shown(metadata.get_array_bool(key));
    shown(metadata.get_array_i32(key));
    shown(metadata.get_array_u64(key));
    shown(metadata.get_array_f32(key));
}

/// Compares through a second copy: the bytes of two copies are equal even where numbers aren't (NaN).
fn check_copy(model: &Gguf) {
    let Some(copy) = copied(model) else { return };
    let again = Gguf::from_bytes(copy.clone()).expect("what was written is read");
    assert_eq!(again.tensors().len(), model.tensors().len());
    assert_eq!(format!("{:?}", again.metadata()), format!("{:?}", model.metadata()));
    for (old, new) in model.tensors().iter().zip(again.tensors()) {
        assert_eq!((&old.name, old.ty, old.dims, old.n_dims), (&new.name, new.ty, new.dims, new.n_dims));
        assert_eq!(model.data(old).expect("data"), again.data(new).expect("data"));
    }
    assert_eq!(copied(&again), Some(copy));
}

fn copied(model: &Gguf) -> Option<Vec<u8>> {
    // A few bytes can ask for gigabytes of padding.
    if model.parts()[0].alignment() > 4096 {
        return None;
    }
    let mut writer = GgufWriter::new();
    writer.set_all(model.metadata()).expect("metadata that was read can be written");
    for tensor in model.tensors() {
        match writer.tensor(&tensor.name, tensor.ty, tensor.shape()) {
            Ok(_) => {}
            Err(WriteError::TensorNameTooLong { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    }
    let mut data = writer.start(Vec::new()).expect("the header is written");
    for tensor in model.tensors() {
        data.tensor(&tensor.name, model.data(tensor).expect("data")).expect("data is written");
    }
    Some(data.finish().expect("the file is complete"))
}
