//! Valid files that are cut or changed: an error or a model, never a panic, and no model with other content.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Raw, small_model, touch};
use monel_gguf::{Error, Gguf};
use proptest::prelude::*;

#[test]
fn a_file_cut_anywhere_is_an_error_unless_only_padding_is_missing() {
    let whole = small_model();
    let model = Gguf::from_bytes(whole.clone()).unwrap();
    let data_end =
        model.parts()[0].data_start() + model.tensors().iter().map(|t| t.offset + t.bytes).max().unwrap();
    assert!(data_end < whole.len() as u64, "the last tensor is padded");
    for length in 0..whole.len() {
        let cut = Gguf::from_bytes(whole[..length].to_vec());
        if length as u64 >= data_end {
            let cut = cut.unwrap();
            assert_eq!(cut.metadata(), model.metadata());
            assert_eq!(cut.tensors(), model.tensors());
            touch(&cut);
        } else {
            let error = cut.expect_err("something is missing");
            let expected = matches!(
                error,
                Error::Empty
                    | Error::Truncated { .. }
                    | Error::MetadataCount { .. }
                    | Error::TensorCount { .. }
                    | Error::StringTooLong { .. }
                    | Error::ArrayTooLong { .. }
                    | Error::TensorPastEnd { .. }
            );
            assert!(expected, "cut at {length}: {error}");
        }
    }
}

#[test]
fn the_same_holds_for_mapped_files() {
    let whole = small_model();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut.gguf");
    for length in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..length]).unwrap();
        match (Gguf::open(&path), Gguf::from_bytes(whole[..length].to_vec())) {
            (Ok(mapped), Ok(read)) => assert_eq!(mapped.tensors(), read.tensors()),
            (Err(mapped), Err(read)) => assert_eq!(mapped.cause().to_string(), read.to_string()),
            (mapped, read) => panic!("cut at {length}: mapped {mapped:?}, from memory {read:?}"),
        }
    }
}

#[test]
fn every_single_bit_may_flip() {
    let whole = small_model();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(model) = Gguf::from_bytes(flipped) {
            touch(&model);
        }
    }
}

#[test]
fn a_huge_alignment_cannot_overflow() {
    let raw = Raw::new(1, 1).key_u32("general.alignment", 1 << 31).tensor(b"w", &[1], 0, 0).data(64);
    assert!(matches!(raw.error(), Error::TensorPastEnd { data_start: 0x8000_0000, .. }));
}

#[test]
fn a_scalar_and_gaps_between_tensors_are_legal() {
    let raw = Raw::new(2, 0).tensor(b"scalar", &[], 0, 64).tensor(b"row", &[4], 0, 0).data(96);
    let model = Gguf::from_bytes(raw.0).unwrap();
    let scalar = model.tensor("scalar").unwrap();
    assert_eq!((scalar.shape(), scalar.dims, scalar.bytes), (&[][..], [1; 4], 4));
    touch(&model);
}

#[test]
fn a_file_without_tensors_may_end_with_its_header() {
    let raw = Raw::new(0, 1).key_u32("k", 7);
    let model = Gguf::from_bytes(raw.0).unwrap();
    assert_eq!(model.metadata().get_u32("k").unwrap(), Some(7));
    assert!(model.tensors().is_empty());
}

proptest! {
    #[test]
    fn flipped_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut bytes = small_model();
        for (place, byte) in changes {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        match Gguf::from_bytes(bytes) {
            Ok(model) => touch(&model),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_bytes_behind_a_good_start_never_panic(counts in (0u64..4, 0u64..4), tail in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(model) = Gguf::from_bytes(Raw::new(counts.0, counts.1).bytes(&tail).0) {
            touch(&model);
        }
    }
}
