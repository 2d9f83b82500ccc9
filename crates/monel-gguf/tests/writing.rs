//! What the writer refuses.
#![allow(clippy::unwrap_used)]

use monel_gguf::{Array, GgmlType, GgufWriter, NameError, ShapeError, WriteError};
use std::io::{self, Write};

/// Room for so many bytes, then an error.
struct Limited(usize);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn two_tensors() -> GgufWriter {
    let mut file = GgufWriter::new();
    file.tensor("a", GgmlType::I8, &[3]).unwrap().tensor("b", GgmlType::I8, &[5]).unwrap();
    file
}

#[test]
fn bad_metadata_is_refused_when_it_is_set() {
    let mut file = GgufWriter::new();
    file.set("k", 1u8).unwrap();
    assert!(matches!(file.set("k", 2u8), Err(WriteError::DuplicateKey { .. })));
    assert!(matches!(file.set("", 1u8), Err(WriteError::Key { reason: NameError::Empty, .. })));
    let long = "k".repeat(65_536);
    assert!(matches!(
        file.set(&long, 1u8),
        Err(WriteError::Key { reason: NameError::TooLong { length: 65_536 }, .. })
    ));
    for alignment in [0u32, 3] {
        let error = file.set("general.alignment", alignment).unwrap_err();
        assert_eq!(error.to_string(), format!("general.alignment is {alignment}: expected a power of two"));
    }
    assert!(matches!(file.set("general.alignment", "32"), Err(WriteError::Alignment(_))));
    let nested = |depth: usize| (1..depth).fold(Array::U8(vec![]), |array, _| Array::Array(vec![array]));
    file.set("deep", nested(8)).unwrap();
    assert!(matches!(file.set("deeper", nested(9)), Err(WriteError::NestedTooDeep { .. })));
}

#[test]
fn bad_tensors_are_refused_when_they_are_announced() {
    let mut file = two_tensors();
    assert!(matches!(file.tensor("a", GgmlType::F32, &[1]), Err(WriteError::DuplicateTensor { .. })));
    assert!(matches!(file.tensor("", GgmlType::F32, &[1]), Err(WriteError::TensorName { .. })));
    let long = "n".repeat(64);
    let error = file.tensor(&long, GgmlType::F32, &[1]).unwrap_err();
    assert!(matches!(error, WriteError::TensorNameTooLong { length: 64, .. }), "{error}");
    let error = file.tensor("c", GgmlType::Q4_K, &[128, 2]).unwrap_err();
    assert!(
        matches!(error, WriteError::Shape { reason: ShapeError::RowNotBlocks { row: 128, .. }, .. }),
        "{error}"
    );
    file.tensor("huge", GgmlType::I8, &[1 << 62]).unwrap().tensor("more", GgmlType::I8, &[1 << 62]).unwrap();
    assert!(matches!(file.start(io::sink()), Err(WriteError::FileTooLarge { tensor }) if tensor == "more"));
}

#[test]
fn data_must_come_in_order_and_length() {
    let mut data = two_tensors().start(Vec::new()).unwrap();
    let error = data.tensor("b", &[0; 5]).unwrap_err();
    assert_eq!(error.to_string(), "data of the tensor \"b\" was given: expected \"a\"");
    let error = data.tensor("a", &[0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "4 bytes of data were given for the tensor \"a\": expected 3");
    data.piece(&[0; 2]).unwrap();
    assert!(matches!(data.tensor("a", &[0; 3]), Err(WriteError::TensorOrder { .. })), "it is half written");
    assert!(matches!(data.piece(&[0; 2]), Err(WriteError::DataLength { found: 4, expected: 3, .. })));
    data.piece(&[0]).unwrap();
    data.tensor("b", &[0; 5]).unwrap();
    assert!(data.next_tensor().is_none());
    assert!(matches!(data.piece(&[0]), Err(WriteError::TooMuchData { found: 1 })));
    assert!(matches!(data.tensor("c", &[]), Err(WriteError::TensorOrder { expected: None, .. })));
    data.finish().unwrap();
}

#[test]
fn a_file_without_all_its_data_cannot_be_finished() {
    let mut data = two_tensors().start(Vec::new()).unwrap();
    data.piece(&[0; 3]).unwrap();
    data.piece(&[0; 4]).unwrap();
    let error = data.finish().unwrap_err();
    assert_eq!(error.to_string(), "the data of 1 tensors is missing, the first is \"b\"");
}

#[test]
fn an_output_that_fails_at_any_byte_is_an_error() {
    let write = |room: usize| -> Result<(), WriteError> {
        let mut data = two_tensors().start(Limited(room))?;
        data.tensor("a", &[1; 3])?;
        data.tensor("b", &[2; 5])?;
        data.finish().map(|_| ())
    };
    let whole = {
        let mut data = two_tensors().start(Vec::new()).unwrap();
        data.piece(&[1; 3]).unwrap();
        data.piece(&[2; 5]).unwrap();
        data.finish().unwrap().len()
    };
    for room in 0..whole {
        assert!(matches!(write(room), Err(WriteError::Io(_))), "{room} of {whole} bytes");
    }
    write(whole).unwrap();
}
