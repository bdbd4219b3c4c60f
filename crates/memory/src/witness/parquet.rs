//! Writes tables as Parquet: flat columns, plain encoding, no compression.
//!
//! A file is `PAR1`, the column chunks of each row group, the file metadata, its length, and `PAR1`. Metadata is in Thrift's
//! compact protocol, of which this writes the few parts that are needed.

use std::io::{self, Write};

const MAGIC: &[u8] = b"PAR1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Integer,
    TimestampMs,
    Real,
    Text,
    Json,
}

impl ColumnType {
    /// Returns the number of the physical type.
    fn physical(self) -> i64 {
        match self {
            Self::Integer | Self::TimestampMs => 2,
            Self::Real => 5,
            Self::Text | Self::Json => 6,
        }
    }

    /// Returns the number of the converted type, if there is one.
    fn converted(self) -> Option<i64> {
        match self {
            Self::Integer | Self::Real => None,
            Self::Text => Some(0),
            Self::TimestampMs => Some(9),
            Self::Json => Some(19),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub name: &'static str,
    pub kind: ColumnType,
    pub is_optional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'a str),
}

impl<'a> Cell<'a> {
    pub fn optional(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }

    fn write_to(self, out: &mut Vec<u8>) {
        match self {
            Self::Null => {}
            Self::Integer(value) => out.extend(value.to_le_bytes()),
            Self::Real(value) => out.extend(value.to_le_bytes()),
            Self::Text(text) => {
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text.as_bytes());
            }
        }
    }
}

/// Position of a column chunk.
struct Chunk {
    offset: u64,
    bytes: u64,
}

struct RowGroup {
    rows: u64,
    chunks: Vec<Chunk>,
}

pub(super) struct ParquetWriter<'a> {
    out: &'a mut dyn Write,
    columns: &'a [Column],
    position: u64,
    groups: Vec<RowGroup>,
}

impl<'a> ParquetWriter<'a> {
    pub fn new(out: &'a mut dyn Write, columns: &'a [Column]) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        Ok(Self { out, columns, position: MAGIC.len() as u64, groups: Vec::new() })
    }

    /// Writes a row group. Each row has a cell for each column, of its type.
    pub fn write_rows(&mut self, rows: &[Vec<Cell<'_>>]) -> io::Result<()> {
        let mut chunks = Vec::with_capacity(self.columns.len());
        for (at, column) in self.columns.iter().enumerate() {
            let page = page(column, rows.iter().map(|row| row[at]), rows.len());
            self.out.write_all(&page)?;
            chunks.push(Chunk { offset: self.position, bytes: page.len() as u64 });
            self.position += page.len() as u64;
        }
        self.groups.push(RowGroup { rows: rows.len() as u64, chunks });
        Ok(())
    }

    pub fn finish(self) -> io::Result<()> {
        let description = self.description();
        self.out.write_all(&description)?;
        self.out.write_all(&(description.len() as u32).to_le_bytes())?;
        self.out.write_all(MAGIC)
    }

    fn description(&self) -> Vec<u8> {
        let mut file = Struct::default();
        file.integer(1, I32, 1);
        let mut schema = vec![self.root()];
        schema.extend(self.columns.iter().map(schema_element));
        file.list(2, STRUCT, schema);
        file.integer(3, I64, self.groups.iter().map(|group| group.rows as i64).sum());
        file.list(4, STRUCT, self.groups.iter().map(|group| self.row_group(group)).collect());
        file.text(6, "ruvllm");
        file.finish()
    }

    fn root(&self) -> Vec<u8> {
        let mut root = Struct::default();
        root.text(4, "witness");
        root.integer(5, I32, self.columns.len() as i64);
        root.finish()
    }

    fn row_group(&self, group: &RowGroup) -> Vec<u8> {
        let columns =
            self.columns.iter().zip(&group.chunks).map(|(column, chunk)| column_chunk(column, chunk, group.rows));
        let mut described = Struct::default();
        described.list(1, STRUCT, columns.collect());
        described.integer(2, I64, group.chunks.iter().map(|chunk| chunk.bytes as i64).sum());
        described.integer(3, I64, group.rows as i64);
        described.finish()
    }
}

