//! What was said so far, and the request that continues it. Pure.

use serde_json::{Map, Value, json};

use crate::answerer::{AnswerRequest, Route};

/// A conversation and the sampling fields that apply to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    system: Option<String>,
    turns: Vec<Turn>,
    fields: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
struct Turn {
    user: String,
    assistant: Option<String>,
}

impl Conversation {
    /// An empty one.
    pub(crate) fn new(system: Option<String>, fields: Map<String, Value>) -> Self {
        Self {
            system,
            turns: Vec::new(),
            fields,
        }
    }

    /// Adds what the user said.
    pub(crate) fn say(&mut self, text: String) {
        self.turns.push(Turn {
            user: text,
            assistant: None,
        });
    }

    /// Adds the answer to the last thing the user said. An answer that was cut off counts as said, as far as it came.
    pub(crate) fn answered(&mut self, text: String) {
        if let Some(turn) = self.turns.last_mut() {
            turn.assistant = Some(text);
        }
    }

    /// Takes back the last thing the user said, because it couldn't be answered.
    pub(crate) fn take_back(&mut self) {
        self.turns.pop();
    }

    /// Forgets the last answer. False if nothing was said yet.
    pub(crate) fn retry(&mut self) -> bool {
        match self.turns.last_mut() {
            Some(turn) => {
                turn.assistant = None;
                true
            }
            None => false,
        }
    }

    /// Forgets the oldest turn, to make room. False if only the last one is left.
    pub(crate) fn forget_oldest(&mut self) -> bool {
        if self.turns.len() < 2 {
            return false;
        }
        self.turns.remove(0);
        true
    }

    /// Forgets all turns.
    pub(crate) fn reset(&mut self) {
        self.turns.clear();
    }

    /// The system message.
    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Replaces the system message and forgets all turns, which were made under the old one.
    pub(crate) fn set_system(&mut self, text: String) {
        self.system = Some(text).filter(|text| !text.is_empty());
        self.reset();
    }

    /// The sampling fields.
    pub(crate) fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// Sets a sampling field; null unsets it.
    pub(crate) fn set_field(&mut self, name: String, value: Value) {
        if value.is_null() {
            self.fields.remove(&name);
        } else {
            self.fields.insert(name, value);
        }
    }

    /// The request for the next answer.
    pub(crate) fn request(&self) -> AnswerRequest {
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            messages.push(json!({ "role": "system", "content": system }));
        }
        for turn in &self.turns {
            messages.push(json!({ "role": "user", "content": turn.user }));
            if let Some(answer) = &turn.assistant {
                messages.push(json!({ "role": "assistant", "content": answer }));
            }
        }
        let mut body = self.fields.clone();
        body.insert("messages".to_owned(), Value::Array(messages));
        AnswerRequest {
            route: Route::Chat,
            body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(conversation: &Conversation) -> Vec<String> {
        let request = conversation.request();
        let messages = request.body["messages"].as_array().unwrap();
        messages
            .iter()
            .map(|message| format!("{}:{}", message["role"], message["content"]).replace('"', ""))
            .collect()
    }

    #[test]
    fn request_holds_system_message_and_all_turns_in_order() {
        let mut conversation = Conversation::new(Some("s".into()), Map::new());
        conversation.say("a".into());
        conversation.answered("b".into());
        conversation.say("c".into());
        assert_eq!(
            messages(&conversation),
            ["system:s", "user:a", "assistant:b", "user:c"]
        );
    }

    #[test]
    fn retry_asks_the_last_message_without_its_answer() {
        let mut conversation = Conversation::default();
        assert!(!conversation.retry());
        conversation.say("a".into());
        conversation.answered("b".into());
        assert!(conversation.retry());
        assert_eq!(messages(&conversation), ["user:a"]);
    }

    #[test]
    fn oldest_turns_go_first_and_the_last_one_stays() {
        let mut conversation = Conversation::default();
        conversation.say("a".into());
        conversation.answered("b".into());
        conversation.say("c".into());
        assert!(conversation.forget_oldest());
        assert_eq!(messages(&conversation), ["user:c"]);
        assert!(!conversation.forget_oldest());
    }

    #[test]
    fn new_system_message_begins_a_new_conversation() {
        let mut conversation = Conversation::new(Some("s".into()), Map::new());
        conversation.say("a".into());
        conversation.set_system(String::new());
        assert_eq!(messages(&conversation), Vec::<String>::new());
    }
}
