//! GPT-2's way to write any byte as a printable character, so that a vocabulary of bytes can be stored as strings.

/// Bytes that stand for themselves; the others are numbered from U+0100 in order.
fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that stands for each byte.
pub(crate) fn byte_to_char() -> [char; 256] {
    let mut chars = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        chars[byte as usize] = if is_printable(byte) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).expect("U+0100 to U+0143 are characters")
        };
    }
    chars
}

/// Reads a byte-level token back into bytes.
pub(crate) struct ByteDecoder {
    /// Indexed by code point; the alphabet ends at U+0143.
    bytes: [Option<u8>; 0x144],
}

impl ByteDecoder {
    pub(crate) fn new() -> Self {
        let mut bytes = [None; 0x144];
        for (byte, char) in byte_to_char().into_iter().enumerate() {
            bytes[char as usize] = Some(byte as u8);
        }
        Self { bytes }
    }

    /// Characters outside the alphabet are kept as they are: such a token was stored as plain text.
    pub(crate) fn decode(&self, token: &str, out: &mut Vec<u8>) {
        for char in token.chars() {
            match self.bytes.get(char as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_round_trip() {
        let decoder = ByteDecoder::new();
        for (byte, char) in byte_to_char().into_iter().enumerate() {
            let mut out = Vec::new();
            decoder.decode(&char.to_string(), &mut out);
            assert_eq!(out, [byte as u8]);
        }
    }

    #[test]
    fn space_is_written_as_the_familiar_g() {
        assert_eq!(byte_to_char()[b' ' as usize], 'Ġ');
        assert_eq!(byte_to_char()[b'\n' as usize], 'Ċ');
    }
}
