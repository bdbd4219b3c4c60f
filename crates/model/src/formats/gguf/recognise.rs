//! Files that are not GGUF but are often mistaken for it, so that the error can say what they are.

use std::fmt;

/// What a file that is not (readable) GGUF seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignFormat {
    Empty,
    BigEndianGguf,
    OldGgml,
    Safetensors,
    Zip,
    Html,
    Json,
    GitLfsPointer,
    Unknown { first: [u8; 4] },
}

impl ForeignFormat {
    /// What `bytes` seem to be, given that they do not start with GGUF's magic.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let Some(first) = bytes.first_chunk::<4>() else {
            return match bytes {
                [] => Self::Empty,
                _ => Self::Unknown { first: std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)) },
            };
        };
        let text = bytes.trim_ascii_start();
        match first {
            b"FUGG" => Self::BigEndianGguf,
            // The magic was written as a little-endian number, so its letters come out reversed.
            b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => Self::OldGgml,
            b"PK\x03\x04" => Self::Zip,
            _ if bytes.starts_with(b"version https://git-lfs") => Self::GitLfsPointer,
            _ if is_safetensors(bytes) => Self::Safetensors,
            _ if starts_with_word(text, b"<!doctype") || starts_with_word(text, b"<html") => Self::Html,
            _ if text.first() == Some(&b'{') => Self::Json,
            _ => Self::Unknown { first: *first },
        }
    }
}

/// Safetensors begins with the length of a JSON header.
fn is_safetensors(bytes: &[u8]) -> bool {
    let (Some(length), Some(b'{')) = (bytes.first_chunk::<8>(), bytes.get(8)) else { return false };
    u64::from_le_bytes(*length) <= bytes.len() as u64 - 8
}

fn starts_with_word(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::BigEndianGguf => f.write_str("it is a big-endian GGUF; only little-endian ones can be read"),
            Self::OldGgml => f.write_str("it is a GGML/GGJT file from before GGUF; convert the original model again"),
            Self::Safetensors => f.write_str("it is a safetensors file"),
            Self::Zip => f.write_str("it is a zip archive, perhaps a PyTorch checkpoint"),
            Self::Html => f.write_str("it is a web page; the download probably met a login or error page"),
            Self::Json => f.write_str("it is JSON text; the download probably met an error message"),
            Self::GitLfsPointer => f.write_str("it is a Git LFS pointer; the model itself was not downloaded"),
            Self::Unknown { first } => write!(f, "it starts with \"{}\"", first.escape_ascii()),
        }
    }
}
