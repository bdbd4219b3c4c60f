//! Reads any bytes as the body of a request, as each endpoint does before it needs a model.
//!
//! The first byte says which endpoint it is sent to.

use ruvllm_server::api::checked;

pub fn run(bytes: &[u8]) {
    let Some((endpoint, body)) = bytes.split_first() else { return };
    let path = checked::PATHS[usize::from(*endpoint) % checked::PATHS.len()];
    if let Err(error) = checked::requests(path, body) {
        // Errors are for people: they name the field and do not repeat what was sent.
        assert!((400..500).contains(&error.status.as_u16()), "{path}: {error:?}");
        for told in [error.to_openai(), error.to_anthropic("id"), error.to_ollama()] {
            assert!(told.to_string().len() < 16 << 10, "{path}: an error of {} bytes", told.to_string().len());
        }
    }
}
