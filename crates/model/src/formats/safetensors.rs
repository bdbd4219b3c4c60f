//! Safetensors: the length of a JSON header, the header (name, type, shape and place of each tensor), the tensors' bytes.
//!
//! Opening a file checks that every tensor is within it, has the size that its shape says and shares no byte with
//! another. What the tensors mean is not known here.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use thiserror::Error;

use super::gguf::{cut, shortened};
use super::map::FileBytes;

/// Bytes of the header's length.
const PREFIX: usize = 8;
/// The largest headers have some megabytes.
const HEADER_BYTES_MAX: u64 = 100 << 20;
const DIMENSIONS_MAX: usize = 8;
/// Far more than any model has.
const FILES_MAX: usize = 4096;
const INDEX_BYTES_MAX: u64 = 256 << 20;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Why safetensors files cannot be read.
#[derive(Debug, Error)]
pub enum SafetensorsError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error("{}: tensor {name:?} {problem}", path.display())]
    Tensor { path: PathBuf, name: String, problem: String },
    #[error("tensor {name:?} is in {} and in {}", first.display(), second.display())]
    Duplicate { name: String, first: PathBuf, second: PathBuf },
    #[error("{} has neither {SINGLE} nor {INDEX}: fetch the model's weights into it", folder.display())]
    NoWeights { folder: PathBuf },
}

/// The type of a tensor's elements, by the name that headers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32,
    F16,
    Bf16,
    U8,
    /// One that nothing here computes with; the bits of an element.
    Other(u8),
}

impl ElementType {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "U8" => Self::U8,
            "F4" => Self::Other(4),
            "BOOL" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => Self::Other(8),
            "I16" | "U16" => Self::Other(16),
            "I32" | "U32" => Self::Other(32),
            "I64" | "U64" | "F64" | "C64" => Self::Other(64),
            _ => return None,
        })
    }

    fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::U8 => 8,
            Self::Other(bits) => bits.into(),
        }
    }
}

/// Where a tensor is.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    pub element: ElementType,
    /// The name of the type in the file.
    pub element_name: String,
    /// The length of a row comes last.
    pub shape: Vec<usize>,
    pub file: FileBytes,
    pub range: Range<usize>,
}

/// The tensors of a model, which may be in several files.
#[derive(Debug)]
pub struct Safetensors {
    tensors: BTreeMap<String, StoredTensor>,
    /// What files say beside their tensors.
    metadata: BTreeMap<String, String>,
}

impl Safetensors {
    /// Maps the weights in a folder: those that an index names, or one file.
    pub fn open(folder: &Path) -> Result<Self, SafetensorsError> {
        let index = folder.join(INDEX);
        let paths = match index.is_file() {
            true => shards(folder, &index)?,
            false if folder.join(SINGLE).is_file() => vec![folder.join(SINGLE)],
            false => return Err(SafetensorsError::NoWeights { folder: folder.to_owned() }),
        };
        let mut owners: BTreeMap<String, usize> = BTreeMap::new();
        let (mut tensors, mut metadata) = (BTreeMap::new(), BTreeMap::new());
        for (number, path) in paths.iter().enumerate() {
            let open = |source| SafetensorsError::Open { path: path.clone(), source };
            for (name, tensor) in read(path, &FileBytes::open(path).map_err(open)?, &mut metadata)? {
                if let Some(first) = owners.insert(name.clone(), number) {
                    let (first, second) = (paths[first].clone(), path.clone());
                    return Err(SafetensorsError::Duplicate { name: shortened(&name), first, second });
                }
                tensors.insert(name, tensor);
            }
        }
        Ok(Self { tensors, metadata })
    }

    /// Checks a single file whose bytes are in memory; errors name it by `path`.
    pub fn parse(path: &Path, file: &FileBytes) -> Result<Self, SafetensorsError> {
        let mut metadata = BTreeMap::new();
        let tensors = read(path, file, &mut metadata)?.into_iter().collect();
        Ok(Self { tensors, metadata })
    }

    /// Returns what the file says under a key beside its tensors.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(|text| &**text)
    }

    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// All tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &StoredTensor)> {
        self.tensors.iter().map(|(name, tensor)| (&**name, tensor))
    }
}