/// Returns a data page: header, definition levels of an optional column, values.
fn page<'a>(column: &Column, cells: impl Iterator<Item = Cell<'a>> + Clone, rows: usize) -> Vec<u8> {
    let mut data = Vec::new();
    if column.is_optional {
        let levels = presence(cells.clone().map(|cell| cell != Cell::Null));
        data.extend((levels.len() as u32).to_le_bytes());
        data.extend(levels);
    }
    cells.for_each(|cell| cell.write_to(&mut data));
    const PLAIN: i64 = 0;
    const RUNS: i64 = 3;
    let mut values = Struct::default();
    values.integer(1, I32, rows as i64);
    values.integer(2, I32, PLAIN);
    values.integer(3, I32, RUNS);
    values.integer(4, I32, RUNS);
    let mut header = Struct::default();
    header.integer(1, I32, 0);
    header.integer(2, I32, data.len() as i64);
    header.integer(3, I32, data.len() as i64);
    header.structure(5, values);
    let mut page = header.finish();
    page.extend(data);
    page
}

/// Encodes definition levels as runs: twice the length, then the value.
fn presence(mut is_there: impl Iterator<Item = bool>) -> Vec<u8> {
    let mut runs = Vec::new();
    let Some(mut current) = is_there.next() else { return runs };
    let mut length = 1u64;
    let mut end_run = |length: u64, value: bool| {
        varint(&mut runs, length << 1);
        runs.push(u8::from(value));
    };
    for next in is_there {
        if next == current {
            length += 1;
        } else {
            end_run(length, current);
            (current, length) = (next, 1);
        }
    }
    end_run(length, current);
    runs
}

fn schema_element(column: &Column) -> Vec<u8> {
    let mut element = Struct::default();
    element.integer(1, I32, column.kind.physical());
    element.integer(3, I32, i64::from(column.is_optional));
    element.text(4, column.name);
    if let Some(converted) = column.kind.converted() {
        element.integer(6, I32, converted);
    }
    element.finish()
}

fn column_chunk(column: &Column, chunk: &Chunk, rows: u64) -> Vec<u8> {
    let encoding = |number: u64| {
        let mut bytes = Vec::new();
        varint(&mut bytes, zigzag(number as i64));
        bytes
    };
    let mut values = Struct::default();
    values.integer(1, I32, column.kind.physical());
    values.list(2, I32, vec![encoding(0), encoding(3)]);
    values.list(3, BINARY, vec![text(column.name)]);
    values.integer(4, I32, 0);
    values.integer(5, I64, rows as i64);
    values.integer(6, I64, chunk.bytes as i64);
    values.integer(7, I64, chunk.bytes as i64);
    values.integer(9, I64, chunk.offset as i64);
    let mut described = Struct::default();
    described.integer(2, I64, chunk.offset as i64);
    described.structure(3, values);
    described.finish()
}

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A struct of the compact protocol. Fields must be added in ascending order.
#[derive(Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn field(&mut self, number: u8, kind: u8) {
        self.bytes.push((number - self.last) << 4 | kind);
        self.last = number;
    }

    fn integer(&mut self, number: u8, kind: u8, value: i64) {
        self.field(number, kind);
        varint(&mut self.bytes, zigzag(value));
    }

    fn text(&mut self, number: u8, value: &str) {
        self.field(number, BINARY);
        self.bytes.extend(text(value));
    }

    fn structure(&mut self, number: u8, value: Self) {
        self.field(number, STRUCT);
        self.bytes.extend(value.finish());
    }

    fn list(&mut self, number: u8, kind: u8, items: Vec<Vec<u8>>) {
        self.field(number, LIST);
        if items.len() < 15 {
            self.bytes.push((items.len() as u8) << 4 | kind);
        } else {
            self.bytes.push(0xf0 | kind);
            varint(&mut self.bytes, items.len() as u64);
        }
        self.bytes.extend(items.into_iter().flatten());
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() + 2);
    varint(&mut bytes, text.len() as u64);
    bytes.extend(text.as_bytes());
    bytes
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
