//! What becomes of a model file while it is served.

use std::path::Path;

use crate::support;
use ruvllm_model::formats::gguf::{Array, Gguf, Value};
use ruvllm_runtime::{Engine, Message, Prompt, Request, Sampling, UnsetParams, memory_of_file, open_tokenizer};
use ruvllm_text::SpecialTokens;
use serde_json::json;

#[test]
fn a_model_file_that_is_cut_short_while_it_is_served_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy.gguf");
    std::fs::copy(support::smollm2(), &copy).expect("room for a copy");
    let engine = Engine::builder(&copy).context(Some(256)).build().expect("the copy loads");
    let answer = || {
        let request = Request::new(Prompt::Messages(vec![Message::user("Why is the sky blue?")]));
        engine.generate(Request { max_tokens: Some(8), ..request }).expect("an answer").tokens
    };
    let before = answer();
    let file = std::fs::File::options().write(true).open(&copy).expect("the copy");
    file.set_len(1 << 20).expect("it is cut short");
    assert_eq!(answer(), before);
}

/// Before a file is fetched, only its size is known.
#[test]
fn what_a_file_is_estimated_to_take_is_enough_for_a_context_of_use() {
    for name in ["smollm2", "gemma3:270m"] {
        let path = support::model(name);
        let builder = Engine::builder(&path);
        let context = builder.fit().expect("a sound file").context_max.min(4096);
        let needed = builder.context(Some(context)).fit().expect("a sound file").memory.min_bytes() as u64;
        let estimated = memory_of_file(std::fs::metadata(&path).expect("it is there").len());
        assert!((needed..needed * 3).contains(&estimated), "{name}: {estimated} for {needed}");
    }
}

#[test]
fn what_a_models_makers_recommend_holds_where_a_request_says_nothing() {
    let generation = json!({ "temperature": 0.6, "top_k": 1, "top_p": 0.5, "repetition_penalty": null, "min_p": -7 });
    let folder = support::safetensors_folder(&generation);
    let engine = Engine::builder(folder.path()).context(Some(64)).build().expect("the folder loads");
    assert_eq!(engine.sampling_defaults().to_string(), "temperature 0.6, top_k 1, top_p 0.5");
    let answer = |sampling: Sampling, unset: UnsetParams| {
        let request = Request::new(Prompt::Text("Why is the sky blue?".to_owned()));
        engine.generate(Request { sampling, unset, max_tokens: Some(16), ..request }).expect("an answer")
    };
    let hot = Sampling { temperature: 50.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() };
    let greedy = answer(Sampling::greedy(), UnsetParams::default());
    let own = answer(hot.clone(), UnsetParams::ALL);
    // The likeliest token is always taken of one.
    assert_eq!((own.temperature, own.top_p, &own.tokens), (0.6, 0.5, &greedy.tokens));
    let asked = answer(hot, UnsetParams { top_p: true, ..UnsetParams::default() });
    assert_eq!((asked.temperature, asked.top_p), (50.0, 0.5));
    assert_ne!(asked.tokens, greedy.tokens);
}

/// Writes a safetensors file of zeros with tensors of these shapes.
fn write_zeros(path: &Path, tensors: &[(&str, &[usize])]) {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let size = 2 * shape.iter().product::<usize>();
        let info = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [end, end + size] });
        header.insert((*name).to_owned(), info);
        end += size;
    }
    let header = serde_json::Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; end]].concat();
    std::fs::write(path, bytes).expect("room for the weights");
}

/// A real vocabulary as `tokenizer.json` has it: what we make of it encodes as the tokenizers library and as the GGUF file.
#[test]
fn a_tokenizer_json_beside_safetensors_encodes_as_the_tokenizers_library() {
    let gguf = Gguf::open(support::smollm2()).expect("a sound file");
    let strings = |key: &str| -> Vec<String> {
        let array: Array<'_> = gguf.metadata().required(key).expect("a list");
        array.strings().expect("texts").map(|text| text.expect("UTF-8").to_owned()).collect()
    };
    let (tokens, merges) = (strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges"));
    let types: Array<'_> = gguf.metadata().required("tokenizer.ggml.token_type").expect("a list");
    let special = types.integers().expect("numbers").enumerate().filter(|(_, kind)| *kind == 3);
    let added = special.map(|(id, _)| {
        json!({ "id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false })
    });
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": { "type": "Sequence", "pretokenizers": [digits, bytes] },
        "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges },
    });
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, json: serde_json::Value| {
        std::fs::write(folder.path().join(name), json.to_string()).expect("room for a file");
    };
    write("tokenizer.json", tokenizer);
    write(
        "tokenizer_config.json",
        json!({ "eos_token": { "content": "<|im_end|>" }, "chat_template": "{{ messages }}" }),
    );
    write(
        "config.json",
        json!({ "architectures": ["LlamaForCausalLM"], "hidden_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1,
                "intermediate_size": 2, "max_position_embeddings": 64 }),
    );
    let rows = [("model.embed_tokens.weight", &[tokens.len(), 2][..]), ("model.layers.0.input_layernorm.weight", &[2])];
    write_zeros(&folder.path().join("model.safetensors"), &rows);
    let presented = ruvllm_model::open(folder.path()).expect("a sound folder");
    assert_eq!(presented.metadata().get("tokenizer.ggml.pre"), Some(Value::String("smollm")));
    assert_eq!(presented.metadata().get("tokenizer.ggml.eos_token_id"), Some(Value::U32(2)));
    assert_eq!(presented.metadata().get("tokenizer.chat_template"), Some(Value::String("{{ messages }}")));
    let [ours, library, file] = [folder.path().to_owned(), folder.path().join("tokenizer.json"), support::smollm2()]
        .map(|path| open_tokenizer(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    let texts = include_str!("../../README.md").split("\n\n").chain([
        "  \n\n\t x ",
        "1234 + 5",
        "Grüße, 世界 🌍",
        "<|im_end|> a",
    ]);
    for text in texts {
        let expected = library.encode(text, SpecialTokens::Parse);
        assert_eq!(ours.encode(text, SpecialTokens::Parse), expected, "{text:?}");
        assert_eq!(file.encode(text, SpecialTokens::Parse), expected, "{text:?}");
    }
}