/// Reads which files an index names.
fn shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>, SafetensorsError> {
    let open = |source| SafetensorsError::Open { path: index.to_owned(), source };
    let fault = |problem: String| SafetensorsError::File { path: index.to_owned(), problem };
    if fs::metadata(index).map_err(open)?.len() > INDEX_BYTES_MAX {
        return Err(fault("it is larger than any index: it is damaged".to_owned()));
    }
    let text = fs::read(index).map_err(open)?;
    let json: serde_json::Value = serde_json::from_slice(&text).map_err(|error| fault(readable(&error)))?;
    let map = json["weight_map"].as_object().ok_or_else(|| fault("weight_map is missing".to_owned()))?;
    let mut names: Vec<&str> = Vec::new();
    for (tensor, file) in map {
        let file = file.as_str().filter(|file| is_plain_name(file));
        let file = file.ok_or_else(|| {
            fault(format!("weight_map says of {:?} no name of a file in the same folder", shortened(tensor)))
        })?;
        names.push(file);
    }
    names.sort_unstable();
    names.dedup();
    if names.is_empty() || names.len() > FILES_MAX {
        return Err(fault(format!("weight_map names {} files; there must be 1 to {FILES_MAX}", names.len())));
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// An index must not lead out of its folder.
fn is_plain_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0'])
}

/// Reads a file's header and checks where its tensors are.
fn read(
    path: &Path,
    file: &FileBytes,
    metadata: &mut BTreeMap<String, String>,
) -> Result<Vec<(String, StoredTensor)>, SafetensorsError> {
    let fault = |problem: String| SafetensorsError::File { path: path.to_owned(), problem };
    let Some(prefix) = file.first_chunk::<PREFIX>() else {
        return Err(fault(format!("it has {} bytes, too few for a safetensors file", file.len())));
    };
    let length = u64::from_le_bytes(*prefix);
    let rest = file.len() - PREFIX;
    if length > HEADER_BYTES_MAX || length > rest as u64 {
        let problem =
            format!("its header should have {length} bytes, and {rest} bytes follow: no safetensors file, or cut");
        return Err(fault(problem));
    }
    let data = PREFIX + length as usize;
    let header: Header = serde_json::from_slice(&file[PREFIX..data])
        .map_err(|error| fault(format!("its header cannot be read: {}", readable(&error))))?;
    metadata.extend(header.metadata);
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for (name, info) in header.tensors {
        let tensor = info.locate(file, data).map_err(|problem| SafetensorsError::Tensor {
            path: path.to_owned(),
            name: shortened(&name),
            problem,
        })?;
        tensors.push((name, tensor));
    }
    refuse_overlaps(path, &tensors)?;
    Ok(tensors)
}

fn refuse_overlaps(path: &Path, tensors: &[(String, StoredTensor)]) -> Result<(), SafetensorsError> {
    let mut by_start: Vec<_> = tensors.iter().filter(|(_, tensor)| !tensor.range.is_empty()).collect();
    by_start.sort_by_key(|(_, tensor)| tensor.range.start);
    match by_start.windows(2).find(|pair| pair[0].1.range.end > pair[1].1.range.start) {
        Some(pair) => Err(SafetensorsError::Tensor {
            path: path.to_owned(),
            name: shortened(&pair[1].0),
            problem: format!("shares bytes with {:?}", shortened(&pair[0].0)),
        }),
        None => Ok(()),
    }
}

/// Texts of a file in errors are cut, so that a hostile one cannot flood a log.
fn readable(error: &serde_json::Error) -> String {
    cut(&error.to_string(), 300)
}

/// The tensors of a header, by name, and what it says beside them.
struct Header {
    tensors: Vec<(String, Info)>,
    metadata: BTreeMap<String, String>,
}

#[derive(serde::Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Info {
    /// `data` is where the tensors begin in the file.
    fn locate(self, file: &FileBytes, data: usize) -> Result<StoredTensor, String> {
        let element = ElementType::from_name(&self.dtype)
            .ok_or_else(|| format!("has the type {:?}, which is not known", shortened(&self.dtype)))?;
        if self.shape.len() > DIMENSIONS_MAX {
            return Err(format!("has {} dimensions; at most {DIMENSIONS_MAX} are accepted", self.shape.len()));
        }
        let shape: Option<Vec<usize>> = self.shape.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        let bits = shape
            .as_ref()
            .and_then(|shape| shape.iter().try_fold(element.bits(), |product, dim| product.checked_mul(*dim)));
        let (Some(shape), Some(bits)) = (shape, bits) else {
            return Err(format!("has the shape {:?}, larger than can be addressed", self.shape));
        };
        let [start, end] = self.data_offsets;
        let room = (file.len() - data) as u64;
        if start > end || end > room {
            return Err(format!("has the offsets {start} to {end}, and {room} bytes follow the header"));
        }
        if bits % 8 != 0 || (bits / 8) as u64 != end - start {
            return Err(format!("has {} bytes, which its shape {:?} of {} does not", end - start, shape, self.dtype));
        }
        // Both are within the file, which is in memory.
        let range = data + start as usize..data + end as usize;
        Ok(StoredTensor { element, element_name: self.dtype, shape, file: file.clone(), range })
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// Reads a map entry by entry, because JSON allows a name twice and maps would keep one of them.
struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut tensors, mut metadata): (Vec<(String, Info)>, _) = (Vec::new(), BTreeMap::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                // Nothing in it is needed, so that anything may be there.
                if let serde_json::Value::Object(texts) = map.next_value()? {
                    let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text.as_str()?.to_owned())));
                    metadata.extend(texts);
                }
                continue;
            }
            let info = map.next_value()?;
            tensors.push((name, info));
        }
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        match tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(A::Error::custom(format!("tensor {:?} occurs twice", shortened(&pair[0].0)))),
            None => Ok(Header { tensors, metadata }),
        }
    }
}

#[cfg(test)]
mod tests;
