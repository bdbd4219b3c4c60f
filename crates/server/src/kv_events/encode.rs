//! Events as vLLM writes them: MessagePack, of maps or, as until the middle of 2026, of arrays.

use rmp::encode::{ValueWriteError, write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};
use ruvllm_runtime::{AdapterId, PAGE_TOKENS, PageHash, PrefixEvent};

/// How events look. Consumers know one or the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventLayout {
    #[default]
    Maps,
    Arrays,
}

/// Where all pages are: vLLM's name for the memory that a model computes with, wherever that is.
const MEDIUM: &str = "GPU";

/// Returns the events of one message: their time in seconds, the events, and the rank of the worker among parallel ones.
pub(super) fn encode(
    events: &[PrefixEvent],
    unix_s: f64,
    layout: EventLayout,
    adapter_name: &dyn Fn(AdapterId) -> Option<String>,
) -> Vec<u8> {
    let mut packer = Packer { layout, bytes: Vec::new() };
    packer.list(3);
    done(write_f64(&mut packer.bytes, unix_s));
    packer.list(events.len());
    for event in events {
        packer.event(event, adapter_name);
    }
    packer.number(0);
    packer.bytes
}

struct Packer {
    layout: EventLayout,
    bytes: Vec<u8>,
}

impl Packer {
    fn event(&mut self, event: &PrefixEvent, adapter_name: &dyn Fn(AdapterId) -> Option<String>) {
        match event {
            PrefixEvent::Stored { tenant, adapter, salt, parent, pages, tokens } => {
                self.begin("BlockStored", 8);
                self.field("block_hashes").hashes(pages);
                self.field("parent_block_hash").maybe(*parent, |packer, parent| packer.number(short(parent)));
                self.field("token_ids").list(tokens.len());
                tokens.iter().for_each(|token| self.number(u64::from(*token)));
                self.field("block_size").number(PAGE_TOKENS as u64);
                // A number of the engine's own, which nobody is to use any more.
                self.field("lora_id").nothing();
                self.field("medium").text(MEDIUM);
                let adapter = adapter.map(|id| adapter_name(id).unwrap_or_else(|| id.to_string()));
                self.field("lora_name").maybe(adapter, |packer, name| packer.text(&name));
                let name = Some(tenant.name()).filter(|name| !name.is_empty()).map(str::to_owned);
                let keys: Vec<String> = name.into_iter().chain(salt.map(hexadecimal)).collect();
                // As a salt in vLLM: with the first page, from which all others follow.
                let keys = Some(keys).filter(|keys| parent.is_none() && !keys.is_empty());
                self.field("extra_keys").maybe(keys, |packer, keys| {
                    packer.list(pages.len());
                    packer.list(keys.len());
                    keys.iter().for_each(|key| packer.text(key));
                    (1..pages.len()).for_each(|_| packer.nothing());
                });
            }
            PrefixEvent::Removed { pages } => {
                self.begin("BlockRemoved", 2);
                self.field("block_hashes").hashes(pages);
                self.field("medium").text(MEDIUM);
            }
            PrefixEvent::Cleared => self.begin("AllBlocksCleared", 0),
        }
    }

    /// Begins an event with so many fields.
    fn begin(&mut self, event: &str, fields: u32) {
        match self.layout {
            EventLayout::Maps => {
                done(write_map_len(&mut self.bytes, 1 + fields));
                self.text("type");
            }
            EventLayout::Arrays => done(write_array_len(&mut self.bytes, 1 + fields)),
        }
        self.text(event);
    }

    /// Begins a field.
    fn field(&mut self, name: &str) -> &mut Self {
        if self.layout == EventLayout::Maps {
            self.text(name);
        }
        self
    }

    fn hashes(&mut self, pages: &[PageHash]) {
        self.list(pages.len());
        pages.iter().for_each(|page| self.number(short(*page)));
    }

    fn maybe<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nothing(),
        }
    }

    fn list(&mut self, length: usize) {
        done(write_array_len(&mut self.bytes, u32::try_from(length).expect("fewer pages and tokens than that")));
    }

    fn text(&mut self, text: &str) {
        done(write_str(&mut self.bytes, text));
    }

    fn number(&mut self, number: u64) {
        done(write_uint(&mut self.bytes, number));
    }

    fn nothing(&mut self) {
        done(write_nil(&mut self.bytes).map_err(ValueWriteError::InvalidMarkerWrite));
    }
}

/// Consumers take numbers of 64 bits everywhere, and bytes only here and there.
fn short(hash: PageHash) -> u64 {
    let bytes = hash.bytes();
    u64::from_be_bytes(*bytes.last_chunk().expect("it has sixteen"))
}

fn hexadecimal(hash: PageHash) -> String {
    hash.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn done<T>(written: Result<T, ValueWriteError>) {
    written.map(drop).expect("a vector takes everything");
}

#[cfg(test)]
mod tests {
    use ruvllm_runtime::Tenant;

    use super::*;

    fn event() -> PrefixEvent {
        let hash = |byte: u8| PageHash::from_bytes([byte; 16]);
        PrefixEvent::Stored {
            tenant: Tenant::new("acme"),
            adapter: Some(AdapterId([0xab; 32])),
            salt: None,
            parent: None,
            pages: vec![hash(0), hash(1)],
            tokens: (0..32).collect(),
        }
    }

    /// The rest is read with msgspec's types of vLLM in tests/clients.
    #[test]
    fn arrays_leave_out_what_maps_name() {
        let encoded = |layout| encode(&[event(), PrefixEvent::Cleared], 1.5, layout, &|_| Some("legal".to_owned()));
        let (maps, arrays) = (encoded(EventLayout::Maps), encoded(EventLayout::Arrays));
        let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        for text in ["BlockStored", "AllBlocksCleared", "GPU", "legal", "acme"] {
            assert!(has(&maps, text) && has(&arrays, text), "{text}");
        }
        for name in ["type", "block_hashes", "token_ids", "extra_keys"] {
            assert!(has(&maps, name) && !has(&arrays, name), "{name}");
        }
        assert_eq!(arrays[..10], [0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
    }
}
