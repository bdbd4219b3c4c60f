//! KV pages: the formats that they come in, what stands where in one, and how memory is cut into them.
//! Plain arithmetic; the bytes themselves are in `ops::KvMemory`.

mod bit_set;
mod format;
mod layout;
mod slabs;

pub use format::{KeyFormat, PageFormat, ValueFormat};
pub(crate) use layout::{KEY_GROUP, PAGE_TOKENS, PageLayout, VALUE_GROUP, ZERO_POINTS_BYTES};
pub(crate) use slabs::{HUGE_PAGE, PageBytes, Slabs};
