//! The bytes of a page's file: a header, the page, and a checksum over both.

use ruvllm_kernels::ops::{KeyFormat, PageFormat, ValueFormat};

use crate::prefix::PageHash;

const MAGIC: [u8; 8] = *b"RUVKV\x01\0\0";
const HEADER: usize = MAGIC.len() + 16 + 4;
const CHECKSUM: usize = 32;

/// A page as it is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPage {
    pub format: PageFormat,
    pub bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DamagedPage {
    #[error("it is too short")]
    TooShort,
    #[error("it is not a saved KV page of this version")]
    NotAPage,
    #[error("its checksum does not match its contents")]
    Checksum,
    #[error("it holds the page of another text")]
    OtherPage,
}

/// The length of the file of a page of so many bytes.
pub(super) fn file_bytes(page_bytes: usize) -> u64 {
    (HEADER + page_bytes + CHECKSUM) as u64
}

/// The file of a page.
pub(super) fn encode(hash: PageHash, page: &SavedPage) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER + page.bytes.len() + CHECKSUM);
    file.extend(MAGIC);
    file.extend(hash.bytes());
    file.extend(format_number(page.format).to_le_bytes());
    file.extend(&page.bytes);
    let checksum = blake3::hash(&file);
    file.extend(checksum.as_bytes());
    file
}

/// Formats as they are numbered in files, whatever their order here.
fn format_number(format: PageFormat) -> u32 {
    let keys = match format.keys {
        KeyFormat::F16 => 16,
        KeyFormat::Q8 => 8,
        KeyFormat::Q6 => 6,
        KeyFormat::Q4 => 4,
    };
    let values = match format.values {
        ValueFormat::F16 => 16,
        ValueFormat::Q8 => 8,
        ValueFormat::Q4 => 4,
    };
    keys << 8 | values
}

/// The page in a file, if that is what it should be. Files are not trusted: anything may have happened to them.
pub(super) fn decode(hash: PageHash, mut file: Vec<u8>) -> Result<SavedPage, DamagedPage> {
    let content = file.len().checked_sub(CHECKSUM).filter(|len| *len >= HEADER).ok_or(DamagedPage::TooShort)?;
    if file[..MAGIC.len()] != MAGIC {
        return Err(DamagedPage::NotAPage);
    }
    if blake3::hash(&file[..content]).as_bytes() != &file[content..] {
        return Err(DamagedPage::Checksum);
    }
    if file[MAGIC.len()..][..16] != hash.bytes() {
        return Err(DamagedPage::OtherPage);
    }
    let number = file[MAGIC.len() + 16..HEADER].try_into().map_or(0, u32::from_le_bytes);
    let format = PageFormat::all().find(|format| format_number(*format) == number).ok_or(DamagedPage::NotAPage)?;
    file.truncate(content);
    file.drain(..HEADER);
    Ok(SavedPage { format, bytes: file })
}
