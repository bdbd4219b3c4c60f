//! Interactive chat in the terminal.

use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use ruvllm_memory::Feedback;
use ruvllm_runtime::{Message, Prompt};

use super::answerer::Answerer;
use super::report::summary;
use crate::output;

const HELP: &str = "\
/help           show this list
/system TEXT    set the system message and start over
/clear          clear the conversation
/retry          regenerate the last answer
/good           say that the last answer was right
/bad [REASON]   say that it was wrong
/fix TEXT       say what it should have been; the conversation goes on with that
/exit           quit (also Ctrl-D)
End a line with \\ to continue on the next; \"\"\" starts and ends a multi-line text.
Ctrl-C stops an answer.";

/// What an input line asks for.
enum Input {
    Question(String),
    Retry,
    Rate(Feedback),
    Nothing,
    Exit,
}

pub fn editor() -> Result<DefaultEditor> {
    Ok(DefaultEditor::new()?)
}

/// Reads questions and answers them until the user quits.
pub fn chat(
    mut editor: DefaultEditor,
    answerer: &Answerer,
    system: Option<String>,
    before: Vec<Message>,
) -> Result<()> {
    if !answerer.engine.has_chat_template() {
        bail!("this model has no chat template; give a prompt with --raw to continue plain text");
    }
    let mut conversation = Conversation::continuing(system, before);
    if let Some(last) = conversation.messages.last() {
        let turns = conversation.messages.iter().filter(|message| message.role == "user").count();
        let text: String = output::printable(last.content.trim()).chars().take(200).collect();
        output::remark(&format!("continuing after {turns} turns; the last message was: {text}"));
    }
    output::remark("/help lists the commands");
    loop {
        let input = match read(&mut editor)? {
            Some(text) => conversation.interpret(text.trim())?,
            None => Input::Exit,
        };
        match input {
            Input::Exit => return Ok(()),
            Input::Nothing => continue,
            Input::Retry if !conversation.forget_answer() => {
                output::remark("there is no answer to regenerate");
                continue;
            }
            Input::Retry => {}
            Input::Rate(feedback) => {
                output::remark(&conversation.rate(answerer, feedback));
                continue;
            }
            Input::Question(question) => conversation.messages.push(Message::user(&question)),
        }
        answerer.interrupted.store(false, Ordering::Relaxed);
        match answerer.answer(Prompt::Messages(conversation.all())) {
            Ok(response) => {
                output::line("")?;
                output::remark(&summary(&response));
                let reasoning = Some(response.reasoning).filter(|reasoning| !reasoning.is_empty());
                conversation.messages.push(Message { reasoning, ..Message::assistant(&response.text) });
            }
            // The question may be too long, for example; the conversation before it stays.
            Err(error) => {
                conversation.messages.pop();
                output::remark(&format!("error: {error:#} (/clear starts a new conversation)"));
            }
        }
        answerer.interrupted.store(false, Ordering::Relaxed);
    }
}

/// Reads one question, possibly of several lines; `None` at the end of input.
fn read(editor: &mut DefaultEditor) -> Result<Option<String>> {
    let mut text = String::new();
    let mut is_block = false;
    loop {
        let prompt = if text.is_empty() && !is_block { "> " } else { "… " };
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            // Ctrl-C at the prompt discards the input.
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
    // A line that the history refuses cannot be recalled; nothing else is lost.
    let _ = editor.add_history_entry(text.trim());
    Ok(Some(text))
}

/// The conversation so far.
struct Conversation {
    system: Option<String>,
    messages: Vec<Message>,
}

impl Conversation {
    /// Continues a stored conversation. `system` replaces its system message.
    fn continuing(system: Option<String>, mut messages: Vec<Message>) -> Self {
        let starts_with_one = messages.first().is_some_and(|message| message.role == "system");
        let own = starts_with_one.then(|| messages.remove(0).content);
        Self { system: system.or(own), messages }
    }

    fn all(&self) -> Vec<Message> {
        let system = self.system.iter().map(|system| Message::system(system));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Drops the last answer, so that its question is last; `false` if there is none.
    fn forget_answer(&mut self) -> bool {
        self.messages.pop().is_some()
    }

    /// Notes feedback on the last answer, and continues with a correction. Returns what to say.
    fn rate(&mut self, answerer: &Answerer, feedback: Feedback) -> String {
        let Some(session) = &answerer.session else {
            return "this chat is not kept, so there is nothing to note it for: start it with --learn".to_owned();
        };
        let Some(last) = self.messages.last_mut().filter(|message| message.role == "assistant") else {
            return "there is no answer yet".to_owned();
        };
        let correction = feedback.correction.clone();
        match session.rate(feedback) {
            Ok(said) => {
                if let Some(correction) = correction {
                    *last = Message::assistant(&correction);
                }
                said
            }
            Err(error) => format!("error: {error:#}"),
        }
    }

    fn interpret(&mut self, text: &str) -> Result<Input> {
        let Some(command) = text.strip_prefix('/') else {
            return Ok(if text.is_empty() { Input::Nothing } else { Input::Question(text.to_owned()) });
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "exit" | "quit" | "bye" => return Ok(Input::Exit),
            "retry" => return Ok(Input::Retry),
            "good" => return Ok(Input::Rate(Feedback { score: Some(1.0), ..Feedback::default() })),
            "bad" => {
                let reason = Some(rest.trim().to_owned()).filter(|reason| !reason.is_empty());
                return Ok(Input::Rate(Feedback { score: Some(-1.0), reason, ..Feedback::default() }));
            }
            "fix" if rest.trim().is_empty() => output::remark("/fix needs the text that would have been right"),
            "fix" => {
                let correction = Some(rest.trim().to_owned());
                return Ok(Input::Rate(Feedback { correction, ..Feedback::default() }));
            }
            "clear" => self.messages.clear(),
            "system" => {
                self.system = Some(rest.trim().to_owned()).filter(|system| !system.is_empty());
                self.messages.clear();
            }
            "help" => output::line(HELP)?,
            other => output::remark(&format!("unknown command /{other}; /help lists the commands")),
        }
        Ok(Input::Nothing)
    }
}
