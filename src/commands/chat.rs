//! A conversation in the terminal.

use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use ruvllm_runtime::{Message, Prompt};

use super::run::{Answerer, summary};
use crate::output;

const HELP: &str = "\
/help           this list
/system TEXT    set the instructions and start anew
/clear          forget the conversation
/retry          answer the last question again
/exit           leave (also Ctrl-D)
A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines.
Ctrl-C stops an answer.";

/// What a line asks for.
enum Input {
    Question(String),
    Retry,
    Nothing,
    Exit,
}

pub fn editor() -> Result<DefaultEditor> {
    Ok(DefaultEditor::new()?)
}

/// Reads questions and answers them until the user leaves.
pub fn chat(
    mut editor: DefaultEditor,
    answerer: &mut Answerer<'_>,
    system: Option<String>,
    before: Vec<Message>,
) -> Result<()> {
    if !answerer.engine.has_chat_template() {
        bail!("this model has no chat template; give a prompt and --raw to continue plain text");
    }
    let mut conversation = Conversation::going_on(system, before);
    if let Some(last) = conversation.messages.last() {
        let turns = conversation.messages.iter().filter(|message| message.role == "user").count();
        let text: String = output::printable(last.content.trim()).chars().take(200).collect();
        output::remark(&format!("this conversation has {turns} turns so far; the last words were: {text}"));
    }
    output::remark("/help shows what you can do here");
    loop {
        let input = match read(&mut editor)? {
            Some(text) => conversation.interpret(text.trim())?,
            None => Input::Exit,
        };
        match input {
            Input::Exit => return Ok(()),
            Input::Nothing => continue,
            Input::Retry if !conversation.forget_answer() => {
                output::remark("there is nothing to answer again");
                continue;
            }
            Input::Retry => {}
            Input::Question(question) => conversation.messages.push(Message::user(&question)),
        }
        answerer.interrupted.store(false, Ordering::Relaxed);
        match answerer.answer(Prompt::Messages(conversation.all())) {
            Ok(response) => {
                output::line("")?;
                output::remark(&summary(&response));
                conversation.messages.push(Message::assistant(&response.text));
            }
            // The question does not fit, for example; the conversation before it is still good.
            Err(error) => {
                conversation.messages.pop();
                output::remark(&format!("error: {error:#} (/clear forgets the conversation so far)"));
            }
        }
        answerer.interrupted.store(false, Ordering::Relaxed);
    }
}

/// One question, possibly of several lines; `None` at the end of input.
fn read(editor: &mut DefaultEditor) -> Result<Option<String>> {
    let mut text = String::new();
    let mut is_block = false;
    loop {
        let prompt = if text.is_empty() && !is_block { "> " } else { "… " };
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            // Ctrl-C at the prompt drops what was typed.
            Err(ReadlineError::Interrupted) => return Ok(Some(String::new())),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if line.trim() == "\"\"\"" {
            if is_block {
                break;
            }
            is_block = true;
            continue;
        }
        match line.strip_suffix('\\').filter(|_| !is_block) {
            Some(start) => text.push_str(&format!("{start}\n")),
            None => {
                text.push_str(&line);
                if !is_block {
                    break;
                }
                text.push('\n');
            }
        }
    }
    // Only recall is lost if the history cannot take a line.
    let _ = editor.add_history_entry(text.trim());
    Ok(Some(text))
}

/// The turns so far.
struct Conversation {
    system: Option<String>,
    messages: Vec<Message>,
}

impl Conversation {
    /// From where it was left. Its instruction is the one that it has, unless there is a new one.
    fn going_on(system: Option<String>, mut messages: Vec<Message>) -> Self {
        let begins_with_one = messages.first().is_some_and(|message| message.role == "system");
        let own = begins_with_one.then(|| messages.remove(0).content);
        Self { system: system.or(own), messages }
    }

    fn all(&self) -> Vec<Message> {
        let system = self.system.iter().map(|system| Message::system(system));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Drops the last answer, so that its question stands last; `false` if there is none.
    fn forget_answer(&mut self) -> bool {
        self.messages.pop().is_some()
    }

    fn interpret(&mut self, text: &str) -> Result<Input> {
        let Some(command) = text.strip_prefix('/') else {
            return Ok(if text.is_empty() { Input::Nothing } else { Input::Question(text.to_owned()) });
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "exit" | "quit" | "bye" => return Ok(Input::Exit),
            "retry" => return Ok(Input::Retry),
            "clear" => self.messages.clear(),
            "system" => {
                self.system = Some(rest.trim().to_owned()).filter(|system| !system.is_empty());
                self.messages.clear();
            }
            "help" => output::line(HELP)?,
            other => output::remark(&format!("there is no command /{other}; /help lists them")),
        }
        Ok(Input::Nothing)
    }
}
