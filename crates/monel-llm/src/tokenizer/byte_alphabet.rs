//! The alphabet in which byte-level vocabularies are written down.
//!
//! Such a vocabulary is over bytes, but its files hold text. So each of the 256 bytes is written as one visible
//! character: printable Latin-1 characters stand for themselves, and the 68 others (control characters, the space, the
//! soft hyphen ...) are numbered from U+0100 on in the order of their bytes; the space becomes `Ġ`, the newline `Ċ`.
//! Inside the tokenizer everything is plain bytes; only loading passes through here.

/// Whether the byte is written as the character of the same number.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Numbers below this one are in the alphabet, if they are in it at all.
const END: usize = 0x144;

/// From a character's number to its byte, -1 where there is none.
const TO_BYTE: [i16; END] = {
    let mut table = [-1i16; END];
    let (mut byte, mut next) = (0usize, 0x100usize);
    while byte < 256 {
        if stands_for_itself(byte as u8) {
            table[byte] = byte as i16;
        } else {
            table[next] = byte as i16;
            next += 1;
        }
        byte += 1;
    }
    table
};

/// Appends to `out` the bytes that `text` stands for. A character outside the alphabet, or bytes that are not UTF-8, are
/// appended as they are: some files hold such tokens, and this is what they mean by them.
pub(super) fn decode_into(text: &[u8], out: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match TO_BYTE.get(character as usize) {
                Some(&byte @ 0..) => out.push(byte as u8),
                _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let mut seen = [false; 256];
        for byte in TO_BYTE.into_iter().filter(|&byte| byte >= 0) {
            assert!(!std::mem::replace(&mut seen[byte as usize], true));
        }
        assert!(seen.into_iter().all(|seen| seen));
        // The table ends exactly behind the last one used.
        assert!(TO_BYTE[END - 1] >= 0);
    }

    #[test]
    fn known_characters() {
        let mut out = Vec::new();
        decode_into("Ġhello Ċĉ é ł".as_bytes(), &mut out);
        // The raw spaces are outside the alphabet and stay; é is byte E9, ł (U+0142) is the last but one: byte A0.
        assert_eq!(out, b" hello \n\t \xE9 \xA0");
    }

    #[test]
    fn what_is_outside_stays() {
        let mut out = Vec::new();
        decode_into("｜你".as_bytes(), &mut out);
        decode_into(b"\xFF\xC3", &mut out);
        assert_eq!(out, ["｜你".as_bytes(), b"\xFF\xC3"].concat());
    }
}
