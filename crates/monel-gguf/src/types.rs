//! The element types a tensor can have.
//!
//! A type is a block: so many values packed into so many bytes. Plain types are blocks of one value. A row of a tensor
//! is a whole number of blocks, so the size of everything follows from the two numbers in the table below. Ids are those
//! stored in files; they are explicit and never reused, which is why the gaps (types that were withdrawn) stay gaps.

use std::fmt;

macro_rules! types {
    ($($name:ident $id:literal $values:literal $bytes:literal $doc:literal;)*) => {
        /// The element type of a tensor, under its usual name.
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum GgmlType {
            $(#[doc = $doc] $name = $id,)*
        }

        impl GgmlType {
            /// Every known type, by ascending id.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$name,)*];

            /// The type with this id in a file, if there is one.
            pub const fn from_id(id: u32) -> Option<GgmlType> {
                match id {
                    $($id => Some(GgmlType::$name),)*
                    _ => None,
                }
            }

            /// The usual name, for example `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(GgmlType::$name => stringify!($name),)*
                }
            }

            /// Values in one block (1 for plain types).
            pub const fn block_len(self) -> u64 {
                match self {
                    $(GgmlType::$name => $values,)*
                }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> u64 {
                match self {
                    $(GgmlType::$name => $bytes,)*
                }
            }
        }
    };
}

types! {
    F32 0 1 4 "32-bit float.";
    F16 1 1 2 "IEEE half float.";
    Q4_0 2 32 18 "4 bits and a scale.";
    Q4_1 3 32 20 "4 bits, a scale and a minimum.";
    Q5_0 6 32 22 "5 bits and a scale.";
    Q5_1 7 32 24 "5 bits, a scale and a minimum.";
    Q8_0 8 32 34 "8 bits and a scale.";
    Q8_1 9 32 36 "8 bits, a scale and a sum; an intermediate of dot products.";
    Q2_K 10 256 84 "2 bits, superblock with 4-bit scales and minima.";
    Q3_K 11 256 110 "3 bits, superblock with 6-bit scales.";
    Q4_K 12 256 144 "4 bits, superblock with 6-bit scales and minima.";
    Q5_K 13 256 176 "5 bits, superblock with 6-bit scales and minima.";
    Q6_K 14 256 210 "6 bits, superblock with 8-bit scales.";
    Q8_K 15 256 292 "8 bits, a float scale and sums; an intermediate of dot products.";
    IQ2_XXS 16 256 66 "Codebook, about 2.06 bits.";
    IQ2_XS 17 256 74 "Codebook, about 2.31 bits.";
    IQ3_XXS 18 256 98 "Codebook, about 3.06 bits.";
    IQ1_S 19 256 50 "Codebook, about 1.56 bits.";
    IQ4_NL 20 32 18 "4 bits into a table of 16 uneven values, and a scale.";
    IQ3_S 21 256 110 "Codebook, about 3.44 bits.";
    IQ2_S 22 256 82 "Codebook, about 2.56 bits.";
    IQ4_XS 23 256 136 "4 bits into a table of 16 uneven values, superblock.";
    I8 24 1 1 "Signed byte.";
    I16 25 1 2 "16-bit integer.";
    I32 26 1 4 "32-bit integer.";
    I64 27 1 8 "64-bit integer.";
    F64 28 1 8 "64-bit float.";
    IQ1_M 29 256 56 "Codebook, about 1.75 bits.";
    BF16 30 1 2 "Brain float: the upper half of a 32-bit float.";
    TQ1_0 34 256 54 "Ternary values, five to a byte.";
    TQ2_0 35 256 66 "Ternary values, two bits each.";
    MXFP4 39 32 17 "4-bit floats with a shared power-of-two exponent.";
    NVFP4 40 64 36 "4-bit floats with an 8-bit float scale per 16 values.";
    Q1_0 41 128 18 "1 bit and a scale.";
    Q2_0 42 64 18 "2 bits and a scale.";
}

impl GgmlType {
    /// The id stored in files.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type with this name, upper or lower case.
    pub fn from_name(name: &str) -> Option<GgmlType> {
        Self::ALL.iter().copied().find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Whether several values share a block.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `values` values; `None` if that isn't a whole number of blocks, or does not fit 64 bits.
    pub const fn row_bytes(self, values: u64) -> Option<u64> {
        if !values.is_multiple_of(self.block_len()) {
            return None;
        }
        (values / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_lead_back() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(GgmlType::from_name(ty.name()), Some(ty));
            assert_eq!(GgmlType::from_name(&ty.name().to_lowercase()), Some(ty));
        }
        assert!(GgmlType::ALL.windows(2).all(|pair| pair[0].id() < pair[1].id()));
    }

    #[test]
    fn withdrawn_ids_stay_unknown() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None, "{id}");
        }
    }

    #[test]
    fn sizes_follow_from_the_fields_of_a_block() {
        // Scale (2 bytes), then bits of 32 or 256 values, high bits, scales and minima.
        assert_eq!(GgmlType::Q4_0.block_bytes(), 2 + 32 / 2);
        assert_eq!(GgmlType::Q5_1.block_bytes(), 2 + 2 + 32 / 8 + 32 / 2);
        assert_eq!(GgmlType::Q8_1.block_bytes(), 2 + 2 + 32);
        assert_eq!(GgmlType::Q2_K.block_bytes(), 256 / 16 + 256 / 4 + 2 + 2);
        assert_eq!(GgmlType::Q3_K.block_bytes(), 256 / 8 + 256 / 4 + 12 + 2);
        assert_eq!(GgmlType::Q4_K.block_bytes(), 2 + 2 + 12 + 256 / 2);
        assert_eq!(GgmlType::Q5_K.block_bytes(), 2 + 2 + 12 + 256 / 8 + 256 / 2);
        assert_eq!(GgmlType::Q6_K.block_bytes(), 256 / 2 + 256 / 4 + 256 / 16 + 2);
        assert_eq!(GgmlType::Q8_K.block_bytes(), 4 + 256 + 2 * (256 / 16));
        assert_eq!(GgmlType::MXFP4.block_bytes(), 1 + 32 / 2);
        assert_eq!(GgmlType::NVFP4.block_bytes(), 64 / 16 + 64 / 2);
        assert_eq!(GgmlType::TQ2_0.block_bytes(), 256 / 4 + 2);
        assert_eq!(GgmlType::Q1_0.block_bytes(), 128 / 8 + 2);
        assert_eq!(GgmlType::Q2_0.block_bytes(), 64 / 4 + 2);
    }

    #[test]
    fn row_bytes_wants_whole_blocks() {
        assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.row_bytes(255), None);
        assert_eq!(GgmlType::F64.row_bytes(u64::MAX), None);
        assert_eq!(GgmlType::F32.row_bytes(0), Some(0));
    }
}
