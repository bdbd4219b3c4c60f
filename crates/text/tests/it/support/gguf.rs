//! Just enough GGUF to read metadata in tests. The product's reader lives in the model crate, which this one does not
//! know; test files are trusted, so this one panics where that one reports.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

#[derive(Debug)]
enum Field {
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Field>),
}

pub struct Metadata(HashMap<String, Field>);

impl Metadata {
    pub fn read(path: &Path) -> Self {
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut reader = Reader(BufReader::new(file));
        assert_eq!(&reader.bytes::<4>(), b"GGUF", "{}", path.display());
        let _version = reader.u32();
        let _tensors = reader.u64();
        let fields = reader.u64();
        Self((0..fields).map(|_| (reader.text(), reader.typed_field())).collect())
    }

    pub fn integer(&self, key: &str) -> Option<i64> {
        match self.0.get(key) {
            Some(Field::Integer(integer)) => Some(*integer),
            _ => None,
        }
    }

    pub fn string(&self, key: &str) -> Option<String> {
        match self.0.get(key) {
            Some(Field::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    pub fn strings(&self, key: &str) -> Vec<String> {
        self.list(key, |field| match field {
            Field::Text(text) => text.clone(),
            other => panic!("{key} holds {other:?}"),
        })
    }

    pub fn integers(&self, key: &str) -> Vec<i64> {
        self.list(key, |field| match field {
            Field::Integer(integer) => *integer,
            other => panic!("{key} holds {other:?}"),
        })
    }

    pub fn floats(&self, key: &str) -> Vec<f32> {
        self.list(key, |field| match field {
            Field::Float(float) => *float as f32,
            other => panic!("{key} holds {other:?}"),
        })
    }

    fn list<T>(&self, key: &str, read: impl Fn(&Field) -> T) -> Vec<T> {
        match self.0.get(key) {
            Some(Field::List(items)) => items.iter().map(read).collect(),
            _ => Vec::new(),
        }
    }
}

struct Reader(BufReader<File>);

impl Reader {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("GGUF ends early");
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn text(&mut self) -> String {
        let mut bytes = vec![0; self.u64() as usize];
        self.0.read_exact(&mut bytes).expect("GGUF ends early");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn typed_field(&mut self) -> Field {
        let kind = self.u32();
        self.field(kind)
    }

    fn field(&mut self, kind: u32) -> Field {
        match kind {
            0 | 7 => Field::Integer(self.bytes::<1>()[0].into()),
            1 => Field::Integer(i8::from_le_bytes(self.bytes()).into()),
            2 => Field::Integer(u16::from_le_bytes(self.bytes()).into()),
            3 => Field::Integer(i16::from_le_bytes(self.bytes()).into()),
            4 => Field::Integer(self.u32().into()),
            5 => Field::Integer(i32::from_le_bytes(self.bytes()).into()),
            6 => Field::Float(f32::from_le_bytes(self.bytes()).into()),
            8 => Field::Text(self.text()),
            9 => {
                let (kind, len) = (self.u32(), self.u64());
                Field::List((0..len).map(|_| self.field(kind)).collect())
            }
            10 => Field::Integer(self.u64() as i64),
            11 => Field::Integer(i64::from_le_bytes(self.bytes())),
            12 => Field::Float(f64::from_le_bytes(self.bytes())),
            _ => panic!("GGUF field of kind {kind}"),
        }
    }
}
