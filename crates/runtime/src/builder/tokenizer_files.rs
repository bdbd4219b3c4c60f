//! A model's tokenizer and chat template as files, for programs that encode its prompts themselves.

use std::io;
use std::path::{Path, PathBuf};

use ruvllm_model::formats::gguf::facts::ModelFacts;
use ruvllm_model::open;
use serde_json::{Map, Value, json};

use super::{BuildError, vocabulary};

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// Provides `tokenizer.json` and `tokenizer_config.json` of a model in a folder. A `tokenizer.json` that is there already is
/// kept, with whatever is beside it, if its tokens are the model's.
pub fn provide_tokenizer_files(model: &Path, folder: &Path) -> Result<(), BuildError> {
    let gguf = open(model)?;
    let vocabulary = vocabulary::read(gguf.metadata())?;
    let path = folder.join(TOKENIZER);
    match std::fs::read(&path) {
        Ok(bytes) => {
            let json = serde_json::from_slice(&bytes).map_err(|error| problem(&path, &error))?;
            return vocabulary.check_tokenizer_json(&json).map_err(|error| problem(&path, &error));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(problem(&path, &error)),
    }
    let tokenizer = vocabulary.to_tokenizer_json()?;
    let text = |id: Option<u32>| id.map(|id| vocabulary.tokens[id as usize].as_str());
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "chat_template": ModelFacts::of(&gguf)?.chat_template,
        "bos_token": text(vocabulary.bos),
        "eos_token": text(vocabulary.eos),
        "unk_token": text(vocabulary.unk),
        "pad_token": text(vocabulary.pad),
    });
    config.as_object_mut().unwrap_or(&mut Map::new()).retain(|_, value| !value.is_null());
    std::fs::create_dir_all(folder).map_err(|error| problem(folder, &error))?;
    // The one that is looked for is written last.
    write(&folder.join(CONFIG), &config)?;
    write(&path, &tokenizer)
}

/// Writes a file that is complete or not there.
fn write(path: &Path, json: &Value) -> Result<(), BuildError> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = std::fs::write(&part, json.to_string()).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| problem(path, &error))
}

fn problem(path: &Path, problem: &impl ToString) -> BuildError {
    BuildError::TokenizerFile { path: path.to_owned(), problem: problem.to_string() }
}
