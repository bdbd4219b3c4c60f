//! Restores the conversation that a request continues.

use ruvllm_memory::{MemoryError, Recorder, Session};
use serde_json::Value;

use crate::{Message, Prompt, Request, RequestError};

/// Puts the stored conversation before the messages of the request that names a session. Returns the session if it exists.
pub(super) fn restore(
    recorder: &Recorder,
    model: &str,
    requests: &mut [Request],
) -> Result<Option<Session>, RequestError> {
    let Some(name) = requests.iter().find_map(|request| request.session.clone()) else { return Ok(None) };
    let [request @ Request { choices: 1, .. }] = requests else { return Err(RequestError::NotASession) };
    let Prompt::Messages(messages) = &mut request.prompt else { return Err(RequestError::NotASession) };
    ruvllm_memory::check_session_name(&name).map_err(RequestError::Session)?;
    let session = recorder.session(request.tenant.name(), &name).map_err(RequestError::Session)?;
    let Some(session) = session else {
        check_size(messages)?;
        return Ok(None);
    };
    if session.model != model {
        return Err(RequestError::OtherModel { name, model: session.model });
    }
    let before = session.messages.iter().map(Message::from_json).collect::<Option<Vec<_>>>();
    let before = before.ok_or_else(|| RequestError::Session(MemoryError::unreadable_session(&name)))?;
    *messages = continued(before, std::mem::take(messages));
    check_size(messages)?;
    Ok(Some(session))
}

/// Refuses a conversation that is too large to be stored, before it is answered.
fn check_size(messages: &[Message]) -> Result<(), RequestError> {
    let messages: Vec<Value> = messages.iter().map(Message::to_json).collect();
    ruvllm_memory::check_conversation(&messages).map_err(RequestError::Session)
}

/// Returns the whole conversation, whether a client sent only new messages or all of them again. A system message that the
/// session holds already is not repeated.
fn continued(before: Vec<Message>, sent: Vec<Message>) -> Vec<Message> {
    if sent.len() > before.len() && sent[..before.len()] == before[..] {
        return sent;
    }
    let repeats = |message: &Message| message.role == "system" && before.contains(message);
    let new: Vec<Message> = sent.into_iter().filter(|message| !repeats(message)).collect();
    before.into_iter().chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_continues_whether_or_not_it_is_sent_again() {
        let before = vec![Message::system("Be brief."), Message::user("Hello"), Message::assistant("Hi")];
        let expected: Vec<Message> = before.iter().cloned().chain([Message::user("Go on")]).collect();
        assert_eq!(continued(before.clone(), vec![Message::user("Go on")]), expected);
        assert_eq!(continued(before.clone(), vec![Message::system("Be brief."), Message::user("Go on")]), expected);
        assert_eq!(continued(before.clone(), expected.clone()), expected);
        let other = vec![Message::system("Be rude."), Message::user("Go on")];
        assert_eq!(continued(before, other).len(), 5, "another instruction counts");
    }

    #[test]
    fn a_conversation_that_is_full_is_refused_before_it_is_answered() {
        let message = Message { name: Some("A".repeat(5_000_000)), ..Message::user("hi") };
        assert!(check_size(std::slice::from_ref(&message)).is_ok());
        let error = check_size(&[message.clone(), message]).unwrap_err();
        assert!(matches!(error, RequestError::Session(MemoryError::Invalid { field: "session", .. })), "{error}");
        assert!(error.to_string().contains("begin another session"), "{error}");
    }
}
