//! A tiny Phi-2, which candle runs and the native backend does not know, with a vocabulary of bytes.

use std::path::{Path, PathBuf};

use ruvllm_model::formats::gguf::write::{Header, Writer};
use ruvllm_model::formats::gguf::{Gguf, Value};

const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}";

/// Writes it to a folder.
pub fn phi2(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/candle/phi2/model.gguf");
    let gguf = Gguf::open(source).expect("a sound file");
    let mut header = Header::copying(gguf.metadata());
    header.set("tokenizer.ggml.model", Value::String("gpt2"));
    header.set("tokenizer.ggml.pre", Value::String("phi-2"));
    header.set("tokenizer.chat_template", Value::String(CHAT_TEMPLATE));
    header.set_strings("tokenizer.ggml.tokens", &bytes_as_text());
    gguf.tensors().for_each(|tensor| header.add_tensor(tensor.name, tensor.dims, tensor.kind));
    let path = folder.join("phi2.gguf");
    let mut writer = Writer::create(&path, &header).expect("it can be written");
    gguf.tensors().for_each(|tensor| writer.write(&tensor.bytes()).expect("it can be written"));
    writer.finish().expect("it can be written");
    path
}

/// A token for each byte, as vocabularies of bytes spell them: those that are not printable from U+0100 on.
fn bytes_as_text() -> Vec<String> {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = '\u{100}'..;
    let spelled = |byte: u8| if is_printable(byte) { char::from(byte) } else { others.next().expect("a character") };
    (0..=255).map(spelled).map(String::from).collect()
}
